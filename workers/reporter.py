"""A thread that reports beside a handler's call: what ended before the call, its rows first (worker.py `report_beside`).

It sleeps in `sigwait` until the supervisor sends REPORT_SIGNAL, which it does when a call goes on and the cell shows that
something finished waits with rows or a failure (unreported.py). So a worker whose calls are short never wakes it. A
signal, and not a pipe, because a handler may close descriptors that it does not know. The signal is blocked in the whole
process from its start; should the handler's code unblock it, it has a handler that does nothing.

- One lock is shared with the loop, and never held while the handler runs. The loop takes it where it keeps rows, notes a
  failure or reports.
- Under a handler that computes in Python the thread gets the interpreter's lock every `sys.getswitchinterval()` (5 ms),
  and loses it at each write: so the interval is short while it works. Under a handler that holds the lock in C it waits;
  what it may lose so is bounded by HELD_INTERVALS, and by less once calls are known to be long (Runner.spare_ns).
- It takes no other signals: those of the time limits are for the thread that runs the handler.
- A fork of the handler's waits until the thread holds nothing (ForkGuard); the child has no such thread, and a lock
  of its own.

The thread is started when something is held for the first time: workers whose messages leave no rows stay without it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from .own_thread import NoThreadError, OwnThread

REPORT_SIGNAL: Final[int] = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else 0
"""Asks a worker to report beside its call; 0 = this platform has no such signal, and nothing is asked."""
SWITCH_S: Final = 0.0005
"""The interpreter's switch interval while the thread works."""
FORK_WAIT_S: Final = 1.0
"""A fork waits at most so long for the thread, which may be waiting for a disk."""


def block_report_signal() -> None:
    """In a worker's first moments, before any other thread: the signal is for the thread alone."""
    if REPORT_SIGNAL:
        signal.signal(REPORT_SIGNAL, _ignore)
        signal.pthread_sigmask(signal.SIG_BLOCK, {REPORT_SIGNAL})


def _ignore(_number: int, _frame: object) -> None:
    return None


class Reporter:
    """The thread. `report` does the work, and returns after how many seconds it wants to be called again, None = when it is
    asked."""

    def __init__(
        self, report: Callable[[], float | None], log: Any,
        begin: Callable[[Callable[[], None]], object] = OwnThread,
    ) -> None:  # fmt: skip
        self._report = report
        self._log = log
        self._begin = begin
        self._started = False

    def start(self) -> None:
        """Once; without effect when the system gives no thread: then reports wait for the end of a call."""
        if not self._started:
            self._started = True
            try:
                self._begin(self._run)
            except NoThreadError as error:
                self._log.warning("no_reporter_thread", error=str(error))

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        again_s: float | None = None
        while True:
            if again_s is None:
                signal.sigwait({REPORT_SIGNAL})
            else:
                signal.sigtimedwait({REPORT_SIGNAL}, again_s)
            before = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_S, before))
            try:
                again_s = self._report()
            finally:
                sys.setswitchinterval(before)


class ForkGuard:
    """Around every fork: the lock is nobody's. For `os.register_at_fork`. Several threads of the handler's may fork at once,
    and one may have waited for the lock in vain."""

    def __init__(self, lock: Callable[[], threading.RLock]) -> None:
        self._lock = lock
        self._own = threading.local()

    def before(self) -> None:
        self._own.held = self._lock().acquire(timeout=FORK_WAIT_S)

    def after_in_parent(self) -> None:
        if self._own.held:
            self._lock().release()
