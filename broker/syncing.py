"""Waiting for the disk: one thread, so that the loop never does; and, for nearly all flushes, no thread at all.

Three kinds of work come to it, the first that waits goes first:

- a *flush* of the commit log, for which senders wait; there is at most one at a time, and what was written while it runs is
  covered by the next one, which begins when this one ends;
- tables, each written whole, of each the newest content alone;
- *rounds*: all files that were written since the last one, for a checkpoint. They are synced one by one, and a flush goes
  between two of them.

The thread opens paths itself and shares nothing with the owner but tickets; a path that was removed meanwhile needs no sync.
A file that is flushed again and again stays open: each system call around the sync would be one more change of hands of the
interpreter's lock, for which the loop has to let go first. A flush of such a file alone (nearly all: the log's last segment)
is begun in the kernel where that is offered (kernel_sync.py), and the thread has no part in it. What was given to the thread
meanwhile counts as done when that flush has ended too: its owner has left out what the flush syncs. Where a path came to name
another file, or none, the owner says so (`forget`), and the thread closes what it had open: a file that was unlinked keeps
its room on the disk until then.
After a failed fsync the kernel may have dropped what was to be written, and a second one would succeed: so the first failure
is the last word, and every question for a ticket is answered with it. Where there was no descriptor left to open the file
with, nothing is lost: the work waits, and is tried again a little later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue

from ..durable.files import FileCalls
from .kernel_sync import KernelSync
from .storage import DiskFailed, StorageError

FILE_MODE = 0o600  # messages are nobody else's business
FOLDER_MODE = 0o700
STAT_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own size is
RETRY_S = 0.5  # while there are no descriptors left
WAIT_TRIES_MAX = 20  # so often who has to wait for the disk waits for descriptors
KEPT_OPEN_MAX = 8  # files that are flushed: the log's last segment and its journals; others from time to time
UNFINISHED = ".tmp"  # of a table: what is being written, with the thread's number before it
PREVIOUS = ".bak"  # of a table: its generation before, as the genuine broker calls it


class DiskCalls(FileCalls):
    """Every system call that changes the data folder; its files and folders are for their owner alone."""

    def open(self, path: str, flags: int) -> int:
        """Open a file, made for its owner alone when `flags` say so."""
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        os.ftruncate(fd, length_bytes)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, FOLDER_MODE)

    def make_folder(self, folder: Path) -> list[str]:
        """Make the folder, and those above it that are not there; returns those whose names changed."""
        if folder.is_dir():
            return []
        changed = self.make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            self.mkdir(str(folder))
        return [*changed, str(folder.parent)]

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sweep(self, folder: Path) -> None:
        """Remove tables that a process which was killed had not written to the end. Only with the lock."""
        for path in folder.glob(f"*{UNFINISHED}"):
            if path.with_suffix("").suffix[1:].isdigit():
                with contextlib.suppress(OSError):
                    self.unlink(str(path))

    def remove_empty(self, folder: Path, name: str) -> None:
        """Remove the folder that `name` is in, a path below `folder`, if nothing is in it; those directly below stay. A power
        cut may bring it back: the next start removes it again."""
        above = folder / os.path.dirname(name)
        if above.parent != folder and above != folder:
            with contextlib.suppress(OSError):  # also where something is in it
                if not os.listdir(above):
                    self.rmdir(str(above))

    def fdatasync(self, fd: int) -> None:
        """Bring a file to the disk: its bytes, and where they are."""
        os.fdatasync(fd)

    def sync(self, path: str) -> None:
        """Wait until the file or folder `path` is on the disk; one that was removed meanwhile is.

        Raises OSError when it cannot be opened, DiskFailed when the disk did not keep it.
        """
        try:
            fd = self.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            self.sync_open(fd, path)
        finally:
            self.close(fd)

    def sync_open(self, fd: int, path: str) -> None:
        """As `sync`, of what is open as `fd`."""
        self._kept_by(self.fsync if os.path.isdir(path) else self.fdatasync, fd, path)

    def sync_file(self, fd: int, path: str) -> None:
        """As `sync_open`, of what is known to be a file."""
        self._kept_by(self.fdatasync, fd, path)

    def _kept_by(self, call: Callable[[int], None], fd: int, path: str) -> None:
        try:
            call(fd)
        except OSError as error:
            raise _not_kept(path, error.strerror) from error

    def write_table(self, path: str, content: bytes) -> None:
        """Replace a file whole and wait for the disk; what it held before becomes its previous generation.

        Raises OSError, and then it is as before; DiskFailed when the disk did not keep it.
        """
        fresh = f"{path}.{threading.get_ident()}{UNFINISHED}"
        try:
            fd = self.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self.write(fd, content, 0)
                self.sync_open(fd, path)
            finally:
                self.close(fd)
            with contextlib.suppress(FileNotFoundError):
                self.rename(path, path + PREVIOUS)
            self.rename(fresh, path)
        except (OSError, DiskFailed):
            with contextlib.suppress(OSError):  # it takes room on a disk that may have none
                self.unlink(fresh)
            raise
        self.sync(os.path.dirname(path))


def _not_kept(path: str, reason: str | None) -> DiskFailed:
    return DiskFailed(f"the disk did not keep what was written to {path}: {reason}")


def taken_bytes(path: str) -> int:
    """Room that a file takes on the disk; less than its size when it is sparse."""
    try:
        return os.stat(path).st_blocks * STAT_BLOCK_BYTES
    except FileNotFoundError:  # nothing was written to it yet
        return 0


class Syncer:
    """The thread, and what waits for it."""

    def __init__(self, calls: DiskCalls, *, has_thread: bool = True, retry_s: float = RETRY_S) -> None:
        """Without a thread of its own (tests) the work is done where `work` is called."""
        self._calls = calls
        self._retry_s = retry_s
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # False ends the thread
        self._lock = threading.Lock()  # for what waits; held for a look-up
        self._changed = threading.Condition(self._lock)
        self._writing = threading.Lock()  # a table
        self._flushes: deque[tuple[int, list[str]]] = deque()
        self._rounds: deque[tuple[int, deque[str]]] = deque()
        self._tables: dict[str, bytes] = {}
        self._refused: set[str] = set()  # tables that could not be written; tried again with the next work
        self._open: set[int] = set()  # tickets of what is not done
        self._ticket = 0
        self._kept: dict[str, int] = {}  # open descriptors of files that were flushed; the thread closes them
        self._forgotten: list[int] = []  # of those, what is not that path's file any more
        self._renamings = 0  # so often a path was forgotten
        self._failed: DiskFailed | None = None
        self._starved: str | None = None  # why what waits cannot be begun now
        self._starved_count = 0  # how often that was so
        self.on_flush: Callable[[], None] | None = None  # called in the thread after each flush, also a failed one
        self.kernel: KernelSync | None = None  # does flushes of one file that is open, in place of the thread
        self._in_kernel: tuple[int, str] | None = None  # the flush that is under way there: ticket, path
        self.table_trouble: str | None = None  # why a table cannot be written
        self._thread = threading.Thread(target=self._run, name="broker-sync", daemon=True) if has_thread else None
        if self._thread is not None:
            self._thread.start()

    def submit(self, paths: Iterable[str], *, flush: bool) -> int:
        """Sync the paths, in their order; returns the ticket to ask for."""
        listed = list(paths)
        with self._lock:
            self._ticket += 1
            self._open.add(self._ticket)
            self._refused.clear()
            if flush and self._begin_in_kernel(listed):
                return self._ticket
            if flush:
                self._flushes.append((self._ticket, listed))
            else:
                self._rounds.append((self._ticket, deque(listed)))
        self._wakes.put(True)
        return self._ticket

    def _begin_in_kernel(self, paths: list[str]) -> bool:
        """Whether the kernel does this flush. Called with the lock, so that the thread closes nothing meanwhile; what the
        kernel has begun it keeps open itself."""
        if self.kernel is None or self._in_kernel is not None or self._failed is not None or len(paths) != 1:
            return False
        fd = self._kept.get(paths[0])
        if fd is None:
            return False
        try:
            self.kernel.begin(fd)
        except OSError:  # no room now, or not on this file system
            return False
        self._in_kernel = self._ticket, paths[0]
        return True

    def _end_in_kernel(self, *, waits: bool = False) -> None:
        """Take note of the kernel's flush if it has ended; with `waits` when it has."""
        if self.kernel is None or self._in_kernel is None:
            return
        try:
            error = self.kernel.ended(waits=waits)
        except OSError as refused:  # whether the disk kept it will never be known
            error = refused.errno or errno.EIO
        if error is None:
            return
        (ticket, path), self._in_kernel = self._in_kernel, None
        if error:
            self._fail(_not_kept(path, os.strerror(error)))
        else:
            self._done(ticket)

    def submit_table(self, path: str, content: bytes) -> None:
        with self._lock:
            self._tables[path] = content
            self._refused.clear()
        self._wakes.put(True)

    def forget(self, path: str) -> None:
        """The path names another file now, or none. Told after the change: what is opened before it is forgotten too."""
        with self._lock:
            self._renamings += 1
            if path not in self._kept:
                return
            self._forgotten.append(self._kept.pop(path))
        self._wakes.put(True)  # its room is needed, most of all where nothing else can be written any more

    def pending_table(self, path: str) -> bytes | None:
        with self._lock:
            return self._tables.get(path)

    def write_table_now(self, path: str, content: bytes) -> None:
        """Write a table in the caller's thread, in place of what waits. Raises OSError, DiskFailed."""
        with self._writing:
            with self._lock:
                self._tables.pop(path, None)
            self._calls.write_table(path, content)

    def is_done(self, ticket: int) -> bool:
        """Raises DiskFailed, from the first failure on; StorageError while that cannot be begun."""
        self._end_in_kernel()
        if self._failed is not None:
            raise self._failed
        if self._in_kernel is not None and ticket >= self._in_kernel[0]:
            return False
        if ticket not in self._open:
            return True
        with self._lock:
            if ticket in self._open and self._starved is not None:
                raise StorageError(self._starved)
            return ticket not in self._open

    def wait(self, ticket: int) -> None:
        """Return when that is done. Raises DiskFailed; StorageError when there were no descriptors for so long."""
        self._end_in_kernel(waits=True)
        last = self._starved_count + WAIT_TRIES_MAX
        while self._thread is None and ticket in self._open and self._failed is None and self._starved_count < last:
            self.work()
        with self._lock:
            self._changed.wait_for(
                lambda: self._failed is not None or ticket not in self._open or self._starved_count >= last
            )
        self.is_done(ticket)

    def close(self) -> None:
        """Do what waits, and end."""
        if self.kernel is not None:
            self._end_in_kernel(waits=True)
            self.kernel.close()
            self.kernel = None
        self._wakes.put(False)
        if self._thread is None:
            self.work()
        else:
            self._thread.join()
        self._close_all_but(0)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            with contextlib.suppress(Empty):
                goes_on = self._wakes.get(timeout=None if self._starved is None else self._retry_s)
            self.work()

    def work(self) -> None:
        """Do all that waits; nothing any more after a failure."""
        self._close_all_but(KEPT_OPEN_MAX)  # also where nothing can be begun, and after a failure
        try:
            while self._failed is None and self._step():
                self._close_all_but(KEPT_OPEN_MAX)
            self._starved = None
        except DiskFailed as error:
            self._fail(error)
        except OSError as error:  # fsync of what cannot be opened any more
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._starved = f"cannot bring what was written to the disk yet: {error.strerror}"
                with self._lock:
                    self._starved_count += 1
                    self._changed.notify_all()
                return
            self._fail(DiskFailed(f"cannot bring {error.filename} to the disk: {error.strerror}"))

    def _fail(self, error: DiskFailed) -> None:
        with self._lock:
            self._failed = error
            self._changed.notify_all()
        if self.on_flush is not None:
            self.on_flush()

    def _step(self) -> bool:
        """The next piece of work; False when there is none."""
        if not (self._flushes or self._tables or self._rounds):
            return False  # what comes now also wakes
        with self._lock:
            flush = self._flushes.popleft() if self._flushes else None
            table = next((item for item in self._tables.items() if item[0] not in self._refused), None)
            in_round = self._rounds[0] if self._rounds else None
        if flush is not None:
            try:
                for path in flush[1]:
                    self._flush(path)
            except OSError:
                self._flushes.appendleft(flush)  # there is at most one
                raise
            self._done(flush[0])
            if self.on_flush is not None:
                self.on_flush()
        elif table is not None:
            self._write_table(*table)
        elif in_round is not None:
            if in_round[1]:
                self._calls.sync(in_round[1][0])
                in_round[1].popleft()
            else:
                self._rounds.popleft()
                self._done(in_round[0])
        else:
            return False
        return True

    def _flush(self, path: str) -> None:
        """As `DiskCalls.sync`; a file stays open for the next time."""
        fd = self._kept.get(path)
        if fd is not None:
            self._calls.sync_file(fd, path)  # should it be forgotten meanwhile, nobody waits for it
            return
        if os.path.isdir(path):
            self._calls.sync(path)
            return
        renamings = self._renamings
        try:
            fd = self._calls.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with self._lock:
            if renamings == self._renamings:
                self._kept[path] = fd
            else:  # it may be what had that name before
                self._forgotten.append(fd)
        self._calls.sync_file(fd, path)
        self._close_all_but(KEPT_OPEN_MAX)

    def _close_all_but(self, newest: int) -> None:
        """Close what is forgotten, and of the files kept open all but the newest."""
        if not self._forgotten and len(self._kept) <= newest:
            return
        with self._lock:
            gone, self._forgotten = self._forgotten, []
            while len(self._kept) > newest:
                gone.append(self._kept.pop(next(iter(self._kept))))
        for fd in gone:
            self._calls.close(fd)

    def _done(self, ticket: int) -> None:
        with self._lock:
            self._open.discard(ticket)
            self._changed.notify_all()

    def _write_table(self, path: str, content: bytes) -> None:
        """One that cannot be written (a full disk) waits for the next work, and its last generation stays."""
        try:
            with self._writing:
                if self.pending_table(path) is not content:
                    return  # a newer one is there, or waits
                self._calls.write_table(path, content)
        except OSError as error:
            self.table_trouble = f"cannot write {path}: {error.strerror}"
            with self._lock:
                self._refused.add(path)
            return
        with self._lock:
            if self._tables.get(path) is content:
                del self._tables[path]
            if not self._tables:
                self.table_trouble = None


__all__ = ["FILE_MODE", "FOLDER_MODE", "PREVIOUS", "UNFINISHED", "DiskCalls", "Syncer", "taken_bytes"]
