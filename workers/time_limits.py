"""The worker's part in time limits: the exception of the soft limit.

The supervisor watches the cells and knows when a call is over its limit (supervisor/pool/watching.py); it sends SOFT_SIGNAL
for the soft one, ABRT and then KILL for the hard one. A timer in the worker would cost two system calls a message, and
SIGALRM belongs to the handler.

Between the supervisor's look and the signal the worker may have gone on to the next message. So the signal's handler looks
again: it raises only while a call is under way that is over its limit, and only into the handler's own frames. In the
loop's frames the exception would fail nobody's message and end the worker; in a callback of an event loop that the handler
runs (a SyncProducer's, `asyncio.run`) it would be logged there, and nobody would know. Where it was not raised, the
supervisor sends the signal again. (In a step of a task it is that task's, as of any error: whether somebody awaits it is the
handler's affair.)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

from ..conf.units import NS_PER_MS, NS_PER_S
from .api import Handler, SoftTimeLimitExceeded
from .boot import WorkerBounds
from .cells import HARD_NS, SOFT_NS, SOFT_RAISED, STARTED_NS, STATE, CellView

SOFT_SIGNAL: Final[int] = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""A real-time signal, where there are any, because no library uses them; the usual two are the handler's own."""
EARLY_NS: Final = NS_PER_MS
"""The supervisor's clock is read before its signal is sent: a call that is a millisecond short of its limit is over it."""
RUNS_CALLBACKS: Final = asyncio.Handle._run.__code__  # pyright: ignore[reportPrivateUsage]
OURS: Final = __name__.rpartition(".")[0] + "."


def limits_of(handler: Handler, bounds: WorkerBounds) -> tuple[int, int]:
    """(soft, hard) limit of one call in ns, 0 = none: the handler's own where it has them, else the settings'."""
    soft = bounds.soft_time_limit_ms * NS_PER_MS
    hard = bounds.hard_time_limit_ms * NS_PER_MS
    if handler.soft_time_limit_s is not None:
        soft = int(handler.soft_time_limit_s * NS_PER_S)
    if handler.hard_time_limit_s is not None:
        hard = int(handler.hard_time_limit_s * NS_PER_S)
    return soft, hard


class SoftLimit:
    """Raises SoftTimeLimitExceeded into the handler. `callers` are the frames from which the handler is called, `never`
    those in which nothing may be raised although they stand above a call."""

    def __init__(
        self, cell: CellView, clock: Callable[[], int], limit_ns: int, callers: frozenset[CodeType],
        never: frozenset[CodeType],
    ) -> None:  # fmt: skip
        self._cell = cell
        self._clock = clock
        self._limit_ns = limit_ns
        self._callers = callers
        self._never = never

    def on_signal(self, _number: int, frame: FrameType | None) -> None:
        """The signal's handler. Raises SoftTimeLimitExceeded when the call under way is over its limit."""
        cell = self._cell
        if not cell[STATE] or self._clock() - cell[STARTED_NS] < self._limit_ns - EARLY_NS:
            return  # it was meant for a call that is over
        if self._in_handler(frame) and not _in_a_callback(frame):
            cell[SOFT_RAISED] = cell[STARTED_NS]
            raise SoftTimeLimitExceeded(self._limit_ns / NS_PER_S)

    def _in_handler(self, frame: FrameType | None) -> bool:
        """Whether the user's code is between the interrupted frame and the one that called the handler."""
        users = False
        while frame is not None:
            if frame.f_code in self._never:
                return False
            if frame.f_code in self._callers:
                return users
            users = users or not str(frame.f_globals.get("__name__", "")).startswith(OURS)
            frame = frame.f_back
        return False


def _in_a_callback(frame: FrameType | None) -> bool:
    """Whether an event loop that the handler runs is in no step of a task, and would swallow what is raised: in a callback;
    uvloop, of which no frame is seen, wherever it is."""
    loop = asyncio._get_running_loop()
    if loop is None or asyncio.current_task(loop) is not None:
        return False
    if not isinstance(loop, asyncio.BaseEventLoop):
        return True
    while frame is not None:
        if frame.f_code is RUNS_CALLBACKS:
            return True
        frame = frame.f_back
    return False


def obey(soft: SoftLimit, cell: CellView, soft_ns: int, hard_ns: int) -> None:
    """Handle the soft limit's signal, then write the limits for the supervisor: an earlier signal would kill the process."""
    signal.signal(SOFT_SIGNAL, soft.on_signal)
    cell[SOFT_NS], cell[HARD_NS] = soft_ns, hard_ns
