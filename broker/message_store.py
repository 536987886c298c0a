"""The commit log and its consume queues: put, get, search, recover (ST/{DefaultMessageStore,CommitLog}.java).

Rules:
- A record is written to the commit log before anything else happens for it; when `put` returns, a kill loses nothing.
  The consume queue entry follows in the same step, made from the message in hand; only recovery reads the log for that.
- Who waits for the disk (`flush = sync`) sees a message when the disk has it: a message that was seen and then lost would
  give its offset to another. Until then its entry is hidden.
- Consume queues are buffered. A *checkpoint* is a commit log position up to which all of them are on the disk: first
  they are flushed and synced, then the position is written. Recovery cuts the queues back to the checkpoint and reads
  the log from there, so a start costs what was stored since the last checkpoint, whatever the log's size.
- What a start does with a log or queues that are damaged is in recovery.py; nothing that cannot be read is ever removed.
- Each read compares topic, queue, offset and position of the records with what was asked, and positions and sizes of the
  entries that it passes over with their neighbours. Where they do not agree, the queue is built anew in steps
  (rebuilds.py); until that is done, reads of it and puts to it raise `QueueRebuilding`. Of tags codes see queue_check.py.
- A queue whose file cannot be read is built anew, too; of places of the log that cannot be read see lost_places.py.
- Retention drops whole segments of the log; queues then begin at their first record that is still there.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from ..remoting.errors import ProtocolError, RocketcrewError
from ..remoting.stored import RECORD_MIN_BYTES, StoredMessage, decode_message, record_info
from .checkpoint import (
    CHECKPOINT,
    CHECKPOINT_OF_GENUINE,
    Counts,
    checkpoint_in,
    for_genuine,
    indexed_in,
    saved_checkpoint,
    stored_ms_in,
)
from .consume_queue import ConsumeQueue, Entry
from .fetched import Fetched, GetStatus
from .key_index import KeyIndex
from .log_writing import append_messages
from .lost_places import LostPlaces, first_unreadable
from .opening import Opening, new_queue, queue_name
from .queue_check import QueueCheck
from .readable_log import TRIED_MAX, ReadableLog, UnreadablePlaces, is_bad_place, is_of_a_place
from .rebuilds import Rebuild, Rebuilds
from .record_heads import (
    HEAD_BYTES,
    Named,
    Taken,
    are_records,
    in_log,
    is_head,
    named_at,
    segment_stored_ms,
    stored_ms_at,
)
from .recovery import MISSING_MAX, Found, Key, Recovery
from .removed_topics import RemovedTopics
from .retention import keep_from_by_age, keep_from_by_space
from .storage import Storage, StorageError, try_each
from .time_search import TimeSearch, page_of
from .wanted import EVERYTHING, Wanted

LOG = "commitlog"
INDEX_STEP_BYTES = 1 << 20
FIND_MAX = 2_500  # records that one query by key reads: some 50 ms; genuine: as many as it answers with (64)
REBUILD_STEP_BYTES = 4 << 20  # in one tick: some 30 ms


class QueueRebuilding(RocketcrewError):
    """The queue's entries are being made anew from the log; in a while it can be read and written again."""

    def __init__(self, topic: str, queue_id: int) -> None:
        super().__init__(topic, queue_id)
        self.topic = topic
        self.queue_id = queue_id

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} is being built anew from the commit log: try again in a while"


@dataclass(slots=True, frozen=True)
class StoreBounds:
    messages_max: int
    bytes_max: int
    scan_entries_max: int
    segment_bytes: int


class MessageStore:
    """All messages of one broker. Single owner, no clock: every call that needs the time is given it."""

    def __init__(
        self, storage: Storage, bounds: StoreBounds, store_host: str, store_port: int, *, waits_for_disk: bool = False
    ) -> None:
        """With `waits_for_disk` messages are shown when `flushed_to` says that the disk has them, else at once."""
        self._waits_for_disk = waits_for_disk
        self._storage = storage
        self._bounds = bounds
        self._host = store_host
        self._port = store_port
        self._log = storage.open(LOG, bounds.segment_bytes, buffered=False)
        self.events: deque[tuple[str, dict[str, object]]] = deque(maxlen=64)  # since the start, for the log
        self._places = UnreadablePlaces(self.events)
        self._lost = LostPlaces(self._log, self._places, self.events)
        self._index = KeyIndex(storage, self._log, self._places, self.events)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._queue_ids: dict[str, set[int]] = {}  # by topic
        self._pending_checkpoint: tuple[int, tuple[int, bytes]] | None = None  # ticket, what to write
        self._checkpoint = -1
        self.newest_ms = 0  # store time of the newest record
        self.removed = RemovedTopics(storage)
        self._rebuilds = Rebuilds(self._log)
        self._hidden: deque[tuple[int, ConsumeQueue, StoredMessage, int]] = deque()  # log end, queue, message, code
        self._flushed = 0
        self.arrived: Callable[[StoredMessage, int], None] = lambda _message, _tags_code: None
        """Called with each message and its tags code when it can be read."""
        self.rebuilt_queues = 0
        self.found = Found()

    @property
    def passed_over(self) -> int:
        """Messages that a pull did not get, as the disk cannot read them."""
        return self._lost.passed_over

    # Putting

    @property
    def log_end(self) -> int:
        return self._log.end

    @property
    def log_start(self) -> int:
        return self._log.start

    def put(self, now_ms: int, message: StoredMessage, tags_code: int) -> StoredMessage:
        """Store `message`; its offsets, store time and store host are filled in. Raises StorageError, UsageError."""
        self.put_all(now_ms, [message], [tags_code])
        return message

    def put_all(self, now_ms: int, messages: list[StoredMessage], tags_codes: list[int]) -> None:
        """Store messages of one queue by one write: all of them or, when it raises, none. Raises as `put`.

        The store time never goes back, as searches by time are binary; a clock that was set back stands still here.
        """
        key = messages[0].topic, messages[0].queue_id
        queue = self._queue_to_write(*key)
        if self._rebuilds:
            self._refuse_rebuilding(key)
        stored_ms = max(now_ms, self.newest_ms)
        for offset, message in enumerate(messages, queue.next_offset):
            message.queue_offset = offset
            message.store_timestamp_ms = stored_ms
            message.store_host = self._host
            message.store_port = self._port
        records = append_messages(self._log, messages)
        self.newest_ms = stored_ms
        for message, record, tags_code in zip(messages, records, tags_codes, strict=True):
            queue.append_hidden(message.physical_offset, len(record), tags_code)
            self._hidden.append((message.physical_offset + len(record), queue, message, tags_code))
            self._index.put(message)
        if not self._waits_for_disk:
            self.flushed_to(self._log.end)

    @property
    def flushed(self) -> int:
        """Up to here the log is shown: it is on the disk, or nobody waits for that."""
        return self._flushed

    def flushed_to(self, position: int) -> None:
        """The disk has the log up to `position`: show what is below it."""
        self._flushed = position
        while self._hidden and self._hidden[0][0] <= position:
            _, queue, message, tags_code = self._hidden.popleft()
            queue.show(message.queue_offset + 1)
            self.arrived(message, tags_code)

    def _queue_to_write(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = new_queue(self._storage, topic, queue_id)
            self._queue_ids.setdefault(topic, set()).add(queue_id)
        return queue

    # Reading

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(self._queue_ids.get(topic, ()))

    def holds(self, topic: str) -> bool:
        """Whether a message of the topic is there, or may be."""
        queues = [self._queues[topic, queue_id] for queue_id in self._queue_ids.get(topic, ())]
        return any(each.next_offset > each.min_offset or (topic, each.queue_id) in self._rebuilds for each in queues)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return queue.min_offset if (queue := self._queues.get((topic, queue_id))) else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def get(self, topic: str, queue_id: int, offset: int, messages_max: int, wanted: Wanted = EVERYTHING) -> Fetched:
        """Read the messages that are `wanted` from `offset` on (DefaultMessageStore.getMessage)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:  # the genuine store makes an empty queue here; the caller checked that the topic has this one
            return Fetched(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if self._rebuilds:
            self._refuse_rebuilding((topic, queue_id))
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return Fetched(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Fetched(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Fetched(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Fetched(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        count = max(1, min(messages_max, self._bounds.messages_max))
        try:
            return self._lost.passed(queue, offset, wanted) or self._collect(queue, offset, high, count, wanted)
        except StorageError as error:
            return self._collect_before(queue, offset, count, wanted, error)

    def _collect_before(
        self, queue: ConsumeQueue, offset: int, messages_max: int, wanted: Wanted, error: StorageError
    ) -> Fetched:
        """After `error`: what is before the first record that cannot be read. That one is passed over where it is the first,
        and given up. Raises `error` until then, and QueueRebuilding where it is the queue's file that cannot be read."""
        if not is_of_a_place(error):
            raise error
        try:  # one more than is looked at: of a filler the next one says whether it is one
            entries = queue.entries(offset, max(self._bounds.scan_entries_max, messages_max) + 1)
        except StorageError as refused:
            self._begin_rebuild_at_place(queue, refused)
        shown = zip(range(offset, queue.max_offset), entries, strict=False)
        read = [pair for pair in shown if wanted.codes is None or pair[1][2] in wanted.codes]
        found = first_unreadable(self._log, read, self._bounds.bytes_max)
        if found is None:  # it can be read now
            raise error
        at, entry = found
        if at > offset:
            return self._collect(queue, offset, at, messages_max, wanted)
        passed = self._lost.passed(queue, offset, wanted) if self._lost.has(entry[0], entry[1], error) else None
        if passed is None:
            raise error
        return passed

    def _collect(self, queue: ConsumeQueue, offset: int, end: int, messages_max: int, wanted: Wanted) -> Fetched:
        """Take matching records until count, bytes, the scan window or `end`; neighbours in the log are read at once."""
        codes, sql = wanted.codes, wanted.sql
        bytes_left = self._bounds.bytes_max
        runs: list[list[int]] = []  # [position, length] of log ranges
        taken: list[Taken] = []
        at = offset
        scan_end = min(end, offset + max(self._bounds.scan_entries_max, messages_max))
        full = False
        floor, log_end = self._log.start, self._log.end
        while at < scan_end and not full:
            for position, size, tags_code in queue.entries(at, min(messages_max, scan_end - at)):
                if not floor <= position <= log_end - size or size < RECORD_MIN_BYTES:
                    if not queue.is_filler(at, (position, size, tags_code)):
                        self.begin_rebuild(queue)
                elif (codes is None or tags_code in codes) and (
                    sql is None or wanted.takes_record(self._read_checked(queue, at, position, size))
                ):
                    if len(taken) == messages_max or (size > bytes_left and taken):
                        full = True
                        break
                    if runs and runs[-1][0] + runs[-1][1] == position:
                        runs[-1][1] += size
                    else:
                        runs.append([position, size])
                    bytes_left -= size
                    taken.append((at, position, size))
                elif not queue.may_have_code(tags_code):
                    self.begin_rebuild(queue)
                floor = position + size
                at += 1
        low, high = queue.min_offset, queue.max_offset
        if not taken:
            return Fetched(GetStatus.NO_MATCHED_MESSAGE, at, low, high)
        if not all(in_log(self._log, position, length) for position, length in runs):
            self.begin_rebuild(queue)
        read = self._log.read
        body = read(*runs[0]) if len(runs) == 1 else b"".join([read(position, length) for position, length in runs])
        if not are_records(body, queue.topic, queue.queue_id, taken):
            self.begin_rebuild(queue)
        return Fetched(GetStatus.FOUND, at, low, high, body, len(taken))

    def _read_checked(self, queue: ConsumeQueue, offset: int, position: int, size: int) -> bytes:
        """The record of one entry. Raises QueueRebuilding when another one is there."""
        if not in_log(self._log, position, size):
            self.begin_rebuild(queue)
        record = self._log.read(position, size)
        if not are_records(record, queue.topic, queue.queue_id, [(offset, position, size)]):
            self.begin_rebuild(queue)
        return record

    def record_in(self, topic: str, queue_id: int, offset: int) -> bytes | None:
        """The record at `offset` of a queue; None when there is none, or it is lost, also to the disk. Raises
        QueueRebuilding, and StorageError while the disk may read it the next time."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        self._refuse_rebuilding((topic, queue_id))
        try:
            position, size, _ = entry = queue.entry(offset)
            is_filler = queue.is_filler(offset, entry)
        except StorageError as error:
            self._begin_rebuild_at_place(queue, error)
        try:
            return None if is_filler else self._read_checked(queue, offset, position, size)
        except StorageError as error:
            if not is_of_a_place(error) or not self._lost.has(position, size, error):
                raise
            return None

    def is_given_up(self, topic: str, queue_id: int, offset: int, error: StorageError) -> bool:
        """Whether the record at `offset`, of a place of which a read just gave `error`, is lost to the disk. Raises
        QueueRebuilding, StorageError."""
        position, size, _ = self.entry(self._queues[topic, queue_id], offset)
        return self._lost.has(position, size, error)

    def entry(self, queue: ConsumeQueue, offset: int) -> Entry:
        """The entry at `offset`. Raises QueueRebuilding when its place in the queue's file cannot be read, and StorageError
        when the disk reads hardly anything: a queue that was built anew at such a moment would have nothing either."""
        try:
            return queue.entry(offset)
        except StorageError as error:
            self._begin_rebuild_at_place(queue, error)

    def message_in(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """As `record_in`, decoded; None also when its body is not what was stored. Raises QueueRebuilding."""
        return _decoded(self.record_in(topic, queue_id, offset))

    def record_at(self, position: int) -> bytes | None:
        """The whole record that begins at `position` of the commit log, None when none does. Raises QueueRebuilding.

        Anybody can send a body with bytes in it that look like a record at their own position. So a record is one that an
        entry of its queue names, and nothing more than its head is read before that is known.
        """
        named = named_at(self._log, position)
        if named is None or not self._is_entry(named, position):
            return None
        record = self._log.read(position, named.size)
        try:
            record_info(record)
        except ProtocolError:
            return None
        return record

    def _is_entry(self, named: Named, position: int) -> bool:
        """Whether its queue has an entry for a record there. Raises QueueRebuilding, also when the entry at its offset is
        damaged: else that would hide a record."""
        key = named.topic, named.queue_id
        queue = self._queues.get(key)
        if queue is None or not queue.min_offset <= named.offset < queue.next_offset:
            return False
        self._refuse_rebuilding(key)
        entry = self.entry(queue, named.offset)
        is_named = entry[:2] == (position, named.size)
        if not is_named:
            self._check_head(queue, named.offset, entry)
        return is_named

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[bytes]:
        """Records of a topic that may have that key, newest first, stored in [begin_ms, end_ms]; the caller compares.
        What lies on bad pages is passed over, up to TRIED_MAX records: there it ends. Raises QueueRebuilding."""
        seen: set[int] = set()
        unread = 0
        for position in islice(self._index.positions(topic, key, begin_ms, end_ms), FIND_MAX):
            try:
                record = None if position in seen or position >= self._flushed else self.record_at(position)
            except StorageError as error:
                if not is_bad_place(error, self._log):
                    raise
                record, unread = None, unread + 1
                if unread == TRIED_MAX:
                    return
            seen.add(position)
            if record is None or position < self.removed.end_of(topic):
                continue
            info = record_info(record)
            name = record[info.topic_start : info.topic_start + info.topic_len]
            if name == topic.encode() and begin_ms <= info.store_timestamp_ms <= end_ms:
                yield record

    def message_at(self, position: int) -> StoredMessage | None:
        """As `record_at`, decoded. Raises QueueRebuilding."""
        return _decoded(self.record_at(position))

    def store_time_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at `offset` was stored, None when there is none, or its place cannot be read."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        self._refuse_rebuilding((topic, queue_id))
        try:
            return self._store_time_ms(queue, offset)
        except StorageError as error:
            if not is_of_a_place(error):
                raise
            return None

    def _store_time_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """Of a lost message: that of the next one. Raises QueueRebuilding when the entry is not of this queue."""
        entry = self.entry(queue, offset)
        self._check_head(queue, offset, entry)
        return stored_ms_at(self._log, entry[0])

    def _check_head(self, queue: ConsumeQueue, offset: int, entry: Entry) -> None:
        """Raise QueueRebuilding unless the entry at `offset` is a filler, or the head of its record is where it says."""
        position, size, _ = entry
        if queue.is_filler(offset, entry):
            is_there = in_log(self._log, position, HEAD_BYTES)
        else:
            is_there = is_head(self._log, queue.queue_id, (offset, position, size))
        if not is_there:
            self.begin_rebuild(queue)

    def search(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """Offset by store time: LOWER = first stored at or after the time (max offset when all are older),
        UPPER = last stored at or before it (0 when all are newer). 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        self._refuse_rebuilding((topic, queue_id))
        search = TimeSearch(partial(self._store_time_ms, queue), partial(self._page_of, queue))
        low = search.run(queue.min_offset, queue.max_offset, timestamp_ms, upper=upper)
        if not upper:
            return low
        return low - 1 if low > queue.min_offset else 0

    def _page_of(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """As `page_of`. Raises QueueRebuilding."""
        try:
            return page_of(queue, offset)
        except StorageError as error:
            self._begin_rebuild_at_place(queue, error)

    # Keeping

    def begin_checkpoint(self) -> None:
        """Flush the queues and start a sync; `end_checkpoint` writes the position once that is done."""
        self._index.flush()  # first: an index that gave up is tried again also where there will be no checkpoint
        if self._pending_checkpoint is not None or self._rebuilds or self._log.end == self._checkpoint:
            return
        for queue in self._queues.values():
            queue.flush()
        self._pending_checkpoint = (self._storage.sync(), self._checkpoint_text())

    def end_checkpoint(self) -> None:
        """Write the pending checkpoint if its sync is done. Raises StorageError when the disk failed."""
        pending = self._pending_checkpoint
        if pending is not None and self._storage.is_synced(pending[0]):
            self._pending_checkpoint = None
            self._save_checkpoint(pending[1])

    def checkpoint_now(self) -> None:
        """For a clean stop: bring all to the disk, then write the position."""
        self._index.flush()
        self._storage.sync_now()
        if not self._rebuilds:  # else the next start has to look at more
            self._save_checkpoint(self._checkpoint_text())

    def _checkpoint_text(self) -> tuple[int, bytes]:
        """The log's end, and the document that says how many entries each queue has there."""
        counts: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self._queues.items():
            counts.setdefault(topic, {})[queue_id] = queue.next_offset
        document = {"position": self._log.end, "stored_ms": self.newest_ms, "indexed": self._index.covered}
        return self._log.end, json.dumps(document | {"queues": counts}).encode()

    def _save_checkpoint(self, checkpoint: tuple[int, bytes]) -> None:
        self._checkpoint = checkpoint[0]
        self._storage.replace(CHECKPOINT, checkpoint[1])
        self._storage.replace(CHECKPOINT_OF_GENUINE, for_genuine(self.newest_ms))

    def drop_older_than(self, store_time_ms: int, kept_from: int | None = None) -> None:
        """Drop log segments all of whose records were stored before `store_time_ms` and lie before `kept_from`; the last
        one always stays."""
        kept_from = self.log_end if kept_from is None else kept_from
        self._keep_from(keep_from_by_age(self._log, store_time_ms, kept_from, partial(segment_stored_ms, self._log)))

    def drop_beyond(self, disk_share: float) -> None:
        """Drop the oldest log segments while log, queues and index take more than this share of the disk; the last one always
        stays."""
        if self._storage.disk_bytes:
            bytes_max = int(self._storage.disk_bytes * disk_share)
            keep = keep_from_by_space(self._log, lambda start: bytes_max - self._beside_log_bytes(start))
            if self._keep_from(keep):
                self.events.append(("store.dropped_for_room", {"first_kept": keep, "disk_share_max": disk_share}))

    def _beside_log_bytes(self, start: int) -> int:
        """Room that queues and index would take if the log began at `start`."""
        is_start = start == self._log.start  # as at most looks: no queue is searched then
        return self._index.taken_bytes(start) + sum(
            queue.taken_bytes if is_start else queue.taken_bytes_from(start) for queue in self._queues.values()
        )

    def _keep_from(self, keep: int) -> bool:
        if was := keep > self._log.start:
            with ExitStack() as after:  # whatever the disk refuses: some segments may be gone
                after.callback(lambda: self._index.drop_before(self._log.start))
                after.callback(self.drop_expired_entries)
                self._log.drop_before(keep)
        return was

    def drop_expired_entries(self) -> None:
        """Let queues begin at their first record that is still in the log. Raises StorageError when all have been asked."""
        try_each(self._drop_expired, self._queues.values())

    def _drop_expired(self, queue: ConsumeQueue) -> None:
        try:
            first = queue.first_kept(self._log.start)
        except StorageError as error:
            if not is_bad_place(error, self._log):
                raise
            first = None
        if first is None:
            self._rebuilds.plan(queue)
        else:
            queue.drop_before(first)

    def remove_topic(self, topic: str) -> None:
        """Forget the queues of a topic. Its records stay in the log until retention drops them."""
        gone = self.queue_ids(topic)
        if not gone:
            return  # the log has no record of its own, and an entry for those of an earlier one
        self.removed.add(topic, self._log.end)  # until the disk has that, the topics' journal says so
        del self._queue_ids[topic]
        for queue_id in gone:
            del self._queues[topic, queue_id]
            self._rebuilds.forget((topic, queue_id))
        self._pending_checkpoint, self._checkpoint = None, -1  # what it says of the topic's queues holds no more
        # A file that stays is moved aside when the topic is made again.
        try_each(self._storage.remove, [queue_name(topic, queue_id) for queue_id in gone])

    # Rebuilding

    def begin_rebuild(self, queue: ConsumeQueue) -> NoReturn:
        self._rebuilds.plan(queue)
        raise QueueRebuilding(queue.topic, queue.queue_id)

    def _begin_rebuild_at_place(self, queue: ConsumeQueue, error: StorageError) -> NoReturn:
        """The queue's file cannot be read: the log says all that it says. Raises `error` unless the disk reads that."""
        if not is_bad_place(error, self._log):
            raise error
        self.begin_rebuild(queue)

    def _refuse_rebuilding(self, key: Key) -> None:
        if key in self._rebuilds:
            raise QueueRebuilding(*key)

    @property
    def is_rebuilding(self) -> bool:
        return self._rebuilds.is_due or self._index.is_behind

    def believe_times_until(self, limit_ms: int) -> None:
        """A record from so far ahead has a damaged head: no new one is stored with its time."""
        if self.newest_ms > limit_ms:
            self.newest_ms = 0

    def rebuild_some(self) -> None:
        """Read the log a little further for the index, and for the first queue that is built anew. Raises StorageError."""
        try:
            self._index.catch_up(INDEX_STEP_BYTES)
        finally:  # queues matter more
            self._rebuild_a_queue()

    def check_some(self) -> None:
        """Look at some more entries, unless there is something to build anew."""
        self._rebuilds.rest()
        self._lost.rest()
        if not self.is_rebuilding:
            for queue in self._check.step():
                self._rebuilds.plan(queue, in_doubt=True)

    def _rebuild_a_queue(self) -> None:
        rebuild = self._rebuilds.step(REBUILD_STEP_BYTES, self._queues)
        if rebuild is None:
            return
        topic, queue_id = rebuild.key
        queue = self._queues[rebuild.key]
        queue.hide_from(self._flushed)
        self._checkpoint = -1  # the next one says how many entries it has now, also when nothing is stored meanwhile
        self.rebuilt_queues += 1
        self._check.rebuilt(rebuild.key, rebuild.unread, rebuild.found.missing_offsets)
        fields: dict[str, object] = {"topic": topic, "queue_id": queue_id, "entries": queue.next_offset}
        self.events += [("store.queue_rebuilt", fields), *rebuild.found.events()]
        self._drop_expired(queue)  # the disk may refuse this, and what follows
        queue.flush()

    # Recovery

    def queue_keys(self) -> list[Key]:
        """Topic and id of all queues."""
        return list(self._queues)

    def recover(
        self,
        knows: Callable[[str], bool],
        tags_code: Callable[[StoredMessage], int],
        revivable: Callable[[str], bool] = lambda _: False,
        *,
        topics_lost: bool = False,
        removals: Mapping[str, int] | None = None,
    ) -> int:
        """Open the queues and read what was stored since the checkpoint. Returns how many records were read.

        `knows` tells which topics exist, `tags_code` computes a record's entry. A topic that nobody deleted comes back if
        it is `revivable`: all of them with `topics_lost`, else those of records since the checkpoint, as a crash of the
        machine may have taken the journal's line. `removals` are deleted topics and where the log ended then, which the
        store's own table may not have yet. Call once, before anything else. Raises UsageError when the log was
        written by something else.
        """
        self.removed.load(removals or {}, is_new=self._log.end == 0)
        lives_known = self.removed.all_known

        strays: set[str] = set()  # topics with records that nobody knows: a crash came before they were answered for

        def is_wanted(message: StoredMessage) -> bool:
            topic, position = message.topic, message.physical_offset
            if position < self.removed.end_of(topic):
                return False
            if knows(topic) or (position >= revived_from and revivable(topic)):
                return True
            strays.add(topic)
            return False

        self._rebuilds.make = lambda key: Rebuild(
            self._storage, self._log, key, is_wanted, tags_code, self._places, lives_known=lives_known
        )
        checkpoint = saved_checkpoint(self._storage, self._log.start, self._log.end)
        begin, counts = checkpoint_in(checkpoint, self._log.start, self._log.end)
        revived_from = 0 if topics_lost else begin if counts is not None else self._log.end
        opened = Opening(self._storage, self._log, begin, counts).run(
            lambda topic: knows(topic) or (topics_lost and revivable(topic) and topic not in self.removed),
            self.removed,
        )
        self._queues |= opened.queues
        for topic, queue_id in opened.queues:
            self._queue_ids.setdefault(topic, set()).add(queue_id)

        log = ReadableLog(self._log, self._places)
        recovery = partial(
            Recovery, self._storage, self._log, self._queue_to_write, is_wanted, tags_code, log, lives_known=lives_known
        )
        first = recovery()
        self.found = first.run(begin, opened.broken)
        if first.suspects:  # the log went on where their files did not
            before = self.found
            self.found = recovery().run(self._log.end, first.suspects)
            self.found.records += before.records
            self.found.stored_ms = max(self.found.stored_ms, before.stored_ms)
        ended: set[str] = set()  # one of these that is made again begins anew, whatever the log holds of it
        if lives_known:
            self._keep_ends(begin, counts or {}, opened.ends)
            ended = strays - {topic for topic, _ in self._queues}
        self.newest_ms = max(stored_ms_in(checkpoint), self.found.stored_ms)
        self.drop_expired_entries()
        self._log.settle(begin)  # a killed broker may have left what is not on the disk yet
        self._flushed = self._log.end
        self.removed.started(self._log.end, ended)
        self._check = QueueCheck(self._log, self._queues, is_wanted, tags_code, self._places)
        self._index.start(indexed_in(checkpoint))
        self._storage.begin()
        return self.found.records

    def _keep_ends(self, begin: int, counts: Counts, ends: dict[Key, int]) -> None:
        """No offset that a queue had at the checkpoint, or in its file, is given again, whatever is damaged at its end."""
        of_this_life = {topic: part for topic, part in counts.items() if self.removed.end_of(topic) < begin}
        counted = [((topic, queue_id), end) for topic, part in of_this_life.items() for queue_id, end in part.items()]
        for key, end in (*counted, *ends.items()):
            queue = self._queues.get(key)
            if queue is not None and 0 < end - queue.next_offset <= MISSING_MAX:
                queue.keep_end(end)


def _decoded(record: bytes | None) -> StoredMessage | None:
    try:
        return None if record is None else decode_message(record)
    except ProtocolError:  # its body is not what was stored
        return None
