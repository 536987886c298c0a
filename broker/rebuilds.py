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
from contextlib import suppress

from ..remoting.errors import ProtocolError
from ..remoting.stored import RECORD_MIN_BYTES, StoredMessage, decode_message, is_inner_batch
from .consume_queue import ENTRY_BYTES, FILLER_CODE, SEGMENT_BYTES, ConsumeQueue, Entry
from .log_scan import Kind, LogScan, Part
from .readable_log import PIECE_BYTES, TRIED_MAX, ReadableLog, UnreadablePlaces
from .record_heads import HEAD_BYTES, Named, in_log, is_head, named_at
from .recovery import MISSING_MAX, Found, Key, Recovery
from .storage import MemoryFile, Storage, StorageError, StoredFile

STEP_PARTS = 2_000  # of the log, in one step: some 60 ms
STEP_ENTRIES = 10_000
PAUSE_STEPS = 60  # of `Rebuilds.rest`: a minute
OLD_STEP_ENTRIES = 1_000  # old entries for which the log gives no record, in one step
OLD_MAX, OLD_MAX_BYTES = 2_000, 16 << 20  # of those, how many records are read, and how much: some 100 ms
_MISSING: Entry = (0, 0, FILLER_CODE)


class Rebuild:
    """One of them: reads the log, collects old entries, asks whether what could not be read is bad for good, sets aside what
    is damaged, all in short steps; and then replaces the queue's file, all at once."""

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
        self._kept: dict[int, Entry] = {}  # old entries, by their offsets
        self._closing: Iterator[None] | None = None

    def _made_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        assert (topic, queue_id) == self.key
        return self._made

    def step(self, bytes_max: int, queue: ConsumeQueue, end: int) -> bool:
        """Do a little of what comes before `finish`; True when all is done. `end` is that of the queue. Raises StorageError,
        also when what the log gave was an outage of the disk."""
        if self._closing is None:
            if not self._read(bytes_max, end):
                return False
            self._closing = self._close(queue)
        for _ in self._closing:
            return False
        return True

    def _close(self, queue: ConsumeQueue) -> Iterator[None]:
        """What follows when the log is read. What is damaged is set aside."""
        yield from self._keep(queue)
        yield from self._readable.confirming()
        for number, part in enumerate(self._damage):
            if number:
                yield
            self._recovery.set_aside(part)

    def _read(self, bytes_max: int, end: int) -> bool:
        """Read at most so many bytes of the log more, fewer where records are small or reads fail; True when all is read."""
        until = self._scan.position + bytes_max
        unreadable_max = len(self._readable.unreadable) + TRIED_MAX
        for count, part in enumerate(self._parts, 1):
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
            tried = len(self._readable.unreadable)
            if self._scan.position >= until or count >= STEP_PARTS or tried >= unreadable_max:
                return False
        self._recovery.end()
        return True

    @property
    def unread(self) -> frozenset[int]:
        """Numbers of the log's pieces that could not be read."""
        return frozenset(self._readable.unreadable)

    @property
    def found(self) -> Found:
        return self._recovery.found

    def finish(self, queue: ConsumeQueue, end: int) -> None:
        """Put the entries, with those that were kept, in place of those of `queue`, whose end is not below `end`. Raises
        StorageError; then it is to be built anew once more."""
        made, kept = self._made, self._kept
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

    def _keep(self, queue: ConsumeQueue) -> Iterator[None]:
        """Collect the entries of `queue` for offsets of which the log gave no record, and whose records' heads say the same,
        or cannot be read; pauses after OLD_STEP_ENTRIES. Raises StorageError."""
        bytes_left, looks_left = OLD_MAX_BYTES, OLD_MAX
        at, entries = 0, list[Entry]()
        for number, (offset, next_position) in enumerate(self._missing(queue), 1):
            if number % OLD_STEP_ENTRIES == 0:
                yield
            if not queue.min_offset <= offset < queue.next_offset:
                continue
            if not at <= offset < at + len(entries):
                at, entries = offset, old_entries(queue, offset)
            position, size, _ = entry = entries[offset - at]
            if size < RECORD_MIN_BYTES or position + size > next_position or not in_log(self._log, position, size):
                continue
            if self._readable.could_read(position, size):  # else it costs no read
                if not looks_left or size > bytes_left:
                    continue
                looks_left, bytes_left = looks_left - 1, bytes_left - size
            if (old := self._old(queue, offset, entry)) is not None:
                self._kept[offset] = old

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

    def _old(self, queue: ConsumeQueue, offset: int, entry: Entry) -> Entry | None:
        """The old entry, its code made anew. One that names what the disk cannot read stays as it is: whoever reads there
        passes over it (lost_places.py), and should the disk read it again, nothing was lost. Raises StorageError when the
        disk fails as a whole."""
        position, size, _ = entry
        log, record = self._readable, b""
        if log.could_read(position, size):
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


def old_entries(queue: ConsumeQueue, offset: int) -> list[Entry]:
    """Some from `offset` on. Around a place of the queue's file that cannot be read those of a page alone; there, and where
    the file was to be replaced and could not be, they have no size."""
    page_end = (offset * ENTRY_BYTES // PIECE_BYTES + 1) * PIECE_BYTES
    of_page = max(page_end // ENTRY_BYTES - offset, 1)
    for count in (OLD_STEP_ENTRIES, of_page):
        with suppress(StorageError):
            if found := queue.entries(offset, min(count, queue.next_offset - offset)):
                return found
    return [_MISSING] * of_page


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
        queue, end = queues[key], self._ends[key]
        begin = self._log.start if self._current is None else self._current.begin
        try:
            rebuild = self._current = self._current or self.make(key)
            if not rebuild.step(bytes_max, queue, end):
                return None
            self._planned[key] = False  # when this fails, it may have lost some of what it has
            rebuild.finish(queue, end)
        except StorageError:
            self._current = None
            if begin < self._log.start:  # retention took what it was to read: no trouble of the disk
                return None
            self._paused[key] = PAUSE_STEPS
            if self._planned[key]:
                del self._planned[key], self._ends[key]
            raise
        self.forget(key)
        return rebuild


__all__ = ["Rebuild", "Rebuilds", "old_entries"]
