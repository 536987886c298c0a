"""The commit log and its consume queues: put, get, search, recover (ST/{DefaultMessageStore,CommitLog}.java).

Rules:
- A record is written to the commit log before anything else happens for it; when `put` returns, a kill loses nothing.
  The consume queue entry follows in the same step, so there is no dispatch thread and no moment at which a stored
  message cannot be found.
- Consume queues are buffered. A *checkpoint* is a commit log position up to which all of them are on the disk: first
  they are flushed and synced, then the position is written. Recovery cuts the queues back to the checkpoint and reads
  the log from there, so a start costs what was stored since the last checkpoint, whatever the log's size.
- Recovery stops at the first record that is not whole (length, magic, crc, own position) and truncates there: that is
  the torn tail of a kill. No acknowledged message can stand behind it, as acknowledgements come in log order.
- A record of a topic that is not known (it was deleted) is skipped. A record whose queue offset is not the next one
  belongs to an earlier life of a topic that was deleted and made again: the queue starts anew with it.
- Retention drops whole segments of the log; queues then begin at their first record that is still there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ..remoting.codes import SYSFLAG_BORN_HOST_V6
from ..remoting.errors import ProtocolError
from ..remoting.hashing import java_hash
from ..remoting.properties import PROPERTY_TAGS
from ..remoting.stored import StoredMessage, decode_message, encode_message, record_info
from .consume_queue import SEGMENT_BYTES, ConsumeQueue
from .storage import Storage, StorageError
from .wanted import EVERYTHING, Wanted

LOG = "commitlog"
QUEUES = "consumequeue"
CHECKPOINT = "config/checkpoint.json"
SCAN_CHUNK_BYTES = 1 << 20
RECORD_HEAD_BYTES = 76  # up to and with the store time, also behind an IPv6 born host; every record has that many

tags_hash = lru_cache(maxsize=4096)(java_hash)


class GetStatus(Enum):
    """How a read of a queue ended; the names are the remarks of pull answers (ST/GetMessageStatus.java)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@dataclass(slots=True, frozen=True)
class Fetched:
    """Result of a read; `next_offset` is where the reader goes on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0


@dataclass(slots=True, frozen=True)
class StoreLimits:
    messages_max: int
    bytes_max: int
    scan_entries_max: int
    segment_bytes: int


class MessageStore:
    """All messages of one broker. Single owner, no clock: every call that needs the time is given it."""

    def __init__(self, storage: Storage, limits: StoreLimits, store_host: str, store_port: int) -> None:
        self._storage = storage
        self._limits = limits
        self._host = store_host
        self._port = store_port
        self._log = storage.open(LOG, limits.segment_bytes, buffered=False)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._pending_checkpoint: tuple[int, int] | None = None  # ticket of the sync, log position
        self._checkpoint = -1

    # Putting

    @property
    def log_end(self) -> int:
        return self._log.end

    @property
    def log_start(self) -> int:
        return self._log.start

    def put(self, now_ms: int, message: StoredMessage, tags_code: int) -> StoredMessage:
        """Store `message`; its offsets, store time and store host are filled in. Raises StorageError, UsageError."""
        queue = self._queue_to_write(message.topic, message.queue_id)
        message.queue_offset = queue.max_offset
        message.physical_offset = self._log.end
        message.store_timestamp_ms = now_ms
        message.store_host = self._host
        message.store_port = self._port
        record = encode_message(message)
        self._log.append(record)
        queue.append(message.physical_offset, len(record), tags_code)
        return message

    def _queue_to_write(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            file = self._storage.open(f"{QUEUES}/{topic}/{queue_id}", SEGMENT_BYTES, buffered=True)
            queue = self._queues[topic, queue_id] = ConsumeQueue(file)
        return queue

    # Reading

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def get(self, topic: str, queue_id: int, offset: int, messages_max: int, wanted: Wanted = EVERYTHING) -> Fetched:
        """Read the messages that are `wanted` from `offset` on (DefaultMessageStore.getMessage)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:  # the genuine store makes an empty queue here; the caller checked that the topic has this one
            return Fetched(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return Fetched(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Fetched(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Fetched(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Fetched(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        return self._collect(queue, offset, max(1, min(messages_max, self._limits.messages_max)), wanted)

    def _collect(self, queue: ConsumeQueue, offset: int, messages_max: int, wanted: Wanted) -> Fetched:
        """Take matching records until count, bytes or the scan window end; neighbours in the log are read at once."""
        codes, sql = wanted.codes, wanted.sql
        bytes_left = self._limits.bytes_max
        runs: list[list[int]] = []  # [position, length] of log ranges
        count = 0
        at = offset
        scan_end = min(queue.max_offset, offset + max(self._limits.scan_entries_max, messages_max))
        full = False
        while at < scan_end and not full:
            for position, size, tags_code in queue.entries(at, min(messages_max, scan_end - at)):
                if (codes is None or tags_code in codes) and (
                    sql is None or wanted.takes_record(self._log.read(position, size))
                ):
                    if count == messages_max or (size > bytes_left and count):
                        full = True
                        break
                    if runs and runs[-1][0] + runs[-1][1] == position:
                        runs[-1][1] += size
                    else:
                        runs.append([position, size])
                    bytes_left -= size
                    count += 1
                at += 1
        low, high = queue.min_offset, queue.max_offset
        if not count:
            return Fetched(GetStatus.NO_MATCHED_MESSAGE, at, low, high)
        read = self._log.read
        body = read(*runs[0]) if len(runs) == 1 else b"".join([read(position, length) for position, length in runs])
        return Fetched(GetStatus.FOUND, at, low, high, body, count)

    def record_at(self, position: int) -> bytes | None:
        """The whole record that begins at `position` of the commit log, None when none does."""
        if not self._log.start <= position < self._log.end:
            return None
        size = int.from_bytes(self._log.read(position, 4), "big", signed=True)
        if not 0 < size <= self._log.end - position:
            return None
        record = self._log.read(position, size)
        try:
            info = record_info(record)
        except ProtocolError:
            return None
        return record if info.physical_offset == position and info.end == size else None

    def message_at(self, position: int) -> StoredMessage | None:
        """The message that begins at `position` of the commit log, None when none does."""
        record = self.record_at(position)
        try:
            return None if record is None else decode_message(record)
        except ProtocolError:  # its body is not what was stored
            return None

    def store_time_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at `offset` was stored, None when there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        return self._store_time_ms(queue, offset)

    def _store_time_ms(self, queue: ConsumeQueue, offset: int) -> int:
        return self._log_time_ms(queue.entry(offset)[0])

    def _log_time_ms(self, position: int) -> int:
        """Store time of the record at `position`, read from its head alone."""
        head = self._log.read(position, RECORD_HEAD_BYTES)
        born_host_is_v6 = int.from_bytes(head[36:40], "big") & SYSFLAG_BORN_HOST_V6
        return int.from_bytes(head[68:76] if born_host_is_v6 else head[56:64], "big")

    def search(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """Offset by store time: LOWER = first stored at or after the time (max offset when all are older),
        UPPER = last stored at or before it (0 when all are newer). 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._store_time_ms(queue, middle)
            if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        if not upper:
            return low
        return low - 1 if low > queue.min_offset else 0

    # Keeping

    def flush(self) -> None:
        """Start to bring what was put to the disk (bounds what a crash of the machine loses)."""
        self._storage.sync()

    def begin_checkpoint(self) -> None:
        """Flush the queues and start a sync; `end_checkpoint` writes the position once that is done."""
        if self._pending_checkpoint is not None or self._log.end == self._checkpoint:
            return
        for queue in self._queues.values():
            queue.flush()
        self._pending_checkpoint = (self._storage.sync(), self._log.end)

    def end_checkpoint(self) -> None:
        """Write the pending checkpoint if its sync is done. Raises StorageError when the disk failed."""
        pending = self._pending_checkpoint
        if pending is not None and self._storage.synced >= pending[0]:
            self._pending_checkpoint = None
            self._save_checkpoint(pending[1])

    def checkpoint_now(self) -> None:
        """For a clean stop: flush the queues and write the position; closing the storage syncs."""
        for queue in self._queues.values():
            queue.flush()
        self._save_checkpoint(self._log.end)

    def _save_checkpoint(self, position: int) -> None:
        self._checkpoint = position
        self._storage.replace(CHECKPOINT, json.dumps({"position": position}).encode())

    def drop_older_than(self, store_time_ms: int) -> None:
        """Drop log segments all of whose records were stored before `store_time_ms`; the last one always stays."""
        keep = self._log.start
        for start in self._log.segment_starts()[1:]:
            if start == self._log.end or self._log_time_ms(start) >= store_time_ms:
                break
            keep = start
        if keep > self._log.start:
            self._log.drop_before(keep)
            for queue in self._queues.values():
                queue.drop_records_below(self._log.start)

    def remove_topic(self, topic: str) -> None:
        """Forget the queues of a topic. Its records stay in the log until retention drops them."""
        for queue_id in self.queue_ids(topic):
            del self._queues[topic, queue_id]
            self._storage.remove(f"{QUEUES}/{topic}/{queue_id}")
        self._pending_checkpoint = None  # it would be older than the one of now
        self.checkpoint_now()  # a restart must not read the removed records into a new topic's queues

    # Recovery

    def recover(self, knows: Callable[[str], bool], tags_code: Callable[[StoredMessage], int]) -> int:
        """Open the queues and read what was stored since the checkpoint. Returns how many records were read.

        `knows` tells which topics exist, `tags_code` computes a record's entry. Call once, before anything else.
        """
        begin = self._recovery_begin()
        for name in self._storage.names(QUEUES + "/"):
            _, topic, queue_id = name.split("/")
            if not knows(topic):
                self._storage.remove(name)
                continue
            queue = self._queues[topic, int(queue_id)] = ConsumeQueue(
                self._storage.open(name, SEGMENT_BYTES, buffered=True)
            )
            queue.cut_records_from(begin)
            queue.drop_records_below(self._log.start)
        count = 0
        for message, size in self._scan(begin):
            count += 1
            if knows(message.topic):
                queue = self._queue_to_write(message.topic, message.queue_id)
                if queue.max_offset != message.queue_offset:
                    queue.restart_at(message.queue_offset)
                queue.append(message.physical_offset, size, tags_code(message))
        return count

    def _recovery_begin(self) -> int:
        """Where to read from: the checkpoint, unless the log lost more than that; then the last segment; else all."""
        start, end = self._log.start, self._log.end
        text = self._storage.load(CHECKPOINT)
        try:
            position = int(json.loads(text)["position"]) if text is not None else start
        except (ValueError, KeyError, TypeError):
            position = start
        if position > end:
            position = max(cut for cut in self._log.segment_starts() if cut <= end)
        return max(position, start)

    def _scan(self, begin: int) -> Iterator[tuple[StoredMessage, int]]:
        """Whole records from `begin` on; truncates the log behind the last of them."""
        position = begin
        chunk = b""
        chunk_at = begin
        while position < self._log.end:
            if len(chunk) - (position - chunk_at) < 4:
                chunk, chunk_at = self._log.read(position, SCAN_CHUNK_BYTES), position
            at = position - chunk_at
            size = int.from_bytes(chunk[at : at + 4], "big", signed=True)
            if size < 4 or size > self._log.end - position:
                break
            if at + size > len(chunk):
                chunk, chunk_at, at = self._log.read(position, max(size, SCAN_CHUNK_BYTES)), position, 0
            try:
                message = decode_message(chunk, at, at + size)
            except ProtocolError:
                break
            if message.physical_offset != position:
                break
            yield message, size
            position += size
        if position < self._log.end:
            self._log.truncate(position)


def message_tags_code(message: StoredMessage) -> int:
    """The tags code of an ordinary message: the Java hash of its tag, 0 without one."""
    tags = message.properties.get(PROPERTY_TAGS)
    return tags_hash(tags) if tags else 0


__all__ = ["Fetched", "GetStatus", "MessageStore", "StorageError", "StoreLimits", "message_tags_code", "tags_hash"]
