"""One cell per worker in a mapped file: which message it is about to run.

The worker writes its cell before each call of the handler and clears it when the chunk is over; the supervisor reads it
after the worker's death. The file lies in the slot's folder, so that it also outlives a machine-wide kill. No lock: one
writer per cell, aligned 8-byte stores, the state word last; a death between two stores blames nobody wrongly, since the
handler is not running then.

    word 0 state: position of the record in its chunk + 1, 0 = no handler call is under way
    word 1 chunk id | word 2 monotonic start of the call (ns) | word 3 records given to this call | word 4 pid
    words 5-7 free
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

from ..remoting.errors import UsageError

CELL_BYTES: Final = 64
STATE: Final = 0
CHUNK_ID: Final = 1
STARTED_NS: Final = 2
RECORDS: Final = 3
PID: Final = 4

CellView = memoryview
"""Eight words, `memoryview.cast("Q")`; index it by STATE, CHUNK_ID, ..."""


class Cell(NamedTuple):
    """The call that was under way: records `position .. position+records-1` of the chunk. `started_ns` is monotonic."""

    chunk_id: int
    position: int
    records: int
    started_ns: int
    pid: int


class CellFile:
    """The supervisor's side: makes the file and reads cells."""

    def __init__(self, path: Path, slots: int) -> None:
        """Open or create; existing cells are kept (a dead run's may still be wanted). `slots` >= 1."""
        if slots < 1:
            raise UsageError(f"cell file {path}: {slots} slots, at least 1 is needed")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = max(slots * CELL_BYTES, os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self._words = memoryview(self._map).cast("Q")
        self.slots = size // CELL_BYTES

    def read(self, slot: int) -> Cell | None:
        """The call under way in `slot`, None when there is none."""
        base = slot * 8
        words = self._words[base : base + 8]
        if not words[STATE]:
            return None
        return Cell(words[CHUNK_ID], words[STATE] - 1, words[RECORDS], words[STARTED_NS], words[PID])

    def clear(self, slot: int) -> None:
        """Forget it, before a new worker gets the slot."""
        base = slot * 8
        for word in range(8):
            self._words[base + word] = 0

    def close(self) -> None:
        """Unmap and close; the file stays."""
        self._words.release()
        self._map.close()
        os.close(self._fd)


def map_cell(path: Path, slot: int, pid: int) -> CellView:
    """The worker's side: its own cell, with its pid written. Raises UsageError when the file has no such slot."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if not 0 <= slot < size // CELL_BYTES:
            raise UsageError(f"cell file {path} has {size // CELL_BYTES} cells, slot {slot} is not one of them")
        mapped = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    cell = memoryview(mapped).cast("Q")[slot * 8 : slot * 8 + 8]
    cell[STATE] = 0
    cell[PID] = pid
    return cell


def private_cell() -> CellView:
    """A cell that nobody reads, for workers without a cell file."""
    return memoryview(bytearray(CELL_BYTES)).cast("Q")
