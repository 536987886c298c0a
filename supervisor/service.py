"""The supervisor process: one loop, one owner of all state. Start, run, stop, each a written sequence.

Start: checks, slot and journal, slab, forkserver (before anything could start a thread), workers ready, ports; then the
cluster. What cannot start fails before the first heartbeat, so a broken deployment costs the group no rebalance; the first
pull is sent only when workers wait for it. TERM or INT during the start end it at once.

Run: every event (a socket, a timer, a worker) is given to the core, and what the core wants is done before the next one:
first the journal takes the settles, then everything else in order.

Stop (TERM, INT): the core drains, commits and ends every queue within its deadline, because an offset committed late is a
message repeated; then the member signs off, so that the group rebalances at once and finds our offsets, while the workers
seal and leave; the loader last, since it may take its time. Another signal forces: what is unfinished will repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from ..client.background import take_each
from ..client.clock import wall_ms
from ..client.route_cache import ROUTES_FILE
from ..conf.exit_codes import EXIT_FINE, EXIT_FORCED
from ..conf.limits import files_max, tasks_left, too_small
from ..conf.logging import recent_faults
from ..conf.segment_format import READY_DIR, ready_files
from ..conf.settings import Settings, is_broadcasting
from ..durable.room import needs_room
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from ..remoting.traces import TraceRecord
from ..spark.needs import check_writer
from ..workers.cells import CELLS_FILE, CellFile
from ..workers.link import Transport, choose_transport
from ..workers.loading import HandlerSpec
from ..workers.packets import QueueInfo
from ..workers.routing import check_takes
from ..workers.sentry import check_sentry
from ..workers.slab_memory import SlabMemory
from .acting import Acting
from .backlog import Backlog
from .control import Command, ControlServer
from .core import actions as act
from .core import events as ev
from .core.checks import check_consumer, subscriptions
from .core.decisions import Core
from .core.holding import holding
from .core.journal import Entry
from .core.pauses import StopSignals, StopWish
from .core.quarantine import unreported
from .core.slab import SLAB_BYTES_MIN, Slab
from .core.states import ServiceEvent, ServiceState, move_service
from .file_watch import picture as python_files
from .health import Health
from .journal_file import JournalFile
from .lifecycle import Lifecycle
from .loader_child import LoaderChild
from .member.access import in_namespace, warn_of_open_files
from .member.group_member import GroupMember
from .member.local_offsets import check_offsets_folder, own_offsets_path
from .member.stale_locks import StaleLocks
from .neighbours import Neighbours, name_lost_identity
from .notify import Notify
from .operating import Operator, check_changes, hold_signals
from .pool.charges_file import charge_left_cells, read_charges, write_charges
from .pool.hearing import OrderKept
from .pool.stacks import ProcessStack, as_text, own_stack, worker_facts
from .pool.watching import Watch
from .pool.worker_pool import Pool
from .sealing import Sealing
from .slot import (
    adopt,
    forget_socket,
    forget_targets,
    lock_client,
    slot_mode,
    take_slot,
    unlock_client,
)
from .status import picture, staffing_picture
from .terminal import Terminal
from .wiring import (
    CELL_SLOTS,
    Boots,
    backlog_marks,
    core_config,
    forkserver_for,
    own_client_id,
    staff_policy,
    table_spec,
    with_topics,
)

if TYPE_CHECKING:
    from .web import WebServer

WORKER_STOP_MS = 5_000
"""Workers have nothing left to do when they are asked to leave: sealing and the user's teardown hook."""

FORCED_COMMIT_MAX_S = 1.0
FORCED_COMMIT_LOOK_S = 0.01
"""A seal and a commit take some milliseconds. A broker that is away, or a worker that cannot seal, gets no more than this."""

HOOKS_STOP_S = 2.0
"""For what the user's hooks have not heard of yet; then they are ended."""

log = structlog.get_logger("rocketcrew.supervisor")


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended."""

    exit_code: int
    counters: dict[str, int]
    unfinished: int
    unsealed: int
    """Finished, and its rows are not durable: with `unfinished` what comes again."""
    uncommitted: int
    """Finished for good, and not committed at the broker: comes again only where another member takes over."""
    not_loaded: int = 0
    """Sealed segments that are not in the table yet."""
    staging: str = ""
    """The folder that they are in: that of this member, other slots of the group may be others'."""


class Supervisor:
    """One member of the consumer group. Made and run once: `await Supervisor(...).run()`."""

    def __init__(
        self, settings: Settings, handler: HandlerSpec, *, on_ready: Callable[[], None] | None = None,
        reread: Callable[[], Settings] | None = None, watched: Path | None = None, notify: Notify | None = None,
        terminal: Terminal | None = None, own_broker: str = "",
    ) -> None:  # fmt: skip
        """`reread` reads the configuration again, for a reload; `watched` is a folder whose changes ask for one. `notify` is
        who hears of the steps of its life. `terminal` is what the process was started at, where it is known. `own_broker` is
        the folder of a broker that was started with it, by which that is known again: its ports may be others each time."""
        self._notify = notify or Notify({}, 0)
        self._terminal = terminal or Terminal()
        self._watched = watched
        self._own_broker = own_broker
        self._reread = None if reread is None else lambda: in_namespace(with_topics(reread(), handler))
        self.settings = settings = in_namespace(with_topics(settings, handler))
        self.handler = handler
        self.topics = subscriptions(settings.consumer.topics)
        check_consumer(settings, self.topics, handler.name)
        self.service = ServiceState.CREATE_JUST
        self._on_ready = on_ready
        self._stop_asked = asyncio.Event()
        self._stop_signals = StopSignals()
        self._finished = asyncio.Event()
        self._forced = asyncio.Event()
        self._refused: UsageError | None = None
        """Why it ends by itself, after a stop like any other."""
        self._left = act.Finished(0, 0, 0, 0)
        self._web: WebServer | None = None
        self._to_end: list[Callable[[], Awaitable[None]]] = []
        """What a stop by force, or a start that failed, has to end."""

    def _data_dir(self) -> Path:
        """Absolute: handlers may change the current folder of their workers, and functions of foreach that of the loader."""
        return Path(self.settings.supervisor.data_dir).absolute()

    async def run(self) -> Summary:
        """Run until a signal stops it. Raises what keeps it from starting."""
        self.service = move_service(self.service, ServiceEvent.START)
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signal, number)
        hold_signals(self._loop, self._terminal, self.stop)
        self.client_id = own_client_id(self.settings)
        data_dir, group = self._data_dir(), self.settings.consumer.group
        member = self.client_id if is_broadcasting(self.settings) else ""
        self._slot = take_slot(data_dir, group, member, mode=slot_mode(self.settings.spark.master))
        lock: int | None = None
        try:
            with needs_room(data_dir):
                lock = lock_client(data_dir, group, self.client_id)
                self._prepare()
                started = await self._start_unless_stopped()
            if not started:
                if self._refused is not None:
                    raise self._refused
                return self._summary(EXIT_FINE)
            self.service = move_service(self.service, ServiceEvent.STARTED)
            self._lifecycle.started(os.getpid(), tuple(self.topics))
            self._notify.ready(f"consuming {', '.join(self.topics)} as {group}")
            if self._on_ready is not None:
                self._on_ready()
            if not self._pool.failure:
                await self._stop_asked.wait()
            if self._pool.failure:
                return await self._fail()
            summary = await self._stop()
            if self._refused is not None:
                raise self._refused
            return summary
        finally:
            self._notify.end()
            if lock is not None:
                unlock_client(data_dir, group, self.client_id, lock)
            self._slot.release()

    # --- start --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Everything that needs no other process: state on disk, memory, the core."""
        settings = self.settings
        warn_of_open_files(settings)
        forget_socket(self._slot.path)
        self._refused_slots: dict[str, str] = {}
        self._journal_state, self._settled, adopted = adopt(self._slot, self._refused_slots)
        if adopted:
            log.info("slots_taken_over", slots=adopted)
        if self._slot.member:
            offsets = own_offsets_path(settings.consumer, self.client_id)
            check_offsets_folder(offsets)
            name_lost_identity(self._slot, offsets, self._journal_state)
        self._transport = choose_transport(settings.workers.transport)
        slab = Slab(max(settings.memory.pulled_bytes_mib << 20, SLAB_BYTES_MIN))
        self._memory = SlabMemory(slab.size_bytes) if self._transport is Transport.SLAB else None
        self._view = self._memory.view if self._memory is not None else memoryview(bytearray(slab.size_bytes))
        self.core = Core(core_config(settings, self.client_id, tuple(self.topics)), slab, self._view)
        self._neighbours = Neighbours(
            self._slot, self._refused_slots, self.core.unexpected_error, self._stop_asked.is_set
        )
        self._sealing = Sealing(
            self._slot, self.core.state, settings.consumer.persist_consumer_offset_interval_ms, self.core.unexpected_error,
            wanted=settings.results.enabled,
        )  # fmt: skip
        self._stale_locks = StaleLocks(self._slot.path, self.client_id)
        read_charges(self._slot.path, self.core.state.charges)
        charge_left_cells(self._slot.path, self.core.state.charges)
        self._acting = Acting(self.core, self._journal_entries, self._slot.journal)
        self._acting.perform({
            act.Finished: lambda _: self._finished.set(),
            act.ChargesChanged: lambda _: write_charges(self._slot.path, self.core.state.charges),
            act.CountCellsAnew: lambda _: self._count_cells_anew(),
        })  # fmt: skip
        self.acted = self._acting.acted
        self._lifecycle = Lifecycle(settings, self.core)
        self._acting.logged = self._lifecycle.logged
        self._loop.set_exception_handler(self._unexpected)

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback, or a task that nobody waits for, has failed: the loop goes on."""
        log.error("callback_failed", what=str(context.get("message", "")), exc_info=context.get("exception"))
        self.core.unexpected_error()

    async def _start_unless_stopped(self) -> bool:
        """Start; False when a stop was asked for before it was done: then everything is ended again."""
        starting = asyncio.ensure_future(self._start())
        asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                return True
        except BaseException:
            await self._end_start(starting)
            raise
        finally:
            asked.cancel()
        log.info("stopped_while_starting")
        await self._end_start(starting)
        return False

    async def _end_start(self, starting: asyncio.Future[None]) -> None:
        """A start that failed or is not wanted any more: nothing of it goes on."""
        starting.cancel()
        await asyncio.wait((starting,))
        await self._abandon()

    async def _start(self) -> None:
        check_sentry(self.settings.sentry)
        as_booted = {} if self._watched is None else await asyncio.to_thread(python_files, self._watched)
        self._to_end.append(self._lifecycle.kill)
        await self._lifecycle.start()
        workers = await self._start_workers()
        settings = self.settings
        if settings.results.enabled and settings.spark.load and self._pool.schema is not None:
            check_writer(settings.spark)
        self._recover()
        await self._sealing.sealed()  # an assignment's first entry in the journal covers the range that it is about
        operator = self._operator = self._make_edges()
        self._acting.check_complete()
        await self._listen()
        await self._member.start()
        operator.listen()
        self._to_end.append(operator.end)
        if self._watched is not None:
            operator.watch_files(self._watched, as_booted)
        await self._control.serve()
        self._start_loading()
        self.core.handle(ev.Start(), self._loop.time())
        self._sealing.start()
        self._to_end.append(self._sealing.kill)
        self.acted()
        log.info("running", group=self.settings.consumer.group, client_id=self.client_id, workers=workers,
                 topics=list(self.topics), slot=str(self._slot.path))  # fmt: skip

    def _make_edges(self) -> Operator:
        """What reaches the cluster, the loader and operators; nothing of it acts yet."""
        settings = self.settings
        self._member = GroupMember(
            settings, self.client_id, self.topics, self.core, self._view, self.acted, self._acting.soon,
            self._stacks_text, self._pool.direct.consume, self._stale_locks, self._own_broker, self._sealing.sealed,
            self._sealing.all_sealed, self._slot.path / ROUTES_FILE, self._refuse_cluster,
        )  # fmt: skip
        self._to_end.append(self._member.kill)
        self._acting.perform(self._member.performs)
        self._loader = LoaderChild(settings, self._slot, oom_kills=self._pool.oom_kills.take)
        self._acting.perform({act.Load: lambda _: self._loader.load_now()})
        self._backlog = Backlog(self.core, self._slot.segments, backlog_marks(settings), self.acted)
        operator = Operator(
            self.core, self._pool, self._boots, acted=self.acted, reread=self._reread,
            stacks=self.stacks, stop=self.stop, quick=self._quick, order=self._order, notify=self._notify,
            terminal=self._terminal,
        )  # fmt: skip
        self._commands: dict[str, Command] = {
            "status": lambda _: self.picture(),
            "holding": self._asked_what_holds,
            "stop": self._asked_to_stop,
            "subscribe": self._asked_to_subscribe,
            "unsubscribe": self._asked_to_unsubscribe,
            **operator.commands(),
        }
        self._control = ControlServer(self._slot.path, self._commands)
        return operator

    async def _listen(self) -> None:
        """Take the ports. Raises UsageError for one that is taken."""
        await self._control.bind()
        self._to_end.append(self._control.stop)
        settings = self.settings.metrics
        forget_targets(self._slot.path)
        if settings.port:
            from .web import Site, WebServer  # brings prometheus_client, which few supervisors need

            site = Site(settings, self.picture, self._commands, Health(), self._loop.time, recent_faults)
            self._web = WebServer(settings, site, self._slot.path, self.settings.consumer.group)
            await self._web.start()
            self._to_end.append(self._web.stop)

    def _start_loading(self) -> None:
        """The loader, and the looks at what waits for it, here and beside us."""
        settings = self.settings
        if not settings.results.enabled:
            return
        self._backlog.start()
        self._to_end.append(self._backlog.stop)
        loads = settings.spark.load and self._pool.schema is not None
        if loads:
            self._loader.start()
            self._to_end.append(self._loader.kill)
        self._neighbours.start(takes=loads)
        self._to_end.append(self._neighbours.end)

    async def _start_workers(self) -> int:
        """How many there are; all of them are ready."""
        settings = self.settings
        self._cells = CellFile(self._slot.path / CELLS_FILE, CELL_SLOTS)
        self._count_cells_anew()
        self._run_id = f"w{wall_ms():x}{secrets.token_hex(2)}"
        self._sealed_unnoted = self._slot.sealed_tokens() & self._journal_state.pending.keys()
        left = self._slot.left_behind(() if self.core.state.config.commit_after_loaded else self._sealed_unnoted)
        table = table_spec(settings, self._slot)
        self._boots = Boots(settings, self.handler, self._slot, self._transport, self._memory, self.client_id, table)
        policy = staff_policy(settings)
        for limit in too_small(policy.count, files_max(), tasks_left()):
            log.warning("limit_too_small", **limit)
        kept = OrderKept(settings)
        self._pool = Pool(
            self.core, policy, run_id=self._run_id, transport=self._transport, segments=self._slot.segments,
            left_behind=left, cells=self._cells, queue_info=self._queue_info, slab=self._view,
            acted=self.acted, gave_up=self._gave_up, reload_ended=self._reload_ended, check=kept.check,
            traced=self._traced, direct_timeout_s=settings.consumer.consume_timeout_min * 60,
        )  # fmt: skip
        self._pool.launcher.add(0, forkserver_for(self.handler, settings), self._boots)
        self._acting.perform(self._pool.performs)
        self._to_end.append(self._pool.kill)
        watch = Watch(
            self._cells, self._pool.children, self.core.busy_workers, settings.workers.stall_timeout_ms,
            partial(unreported, self.core.state),
        )  # fmt: skip
        watch.start()
        self._to_end.append(watch.stop)
        await self._pool.start()
        self._order = kept.begin(self.core, self._pool.said)
        return policy.count

    def _recover(self) -> None:
        """Join the journal of the last run with the segments that were found, and go on in a new journal."""
        state = self._journal_state
        if not self.core.state.config.commit_after_loaded:
            state.join(self._pool.hearing.leftovers, self._sealed_unnoted)
        lost = state.begin_run(self._run_id)
        recovered = state.recovered()
        self.core.recover(recovered, state.sent())
        self.core.state.outcomes.recovered(state, self._settled)
        self._journal = JournalFile(
            self._slot.journal, state, self.settings.supervisor.journal_max_mib << 20, forgets=self._count_cells_anew
        )
        self._to_end.insert(0, self._close_journal)  # the last: what the killed workers had finished is written before
        if recovered or lost:
            messages = sum(intervals.total() for _, intervals in recovered.values())
            again = "segments_run_again" if self.core.state.config.commit_after_loaded else "segments_not_found"
            log.info("recovered", finished_above_commit=messages, queues=len(recovered), **{again: lost})

    def _count_cells_anew(self) -> None:
        """What the cells show of chunks that are out by now is not told to the journal."""
        self._cells.counts_from = next(self.core.state.chunk_ids)

    def _journal_entries(self, entries: Sequence[Entry]) -> None:
        self._journal.append(entries)

    async def _close_journal(self) -> None:
        """At the end of the run; the last entries are in it."""
        self._journal.close()

    def _traced(self, records: Sequence[TraceRecord]) -> None:
        self._member.traced(records)

    def _reload_ended(self, generation: int) -> None:
        if self._operator.reload_ended(generation):
            self._lifecycle.renew()

    def _queue_info(self, handle: int, mq: MessageQueue) -> QueueInfo:
        return QueueInfo(
            self.settings.consumer.group, mq.topic, mq.broker_name, mq.queue_id, self._member.wanted_tags(mq.topic),
            self.settings.cluster.namespace, self.core.popping.is_popped(handle, mq),
        )  # fmt: skip

    # --- run ----------------------------------------------------------------------------------------------------

    def picture(self) -> dict[str, Any]:
        """The status, as the control socket and the metrics page show it."""
        now = self._loop.time()
        extra = {
            "loader": self._loader.status(), "schema": self._pool.schema,
            "backlog": self._neighbours.counted_in(self._backlog.status()),
            "slot": str(self._slot.path),
            "run": self._run_id,
            "pid": os.getpid(),
            "http_port": self._web.port if self._web is not None else 0,
            "staff": staffing_picture(self._pool.staffing),
            "recent_failures": self.core.state.recent_failures.picture(now),
            **self._member.picture(),
        }  # fmt: skip
        pool = self._pool
        facts = worker_facts(pool.children.values(), pool.running, pool.blocked(), pool.hard_limit_s, now)
        return picture(self.core, self.service, facts, extra)

    async def stacks(self) -> list[ProcessStack]:
        """What every process does at this instant: the supervisor first, then the workers, then who helps them. Takes at
        most a second."""
        return [own_stack(self.client_id), *await self._pool.stacks(self._loader.helpers)]

    async def _stacks_text(self) -> str:
        return as_text(await self.stacks())

    def subscribe(self, topic: str, expression: str = "*") -> bool:
        """Consume the topic too, or with another filter: tags, or SQL92:expression; False when it is so already.

        Raises StateError unless it runs, UsageError for a topic or filter that cannot be, a topic that no handler takes, and
        when it is stopping.
        """
        self.service = move_service(self.service, ServiceEvent.USE)
        check_changes(self.core)
        check_takes(self.handler.name, self.handler.subscriptions or (), topic)
        return self._member.subscribe(*self._member.wish(topic, expression))

    def unsubscribe(self, topic: str) -> bool:
        """Consume the topic no more; False when it is not subscribed. Raises StateError, UsageError for the last one and
        when it is stopping."""
        self.service = move_service(self.service, ServiceEvent.USE)
        check_changes(self.core)
        return self._member.unsubscribe(topic)

    async def _asked_to_subscribe(self, request: Any) -> dict[str, Any]:
        check_changes(self.core)  # and once more when the broker has answered
        topic, expression = str(request.get("topic", "")), str(request.get("filter", "*"))
        await self._member.check_filter(topic, expression)
        return {"changed": self.subscribe(topic, expression)}

    def _asked_to_unsubscribe(self, request: Any) -> dict[str, Any]:
        return {"changed": self.unsubscribe(str(request.get("topic", "")))}

    # --- stop ---------------------------------------------------------------------------------------------------

    def _signal(self, number: int) -> None:
        if self.service is ServiceState.SHUTDOWN_ALREADY:
            return  # there is nothing left to force
        wish = self._stop_signals.heard(time.monotonic())
        if wish is StopWish.FORCE:
            log.warning("forced", signal=signal.Signals(number).name)
            self._forced.set()
        elif wish is StopWish.STOP:
            log.info("stopping", signal=signal.Signals(number).name)
            self._stop_asked.set()

    def stop(self) -> None:
        """Begin to stop, as TERM does; TERM after it forces."""
        if not self._stop_asked.is_set():
            self._stop_signals.heard(time.monotonic())
            self._stop_asked.set()

    def _quick(self) -> None:
        log.warning("stopping_quickly")
        self._forced.set()
        self._stop_asked.set()

    async def _asked_what_holds(self, _request: Any) -> dict[str, Any]:
        stacks = await self.stacks()
        return {
            "group": self.core.state.config.group,
            "queues": holding(self.core.state),
            "popped": self.picture()["popped"],
            "missing_topics": self._member.missing_topics(),
            "unlisted_topics": self.core.unlisted.topics,
            "paused": sorted(self.core.state.paused),
            "processes": [each.as_dict() for each in stacks if each.process == "worker"],
            "blocked": self._pool.blocked(),
        }

    def _asked_to_stop(self, request: Any) -> dict[str, Any]:
        if request.get("quick"):
            self._quick()
        else:
            self.stop()
        return {"stopping": True}

    async def _stop(self) -> Summary:
        self._notify.stopping()
        self._cells.stopping = True
        self._pool.cancel_handlers()
        loading_from = self._loop.time() + self.core.state.config.stop_deadline_ms / 1000
        self.core.handle(ev.Stop(), self._loop.time())
        self.acted()
        finished = asyncio.ensure_future(self._finished.wait())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait((finished, forced), return_when=asyncio.FIRST_COMPLETED)
        if not self._finished.is_set():
            await self._commit_finished()
            return await self._force()
        loaded_for_s = max(0.0, self._loop.time() - loading_from)
        try:
            # Every queue has ended, and its offset is committed. Others may have them now: teardown hooks, and a call that
            # was given up, may take workers seconds to end.
            signed_off = asyncio.ensure_future(self._member.sign_off())
            killed = await self._pool.stop(WORKER_STOP_MS)
            self.acted()
            await take_each(
                self._sealing.end,
                lambda: signed_off,
                self._leave_group,
                lambda: self._loader.stop(self._not_loaded(), self._forced, loaded_for_s),
                lambda: self._lifecycle.finish(HOOKS_STOP_S),
            )
        finally:
            await self._abandon()
        self.service = move_service(self.service, ServiceEvent.STOPPED)
        left = self._left = self.core.assigning.leaving.left()  # a reset may have come after the last queue had ended
        summary = self._summary(EXIT_FINE)
        log.info(
            "stopped", clean=left.clean and not killed, unfinished=left.unfinished, unsealed=left.unsealed,
            uncommitted=left.uncommitted, resets_not_committed=left.moves_given_up, not_loaded=summary.not_loaded,
        )  # fmt: skip
        return summary

    async def _leave_group(self) -> None:
        await self._member.stop()
        self._stale_locks.forget()

    def _gave_up(self, error: str) -> None:
        log.critical("no_worker_can_boot", error=error)
        if self.service is ServiceState.RUNNING:  # a start fails by itself
            self._stop_asked.set()

    def _refuse_cluster(self, error: UsageError) -> None:
        """Nothing that is here may meet its queues, of which none was opened."""
        if self._refused is None:
            self._refused = error
            log.critical("another_cluster", error=str(error))
            self._stop_asked.set()

    async def _fail(self) -> Summary:
        """No worker can boot, so nothing more can be finished: commit what is, leave the group, and say why."""
        self.core.handle(ev.Stop(), self._loop.time())
        self.acted()
        await self._commit_finished()
        try:
            await take_each(self._member.sign_off, self._member.stop)
        finally:
            await self._force()
        raise self._pool.why_none()

    async def _commit_finished(self) -> None:
        """Before a stop by force: the offsets of what is finished are sent, once its rows are sealed. The journal keeps a
        restart of this slot from repeating it, but nobody else reads that: another member, or a tool that moves offsets."""
        leaving, deadline = self.core.assigning.leaving, self._loop.time() + FORCED_COMMIT_MAX_S
        asked: dict[int, int] | None = None
        while leaving.owes_commits() and self._loop.time() < deadline:
            new = leaving.uncommitted()
            # At first also for the seals. A commit that a broker refuses is not asked for again here, every ten milliseconds.
            if asked is None or any(asked.get(handle) != offset for handle, offset in new.items()):
                asked = (asked or {}) | new
                self.core.handle(ev.Persist(), self._loop.time())
                self.acted()
            await asyncio.sleep(FORCED_COMMIT_LOOK_S)

    async def _force(self) -> Summary:
        """At once: nothing is drained, nothing signs off; the journal has every outcome that was written."""
        leaving = self.core.assigning.leaving
        leaving.give_up_moves()
        self.acted()
        left = self._left = leaving.left()
        await self._abandon()
        self.service = move_service(self.service, ServiceEvent.STOPPED)
        summary = self._summary(EXIT_FORCED)
        log.warning(
            "stopped_by_force", to_be_repeated=left.unfinished, unsealed=left.unsealed, uncommitted=left.uncommitted,
            resets_not_committed=left.moves_given_up, not_loaded=summary.not_loaded,
        )  # fmt: skip
        return summary

    def _summary(self, exit_code: int) -> Summary:
        left = self._left
        return Summary(
            exit_code, self.core.state.counters.as_dict(), left.unfinished, left.unsealed, left.uncommitted,
            self._not_loaded(), str(self._slot.segments),
        )  # fmt: skip

    def _not_loaded(self) -> int:
        with contextlib.suppress(OSError):
            return len(ready_files(self._slot.segments / READY_DIR))
        return 0

    async def _abandon(self) -> None:
        """End what was started, in any state of a start, the newest first, whatever one of them raises."""
        ends = self._to_end[::-1]
        self._to_end.clear()
        await take_each(*ends)
