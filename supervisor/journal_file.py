"""The journal on disk: appends the blocks that journal.py makes, and rewrites itself when it grew too large.

Writes go to the page cache without fsync: a kill of any process loses nothing that was written, and a power loss costs
repeats only (what the journal forgot runs again, and the table drops rows that it has). The exception is an offset that
went back: it is fsynced, and so is the name of a file that was rewritten before, or a loss of power would undo a reset. A
rewrite is made beside the file, fsynced and renamed, so that there is a whole journal at every instant.

Nothing is appended after a write that failed (disk full): half a block may be there, which ends every reading, and names
that only the lost block has. The next write is a rewrite of the whole state instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from ..durable.files import sync_path
from .core.actions import JournalCommitted
from .core.journal import MAGIC, Entry, JournalEncoder, JournalState, replay, snapshot

Write = Callable[[int, memoryview], int]
"""As os.write: descriptor and bytes; how many were taken."""

log = structlog.get_logger("rocketcrew.journal")


def read_journal(path: Path) -> JournalState:
    """What the file knows; an absent one is empty. Raises JournalError for a file that is no journal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return JournalState()
    state, whole = replay(data, str(path))
    if whole < len(data):
        log.warning("journal_cut_short", file=str(path), read_bytes=whole, lost_bytes=len(data) - whole,
                    effect="messages whose end is noted only in the lost part run again")  # fmt: skip
    return state


def keep_journal(path: Path, state: JournalState) -> None:
    """Replace the file by one that holds `state`; it is on disk when this returns. Raises OSError."""
    os.close(_replace(path, snapshot(state)[0], os.write))
    sync_path(path.parent)


def _replace(path: Path, data: bytes, write: Write) -> int:
    """Write a new file beside `path`, fsync it, rename it; its descriptor. Raises OSError; the old one stays then, alone: a
    disk that is full is not filled with drafts."""
    beside = path.with_suffix(".new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write_all(fd, data, write)
        os.fsync(fd)
        os.rename(beside, path)
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    return fd


def _write_all(fd: int, data: bytes, write: Write) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


class JournalFile:
    """One open journal, owned by the supervisor's loop. It is rewritten above half of `bytes_max`, or above twice what the
    last rewrite wrote, where that is more: only a state of more than half of `bytes_max` makes it larger."""

    def __init__(
        self, path: Path, state: JournalState, bytes_max: int, *, write: Write = os.write,
        forgets: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Begin a new file that holds `state`; what stood there before is replaced in one rename. `forgets` is called before
        an entry is written by which an assignment begins, or what was finished is forgotten."""
        self._path = path
        self._write = write
        self._forgets = forgets
        self._bytes_max = bytes_max
        self.state = state
        self.rewrites = -1
        self._fd = -1
        self._encoder = JournalEncoder()
        self._size = 0
        self._torn = False
        self._named = False
        """The file's name is on the disk: a rewrite renames, and waits for nothing."""
        self._went_back = False
        """An offset went back, and that is not on the disk yet: the call that brought it may have failed."""
        self._rewrite()

    def append(self, entries: Sequence[Entry]) -> None:
        """Write them. Raises OSError (disk full): the state in memory has the entries all the same, and the next call
        tries to write all of it, whatever it brings."""
        entries = [entry for entry in entries if not self.state.is_known(entry)]
        failed_before = self._torn or self._went_back or self._size > self._threshold
        if not entries and not failed_before:
            return
        begins = False
        for entry in entries:
            self._went_back |= self.state.apply(entry)
            begins |= isinstance(entry, JournalCommitted) and entry.start == entry.offset
        if self._went_back or begins:
            self._forgets()
        if self._torn:
            self._rewrite()
            self._sync_back()
            return
        block = self._encoder.blocks(entries)
        self._size += len(block)
        self._torn = True
        _write_all(self._fd, block, self._write)
        self._sync_back()
        self._torn = False
        if self._size > self._threshold:
            self._rewrite()

    def _sync_back(self) -> None:
        """An offset that went back is on the disk, and by the name under which the journal is looked for."""
        if self._went_back:
            os.fsync(self._fd)
            if not self._named:
                sync_path(self._path.parent)
                self._named = True
            self._went_back = False

    def _rewrite(self) -> None:
        data, encoder = snapshot(self.state)
        fd = _replace(self._path, data, self._write)
        if self._fd >= 0:
            os.close(self._fd)
        # Only now: should the rewrite fail, the old file goes on under the numbers that it was written with.
        self._fd, self._size, self._encoder, self._torn, self._named = fd, len(data), encoder, False, False
        # A state that fills most of the bound by itself would be rewritten at every block: wait until it doubled.
        self._threshold = max(self._bytes_max // 2, 2 * len(data), len(MAGIC) + 1)
        self.rewrites += 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
