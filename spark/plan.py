"""Batch plans: which records of which segments one commit puts into the table. Pure.

The whole promise of the loader rests on four set operations here:

- A record is taken when it is neither in the table's loaded set nor in an earlier segment of the same plan. (Handled
  twice inside one segment, its first run of rows counts; the reader of segments sees to that.)
- After the commit, loaded = loaded before + taken + *settled*. Settled records are finished, rows or not; folding them
  in closes the gaps that records without rows leave, and keeps the loaded set a few intervals per queue.
- Settled records whose rows still wait in a segment outside this plan must not be folded in, or these rows would be
  taken for loaded: such segments are *held*. Their hull is left out, not each single offset: leaving out more than
  needed only postpones the folding, and a hull is two numbers.
- A frozen plan never changes. After a lost race for the batch number a new plan, with a new id, is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

from ..conf.columns import Column
from ..conf.segment_format import PLAN_VERSION
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.versions import check_version
from .costs import Costs

ROOM_SHARE: Final = 3
"""A plan takes so small a part of the free room: its copies may need as much as its segments, and so may the table's files
on the same disk. The rest stays for whoever else writes there."""


class Ends(NamedTuple):
    """The lowest and the highest offset of a queue in one segment, the earliest and the latest store time (us since 1970)."""

    first_offset: int
    last_offset: int
    first_us: int
    last_us: int


class Cut(NamedTuple):
    """Of what was loaded of a queue in one epoch, all up to offset `below` was stored until `until_us`, and all from offset
    `above` on from `from_us` on; nothing lies between (cuts.py)."""

    below: int
    until_us: int
    above: int
    from_us: int


class Top(NamedTuple):
    """The highest offset that was loaded of a queue in one epoch, and the latest store time; `since_us`: when the epoch's
    first record was stored, where the epoch began because the topic was made again, else 0. `cuts`: where its store times
    are silent, by offset."""

    offset: int
    stored_us: int
    since_us: int = 0
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What planning needs to know of a sealed segment: `repeats` when some record was handled twice inside it.

    `finished`: the records that were finished when its rows were written, also those among them that gave none.
    `pieces`: the ends of few parts of a queue, divided where store times differ most from one record to the next; a queue
    that is not in there is one piece.
    """

    name: str
    bytes: int
    rows: int
    offsets: OffsetSet
    repeats: bool
    columns: tuple[Column, ...]
    ends: Mapping[QueueKey, Ends] = field(default_factory=dict[QueueKey, Ends])
    finished: OffsetSet = field(default_factory=OffsetSet)
    pieces: Mapping[QueueKey, tuple[Ends, ...]] = field(default_factory=dict[QueueKey, tuple[Ends, ...]])

    def pieces_of(self, key: QueueKey) -> tuple[Ends, ...]:
        """The parts of a queue that `ends` names, by offset."""
        return self.pieces.get(key) or (self.ends[key],)


@dataclass(frozen=True, slots=True)
class Take:
    """What a plan takes of one segment: all of it (`part` is None), or the records that `part` covers."""

    name: str
    part: OffsetSet | None

    def of(self, offsets: OffsetSet) -> OffsetSet:
        """The records taken, out of the segment's `offsets`."""
        return offsets if self.part is None else offsets & self.part


@dataclass(frozen=True, slots=True)
class PlanBounds:
    """Ceilings of one plan; one segment is always let through."""

    rows_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One frozen batch: it will be `batch_id=<batch>` of the table, or nothing."""

    id: str
    batch: int
    takes: tuple[Take, ...]
    settled: OffsetSet
    columns: tuple[Column, ...]
    epochs: tuple[QueueKey, ...] = ()
    """Queues whose records are of a later epoch than the first, each in that epoch."""
    since: Mapping[QueueKey, int] = field(default_factory=dict[QueueKey, int])
    """Epochs that the plan opens because a topic was made again, each with its `Top.since_us`."""
    inherits: OffsetSet = field(default_factory=OffsetSet)
    """Records of these epochs that were loaded already, as if they were of the epoch before (epochs.py)."""
    ended: OffsetSet = field(default_factory=OffsetSet)
    """Holes that nobody will fill, so that the floor passes them (accounts.py)."""
    facts: tuple[str, ...] = ()
    """Names of files of facts (durable/facts.py), whose outcomes the commit brings."""
    parent: str = ""
    """The id of the plan that made the table what it was when this one was made; empty: the first, or not recorded."""

    def follows(self, batch: int, plan_id: str) -> bool:
        """Whether the plan was made on the table as `plan_id` left it at `batch`."""
        return self.batch == batch + 1 and self.parent in ("", plan_id)

    @property
    def names(self) -> tuple[str, ...]:
        """The segments of the plan, in the order in which they are taken."""
        return tuple(take.name for take in self.takes)

    def taken(self, facts: Mapping[str, SegmentFacts]) -> OffsetSet:
        """The records whose rows the plan adds to the table."""
        return OffsetSet.union(take.of(facts[take.name].offsets) for take in self.takes)

    def finished(self, facts: Mapping[str, SegmentFacts]) -> OffsetSet:
        """What its segments say was finished, with rows or without: as durable as their rows."""
        return OffsetSet.union(facts[name].finished for name in self.names)


def first_fitting(waiting: Sequence[SegmentFacts], bounds: PlanBounds) -> int:
    """How many of the `waiting` segments, oldest first, one plan takes: as many as fit, but one at least."""
    rows = size = 0
    for count, segment in enumerate(waiting):
        rows += segment.rows
        size += segment.bytes
        if count and (rows > bounds.rows_max or size > bounds.bytes_max):
            return count
    return len(waiting)


def within_room(bounds: PlanBounds, free_bytes: int) -> PlanBounds:
    """The same, but no more than the disk has room for: a plan that does not fit would never be loaded."""
    return replace(bounds, bytes_max=min(bounds.bytes_max, free_bytes // ROOM_SHARE))


def make_takes(segments: Iterable[SegmentFacts], loaded: OffsetSet) -> tuple[Take, ...]:
    """What to take of each segment, in order, beside what is loaded and what an earlier one of them gives."""
    gone = loaded
    takes: list[Take] = []
    segments = list(segments)
    if _all_new(segments, loaded):
        return tuple(Take(segment.name, None) for segment in segments)
    for segment in segments:
        taken = segment.offsets - gone
        if segment.repeats or taken != segment.offsets:
            takes.append(Take(segment.name, taken.cover(segment.offsets)))
        else:
            takes.append(Take(segment.name, None))
        gone = _with(gone, taken)
    return tuple(takes)


def _all_new(segments: Sequence[SegmentFacts], loaded: OffsetSet) -> bool:
    """Whether nothing was delivered twice, found by counting: the usual case, without a set that grows by segment."""
    together = OffsetSet.union(segment.offsets for segment in segments)
    return (
        not any(segment.repeats for segment in segments)
        and together.count() == sum(segment.offsets.count() for segment in segments)
        and (together - loaded).count() == together.count()
    )


def _with(gone: OffsetSet, taken: OffsetSet) -> OffsetSet:
    """Their union, touching only the queues that `taken` names: a plan has many segments, a table many queues."""
    if not taken:
        return gone
    return OffsetSet({**gone.queues, **{key: gone.of_queue(key) | new for key, new in taken.queues.items()}})


def settled_to_fold(settled: OffsetSet, held: Iterable[SegmentFacts], bad: OffsetSet) -> OffsetSet:
    """The settled records that may count as loaded after a commit that leaves `held` segments and `bad` files."""
    return settled - OffsetSet.union([bad, *(segment.offsets.hull() for segment in held)])


def plan_to_json(plan: Plan) -> str:
    """The plan file's text. Queues are named once, in a table, and meant by their place in it afterwards."""
    keys = sorted({key for part in _parts(plan) for key in part.queues})
    place = {key: at for at, key in enumerate(keys)}

    def refer(part: OffsetSet) -> list[list[object]]:
        return [[place[key], offsets.to_json()] for key, offsets in sorted(part.queues.items())]

    return json.dumps(
        {
            "version": PLAN_VERSION,
            "id": plan.id,
            "batch": plan.batch,
            "queues": [key.to_json() for key in keys],
            "segments": [
                {"name": take.name, "take": "all" if take.part is None else refer(take.part)} for take in plan.takes
            ],
            "settled": refer(plan.settled),
            "ended": refer(plan.ended),
            "inherits": refer(plan.inherits),
            "columns": plan.columns,
            "epochs": [key.to_json() for key in plan.epochs],
            "since": [[key.to_json(), since_us] for key, since_us in sorted(plan.since.items())],
            "parent": plan.parent,
            "facts": plan.facts,
        },
        separators=(",", ":"),
    )


def _parts(plan: Plan) -> Iterable[OffsetSet]:
    yield plan.settled
    yield plan.ended
    yield plan.inherits
    yield from (take.part for take in plan.takes if take.part is not None)


def plan_from_json(text: str, where: object = "the plan") -> Plan:
    """The plan that `plan_to_json` wrote. Raises LaterVersionError for a later version's, ValueError for anything else."""
    try:
        return _plan_from(json.loads(text), where)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a plan: {type(error).__name__}: {error}") from None


def _plan_from(data: dict[str, Any], where: object) -> Plan:
    check_version(data["version"], PLAN_VERSION, where)
    keys = [QueueKey.from_json(key) for key in data["queues"]]

    def resolve(part: object) -> OffsetSet:
        rows = cast("list[tuple[int, object]]", part)
        return OffsetSet.of((keys[place], IntervalSet.from_json(offsets)) for place, offsets in rows)

    takes = (
        Take(str(segment["name"]), None if segment["take"] == "all" else resolve(segment["take"]))
        for segment in data["segments"]
    )
    return Plan(
        id=str(data["id"]),
        batch=int(data["batch"]),
        takes=tuple(takes),
        settled=resolve(data["settled"]),
        ended=resolve(data["ended"]),
        inherits=resolve(data["inherits"]),
        columns=tuple(Column(str(name), str(type_)) for name, type_ in data["columns"]),
        epochs=tuple(QueueKey.from_json(key) for key in data["epochs"]),
        since={QueueKey.from_json(key): int(since_us) for key, since_us in data["since"]},
        parent=str(data["parent"]),
        facts=tuple(str(name) for name in data["facts"]),
    )


EARLY_MAX: Final = 10
QUIET_SHARE: Final = 30
"""Of the trigger's `wait_ms`, a thirtieth without a new segment is quiet: a second of the 30 that are the default."""
STREAM_ROWS: Final = 1_000
"""What is worth a file of the table, where rows come all the time: at 1,000 a second they need not wait for `wait_ms`."""


def age_ms(now_ms: int, sealed_ms: int) -> int:
    """How long ago that was, by a wall clock that may have been set back since: a time far ahead is as old as it is far.

    So nothing waits for longer than twice as long as it should. And a storage whose clock is a little ahead does not make
    every segment one that is due.
    """
    return abs(now_ms - sealed_ms)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch is due: by rows, by bytes (both of sealed segments waiting) or by the age of the oldest.

    `bytes` is for what would outgrow the disk or a plan before its rows are worth a commit (config.py). `pause_ms`: the age
    at which STREAM_ROWS suffice.
    """

    rows: int
    bytes: int
    wait_ms: int
    pause_ms: int = 0

    def for_costs(self, costs: Costs) -> Trigger:
        """The same, but due by so few rows that a commit's fixed cost is a small part of the whole, or so seldom that it is
        a small part of the time."""
        pause_ms = max(self.wait_ms // QUIET_SHARE, math.ceil(costs.pause_s() * 1000))
        return replace(self, rows=min(self.rows, costs.rows_wanted()), pause_ms=pause_ms)

    def due(self, waiting: Sequence[SegmentFacts], oldest_age_ms: int) -> bool:
        """Whether to start a batch now. What a commit costs whatever its size (costs.py) is why not at once."""
        if not waiting:
            return False
        rows = sum(segment.rows for segment in waiting)
        return (
            oldest_age_ms >= self.wait_ms
            or rows >= self.rows
            or (rows >= STREAM_ROWS and 0 < self.pause_ms <= oldest_age_ms)
            or sum(segment.bytes for segment in waiting) >= self.bytes
        )

    def is_quiet(self, age_ms: int) -> bool:
        """Whether a segment that was sealed so long ago has waited long enough for company that has not come."""
        return age_ms * QUIET_SHARE >= self.wait_ms


@dataclass(frozen=True, slots=True)
class Early:
    """Batches that may be made before they are due, because nothing more comes or nobody has seen a row yet.

    At most EARLY_MAX in a row, and one more for each `wait_ms`: who sends a message now and then sees it soon, and a trickle
    makes no more than twice the commits in a year that `wait_ms` allows. `at_ms` is wall-clock time; immutable.
    """

    spare: float = EARLY_MAX
    at_ms: int = 0

    def at(self, now_ms: int, wait_ms: int) -> Early:
        """What may be made at that time."""
        gained = max(0, now_ms - self.at_ms) / max(1, wait_ms) if self.at_ms else 0.0
        return Early(min(float(EARLY_MAX), self.spare + gained), now_ms)

    def made(self) -> Early:
        """What may be made after one."""
        return replace(self, spare=self.spare - 1)
