"""`rocketcrew run --engine spark`: the driver. One streaming query, whose batches go through the handler into the table.

Threads: the main one starts the JVM (which dies with it), waits for signals, and stops; py4j's callback thread runs the
batches. A stop lets the batch under way end, within `supervisor.stop_deadline_ms`; a second signal, or the deadline,
cancels it: it comes again at the next start, as the checkpoint has it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import structlog

from ..client.route_cache import ROUTES_FILE, RouteCache
from ..conf.exit_codes import EXIT_FINE, EXIT_FORCED
from ..conf.folders import folder_names
from ..conf.settings import Settings, require
from ..durable.files import spark_path
from ..remoting.errors import RocketcrewError
from ..source.connections import Link, shared
from ..spark.errors import StoppedError, remedy
from ..spark.spark_writer import SparkWriter
from ..spark.staging import Staging
from ..supervisor.core.pauses import StopSignals, StopWish
from ..supervisor.member.access import access_of, warn_of_open_files
from ..workers.api import Handler
from ..workers.loading import HandlerSpec, load
from .batches import Batches
from .beginning import Beginning
from .fitting import check_handler, check_settings
from .home import Home, own_files
from .options import stream_options, tags_by_topic, task_bounds, topics_of
from .progress import Idle, reason_of, told
from .sending import FailureSender
from .shipping import ship
from .spec import RECORD_SCHEMA, TaskSpec
from .table import Table, check_columns, check_target, loader_config, session_settings

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.2
CALLBACKS_LOGGER = "py4j.clientserver"
QUIET_S = 3.0
"""How long a stop waits for Spark to note the batch that has ended; where it does not, the batch is known to be done."""

_log = structlog.get_logger("rocketcrew.engine")


def run_stream(settings: Settings, spec: HandlerSpec, env: Mapping[str, str], own_broker: str = "") -> int:
    """Consume until a signal comes; the exit code. `own_broker`: as of Supervisor. Raises RocketcrewError."""
    require(settings, ["consumer.group", "consumer.topics"],
            flag_names={"consumer.group": "-g GROUP", "consumer.topics": "-t TOPIC"})  # fmt: skip
    check_settings(settings)
    check_target(settings)
    warn_of_open_files(settings)
    handler = load(spec)
    check_handler(handler)
    guarded = own_files(Path(settings.supervisor.data_dir))
    with guarded, stop_signals() as stop, shared.use(access_of(settings)) as link:
        link.cluster.place = own_broker or link.cluster.place
        stream = Stream(settings, spec, handler, env, link, stop)
        try:
            return stream.run()
        finally:
            stream.close()


class Stop:
    """What TERM and INT have asked for. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signals = StopSignals()
        self._wishes: set[StopWish] = set()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Not an Event: its lock may be held by `wait`, in the thread that the signals' handler interrupts."""

    def ask(self, *_: object) -> None:
        """The signals' handler: it only notes, as py4j may be in the middle of a call."""
        self._wishes.add(self._signals.heard(self._clock()))
        self._woken.put(None)

    def obey(self) -> None:
        """Listen to the signals; for the main thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.ask)

    def asked(self) -> bool:
        """A stop was asked for."""
        return bool(self._wishes)

    def insisted(self) -> bool:
        """Once more, and not by the repetition of one signal."""
        return StopWish.FORCE in self._wishes

    def wait(self, seconds: float) -> None:
        """Until a stop is asked for, or for so long."""
        if not self.asked():
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=seconds)


@contextlib.contextmanager
def stop_signals() -> Generator[Stop]:
    """TERM and INT as wishes, for a while. Of calls that fail because of these py4j would log 10 to 130 lines each."""
    stop, callbacks = Stop(), logging.getLogger(CALLBACKS_LOGGER)

    def is_told(_: logging.LogRecord) -> bool:
        return not stop.asked()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    callbacks.addFilter(is_told)
    stop.obey()
    try:
        yield stop
    finally:
        callbacks.removeFilter(is_told)
        for number, handler in before.items():
            signal.signal(number, handler)


class Stream:
    """One run of the driver."""

    def __init__(
        self,
        settings: Settings,
        spec: HandlerSpec,
        handler: Handler,
        env: Mapping[str, str],
        link: Link,
        stop: Stop,
    ) -> None:
        self._settings = settings
        self._link = link
        self._stop = stop
        access = link.access
        group = access.wrap(settings.consumer.group)
        self._home = Home(Path(settings.supervisor.data_dir), group)
        self._home.lock()
        self._staging = Staging(self._home.segments)
        self._staging.lock()
        self._config = loader_config(settings, self._home.segments, self._home.table, env)
        if settings.results.enabled:
            check_columns(self._config, settings.results.schema or handler.schema, self._home.segments)
        self._writer = SparkWriter(
            session_settings(self._config, self._home.spark, f"rocketcrew {group}"),
            self._config.jvm_timeout_ms,
            self._config.partition_by,
        )
        self._spec = TaskSpec(
            handler=spec, run=f"{time.time_ns():x}", prefix="", folder=self._home.batches, group=group,
            namespace=access.namespace, tags=tags_by_topic(settings, access), schema=settings.results.schema,
            results=settings.results.enabled and bool(settings.results.schema or handler.schema),
            folders=folder_names(self._config.format, str(self._config.target), self._config.partition_by),
            bounds=task_bounds(settings), deaths_max=settings.workers.max_worker_deaths, spans=settings.trace.spans,
            log_format=settings.log.format, log_level=settings.log.level,
        )  # fmt: skip
        self._busy = threading.Lock()
        """Held while a batch runs."""
        self._error: BaseException | None = None
        self._table: Table | None = None

    def run(self) -> int:
        """See the module's text."""
        settings, beginning = self._settings, Beginning(self._link.cluster, self._link.operations, self._stop.asked)
        topics = list(topics_of(settings))
        try:
            cache = RouteCache(self._home.root / ROUTES_FILE)
            queues = self._link.run(beginning.all_queues(topics, settings.consumer.group, cache))
            starting = self._link.run(beginning.starting(self._home, settings.consumer, queues))
            self._writer.start()
            self._stop.obey()  # Spark has put a handler of its own on INT
        except StoppedError:
            return EXIT_FINE
        session = self._writer.session
        assert session is not None, "start() makes a session or raises"
        with asking(self._writer):
            self._table = Table(self._config, self._staging, self._writer, self._home.reached)
            self._table.recover()
            spark: Any = session.spark
            sent = ship(spark.sparkContext, self._spec.handler.module, settings.engine.py_files, self._home.ship)
            partitions = settings.engine.partitions or int(spark.sparkContext.defaultParallelism)
            batches = self._batches(self._table)
            stream = spark.readStream.format("rocketmq").schema(RECORD_SCHEMA)
            stream = stream.options(**stream_options(settings, self._link.access, starting, partitions)).load()
            if self._stop.asked():
                return EXIT_FINE
            query = (
                stream.writeStream.foreachBatch(self._guarded(batches.run))
                .option("checkpointLocation", spark_path(self._home.checkpoint))
                .trigger(processingTime=f"{settings.engine.trigger_interval_ms} milliseconds")
                .start()
            )
        _log.info("engine_runs", master=self._config.master, topics=topics, group=self._spec.group, partitions=partitions,
                  jvm_pid=session.jvm_pid, table=str(self._config.target), shipped=sent)  # fmt: skip
        seen, idle = -1, Idle()
        while self._active(query) and not self._stop.asked():
            self._writer.check()
            seen = tell_progress(query, seen)
            tell_idle(idle, spark.sparkContext)
            self._stop.wait(LOOK_S)
        return self._end(query, spark.sparkContext)

    def _active(self, query: Any) -> bool:
        """Whether the query runs. Raises SparkDiedError when there is no JVM left to ask."""
        with asking(self._writer):
            return bool(query.isActive)

    def _batches(self, table: Table) -> Batches:
        settings = self._settings
        sender = FailureSender(
            self._link, self._spec.group, settings.consumer, settings.supervisor.send_back_retry_ms,
            self._stop.asked,
        )  # fmt: skip
        return Batches(self._home, self._staging, self._spec, send=sender.send_file, load=table.load)

    def _guarded(self, run: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Spark tells errors of ours as text only: the first one is kept."""

        def guarded(frame: Any, batch: int) -> None:
            with self._busy:
                if self._stop.asked():
                    raise StoppedError("the engine is to stop: no batch is begun")
                try:
                    run(frame, batch)
                except BaseException as error:
                    self._error = self._error or error
                    raise

        return guarded

    def _end(self, query: Any, context: Any) -> int:
        """Let the batch under way end, then the query; what it failed with is raised."""
        if not self._active(query):
            self._raise_failure(query)
        _log.info("engine_stops", deadline_ms=self._settings.supervisor.stop_deadline_ms)
        deadline = time.monotonic() + self._settings.supervisor.stop_deadline_ms / 1000
        forced = not self._wait_for_batch(deadline)
        if forced:
            _log.warning("batch_cancelled", reason="a second signal" if self._stop.insisted() else "the stop deadline",
                         hint="its messages run again at the next start")  # fmt: skip
            with contextlib.suppress(Exception):
                context.cancelAllJobs()
            with self._busy:
                pass
        quiet = time.monotonic() + QUIET_S
        with contextlib.suppress(Exception):
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < quiet:
                time.sleep(0.05)
        with contextlib.suppress(Exception):
            query.stop()
        if not forced and self._error is not None and not isinstance(self._error, StoppedError):
            raise self._error
        return EXIT_FORCED if forced else EXIT_FINE

    def _wait_for_batch(self, deadline: float) -> bool:
        """False: it did not end in time."""
        while not self._busy.acquire(timeout=LOOK_S):
            if self._stop.insisted() or time.monotonic() > deadline:
                return False
        self._busy.release()
        return True

    def _raise_failure(self, query: Any) -> None:
        """The query has ended by itself, which it never does in order."""
        self._writer.check_dying()
        if isinstance(self._error, RocketcrewError | OSError):
            raise self._error
        text = str(self._error or query.exception() or "the query has ended")
        # Only a batch that was under way is run again; what stands in the way of planning one may stay.
        again = (
            "; the checkpoint does not have the batch that failed, so a restart runs it again" if self._error else ""
        )
        raise EngineError(
            f"Spark's query failed: {reason_of(text)}{remedy(text)}. More in {self._home.spark}/spark.log and jvm.log{again}"
        ) from self._error

    def close(self) -> None:
        """End the JVM and everything else."""
        self._writer.close()
        if self._table is not None:
            self._table.close()
        self._staging.unlock()


@contextlib.contextmanager
def asking(writer: SparkWriter) -> Generator[None]:
    """Around what Spark is asked for. Raises SparkDiedError where there is no JVM left to answer, or one that ends now."""
    try:
        yield
    except RocketcrewError:
        raise
    except Exception:
        writer.check_dying()
        raise


def tell_progress(query: Any, seen: int) -> int:
    """Log the last batch that Spark has noted, unless it is number `seen`; the number of the last one that was looked at."""
    try:
        last = query.lastProgress
        batch = seen if last is None else int(last["batchId"])
        if last is not None and batch != seen and int(last["numInputRows"]):
            _log.info("engine_progress", **told(last))
    except Exception as error:  # noqa: BLE001  Spark may be ending at this moment, and it is only told
        _log.debug("no_progress", error=str(error))
        return seen
    return batch


def tell_idle(idle: Idle, context: Any) -> None:
    """Log that Spark has no executor for the tasks of its jobs: it waits for one, and says so to nobody."""
    now_s = time.monotonic()
    if not idle.is_due(now_s):
        return
    left = active = 0
    try:
        tracker = context.statusTracker()
        for number in tracker.getActiveJobsIds():
            job = tracker.getJobInfo(number)
            for stage in job.stageIds if job is not None else ():
                one = tracker.getStageInfo(stage)
                if one is not None:
                    left, active = left + one.numTasks - one.numCompletedTasks, active + one.numActiveTasks
    except Exception as error:  # noqa: BLE001  as above
        _log.debug("no_progress", error=str(error))
    if idle.look(now_s, left, active):
        _log.warning("no_task_runs", tasks=left, hint="no executor takes them: see that the cluster has cores and memory for "
                     "one (spark.executor.cores, spark.executor.memory), and that it can start")  # fmt: skip


class EngineError(RocketcrewError):
    """The query on Spark has failed."""
