"""The worker processes: they are started, fed, read and replaced here; the core decides everything.

A death is seen on the link or on the process, whichever comes first; everything that the worker had reported is read
before the core gets the death. A worker that leaves an open segment is replaced by one that salvages the segment first of
all; its chunks wait for that, because messages whose rows are complete must not run again, and not for its set-up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from ...conf.exit_codes import EXIT_FINE
from ...conf.limits import with_remedy
from ...conf.units import NS_PER_S, in_whole_ms
from ...remoting.errors import RocketcrewError
from ...remoting.queues import MessageQueue
from ...remoting.traces import TraceRecord
from ...workers import packets
from ...workers.cells import HARD_NS, CellFile
from ...workers.claims import find_barrier
from ...workers.ending import LEAVE_S
from ...workers.link import Transport, link_pair
from ...workers.packets import (
    LEAVES,
    PROGRESS,
    SETS_UP,
    STARTS_LARGE,
    WANTS_OUT,
    WINDOW,
    QueueInfo,
    progress_text,
)
from ...workers.spawn import WorkerProcess, WorkerStartError
from ...workers.stack_dump import StackFile
from ..core import events as ev
from ..core.actions import LOG_LEVELS, AskReport, KillWorker, ReadCell, Recall, Reclaim, Retired, Seal
from ..core.blame import Death, End
from ..core.decisions import Core
from ..core.reloading import Reload
from ..core.staffing import DropGeneration, GiveUp, Kill, Note, Policy, Staffing, Start
from ..core.state import Worker
from ..core.states import WorkerState
from .child import Child, HandlerError, NewWorker
from .direct import Directing
from .feeding import Feeding
from .hearing import LEFT_BEHIND, Hearing
from .launching import Launcher
from .post_mortem import NOTE_S, PostMortem, ended_in_boot, left_open
from .programs import Programs
from .stacks import Helper, ProcessStack, Running, crew_stacks
from .watching import CellReader

KILL_WAIT_S = 2.0
"""Within this a killed process is gone, unless the kernel holds it; and one that has no link any more has found that out,
unless a call takes so long."""

log = structlog.get_logger("rocketcrew.pool")


class Pool:
    """All workers of this supervisor; `acted` is called after each batch of events that reached the core."""

    def __init__(
        self, core: Core, policy: Policy, *, run_id: str, transport: Transport, segments: Path, left_behind: list[Path],
        cells: CellFile, queue_info: Callable[[int, MessageQueue], QueueInfo], slab: memoryview, acted: Callable[[], None],
        gave_up: Callable[[str], None], reload_ended: Callable[[int], None], check: Callable[[packets.Ready], None],
        traced: Callable[[Sequence[TraceRecord]], None], direct_timeout_s: float,
    ) -> None:  # fmt: skip
        """`left_behind` are segments of earlier runs to be salvaged; `gave_up(error)` is called when no worker can boot,
        `reload_ended(generation)` with the generation that serves after a reload; `check` and `traced` are those of
        `Hearing`."""
        self._core = core
        self.staffing = Staffing(core, policy, run_id, left_behind=(LEFT_BEHIND,) if left_behind else ())
        self.launcher = Launcher()
        self._left: dict[str, dict[str, Path]] = {LEFT_BEHIND: _by_name(left_behind)} if left_behind else {}
        """Segments of dead workers by name, until a worker has reported that it is done with them."""
        self._gave_up = gave_up
        self._transport = transport
        self._segments = segments
        self._cells = cells
        self._post_mortem = PostMortem(cells)
        self.oom_kills = self._post_mortem.oom_kills
        """Also for who cares for the loader: a kill is one process's."""
        self._programs = Programs()
        self._acted = acted
        self._loop = asyncio.get_running_loop()
        self.children: dict[str, Child] = {}
        self._cell_slots = list(reversed(range(cells.slots)))
        self._reload_ended = reload_ended
        self._staffing_timer: asyncio.TimerHandle | None = None
        self._kills_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._reloading = False
        self.feeding = Feeding(core, self.children, slab, transport, queue_info)
        self.direct = Directing(
            core, slab, self.children, self.feeding.send, self.kill_worker, lambda child: cells.view(child.cell_slot),
            timeout_s=direct_timeout_s,
        )  # fmt: skip
        """Messages that an administrator wants consumed."""
        self.failure = ""
        """Why no worker can boot."""
        self._handler_failed = False
        """By its handler a worker could not boot since one was ready last; else none could be made, or it was killed."""
        self.hearing = Hearing(
            core, run_id=run_id, is_ready=self._is_ready, boot_failed=self._boot_failed, progress=self._progress,
            notice=self._noticed, file_salvaged=self._file_salvaged, salvaged=self._salvaged,
            kill=self.kill_worker, directed=self.direct.done, check=check, traced=traced,
        )  # fmt: skip
        self.schema: str | None = None
        self.said: packets.Ready | None = None
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Start: self._start, Kill: self._end_boot, DropGeneration: self._drop, GiveUp: self._give_up, Note: _note,
        }  # fmt: skip
        cells_read = self._cell_reader = CellReader(core, cells, self.children, find_barrier())
        self.performs: dict[type, Callable[[Any], None]] = {
            **self.feeding.performs,
            Retired: self.let_leave, Reclaim: cells_read.take, Recall: cells_read.recall, ReadCell: cells_read.read,
            AskReport: cells_read.ask, Seal: self.seal, KillWorker: self._kill_lying,
        }  # fmt: skip
        self.changed = asyncio.Event()
        """Set whenever a worker became ready or ended."""

    # --- starting -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the workers and wait until each is ready, or has failed while others are. Raises `why_none`, with the
        error of the last one, when none can boot: nobody joins the group for a handler that cannot run."""
        self._note_kills()
        self.run_staffing()
        while not self.failure and not (self.staffing.tried and self.staffing.serving()):
            await self._wait_changed(self._loop.time() + 1.0)
        if self.failure:
            raise self.why_none()

    def why_none(self) -> RocketcrewError:
        """The error for `failure`. A handler that cannot run is another one than a system that gives no process: that may do
        so at the next start."""
        return HandlerError(self.failure) if self._handler_failed else WorkerStartError(self.failure)

    def run_staffing(self) -> None:
        """Do what the staffing decides now, and call it again when it has something to do next. A step that fails
        unexpectedly is logged and counted; the others are done all the same."""
        now = self._loop.time()
        for action in self.staffing.run(now):
            try:
                self._carry_out[type(action)](action)
            except Exception:
                log.exception("staffing_action_failed", action=repr(action))
                self._core.unexpected_error()
        reloading, self._reloading = self._reloading, self.staffing.reload is not Reload.IDLE
        if reloading and not self._reloading:
            self._reload_ended(self.staffing.generation)
        if self._staffing_timer is not None:
            self._staffing_timer.cancel()
        due = self.staffing.next_due(now)
        self._staffing_timer = None if due is None else self._loop.call_at(in_whole_ms(due), self.run_staffing)
        self._acted()

    def _note_kills(self) -> None:
        """Note what the kernel kills for want of memory, so that later deaths are not put down to it."""
        self.oom_kills.note()
        self._kills_timer = self._loop.call_later(NOTE_S, self._note_kills)

    async def _wait_changed(self, deadline: float) -> bool:
        """Wait for the next change; False when the time is over."""
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                return await self.changed.wait()
        return False

    def _start(self, action: Start) -> None:
        made = contextlib.ExitStack()
        try:
            self._launch(action, made)
        except Exception as error:  # whatever it is, the staffing must know, and the others are started
            if action.worker_id in self.children:
                raise  # there is a process
            made.close()
            self._not_launched(action.worker_id, WorkerStartError(with_remedy(error)))

    def _launch(self, action: Start, made: contextlib.ExitStack) -> None:
        """What has to be given back when there is no process is put into `made`."""
        link, theirs = link_pair(self._transport)
        made.callback(link.close)
        made.callback(theirs.close)
        stacks = StackFile()
        made.callback(stacks.close)
        if not self._cell_slots:
            raise WorkerStartError(
                f"all {self._cells.slots} cells of {self._cells.path} are taken, by workers that live or leave: start fewer"
                " (workers.count), or wait until those that leave have ended"
            )
        slot = self._cell_slots.pop()
        self._cells.clear(slot)  # an earlier run may have ended as a whole
        made.callback(self._cell_slots.append, slot)
        files = [path for dead in action.salvages for path in self._left[dead].values()]
        new = NewWorker(action.worker_id, action.index, slot, theirs, stacks.shared, tuple(files))
        worker = self._core.state.workers[action.worker_id]

        def launched(process: WorkerProcess | WorkerStartError) -> None:
            if isinstance(process, WorkerStartError):
                made.close()
                self._not_launched(action.worker_id, process)
                return
            child = Child(worker, slot, process, link, stacks)
            self.children[action.worker_id] = child
            self._loop.add_reader(link.fileno(), self._readable, child)
            self._loop.add_reader(process.sentinel, self._process_ended, child)
            if self._stopping or worker.state is not WorkerState.BOOTING:
                process.kill()  # its end was decided while its process was being made

        self.launcher.launch(action.generation, new, launched, lambda: worker.state is WorkerState.BOOTING)

    def _not_launched(self, worker_id: str, error: WorkerStartError) -> None:
        if not self._stopping:
            log.error("worker_not_started", worker=worker_id, error=str(error))
        worker, now = self._core.state.workers[worker_id], self._loop.time()
        was = worker.state
        self._could_not_boot(worker, error)
        self._core.handle(ev.WorkerNotStarted(worker_id), now)
        self.staffing.ended(worker, was, now, charged=False, leaves=False)
        self.changed.set()
        self._loop.call_soon(self.run_staffing)

    def _could_not_boot(self, worker: Worker, error: WorkerStartError) -> None:
        """For `error`, unless there is another reason already: its own words, or that it took too long."""
        self._handler_failed |= bool(worker.boot_error) or error.by_handler
        self.staffing.boot_failed(worker.worker_id, worker.boot_error or str(error))

    def _end_boot(self, action: Kill) -> None:
        log.error("worker_not_ready", worker=action.worker_id, reason=action.reason)
        child = self.children.get(action.worker_id)
        if child is not None:
            child.process.kill()
        else:
            self.launcher.interrupt(self._core.state.workers[action.worker_id].generation)

    def _drop(self, action: DropGeneration) -> None:
        self.launcher.drop(action.generation)

    def _give_up(self, action: GiveUp) -> None:
        self.failure = action.error
        self.changed.set()
        self._gave_up(action.error)

    # --- leaving ------------------------------------------------------------------------------------------------

    def let_leave(self, action: Retired) -> None:
        """The worker has nothing in flight any more: it may seal, tear down and end."""
        child = self.children.get(action.worker_id)
        if child is not None:
            self.feeding.send(child, packets.encode_stop(self._ns_in(LEAVE_S)))
            self._loop.call_later(LEAVE_S, self._end_late, child)

    def _ns_in(self, seconds: float) -> int:
        return round((self._loop.time() + seconds) * NS_PER_S)

    def _end_late(self, child: Child) -> None:
        if not child.ended:
            log.warning("worker_killed", worker=child.worker_id, pid=child.process.pid, reason="did not leave")
            child.process.kill()

    # --- asking and killing -------------------------------------------------------------------------------------

    def seal(self, action: Seal) -> None:
        """Ask the worker to seal its open segment."""
        child = self.children.get(action.worker_id)
        if child is not None:
            self._cell_reader.seal(child)
            self.feeding.send(child, packets.encode_seal())

    def _kill_lying(self, action: KillWorker) -> None:
        self.kill_worker(action.worker_id, action.reason)

    def kill_worker(self, worker_id: str, reason: str) -> None:
        """Kill a worker that reported what cannot be; its death is handled as any other."""
        child = self.children.get(worker_id)
        if child is not None:
            log.error("worker_killed", worker=worker_id, pid=child.process.pid, reason=reason)
            self._core.handle(ev.WorkerKilled(worker_id), self._loop.time())
            child.process.kill()

    # --- hearing ------------------------------------------------------------------------------------------------

    def _readable(self, child: Child) -> None:
        for packet in child.link.receive():
            self.hearing.packet(child, packet)
        if child.link.closed:
            self._link_ended(child)
        self._acted()

    def _is_ready(self, child: Child, ready: packets.Ready) -> None:
        self.schema = ready.schema
        self.said = ready
        self._handler_failed = False
        self.staffing.ready(child.worker_id)
        self.run_staffing()
        self.changed.set()

    def _file_salvaged(self, child: Child, file: str) -> None:
        """Should this worker not get ready, its successor goes on behind the file."""
        for dead in child.worker.salvages:
            self._left[dead].pop(file, None)
        self.staffing.salvaging(child.worker_id, self._loop.time())

    def _salvaged(self, child: Child) -> None:
        for dead in child.worker.salvages:
            del self._left[dead]
        self.staffing.salvaged(child.worker_id)

    def _boot_failed(self, child: Child, failed: packets.BootFailed) -> None:
        log.error("worker_boot_failed", worker=child.worker_id, error=failed.error)
        self.staffing.boot_failed(child.worker_id, f"{failed.error}\n{failed.traceback}".rstrip())

    def _progress(self, child: Child) -> None:
        self.staffing.progress(child.worker_id)
        self._loop.call_soon(self.run_staffing)

    def _noticed(self, child: Child, notice: dict[str, Any]) -> None:
        now = self._loop.time()
        if notice["about"] == PROGRESS:
            child.progress = progress_text(notice)
        elif notice["about"] == WINDOW:
            self._core.handle(ev.WorkerWindow(child.worker_id, int(notice["chunks"])), now)
        elif notice["about"] == SETS_UP:
            child.worker.sets_up = True
        elif notice["about"] == STARTS_LARGE:
            self.staffing.starts_large(child.worker_id, int(notice["rss_bytes"]))
            self._loop.call_soon(self.run_staffing)
        elif notice["about"] in (WANTS_OUT, LEAVES):
            reason = str(notice.get("reason", "asked"))
            if notice["about"] == LEAVES:
                self.staffing.leaves(child.worker_id, reason, now)
            else:
                self.staffing.wants_out(child.worker_id, reason)
            self._loop.call_soon(self.run_staffing)

    # --- deaths -------------------------------------------------------------------------------------------------

    def _link_ended(self, child: Child) -> None:
        """The worker's end of the link is closed: it dies, or its handler closed the descriptor. That it finds out itself, at
        its next report, and names the messages that may have done it; whoever is in hand now has most likely not."""
        if not child.ended:
            self._loop.remove_writer(child.link.fileno())
            self._loop.remove_reader(child.link.fileno())
            self._loop.call_later(KILL_WAIT_S, self._cut_off, child)

    def _cut_off(self, child: Child) -> None:
        """It lives on in a call, and can report nothing any more."""
        if not child.ended:
            child.cut_off = child.process.exitcode is None
            child.process.kill()
            self._loop.call_later(KILL_WAIT_S, self._ended, child)

    def _process_ended(self, child: Child) -> None:
        """The process is dead; the link may still hold reports."""
        while not child.link.closed:
            batch = child.link.receive()
            if not batch and not child.link.closed:
                # A forked child of the handler may hold the worker's end open: what has not arrived by now never does.
                break
            for packet in batch:
                self.hearing.packet(child, packet)
        self._ended(child)
        self._acted()

    def _ended(self, child: Child) -> None:
        if child.ended:
            return
        self._acted()  # one that reported what cannot be counts as killed from here on
        worker, was = child.worker, child.worker.state
        self._loop.remove_writer(child.link.fileno())
        self._loop.remove_reader(child.link.fileno())
        self._loop.remove_reader(child.process.sentinel)
        child.process.kill()  # the link may be closed by a process that lives on
        child.link.close()
        del self.children[child.worker_id]
        self.direct.died(child.worker_id)
        now, death = self._loop.time(), self._look_at_dead(child)
        if not worker.booted:
            self._ended_in_boot(child, death)
        self._core.handle(ev.WorkerDied(child.worker_id, death), now)
        self._acted()  # the charge is written before the cell is cleared
        self._cells.clear(child.cell_slot)
        self._cell_slots.append(child.cell_slot)
        left = left_open(self._core, self._segments, child.worker_id, now)
        child.stack_file.close()
        if left:
            self._left[child.worker_id] = _by_name(left)
        elif not self._stopping:
            # When stopping, what is left is salvaged by the next start, and was not committed.
            self._core.handle(ev.SalvageComplete(child.worker_id), now)
        charged = death.in_hand is not None
        self.staffing.ended(worker, was, now, charged=charged, leaves=bool(left))
        self.changed.set()
        self._loop.call_soon(self.run_staffing)
        if death.end is End.RETIRED and child.process.exitcode == EXIT_FINE:
            child.process.close()  # what its handler leaves running, it leaves on purpose
        else:
            self._programs.end(child.process)

    def _ended_in_boot(self, child: Child, death: Death) -> None:
        error = ended_in_boot(child, death)
        if not child.worker.boot_error and not self._stopping:
            log.error("worker_not_ready", worker=child.worker_id, reason=str(error))
        self._could_not_boot(child.worker, error)

    def _look_at_dead(self, child: Child) -> Death:
        """Its messages wait for this death: better one that charges nobody than none."""
        death = Death(End.OURS)
        try:
            death = self._post_mortem.look(child)
            self._cell_reader.read_dead(child)
        except Exception:
            log.exception("death_not_examined", worker=child.worker_id)
            self._core.unexpected_error()
        return death

    def running(self, child: Child) -> Running | None:
        """Which message the worker is running, or was when it died, from its cell."""
        if child.worker.window:
            at_once = self._cells.at_once(child.cell_slot)
            if at_once is None:
                return None
            calls, oldest_ns = at_once
            return Running(None, None, None, None, max(0.0, self._loop.time() - oldest_ns / NS_PER_S), calls)
        cell, mq = self._cells.read(child.cell_slot), self._cells.queue(child.cell_slot)
        if cell is None or mq is None or cell.between:
            return None
        seconds = max(0.0, self._loop.time() - cell.started_ns / NS_PER_S)
        return Running(mq.topic, mq.broker_name, mq.queue_id, cell.offset, seconds)

    def hard_limit_s(self, child: Child) -> float:
        """Of one call, by its cell: a handler's own limit goes before the settings. 0 = none."""
        return self._cells.view(child.cell_slot)[HARD_NS] / NS_PER_S

    def blocked(self) -> dict[str, dict[str, object]]:
        """The workers that cannot write their segments, by id: the `error`, and for how many `seconds`. JSON types."""
        now_ns = round(self._loop.time() * NS_PER_S)
        return {
            child.worker_id: {"error": why.error, "seconds": round(max(0, now_ns - why.since_ns) / NS_PER_S, 1)}
            for child in self.children.values()
            if (why := self._cells.blocked(child.cell_slot)) is not None
        }

    async def stacks(self, others: Callable[[], list[Helper]]) -> list[ProcessStack]:
        """The stacks of every worker, also of those that start or leave, of the forkservers, spares, and `others`."""
        children = sorted(self.children.values(), key=lambda child: (child.worker.index, child.worker_id))
        return await crew_stacks(children, self.running, lambda: [*self.launcher.helpers(), *others()])

    # --- stopping -----------------------------------------------------------------------------------------------

    async def stop(self, timeout_ms: int) -> int:
        """Let the workers seal and leave; kill those that do not within `timeout_ms`. Returns how many were killed."""
        self._stop_staffing()
        for child in self.children.values():
            self._core.handle(ev.WorkerStops(child.worker_id), self._loop.time())
            self.feeding.send(child, packets.encode_stop(self._ns_in(timeout_ms / 1000)))
        deadline = self._loop.time() + timeout_ms / 1000
        while self.children:
            if not await self._wait_changed(deadline):
                break
        killed = len(self.children)
        for child in self.children.values():
            reason = f"did not leave within {timeout_ms / 1000:g} s of the stop: its tear-down, or its disk"
            log.warning("worker_killed", worker=child.worker_id, pid=child.process.pid, reason=reason)
        await self.kill()
        return killed

    def cancel_handlers(self) -> None:
        """Set the flag that handlers can ask for: the call should end."""
        for child in self.children.values():
            self._cells.cancel(child.cell_slot)

    async def kill(self) -> None:
        """End every worker now with its programs, and the forkserver; what they had reported is still read."""
        self._stop_staffing()
        for child in list(self.children.values()):
            self._core.handle(ev.WorkerStops(child.worker_id), self._loop.time())
            child.process.kill()
        while self.children and await self._wait_changed(self._loop.time() + KILL_WAIT_S):
            pass
        await self.launcher.stop()
        await self._programs.ended()

    def _stop_staffing(self) -> None:
        self._stopping = True
        self.staffing.stop()
        for timer in (self._staffing_timer, self._kills_timer):
            if timer is not None:
                timer.cancel()


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    return {path.name: path for path in paths}


def _note(action: Note) -> None:
    log.log(LOG_LEVELS[action.level], action.event, **action.keys)
