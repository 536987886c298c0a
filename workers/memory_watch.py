"""A worker's own memory, looked at between messages: it asks to be replaced before the kernel ends it.

At the limit it asks for a successor and goes on until that is ready. At one and a half times the limit waiting is no longer
safe: it ends itself, with everything reported and sealed, and what it has not started goes to others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

from .link import WorkerLink, check_own, identity
from .packets import LEAVES, STARTS_LARGE, WANTS_OUT, encode_notice

LOOK_EVERY_NS: Final = 20_000_000
"""A look costs two or three microseconds."""
HARD_SHARE: Final = 1.5


class LeavingError(BaseException):
    """The worker ends between two messages. Not an Exception: it is nobody's error."""


class MemoryWatch:
    """Looks at the resident memory when called, at most every LOOK_EVERY_NS. `tell(packet)` sends to the supervisor."""

    def __init__(
        self, limit_bytes: int, clock: Callable[[], int], resident_bytes: Callable[[], int],
        tell: Callable[[bytes], None], log: Any,
    ) -> None:  # fmt: skip
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._resident_bytes = resident_bytes
        self._tell = tell
        self._log = log
        self._due_ns = 0
        self._rss_bytes = 0
        self._asked = False

    def begin(self) -> None:
        """Before the first message: say so, if it has as much already as when it is to be replaced."""
        rss = self._resident_bytes()
        if rss >= self._limit_bytes:
            self._tell(encode_notice(STARTS_LARGE, rss_bytes=rss))

    def __call__(self, seal: Callable[[], None]) -> None:
        """Between two messages, everything reported. Raises LeavingError, after `seal`, when it must end now."""
        if not self.wants():
            return
        rss = self._rss_bytes
        if rss >= self._limit_bytes * HARD_SHARE:
            seal()
            self._log.warning("worker_ends_for_memory", rss_bytes=rss, limit_bytes=self._limit_bytes)
            self._tell(encode_notice(LEAVES, reason="memory", rss_bytes=rss))
            raise LeavingError
        self._asked = True
        self._log.info("worker_over_memory_limit", rss_bytes=rss, limit_bytes=self._limit_bytes)
        self._tell(encode_notice(WANTS_OUT, reason="memory", rss_bytes=rss))

    def wants(self) -> bool:
        """Something has to be done for memory, as for the last look: a call is due once all is reported."""
        now = self._clock()
        if now >= self._due_ns:
            self._due_ns = now + LOOK_EVERY_NS
            self._rss_bytes = self._resident_bytes()
        return self._rss_bytes >= self._limit_bytes * (HARD_SHARE if self._asked else 1)


def resident_reader() -> Callable[[], int]:
    """How to read this process's resident memory, in bytes: now where /proc is, else its peak. What it gives raises
    DescriptorsClosedError."""
    page = os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        own = identity(fd)

        def read() -> int:
            check_own(fd, own, "memory figures")
            return int(os.pread(fd, 100, 0).split()[1]) * page

        return read
    return lambda: getrusage(RUSAGE_SELF).ru_maxrss


def watch_memory(limit_mib: int, clock: Callable[[], int], link: WorkerLink, log: Any) -> MemoryWatch | None:
    """The watch for a limit in MiB, begun; None without one."""
    if not limit_mib:
        return None
    watch = MemoryWatch(limit_mib << 20, clock, resident_reader(), link.send, log)
    watch.begin()
    return watch
