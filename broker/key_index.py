"""Messages by key: RocketMQ's index files (ST/index/{IndexFile,IndexHeader,IndexService}.java).

    40 bytes  begin and end store time, begin and end position (8 each), slots in use, entries + 1 (4 each)
    4 each    slots: the newest entry whose hash falls there, 0 for none
    20 each   entries from number 1 on: hash (4), position (8), seconds after the begin time (4), the slot's entry before (4)

The hash is Java's of "topic#key", of the unique key and of each of KEYS. A file is named by the time it was made.

Rules:
- The index says where to look, never what is there: whoever asks reads the record and compares. So a wrong index costs time
  and hides at most what it lacks; it is made anew from the log, in steps, and is no reason to refuse anything.
- What was put waits in memory, up to BATCH_MAX messages, and is found there too. A batch is written entries first, header
  last, in the order of the log: after a kill the same entries are written again to the same places.
- After a crash of the machine nobody knows which pages were kept: the caller says so, and all is made anew.
- A page of a file that the disk cannot read hides what is found by that page, and nothing else: when a batch cannot be
  written for it, the file is closed and a new one takes the batch and what follows.
- What the disk cannot read of the log must be confirmed (`ReadableLog.confirm`) before anything read after it is written:
  nobody reads the log before the last written record again, and an outage would leave messages out for good. In the midst
  of a long run of bad pages the rest of the run looks like an outage. So `catch_up` confirms at the end of a run, which is
  a step that finds no new bad page, or when UNCONFIRMED_MAX_BYTES of records wait for it. No page is asked for twice, and
  only a few in one step, as each may take the disk seconds; nothing more is read of the log meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, islice
from struct import Struct

from ..remoting.codes import SYSFLAG_TRANSACTION_MASK, SYSFLAG_TRANSACTION_ROLLBACK
from ..remoting.hashing import java_hash
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, find_property
from ..remoting.stored import StoredMessage
from .log_scan import LogScan, Part
from .readable_log import (
    PIECE_BYTES,
    TRIED_MAX,
    Events,
    ReadableLog,
    UnreadablePlaces,
    is_bad_place,
    is_of_a_place,
)
from .storage import PlainFile, Storage, StorageError, StoredFile

FOLDER = "index"
BATCH_MAX = 256  # messages; their keys are written in some 3 ms
SLOTS, ENTRIES_MAX = (
    5_000_000,
    20_000_000,
)  # maxHashSlotNum, maxIndexNum: a genuine broker takes files of this size only
MEMORY_SLOTS = 65_536
KEY_TAIL = 12  # of the unique keys that one producer makes only so much changes: time and counter
UNCONFIRMED_MAX_BYTES = 16 << 20  # of records, which are in memory
LOOKED_AT_MAX = 10_000  # entries that one query looks at: some 30 ms in the loop
_HEADER = Struct(">qqqqii")
_ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
_INT_MAX = 0x7FFFFFFF
_TIME_MAX_MS = 4_102_444_800_000  # the year 2100

Key = tuple[int, int, int]  # hash, position, store time

FRONT_MAX = 192  # characters: topic of 127, and the front of a unique key with an IPv6 address
_front_hash = lru_cache(maxsize=1024)(java_hash)
"""Of the fronts of unique keys, which a producer's messages share; so 1 MiB at most, whatever clients send."""


def key_hash(topic: str, key: str, *, is_unique: bool = False) -> int:
    """indexKeyHashMethod: not negative, as Math.abs of the smallest int is no number here."""
    front = f"{topic}#{key[:-KEY_TAIL]}"
    hash_of_front = _front_hash if is_unique and len(front) <= FRONT_MAX else java_hash
    value = abs(java_hash(key[-KEY_TAIL:], hash_of_front(front)))
    return value if value <= _INT_MAX else 0


def keys_of(message: StoredMessage) -> list[str]:
    """The unique key, and those that the producer gave."""
    unique, given = _unique_and_given(message)
    return unique + given


def _unique_and_given(message: StoredMessage) -> tuple[list[str], list[str]]:
    if message.sysflag & SYSFLAG_TRANSACTION_MASK == SYSFLAG_TRANSACTION_ROLLBACK:
        return [], []
    unique = find_property(message.raw_properties, PROPERTY_UNIQ_KEY.encode())
    given = find_property(message.raw_properties, PROPERTY_KEYS.encode())
    keys = [key for key in given.split(b" ") if key] if given else []
    return [unique.decode(errors="replace")] if unique else [], [key.decode(errors="replace") for key in keys]


def _hashes_of(message: StoredMessage) -> list[int]:
    unique, given = _unique_and_given(message)
    hashes = [key_hash(message.topic, key, is_unique=True) for key in unique]
    return hashes + [key_hash(message.topic, key) for key in given]


def _begin_ms(keys: list[Key]) -> int:
    """The time that a file begins with: the first store time, unless that is damaged."""
    return min(max(min(key[2] for key in keys), 0), _TIME_MAX_MS)


class _IndexFile:
    """One file; `count` is the number of the next entry."""

    def __init__(self, file: PlainFile, slots: int, entries_max: int) -> None:
        self._file = file
        self._slots = slots
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self.entries_max = entries_max
        header = file.read(0, _HEADER.size).ljust(_HEADER.size, b"\0")
        said: tuple[int, ...] = _HEADER.unpack(header)
        self.begin_ms, self.end_ms, self.begin, self.end, self._used, count = said
        self.count = max(count, 1)

    @property
    def is_sound(self) -> bool:
        return 0 <= self.begin <= self.end and self.count <= self.entries_max and 0 <= self._used <= self._slots

    @property
    def room(self) -> int:
        return self.entries_max - self.count

    @property
    def taken_bytes(self) -> int:
        return self._file.taken_bytes

    def seal(self) -> None:
        """Take no more; so until the next start, which tries again."""
        self.entries_max = self.count

    def make(self) -> None:
        self._file.make_whole(self._entries_at + self.entries_max * _ENTRY.size)

    def write(self, keys: list[Key]) -> None:
        """Add the keys, which fit and are in the order of the log. Raises StorageError."""
        if self.count == 1:
            self.begin, self.begin_ms = keys[0][1], _begin_ms(keys)
        entries: list[bytes] = []
        newest: dict[int, int] = {}
        used = 0
        for number, (hashed, position, stored_ms) in enumerate(keys, self.count):
            slot = hashed % self._slots
            before = newest.get(slot)
            if before is None:
                before = self._slot(slot)
                used += not before
            newest[slot] = number
            seconds = min(max((stored_ms - self.begin_ms) // 1000, 0), _INT_MAX)
            entries.append(_ENTRY.pack(hashed, position, seconds, before))
        self._file.write(self._entries_at + self.count * _ENTRY.size, b"".join(entries))
        for slot, number in newest.items():
            self._file.write(_HEADER.size + slot * _SLOT.size, _SLOT.pack(number))
        self.count += len(keys)
        self._used += used
        _, self.end, self.end_ms = keys[-1]
        self._file.write(0, _HEADER.pack(self.begin_ms, self.end_ms, self.begin, self.end, self._used, self.count))

    def _slot(self, slot: int) -> int:
        """The newest entry of a slot; one that the header does not count was written before a kill, as was what it names."""
        number = self._int(_HEADER.size + slot * _SLOT.size)
        while number >= self.count:
            before = self._entry(number)[3]
            number = before if before < number else 0
        return max(number, 0)

    def _int(self, at: int) -> int:
        return int.from_bytes(self._file.read(at, _SLOT.size), "big", signed=True)

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        data = self._file.read(self._entries_at + number * _ENTRY.size, _ENTRY.size)
        return _ENTRY.unpack(data.ljust(_ENTRY.size, b"\0"))

    def positions(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Positions of that hash, newest first, None for an entry of another hash or time; times are whole seconds, so one
        more on each side is looked at."""
        if self.begin_ms > end_ms + 2_000 or self.end_ms < begin_ms - 2_000:
            return
        number = self._slot(hashed % self._slots)
        while number > 0:
            found, position, seconds, before = self._entry(number)
            stored_ms = self.begin_ms + seconds * 1000
            yield position if found == hashed and begin_ms - 2_000 <= stored_ms <= end_ms + 2_000 else None
            if before >= number:
                return
            number = before


class KeyIndex:
    """All index files of a broker, and what waits to be written to them."""

    def __init__(self, storage: Storage, log: StoredFile, places: UnreadablePlaces, events: Events) -> None:
        """`places`: where what cannot be read of the log is said; `events`: where it is said of a file."""
        self._storage = storage
        self._log = log
        self._places = places
        self._events = events
        self._said: set[str] = set()  # names of files with places that cannot be read
        self._readable = ReadableLog(log, places)  # that of `catch_up`, as are these
        self._scan: LogScan | None = None
        self._parts: Iterator[Part | None] = iter(())
        self._confirming: Iterator[None] | None = None
        self._confirmed: frozenset[int] = frozenset()  # pieces that are known to be bad
        self._confirmed_at = 0  # up to here all that could not be read is
        self._size = (SLOTS, ENTRIES_MAX) if storage.has_disk else (MEMORY_SLOTS, ENTRIES_MAX)
        self._files: dict[str, _IndexFile] = {}
        self._waiting: list[StoredMessage] = []
        self._indexed = -1  # position of the last record in the files
        self._at = log.start  # up to here records are indexed, or wait; from here on they are read from the log
        self._live = False
        self._failed = False

    @property
    def covered(self) -> tuple[int, int]:
        """Position of the last record in the files, and up to where no other one has a key: a store of which few have keys
        would be read from there at each start."""
        return self._indexed, self._log.end if self._live and not self._waiting else 0

    def start(self, covered: tuple[int, int] = (-1, 0)) -> None:
        """Open what is there, as far as it can be believed; the rest is made by `catch_up`. `covered`: as it was saved, which
        says nothing of other files."""
        names = self._storage.plain_names(FOLDER)
        try:
            files = {name: _IndexFile(self._storage.open_plain(name), *self._size) for name in names}
        except StorageError as error:
            if not is_of_a_place(error):
                raise
            files = {}
        for name in [name for name, file in files.items() if file.count == 1]:  # a kill came before its first batch
            self._storage.remove_plain(name)
            names.remove(name)
            del files[name]
        last = -1
        for file in files.values():
            if not file.is_sound or file.begin < last or file.end >= self._log.end:
                files = {}
                break
            last = file.end
        if not files or not self._storage.kept_all:
            files, last = {}, -1
            for name in names:
                self._storage.remove_plain(name)
        self._files = files
        is_covered = self._storage.kept_all and covered[0] == last and covered[1] <= self._log.end
        self._at = max(last, covered[1] if is_covered else 0, self._log.start)
        self._indexed = last
        self._live = self._log.end == self._log.start

    @property
    def is_behind(self) -> bool:
        """Whether the log has records that `catch_up` must read now."""
        return not self._live and not self._failed

    def catch_up(self, bytes_max: int) -> None:
        """Read the log a little further. Raises StorageError when the disk fails as a whole, and then `flush` tries again."""
        if not self.is_behind:
            return
        try:
            if self._confirming is None:
                self._read_on(bytes_max)
            if self._confirming is not None:
                self._confirm_some(self._confirming)
        except StorageError:
            self._give_up()
            raise
        if self._is_confirmed:
            self._confirmed_at = self._at
            self._live = self._at >= self._log.end
            self._flush(BATCH_MAX)

    @property
    def _is_confirmed(self) -> bool:
        return len(self._readable.unreadable) == len(self._confirmed)

    def _confirm_some(self, confirming: Iterator[None]) -> None:
        for _ in confirming:
            return
        self._confirming, self._confirmed = None, frozenset(self._readable.unreadable)

    def _read_on(self, bytes_max: int) -> None:
        """Read a step, and begin to confirm what could not be read so far, where that is due."""
        if self._scan is None or self._scan.position != self._at:
            self._readable, self._confirmed = ReadableLog(self._log, self._places), frozenset[int]()
            self._scan = LogScan(self._readable, self._at, lambda _: True)
            self._parts = self._scan.steps()
            self._confirmed_at = self._at
        before = len(self._readable.unreadable)
        self._read(self._scan, self._at + bytes_max)
        if not self._is_confirmed and self._may_be_confirmed(before):
            self._confirming = self._readable.confirming(known=self._confirmed)

    def _may_be_confirmed(self, before: int) -> bool:
        """After a step: whether what could not be read, with `before` it so many pieces, is all of its run, or so much waits
        for it already."""
        count = len(self._readable.unreadable)
        waiting_bytes = self._at - self._confirmed_at - (count - len(self._confirmed)) * PIECE_BYTES
        return count == before or self._scan is None or waiting_bytes > UNCONFIRMED_MAX_BYTES

    def _read(self, scan: LogScan, until: int) -> None:
        unreadable_max = len(self._readable.unreadable) + TRIED_MAX
        for part in self._parts:
            if part is None:
                break
            if part.message is not None and part.position > self._indexed:
                self._waiting.append(part.message)
            if scan.position >= until or len(self._readable.unreadable) >= unreadable_max:
                break
        else:
            self._scan = None
        self._at = scan.position

    def put(self, message: StoredMessage) -> None:
        """A message was stored."""
        if self._live:
            self._waiting.append(message)
            self._flush(BATCH_MAX)

    def flush(self) -> None:
        """Write what waits; after a failure try again."""
        self._failed = False
        if self._is_confirmed:
            self._flush(1)

    def _flush(self, count_min: int) -> None:
        """Write what waits, when it is so much. Where that fails, it is read from the log again later.

        Whatever goes wrong here concerns no sender: the message is in the log.
        """
        try:
            while len(self._waiting) >= count_min:
                self._write(BATCH_MAX)
        except (StorageError, ArithmeticError, ValueError, struct.error):
            self._give_up()

    def _give_up(self) -> None:
        self._live, self._failed, self._scan, self._confirming = False, True, None, None
        self._at = max(self._indexed, self._log.start)
        self._waiting.clear()

    def _write(self, count: int) -> None:
        messages = self._waiting[:count]
        keys = [
            (hashed, message.physical_offset, message.store_timestamp_ms)
            for message in messages
            for hashed in _hashes_of(message)
        ]
        if keys:
            try:
                self._file_for(keys).write(keys)
            except StorageError as error:
                if not self._seal_last(error):
                    raise
                self._file_for(keys).write(keys)
            self._indexed = keys[-1][1]
        del self._waiting[:count]

    def _seal_last(self, error: StorageError) -> bool:
        """Whether a new file may take what the last one could not: `error` is of a place in that, and it has something."""
        name, last = next(reversed(self._files.items()), ("", None))
        if last is None or last.count == 1 or not is_bad_place(error, self._log):
            return False
        last.seal()
        self._say(name, error)
        return True

    def _say(self, name: str, error: StorageError) -> None:
        if name not in self._said:
            self._said.add(name)
            self._events.append(("store.index_unreadable", {"file": name, "reason": str(error)}))

    def _file_for(self, keys: list[Key]) -> _IndexFile:
        name, last = next(reversed(self._files.items()), ("", None))
        if last is not None and last.room >= len(keys):
            return last
        made = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=_begin_ms(keys))
        fresh = f"{FOLDER}/{made:%Y%m%d%H%M%S}{made.microsecond // 1000:03d}"
        if fresh <= name:  # two in one millisecond
            fresh = f"{FOLDER}/{int(name.rpartition('/')[2]) + 1}"
        file = _IndexFile(self._storage.open_plain(fresh), *self._size)
        file.make()
        self._files[fresh] = file
        return file

    def drop_before(self, position: int) -> None:
        """The log begins at `position` now: remove the files all of whose records are below it; the last one stays."""
        self._at = max(self._at, position)
        for name in self._files.keys() - self._names_from(position):
            self._storage.remove_plain(name)
            del self._files[name]
            self._said.discard(name)

    def taken_bytes(self, position: int) -> int:
        """Room that the files would take on the disk if the log began at `position`."""
        return sum(self._files[name].taken_bytes for name in self._names_from(position))

    def _names_from(self, position: int) -> list[str]:
        """The files with records at or above `position`, and the last one."""
        last = next(reversed(self._files), "")
        return [name for name, file in self._files.items() if file.end >= position or name == last]

    def positions(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Where messages of that topic and key may be, newest first; of a long chain the newest LOOKED_AT_MAX entries."""
        for message in reversed(self._waiting):
            if message.topic == topic and key in keys_of(message):
                yield message.physical_offset
        hashed = key_hash(topic, key)
        chains = (self._chain(name, hashed, begin_ms, end_ms) for name in reversed(self._files))
        for position in islice(chain.from_iterable(chains), LOOKED_AT_MAX):
            if position is not None:
                yield position

    def _chain(self, name: str, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """What one file has, up to a place of it that cannot be read."""
        try:
            yield from self._files[name].positions(hashed, begin_ms, end_ms)
        except StorageError as error:
            if not is_bad_place(error, self._log):
                raise
            self._say(name, error)


__all__ = ["KeyIndex", "key_hash", "keys_of"]
