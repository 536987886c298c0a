"""What POP gave out: by topic, group and queue how far messages were popped, and which of them are in flight.

A message in flight was popped and not acknowledged. It is known by its queue offset and the time of its pop, both in the
check point that the client gives back. It ends in one of three ways:

- it is acknowledged with its newest check point;
- its invisible time is changed: it stays in flight, with a new pop time; the check point before is worth nothing;
- its time passes: it is *revived*, so stored again in the group's retry topic, with one more in its reconsume times.

An acknowledgement of anything else (a second one, one that comes too late, one with a check point that was replaced) changes
nothing. All of a group's members share this table; a message belongs to nobody, so a member that goes away needs no care.

Changes are texts. The owner writes them to the journal first, then `apply`s them: what a start reads is what was done. To
read one twice changes nothing. A pop's text says where the group went on: when that is above what is known, a text before it
is missing, and what was popped from there on is popped again.

Sources: BR/pop/PopConsumerService.java, BR/processor/{PopMessageProcessor,PopReviveService}.java. The genuine broker keeps
its check points in a topic of its own or in RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..remoting.body import Body
from ..remoting.errors import ProtocolError

SEPARATOR = "@"


class Key(NamedTuple):
    """What a group pops from; `topic` is its retry topic for what is shown again."""

    topic: str
    group: str
    queue_id: int


class InFlight(NamedTuple):
    """One message that was popped."""

    pop_time_ms: int
    invisible_ms: int
    moved_ms: int = 0
    """By how much it is shown later than that: it could not be stored. Below 0: earlier, as the clock was set back."""

    @property
    def due_ms(self) -> int:
        """When it is shown again."""
        return self.pop_time_ms + self.invisible_ms + self.moved_ms


@dataclass(frozen=True, slots=True)
class _PopDocument(Body):
    """By "topic@group@queue": the offset to pop next; offset, pop time and invisible time of each message in flight;
    offset and `moved_ms` of those that have one."""

    in_flight: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    next: dict[str, int] = field(default_factory=dict[str, int])
    moved: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


def popped(
    key: Key, known: int, next_offset: int, pop_time_ms: int, invisible_ms: int, offsets: Collection[int]
) -> bytes:
    """The text of: these offsets were popped, and nothing below `next_offset` is popped again. `known`: where the group was
    to pop next, by the texts before."""
    return _text("t", key, known, next_offset, pop_time_ms, invisible_ms, *offsets)


def acknowledged(key: Key, pop_time_ms: int, offsets: Collection[int]) -> bytes:
    """The text of: what is in flight of these since that pop is done."""
    return _text("a", key, pop_time_ms, *offsets)


def changed(key: Key, offset: int, pop_time_ms: int, new_pop_time_ms: int, invisible_ms: int) -> bytes:
    """The text of: the message that was popped then is as if popped at the new time."""
    return _text("c", key, offset, pop_time_ms, new_pop_time_ms, invisible_ms)


def revived(key: Key, offsets: Collection[int]) -> bytes:
    """The text of: these are in the retry topic, or gone."""
    return _text("r", key, *offsets)


def begun(key: Key, next_offset: int) -> bytes:
    """The text of: the group pops from there on, whatever was in flight."""
    return _text("s", key, next_offset)


def forgotten(topic: str, group: str) -> bytes:
    """The text of: the topic, or with an empty one the group, was deleted."""
    return _text("f", Key(topic, group, 0))


def _text(what: str, key: Key, *numbers: int) -> bytes:
    return f"{what} {SEPARATOR.join(map(str, key))} {' '.join(map(str, numbers))}".rstrip().encode()


def key_of(text: str) -> Key:
    """Raises ValueError."""
    topic, group, queue_id = text.split(SEPARATOR)
    return Key(topic, group, int(queue_id))


class PopTable:
    """All that is in flight."""

    def __init__(self) -> None:
        self._next: dict[Key, int] = {}
        self._in_flight: dict[Key, dict[int, InFlight]] = {}
        self._count = 0
        self._due: list[tuple[int, Key, int]] = []  # heap of time, key, offset; what ended or moved on is skipped
        self._reviving: set[tuple[Key, int]] = set()
        self.touched: set[Key] = set()
        """Whose `floor` may have changed; the owner clears it."""
        self._apply: dict[str, Callable[[Key, list[int]], None]] = {
            "t": self._popped, "a": self._acknowledged, "c": self._changed, "r": self._revived, "s": self._begun,
            "f": self._forgotten,
        }  # fmt: skip

    def __len__(self) -> int:
        return self._count

    def next_offset(self, key: Key) -> int | None:
        """Where the group pops next; None when it has not popped yet."""
        return self._next.get(key)

    def in_flight(self, key: Key, offset: int) -> InFlight | None:
        """None also for one that is being revived: it is shown again, nothing can be done about that."""
        return None if (key, offset) in self._reviving else self._in_flight.get(key, {}).get(offset)

    def is_reviving(self, key: Key, offset: int) -> bool:
        """Whether it was stored again, and the text that says so is to come."""
        return (key, offset) in self._reviving

    def counts(self, topic: str, group: str) -> int:
        """How many messages of the topic the group has in flight."""
        return sum(len(found) for key, found in self._in_flight.items() if key[:2] == (topic, group))

    def floor(self, key: Key) -> int | None:
        """The first offset that is not done, None for a key that is not known."""
        found = self._in_flight.get(key)
        return min(found) if found else self._next.get(key)

    def all_keys(self) -> list[Key]:
        """All that groups pop from."""
        return list(self._next)

    def keys_of(self, topic: str, group: str) -> list[Key]:
        """Those of a topic, or with an empty one of a group."""
        return [key for key in self._next if (key.topic == topic if topic else key.group == group)]

    # Changes

    def apply(self, text: bytes) -> None:
        """Do what a text says. Raises ProtocolError when it is none."""
        try:
            what, where, *numbers = text.decode().split(" ")
            self._apply[what](key_of(where), [int(number) for number in numbers])
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{text!r:.120} is no line: {error}", "journal of POP") from None

    def _popped(self, key: Key, numbers: list[int]) -> None:
        known, next_offset, pop_time_ms, invisible_ms, *offsets = numbers
        before = self._next.setdefault(key, 0)
        if known > before:
            return
        self._next[key] = max(next_offset, before)
        for offset in offsets:
            self._put(key, offset, InFlight(pop_time_ms, invisible_ms))
        self.touched.add(key)

    def _acknowledged(self, key: Key, numbers: list[int]) -> None:
        pop_time_ms, *offsets = numbers
        found = self._in_flight.get(key, {})
        for offset in offsets:
            entry = found.get(offset)
            if entry is not None and entry.pop_time_ms == pop_time_ms:
                self._remove(key, offset)

    def _changed(self, key: Key, numbers: list[int]) -> None:
        offset, pop_time_ms, new_pop_time_ms, invisible_ms = numbers
        entry = self._in_flight.get(key, {}).get(offset)
        if entry is not None and entry.pop_time_ms == pop_time_ms:
            self._put(key, offset, InFlight(new_pop_time_ms, invisible_ms))

    def _revived(self, key: Key, numbers: list[int]) -> None:
        for offset in numbers:
            self._remove(key, offset)

    def _begun(self, key: Key, numbers: list[int]) -> None:
        for offset in list(self._in_flight.get(key, ())):
            self._remove(key, offset)
        (self._next[key],) = numbers
        self.touched.add(key)

    def _forgotten(self, key: Key, numbers: list[int]) -> None:
        del numbers
        for gone in self.keys_of(key.topic, key.group):
            for offset in list(self._in_flight.get(gone, ())):
                self._remove(gone, offset)
            del self._next[gone]
            self.touched.discard(gone)

    def _put(self, key: Key, offset: int, entry: InFlight) -> None:
        found = self._in_flight.setdefault(key, {})
        self._count += offset not in found
        found[offset] = entry
        heappush(self._due, (entry.due_ms, key, offset))
        self._tidy()

    def _remove(self, key: Key, offset: int) -> None:
        found = self._in_flight.get(key, {})
        self._reviving.discard((key, offset))
        if found.pop(offset, None) is None:
            return
        self._count -= 1
        self.touched.add(key)
        if not found:
            del self._in_flight[key]
        self._tidy()

    def _tidy(self) -> None:
        if len(self._due) > 2 * self._count + 64:  # ended long before their time, most of them
            self._due = [
                (entry.due_ms, key, offset)
                for key, found in self._in_flight.items()
                for offset, entry in found.items()
                if (key, offset) not in self._reviving
            ]
            heapify(self._due)

    # Time

    def next_due_ms(self) -> int | None:
        """When the next message is to be revived."""
        while self._due and not self._is_current(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _is_current(self, due_ms: int, key: Key, offset: int) -> bool:
        entry = self.in_flight(key, offset)
        return entry is not None and entry.due_ms == due_ms

    def take_due(self, now_ms: int, count_max: int) -> Iterator[tuple[Key, int, InFlight]]:
        """Those whose time has passed, one after the other: `revived` is applied when the disk has what was stored again,
        or `put_off` where it could not be stored."""
        for _ in range(count_max):
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                return
            _, key, offset = heappop(self._due)
            self._reviving.add((key, offset))
            yield key, offset, self._in_flight[key][offset]

    def bring_near(self, now_ms: int) -> bool:
        """After a start: what is due later than when its invisible time has passed from now on is due then. The clock was set
        back, and the wait would be as long as that besides. True when there was any.

        That is at the most once for each time that the clock was set back, and starts in between put off nothing."""
        far = [
            (key, offset, entry.invisible_ms)
            for key, found in self._in_flight.items()
            for offset, entry in found.items()
            if entry.due_ms > now_ms + entry.invisible_ms
        ]
        for key, offset, invisible_ms in far:
            self.put_off(key, offset, now_ms + invisible_ms)
        return bool(far)

    def put_off(self, key: Key, offset: int, until_ms: int) -> None:
        """Try again to revive it then; meanwhile it can be acknowledged."""
        self._reviving.discard((key, offset))
        entry = self._in_flight[key][offset]
        later = self._in_flight[key][offset] = entry._replace(
            moved_ms=until_ms - entry.pop_time_ms - entry.invisible_ms
        )
        heappush(self._due, (later.due_ms, key, offset))

    # The text form

    def dump(self) -> bytes:
        """The text of pops.json."""
        in_flight = ",".join(
            f'"{SEPARATOR.join(map(str, key))}":['
            + ",".join(f"{offset},{entry.pop_time_ms},{entry.invisible_ms}" for offset, entry in found.items())
            + "]"
            for key, found in self._in_flight.items()
        )
        following = ",".join(f'"{SEPARATOR.join(map(str, key))}":{offset}' for key, offset in self._next.items())
        moved = ",".join(
            f'"{SEPARATOR.join(map(str, key))}":[' + ",".join(pairs) + "]"
            for key, found in self._in_flight.items()
            if (pairs := [f"{offset},{entry.moved_ms}" for offset, entry in found.items() if entry.moved_ms])
        )
        return f'{{"inFlight":{{{in_flight}}},"next":{{{following}}},"moved":{{{moved}}}}}'.encode()

    def load(self, text: bytes) -> None:
        """Take over what was dumped, once, before all else. Raises ProtocolError when it is something else."""
        document = _PopDocument.decode(text)
        try:
            self._next = {key_of(name): offset for name, offset in document.next.items()}
            moved = {
                (name, offset): moved_ms
                for name, numbers in document.moved.items()
                for offset, moved_ms in zip(*[iter(numbers)] * 2, strict=True)
            }
            for name, numbers in document.in_flight.items():
                key = key_of(name)
                for offset, pop_time_ms, invisible_ms in zip(*[iter(numbers)] * 3, strict=True):
                    self._put(key, offset, InFlight(pop_time_ms, invisible_ms, moved.get((name, offset), 0)))
        except ValueError as error:
            raise ProtocolError(f"is no table: {error}", "messages that were popped") from None
