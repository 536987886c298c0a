"""The lock of a table's folder: writers exchange and rename folders under it, readers of its state hold it shared."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from ..durable.files import try_lock
from .errors import LoaderError
from .object_store import STATE_DIR, Place

LOCK_POLL_S = 0.02
DELTA_LOCK = "compact.lock"
"""In the folder of a Delta table's states: one of this host merges its files at a time."""
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EBADF, errno.ENOLCK)


@contextlib.contextmanager
def locked_table(table: Path, kind: int, wait_s: float) -> Generator[None]:
    """flock the folder that is `table` now, not one that was exchanged while we waited. Raises LoaderError."""
    lock = lock_table(table, kind, wait_s)
    try:
        yield
    finally:
        os.close(lock)


def lock_table(table: Path, kind: int, wait_s: float) -> int:
    """As `locked_table`; the descriptor to close."""
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = os.open(table, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), table.stat()):
                return descriptor
        except BlockingIOError:
            pass
        except OSError as error:
            if kind == fcntl.LOCK_SH and error.errno in _NO_FLOCK:
                return descriptor  # nobody can exchange folders there either, so there is nothing to keep away
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise LoaderError(f"{table} is being written by others for more than {wait_s:g} s: try again later")
        time.sleep(LOCK_POLL_S)


def lock_compact(path: Path, of: Path) -> int | None:
    """As `try_lock`; the file is that of whoever has the folder `of`: root, once killed, would keep him out with it. Raises
    LoaderError, OSError."""
    try:
        lock = try_lock(path)
    except PermissionError:
        if not path.exists():
            raise
        raise LoaderError(
            f"another user's compact works on the table, or was killed: {path} is its lock. Wait for its end, or delete the"
            " file where none runs"
        ) from None
    if lock is not None:
        _give(lock, path, of)
    return lock


def _give(lock: int, path: Path, of: Path) -> None:
    """Only an empty file that we have made there ourselves, and not a link to one of root's elsewhere."""
    with contextlib.suppress(OSError):
        made, named, folder = os.fstat(lock), path.lstat(), of.stat()
        made_here = os.path.samestat(made, named) and made.st_nlink == 1
        if made_here and made.st_size == 0 and made.st_uid == os.geteuid() != folder.st_uid:
            os.fchown(lock, folder.st_uid, folder.st_gid)


@contextlib.contextmanager
def only_merge(table: Place) -> Generator[bool]:
    """Whether nobody else of this host merges files of the Delta table: of two merges at the same moment one is work for
    nothing. In a bucket nobody can tell."""
    path = table / STATE_DIR / DELTA_LOCK
    lock = lock_compact(path, path.parent) if isinstance(path, Path) else -1
    try:
        yield lock is not None
    finally:
        if isinstance(path, Path) and lock is not None:
            path.unlink(missing_ok=True)  # another user can't lock a file of ours
            os.close(lock)
