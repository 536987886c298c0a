"""What a start does with the commit log and the consume queues, and how one queue is built anew.

- The *checkpoint* says up to which position of the log all queues were on the disk, and how many entries each had. Queues
  are cut back to it and the log is read from there. A queue that has another number of entries then, holes, or a last entry
  that is not its record's, is *broken*: its entries are made anew from the whole log. Without a checkpoint all are broken.
- Damage in the log is copied to `damaged/<position>-<length>`; the positions stay, and reading goes on after it. Queue
  offsets that are missing then get fillers, as long as the damage has room for so many records.
- The CRC covers a record's body and not its head. So a queue offset that no damage explains is believed when the queue's
  next record goes on from it; one that stands alone is treated as damage.
- The torn front of one record, and zeros at the end, are cut off. Nothing else is, ever.
- A record of a topic that does not exist (it was deleted) is skipped, and so is one of an earlier life of a topic that was
  deleted and made again. Where that is not known, offset 0 says that a new life begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..remoting.codes import SYSFLAG_TRANSACTION_MASK, SYSFLAG_TRANSACTION_PREPARED, SYSFLAG_TRANSACTION_ROLLBACK
from ..remoting.errors import UsageError
from ..remoting.stored import MAGIC_V1, MAGIC_V2, RECORD_MIN_BYTES, StoredMessage
from .consume_queue import SEGMENT_BYTES, ConsumeQueue
from .log_scan import CHUNK_BYTES, Kind, LogScan, Part
from .storage import MemoryFile, Storage, StoredFile

FOREIGN_MIN_BYTES = 64 << 20  # so much without one record is no damaged log, but something else
STEP_ENTRIES = 10_000
MISSING_MAX = 1_000_000  # fillers at one place; more is no gap, but a wrong number
Key = tuple[str, int]

# Half messages of brokers before 4.3, and their ends, are in the log alone.
_NOT_IN_QUEUES = (SYSFLAG_TRANSACTION_PREPARED, SYSFLAG_TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class Found:
    """What a start found; all counts are of this start alone."""

    records: int = 0
    damaged_ranges: int = 0
    damaged_bytes: int = 0
    torn_bytes: int = 0
    missing_offsets: int = 0
    rebuilt: list[Key] = field(default_factory=list[Key])

    def events(self) -> list[tuple[str, dict[str, object]]]:
        """What the log is to say, one event for each kind of finding."""
        events: list[tuple[str, dict[str, object]]] = []
        if self.damaged_ranges:
            fields: dict[str, object] = {"ranges": self.damaged_ranges, "bytes": self.damaged_bytes}
            fields |= {"missing_offsets": self.missing_offsets, "copied_to": "damaged/"}
            events.append(("store.damaged", fields))
        if self.torn_bytes:
            events.append(("store.torn_record_cut_off", {"bytes": self.torn_bytes}))
        if self.rebuilt:
            events.append(("store.queues_rebuilt", {"queues": len(self.rebuilt), "first": self.rebuilt[0]}))
        return events


class Recovery:
    """One pass over the log that brings the queues up to it."""

    def __init__(
        self,
        storage: Storage,
        log: StoredFile,
        queue_of: Callable[[str, int], ConsumeQueue],
        wanted: Callable[[StoredMessage], bool],
        tags_code: Callable[[StoredMessage], int],
        *,
        whole: bool = False,
    ) -> None:
        """`queue_of` makes a queue that does not exist; `wanted` says whether a record's topic exists, in this life."""
        self._storage = storage
        self._log = log
        self._queue_of = queue_of
        self._wanted = wanted
        self._tags_code = tags_code
        self._room = 0  # records that the damage seen so far may have held
        self._whole = whole  # the log is read from its start, and files of queues do not count
        self._broken: set[Key] = set()
        self._taken: dict[Key, Part] = {}  # queues of which a record was taken -> the first of them
        self._alone: set[Key] = set()  # those of which only one was
        self._odd: dict[Key, Part] = {}  # records whose offset nothing explains yet
        self.found = Found()
        self.suspects: set[Key] = set()
        """Queues whose next record was not the next one, for no reason in the log: their files are wrong."""

    def run(self, begin: int, broken: set[Key]) -> Found:
        """Bring all queues up to the log's end, the broken ones from its start. Cuts a torn tail off.

        Raises UsageError, and then nothing was changed, when the log holds no record at all although it is not empty.
        """
        self._broken = broken
        self._whole = begin == self._log.start
        damage: list[Part] = []
        for part in LogScan(self._log, self._log.start if broken else begin, self._believe):
            if part.message is not None:
                if part.position >= begin or self._key(part.message) in broken:
                    self.take(part)
            elif part.kind is Kind.DAMAGE:
                damage.append(part)
                self.make_room(part)
            else:
                self._cut(part)
        self.end()
        if (self._whole or broken) and not self.found.records and self._is_foreign(damage):
            raise UsageError(
                "the commit log in the broker's data folder holds no record that can be read: it was written by something "
                "else, or is encrypted. Nothing was changed; use another folder"
            )
        for part in damage:
            self._set_aside(part)
        for key in broken - self._taken.keys():  # no record of it is left
            queue = self._queue_of(*key)
            queue.restart_at(queue.max_offset)
        self.found.rebuilt = sorted(broken)
        return self.found

    def _is_foreign(self, damage: list[Part]) -> bool:
        """Whether a log without a single record was written by something else: it is large, or of another version."""
        version = int.from_bytes(self._log.read(self._log.start, 8)[4:8], "big", signed=True)
        later = version & ~0xFF == MAGIC_V1 & ~0xFF and version not in (MAGIC_V1, MAGIC_V2)
        return later or sum(part.length_bytes for part in damage) > FOREIGN_MIN_BYTES

    def _is_anew(self, key: Key) -> bool:
        """Whether the next record of the queue is its first in this pass, and what its file says does not count."""
        return (self._whole or key in self._broken) and key not in self._taken

    @staticmethod
    def _key(message: StoredMessage) -> Key:
        return message.topic, message.queue_id

    def _believe(self, message: StoredMessage) -> bool:
        """Whether the first record after damage can be one: its offset must not fall, except in a topic's new life."""
        if not self._wanted(message) or self._is_anew(self._key(message)) or message.queue_offset == 0:
            return True
        return message.queue_offset >= self._queue_of(message.topic, message.queue_id).max_offset

    def make_room(self, part: Part) -> None:
        """A damaged part was passed: so many records may be missing now."""
        self._room += max(part.length_bytes // RECORD_MIN_BYTES, 1)

    def take(self, part: Part) -> None:
        """Put a record into its queue, or wait for the next one of the queue to say whether its offset is right."""
        message = part.message
        assert message is not None
        self.found.records += 1
        if not self._wanted(message) or message.sysflag & SYSFLAG_TRANSACTION_MASK in _NOT_IN_QUEUES:
            return
        key = self._key(message)
        queue = self._queue_of(*key)
        offset = message.queue_offset
        if self._is_anew(key):
            if self._log.start:
                queue.restart_at(offset)
            else:  # nothing of the log was ever dropped, so each queue begins at 0
                queue.restart_at(0)
        missing = offset - queue.max_offset
        odd = self._odd.get(key)
        if (missing < 0 and offset == 0) or 0 <= missing <= min(self._room, MISSING_MAX):
            self._put(queue, part)
        elif missing > 0 and not self._whole and key not in self._broken:
            self.suspects.add(key)
        elif odd is not None and odd.message is not None and odd.message.queue_offset + 1 == offset:
            self._believe_both(queue, odd, part)
        else:
            if odd is not None:
                self._set_aside(odd)
            self._odd[key] = part

    def _put(self, queue: ConsumeQueue, part: Part) -> None:
        message = part.message
        assert message is not None
        key = self._key(message)
        missing = message.queue_offset - queue.max_offset
        if missing < 0:  # a new life of the topic
            queue.restart_at(message.queue_offset)
        elif missing:
            self._room = max(self._room - missing, 0)
            self.found.missing_offsets += missing
            queue.append_missing(part.position, missing)
        self._alone.discard(key)
        if key not in self._taken:
            self._taken[key] = part
            self._alone.add(key)
        queue.append(part.position, part.length_bytes, self._tags_code(message))

    def _believe_both(self, queue: ConsumeQueue, odd: Part, part: Part) -> None:
        """Two records in a row agree, and nothing explains them: a gap, or the one record before them was wrong."""
        assert odd.message is not None
        key = self._key(odd.message)
        del self._odd[key]
        missing = odd.message.queue_offset - queue.max_offset
        if missing > MISSING_MAX and key not in self._taken:
            queue.restart_at(odd.message.queue_offset)
        elif missing < 0 and key in self._alone:
            self._set_aside(self._taken[key])
        elif not 0 <= missing <= MISSING_MAX:
            self._set_aside(odd)
            self._odd[key] = part
            return
        self._put(queue, odd)
        self._put(queue, part)

    def end(self) -> None:
        """No record follows: what nothing has explained is damage."""
        for part in self._odd.values():
            self._set_aside(part)
        self._odd.clear()

    def _cut(self, part: Part) -> None:
        if part.kind is Kind.TORN:
            self.found.torn_bytes += part.length_bytes
        self._log.truncate(part.position)

    def _set_aside(self, part: Part) -> None:
        self.found.damaged_ranges += 1
        self.found.damaged_bytes += part.length_bytes
        if part.message is not None:
            self._room += 1
        self._storage.set_aside(f"{part.position}-{part.length_bytes}", self._parts(part))

    def _parts(self, part: Part) -> Iterator[bytes]:
        end = part.position + part.length_bytes
        for position in range(part.position, end, CHUNK_BYTES):
            yield self._log.read(position, min(CHUNK_BYTES, end - position))


class Rebuild:
    """One queue made anew from the log, step by step, while the broker serves the others.

    Nothing is stored in the queue meanwhile. The entries are collected in memory (20 bytes each) and put in place at the end.
    """

    def __init__(
        self,
        storage: Storage,
        log: StoredFile,
        key: Key,
        wanted: Callable[[StoredMessage], bool],
        tags_code: Callable[[StoredMessage], int],
    ) -> None:
        self._made = ConsumeQueue(MemoryFile(SEGMENT_BYTES, buffered=False), *key)
        self._key = key
        self._recovery = Recovery(storage, log, self._made_queue, wanted, tags_code, whole=True)
        self._scan = LogScan(log, log.start, lambda _: True)
        self._parts = iter(self._scan)
        self._count = 0

    def _made_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        assert (topic, queue_id) == self._key
        return self._made

    def step(self, bytes_max: int) -> bool:
        """Read at most so many bytes of the log more; True when all is read."""
        until = self._scan.position + bytes_max
        for part in self._parts:
            if part.kind is Kind.DAMAGE:
                self._recovery.make_room(part)
            elif part.message is not None and (part.message.topic, part.message.queue_id) == self._key:
                self._recovery.take(part)
                self._count += 1
            if self._scan.position >= until:
                return False
        self._recovery.end()
        return True

    def finish(self, queue: ConsumeQueue) -> None:
        """Put the entries in place of those of `queue`; one without records goes on counting."""
        if not self._count:
            queue.restart_at(queue.max_offset)
            return
        first = self._made.file_start
        queue.restart_at(first)
        for offset in range(first, self._made.max_offset, STEP_ENTRIES):
            queue.append_entries(self._made.entries(offset, STEP_ENTRIES))
        queue.flush()


__all__ = ["Found", "Rebuild", "Recovery"]
