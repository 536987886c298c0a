"""The worker processes: started, fed, heard, replaced. Edge of the core; everything is decided there.

A death is seen on the link or on the process, whichever comes first; what the worker had reported is read to the end
before the core hears of it. A worker that leaves an open segment is replaced by one that salvages the segment first of
all; its chunks wait for that, because messages whose rows are complete must not run again, and not for its set-up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from ...remoting.queues import MessageQueue
from ...remoting.traces import TraceRecord
from ...workers import packets
from ...workers.cells import CellFile
from ...workers.link import LinkClosedError, Transport, link_pair
from ...workers.notices import LEAVES, PROGRESS, WANTS_OUT, WINDOW, progress_text
from ...workers.packets import QueueInfo
from ...workers.salvage import open_segments
from ...workers.spawn import WorkerProcess, WorkerStartError
from ...workers.stack_dump import StackFile
from ..core import events as ev
from ..core.actions import LOG_LEVELS, AskReport, Dispatch, KillWorker, ReadCell, Reclaim, Retired, Seal
from ..core.decisions import Core
from ..core.posts import DropGeneration, GiveUp, Kill, Note, Policy, Retire, Start
from ..core.reloading import Reload
from ..core.staffing import Staff
from .direct import Directing
from .hearing import LEFT_BEHIND, Hearing
from .launching import Launcher
from .pool_member import NEVER, HandlerError, Member, NewWorker
from .post_mortem import PostMortem, seal_renamed
from .stacks import Helper, ProcessStack, Running, crew_stacks
from .taking_back import TakingBack

KILL_WAIT_S = 2.0
"""Within this a killed process is gone, unless the kernel holds it."""
LEAVE_S = 10.0
"""For sealing and the user's teardown hook of a worker that leaves; then it is killed."""

log = structlog.get_logger("rocketcrew.pool")


class Pool:
    """All workers of this supervisor; `acted` is called after each batch of events that reached the core."""

    def __init__(
        self, core: Core, policy: Policy, *, run_id: str, transport: Transport, segments: Path, left_behind: list[Path],
        cells: CellFile, queue_info: Callable[[MessageQueue], QueueInfo], slab: memoryview, acted: Callable[[], None],
        gave_up: Callable[[str], None], reload_ended: Callable[[int], None], check: Callable[[packets.Ready], None],
        traced: Callable[[Sequence[TraceRecord]], None], direct_timeout_s: float,
    ) -> None:  # fmt: skip
        """`left_behind` are open segments of earlier runs; `gave_up(error)` is called when no worker can boot,
        `reload_ended(generation)` with the generation that serves after a reload; `check` and `traced` are those of
        `Hearing`."""
        self._core = core
        self.staff = Staff(policy, run_id, left_behind=(LEFT_BEHIND,) if left_behind else ())
        self.launcher = Launcher()
        self._left: dict[str, list[Path]] = {LEFT_BEHIND: left_behind} if left_behind else {}
        """Open segments of dead workers, until a worker has salvaged them all and said so."""
        self._gave_up = gave_up
        self._transport = transport
        self._segments = segments
        self._cells = cells
        self._post_mortem = PostMortem(cells)
        self._queue_info = queue_info
        self._slab = slab
        self._acted = acted
        self._loop = asyncio.get_running_loop()
        self.members: dict[str, Member] = {}
        self._cell_slots = list(reversed(range(cells.slots)))
        self._reload_ended = reload_ended
        self._staff_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._reloading = False
        self.direct = Directing(core, slab, self.members, self._send, self.kill_worker, timeout_s=direct_timeout_s)
        """Messages that an administrator wants consumed."""
        self.failure = ""
        """Why no worker can boot."""
        self.hearing = Hearing(
            core, run_id=run_id, is_ready=self._is_ready, boot_failed=self._boot_failed, progress=self._progress,
            notice=self._noticed, salvaged=self._salvaged,
            kill=self.kill_worker, directed=self.direct.done, check=check, traced=traced,
        )  # fmt: skip
        self.schema: str | None = None
        self.said: packets.Ready | None = None
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Start: self._start, Retire: self._retire, Kill: self._end_boot, DropGeneration: self._drop,
            GiveUp: self._give_up, Note: _note,
        }  # fmt: skip
        over_cells = self._over_cells = TakingBack(core, cells, self.members)
        self.performs: dict[type, Callable[[Any], None]] = {
            Dispatch: self.dispatch, Retired: self.let_leave, Reclaim: over_cells.take,
            ReadCell: over_cells.read, AskReport: over_cells.ask, Seal: self.seal, KillWorker: self._kill_lying,
        }  # fmt: skip
        self.changed = asyncio.Event()
        """Set whenever a worker became ready or ended."""

    # --- starting -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the workers and wait until each is ready, or has failed while others are. Raises HandlerError, with what
        the last one said, when none can boot: nobody joins the group for a handler that cannot run."""
        self.run_staff()
        while not self.failure and not (self.staff.tried and self.staff.serving()):
            await self._wait_changed(self._loop.time() + 1.0)
        if self.failure:
            raise HandlerError(self.failure)

    def run_staff(self) -> None:
        """Do what the staffing wants now, and be there when it wants something next."""
        now = self._loop.time()
        for order in self.staff.run(now):
            self._carry_out[type(order)](order)
        reloading, self._reloading = self._reloading, self.staff.reload is not Reload.IDLE
        if reloading and not self._reloading:
            self._reload_ended(self.staff.generation)
        if self._staff_timer is not None:
            self._staff_timer.cancel()
        due = self.staff.next_due(now)
        self._staff_timer = None if due is None else self._loop.call_at(due, self.run_staff)
        self._acted()

    async def _wait_changed(self, deadline: float) -> bool:
        """Wait for the next change; False when the time is over."""
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                return await self.changed.wait()
        return False

    def _start(self, order: Start) -> None:
        link, theirs = link_pair(self._transport)
        stacks, slot = StackFile(), self._cell_slots.pop()
        files = [p for dead in order.salvages for p in self._left[dead] if dead != LEFT_BEHIND or p.exists()]
        new = NewWorker(order.worker_id, order.index, slot, theirs, stacks.shared, tuple(files))

        def launched(process: WorkerProcess | WorkerStartError) -> None:
            if isinstance(process, WorkerStartError):
                link.close()
                stacks.close()
                self._cell_slots.append(slot)
                self._not_launched(order.worker_id, str(process))
                return
            member = Member(
                order.worker_id, order.index, slot, process, link, stacks, order.salvages, generation=order.generation
            )
            self.members[order.worker_id] = member
            self._core.handle(ev.WorkerStarted(order.worker_id), self._loop.time())
            self._loop.add_reader(link.fileno(), self._readable, member)
            self._loop.add_reader(process.sentinel, self._process_ended, member)
            if self._stopping:
                process.kill()

        self.launcher.launch(order.generation, new, launched)

    def _not_launched(self, worker_id: str, error: str) -> None:
        if not self._stopping:
            log.error("worker_not_started", worker=worker_id, error=error)
        self.staff.boot_failed(worker_id, error)
        self.staff.ended(worker_id, self._loop.time(), expected=False, charged=False, leaves=False)
        self.changed.set()
        self._loop.call_soon(self.run_staff)

    def _end_boot(self, order: Kill) -> None:
        log.error("worker_not_ready", worker=order.worker_id, reason=order.reason)
        member = self.members.get(order.worker_id)
        if member is not None:
            member.process.kill()
        else:
            self.launcher.interrupt(self.staff.hands[order.worker_id].generation)

    def _drop(self, order: DropGeneration) -> None:
        self.launcher.drop(order.generation)

    def _give_up(self, order: GiveUp) -> None:
        self.failure = order.error
        self.changed.set()
        self._gave_up(order.error)

    # --- leaving ------------------------------------------------------------------------------------------------

    def _retire(self, order: Retire) -> None:
        log.info("worker_leaves", worker=order.worker_id, reason=order.reason)
        self._core.handle(ev.RetireWorker(order.worker_id), self._loop.time())

    def let_leave(self, action: Retired) -> None:
        """It has nothing in hand any more: it may seal, tear down and end."""
        member = self.members.get(action.worker_id)
        if member is not None:
            member.stopping = True
            self._send(member, packets.encode_stop())
            self._loop.call_later(LEAVE_S, self._end_late, member)

    def _end_late(self, member: Member) -> None:
        if not member.ended:
            log.warning("worker_killed", worker=member.worker_id, pid=member.process.pid, reason="did not leave")
            member.process.kill()

    # --- feeding ------------------------------------------------------------------------------------------------

    def dispatch(self, action: Dispatch) -> None:
        """Send a chunk; a worker that is gone is noticed by its own event."""
        member = self.members.get(action.worker_id)
        if member is None:
            return
        chunk = action.chunk
        member.chunks_sent += 1
        with contextlib.suppress(LinkClosedError):
            handle = action.info_handle
            if handle not in member.known_queues:
                member.known_queues.add(handle)
                member.link.send(packets.encode_queue(handle, self._queue_info(action.mq)))
            start, end = chunk.positions[0], chunk.positions[-1]
            packet = packets.encode_chunk(
                chunk.chunk_id, handle, start, end - start, chunk.count, window_open=action.window_open
            )
            payload = self._slab[start:end] if self._transport is Transport.STREAM else None
            if not member.link.send(packet, payload):
                self._loop.add_writer(member.link.fileno(), self.writable, member)

    def seal(self, action: Seal) -> None:
        """Ask the worker to seal its open segment."""
        member = self.members.get(action.worker_id)
        if member is not None:
            self._over_cells.seal(member)
            self._send(member, packets.encode_seal())

    def _kill_lying(self, action: KillWorker) -> None:
        self.kill_worker(action.worker_id, action.reason)

    def kill_worker(self, worker_id: str, reason: str) -> None:
        """Kill a worker that said what cannot be; its death is handled as any other."""
        member = self.members.get(worker_id)
        if member is not None:
            log.error("worker_killed", worker=worker_id, pid=member.process.pid, reason=reason)
            member.killed = True
            member.process.kill()

    def _send(self, member: Member, packet: bytes, payload: memoryview | None = None) -> None:
        """`payload` goes along where the transport is a stream; it must stay as it is until the packet was taken."""
        with contextlib.suppress(LinkClosedError):
            if not member.link.send(packet, payload if self._transport is Transport.STREAM else None):
                self._loop.add_writer(member.link.fileno(), self.writable, member)

    def writable(self, member: Member) -> None:
        """Its link has room again for what it did not take."""
        try:
            if not member.link.flush():
                return
        except LinkClosedError:
            pass
        if not member.ended:
            self._loop.remove_writer(member.link.fileno())

    # --- hearing ------------------------------------------------------------------------------------------------

    def _readable(self, member: Member) -> None:
        for packet in member.link.receive():
            self.hearing.packet(member, packet)
        if member.link.closed:
            self._link_ended(member)
        self._acted()

    def _is_ready(self, member: Member, ready: packets.Ready) -> None:
        self.schema = ready.schema
        self.said = ready
        self.staff.ready(member.worker_id, self._loop.time())
        self._look_again(member)
        self.run_staff()
        self.changed.set()

    def _salvaged(self, member: Member) -> None:
        for dead in member.salvage_of:
            del self._left[dead]
        self.staff.salvaged(member.worker_id)

    def _boot_failed(self, member: Member, failed: packets.BootFailed) -> None:
        log.error("worker_boot_failed", worker=member.worker_id, error=failed.error)
        self.staff.boot_failed(member.worker_id, f"{failed.error}\n{failed.traceback}".rstrip())

    def _progress(self, member: Member) -> None:
        self.staff.progress(member.worker_id, member.messages, member.failed)
        self._look_again(member)
        self._loop.call_soon(self.run_staff)

    def _noticed(self, member: Member, notice: dict[str, Any]) -> None:
        if notice["about"] == PROGRESS:
            member.progress = progress_text(notice)
        elif notice["about"] == WINDOW:
            self._core.handle(ev.WorkerWindow(member.worker_id, int(notice["chunks"])), self._loop.time())
        elif notice["about"] in (WANTS_OUT, LEAVES):
            member.stopping = member.stopping or notice["about"] == LEAVES
            self.staff.wants_out(member.worker_id, str(notice.get("reason", "asked")))
            self._loop.call_soon(self.run_staff)

    def _look_again(self, member: Member) -> None:
        member.look_at_messages = self.staff.look_at(member.worker_id) or NEVER

    # --- deaths -------------------------------------------------------------------------------------------------

    def _link_ended(self, member: Member) -> None:
        """Its end of the link is closed: it dies, or has closed what is not its own. How it ended is known with its death."""
        if not member.ended:
            self._loop.remove_writer(member.link.fileno())
            self._loop.remove_reader(member.link.fileno())
            member.process.kill()
            self._loop.call_later(KILL_WAIT_S, self._ended, member)

    def _process_ended(self, member: Member) -> None:
        """The process is dead; the link may still hold what it said."""
        while not member.link.closed:
            batch = member.link.receive()
            if not batch and not member.link.closed:
                # A forked child of the handler may hold the worker's end open: what is not there now never comes.
                break
            for packet in batch:
                self.hearing.packet(member, packet)
        self._ended(member)
        self._acted()

    def _ended(self, member: Member) -> None:
        if member.ended:
            return
        member.ended = True
        self._loop.remove_writer(member.link.fileno())
        self._loop.remove_reader(member.link.fileno())
        self._loop.remove_reader(member.process.sentinel)
        member.process.kill()  # the link may be closed by a process that lives on
        member.link.close()
        del self.members[member.worker_id]
        self.direct.died(member.worker_id)
        now, death = self._loop.time(), self._post_mortem.look(member)
        self._core.handle(ev.WorkerDied(member.worker_id, death), now)
        self._acted()  # what it is charged to is written before its cell is cleared
        self._cells.clear(member.cell_slot)
        self._cell_slots.append(member.cell_slot)
        seal_renamed(self._core, self._segments, member.worker_id, now)
        member.stack_file.close()
        member.process.close()
        left = open_segments(self._segments, [member.worker_id])
        if left:
            self._left[member.worker_id] = left
        elif not self._stopping:
            # When stopping, what is left is salvaged by the next start, and was not committed.
            self._core.handle(ev.SalvageComplete(member.worker_id), now)
        charged = death.in_hand is not None
        self.staff.ended(member.worker_id, now, expected=member.stopping, charged=charged, leaves=bool(left))
        self.changed.set()
        self._loop.call_soon(self.run_staff)

    def running(self, member: Member) -> Running | None:
        """Which message the worker is running, or was when it died, from its cell."""
        cell, mq = self._cells.read(member.cell_slot), self._cells.queue(member.cell_slot)
        if cell is None or mq is None or cell.between:
            return None
        seconds = max(0.0, self._loop.time() - cell.started_ns / 1e9)
        return Running(mq.topic, mq.broker_name, mq.queue_id, cell.offset, seconds)

    async def stacks(self, others: Callable[[], list[Helper]]) -> list[ProcessStack]:
        """The stacks of every worker, also of those that start or leave, of the forkservers, spares, and `others`."""
        members = sorted(self.members.values(), key=lambda member: (member.index, member.worker_id))
        return await crew_stacks(members, self.running, lambda: [*self.launcher.helpers(), *others()])

    # --- stopping -----------------------------------------------------------------------------------------------

    async def stop(self, timeout_ms: int) -> int:
        """Let the workers seal and leave; kill those that do not within `timeout_ms`. Returns how many were killed."""
        self._stop_staff()
        for member in self.members.values():
            member.stopping = True
            self._send(member, packets.encode_stop())
        deadline = self._loop.time() + timeout_ms / 1000
        while self.members:
            if not await self._wait_changed(deadline):
                break
        killed = len(self.members)
        await self.kill()
        return killed

    def cancel_handlers(self) -> None:
        """Tell handlers that ask that the end is wanted."""
        for member in self.members.values():
            self._cells.cancel(member.cell_slot)

    async def kill(self) -> None:
        """End every worker now, and the forkserver; what they had said is still read."""
        self._stop_staff()
        for member in list(self.members.values()):
            member.stopping = True
            member.process.kill()
        while self.members and await self._wait_changed(self._loop.time() + KILL_WAIT_S):
            pass
        await self.launcher.stop()

    def _stop_staff(self) -> None:
        self._stopping = True
        self.staff.stop()
        if self._staff_timer is not None:
            self._staff_timer.cancel()


def _note(order: Note) -> None:
    log.log(LOG_LEVELS[order.level], order.event, **order.keys)
