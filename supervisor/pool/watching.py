"""What the supervisor reads in the cells of workers, and the signals that it sends by it.

- `Watch` keeps the time limits: it looks at the cells when a limit may be over (core/time_limits.py). It also samples the
  memory of long calls, for the case that the kernel kills the worker. Only workers that have something are looked at, and
  those that are being ended: a look costs the same with any number of idle ones.
- `CellReader` reclaims chunks that a worker has not started (core/reclaiming.py), and reads what the worker has finished
  while a call goes on (workers/unreported.py), or when it has died.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from ...client.clock import wall_ms
from ...conf.units import NS_PER_MS, NS_PER_S
from ...workers.cells import (
    BEATS,
    HARD_NS,
    RECALLED,
    RSS_PEAK,
    SOFT_NS,
    SOFT_RAISED,
    STARTED_NS,
    STATE,
    CellFile,
    CellView,
)  # fmt: skip
from ...workers.claims import take_back
from ...workers.reporter import REPORT_SIGNAL
from ...workers.time_limits import SOFT_SIGNAL
from ...workers.unreported import holds, in_hand, look, runs
from ..core import events as ev
from ..core.actions import AskReport, ReadCell, Recall, Reclaim
from ..core.decisions import Core
from ..core.state import Worker
from ..core.states import LIVING, WorkerState
from ..core.time_limits import Progress, Step
from .child import Child

LOOK_MIN_S: Final = 0.002
LOOK_MAX_S: Final = 0.1
"""Also the distance of two samples of memory."""
SAMPLE_AFTER_NS: Final = 50 * NS_PER_MS
"""Calls that are shorter leave the worker's own figure, taken between chunks."""

log = structlog.get_logger("rocketcrew.pool")


class Watch:
    """One timer for all workers."""

    def __init__(
        self, cells: CellFile, children: Mapping[str, Child], busy: Callable[[], Collection[str]], stall_ms: int,
        unreported: Callable[[Worker], Mapping[str, object]],
    ) -> None:  # fmt: skip
        """`busy()` are those whose loop should move: they have chunks that they have not reported on, or are asked for keys;
        `unreported` says for the log what one has in hand."""
        self._cells = cells
        self._children = children
        self._busy = busy
        self._stall_ns = stall_ms * NS_PER_MS
        self._unreported = unreported
        self._stalled_ns = -self._stall_ns
        """When a worker was last ended because it stood still."""
        self._busy_before: set[str] = set()
        self._ending: set[str] = set()
        """Workers that were sent ABRT: they are looked at until they are gone."""
        self._limit_ns = int(LOOK_MAX_S * NS_PER_S)
        """The shortest limit that was seen: a call that begins right after a look may be over it after so long."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and from then on when it is time."""
        delay_s = LOOK_MAX_S
        try:
            due_ns = self.look()
            delay_s = (due_ns - time.monotonic_ns()) / NS_PER_S
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
            if (child := self._children.get(worker_id)) is not None:
                child.look.rest()
        due_ns = time.monotonic_ns() + self._limit_ns
        for worker_id in busy | self._ending:
            child = self._children.get(worker_id)
            if child is None:
                self._ending.discard(worker_id)
            elif child.worker.state in LIVING:
                due_ns = min(due_ns, self._look(child, busy=worker_id in busy))
        return due_ns

    def _look(self, child: Child, *, busy: bool) -> int:
        now_ns = time.monotonic_ns()
        words = self._cells.view(child.cell_slot)
        seen = Progress(
            words[STATE], words[STARTED_NS], words[BEATS], words[SOFT_NS], words[HARD_NS], busy, words[SOFT_RAISED]
        )
        self._limit_ns = min(limit for limit in (self._limit_ns, seen.soft_ns, seen.hard_ns) if limit)
        if seen.state and now_ns - seen.started_ns > SAMPLE_AFTER_NS:
            sample_memory(child, seen.started_ns)
            words[RSS_PEAK] = max(words[RSS_PEAK], child.rss_peak_bytes)  # it outlives us there
        step, due_ns = child.look.next(seen, now_ns, self._stall_ns)
        if child.look.ended is not None:
            self._ending.add(child.worker_id)
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
                        duration_ms=(now_ns - seen.started_ns) // NS_PER_MS)  # fmt: skip
        else:
            child.look.by_machine = self._others_too(child, now_ns) or is_held(process.pid)
            log.error("worker_stalled", worker=child.worker_id, pid=process.pid, duration_ms=self._stall_ns // NS_PER_MS,
                      by_machine=child.look.by_machine, **self._unreported(child.worker))  # fmt: skip
        process.kill(signal.SIGABRT)

    def _others_too(self, child: Child, now_ns: int) -> bool:
        """Another worker has stood still for half of the limit, or was ended for it as short a time ago."""
        since_ns = now_ns - self._stall_ns // 2
        ended_ns, self._stalled_ns = self._stalled_ns, now_ns
        return ended_ns >= since_ns or any(
            other is not child and other.look.still_since(since_ns) for other in self._looked_at()
        )

    def _looked_at(self) -> Iterable[Child]:
        return (child for name in self._busy_before if (child := self._children.get(name)) is not None)


def is_held(pid: int | None) -> bool:
    """A signal or a debugger has stopped it, or it waits for a disk, as one that was swapped out does. Where there is no
    /proc, nobody knows."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"], [b"D"])


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


class CellReader:
    """Of all workers; `children` by worker id. Where the system has no `barrier` (workers/claims.py), nothing is ever
    reclaimed or read."""

    def __init__(
        self, core: Core, cells: CellFile, children: Mapping[str, Child], barrier: Callable[[], bool] | None
    ) -> None:
        self._core = core
        self._cells = cells
        self._children = children
        self._barrier = barrier
        self._loop = asyncio.get_running_loop()

    def take(self, action: Reclaim) -> None:
        """Reclaim what the worker has not claimed; without effect when it is gone or goes on at this moment."""
        child = self._children.get(action.worker_id)
        if child is None or self._barrier is None:
            return
        cell = self._cells.view(child.cell_slot)
        found = take_back(cell, child.chunks_sent, self._barrier)
        if found is None:
            return
        unbegun, claimed = found
        log.debug("taken_back", worker=child.worker_id, chunks=unbegun, records_kept=claimed)
        self._core.handle(ev.Reclaimed(action.worker_id, action.chunk_ids, unbegun, claimed), self._loop.time())

    def recall(self, action: Recall) -> None:
        """Note in the cell of the worker how far it has been given something; it looks there before each call."""
        child = self._children.get(action.worker_id)
        if child is not None:
            self._cells.view(child.cell_slot)[RECALLED] = child.chunks_sent

    def read(self, action: ReadCell) -> None:
        """Read what the worker has finished; without effect when it runs nothing, or still the first of what it was given, a
        report of it is on its way, or it has been read in this call."""
        child = self._children.get(action.worker_id)
        if child is None or self._barrier is None:
            return
        cell = self._cells.view(child.cell_slot)
        call = (*in_hand(cell), child.reports)
        if call == child.call_read or runs(cell, action.first_open) or (action.held_only and not holds(cell)):
            return
        self._read(child, cell, call, self._barrier)

    def read_dead(self, child: Child) -> None:
        """The same of one that is dead, all of whose reports were read: what it had finished before the call that it died in
        does not run again. Not of one that we ended because it reported what cannot be."""
        if self._barrier is not None and child.worker.state is not WorkerState.KILLED:
            cell = self._cells.view(child.cell_slot)
            self._read(child, cell, (*in_hand(cell), child.reports), self._barrier, dead=True)

    def _read(
        self, child: Child, cell: CellView, call: tuple[int, ...], barrier: Callable[[], bool], *, dead: bool = False
    ) -> None:
        seen = look(cell, child.reports, barrier)
        if seen is not None:
            child.call_read = call
            if dead and child.worker.state is WorkerState.READY:
                # What is read makes room at it, and nothing may go there.
                self._core.handle(ev.WorkerStops(child.worker_id), self._loop.time())
            event = ev.CellRead(child.worker_id, seen.chunk_id, seen.offset, seen.held, wall_ms())
            self._core.handle(event, self._loop.time())

    def ask(self, action: AskReport) -> None:
        """Wake the thread of the worker that reports beside its call."""
        child = self._children.get(action.worker_id)
        if child is not None:
            child.process.kill(REPORT_SIGNAL)

    def seal(self, child: Child) -> None:
        """Wake the reporting thread of a worker that is asked to seal: the worker reads that packet after its call."""
        if self._cells.want_seal(child.cell_slot):
            child.process.kill(REPORT_SIGNAL)
