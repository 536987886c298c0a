"""What is known of a dead worker: how it ended, what it had in hand, its memory, its last stack.

A process that was killed can't be asked, so everything is read from what was written before:
its cell, the memory that was sampled, the file that faulthandler wrote into, and the kernel's count of processes that it
killed for want of memory in our control group.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from ...conf.limits import CGROUP, OWN_CGROUP, from_outside, own_groups
from ...conf.segment_format import OPEN_DIR, segment_name
from ...conf.units import NS_PER_MS, NS_PER_S
from ...workers.cells import CONSUMED_DIRECTLY, Cell, CellFile
from ...workers.sealing import open_segments
from ...workers.spawn import WorkerStartError
from ..core import events as ev
from ..core.blame import Death, End, InHand, how_ended
from ..core.decisions import Core
from ..core.states import WorkerState
from .child import Child

FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
"""Signals that a process brings upon itself; nobody sends them to make it leave."""

NOTE_S: Final = 5.0
"""Between two looks at the kernel's count; a look takes some hundred µs."""
RECENT_NS: Final = 10 * NS_PER_S
"""A worker that was killed for want of memory is found dead within this time: its memory takes a while to be freed."""
RECENT_MAX: Final = 256
"""Kills that are remembered."""

log = structlog.get_logger("rocketcrew.pool")


class OomKills:
    """Of processes of our control group by the kernel, for want of memory: those of the last moments, each for one death.

    The kernel does not say whom it killed. It may have been the loader or what a handler started; so a kill counts only for a
    worker that is found dead soon after it, and no other worker's death is put down to the same one."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], int]) -> None:
        """`count()` is how many there have been ever, `clock` in ns."""
        self._count = count
        self._clock = clock
        self._counted = count()
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        """When each was noted."""

    def note(self) -> None:
        """Look at the count, every NOTE_S or so."""
        now_ns, counted = self._clock(), self._count()
        more = counted - self._counted  # less than 0: moved into another group, it counts anew
        self._counted = counted
        self._recent.extend([now_ns] * min(more, RECENT_MAX))
        while self._recent and now_ns - self._recent[0] > RECENT_NS:
            self._recent.popleft()

    def take(self) -> int:
        """A worker was killed, by whom is not known: how many kills it may have been. It was the first of them."""
        self.note()
        found = len(self._recent)
        if found:
            self._recent.popleft()
        return found


class PostMortem:
    """Looks at dead workers of one pool."""

    def __init__(
        self, cells: CellFile, own: Path = OWN_CGROUP, root: Path = CGROUP, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`own` names this process's control groups, `root` is where they are mounted; `clock` is the cells' (ns)."""
        self._cells = cells
        self._clock = clock
        self.oom_kills = OomKills(partial(oom_kills, own, root), clock)

    def look(self, child: Child) -> Death:
        """How it ended and what it had in hand. Its process is dead; its cell is left as it is."""
        cell = self._cells.read(child.cell_slot)
        code = child.process.exitcode
        look = child.look
        timed_out = cell is not None and look.timed_out(cell.offset + 1, cell.started_ns)
        state = child.worker.state
        end = how_ended(
            retired=state is WorkerState.STOPPING
            or self._cells.stopping,  # the whole group may be killed one after another
            ours=state is WorkerState.KILLED or (look.ended is not None and not timed_out and not look.stalled),
            timed_out=timed_out,
            stalled=look.stalled,
            by_machine=look.by_machine,
            unattended=child.process.unattended,
            by_itself=by_itself(code),
        )
        facts: dict[str, object] = {"pid": child.process.pid, "exit_code": code}
        if cell is not None:
            facts["run_ms"] = (self._clock() - cell.started_ns) // NS_PER_MS
        if peak := max(child.rss_peak_bytes, cell.rss_peak_bytes if cell is not None else 0):
            facts["rss_peak_bytes"] = peak
        if cell is not None and child.sampled_call_ns == cell.started_ns:
            facts["rss_last_bytes"] = child.rss_last_bytes
        cut_off = child.cut_off and end is End.CRASHED and code in (None, -signal.SIGKILL)
        killed = code == -signal.SIGKILL and end is End.CRASHED and not cut_off  # not by us
        if killed and (kills := self.oom_kills.take()):
            facts["oom_kills"] = kills
        if stack := child.stack_file.last_words():
            facts["stack"] = stack
        # Nobody has asked it to leave, so 0 is sys.exit() in a task, or os._exit() in a thread.
        own_doing = code == 0 or by_itself(code) or "oom_kills" in facts
        in_hand = in_hand_of(cell, from_outside=end is End.CRASHED and not own_doing)
        spoilt = cut_off or (cell is None and (look.stalled or _is_fault(code) or "oom_kills" in facts))
        if spoilt and child.worker.in_flight:
            in_hand = between_calls(f"{child.process.pid}:{self._clock()}")
        return Death(end, in_hand, cause_of(code), facts)


def ended_in_boot(child: Child, death: Death) -> WorkerStartError:
    """Why it did not get ready, where it has not said so itself. What others do to it is not the handler's fault: another
    one may boot later."""
    code = death.facts.get("exit_code")
    if "oom_kills" in death.facts:
        return WorkerStartError(
            "a worker was killed by the kernel for want of memory while it booted: give this member (its container or control"
            " group) more, start fewer workers (workers.count), or load less at the handler's import and in its set-up hook"
        )
    if death.end is End.FORKSERVER:
        return WorkerStartError(
            "the forkserver ended while a worker booted, and took it along: lack of memory may do that, then the kernel's log"
            " names it; or of processes, then its traceback is on standard error"
        )
    if death.end is End.CRASHED and not child.cut_off and isinstance(code, int) and code < 0 and not _is_fault(code):
        return WorkerStartError(f"a worker was ended by {death.cause} while it booted, {from_outside(-code)}")
    how = "it closed its link" if child.cut_off else death.cause if death.end is End.CRASHED else death.end.value
    failed = WorkerStartError(
        f"a worker ended while it booted ({how}): see what the handler does at its import and set-up"
    )
    failed.by_handler = True
    return failed


def left_open(core: Core, segments: Path, worker_id: str, now: float) -> list[Path]:
    """What the dead worker left in open/, to be salvaged; those that it had sealed are reported to the core.

    Where the folder cannot be read, nothing is: what it had in flight must not wait, and runs again with all that was
    reported of these segments. The next start salvages them, and a table drops rows that it has.
    """
    try:
        seal_renamed(core, segments, worker_id, now)
        return open_segments(segments, [worker_id])
    except OSError as error:
        log.error("segments_not_read", folder=str(segments / OPEN_DIR), worker=worker_id, error=str(error),
                  effect="its unsealed messages run again; the next start salvages what it left")  # fmt: skip
        core.unexpected_error()
        return []


def seal_renamed(core: Core, segments: Path, worker_id: str, now: float) -> None:
    """A worker killed between the rename and its report has sealed all the same.

    A segment is there before the first report of it, and leaves open/ by that rename only: one that is not in
    open/ is sealed, wherever the loader has taken it since.
    """
    for seq in core.unsealed_of(worker_id):
        if not (segments / OPEN_DIR / segment_name(worker_id, seq)).exists():
            core.handle(ev.Sealed(worker_id, seq), now)


def by_itself(exit_code: int | None) -> bool:
    """It ended by a fault, or with an exit code that no worker of ours has when it leaves."""
    return exit_code is not None and (exit_code > 0 or _is_fault(exit_code))


def _is_fault(exit_code: int | None) -> bool:
    return exit_code is not None and -exit_code in FAULTS


def cause_of(exit_code: int | None) -> str:
    """The name of the signal, or the exit code, as people search for it."""
    if exit_code is None:
        return "unknown"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def in_hand_of(cell: Cell | None, *, from_outside: bool = False) -> InHand | None:
    """The call that a cell names; None when it names none, was killed by somebody while all its calls waited, or consumed
    a message for an administrator, who is to blame."""
    if cell is None or cell.chunk_id == CONSUMED_DIRECTLY or (cell.between and from_outside):
        return None
    mark = f"{cell.pid}:{cell.started_ns}"
    return InHand(cell.chunk_id, cell.offset, cell.last, cell.records, cell.taken, mark, waiting=cell.between)


def between_calls(mark: str) -> InHand:
    """Of a worker whose cell names no call, and that ended by a fault, for want of memory, or because it stood still: it was
    converting or writing rows of something that it had not reported, or a thread of the handler's did it. (One that ends by
    an error there has named what it worked on, see `accuse` in worker.py.) And of one that has lost its link, most likely
    before the call that its cell names."""
    return InHand(0, 0, 0, 0, mark=mark, waiting=True)


def oom_kills(own: Path = OWN_CGROUP, root: Path = CGROUP) -> int:
    """How many processes of this process's control group, as the file `own` names it, the kernel has killed for want of
    memory; 0 where the kernel does not report it.

    Version 2 has the number in memory.events, version 1 in memory.oom_control. In a container without a namespace of control
    groups the path is the host's, and what is mounted is the group itself.
    """
    try:
        text = own.read_text()
    except OSError:
        return 0
    for version_1, path in own_groups(text, "memory"):
        folder, name = (root / "memory", "memory.oom_control") if version_1 else (root, "memory.events")
        for file in (folder / path / name, folder / name):
            if (found := _count_in(file)) is not None:
                return found
    return 0


def _count_in(file: Path) -> int | None:
    try:
        return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
