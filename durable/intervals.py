"""Sets of queue offsets, kept as intervals, for the whole project. Pure: nothing here touches a file, a clock or Spark.

The table's *loaded set* says which pulled records are in the table. Offsets of a queue are consumed nearly in order, so
a set of a million offsets is a handful of intervals; and since the intervals are half open and merged on construction,
equal sets have equal pieces, and the JSON of a set is as small as the set is simple.

An `IntervalSet` is immutable: an operation returns a new set. That is what makes re-planning after a lost race safe: nobody
holds a set that changes under him. `Intervals` grows in place, for process queues, the journal and a worker's flush, where
offsets come one after the other: adding at the end costs the same however much is in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

OFFSET_MAX = 2**63 - 1
"""Offsets are Java longs, never negative."""


class QueueKey(NamedTuple):
    """One stream of offsets: a queue id repeats per broker and topic, and each group has a consumption of its own.

    `epoch` counts how often its offsets began anew: after a topic was made again, or to run everything once more.
    """

    group: str
    topic: str
    broker: str
    queue_id: int
    epoch: int = 0

    def in_epoch(self, epoch: int) -> QueueKey:
        """The same queue in another epoch."""
        return self if epoch == self.epoch else QueueKey(self.group, self.topic, self.broker, self.queue_id, epoch)

    def to_json(self) -> list[object]:
        """`[group, topic, broker, queue_id]`, followed by the epoch unless it is 0."""
        return list(self) if self.epoch else list(self[:4])

    @classmethod
    def from_json(cls, values: object) -> QueueKey:
        """What `to_json` wrote. Raises ValueError for anything else."""
        match values:
            case [str(group), str(topic), str(broker), int(queue_id)]:
                return cls(group, topic, broker, queue_id)
            case [str(group), str(topic), str(broker), int(queue_id), int(epoch)]:
                return cls(group, topic, broker, queue_id, epoch)
            case other:
                raise ValueError(f"a queue of an offset set reads {other!r:.200}")


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """A set of offsets as sorted, disjoint, non-touching half-open `(start, stop)` pieces. Build it with `of`."""

    pieces: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int]]) -> IntervalSet:
        """The union of `pieces`, which may come in any order, overlap or be empty. Timsort makes a merge of it."""
        merged: list[tuple[int, int]] = []
        last_start = last_stop = -1
        for start, stop in sorted(pieces):
            if start >= stop:
                continue
            if start <= last_stop and merged:
                if stop > last_stop:
                    last_stop = stop
                    merged[-1] = (last_start, last_stop)
                continue
            last_start, last_stop = start, stop
            merged.append((start, stop))
        return cls(tuple(merged))

    @classmethod
    def from_offsets(cls, offsets: Iterable[int]) -> IntervalSet:
        """The set of single offsets, given in any order."""
        return cls.of((offset, offset + 1) for offset in offsets)

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.pieces, (offset, OFFSET_MAX)) - 1
        return at >= 0 and offset < self.pieces[at][1]

    def __or__(self, other: IntervalSet) -> IntervalSet:
        if not other.pieces:
            return self
        if not self.pieces:
            return other
        return IntervalSet.of((*self.pieces, *other.pieces))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(tuple(_subtract(self.pieces, other.pieces))) if other.pieces else self

    def __and__(self, other: IntervalSet) -> IntervalSet:
        return self - (self - other)

    def count(self) -> int:
        """How many offsets are in the set."""
        return sum(stop - start for start, stop in self.pieces)

    def hull(self) -> IntervalSet:
        """The one interval from the smallest to the greatest offset: the cheapest set that contains this one."""
        return IntervalSet(((self.pieces[0][0], self.pieces[-1][1]),)) if self.pieces else self

    def cover(self, universe: IntervalSet) -> IntervalSet:
        """A set with few pieces that picks exactly these offsets out of `universe` (a superset of this set).

        With a tag that matches one message in ten, every offset of a segment is a piece of its own. But to say which
        records *of that segment* to take, gaps that hold no record need no mention: pieces are joined across them.
        """
        refused = universe - self
        cuts = refused.pieces
        joined: list[tuple[int, int]] = []
        at = 0
        for start, stop in self.pieces:
            crossed = False
            while at < len(cuts) and cuts[at][0] < start:
                crossed = True
                at += 1
            if joined and not crossed:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        return IntervalSet(tuple(joined))

    def to_json(self) -> list[int]:
        """`[start, length, gap, length, gap, length, …]`: short numbers, whatever the offsets are."""
        flat: list[int] = []
        end = 0
        for start, stop in self.pieces:
            flat += (start - end, stop - start)
            end = stop
        return flat

    @classmethod
    def from_json(cls, flat: object) -> IntervalSet:
        """The set that `to_json` wrote. Raises ValueError for anything else."""
        numbers = _natural_numbers(flat)
        if len(numbers) % 2:
            raise ValueError(f"an interval list needs pairs, this one has {len(numbers)} numbers")
        pieces: list[tuple[int, int]] = []
        end = 0
        for at in range(0, len(numbers), 2):
            start = end + numbers[at]
            end = start + numbers[at + 1]
            if end == start or (at and not numbers[at]):
                raise ValueError(f"an interval list holds an empty or touching piece at number {at}")
            pieces.append((start, end))
        if end > OFFSET_MAX + 1:
            raise ValueError(f"an interval list ends at {end}, above the greatest offset")
        return cls(tuple(pieces))


class Intervals:
    """A set that grows, as sorted, disjoint, non-touching half-open pairs: a queue finished in order stays one pair."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.update(pairs)

    def add(self, start: int, end: int) -> int:
        """Add `[start, end)` and return where the piece that it is now part of ends; an empty interval is nothing."""
        if start >= end:
            return end
        ends = self._ends
        if not ends or start > ends[-1]:
            self._starts.append(start)
            ends.append(end)
            return end
        if start == ends[-1]:
            ends[-1] = end
            return end
        left = bisect_left(self._ends, start)
        right = bisect_right(self._starts, end)
        if left < right:
            start = min(start, self._starts[left])
            end = max(end, self._ends[right - 1])
        self._starts[left:right] = [start]
        self._ends[left:right] = [end]
        return end

    def discard_below(self, floor: int) -> None:
        """Forget everything below `floor`."""
        keep = bisect_right(self._ends, floor)
        del self._starts[:keep], self._ends[:keep]
        if self._starts and self._starts[0] < floor:
            self._starts[0] = floor

    @property
    def start(self) -> int:
        """The smallest offset; the set is not empty."""
        return self._starts[0]

    @property
    def end(self) -> int:
        """One more than the greatest offset; 0 = the set is empty."""
        return self._ends[-1] if self._ends else 0

    def next_gap(self, offset: int) -> int:
        """The smallest offset from `offset` on that is not in the set."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def update(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add all of these, in any order."""
        for start, end in pairs:
            self.add(start, end)

    def frozen(self) -> IntervalSet:
        """As it is now."""
        return IntervalSet(tuple(self.pairs()))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.pairs() == other.pairs()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Intervals({self.pairs()})"

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def total(self) -> int:
        """How many offsets it holds."""
        return sum(self._ends) - sum(self._starts)


def _natural_numbers(flat: object) -> list[int]:
    numbers: list[int] = []
    for number in _as_list(flat, "an interval list"):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"an interval list holds numbers from 0 up, not {number!r}")
        numbers.append(number)
    return numbers


def _as_list(value: object, what: str) -> list[object]:
    match value:
        case list():
            return cast("list[object]", value)
        case _:
            raise ValueError(f"{what} is a JSON list, not {type(value).__name__}")


def _subtract(kept: tuple[tuple[int, int], ...], removed: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    at = bisect_right(removed, (kept[0][0], 0)) if kept else 0
    # The piece before may reach into the first kept one; all others before it end earlier.
    at = max(0, at - 1)
    for start, stop in kept:
        while at < len(removed) and removed[at][1] <= start:
            at += 1
        here = at
        while here < len(removed) and removed[here][0] < stop:
            if start < removed[here][0]:
                yield start, removed[here][0]
            start = removed[here][1]
            here += 1
        if start < stop:
            yield start, stop


def _union(several: list[IntervalSet]) -> IntervalSet:
    return several[0] if len(several) == 1 else IntervalSet.of(piece for one in several for piece in one.pieces)


@dataclass(frozen=True, slots=True)
class OffsetSet:
    """A set of pulled records: an `IntervalSet` per queue, queues without offsets left out. Treat it as immutable."""

    queues: Mapping[QueueKey, IntervalSet] = field(default_factory=dict[QueueKey, IntervalSet])

    @classmethod
    def of(cls, queues: Iterable[tuple[QueueKey, IntervalSet]]) -> OffsetSet:
        """The union of all given sets; a queue may be named more than once."""
        found: dict[QueueKey, list[IntervalSet]] = {}
        for key, offsets in queues:
            if offsets:
                found.setdefault(key, []).append(offsets)
        return cls({key: _union(several) for key, several in found.items()})

    @classmethod
    def union(cls, sets: Iterable[OffsetSet]) -> OffsetSet:
        """All records that are in any of `sets`. Queues of the largest alone are not joined with anything: a commit brings a
        few of a table's thousands."""
        largest, *others = sorted(sets, key=lambda one: len(one.queues), reverse=True) or [cls()]
        more = cls.of(item for one in others for item in one.queues.items()).queues
        kept = {key: offsets for key, offsets in largest.queues.items() if offsets.pieces}
        return cls({**kept, **{key: largest.of_queue(key) | offsets for key, offsets in more.items()}})

    def __bool__(self) -> bool:
        return bool(self.queues)

    def __or__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet.union((self, other))

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        left = {key: self.queues[key] - other.queues[key] for key in self.queues.keys() & other.queues.keys()}
        return OffsetSet({key: offsets for key, offsets in {**self.queues, **left}.items() if offsets.pieces})

    def __and__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet.of(
            (key, self.queues[key] & other.queues[key]) for key in self.queues.keys() & other.queues.keys()
        )

    def without(self, keys: Iterable[QueueKey]) -> OffsetSet:
        """The set without some queues."""
        gone = set(keys)
        return OffsetSet({key: offsets for key, offsets in self.queues.items() if key not in gone}) if gone else self

    def rekeyed(self, rename: Callable[[QueueKey], QueueKey]) -> OffsetSet:
        """The same offsets under other keys."""
        return OffsetSet.of((rename(key), offsets) for key, offsets in self.queues.items())

    def of_queue(self, key: QueueKey) -> IntervalSet:
        """The offsets of one queue, empty when it is unknown."""
        return self.queues.get(key, _NO_OFFSETS)

    def count(self) -> int:
        """How many records are in the set."""
        return sum(offsets.count() for offsets in self.queues.values())

    def hull(self) -> OffsetSet:
        """Per queue the one interval around all offsets."""
        return OffsetSet({key: offsets.hull() for key, offsets in self.queues.items()})

    def cover(self, universe: OffsetSet) -> OffsetSet:
        """Per queue `IntervalSet.cover`: few pieces, the same choice among `universe`'s records."""
        return OffsetSet({key: offsets.cover(universe.of_queue(key)) for key, offsets in self.queues.items()})

    def to_json(self) -> list[list[object]]:
        """`[[group, topic, broker, queue_id, [start, length, gap, length, …]], …]`, sorted by queue."""
        return [[*key.to_json(), offsets.to_json()] for key, offsets in sorted(self.queues.items())]

    @classmethod
    def from_json(cls, rows: object) -> OffsetSet:
        """The set that `to_json` wrote. Raises ValueError for anything else."""
        queues: dict[QueueKey, IntervalSet] = {}
        for row in _as_list(rows, "an offset set"):
            *named, offsets = _as_list(row, "a queue of an offset set") or [None]
            key = QueueKey.from_json(named)
            if key in queues:
                raise ValueError(f"an offset set names the queue {tuple(key)} twice")
            queues[key] = IntervalSet.from_json(offsets)
        return cls({key: offsets for key, offsets in queues.items() if offsets})


_NO_OFFSETS = IntervalSet()
