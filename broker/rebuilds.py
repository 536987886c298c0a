"""Queues that are built anew from the log, step by step, while the broker serves the others.

Nothing is stored in such a queue meanwhile. Its entries are collected in memory (20 bytes each) and put in place at the end.

- An offset that was given is not given again: a group that has read it would never get the second message. So the queue goes
  on counting from where it was, whatever is damaged at its end. A record far beyond its end has a damaged head, and is set
  aside.
- Where the log gives no record for an offset, the old entry stays if the head of its record says the same: only the body is
  damaged then, and who reads it sees that. It stays too where the record cannot be read, and lies where it should. All others
  get fillers, whose positions are those of the entry before; the queue begins at the first that is none.
- A rebuild fails when the disk does as a whole (readable_log.py), and is tried again after PAUSE_STEPS. Until then a queue
  that was planned in doubt, as by the slow check, serves what it has; one that a read found wrong is refused, and so is one
  whose file could not be replaced at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from ..remoting.errors import ProtocolError
from ..remoting.stored import RECORD_MIN_BYTES, StoredMessage, decode_message, is_inner_batch
from .consume_queue import FILLER_CODE, SEGMENT_BYTES, ConsumeQueue, Entry
from .log_scan import Kind, LogScan, Part
from .readable_log import ReadableLog, UnreadablePlaces
from .record_heads import HEAD_BYTES, Named, in_log, is_head, named_at
from .recovery import MISSING_MAX, Found, Key, Recovery
from .storage import MemoryFile, Storage, StorageError, StoredFile

STEP_ENTRIES = 10_000
PAUSE_STEPS = 60  # of `Rebuilds.rest`: a minute
OLD_UNREAD_MAX = 100_000  # old entries for which the log gives no record, most of which cannot be read
OLD_MAX, OLD_MAX_BYTES = 2_000, 16 << 20  # old entries that are looked at, and their records: some 100 ms
_MISSING: Entry = (0, 0, FILLER_CODE)


class Rebuild:
    """One of them."""

    def __init__(
        self,
        storage: Storage,
        log: StoredFile,
        key: Key,
        wanted: Callable[[StoredMessage], bool],
        tags_code: Callable[[StoredMessage], int],
        places: UnreadablePlaces,
        *,
        lives_known: bool,
    ) -> None:
        self.key = key
        self.begin = log.start
        self._log = log
        self._wanted = wanted
        self._tags_code = tags_code
        self._made = ConsumeQueue(MemoryFile(SEGMENT_BYTES, buffered=False), *key)
        self._readable = ReadableLog(log, places)
        self._recovery = Recovery(
            storage, log, self._made_queue, wanted, tags_code, self._readable, lives_known=lives_known, is_fed=True
        )
        self._scan = LogScan(self._readable, self.begin, lambda _: True)
        self._parts = self._scan.steps()
        self._damage: list[Part] = []

    def _made_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        assert (topic, queue_id) == self.key
        return self._made

    def step(self, bytes_max: int, end: int) -> bool:
        """Read at most so many bytes of the log more; True when all is read. `end` is that of the queue. Raises
        StorageError."""
        until = self._scan.position + bytes_max
        for part in self._parts:
            if part is None:
                return False
            if part.kind is Kind.DAMAGE:
                self._recovery.make_room(part)
                self._damage.append(part)
            elif part.message is not None and (part.message.topic, part.message.queue_id) == self.key:
                if part.message.queue_offset >= end + MISSING_MAX and self._wanted(part.message):
                    self._recovery.set_aside(part)  # nothing was stored in the queue since
                else:
                    self._recovery.take(part)
            if self._scan.position >= until:
                return False
        self._recovery.end()
        return True

    @property
    def found(self) -> Found:
        return self._recovery.found

    def finish(self, queue: ConsumeQueue, end: int, kept: Mapping[int, Entry]) -> None:
        """Put the entries, with those `kept`, in place of those of `queue`, whose end is not below `end`. Raises
        StorageError; then it is to be built anew once more."""
        made = self._made
        made_begin = [] if made.next_offset == made.file_start else [made.file_start]
        end = max(made.next_offset, end)
        first = min([*kept, *made_begin], default=end)
        position = floor = min([entry[0] for entry in [*kept.values(), *map(made.entry, made_begin)]], default=0)
        missing = max(first - queue.min_offset, 0)
        queue.restart_at(first)
        for begin in range(first, end, STEP_ENTRIES):
            entries = self._made_entries(begin, min(STEP_ENTRIES, end - begin))
            for number, entry in enumerate(entries):
                if entry[1] == 0:
                    old = kept.get(begin + number, _MISSING)
                    entries[number] = entry = old if old[1] and old[0] >= floor else (position, 0, FILLER_CODE)
                    missing += entry[1] == 0
                position, floor = entry[0], max(floor, entry[0] + entry[1])
            queue.append_entries(entries)
        self.found.missing_offsets = missing

    def _made_entries(self, begin: int, count: int) -> list[Entry]:
        """So many entries from `begin` on, also before and behind those that were made."""
        made = self._made
        entries = [_MISSING] * min(max(made.file_start - begin, 0), count)
        at = begin + len(entries)
        if at < made.next_offset:
            entries += made.entries(at, count - len(entries))
        return entries + [_MISSING] * (count - len(entries))

    def kept(self, queue: ConsumeQueue) -> dict[int, Entry]:
        """Entries of `queue` for offsets of which the log gave no record, and whose records' heads say the same. What is
        damaged is set aside. Raises StorageError, also when what the log gave was an outage of the disk."""
        kept: dict[int, Entry] = {}
        bytes_left, looks_left = OLD_MAX_BYTES, OLD_MAX
        for offset, next_position in islice(self._missing(queue), OLD_UNREAD_MAX):
            entry = self._old(queue, offset, bytes_left) if queue.min_offset <= offset < queue.next_offset else None
            if entry is not None and entry[0] + entry[1] <= next_position:
                kept[offset] = entry
            if entry is None or self._readable.could_read(*entry[:2]):
                bytes_left -= entry[1] if entry is not None else 0
                looks_left -= 1
            if not looks_left:
                break
        self._readable.confirm()
        for part in self._damage:
            self._recovery.set_aside(part)
        return kept

    def _missing(self, queue: ConsumeQueue) -> Iterator[tuple[int, int]]:
        """Each offset without a record, and the position before which that was."""
        made = self._made
        for begin in range(made.file_start, made.next_offset, STEP_ENTRIES) if self.found.missing_offsets else ():
            for offset, (position, size, _) in enumerate(made.entries(begin, STEP_ENTRIES), begin):
                if size == 0:
                    yield offset, position
        for offset in range(max(made.next_offset, queue.min_offset), queue.next_offset):
            yield offset, self._log.end
        for offset in range(queue.min_offset, min(made.file_start, queue.next_offset)):
            yield offset, made.entry(made.file_start)[0] if made.file_start < made.next_offset else self._log.end

    def _old(self, queue: ConsumeQueue, offset: int, bytes_max: int) -> Entry | None:
        """The old entry, its code made anew. One that names what the disk cannot read stays as it is: whoever reads there
        passes over it (lost_places.py), and should the disk read it again, nothing was lost. Raises StorageError when the
        disk fails as a whole."""
        try:
            position, size, _ = entry = queue.entry(offset)
        except StorageError:
            return None
        log = self._readable
        if not RECORD_MIN_BYTES <= size <= bytes_max or not in_log(log, position, size):
            return None
        is_named = named_at(log, position) == Named(*self.key, offset, size)
        if not is_named and log.could_read(position, size):
            return None
        record = log.read(position, size)
        if not log.could_read(position, size):
            is_other = log.could_read(position, HEAD_BYTES) and not is_head(
                log, queue.queue_id, (offset, position, size)
            )
            return None if is_other else entry
        try:
            message = decode_message(record, check_crc=False)
        except ProtocolError:
            return None
        if is_inner_batch(message.sysflag):  # a damaged sysFlag: who reads that could read nothing after it
            return None
        return position, size, self._tags_code(message)


class Rebuilds:
    """Which queues are to be built anew, and how far the first of them is."""

    def __init__(self, log: StoredFile) -> None:
        self._log = log
        self.make: Callable[[Key], Rebuild] | None = None
        """Set when it is known which records count."""
        self._planned: dict[Key, bool] = {}  # whether the queue may go on as it is when this fails
        self._ends: dict[Key, int] = {}  # where each ended when it was planned; one that failed half-way ends earlier
        self._paused: dict[Key, int] = {}  # those that failed: steps until they may be tried again
        self._current: Rebuild | None = None

    def __bool__(self) -> bool:
        return bool(self._planned)

    def __contains__(self, key: Key) -> bool:
        return key in self._planned

    @property
    def is_due(self) -> bool:
        """Whether `step` has something to do."""
        return self._next_key() is not None

    def _next_key(self) -> Key | None:
        if self._current is not None:
            return self._current.key
        return next((key for key in self._planned if key not in self._paused), None)

    def plan(self, queue: ConsumeQueue, *, in_doubt: bool = False) -> None:
        """With `in_doubt`, the queue can be read as well as before when it cannot be built anew."""
        key = queue.topic, queue.queue_id
        if not in_doubt or key not in self._paused:
            self._ends[key] = max(queue.next_offset, self._ends.get(key, 0))
            self._planned[key] = self._planned.get(key, True) and in_doubt

    def forget(self, key: Key) -> None:
        self._planned.pop(key, None)
        self._ends.pop(key, None)
        self._paused.pop(key, None)
        if self._current is not None and self._current.key == key:
            self._current = None

    def rest(self) -> None:
        """Time passed for those that failed."""
        self._paused = {key: steps - 1 for key, steps in self._paused.items() if steps > 1}

    def step(self, bytes_max: int, queues: Mapping[Key, ConsumeQueue]) -> Rebuild | None:
        """Read a little further; returns what is finished. Raises StorageError."""
        key = self._next_key()
        if key is None:
            return None
        assert self.make is not None, "recovery comes first"
        rebuild = self._current = self._current or self.make(key)
        queue, end = queues[key], self._ends[key]
        try:
            if not rebuild.step(bytes_max, end):
                return None
            kept = rebuild.kept(queue)
            self._planned[key] = False  # when this fails, it may have lost some of what it has
            rebuild.finish(queue, end, kept)
        except StorageError:
            self._current = None
            if rebuild.begin < self._log.start:  # retention took what it was to read: no trouble of the disk
                return None
            self._paused[key] = PAUSE_STEPS
            if self._planned[key]:
                del self._planned[key], self._ends[key]
            raise
        self.forget(key)
        return rebuild


__all__ = ["Rebuild", "Rebuilds"]
