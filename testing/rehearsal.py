"""A handler run in this process, by the supervisor's core, a worker's loop and a broker's core, with time wound by hand.

    with Rehearsal(handle) as rehearsal:
        rehearsal.send(message(topic="orders", body=b"..."))
        rehearsal.wind(0)               # what can be done at once
        rehearsal.wind(10)              # ten seconds later: a first retry
        rehearsal.result()

One thread, one worker, no socket but the worker's own link to its supervisor. Time stands still while the handler runs, and
goes from one moment at which something is due to the next. So a run is the same each time, and four hours of retries take
less than a second. What depends on time that passes inside a handler (time limits, a slow call) needs real workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import mmap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, cast

import pyarrow
import pyarrow.ipc

from ..conf.folders import folder_names
from ..conf.segment_format import KEY_COLUMNS, OPEN_DIR, READY_DIR
from ..conf.settings import Settings, is_broadcasting, load
from ..conf.units import NS_PER_S
from ..remoting.arguments import FILLED, NONE, TABLE, TEXT, TEXTS, check, number, refuse
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.names import RETRY_PREFIX
from ..remoting.queues import MessageQueue
from ..supervisor.core import actions as act
from ..supervisor.core import events as ev
from ..supervisor.core.checks import check_consumer, subscriptions
from ..supervisor.core.decisions import Core
from ..supervisor.core.order import HandlerOrder, resolve
from ..supervisor.core.slab import SLAB_BYTES_MIN, Slab
from ..supervisor.core.state import Worker
from ..supervisor.core.subscriptions import Subscriptions
from ..supervisor.pool.hearing import hear_ordered
from ..supervisor.wiring import core_config
from ..workers import ordered_packets, packets
from ..workers.api import Handler, Handlers
from ..workers.async_runner import one_call_at_a_time
from ..workers.boot import worker_bounds
from ..workers.cells import private_cell
from ..workers.context import Context, enter
from ..workers.ddl import INFER, as_schema
from ..workers.failures import reconsume_limit
from ..workers.inferring import Inferring, declared_columns
from ..workers.link import Transport, WorkerLink, link_pair
from ..workers.loading import HandlerLoadError, describe, find, import_module, ready
from ..workers.main import consume_hooks, loop_for, run_hook, set_up_handler
from ..workers.memory_watch import LeavingError
from ..workers.message import Message, make_message
from ..workers.packets import QueueInfo
from ..workers.plain_rows import plain_rows
from ..workers.result_types import check_result_type
from ..workers.routing import agreed_topics, check_order, handler_of
from ..workers.rows import RowBuffer
from ..workers.runner import Place
from ..workers.sealing import Sealer
from ..workers.segment import SegmentWriter
from ..workers.sends import Send, SendError, sending
from ..workers.trial_import import handlers_of
from ..workers.watching import watched
from ..workers.worker import WorkerLoop
from .inner_broker import InnerBroker, InnerEdge, WentBack
from .making import START_MS, message
from .result import Call, DeadLetter, Result, Retried
from .witness import Witness

pa: Any = pyarrow

CALLS_PER_MESSAGE_MAX: Final = 1_000
"""A handler that suspends its queue for ever would otherwise be called for ever."""
SETTLE_MAX_S: Final = 24 * 3600.0
"""Sixteen retries of RocketMQ's default delays take less than five hours."""
WIND_MAX_S: Final = 30 * SETTLE_MAX_S
"""There is a moment at which something is due in every ten minutes."""
ROUNDING_MS: Final = 1e-3
"""A timer must find that it is due, whatever was rounded on the way to whole milliseconds."""
REBALANCE_MS: Final = 600_000
"""There is nobody to share queues with; what is created later is found all the same."""
WORKER: Final = "test.1"
CLOCK_AT_START_S: Final = 1.0
"""Of the monotonic clock: 0 means "no limit" to a worker."""
_RULES: Final = {
    "topics": TEXT | TEXTS | NONE, "group": FILLED, "delay_levels": FILLED | NONE, "settings": TABLE | NONE,
}  # fmt: skip
_QUIET: Final = (
    act.Load, act.Reclaim, act.Recall, act.ReadCell, act.AskReport, act.Retired, act.JournalDone, act.JournalSealed,
    act.JournalCommitted, act.JournalGoesOn, act.CountCellsAnew, act.ChargesChanged, act.Finished,
)  # fmt: skip
"""What concerns other processes, disks and restarts."""


def run(
    handler: Handlers,
    messages: Iterable[Message | bytes | str],
    *,
    topics: str | Iterable[str] | None = None,
    group: str = "test",
    seconds: float | None = None,
    delay_levels: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> Result:
    """Send the messages, run the handler until all of them are settled, and say what became of them.

    Several handlers, each with its topic, are given as a list, or by their module's name. Settled means consumed, or in the
    dead letters; retries happen, after their delays. With `seconds` the clock is wound so far instead: 0 is what happens at
    once. `topics` are written as on the command line ("orders:paid || shipped"); by default they are those that the handlers
    name, else all topics of the messages. `delay_levels` are the broker's, such as "1s 5s 10s". `settings` by "section.key",
    as in rocketcrew.toml. A run ends after 24 hours of its clock, or 1,000 calls of the handler for each message, at the
    latest; `Result.unfinished` says what is left then.

    Raises UsageError for what would keep `rocketcrew run` from starting: a handler that cannot take a message, columns that
    mean nothing, a wrong setting, a set-up hook that raises; for a message of a topic that is not consumed; and for coroutine
    functions where an event loop runs. What ends a test (Ctrl-C, `pytest.fail()`, the q of a debugger) is raised from here,
    wherever the user's functions raise it, and is no failure of a message.
    """
    seconds = check("run", {"seconds": seconds}, {"seconds": number(0, SETTLE_MAX_S, "seconds") | NONE})["seconds"]
    given = cast("object", messages)
    if isinstance(given, Message | str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        refuse("run", "messages", messages, "a list of messages, as in run(handler, [message(...)])")
    with Rehearsal(handler, topics=topics, group=group, delay_levels=delay_levels, settings=settings) as rehearsal:
        rehearsal.send(*messages)
        if seconds is None:
            rehearsal.settle()
        else:
            rehearsal.wind(seconds)
        return rehearsal.result()


class NotConsumedError(UsageError):
    """A message of a topic that the run does not consume: no handler would ever be called with it."""


class Rehearsal:
    """A member, its worker and a broker in this process; a context manager. Arguments as for `run`."""

    def __init__(
        self,
        handler: Handlers,
        *,
        topics: str | Iterable[str] | None = None,
        group: str = "test",
        delay_levels: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        given = {"topics": topics, "group": group, "delay_levels": delay_levels, "settings": settings}
        taken = check("Rehearsal", given, _RULES)
        self._given = handler
        self._closed = False
        self._group: str = taken["group"]
        wanted = taken["topics"]
        self._topics: tuple[str, ...] = () if wanted is None else (wanted,) if isinstance(wanted, str) else wanted
        self._first: list[Message] = []
        """What was sent before the start: where nobody says what is consumed, it is the topics of these."""
        self._settings_given: dict[str, object] = taken["settings"] or {}
        self._now_ms: float = START_MS
        self._broker = InnerBroker(lambda: int(self._now_ms), taken["delay_levels"])
        self._member: _Member | None = None
        self._sent = 0
        self._calls: list[Call] = []
        self._retries: list[Retried] = []
        self._dead_letters: list[DeadLetter] = []
        self._sent_by_handler = _Sent(self._broker)
        self._log = _Log()
        self._taken = (0, 0)
        """Done and filtered messages at the last `take`."""
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the clock since the start."""
        return (self._now_ms - START_MS) / 1000

    # --- what a test does ---------------------------------------------------------------------------------------

    def send(self, *messages: Message | bytes | str) -> None:
        """Store messages in the broker: their topic, queue, body, properties and attempts are kept, offsets are the broker's.

        bytes and str are bodies. Before time passes for the first time, every topic may come; later those that are consumed.
        Raises UsageError for what the broker refuses, and for a message that is not consumed. Where that came before the
        start, it is raised when time first passes, and the others stay sent.
        """
        whole = [each if isinstance(each, Message) else message(each) for each in messages]
        if self._member is not None:
            _check_consumed(whole, self._member.edge.subscriptions)
        for each in whole:
            self._broker.send(each)
            self._sent += 1
        if self._member is None:
            self._first += whole

    def wind(self, seconds: float) -> None:
        """Let so much time pass, and do all that becomes due in it."""
        wound = check("wind", {"seconds": seconds}, {"seconds": number(0, WIND_MAX_S, "seconds")})
        until = self._now_ms + wound["seconds"] * 1000
        self._do_what_is_due()
        while self._next_moment(until):
            pass
        self._now_ms = max(self._now_ms, until)

    def settle(self) -> None:
        """Let time pass until nothing is unfinished; at most for SETTLE_MAX_S."""
        until = self._now_ms + SETTLE_MAX_S * 1000
        self._do_what_is_due()
        while self._uncommitted and self._next_moment(until):
            pass

    @property
    def unfinished(self) -> int:
        """Messages that are neither consumed nor dead letters."""
        self._running().commit()
        return self._uncommitted

    @property
    def _uncommitted(self) -> int:
        return self._broker.unfinished(self._group, self._running().edge.subscriptions)

    def take(self) -> Result:
        """As `result`, of what happened since the start or the last `take`; it is forgotten with that."""
        found, member = self.result(), self._running()
        before, self._taken = self._taken, (found.done, found.filtered)
        for each in (self._calls, self._retries, self._dead_letters, self._sent_by_handler.messages, self._log.events):
            each.clear()
        member.forget_rows()
        return replace(found, done=found.done - before[0], filtered=found.filtered - before[1])

    def result(self) -> Result:
        """What became of the messages so far."""
        member = self._running()
        table = member.rows()
        columns = [] if table is None else [name for name in table.column_names if name not in KEY_COLUMNS]
        counters = member.core.state.counters
        return Result(
            rows=[] if table is None else plain_rows(table.select(columns)),
            table=table,
            calls=list(self._calls),
            retries=list(self._retries),
            dead_letters=list(self._dead_letters),
            done=counters.done_messages + counters.filtered_messages,
            filtered=counters.filtered_messages,
            unfinished=self.unfinished,
            elapsed_s=self.elapsed_s,
            sent=list(self._sent_by_handler.messages),
            log=list(self._log.events),
        )

    def close(self) -> None:
        """Run the tear-down hook and delete the files."""
        self._closed = True
        member, self._member = self._member, None
        try:
            if member is not None:
                member.close()
        finally:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    # --- time ---------------------------------------------------------------------------------------------------

    def _running(self) -> _Member:
        if self._closed:
            raise UsageError(
                "this rehearsal is closed: ask for its result inside of the `with` block, or make a new one"
            )
        if self._member is None:
            self._member = self._start()
            self._member.do()
        return self._member

    def _next_moment(self, until_ms: float) -> bool:
        """Go to the next moment at which something is due, and do it; False when that is after `until_ms`, or the handler was
        called too often."""
        due_ms = self._running().next_due_ms(self._broker.core.next_deadline_ms())
        due_ms = max(due_ms, int(self._now_ms) + 1)  # all that was due before is done
        if due_ms > until_ms or len(self._calls) >= CALLS_PER_MESSAGE_MAX * self._sent:
            return False
        self._now_ms = due_ms
        self._do_what_is_due()
        return True

    def _do_what_is_due(self) -> None:
        member = self._running()
        self._broker.tick()
        member.tick()

    def _now_s(self) -> float:
        return CLOCK_AT_START_S + (self._now_ms - START_MS) / 1000

    # --- making -------------------------------------------------------------------------------------------------

    def _start(self) -> _Member:
        handler = _load(self._given)
        topics = agreed_topics(self._topics, handler.subscriptions, handler.name)
        topics = topics or tuple(dict.fromkeys(each.topic for each in self._first))
        if not topics:
            raise UsageError("there is no topic to consume: send a message first, or give topics=")
        flags: dict[str, object] = {
            "consumer.topics": list(topics),
            "consumer.group": self._group,
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "consumer.rebalance_interval_ms": REBALANCE_MS,
            **self._settings_given,
        }
        names = dict.fromkeys(self._settings_given, "settings=")
        settings = load(flags, {}, None, flag_names={"consumer.topics": "topics=", "consumer.group": "group=", **names})
        self._check_first(_subscribed(settings, int(self._now_ms)))
        self._folder = self._folder or TemporaryDirectory(
            prefix="rocketcrew-test-", ignore_cleanup_errors=True
        )  # a start before may have failed
        return _Member(
            settings, handler, Path(self._folder.name), self._broker, self._now_s, lambda: int(self._now_ms), self._log,
            witness=Witness(self._called), fate=self._went_back, sent=self._sent_by_handler,
        )  # fmt: skip

    def _check_first(self, consumed: Collection[str]) -> None:
        """Raise NotConsumedError; it is said once: the next start goes on without those messages."""
        first, self._first = self._first, [each for each in self._first if each.topic in consumed]
        _check_consumed(first, consumed)

    def _called(self, messages: Sequence[Message], error: BaseException | None) -> None:
        self._calls.append(Call(tuple(messages), self.elapsed_s, error))

    def _went_back(self, mq: MessageQueue, record: bytes, error: str, where: WentBack) -> None:
        found = Message(record, 0, QueueInfo(self._group, *mq))
        if where.level:
            self._retries.append(Retried(found, where.delay_ms / 1000, where.level, self.elapsed_s, error))
        else:
            self._dead_letters.append(DeadLetter(found, self.elapsed_s, error))


def _check_consumed(messages: Iterable[Message], topics: Collection[str]) -> None:
    """Raise NotConsumedError: a test that wants neither rows nor failures would pass for a message that no handler gets."""
    for each in messages:
        if each.topic not in topics:
            taken = ", ".join(topic for topic in sorted(topics) if not topic.startswith(RETRY_PREFIX))
            raise NotConsumedError(
                f"a message is of topic {each.topic}, and {taken} is what this run consumes: give message(topic=...), or name"
                " the topic to the run by topics=, or to a handler by @handler(topic=...)"
            )


def _subscribed(settings: Settings, now_ms: int) -> Subscriptions:
    consumer = settings.consumer
    topics = subscriptions(consumer.topics)
    return Subscriptions(topics, consumer.group, now_ms, broadcasting=is_broadcasting(settings))


class _Member:
    """The supervisor's core with one worker, both in this thread."""

    def __init__(
        self, settings: Settings, handler: Handler, folder: Path, broker: InnerBroker,
        now_s: Callable[[], float], now_ms: Callable[[], int], log: _Log, *,
        witness: Witness,
        fate: Callable[[MessageQueue, bytes, str, WentBack], None],
        sent: _Sent,
    ) -> None:  # fmt: skip
        topics = subscriptions(settings.consumer.topics)
        check_consumer(settings, topics, handler.name)
        check_order(handler, ordered=worker_bounds(settings).ordered)
        self._settings = settings
        self._folder = folder
        self._now_s = now_s
        self._log = log
        self._memory = mmap.mmap(-1, SLAB_BYTES_MIN)
        view = memoryview(self._memory)
        self.core = Core(core_config(settings, "127.0.0.1@test", tuple(topics)), Slab(len(view)), view)
        self.core.begin(resolve(settings.consumer, _order_of(handler)))
        known = _subscribed(settings, now_ms())
        self.edge = InnerEdge(
            broker, self.core, view, known, now=now_s, fate=fate,
            reconsume_max=reconsume_limit(settings.consumer.max_reconsume_times),
        )  # fmt: skip
        self._performs: dict[type, Callable[[Any], object]] = {
            **self.edge.performs,
            act.Dispatch: self._dispatch,
            act.DispatchOrdered: self._dispatch_ordered,
            act.Classify: self._classify,
            act.Seal: lambda _: self._to_worker(packets.encode_seal()),
            act.KillWorker: self._cannot_be,
            act.Log: lambda entry: log.add(entry.level, entry.event, **entry.keys),
            **dict.fromkeys(_QUIET, lambda _: None),
        }
        self.core.state.stats.calls_are_batches = handler.batch
        self._known: set[int] = set()
        self._packets = 0
        self._handler_name = handler.name
        self._witness = witness
        with contextlib.ExitStack() as opened:
            self._start_worker(handler, sent, opened)
            self.edge.heartbeat()
            for event in (ev.WorkerStarted(Worker(WORKER)), ev.WorkerReady(WORKER), ev.Start()):
                self.core.handle(event, now_s())
            self._opened = opened.pop_all()

    def _start_worker(self, handler: Handler, sent: _Sent, opened: contextlib.ExitStack) -> None:
        """`opened` gets what is to be closed, also where the start fails."""
        settings, bounds = self._settings, worker_bounds(self._settings)
        self._link, sock = link_pair(Transport.SLAB)
        opened.callback(self._link.close)
        self._worker_link = WorkerLink(sock, Transport.SLAB)
        opened.callback(self._worker_link.close)
        cell = private_cell()
        self._loop = loop_for(handler)
        if self._loop is not None:
            opened.callback(self._loop.close)
        self._refuse_loop_around()
        self._teardown = handler.teardown
        group = settings.consumer.group
        handler = sending(handler, group, sent, ordered=bounds.ordered, rows=settings.results.enabled)
        if self._loop is not None and inspect.iscoroutinefunction(handler.function):
            handler = one_call_at_a_time(handler, self._loop)
        handler = self._witness.of(handler)
        hooks = consume_hooks(handler, bounds, "", self._log, ordered=bounds.ordered or handler.is_ordered)
        handler = watched(handler, group, [] if hooks is None else [hooks])
        self._rows, self._segments, sealer = self._results(handler)
        if self._segments is not None:
            opened.callback(self._segments.detach)  # with rows that nobody has asked for its file is open
        opened.callback(enter, None)
        enter(Context(WORKER, 0, cell, lambda _: None))
        try:
            set_up_handler(handler, self._loop, caught=(Exception, SystemExit))
        except HandlerLoadError as error:
            self._witness.note(error)
            self._witness.raise_end()
            raise
        self._worker = WorkerLoop(
            self._worker_link, handler, bounds=bounds, slab=self._memory, rows=self._rows, segments=self._segments,
            sealer=sealer, clock=self._clock_ns, cell=cell, log=self._log,
        )  # fmt: skip
        self._worker.report_failures(lambda _queue, _message, error: self._witness.note(error))

    def _results(self, handler: Handler) -> tuple[RowBuffer[Place] | None, SegmentWriter | None, Sealer | None]:
        settings, bounds = self._settings, worker_bounds(self._settings)
        if not settings.results.enabled:
            return None, None, None
        declared = declared_columns(settings.results.schema, handler.schema, None)
        check_result_type(handler, rows=declared is not None or settings.results.schema == INFER)
        infer = None
        if declared is None and settings.results.schema == INFER:
            infer = Inferring(self._folder / "columns.ddl", self._log)
        spark = settings.spark
        folders = folder_names(spark.format, spark.target, spark.partition_by)
        schema = None if declared is None else as_schema(declared)
        rows = RowBuffer[Place](schema, settings.consumer.group, infer, folders)
        for part in (OPEN_DIR, READY_DIR):
            (self._folder / part).mkdir(exist_ok=True)
        segments = SegmentWriter(
            self._folder, WORKER, rows.schema, seal_rows=bounds.seal_rows, seal_bytes=bounds.seal_bytes,
            seal_idle_ms=bounds.seal_idle_ms, pause=_refuse,
        )  # fmt: skip
        rows.on_columns = lambda: segments.use(rows.schema)
        return rows, segments, Sealer(self._folder / READY_DIR, pause=_refuse, waits=None)

    def _clock_ns(self) -> int:
        return round(self._now_s() * NS_PER_S)

    # --- doing --------------------------------------------------------------------------------------------------

    def next_due_ms(self, broker_due_ms: int) -> int:
        """When something is due of core, worker and broker, on the test's clock in milliseconds."""
        dues: list[int] = [broker_due_ms]
        timer = self.core.next_timer()
        if timer is not None:
            dues.append(self._at_ms(timer))
        seal_ns = None if self._segments is None else self._segments.seal_due_ns()
        if seal_ns is not None:
            dues.append(self._at_ms(seal_ns / NS_PER_S))
        return min(dues)

    @staticmethod
    def _at_ms(clock_s: float) -> int:
        return START_MS + ceil((clock_s - CLOCK_AT_START_S) * 1000 - ROUNDING_MS)

    def tick(self) -> None:
        """The clock was moved: do what is due."""
        self.core.tick(self._now_s() + ROUNDING_MS / 1000)
        self._step_worker()
        self.do()

    def commit(self) -> None:
        """Commit what can be, without waiting for the timer."""
        self.core.handle(ev.Persist(), self._now_s())
        self.do()

    def do(self) -> None:
        """Do what the core wants and hear what the worker says, until neither has anything more for this moment."""
        self._refuse_loop_around()
        while True:
            for action in self.core.take_actions():
                self._performs[type(action)](action)
            self._link.flush()
            steps, self._packets = self._packets, 0
            for _ in range(steps + 1):
                self._step_worker()
            said = self._link.receive()
            while said:
                for packet in said:
                    self._hear(packet)
                said = self._link.receive()
            if not steps and not self.core.state.out:
                return

    def _step_worker(self) -> None:
        try:
            self._worker.step()
        except LeavingError as error:
            raise RocketcrewError(str(error)) from error
        self._witness.raise_end()

    def _refuse_loop_around(self) -> None:
        """Raise UsageError where the handler's coroutines could not run: a thread runs one event loop at a time."""
        if self._loop is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # there is none
            return
        raise UsageError(
            f"handler {self._handler_name} has coroutine functions, and this thread runs an event loop already: run it in a"
            " plain `def test_...`, or by `await asyncio.to_thread(run, handler, messages)`"
        )

    def _hear(self, packet: bytes) -> None:
        now = self._now_s()
        if packet[0] == packets.REPORTS:
            entries, failures = packets.decode_reports(packet)
            at = 0
            for chunk_id, start, records, seq, busy_us, slowest_us, filtered, failed in entries:
                reports = failures[at : at + failed]
                at += failed
                self.core.handle(
                    ev.Reported(WORKER, chunk_id, start, records, seq, busy_us, slowest_us, filtered, reports), now
                )
        elif packet[0] == packets.SEALED:
            self.core.handle(ev.Sealed(WORKER, packets.decode_sealed(packet).seq), now)
        else:
            heard = hear_ordered(self.core, WORKER, packet, now)
            assert heard, f"a worker in a test says a packet of kind {packet[0]}"

    def _to_worker(self, packet: bytes) -> None:
        self._link.send(packet)
        self._packets += 1

    def _introduce(self, handle: int, mq: MessageQueue) -> None:
        if handle not in self._known:
            self._known.add(handle)
            info = QueueInfo(
                self._settings.consumer.group, mq.topic, mq.broker_name, mq.queue_id,
                self.edge.subscriptions.wanted_tags(mq.topic), "",
            )  # fmt: skip
            self._to_worker(packets.encode_queue(handle, info))

    def _dispatch(self, action: act.Dispatch) -> None:
        self._introduce(action.info_handle, action.mq)
        chunk = action.chunk
        start, end = chunk.positions[0], chunk.positions[-1]
        self._to_worker(packets.encode_chunk(chunk.chunk_id, action.info_handle, start, end - start, chunk.count))

    def _dispatch_ordered(self, action: act.DispatchOrdered) -> None:
        for item in action.chunks:
            self._introduce(item.chunk.handle, item.mq)
        until = action.start_before
        chunks = [
            ordered_packets.OrderedDescriptor(
                item.chunk.chunk_id, item.chunk.handle, item.chunk.positions[0],
                item.chunk.positions[-1] - item.chunk.positions[0], item.chunk.count, item.lane, item.tried,
            )
            for item in action.chunks
        ]  # fmt: skip
        start_before_ns = 0 if until == float("inf") else max(1, int(until * NS_PER_S))
        self._to_worker(ordered_packets.encode_ordered(chunks, start_before_ns))

    def _classify(self, action: act.Classify) -> None:
        self._introduce(action.handle, action.mq)
        question = ordered_packets.Classify(action.handle, action.start, action.end - action.start, action.count)
        self._to_worker(ordered_packets.encode_classify(question))

    @staticmethod
    def _cannot_be(action: act.KillWorker) -> None:
        raise RocketcrewError(f"the worker of this test said what cannot be: {action.reason}")

    # --- what came of it ----------------------------------------------------------------------------------------

    def rows(self) -> pyarrow.Table | None:
        """All rows so far, sealed for that; None when there are none."""
        self._to_worker(packets.encode_seal())
        self.do()
        files = sorted((self._folder / READY_DIR).glob("*.arrows"))
        tables = [pyarrow.ipc.open_stream(path.read_bytes()).read_all() for path in files]
        return pa.concat_tables(tables) if tables else None

    def forget_rows(self) -> None:
        """Delete what is sealed."""
        for path in (self._folder / READY_DIR).glob("*.arrows"):
            path.unlink()

    def close(self) -> None:
        """Leave: the tear-down hook runs, what was opened is closed."""
        try:
            if self._teardown is not None:
                run_hook(self._teardown, self._loop)
        finally:
            self._opened.close()


class _Sent:
    """Stores what a handler sends in the broker."""

    def __init__(self, broker: InnerBroker) -> None:
        self._broker = broker
        self.messages: list[Message] = []

    def send(self, sends: Sequence[Send]) -> None:
        """Raises SendError with the broker's reasons."""
        errors: list[SendError | None] = []
        for each in (one.message for one in sends):
            made = make_message(bytes(each.body_bytes), topic=each.topic, properties=each.all_properties(""))
            try:
                self._broker.send(made)
            except UsageError as error:
                errors.append(SendError(str(error)))
            else:
                errors.append(None)
                self.messages.append(made)
        first = next(filter(None, errors), None)
        if first is not None:
            raise SendError(str(first), errors)

    async def send_awaited(self, sends: Sequence[Send]) -> None:
        """As `send`."""
        self.send(sends)


class _Log:
    """Keeps what would be logged."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, level: str, event: str, **keys: Any) -> None:
        self.events.append({"event": event, "level": level, **keys})

    def debug(self, event: str, **keys: Any) -> None:
        self.add("debug", event, **keys)

    def info(self, event: str, **keys: Any) -> None:
        self.add("info", event, **keys)

    def warning(self, event: str, **keys: Any) -> None:
        self.add("warning", event, **keys)

    def error(self, event: str, **keys: Any) -> None:
        self.add("error", event, **keys)


def _load(given: Handlers) -> Handler:
    """The handler as a worker loads it; an object stays the very same, so that a test sees what its handler keeps."""
    if isinstance(given, str):
        handler = find(describe(given if ":" in given else handlers_of(import_module(given))))
    else:
        handler = handler_of(given)
    return copy.copy(ready(handler))


def _order_of(handler: Handler) -> HandlerOrder:
    return HandlerOrder(
        handler.order or "",
        handler.key if isinstance(handler.key, str) else "",
        callable(handler.key),
        handler.auto_commit,
    )


def _refuse(what: str, error: OSError) -> None:
    raise OSError(error.errno, f"{what}: {error.strerror}", error.filename)
