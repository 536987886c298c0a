"""A thread of a worker's own, begun when a handler's code has run, which may have left little to begin one with.

`threading.Thread.start` waits without a limit until the new thread says that it runs. Where memory is short (a limit of the
address space) that thread may die before it does, and the worker would stand still. `threading.excepthook`, which it needs as
well, is the handler's to change. So a thread is begun one floor lower here, and waited for only so long: one that comes later
than that finds its place taken, and does nothing. It is a daemon, and `threading.enumerate` does not name it.

What a worker keeps for itself takes locks, sockets and waiting by the names they had before the handler's module was imported
(`from _thread import ...`): gevent and eventlet put their own in the place of the standard library's, which would wait for
greenlets in the worker's loop, where none will ever run, and know nothing of real threads.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from typing import Final

from ..client.own_process import allocate_lock  # imported here, so that what sends has it too

START_WAIT_S: Final = 5.0
"""Until a thread runs. A millisecond is usual; on a machine that is short of cores it takes longer."""
Starts = Callable[[Callable[[], None], tuple[()]], int]


class NoThreadError(Exception):
    """There is no thread to be had; the text says why."""


class OwnThread:
    """Runs `run` in a thread, from now on. Raises NoThreadError; then `run` is not called, also not later."""

    def __init__(
        self, run: Callable[[], None], starts: Starts = start_new_thread, wait_s: float = START_WAIT_S
    ) -> None:
        self._run = run
        self._claim = allocate_lock()
        """Whoever takes it decides whether the thread runs: itself, or who has waited for it too long."""
        self._begun = allocate_lock()
        self._ended = allocate_lock()
        self._begun.acquire()
        self._ended.acquire()
        try:
            starts(self._all, ())
        except (RuntimeError, MemoryError) as error:
            raise NoThreadError(str(error) or type(error).__name__) from error
        if not self._begun.acquire(timeout=wait_s) and self._claim.acquire(blocking=False):
            raise NoThreadError(f"it was begun, and did not run for {wait_s:g} s")

    @property
    def alive(self) -> bool:
        """`run` has not ended."""
        return self._ended.locked()

    def join(self, timeout_s: float) -> None:
        """Wait until `run` has ended, at most so long."""
        if self._ended.acquire(timeout=timeout_s):
            self._ended.release()

    def _all(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._begun.release()
            self._run()
        finally:
            self._ended.release()
