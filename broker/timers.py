"""Timer messages of RocketMQ 5 (BR/util/HookUtils.java, ST/timer/TimerMessageStore.java): delivered at a time of their own.

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS is stored in rmq_sys_wheel_timer, its delivery time as
TIMER_OUT_MS, its real topic and queue in properties. When the time has come, it is stored a second time where it belongs, its
property string unchanged. The genuine broker keeps a wheel of slots of a second; here a heap of times is in memory, and they
are exact to the millisecond. DELAY wins over a timer.

A message with TIMER_DEL_UNIQKEY in the same topic takes back all that wait with its key (RECALL_MESSAGE; a producer's retry
sends one twice): they are never delivered. None waits longer than retention keeps its record.

What was delivered is saved when the disk has it, as `config/timers.json`: all below `floor`, and some intervals above it. A
kill between a delivery and that save delivers once more: at least once, as everything here. In a store that a genuine broker
left there is no such table: then all is open whose time is not before the one that its wheel had come to (config/timercheck).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

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
from .message_store import MessageStore
from .topic_table import TIMER_TOPIC

FAILURE_PAUSE_MS = 1_000
GENUINE_CHECKPOINT = "config/timercheck"
_UNITS_MS = ((PROPERTY_TIMER_DELAY_SEC, 1_000), (PROPERTY_TIMER_DELAY_MS, 1))


def asks_for_timer(properties: dict[str, str]) -> bool:
    """Whether a message is to be delivered at a time of its own; one that was delivered has TIMER_OUT_MS already."""
    if delay_level(properties) > 0 or PROPERTY_TIMER_OUT_MS in properties:
        return False
    return not properties.keys().isdisjoint(
        (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
    )


def timer_due_ms(now_ms: int, properties: dict[str, str]) -> int:
    """When a message that asks for a timer is to be delivered. Raises ValueError."""
    for name, unit_ms in _UNITS_MS:
        if name in properties:
            return now_ms + int(properties[name]) * unit_ms
    return int(properties[PROPERTY_TIMER_DELIVER_MS])


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
        self._open: dict[int, tuple[int, str]] = {}  # offset -> when it is due, what it is taken back by
        self._by_key: dict[str, set[int]] = {}
        self._due: list[
            tuple[int, int]
        ] = []  # heap of time and offset; what was taken back is skipped, or left out anew
        self._end = 0  # offsets below it are open or done
        self._loaded: _TimerDocument | None = None
        self._paused_until_ms = 0
        self._changed = False

    def __len__(self) -> int:
        return len(self._open)

    def start(self, store: MessageStore, genuine_checkpoint: bytes | None = None) -> None:
        """Read what is open; once, after recovery. Raises QueueRebuilding."""
        self._open.clear()
        self._by_key.clear()
        self._due.clear()
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        loaded, wheel_ms = self._loaded or _TimerDocument(), 0
        if self._loaded is None and genuine_checkpoint is not None:
            wheel_ms = int.from_bytes(genuine_checkpoint[:8], "big")
        bounds = [*loaded.delivered, queue.max_offset, queue.max_offset]
        at = max(loaded.floor, queue.min_offset)
        for begin, end in zip(bounds[::2], bounds[1::2], strict=False):
            for offset in range(at, min(begin, queue.max_offset)):
                message = store.message_in(TIMER_TOPIC, 0, offset)
                if message is not None and _out_ms(message.properties) >= wheel_ms:
                    self._take(offset, message.properties)
            at = max(at, end)
        self._end = queue.max_offset

    def stored(self, message: StoredMessage) -> None:
        """A message of the timer topic can be read from now on."""
        self._take(message.queue_offset, message.properties)
        self._end = max(self._end, message.queue_offset + 1)

    def _take(self, offset: int, properties: Mapping[str, str]) -> None:
        taken_back = properties.get(PROPERTY_TIMER_DEL_UNIQKEY)
        if taken_back is not None:
            for closed in sorted(self._by_key.get(taken_back, ())):
                self._close(closed)
            self._changed = True
            return
        key = recall_key(properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQ_KEY, ""))
        due_ms = _out_ms(properties)
        self._open[offset] = due_ms, key
        self._by_key.setdefault(key, set()).add(offset)
        heappush(self._due, (due_ms, offset))

    def _close(self, offset: int) -> None:
        entry = self._open.pop(offset, None)
        if entry is None:
            return
        same = self._by_key[entry[1]]
        same.discard(offset)
        if not same:
            del self._by_key[entry[1]]
        if len(self._due) > 2 * len(self._open):
            self._due = [(due_ms, still) for still, (due_ms, _) in self._open.items()]
            heapify(self._due)

    def next_due_ms(self) -> int | None:
        while self._due and self._due[0][1] not in self._open:
            heappop(self._due)
        return max(self._due[0][0], self._paused_until_ms) if self._due else None

    def deliver(
        self, now_ms: int, store: MessageStore, store_again: Callable[[StoredMessage], None], batch_max: int
    ) -> int:
        """Hand every message that is due, at most `batch_max`, to `store_again`; returns how many there were.

        What `store_again` raises ends the round, and that message is due again a little later. One that it refuses
        (UsageError) is passed over, as is one that is gone: an event says where.
        """
        count = 0
        while count < batch_max and (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            offset = self._due[0][1]
            self._paused_until_ms = now_ms + FAILURE_PAUSE_MS  # unless all goes well
            message = store.message_in(TIMER_TOPIC, 0, offset)
            if message is None:
                store.events.append(("store.timer_message_gone", {"queue_offset": offset}))
            else:
                try:
                    store_again(real_message(message))
                except UsageError as error:
                    fields: dict[str, object] = {"position": message.physical_offset, "reason": str(error)}
                    store.events.append(("store.timer_message_not_delivered", fields))
            self._paused_until_ms = 0
            self._close(offset)
            self._changed = True
            count += 1
        return count

    def dump_if_changed(self) -> bytes | None:
        """The text of timers.json when it is not what was dumped last."""
        if not self._changed:
            return None
        self._changed = False
        return self.dump()

    def dump(self) -> bytes:
        """The text of timers.json."""
        still_open = sorted(self._open)
        floor = still_open[0] if still_open else self._end
        gaps = zip(still_open, [*still_open[1:], self._end], strict=False)
        delivered = [bound for offset, following in gaps if offset + 1 < following for bound in (offset + 1, following)]
        return _TimerDocument(floor, tuple(delivered)).encode()

    def load(self, text: bytes) -> None:
        """Take over what was dumped. Raises ProtocolError when it is something else."""
        self._loaded = _TimerDocument.decode(text)


def _out_ms(properties: Mapping[str, str]) -> int:
    """TIMER_OUT_MS of a stored message; 0, so at once, for nonsense."""
    text = properties.get(PROPERTY_TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
