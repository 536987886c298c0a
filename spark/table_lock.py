"""The lock of a table's folder: writers exchange and rename folders under it, readers of its state hold it shared."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from .errors import LoaderError

LOCK_POLL_S = 0.02
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
