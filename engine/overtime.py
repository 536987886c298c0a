"""Time limits of handler calls in a Spark task: there is no supervisor that would watch the cell, so a thread does.

The soft limit's signal and its exception are those of workers (workers/time_limits.py). Over the hard limit the process notes
what it had in hand, writes its stacks and ends; Spark repeats the task, which fails that message (hands.py). A loop in C that
holds the interpreter's lock holds this thread up too; then faulthandler's own, which needs no lock, ends the process, and
the message is charged with a death instead.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from ..conf.units import NS_PER_S
from ..workers.cells import STARTED_NS, STATE, CellView
from ..workers.time_limits import SOFT_SIGNAL

LOOK_S = 0.25
GRACE_S = 2.0
"""What the second guard waits beyond the limit."""


class Overtime:
    """Watches one cell for as long as a task runs. Limits in ns, 0 = none."""

    def __init__(self, cell: CellView, soft_ns: int, hard_ns: int, note_over: Callable[[], None]) -> None:
        self._cell = cell
        self._soft_ns = soft_ns
        self._hard_ns = hard_ns
        self._note_over = note_over
        self._told: tuple[int, int] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overtime", daemon=True)

    def __enter__(self) -> Self:
        if self._soft_ns or self._hard_ns:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        limits_s = [limit / NS_PER_S for limit in (self._soft_ns, self._hard_ns) if limit]
        interval_s = min(LOOK_S, *(limit / 4 for limit in limits_s))
        while not self._end.wait(interval_s):
            if self._hard_ns:
                faulthandler.dump_traceback_later(self._hard_ns / NS_PER_S + GRACE_S, exit=True, file=sys.stderr)
            self.look(time.monotonic_ns())

    def look(self, now_ns: int) -> None:
        """Act on the call under way, if there is one."""
        cell = self._cell
        state, started_ns = cell[STATE], cell[STARTED_NS]
        if not state:
            return
        ran_ns = now_ns - started_ns
        if self._hard_ns and ran_ns >= self._hard_ns:
            self._note_over()
            if cell[STATE] == state:
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                os.kill(os.getpid(), signal.SIGKILL)
        elif self._soft_ns and ran_ns >= self._soft_ns and self._told != (state, started_ns):
            self._told = state, started_ns
            os.kill(os.getpid(), SOFT_SIGNAL)
