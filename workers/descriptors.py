"""A worker's own descriptors: out of the way of the handler's code, and some of the process's kept free.

A handler that leaves files or sockets open takes what its worker seals with, and soon each of its calls fails at once: such a
worker would empty the queue into the dead letters. So it looks between messages how many are free, and ends before there are
none, with everything reported and sealed; what it has not started goes to others. Where a call took all that were left there
are none to seal with: then the segment is left to the successor, which salvages it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any, Final

from .memory_watch import LeavingError
from .packets import LEAVES, encode_notice

OWN_FROM: Final = 200
"""Out of the way of code that closes low descriptors, or one of its own twice, and opens others under the same numbers."""
KEPT_FREE_MAX: Final = 32
"""At so few free ones the worker ends, where it began with eight times as many: sealing takes one or two, a call more."""


CHAIN_MAX: Final = 10
"""Errors that are looked at; a chain may be a circle."""


def out_of_the_way(fd: int) -> int:
    """The same file under a high number, and the given one is closed; under a low limit it stays as it is."""
    with contextlib.suppress(OSError):
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OWN_FROM)
        os.close(fd)
        return high
    return fd


def free_descriptors(fd: int) -> int:
    """How many more this process may open, or a few less; `fd` is any open one. Code that leaves them open takes the lowest
    number each time, so the next one tells."""
    limit = getrlimit(RLIMIT_NOFILE)[0]
    try:
        lowest = os.dup(fd)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return 0
    os.close(lowest)
    return KEPT_FREE_MAX * 8 if limit == RLIM_INFINITY else limit - lowest


def lacks_descriptors(error: BaseException | None) -> bool:
    """The process had none left: by the error itself, or one of those that it came from."""
    with contextlib.suppress(Exception):  # its class may have code of its own for each of these
        for _ in range(CHAIN_MAX):
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                return True
            if error is None:
                break
            error = error.__cause__ or error.__context__
    return False


class DescriptorWatch:
    """Looks when called. `free` says how many are left, `tell(packet)` sends to the supervisor."""

    def __init__(self, free: Callable[[], int], tell: Callable[[bytes], None], log: Any) -> None:
        self._free = free
        self._tell = tell
        self._log = log
        self._left = free()
        self._kept = min(KEPT_FREE_MAX, self._left // 8)

    def wants(self) -> bool:
        """Too few are left: a call is due once all is reported."""
        self._left = self._free()
        return self._left < max(1, self._kept)

    def __call__(self, seal: Callable[[], None]) -> None:
        """Between two messages, everything reported. Raises LeavingError when it must end, after `seal` where that can be."""
        if not self.wants():
            return
        if self._left:
            seal()
        self._log.warning(
            "worker_ends_for_descriptors", free=self._left, limit=getrlimit(RLIMIT_NOFILE)[0],
            remedy="the handler leaves files or sockets open: close them, or use `with`",
        )  # fmt: skip
        self._tell(encode_notice(LEAVES, reason="descriptors"))
        raise LeavingError
