"""Timer messages of RocketMQ 5 (BR/util/HookUtils.java, ST/timer/TimerMessageStore.java): delivered at a time of their own.

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS is stored in rmq_sys_wheel_timer, its delivery time as
TIMER_OUT_MS, its real topic and queue in properties. When the time has come, it is stored a second time where it belongs, its
property string unchanged. The genuine broker keeps a wheel of slots of a second; here a heap of times is in memory, and they
are exact to the millisecond. DELAY wins over a timer. A delay is waited for by the broker's clock, which never goes back; a
time of day (TIMER_DELIVER_MS) by the machine's, however that was set while it waits.

A message with TIMER_DEL_UNIQKEY in the same topic takes back all that wait with its key (RECALL_MESSAGE; a producer's retry
sends one twice): they are never delivered. None waits longer than retention keeps its record.

What was delivered is saved when the disk has it: once a second, as one line of `config/timers.journal` with the offsets of
that second. `config/timers.json` says (journal.py): all below `floor` was delivered, and some intervals above it. A kill
between a delivery and its line delivers once more: at least once, as everything here. In a store that a genuine broker left
there is neither: then all is open whose time is not before the one that its wheel had come to (config/timercheck).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..remoting.body import Body
from ..remoting.errors import UsageError
from ..remoting.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    encode_properties,
)
from ..remoting.stored import StoredMessage
from .delay import delay_level, real_message
from .journal import Journal
from .message_store import MessageStore
from .readable_log import TRIED_MAX, is_of_a_place
from .storage import Storage, StorageError
from .topic_table import TIMER_TOPIC

FAILURE_PAUSE_MS = 1_000
GENUINE_CHECKPOINT = "config/timercheck"
TIMERS_TABLE = "config/timers.json"
TIMERS_JOURNAL = "config/timers.journal"
UNREAD = ""  # what one is taken back by of which nothing is known yet
_UNITS_MS = ((PROPERTY_TIMER_DELAY_SEC, 1_000), (PROPERTY_TIMER_DELAY_MS, 1))


def asks_for_timer(properties: dict[str, str]) -> bool:
    """Whether a message is to be delivered at a time of its own; one that was delivered has TIMER_OUT_MS already."""
    if delay_level(properties) > 0 or PROPERTY_TIMER_OUT_MS in properties:
        return False
    return not properties.keys().isdisjoint(
        (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
    )


def is_by_wall(properties: Mapping[str, str]) -> bool:
    """Whether the time of a timer message is one of the machine's clock."""
    return all(name not in properties for name, _ in _UNITS_MS)


def timer_due_ms(now_ms: int, properties: dict[str, str]) -> int:
    """When a message that asks for a timer is to be delivered. Raises ValueError."""
    for name, unit_ms in _UNITS_MS:
        if name in properties:
            return now_ms + int(properties[name]) * unit_ms
    return int(properties[PROPERTY_TIMER_DELIVER_MS])


def latest_due_ms(start_ms: int, properties: Mapping[str, str]) -> int | None:
    """When a stored timer message is due at the latest where the process began at `start_ms`, None when it does not say."""
    for name, unit_ms in _UNITS_MS:
        if (wait := _number(properties, name)) is not None:
            return start_ms + wait * unit_ms
    return _number(properties, PROPERTY_TIMER_DELIVER_MS)


def redirect_to_timer(message: StoredMessage, properties: dict[str, str], due_ms: int) -> None:
    """Turn a message that asks for a timer into one for the timer topic."""
    properties[PROPERTY_TIMER_OUT_MS] = str(due_ms)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.raw_properties = encode_properties(properties).encode()
    message.topic, message.queue_id = TIMER_TOPIC, 0


def recall_key(topic: str, unique: str) -> str:
    """What names a timer message that is taken back (TimerMessageStore.buildDeleteKey)."""
    return f"{topic}+{unique}"


@dataclass(frozen=True, slots=True)
class _TimerDocument(Body):
    floor: int = 0
    delivered: tuple[int, ...] = ()
    """Begin and end of intervals above the floor, one after the other."""


class Timers:
    """The timer messages that are open, by queue offset."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, str, bool]] = {}  # offset -> when it is due, what takes it back, `is_by_wall`
        self._by_key: dict[str, set[int]] = {}
        self._recalls: dict[int, str] = {}  # offset -> what it takes back, while that may be unread
        self._due: list[
            tuple[int, int]
        ] = []  # heap of time and offset; what was taken back is skipped, or left out anew
        self._due_by_wall: list[tuple[int, int]] = []  # the same for times of the machine's clock
        self._end = 0  # offsets below it are open or done
        self._loaded: _TimerDocument | None = None
        self._journalled: set[int] = set()  # what the journal says besides
        self._closed: list[int] = []  # since `take_closed`
        self._paused_until_ms = 0
        self._wheel_ms = 0  # of a genuine store: what was due before was delivered

    def __len__(self) -> int:
        return len(self._open)

    def waits(self, key: str) -> bool:
        """Whether one is open that this `recall_key` names."""
        return key in self._by_key

    def start(self, store: MessageStore, now_ms: int, genuine_checkpoint: bytes | None = None) -> None:
        """Read what is open; once, after recovery. Raises QueueRebuilding.

        What asked for a delay waits no longer than that from now on: else the clock was set back, and it would wait as long
        as that besides. What asked for a time of day waits for it, whatever the clock was when it came.
        """
        self._open.clear()
        self._by_key.clear()
        self._recalls.clear()
        self._due.clear()
        self._due_by_wall.clear()
        self._closed.clear()
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        loaded = self._loaded or _TimerDocument()
        if self._loaded is None and genuine_checkpoint is not None:
            self._wheel_ms = int.from_bytes(genuine_checkpoint[:8], "big")
        bounds = [*loaded.delivered, queue.max_offset, queue.max_offset]
        at = max(loaded.floor, queue.min_offset)
        for begin, end in zip(bounds[::2], bounds[1::2], strict=False):
            for offset in range(at, min(begin, queue.max_offset)):
                if offset in self._journalled:
                    continue
                try:
                    message = store.message_in(TIMER_TOPIC, 0, offset)
                except StorageError as error:
                    if not is_of_a_place(error):
                        raise
                    self._add(offset, 0, UNREAD)  # due at once: then it is read again, or passed over
                    continue
                if message is not None and _out_ms(message.properties) >= self._wheel_ms:
                    self._take(offset, message.properties, now_ms)
            at = max(at, end)
        self._end = queue.max_offset

    def stored(self, message: StoredMessage) -> None:
        """A message of the timer topic can be read from now on."""
        self._take(message.queue_offset, message.properties)
        self._end = max(self._end, message.queue_offset + 1)

    def _take(self, offset: int, properties: Mapping[str, str], start_ms: int | None = None) -> None:
        """`start_ms`: when this process began, for one that was stored before."""
        taken_back = properties.get(PROPERTY_TIMER_DEL_UNIQKEY)
        if taken_back is not None:
            for earlier in sorted(self._by_key.get(taken_back, ())):
                if earlier < offset:  # one that was read late takes back none that was stored after it
                    self._close(earlier)
            self._recalls[offset] = taken_back
            self._end_recalls()
            return
        key = recall_key(properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQ_KEY, ""))
        if any(recall > offset and taken_back == key for recall, taken_back in self._recalls.items()):
            self._closed.append(offset)
            return
        due_ms = _out_ms(properties)
        if start_ms is not None and (latest_ms := latest_due_ms(start_ms, properties)) is not None:
            due_ms = min(due_ms, latest_ms)
        self._add(offset, due_ms, key, by_wall=is_by_wall(properties))

    def _add(self, offset: int, due_ms: int, key: str, *, by_wall: bool = False) -> None:
        self._open[offset] = due_ms, key, by_wall
        self._by_key.setdefault(key, set()).add(offset)
        heappush(self._due_by_wall if by_wall else self._due, (due_ms, offset))

    def _take_late(self, offset: int, properties: Mapping[str, str], now_ms: int) -> None:
        """The first that is due could not be read when this process began, and can be now."""
        heappop(self._due)
        self._forget(offset)
        self._paused_until_ms = 0
        if _out_ms(properties) >= self._wheel_ms:
            self._take(offset, properties, now_ms)
        else:
            self._closed.append(offset)
        self._end_recalls()

    def _put_off(self, offset: int, due_ms: int) -> None:
        """The first that is due waits until then."""
        _, key, by_wall = self._open[offset]
        heappop(self._due_by_wall if by_wall else self._due)
        self._open[offset] = due_ms, key, False
        heappush(self._due, (due_ms, offset))

    def _end_recalls(self) -> None:
        """What takes others back is done when none is left of which nothing is known."""
        if UNREAD not in self._by_key:
            self._closed += self._recalls
            self._recalls.clear()

    def _forget(self, offset: int) -> None:
        same = self._by_key[key := self._open.pop(offset)[1]]
        same.discard(offset)
        if not same:
            del self._by_key[key]

    def _close(self, offset: int) -> None:
        if offset not in self._open:
            return
        self._forget(offset)
        self._closed.append(offset)
        self._end_recalls()
        if len(self._due) + len(self._due_by_wall) > 2 * len(self._open):
            for heap, is_its in ((self._due, False), (self._due_by_wall, True)):
                heap[:] = [(due_ms, still) for still, (due_ms, _, by_wall) in self._open.items() if by_wall == is_its]
                heapify(heap)

    def next_due_ms(self, ahead_ms: int = 0) -> int | None:
        """When `deliver` has something to do again, by a clock that is so far ahead of the machine's."""
        first = self._first(ahead_ms)
        return None if first is None else max(first[0], self._paused_until_ms)

    def _first(self, ahead_ms: int) -> tuple[int, int] | None:
        """When the first one is due, and its offset."""
        for heap in (self._due, self._due_by_wall):
            while heap and heap[0][1] not in self._open:
                heappop(heap)
        by_wall = ((due_ms + ahead_ms, offset) for due_ms, offset in self._due_by_wall[:1])
        return min((*self._due[:1], *by_wall), default=None)

    def first_overdue(self, now_ms: int, ahead_ms: int) -> int | None:
        """The lowest offset of what is due and was not delivered yet."""
        due = (at for at, (due_ms, _, by_wall) in self._open.items() if due_ms + by_wall * ahead_ms <= now_ms)
        return min(due, default=None)

    def deliver(
        self,
        now_ms: int,
        store: MessageStore,
        store_again: Callable[[StoredMessage], None],
        batch_max: int,
        ahead_ms: int = 0,
    ) -> int:
        """Hand every message that is due, at most `batch_max`, to `store_again`; returns how many there were.

        What `store_again` raises ends the round, and that message is due again a little later. So is one that the disk cannot
        read, until its place is given up (lost_places.py): the others go on without it, and the error is raised after them.
        One that `store_again` refuses (UsageError) is passed over, as is one that is gone: an event says where.
        """
        count = 0
        unread: list[StorageError] = []
        while (
            count < batch_max
            and self._paused_until_ms <= now_ms
            and (first := self._first(ahead_ms)) is not None
            and first[0] <= now_ms
        ):
            offset = first[1]
            self._paused_until_ms = now_ms + FAILURE_PAUSE_MS  # unless all goes well
            try:
                message = store.message_in(TIMER_TOPIC, 0, offset)
            except StorageError as error:
                if not is_of_a_place(error):
                    raise
                self._paused_until_ms = 0
                self._put_off(offset, now_ms + FAILURE_PAUSE_MS)
                unread.append(error)
                if len(unread) == TRIED_MAX:
                    break
                continue
            if message is not None and self._open[offset][1] == UNREAD:
                self._take_late(offset, message.properties, now_ms)
                continue
            if message is None:
                self._close_gone(store, offset)
            else:
                try:
                    store_again(real_message(message))
                except UsageError as error:
                    fields: dict[str, object] = {"position": message.physical_offset, "reason": str(error)}
                    store.events.append(("store.timer_message_not_delivered", fields))
            self._paused_until_ms = 0
            self._close(offset)
            count += 1
        if unread:
            raise unread[0]
        return count

    def _close_gone(self, store: MessageStore, offset: int) -> None:
        """The one at `offset` is gone; all whose records were dropped with its are, and one event has their number."""
        first_kept = store.min_offset(TIMER_TOPIC, 0)
        gone = {offset, *(still for still in self._open if still < first_kept)}
        fields: dict[str, object] = {"queue_offset": min(gone), "count": len(gone)}
        store.events.append(("store.timer_message_gone", fields))
        for each in sorted(gone):
            self._close(each)

    def take_closed(self) -> list[int]:
        """Offsets of what was delivered or taken back since the last call."""
        closed, self._closed = self._closed, []
        return closed

    def dump(self) -> bytes:
        """The text of timers.json."""
        still_open = sorted([*self._open, *self._recalls])
        floor = still_open[0] if still_open else self._end
        gaps = zip(still_open, [*still_open[1:], self._end], strict=False)
        bounds = [f"{offset + 1},{following}" for offset, following in gaps if offset + 1 < following]
        return f'{{"delivered":[{",".join(bounds)}],"floor":{floor}}}'.encode()

    def load(self, text: bytes) -> None:
        """Take over what was dumped. Raises ProtocolError when it is something else."""
        self._loaded = _TimerDocument.decode(text)

    def was_closed(self, offsets: list[int]) -> None:
        """Take over what the journal says, before `start`."""
        self._journalled.update(offsets)


def closed_text(offsets: list[int]) -> bytes:
    """What the journal says of them: begin and end of intervals."""
    ordered = sorted(offsets)
    begins = [ordered[0], *(after for before, after in pairwise(ordered) if after > before + 1)]
    ends = [*(before + 1 for before, after in pairwise(ordered) if after > before + 1), ordered[-1] + 1]
    return ",".join(f"{begin},{end}" for begin, end in zip(begins, ends, strict=True)).encode()


def closed_in(text: bytes) -> list[int]:
    """The offsets in what the journal says."""
    bounds = [int(part) for part in text.split(b",")]
    return [offset for begin, end in zip(bounds[::2], bounds[1::2], strict=True) for offset in range(begin, end)]


class SavedTimers:
    """The table and the journal of `Timers` in a storage."""

    def __init__(self, storage: Storage, timers: Timers) -> None:
        self._storage = storage
        self._timers = timers
        self.journal = Journal(storage, TIMERS_JOURNAL, TIMERS_TABLE)
        self._noted: tuple[int, list[int], bytes | None] | None = None  # what must be flushed first; offsets; the table

    def replay(self) -> int:
        """Read the journal, before `Timers.start`; returns how many of its lines are damaged."""
        texts, damaged = self.journal.texts()
        for text in texts:
            self._timers.was_closed(closed_in(text))
        if damaged:
            self.journal.set_aside()
        return damaged

    def started(self) -> None:
        """After `Timers.start`."""
        self.journal.begin_anew(self._timers.dump())

    def note(self, written: int) -> None:
        """Note what was delivered until now, unless an earlier note waits. `written` is what has to be flushed before it is
        saved: else a crash could lose for good what was delivered."""
        if self._noted is not None:
            return
        closed = self._timers.take_closed()
        if closed:
            whole = self.journal.is_long(len(self._timers), len(closed))
            self._noted = written, closed, self._timers.dump() if whole else None

    def save(self, flushed: int) -> None:
        """Save the note if the disk has `flushed`. Raises StorageError, and then the note waits."""
        if self._noted is None or (self._storage.has_disk and flushed < self._noted[0]):
            return
        written, closed, table = self._noted
        if closed:
            self.journal.append([closed_text(closed)], len(closed))
            self._noted = written, [], table  # not again
        if table is not None:
            self.journal.write_table(table)
        self._noted = None


def _out_ms(properties: Mapping[str, str]) -> int:
    """TIMER_OUT_MS of a stored message; 0, so at once, for nonsense."""
    return _number(properties, PROPERTY_TIMER_OUT_MS) or 0


def _number(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
