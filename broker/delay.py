"""Delayed messages (BR/schedule/ScheduleMessageService.java, BR/util/HookUtils.java).

A message with DELAY > 0 is stored in SCHEDULE_TOPIC_XXXX, one queue a level, with its delivery time as tags code and its
real topic and queue in properties. When the time has come, it is stored a second time where it belongs, its property
string unchanged (so REAL_TOPIC and DELAY stay in it). Within a level, delivery times ascend with the queue, so the head
is all that has to be looked at.

The tags code says when to look; the record itself, whether it is time: a damaged code must deliver nothing too early. So
where a level's delay was made longer, what waits in it already waits longer too; and shorter, where it was made shorter, as
the head's store time says when to look, too: of what was stored before the start, as the entry of what came since has the
delay of now. No CRC covers that time: one that is no whole seconds before the entry's is not believed, which finds each
single bit. So a level whose delay was no whole seconds waits as its entries say.

What cannot be delivered now holds up its own level alone, as when its queue, or the one that its head is for, is built anew.
A head that the disk cannot read is passed over once its place is given up (lost_places.py). Where it is the level's queue
that cannot be read, the queue is built anew: the log has all that it says.

What retention took before its time is said with its number when it would have been delivered. Nothing waits longer than
retention (config.py), and that spares what is due for a while, so the disk was full, its place is unreadable, or the broker
could not deliver it.

How far each level has come is saved when the disk has what was delivered, in the shape of `config/delayOffset.json`. A kill
between a delivery and that save delivers once more: at least once, as everything here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..conf.formats import UNIT_MS
from ..remoting.body import Body
from ..remoting.errors import UsageError
from ..remoting.names import SCHEDULE_TOPIC
from ..remoting.properties import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    encode_properties,
)
from ..remoting.stored import StoredMessage
from .message_store import MessageStore, QueueRebuilding

FAILURE_PAUSE_MS = 1_000  # genuine: 10 s


def delay_level(properties: dict[str, str]) -> int:
    """The level that the message asks for, 0 for none or nonsense."""
    text = properties.get(PROPERTY_DELAY)
    if not text:
        return 0
    try:
        return max(0, int(text))
    except ValueError:
        return 0


def redirect_to_schedule(message: StoredMessage, properties: dict[str, str], levels: int) -> int:
    """Turn a message that asks for a delay into one for the schedule topic; returns its level, capped to `levels`."""
    level = min(delay_level(properties), levels)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.raw_properties = encode_properties(properties).encode()
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1
    return level


@dataclass(frozen=True, slots=True)
class _DelayDocument(Body):
    offset_table: dict[int, int]


class DelayLevels:
    """Where each level's delivery has come to, and when each level's head is due."""

    def __init__(self, levels_ms: tuple[int, ...]) -> None:
        self.levels_ms = levels_ms
        self._delivered: dict[int, int] = {}  # level -> next queue offset to deliver
        self._stored_before: dict[int, int] = {}  # level -> end of what was stored before the start
        self._due_ms: dict[int, int] = {}  # level -> when its head is due; no entry for an empty level
        self._paused_until_ms: dict[int, int] = {}  # level -> when what failed is tried again
        self._first = 0  # the level with which the next round begins
        self._changed = False
        self._is_loaded = False

    def delay_ms(self, level: int) -> int:
        return self.levels_ms[min(level, len(self.levels_ms)) - 1]

    def tags_code(self, message: StoredMessage) -> int:
        """What a stored schedule record's entry holds: its delivery time."""
        return message.store_timestamp_ms + self.delay_ms(message.queue_id + 1)

    def stored(self, level: int, due_ms: int) -> None:
        """A message was put behind the others of `level`; it matters now only when there were none."""
        self._due_ms.setdefault(level, due_ms)

    def next_due_ms(self) -> int | None:
        """When `deliver` has something to do again, None when no message is delayed."""
        if not self._paused_until_ms:  # as nearly always, and this is asked for after each round of frames
            return min(self._due_ms.values(), default=None)
        return min(map(self._next_look_ms, self._due_ms), default=None)

    def _next_look_ms(self, level: int) -> int:
        return max(self._due_ms[level], self._paused_until_ms.get(level, 0))

    def delivered(self, level: int) -> int:
        """How many messages of the level were delivered or passed over: the queue offset of its head."""
        return self._delivered.get(level, 0)

    def start(self, store: MessageStore) -> None:
        """Look at every level's head; call once after recovery."""
        for queue_id in store.queue_ids(SCHEDULE_TOPIC):
            if not self._is_loaded:  # nobody knows what was delivered of what is gone
                self._delivered.setdefault(queue_id + 1, store.min_offset(SCHEDULE_TOPIC, queue_id))
            self._stored_before[queue_id + 1] = store.max_offset(SCHEDULE_TOPIC, queue_id)
            self._look(store, queue_id + 1)

    def deliver(
        self, now_ms: int, store: MessageStore, store_again: Callable[[StoredMessage], None], batch_max: int
    ) -> int:
        """Hand every message that is due, at most `batch_max`, to `store_again`; returns how many there were.

        What `store_again` raises ends the round; that message stays the head of its level and is due again a little later.
        So it does when QueueRebuilding is raised, and the other levels go on. One that it refuses (UsageError) is passed
        over: it stays in the log, and an event says where. So is one whose record is damaged or lost, or cannot be read.

        The level at which a round has its `batch_max` is the last one of the next round: however much is due in one, the
        others have their turn.
        """
        count = 0
        for level in sorted(self._due_ms, key=lambda level: (level < self._first, level)):
            while count < batch_max and self._may_deliver(now_ms, level):
                self._paused_until_ms[level] = now_ms + FAILURE_PAUSE_MS  # unless all goes well
                try:
                    self._deliver_head(now_ms, store, level, store_again)
                except QueueRebuilding:
                    break
                del self._paused_until_ms[level]
                count += 1
                if count == batch_max:
                    self._first = level + 1
        return count

    def _may_deliver(self, now_ms: int, level: int) -> bool:
        due_ms = self._due_ms.get(level)
        is_paused = now_ms < self._paused_until_ms.get(level, 0)
        return due_ms is not None and not is_paused and self._is_due(now_ms, level, due_ms)

    def _is_due(self, now_ms: int, level: int, due_ms: int) -> bool:
        """Also when it is due later than can be: then the clock was set back, and the wait could be endless."""
        return not now_ms < due_ms <= now_ms + self.delay_ms(level)

    def overdue(self, now_ms: int) -> list[tuple[int, int]]:
        """Queue and queue offset of each level's head that is due and was not delivered yet."""
        due = [level for level, due_ms in self._due_ms.items() if self._is_due(now_ms, level, due_ms)]
        return [(level - 1, self._delivered.get(level, 0)) for level in due]

    def _deliver_head(
        self, now_ms: int, store: MessageStore, level: int, store_again: Callable[[StoredMessage], None]
    ) -> None:
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        assert queue is not None, "a level without a queue has no head"
        offset = self._delivered.get(level, 0)
        if not queue.min_offset <= offset < queue.max_offset:  # the queue was damaged, and made anew since
            self._look(store, level)
            return
        message = store.message_in(SCHEDULE_TOPIC, queue.queue_id, offset)
        if message is not None:
            due_ms = self.tags_code(message)
            if not self._is_due(now_ms, level, due_ms):  # its entry is damaged, or was when it was looked at
                self._due_ms[level] = due_ms
                return
            try:
                store_again(real_message(message))
            except UsageError as error:  # it would not be taken tomorrow either, and others wait behind it
                fields: dict[str, object] = {
                    "position": message.physical_offset,
                    "delay_level": level,
                    "reason": str(error),
                }
                store.events.append(("store.delayed_message_not_delivered", fields))
        else:
            self._say_gone(store, level, offset, 1)
        self._delivered[level] = offset + 1
        self._changed = True
        self._look(store, level)

    def _look(self, store: MessageStore, level: int) -> None:
        """Find out when the level's head is due. Raises StorageError and QueueRebuilding, and then what was known of that
        stays: a level that is never due would wait for ever."""
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            self._due_ms.pop(level, None)
            return
        delivered = self._delivered.get(level, 0)
        if delivered < queue.min_offset:
            self._say_gone(store, level, delivered, queue.min_offset - delivered)
        offset = min(max(delivered, queue.min_offset), queue.max_offset)
        self._delivered[level] = offset
        if offset < queue.max_offset:
            self._due_ms[level] = due_ms = store.entry(queue, offset)[2]
            if offset < self._stored_before.get(level, 0):
                with contextlib.suppress(QueueRebuilding):  # its delivery says so
                    stored_ms = store.store_time_ms(SCHEDULE_TOPIC, queue.queue_id, offset)
                    if stored_ms is not None and (due_ms - stored_ms) % UNIT_MS["s"] == 0:
                        self._due_ms[level] = min(due_ms, stored_ms + self.delay_ms(level))
        else:
            self._due_ms.pop(level, None)

    def _say_gone(self, store: MessageStore, level: int, offset: int, count: int) -> None:
        fields: dict[str, object] = {"delay_level": level, "queue_offset": offset, "count": count}
        store.events.append(("store.delayed_message_gone", fields))
        self._changed = True

    def dump_if_changed(self) -> bytes | None:
        """The text of delayOffset.json when it is not what was dumped last."""
        if not self._changed:
            return None
        self._changed = False
        return self.dump()

    def dump(self) -> bytes:
        return _DelayDocument(dict(sorted(self._delivered.items()))).encode()

    def load(self, text: bytes) -> None:
        """Take over what `dump` wrote. Raises ProtocolError when it is something else."""
        self._delivered = _DelayDocument.decode(text).offset_table
        self._is_loaded = True


def home_of(message: StoredMessage) -> tuple[str, int]:
    """Topic and queue to which a message that waits in a topic of the broker's own belongs.

    Raises UsageError when its properties do not say that, as those of a store that was damaged or made by others may not.
    """
    topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
    queue_id = message.properties.get(PROPERTY_REAL_QUEUE_ID, "0")
    if not topic or topic == message.topic or re.fullmatch("[0-9]{1,9}", queue_id) is None:
        raise UsageError(
            f"its properties do not say where it belongs: {PROPERTY_REAL_TOPIC} is {topic!r:.100}, "
            f"{PROPERTY_REAL_QUEUE_ID} is {queue_id!r:.100}"
        )
    return topic, int(queue_id)


def real_message(message: StoredMessage) -> StoredMessage:
    """The record as it is stored for the second time: topic and queue restored, everything else as it was. Raises
    UsageError."""
    topic, queue_id = home_of(message)
    return StoredMessage(
        topic=topic,
        body=message.body,
        raw_properties=message.raw_properties,
        queue_id=queue_id,
        flag=message.flag,
        sysflag=message.sysflag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        born_port=message.born_port,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
