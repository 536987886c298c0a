"""Half messages: stored where nobody reads them, until their transaction is committed, rolled back, or asked for in vain.

- A half message goes to RMQ_SYS_TRANS_HALF_TOPIC, its real topic and queue in properties. Its end is an *op record*: a
  message in RMQ_SYS_TRANS_OP_HALF_TOPIC with tag `d` whose body is the half message's queue offset. So half messages
  without an op record are those that are open, and a start finds them by reading both queues.
- What is older than the first open half message need not be read again: both positions are kept as offsets of the group
  CID_RMQ_SYS_TRANS, as the genuine broker does. Halves are stored one after the other, and each ends after it was stored; so
  the op records of all halves from that one on are above the end that the op queue had then. Nothing else is remembered of
  halves that ended.
- An open half message is asked for after its immunity (6 s, or its own CHECK_IMMUNITY_TIME_IN_SECONDS, at most as long as
  it is kept), then again at every interval; after so many questions it is given up: copied to TRANS_CHECK_MAX_TIME_TOPIC,
  where people can find it. One that retention drops before is open no more.
- A commit stores the message where it belongs and then writes the op record: a kill between the two makes the broker ask
  again and store a second time. At least once, as everything here.

Sources: BR/transaction/queue/{TransactionalMessageServiceImpl,TransactionalMessageBridge}.java. The genuine broker appends a
half message anew for each question, so that its queue moves on; here the questions are counted in memory and begin anew
after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import takewhile

from ..remoting.codes import SYSFLAG_TRANSACTION_MASK
from ..remoting.errors import UsageError
from ..remoting.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQ_KEY,
    encode_properties,
)
from ..remoting.stored import StoredMessage
from .delay import home_of
from .message_store import MessageStore, QueueRebuilding
from .offset_table import OffsetTable
from .readable_log import TRIED_MAX, is_of_a_place
from .storage import StorageError
from .tags import tags_hash

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"
ENDED_TAG = "d"
QUESTIONS_MAX = 100  # in one tick, so that one tick stays short; some 50 µs each
UNREAD_PAUSE_MS = 5_000  # a place that nobody reads for a minute is not given up (lost_places.py)


@dataclass(slots=True)
class _Open:
    physical_offset: int
    due_ms: int
    op_offset: int
    """Ends of this half message, and of all after it, are op records from here on."""
    checks: int = 0
    is_lost: bool = False
    """It lies on a place of the disk that was given up. It is open, as it may be read one day; but no start reads the queues
    from it on for that."""


@dataclass(frozen=True, slots=True)
class Question:
    """A half message whose producer group is to be asked: the stored record, and as the producer gets it."""

    half: StoredMessage
    shown: StoredMessage
    group: str


def is_half(properties: dict[str, str]) -> bool:
    return properties.get(PROPERTY_TRAN_MSG, "").lower() == "true"


def half_of(message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
    """The record to store instead of a transaction's message (TransactionalMessageBridge.parseHalfMessageInner)."""
    marked = {
        **properties,
        PROPERTY_TRANSACTION_ID: properties[PROPERTY_UNIQ_KEY],
        PROPERTY_REAL_TOPIC: message.topic,
        PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
    }
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        sysflag=message.sysflag & ~SYSFLAG_TRANSACTION_MASK,
        raw_properties=encode_properties(marked).encode(),
    )


def real_message(half: StoredMessage) -> StoredMessage:
    """The message of a half message, where it belongs; without what only the half needed, as by 5.5.0. Raises
    UsageError."""
    topic, queue_id = home_of(half)
    properties = dict(half.properties)
    for name in (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID):
        properties.pop(name, None)
    return replace(half, topic=topic, queue_id=queue_id, raw_properties=encode_properties(properties).encode())


class Transactions:
    """The half messages that are open, by queue offset."""

    def __init__(self, timeout_ms: int, immunity_max_ms: int, interval_ms: int, checks_max: int) -> None:
        self._timeout_ms = timeout_ms
        self._immunity_max_ms = immunity_max_ms
        self._interval_ms = interval_ms
        self._checks_max = checks_max
        self._open: dict[int, _Open] = {}  # in the order of their offsets
        self._due: list[tuple[int, int]] = []  # heap of due time and half offset; what ended or moved on is skipped
        self._unsure: deque[tuple[int, int, int]] = (
            deque()
        )  # ended, which the disk may not have: op, half, its `op_offset`

    def __len__(self) -> int:
        return len(self._open)

    def immunity_ms(self, half: StoredMessage) -> int:
        """How long after its birth a half message is not asked for: no longer than it is kept."""
        text = half.properties.get(PROPERTY_CHECK_IMMUNITY_TIME, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return min(int(text) * 1000, self._immunity_max_ms)
        return self._timeout_ms

    def start(self, store: MessageStore, offsets: OffsetTable, now_ms: int) -> None:
        """Find the open half messages in the two queues; once, after recovery."""
        ops = (op for _, op in _read(store, OP_TOPIC, offsets) if op is not None)
        ended = {int(text) for op in ops for text in op.body.decode().split(",") if text}
        first_op = offsets.query(OP_TOPIC, GROUP, 0) or 0
        for offset, half in _read(store, HALF_TOPIC, offsets):
            if offset in ended:
                continue
            if half is None:
                self._add(offset, _position(store, offset), now_ms, first_op)
            else:
                waits_until_ms = min(half.born_timestamp_ms, now_ms) + self.immunity_ms(half)
                # Its producer may start just now, too.
                self._add(offset, half.physical_offset, max(waits_until_ms, now_ms + self._timeout_ms), first_op)

    def stored(self, born_ms: int, half: StoredMessage, store: MessageStore) -> None:
        """A half message was stored."""
        due_ms = born_ms + self.immunity_ms(half)
        self._add(half.queue_offset, half.physical_offset, due_ms, store.max_offset(OP_TOPIC, 0))

    def _add(self, offset: int, physical_offset: int, due_ms: int, op_offset: int) -> None:
        self._open[offset] = _Open(physical_offset, due_ms, op_offset)
        heappush(self._due, (due_ms, offset))

    def is_open(self, half_offset: int) -> bool:
        return half_offset in self._open

    def end(self, now_ms: int, store: MessageStore, half: StoredMessage) -> None:
        """Write the op record of a half message: it is not asked for any more, whatever happens to this process."""
        text = b"%d" % half.queue_offset  # no comma after it: 5.x reads a list of them, 4.x one number alone
        properties = encode_properties({PROPERTY_TAGS: ENDED_TAG}).encode()
        op = store.put(now_ms, StoredMessage(OP_TOPIC, text, properties), tags_hash(ENDED_TAG))
        entry = self._forget(half.queue_offset)
        if entry is not None:
            self._unsure.append((op.queue_offset, half.queue_offset, entry.op_offset))

    def _forget(self, offset: int) -> _Open | None:
        entry = self._open.pop(offset, None)
        if len(self._due) > 2 * len(self._open):  # what is due in days would stay there for days
            self._due = [(still.due_ms, open_offset) for open_offset, still in self._open.items()]
            heapify(self._due)
        return entry

    def drop_gone(self, store: MessageStore) -> None:
        """Forget those whose records retention has dropped: nobody can commit them any more, and they have the places of
        others. An event says how many."""
        first_kept = store.min_offset(HALF_TOPIC, 0)
        gone = list(takewhile(lambda offset: offset < first_kept, self._open))
        for offset in gone:
            self._forget(offset)
        if gone:
            _say_gone(store, gone)

    def positions(self, store: MessageStore) -> tuple[int, int] | None:
        """From where a start must read halves and ends, for `commit_positions` when the disk has all that is stored now.

        Costs what ended since the last call, and what is lost, however many are open.
        """
        if store.queue(HALF_TOPIC, 0) is None:
            return None
        shown = store.max_offset(OP_TOPIC, 0)  # an end that the disk does not have yet is none
        while self._unsure and self._unsure[0][0] < shown:
            self._unsure.popleft()
        candidates = [(half, op_offset) for _, half, op_offset in self._unsure]
        first = next((offset for offset in self._open if not self._open[offset].is_lost), None)
        if first is not None:
            candidates.append((first, self._open[first].op_offset))
        return min(candidates, default=(store.max_offset(HALF_TOPIC, 0), shown))

    def next_due_ms(self) -> int | None:
        while self._due and not self._is_current(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _is_current(self, due_ms: int, offset: int) -> bool:
        half = self._open.get(offset)
        return half is not None and half.due_ms == due_ms

    def due(self, now_ms: int, store: MessageStore) -> Iterator[Question | StoredMessage]:
        """Those to ask for now, at most QUESTIONS_MAX; and, as bare messages, those to be given up. Both stay open until
        `end`. Raises StorageError, QueueRebuilding after the last of them where others could not be read, which are not given
        up (lost_places.py): these are due again soon, and after TRIED_MAX of them the rest of the others at once."""
        found: list[int] = []
        refused: list[StorageError | QueueRebuilding] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < QUESTIONS_MAX:
            due_ms, offset = heappop(self._due)
            if self._is_current(due_ms, offset):
                found.append(offset)
                self._open[offset].due_ms = now_ms + self._interval_ms  # all of them, also when what follows fails
        for offset in found:
            heappush(self._due, (now_ms + self._interval_ms, offset))
        for offset in sorted(found):
            entry = self._open.get(offset)
            if entry is None:
                continue
            if len(refused) == TRIED_MAX:
                self._due_at(offset, now_ms)
                continue
            try:
                half = store.message_at(entry.physical_offset)
            except QueueRebuilding as error:
                refused.append(error)
                continue
            except StorageError as error:
                if not self._is_lost(offset, entry, store, error):
                    refused.append(error)
                    self._due_at(offset, now_ms + min(UNREAD_PAUSE_MS, self._interval_ms))
                continue
            entry.is_lost = False
            if half is None:  # dropped with its segment: nobody can commit it any more
                self._forget(offset)
                _say_gone(store, [offset])
            else:
                yield self._asked(entry, half)
        if refused:
            raise refused[0]

    def _asked(self, entry: _Open, half: StoredMessage) -> Question | StoredMessage:
        """The next question for it; the bare message where it is to be given up."""
        if entry.checks < self._checks_max:
            entry.checks += 1
            with suppress(UsageError):  # nobody can be asked, and nobody can commit it
                return _question(half, entry.checks)
        return half

    def _due_at(self, offset: int, due_ms: int) -> None:
        self._open[offset].due_ms = due_ms
        heappush(self._due, (due_ms, offset))

    def _is_lost(self, offset: int, entry: _Open, store: MessageStore, error: StorageError) -> bool:
        """Whether an open one that could not be read is given up; an event says so once."""
        try:
            is_lost = is_of_a_place(error) and store.is_given_up(HALF_TOPIC, 0, offset, error)
        except (StorageError, QueueRebuilding):  # the queue's file cannot be read either
            is_lost = False
        if is_lost and not entry.is_lost:
            fields: dict[str, object] = {
                "queue_offset": offset,
                "position": entry.physical_offset,
                "reason": str(error),
            }
            store.events.append(("store.transaction_given_up_unread", fields))
        entry.is_lost = is_lost
        return is_lost


def _say_gone(store: MessageStore, offsets: list[int]) -> None:
    fields: dict[str, object] = {"count": len(offsets), "first_queue_offset": offsets[0]}
    store.events.append(("store.open_transactions_gone", fields))


def commit_positions(offsets: OffsetTable, half_offset: int, op_offset: int) -> None:
    offsets.commit(HALF_TOPIC, GROUP, 0, half_offset)
    offsets.commit(OP_TOPIC, GROUP, 0, op_offset)


def _question(half: StoredMessage, times: int) -> Question:
    properties = dict(half.properties)
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times)
    shown = real_message(replace(half, raw_properties=encode_properties(properties).encode()))
    return Question(half, shown, properties.get(PROPERTY_PRODUCER_GROUP, ""))


def _position(store: MessageStore, half_offset: int) -> int:
    queue = store.queue(HALF_TOPIC, 0)
    assert queue is not None, "it was just read"
    return store.entry(queue, half_offset)[0]


def _read(store: MessageStore, topic: str, offsets: OffsetTable) -> Iterator[tuple[int, StoredMessage | None]]:
    """What is in a queue, None for what a place of the disk keeps for itself. Raises StorageError, QueueRebuilding."""
    queue = store.queue(topic, 0)
    if queue is None:
        return
    start = max(queue.min_offset, offsets.query(topic, GROUP, 0) or 0)
    for offset in range(start, queue.max_offset):
        try:
            message = store.message_in(topic, 0, offset)
        except StorageError as error:
            if not is_of_a_place(error):
                raise
            yield offset, None
        else:
            if message is not None:
                yield offset, message
