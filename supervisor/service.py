"""The supervisor process: one loop, one owner of all state. Start, run, stop, each a written sequence.

Start: checks, slot and journal, slab, forkserver (before anything could start a thread), workers ready, then the cluster.
The first pull is sent only when workers wait for it.

Run: every event (a socket, a timer, a worker) is given to the core, and what the core wants is done before the next one:
first the journal takes the settles, then everything else in order.

Stop (TERM, INT): the core drains, commits and ends every queue within its deadline, because an offset told late is a
message repeated; then the workers seal and leave; then the member signs off, so that the group rebalances at once and
finds our offsets; the loader last, since it may take its time. A second signal forces: what is unfinished will repeat.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from ..client.identity import client_id, client_ip, instance_name
from ..conf.settings import Settings
from ..workers.boot import WorkerBoot, WorkerLimits
from ..workers.cells import CellFile
from ..workers.link import Transport, choose_transport
from ..workers.loading import HandlerSpec
from ..workers.packets import QueueInfo
from ..workers.slab_memory import SlabMemory
from ..workers.spawn import Forkserver
from . import actions as act
from .allocation import strategy_named
from .checks import check_consumer, subscriptions
from .control import ControlServer
from .core import Core
from .journal import Entry
from .journal_file import JournalFile
from .loader_child import LoaderChild
from .member import GroupMember
from .metrics import MetricsServer
from .pool import Pool
from .slab import SLAB_BYTES_MIN, Slab
from .slot import adopt, take_slot, write_settled
from .state import CoreConfig
from .states import SERVICE, Service, ServiceEvent, move
from .status import picture

EXIT_FINE = 0
EXIT_FORCED = 5
RETRY_PREFIX = "%RETRY%"
WORKER_STOP_MS = 5_000
"""Workers have nothing left to do when they are told to leave: sealing and the user's teardown hook."""
CELLS_FILE = "cells"
"""In the slot: what each worker is running, readable after its death."""

log = structlog.get_logger("rocketcrew.supervisor")


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended."""

    exit_code: int
    counters: dict[str, int]
    unfinished: int
    unsealed: int


class Supervisor:
    """One member of the consumer group. Made and run once: `await Supervisor(...).run()`."""

    def __init__(self, settings: Settings, handler: HandlerSpec, *, on_ready: Callable[[], None] | None = None) -> None:
        self.settings = settings
        self.handler = handler
        self.topics = subscriptions(settings.consumer.topics)
        check_consumer(settings, self.topics)
        self.service = Service.CREATE_JUST
        self._on_ready = on_ready
        self._stop_asked = asyncio.Event()
        self._finished = asyncio.Event()
        self._forced = asyncio.Event()
        self._left = act.Finished(0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._journal_failed = False
        self._acting = False
        self._to_end: list[Callable[[], Awaitable[None]]] = []
        """What a stop by force, or a start that failed, has to end."""

    async def run(self) -> Summary:
        """Run until a signal stops it. Raises what keeps it from starting."""
        self._loop = asyncio.get_running_loop()
        self._slot = take_slot(Path(self.settings.supervisor.data_dir), self.settings.consumer.group)
        try:
            self._prepare()
            try:
                await self._start()
            except BaseException:
                self.service = move(SERVICE, self.service, ServiceEvent.FAILED)
                await self._abandon()
                raise
            self.service = move(SERVICE, self.service, ServiceEvent.STARTED)
            if self._on_ready is not None:
                self._on_ready()
            await self._stop_asked.wait()
            return await self._stop()
        finally:
            self._slot.release()

    # --- start --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Everything that needs no other process: state on disk, memory, the core."""
        settings = self.settings
        self._journal_state, self._settled, adopted = adopt(self._slot)
        if adopted:
            log.info("slots_taken_over", slots=adopted)
        self._transport = choose_transport(settings.workers.transport)
        slab = Slab(max(settings.memory.pulled_bytes_mib << 20, SLAB_BYTES_MIN))
        self._memory = SlabMemory(slab.size_bytes) if self._transport is Transport.SLAB else None
        self._view = self._memory.view if self._memory is not None else memoryview(bytearray(slab.size_bytes))
        instance = instance_name(settings.cluster.instance_name, pid=os.getpid(), nanos=time.monotonic_ns())
        self.client_id = client_id(client_ip(settings.cluster.client_ip), instance, settings.cluster.unit_name)
        self.core = Core(self._core_config(), slab, self._view)
        self.core.state.settled = self._settled
        self._do: dict[type, Callable[[Any], None]] = {
            act.Dispatch: lambda a: self._pool.dispatch(a),  # noqa: PLW0108  the pool is made later
            act.Seal: lambda a: self._pool.seal(a.worker_id),
            act.KillWorker: lambda a: self._pool.kill_worker(a.worker_id, a.reason),
            act.Log: _log,
            act.Finished: self._core_finished,
        }

    def _core_config(self) -> CoreConfig:
        s, c = self.settings, self.settings.consumer
        return CoreConfig(
            client_id=self.client_id,
            group=c.group,
            topics=(*self.topics, RETRY_PREFIX + c.group),
            strategy=strategy_named(c.allocate_strategy),
            pull_threshold_for_queue=c.pull_threshold_for_queue,
            pull_threshold_size_bytes=c.pull_threshold_size_for_queue_mib << 20,
            consume_concurrently_max_span=c.consume_concurrently_max_span,
            pull_interval_ms=c.pull_interval_ms,
            persist_interval_ms=c.persist_consumer_offset_interval_ms,
            rebalance_interval_ms=c.rebalance_interval_ms,
            chunk_target_us=s.workers.chunk_target_us,
            chunk_messages_max=s.workers.chunk_messages_max,
            chunks_in_flight=s.workers.chunks_in_flight,
            send_back_retry_ms=s.supervisor.send_back_retry_ms,
            drain_deadline_ms=s.supervisor.drain_deadline_ms,
            stop_deadline_ms=s.supervisor.stop_deadline_ms,
        )

    async def _start(self) -> None:
        settings = self.settings
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signal, number)
        self._forkserver = Forkserver([self.handler.module] if self.handler.module else [])
        self._forkserver.start()
        count = settings.workers.count or os.cpu_count() or 1
        self._cells = CellFile(self._slot.path / CELLS_FILE, count)
        run_id = f"w{time.time_ns() // 1_000_000:x}"
        self._pool = Pool(
            self.core, self._forkserver, self._boot, run_id=run_id, transport=self._transport,
            segments=self._slot.segments, cells=self._cells, queue_info=self._queue_info, slab=self._view, acted=self.acted,
        )  # fmt: skip
        self._to_end.append(self._pool.kill)
        await self._pool.start(count, self._slot.open_segments(), settings.workers.boot_timeout_ms)
        self._recover()
        self._to_end.append(self._close_journal)
        self._member = GroupMember(settings, self.client_id, self.topics, self.core, self._view, self.acted)
        self._to_end.append(self._member.kill)
        self._do |= self._member.performs
        await self._member.start()
        self._control = ControlServer(
            self._slot.path, {"status": lambda _: self.picture(), "stop": self._asked_to_stop}
        )
        await self._control.start()
        self._to_end.append(self._control.stop)
        if settings.metrics.port:
            metrics = MetricsServer(settings.metrics.host, settings.metrics.port, self.picture)
            await metrics.start()
            self._to_end.append(metrics.stop)
        self._loader = LoaderChild(settings, self._slot)
        if settings.results.enabled and settings.spark.load and self._pool.schema is not None:
            self._loader.start()
            self._to_end.append(self._loader.kill)
        self.core.start(self._loop.time())
        self._publish_settled()
        self.acted()
        log.info("running", group=settings.consumer.group, client_id=self.client_id, workers=count,
                 topics=list(self.topics), slot=str(self._slot.path))  # fmt: skip

    def _recover(self) -> None:
        """Join the journal of the last run with the segments that were found, and go on in a new journal."""
        state = self._journal_state
        for worker_id, seq, records in self._pool.leftovers:
            for mq, pairs in records:
                for start, end in pairs:
                    state.apply(act.JournalDone(mq, start, end, worker_id, seq))
            state.sealed((worker_id, seq))
        for token in self._slot.sealed_tokens():
            state.sealed(token)
        lost = state.forget_pending()
        recovered = state.recovered()
        self.core.recover(recovered)
        self._journal = JournalFile(self._slot.journal, state, self.settings.supervisor.journal_max_mib << 20)
        if recovered or lost:
            messages = sum(intervals.total() for _, intervals in recovered.values())
            log.info("recovered", finished_above_commit=messages, queues=len(recovered), segments_not_found=lost)

    def _boot(self, worker_id: str, index: int, link: socket.socket, salvage: tuple[Path, ...]) -> WorkerBoot:
        s = self.settings
        return WorkerBoot(
            worker_id=worker_id,
            index=index,
            handler=self.handler,
            link=link,
            transport=self._transport,
            slab=self._memory.handle() if self._memory is not None else None,
            group=s.consumer.group,
            segments_dir=self._slot.segments if s.results.enabled else None,
            schema=s.results.schema,
            salvage=salvage,
            cells_path=self._slot.path / CELLS_FILE,
            cell_slot=index,
            member=self.client_id,
            limits=WorkerLimits(
                batch_messages_max=s.consumer.consume_message_batch_max_size,
                delay_level=s.consumer.delay_level_when_next_consume,
                flush_interval_us=s.workers.flush_interval_us,
                seal_rows=s.results.seal_rows,
                seal_bytes=s.results.seal_bytes_mib << 20,
                seal_idle_ms=s.results.seal_idle_ms,
            ),
            log_format=s.log.format,
            log_level=s.log.level,
        )

    def _queue_info(self, mq: Any) -> QueueInfo:
        return QueueInfo(
            self.settings.consumer.group, mq.topic, mq.broker_name, mq.queue_id, self._member.wanted_tags(mq.topic)
        )

    # --- run ----------------------------------------------------------------------------------------------------

    def acted(self) -> None:
        """Do what the core wants after events were given to it."""
        if self._acting:
            return  # an action's own event: the loop below takes what it adds
        self._acting = True
        try:
            while todo := self.core.take_actions():
                self._do_all(todo)
        finally:
            self._acting = False
        self._set_timer()

    def _do_all(self, todo: list[act.Action]) -> None:
        entries: list[Entry] = [
            a for a in todo if isinstance(a, (act.JournalDone, act.JournalSealed, act.JournalCommitted))
        ]
        if entries:
            self._write_journal(entries)
        for action in todo:
            do = self._do.get(type(action))
            if do is not None:
                do(action)

    def _write_journal(self, entries: list[Entry]) -> None:
        try:
            self._journal.append(entries)
            if self._journal_failed:
                self._journal_failed = False
                log.info("journal_written_again", path=str(self._slot.journal))
        except OSError as error:
            # Its state in memory is whole: nothing is lost but the skip of finished messages after a kill now.
            if not self._journal_failed:
                log.error("journal_write_failed", path=str(self._slot.journal), error=str(error))
            self._journal_failed = True

    def _set_timer(self) -> None:
        due = self.core.next_timer()
        if due is None or due >= self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer_due = float("inf")
        self._timer = None
        self.core.tick(self._loop.time())
        self.acted()

    def _publish_settled(self) -> None:
        try:
            write_settled(self._slot.segments, self.settings.consumer.group, self.core.state.settled)
        except OSError as error:
            log.error("settled_write_failed", error=str(error))
        delay_s = self.settings.consumer.persist_consumer_offset_interval_ms / 1000
        self._settled_timer = self._loop.call_later(delay_s, self._publish_settled)

    def picture(self) -> dict[str, Any]:
        """The status, as the control socket and the metrics page show it."""
        extra = {"loader": self._loader.status(), "schema": self._pool.schema, "slot": str(self._slot.path)}
        return picture(self.core, self.service, self._pool.pids(), extra)

    # --- stop ---------------------------------------------------------------------------------------------------

    def _signal(self, number: int) -> None:
        if self._stop_asked.is_set():
            log.warning("forced", signal=signal.Signals(number).name)
            self._forced.set()
        else:
            log.info("stopping", signal=signal.Signals(number).name)
            self._stop_asked.set()

    def stop(self) -> None:
        """Begin to stop, as TERM does."""
        self._stop_asked.set()

    def _asked_to_stop(self, _request: Any) -> dict[str, Any]:
        self.stop()
        return {"stopping": True}

    def _core_finished(self, action: act.Finished) -> None:
        self._left = action
        self._finished.set()

    async def _stop(self) -> Summary:
        self.core.stop(self._loop.time())
        self.acted()
        finished = asyncio.ensure_future(self._finished.wait())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait((finished, forced), return_when=asyncio.FIRST_COMPLETED)
        if not self._finished.is_set():
            return await self._force()
        killed = await self._pool.stop(WORKER_STOP_MS)
        self.acted()
        self._settled_timer.cancel()
        self._publish_settled()
        self._settled_timer.cancel()
        await self._member.stop()
        await self._loader.stop(forced=self._forced)
        await self._abandon()
        self.service = move(SERVICE, self.service, ServiceEvent.STOPPED)
        clean = not (self._left.unfinished or self._left.unsealed or killed)
        log.info("stopped", clean=clean, unfinished=self._left.unfinished, unsealed=self._left.unsealed)
        return self._summary(EXIT_FINE)

    async def _force(self) -> Summary:
        """At once: nothing is drained, nothing signs off; the journal has every outcome that was written."""
        state = self.core.state
        unfinished = sum(pq.unfinished for pq in state.queues.values())
        unsealed = sum(chunk.reported for chunks in state.unsealed.values() for chunk in chunks)
        self._left = act.Finished(unfinished, unsealed)
        await self._abandon()
        self.service = move(SERVICE, self.service, ServiceEvent.STOPPED)
        log.warning("stopped_by_force", to_be_repeated=unfinished, unsealed=unsealed)
        return self._summary(EXIT_FORCED)

    def _summary(self, exit_code: int) -> Summary:
        return Summary(exit_code, self.core.state.counters.as_dict(), self._left.unfinished, self._left.unsealed)

    async def _abandon(self) -> None:
        """End what was started, in any state of a start, the newest first."""
        while self._to_end:
            await self._to_end.pop()()

    async def _close_journal(self) -> None:
        self._journal.close()


def _log(action: act.Log) -> None:
    log.log(_LEVELS[action.level], action.event, **action.keys)


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
