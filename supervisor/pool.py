"""The worker processes: started, fed, heard, replaced. Edge of the core; everything is decided there.

A death is seen on the link or on the process, whichever comes first; what the worker had reported is read to the end
before the core hears of it. A worker that leaves an open segment is replaced by one that salvages the segment before it
says that it is ready; its chunks wait for that, because messages whose rows are complete must not run again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog

from ..conf.segment_format import OPEN_DIR, SEGMENT_SUFFIX, segment_name
from ..remoting.queues import MessageQueue
from ..workers import packets
from ..workers.cells import CellFile
from ..workers.link import LinkClosedError, Transport, link_pair
from ..workers.packets import QueueInfo
from ..workers.spawn import Forkserver, WorkerStartError
from ..workers.stack_dump import StackFile
from .actions import Dispatch
from .core import Core
from .direct import Directing
from .hearing import Hearing
from .pool_member import BootMaker, HandlerError, Member, NewWorker
from .post_mortem import PostMortem
from .stacks import ProcessStack, Running, worker_stacks

RESPAWN_DELAY_MIN_S = 0.1
RESPAWN_DELAY_MAX_S = 5.0
"""Workers that die before they are ready are replaced with doubling delays: a broken host is not made worse."""
KILL_WAIT_S = 2.0
"""Within this a killed process is gone, unless the kernel holds it."""

log = structlog.get_logger("rocketcrew.pool")


class Pool:
    """All workers of this supervisor; `acted` is called after each batch of events that reached the core."""

    def __init__(
        self, core: Core, forkserver: Forkserver, make_boot: BootMaker, *, run_id: str, transport: Transport,
        segments: Path, cells: CellFile, queue_info: Callable[[MessageQueue], QueueInfo], slab: memoryview,
        acted: Callable[[], None], direct_timeout_s: float,
    ) -> None:  # fmt: skip
        self._core = core
        self._forkserver = forkserver
        self._make_boot = make_boot
        self._run_id = run_id
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
        self._started = 0
        self._respawn_delay_s = RESPAWN_DELAY_MIN_S
        self._stopping = False
        self.direct = Directing(core, slab, self.members, self._send, self.kill_worker, timeout_s=direct_timeout_s)
        """Messages that an administrator wants consumed."""
        self.hearing = Hearing(
            core, run_id=run_id, is_ready=self._is_ready, boot_failed=self._boot_failed, kill=self.kill_worker,
            directed=self.direct.done,
        )  # fmt: skip
        self.schema: str | None = None
        self.boot_failure: packets.BootFailed | None = None
        self.changed = asyncio.Event()
        """Set whenever a worker became ready or ended."""

    # --- starting -----------------------------------------------------------------------------------------------

    async def start(self, count: int, leftovers: list[Path], timeout_ms: int) -> None:
        """Start `count` workers and wait until all are ready; the first salvages `leftovers`.

        Raises HandlerError when the handler cannot be used, WorkerStartError when a worker is not ready in time.
        """
        for index in range(count):
            self._start_one(index, [], leftovers if index == 0 else [])
        deadline = self._loop.time() + timeout_ms / 1000
        while len(self.members) < count or not all(member.ready for member in self.members.values()):
            if self.boot_failure is not None:
                raise HandlerError(f"{self.boot_failure.error}\n{self.boot_failure.traceback}".rstrip())
            if not await self._wait_changed(deadline):
                raise WorkerStartError(
                    f"a worker was not ready within workers.boot_timeout_ms = {timeout_ms}: does the handler's module do"
                    " long work when it is imported? Move it into the set-up hook, or raise the limit"
                )

    async def _wait_changed(self, deadline: float) -> bool:
        """Wait for the next change; False when the time is over."""
        self.changed.clear()
        try:
            await asyncio.wait_for(self.changed.wait(), max(0.0, deadline - self._loop.time()))
        except TimeoutError:
            return False
        return True

    def _start_one(self, index: int, salvage_of: list[str], files: list[Path]) -> None:
        self._started += 1
        worker_id = f"{self._run_id}.{self._started}"
        link, theirs = link_pair(self._transport)
        stacks = StackFile()
        slot = self._cell_slots.pop()
        boot = self._make_boot(NewWorker(worker_id, index, slot, theirs, stacks.shared, tuple(files)))
        try:
            process = self._forkserver.start_worker(boot)
        except WorkerStartError:
            link.close()
            stacks.close()
            self._cell_slots.append(slot)
            raise
        member = Member(worker_id, index, slot, process, link, stacks, salvage_of, files)
        self.members[worker_id] = member
        self._core.worker_started(worker_id)
        self._loop.add_reader(link.fileno(), self._readable, member)
        self._loop.add_reader(process.sentinel, self._process_ended, member)

    # --- feeding ------------------------------------------------------------------------------------------------

    def dispatch(self, action: Dispatch) -> None:
        """Send a chunk; a worker that is gone is noticed by its own event."""
        member = self.members.get(action.worker_id)
        if member is None:
            return
        chunk = action.chunk
        try:
            if chunk.handle not in member.known_queues:
                member.known_queues.add(chunk.handle)
                member.link.send(packets.encode_queue(chunk.handle, self._queue_info(action.mq)))
            start, end = chunk.positions[0], chunk.positions[-1]
            packet = packets.encode_chunk(chunk.chunk_id, chunk.handle, start, end - start, chunk.count)
            payload = self._slab[start:end] if self._transport is Transport.STREAM else None
            if not member.link.send(packet, payload):
                self._loop.add_writer(member.link.fileno(), self._writable, member)
        except LinkClosedError:
            return

    def seal(self, worker_id: str) -> None:
        """Ask the worker to seal its open segment."""
        member = self.members.get(worker_id)
        if member is not None:
            self._send(member, packets.encode_seal())

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
                self._loop.add_writer(member.link.fileno(), self._writable, member)

    def _writable(self, member: Member) -> None:
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

    def _is_ready(self, _member: Member, ready: packets.Ready) -> None:
        self.schema = ready.schema
        self._respawn_delay_s = RESPAWN_DELAY_MIN_S
        self.changed.set()

    def _boot_failed(self, member: Member, failed: packets.BootFailed) -> None:
        self.boot_failure = failed
        log.error("worker_boot_failed", worker=member.worker_id, error=failed.error)

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
        now = self._loop.time()
        self._core.worker_died(member.worker_id, death=self._post_mortem.look(member))
        self._acted()  # what it is charged to is written before its cell is cleared
        self._cells.clear(member.cell_slot)
        self._cell_slots.append(member.cell_slot)
        self._seal_renamed(member.worker_id, now)
        member.stack_file.close()
        member.process.close()
        files = sorted((self._segments / OPEN_DIR).glob(f"{member.worker_id}-*{SEGMENT_SUFFIX}"))
        dead = [*member.salvage_of, member.worker_id]
        self.changed.set()
        if self._stopping:
            # Nothing is started any more: what is left is salvaged by the next start, and was not committed.
            return
        if not files and not member.salvage_of:
            self._core.salvage_complete(member.worker_id, now)
            dead = []
        self._replace(member, dead, [*member.salvage_files, *files])

    def running(self, member: Member) -> Running | None:
        """Which message the worker is running, or was when it died, from its cell."""
        cell, mq = self._cells.read(member.cell_slot), self._cells.queue(member.cell_slot)
        if cell is None or mq is None:
            return None
        seconds = max(0.0, self._loop.time() - cell.started_ns / 1e9)
        return Running(mq.topic, mq.broker_name, mq.queue_id, cell.offset, seconds)

    async def stacks(self) -> list[ProcessStack]:
        """The stacks of every worker, also of those that start or leave."""
        members = sorted(self.members.values(), key=lambda member: (member.index, member.worker_id))
        return await worker_stacks(members, self.running)

    def _seal_renamed(self, worker_id: str, now: float) -> None:
        """A worker killed between the rename and its report has sealed all the same.

        A segment is there before its first outcome is reported, and leaves open/ by that rename only: one that is not in
        open/ is sealed, wherever the loader has taken it since.
        """
        for seq in self._core.unsealed_of(worker_id):
            if not (self._segments / OPEN_DIR / segment_name(worker_id, seq)).exists():
                self._core.sealed(worker_id, seq, now)

    def _replace(self, member: Member, dead: list[str], files: list[Path]) -> None:
        def start() -> None:
            if self._stopping:
                return
            try:
                self._start_one(member.index, dead, files)
            except WorkerStartError as error:
                log.error("worker_not_started", error=str(error), retry_in_s=RESPAWN_DELAY_MAX_S)
                self._loop.call_later(RESPAWN_DELAY_MAX_S, start)

        if member.ready:
            start()
            return
        self._loop.call_later(self._respawn_delay_s, start)
        self._respawn_delay_s = min(self._respawn_delay_s * 2, RESPAWN_DELAY_MAX_S)

    # --- stopping -----------------------------------------------------------------------------------------------

    async def stop(self, timeout_ms: int) -> int:
        """Let the workers seal and leave; kill those that do not within `timeout_ms`. Returns how many were killed."""
        self._stopping = True
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

    async def kill(self) -> None:
        """End every worker now, and the forkserver; what they had said is still read."""
        self._stopping = True
        for member in list(self.members.values()):
            member.stopping = True
            member.process.kill()
        while self.members and await self._wait_changed(self._loop.time() + KILL_WAIT_S):
            pass
        self._forkserver.stop()

    def pids(self) -> dict[str, int]:
        """Process ids by worker id."""
        return {worker_id: member.process.pid for worker_id, member in self.members.items()}
