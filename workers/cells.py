"""One cell per worker in a mapped file: which message it is about to run, since when, and that its loop moves.

The worker writes its cell before each call of the handler and clears it when the chunk is over; the supervisor reads it
while it watches the time limits, and after the worker's death. The file lies in the slot's folder, so that it also
outlives a machine-wide kill: hence the queue's name is in it too, not only numbers of this run. No lock: one writer per
word, aligned 8-byte stores, the state word last; a death between two stores blames nobody wrongly, since the handler is
not running then.

The file's pages have their place on the disk before it is mapped. A page without one is given it at its first touch, and
where the disk is full that touch is the signal BUS, which ends the process without a word: a supervisor at its start, or a
worker.

    file      16 words of header, then the cells of CELL_BYTES each
    header    word 0 MAGIC | word 1 STOPPING: not 0 = the supervisor is stopping
              word 2 COUNTS_FROM: the first chunk id of which what UNREPORTED shows counts; 0 = of none | word 3 BOOT: of the
              machine, when that was written: after a loss of power pages of different moments may be there
    word 0    STATE: queue offset of the (first) record in hand + 1; 0 = no handler call is under way; BETWEEN = several are,
              and none of them runs (steps.py): then the other words name none of them
    word 1    CHUNK_ID | 2 STARTED_NS, monotonic start of the call | 3 RECORDS given to this call | 4 PID
    word 5    LAST: queue offset of the call's last record | 6 TAKEN: of a batch that is being iterated, offset + 1 of the
              record whose message was taken last; 0 = none, or all were taken
    word 7    BEATS: turns of the worker's loop, and blocks of rows that it converted or wrote
    word 8    RSS_PEAK in bytes, as last measured by the worker itself between calls, by the supervisor in a long one (the
              only word that both write: peaks only grow)
    word 9    SOFT_NS, 10 HARD_NS: the time limits of one call, 0 = none (written once, before the first call)
    word 12   CANCEL: not 0 = the handler should end its call; written by the supervisor
    word 13   CLAIM: what the worker is going to run | 14 ASKED, 15 ANSWERED, 16 GIVEN, 17 KEPT: what the supervisor
              reclaims, see claims.py
    word 18   HELD: the first record since the last report that only the worker can report, see unreported.py
    word 19   SEAL_WANTED: not 0 = what the worker has written is to be sealed beside the call; written by the supervisor
    word 20   UNREPORTED: queue offset + 1 of the first record of the chunk that no report has, see unreported.py; 0 = none
    word 21   CALLS: how many calls of a coroutine handler are under way, every 50 ms | 22 OLDEST_NS: when the oldest began
    word 23   SOFT_RAISED: start of the call in which the soft limit's exception was raised
    word 11   TEXT_BYTES | from word 24 to 124: JSON [topic, broker, queue id] of the chunk's queue
    word 125  RECALLED: in order, of so many first dispatches nothing more is to begin; written by the supervisor
    word 126  BLOCKED_NS: since when the worker cannot write its segment (monotonic), 0 = it can | 127 BLOCKED_ERRNO: why
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from json import dumps, loads  # bound here: a handler's module may put a function of its own into `json`
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Final, NamedTuple

from ..durable.mounts import boot_id
from ..durable.versions import LaterVersionError, later_version
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .packets import QueueInfo

CELLS_FILE = "cells"
"""In the slot: what each worker is running, readable after its death."""
CELL_BYTES: Final = 1024
CELL_WORDS: Final = CELL_BYTES // 8
HEAD_WORDS: Final = 16
MAGIC: Final = int.from_bytes(b"RCCELLS7", "little")

STOPPING: Final = 1
COUNTS_FROM: Final = 2
BOOT: Final = 3
"""In the header."""

STATE: Final = 0
CHUNK_ID: Final = 1
STARTED_NS: Final = 2
RECORDS: Final = 3
PID: Final = 4
LAST: Final = 5
TAKEN: Final = 6
BEATS: Final = 7
RSS_PEAK: Final = 8
SOFT_NS: Final = 9
HARD_NS: Final = 10
TEXT_BYTES: Final = 11
CANCEL: Final = 12
CLAIM: Final = 13
ASKED: Final = 14
ANSWERED: Final = 15
GIVEN: Final = 16
KEPT: Final = 17
HELD: Final = 18
SEAL_WANTED: Final = 19
UNREPORTED: Final = 20
CALLS: Final = 21
OLDEST_NS: Final = 22
SOFT_RAISED: Final = 23
TEXT: Final = 24
RECALLED: Final = CELL_WORDS - 3
BLOCKED_NS: Final = CELL_WORDS - 2
BLOCKED_ERRNO: Final = CELL_WORDS - 1

OF_ONE_WORKER: Final = (*range(TEXT), RECALLED, BLOCKED_NS, BLOCKED_ERRNO)
"""What nobody may find in the cell who gets it after: wishes of the supervisor, too, which clears it before each start."""

BETWEEN: Final = 1 << 63
"""A state that no queue offset has."""

KEYS_OF: Final = 1 << 62
"""CHUNK_ID while the user's key function is asked: this, and the handle of the queue."""
CONSUMED_DIRECTLY: Final = 1 << 61
"""CHUNK_ID while a message is consumed because an administrator asked for it: the record is not charged with what happens."""

Place = Callable[[int, int, int], None]
CellView = memoryview
"""The words of one cell, `memoryview.cast("Q")`; index it by STATE, CHUNK_ID, ..."""


class Cell(NamedTuple):
    """The call that was under way: records `offset .. last` of the queue, `records` of them. `started_ns` is monotonic."""

    chunk_id: int
    offset: int
    last: int
    records: int
    taken: int | None
    """Of a batch: the record whose message the handler took last, None when it takes them otherwise or has all."""
    started_ns: int
    pid: int
    rss_peak_bytes: int

    @property
    def between(self) -> bool:
        """Several calls of a coroutine handler were under way, and none of them ran: the cell names none."""
        return self.offset == BETWEEN - 1


class Blocked(NamedTuple):
    """A worker that cannot write its segment, and tries it again and again."""

    since_ns: int
    """Monotonic."""
    error: str


def give_place(fd: int, offset: int, size_bytes: int) -> None:
    """Have the disk keep room for that part of a file; what is in it stays. Raises OSError where there is none."""
    if sys.platform == "darwin":
        return  # it has no such call
    try:
        os.posix_fallocate(fd, offset, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # not every file system knows it
            raise


def boot_number() -> int:
    """Which start of the machine this is, in one word; 0 where the system does not say."""
    return int(boot_id().replace("-", "")[:15] or "0", 16)


def check_layout(head: bytes, path: Path) -> bool:
    """Whether a file that begins so has this layout. Raises LaterVersionError."""
    ours = MAGIC.to_bytes(8, "little")
    if head[:7] == ours[:7] and head > ours:
        raise later_version(path, f"layout {head[7:].decode(errors='replace')}", ours[7] - ord("0"))
    return head == ours


class CellFile:
    """The supervisor's side: makes the file and reads cells."""

    def __init__(
        self, path: Path, slots: int, place: Place = give_place, boot: Callable[[], int] = boot_number
    ) -> None:  # fmt: skip
        """Open or create; existing cells are kept (a dead run's may still be wanted). `slots` >= 1; `place` as give_place,
        `boot` as boot_number.

        Raises OSError, with the path, where the disk has no room for it, and LaterVersionError.
        """
        if slots < 1:
            raise UsageError(f"cell file {path}: {slots} slots, at least 1 is needed")
        self.path = path
        self._boot = boot()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._map = self._map_file(path, slots, place)
        except OSError as error:
            os.close(self._fd)
            raise OSError(error.errno, error.strerror, str(path)) from error
        except LaterVersionError:
            os.close(self._fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._words[0] = MAGIC
        self.slots = (len(self._map) - HEAD_WORDS * 8) // CELL_BYTES

    def _map_file(self, path: Path, slots: int, place: Place) -> mmap.mmap:
        if not check_layout(os.pread(self._fd, 8, 0), path):
            os.ftruncate(self._fd, 0)  # new, or of an earlier layout: there is nothing to be read in it
        size = max(slots * CELL_BYTES + HEAD_WORDS * 8, os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, size)
        place(self._fd, 0, size)  # also in a file that is there: a copy may have holes
        return mmap.mmap(self._fd, size)

    def view(self, slot: int) -> CellView:
        """The live words of one cell; for reading."""
        base = HEAD_WORDS + slot * CELL_WORDS
        return self._words[base : base + CELL_WORDS]

    @property
    def stopping(self) -> bool:
        """The run is stopping: a worker that is killed from now on, with all that it has in hand, was to end anyway."""
        return bool(self._words[STOPPING])

    @stopping.setter
    def stopping(self, begun: bool) -> None:
        self._words[STOPPING] = begun

    @property
    def counts_from(self) -> int:
        """Of chunks with lower ids the journal is told nothing of what the cells show: it has forgotten what was finished, or
        their assignment has ended. 0 = no chunk counts, as after a loss of power."""
        return self._words[COUNTS_FROM] if self._words[BOOT] == self._boot else 0

    @counts_from.setter
    def counts_from(self, chunk_id: int) -> None:
        self._words[COUNTS_FROM] = chunk_id if self._boot else 0
        self._words[BOOT] = self._boot

    def cancel(self, slot: int) -> None:
        """Let the handler know, when it asks, that its worker is wanted to end."""
        self._words[HEAD_WORDS + slot * CELL_WORDS + CANCEL] = 1

    def want_seal(self, slot: int) -> bool:
        """Let the worker seal beside its call. False: no call is under way, it reads its packets."""
        words = self.view(slot)
        if words[STATE] in (0, BETWEEN) or not words[HELD]:
            return False
        words[SEAL_WANTED] = 1
        return True

    def read(self, slot: int) -> Cell | None:
        """The call under way in `slot`, None when there is none."""
        words = self.view(slot)
        if not words[STATE]:
            return None
        taken = words[TAKEN] - 1 if words[TAKEN] else None
        return Cell(
            words[CHUNK_ID], words[STATE] - 1, words[LAST] if words[RECORDS] > 1 else words[STATE] - 1, words[RECORDS],
            taken, words[STARTED_NS], words[PID], words[RSS_PEAK],
        )  # fmt: skip

    def at_once(self, slot: int) -> tuple[int, int] | None:
        """How many calls of a coroutine handler are under way in `slot`, and when the oldest began (monotonic ns)."""
        words = self.view(slot)
        return (words[CALLS], words[OLDEST_NS]) if words[CALLS] else None

    def blocked(self, slot: int) -> Blocked | None:
        """Why the worker in `slot` cannot write its segment; None when it can."""
        words = self.view(slot)
        since_ns = words[BLOCKED_NS]
        return Blocked(since_ns, os.strerror(words[BLOCKED_ERRNO])) if since_ns else None

    def queue(self, slot: int) -> MessageQueue | None:
        """Which queue the chunk of that cell is of; None when it does not say (or cannot be read)."""
        words = self.view(slot)
        text = bytes(words[TEXT:])[: words[TEXT_BYTES]]
        try:
            topic, broker, queue_id = loads(text)
            return MessageQueue(str(topic), str(broker), int(queue_id))
        except (ValueError, TypeError):
            return None

    def clear(self, slot: int) -> None:
        """Forget it, before a new worker gets the slot."""
        words = self.view(slot)
        for word in OF_ONE_WORKER:
            words[word] = 0

    def close(self) -> None:
        """Unmap and close; the file stays."""
        self._words.release()
        self._map.close()
        os.close(self._fd)


def map_cell(path: Path, slot: int, pid: int) -> CellView:
    """The worker's side: its own cell, with its pid written. It was cleared before: what is wished since then holds.

    Raises UsageError when the file has no such slot."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        slots = (size - HEAD_WORDS * 8) // CELL_BYTES
        if not 0 <= slot < slots:
            raise UsageError(f"cell file {path} has {slots} cells, slot {slot} is not one of them")
        mapped = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    base = HEAD_WORDS + slot * CELL_WORDS
    cell = memoryview(mapped).cast("Q")[base : base + CELL_WORDS]
    cell[PID] = pid
    return cell


def private_cell() -> CellView:
    """A cell that nobody reads, for workers without a cell file."""
    return memoryview(bytearray(CELL_BYTES)).cast("Q")


def queue_words(topic: str, broker_name: str, queue_id: int) -> tuple[memoryview, int]:
    """The text part of a cell for a queue, in whole words, and its bytes. A name too long for it is left out."""
    text = dumps([topic, broker_name, queue_id], separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > (RECALLED - TEXT) * 8:
        text = b""
    padded = text.ljust(-(-len(text) // 8) * 8)
    return memoryview(padded).cast("Q"), len(text)


RSS_EVERY_NS: Final = 50_000_000
"""How often the peak of resident memory is noted, between chunks: a system call of about a microsecond."""
RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


class Naming:
    """Writes what a worker is about into its own cell: the queue, a single record, and its memory.

    All of it is written while no call is under way, or before one starts. `clock` is monotonic, in ns.
    """

    def __init__(self, cell: CellView, clock: Callable[[], int]) -> None:
        self._cell = cell
        self._clock = clock
        self._queue: QueueInfo | None = None
        """The queue that the cell names."""
        self._texts: dict[QueueInfo, tuple[memoryview, int]] = {}
        """How the cell names each queue; as many as the worker has seen, as with their handles."""
        self._rss_due_ns = 0

    def chunk(self, chunk_id: int, queue: QueueInfo) -> None:
        """A chunk starts; no message is in hand."""
        self._cell[UNREPORTED] = 0
        self._cell[CHUNK_ID] = chunk_id
        self.queue(queue)
        self.memory()

    def queue(self, queue: QueueInfo) -> None:
        """Name the queue."""
        if queue is self._queue:
            return
        self._queue = queue
        text = self._texts.get(queue)
        if text is None:
            text = self._texts[queue] = queue_words(queue.topic, queue.broker_name, queue.queue_id)
        words, size = text
        self._cell[TEXT : TEXT + len(words)] = words
        self._cell[TEXT_BYTES] = size

    def record(self, offset: int) -> None:
        """The user's code is about to look at this one, outside of a call of the handler: a filter, a key function."""
        cell = self._cell
        cell[STARTED_NS] = self._clock()
        cell[RECORDS] = 1
        cell[TAKEN] = 0
        cell[STATE] = offset + 1

    def memory(self) -> None:
        """Note the peak of resident memory, now and then."""
        now = self._clock()
        if now >= self._rss_due_ns:
            self._rss_due_ns = now + RSS_EVERY_NS
            self._cell[RSS_PEAK] = getrusage(RUSAGE_SELF).ru_maxrss * RSS_UNIT
