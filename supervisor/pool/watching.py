"""Keeps the time limits of all workers: looks at their cells when one may be over, and sends the signals (time_limits.py).

Only workers that have something are looked at, and those that are being ended: a look costs the same with any number of
idle ones. What a call that runs for long has taken of memory is sampled on the way, for the case that the kernel kills it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import structlog

from ...conf.units import NS_PER_MS
from ...workers.cells import BEATS, HARD_NS, RSS_PEAK, SOFT_NS, STARTED_NS, STATE, CellFile
from ...workers.limits import SOFT_SIGNAL
from ..core.time_limits import Progress, Step
from .pool_member import Member

LOOK_MIN_S: Final = 0.002
LOOK_MAX_S: Final = 0.1
"""Also the distance of two samples of memory."""
SAMPLE_AFTER_NS: Final = 50 * NS_PER_MS
"""Calls that are shorter leave the worker's own figure, taken between chunks."""

log = structlog.get_logger("rocketcrew.pool")


class Watch:
    """One timer for all workers. `busy()` are those whose loop should move: they have chunks that they have not reported on,
    or are asked for keys."""

    def __init__(
        self, cells: CellFile, members: Mapping[str, Member], busy: Callable[[], Collection[str]], stall_ms: int
    ) -> None:
        self._cells = cells
        self._members = members
        self._busy = busy
        self._stall_ns = stall_ms * NS_PER_MS
        self._busy_before: set[str] = set()
        self._ending: set[str] = set()
        """Workers that were sent ABRT: they are looked at until they are gone."""
        self._limit_ns = int(LOOK_MAX_S * 1e9)
        """The shortest limit that was seen: a call that begins right after a look may be over it after so long."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and from then on when it is time."""
        delay_s = LOOK_MAX_S
        try:
            due_ns = self.look()
            delay_s = (due_ns - time.monotonic_ns()) / 1e9
        finally:
            self._timer = self._loop.call_later(min(max(delay_s, LOOK_MIN_S), LOOK_MAX_S), self.start)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> int:
        """Look once; when to look again at the latest (monotonic ns)."""
        before, busy = self._busy_before, set(self._busy())
        self._busy_before = busy
        for worker_id in before - busy:
            if (member := self._members.get(worker_id)) is not None:
                member.look.rest()
        due_ns = time.monotonic_ns() + self._limit_ns
        for worker_id in busy | self._ending:
            member = self._members.get(worker_id)
            if member is None:
                self._ending.discard(worker_id)
            elif member.ready and not member.ended:
                due_ns = min(due_ns, self._look(member, busy=worker_id in busy))
        return due_ns

    def _look(self, member: Member, *, busy: bool) -> int:
        now_ns = time.monotonic_ns()
        words = self._cells.view(member.cell_slot)
        seen = Progress(words[STATE], words[STARTED_NS], words[BEATS], words[SOFT_NS], words[HARD_NS], busy)
        self._limit_ns = min(limit for limit in (self._limit_ns, seen.soft_ns, seen.hard_ns) if limit)
        if seen.state and now_ns - seen.started_ns > SAMPLE_AFTER_NS:
            sample_memory(member, seen.started_ns)
            words[RSS_PEAK] = max(words[RSS_PEAK], member.rss_peak_bytes)  # it outlives us there
        step, due_ns = member.look.next(seen, now_ns, self._stall_ns)
        if member.look.ended is not None:
            self._ending.add(member.worker_id)
        if step is not Step.NOTHING:
            self._do(member, step, seen, now_ns)
        return due_ns

    def _do(self, member: Member, step: Step, seen: Progress, now_ns: int) -> None:
        process = member.process
        if step is Step.SOFT:
            process.kill(SOFT_SIGNAL)
            return
        if step is Step.KILL:
            process.kill()
            return
        if seen.state:
            log.warning("hard_time_limit", worker=member.worker_id, pid=process.pid, limit_ms=seen.hard_ns // NS_PER_MS,
                        ran_ms=(now_ns - seen.started_ns) // NS_PER_MS)  # fmt: skip
        else:
            log.error("worker_stalled", worker=member.worker_id, pid=process.pid, for_ms=self._stall_ns // NS_PER_MS)
        process.kill(signal.SIGABRT)


def sample_memory(member: Member, call_ns: int) -> None:
    """Note what the process has of memory in the call that began then, and had at most (Linux; elsewhere nothing)."""
    try:
        status = Path(f"/proc/{member.process.pid}/status").read_text()
    except OSError:
        return
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            member.rss_peak_bytes = max(member.rss_peak_bytes, int(line.split()[1]) * 1024)
        elif line.startswith("VmRSS:"):
            member.sampled_call_ns = call_ns
            member.rss_last_bytes = int(line.split()[1]) * 1024
