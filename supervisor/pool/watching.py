"""Keeps the time limits of all workers: looks at their cells when one may be over, and sends the signals (time_limits.py).

What a call that runs for long has taken of memory is sampled on the way, for the case that the kernel kills it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from ...conf.units import NS_PER_MS
from ...workers.cells import BEATS, HARD_NS, RSS_PEAK, SOFT_NS, STARTED_NS, STATE, CellFile
from ...workers.limits import SOFT_SIGNAL
from ..core.states import LIVING
from ..core.time_limits import Progress, Step
from .child import Child

LOOK_MIN_S: Final = 0.002
LOOK_MAX_S: Final = 0.1
"""Also the distance of two samples of memory."""
SAMPLE_AFTER_NS: Final = 50 * NS_PER_MS
"""Calls that are shorter leave the worker's own figure, taken between chunks."""

log = structlog.get_logger("rocketcrew.pool")


class Watch:
    """One timer for all workers. `busy` tells whether a worker has chunks it has not reported on."""

    def __init__(
        self, cells: CellFile, children: Callable[[], Iterable[Child]], busy: Callable[[str], bool], stall_ms: int
    ) -> None:
        self._cells = cells
        self._children = children
        self._busy = busy
        self._stall_ns = stall_ms * NS_PER_MS
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and from then on when it is time."""
        delay_s = LOOK_MAX_S
        try:
            due_ns = min((self._look(child) for child in list(self._children())), default=0)
            delay_s = (due_ns - time.monotonic_ns()) / 1e9 if due_ns else LOOK_MAX_S
        finally:
            self._timer = self._loop.call_later(min(max(delay_s, LOOK_MIN_S), LOOK_MAX_S), self.start)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, child: Child) -> int:
        now_ns = time.monotonic_ns()
        if child.worker.state not in LIVING:
            return now_ns + int(LOOK_MAX_S * 1e9)
        words = self._cells.view(child.cell_slot)
        seen = Progress(
            words[STATE], words[STARTED_NS], words[BEATS], words[SOFT_NS], words[HARD_NS], self._busy(child.worker_id)
        )
        if seen.state and now_ns - seen.started_ns > SAMPLE_AFTER_NS:
            sample_memory(child, seen.started_ns)
            words[RSS_PEAK] = max(words[RSS_PEAK], child.rss_peak_bytes)  # it outlives us there
        step, due_ns = child.look.next(seen, now_ns, self._stall_ns)
        if step is not Step.NOTHING:
            self._do(child, step, seen, now_ns)
        return due_ns

    def _do(self, child: Child, step: Step, seen: Progress, now_ns: int) -> None:
        process = child.process
        if step is Step.SOFT:
            process.kill(SOFT_SIGNAL)
            return
        if step is Step.KILL:
            process.kill()
            return
        if seen.state:
            log.warning("hard_time_limit", worker=child.worker_id, pid=process.pid, limit_ms=seen.hard_ns // NS_PER_MS,
                        ran_ms=(now_ns - seen.started_ns) // NS_PER_MS)  # fmt: skip
        else:
            log.error("worker_stalled", worker=child.worker_id, pid=process.pid, for_ms=self._stall_ns // NS_PER_MS)
        process.kill(signal.SIGABRT)


def sample_memory(child: Child, call_ns: int) -> None:
    """Note what the process has of memory in the call that began then, and had at most (Linux; elsewhere nothing)."""
    try:
        status = Path(f"/proc/{child.process.pid}/status").read_text()
    except OSError:
        return
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            child.rss_peak_bytes = max(child.rss_peak_bytes, int(line.split()[1]) * 1024)
        elif line.startswith("VmRSS:"):
            child.sampled_call_ns = call_ns
            child.rss_last_bytes = int(line.split()[1]) * 1024
