"""The loader's worker thread: everything that touches segments, table and Spark, from the lock to the last status.

It reports between batches. During a batch a small thread beside it reports every few seconds (`tick`): a batch may take
minutes, and Spark's call does not return before it has ended. A JVM that hangs holds that thread up too.

It is one thread because the JVM dies with the thread that started it, and because py4j calls must not be interrupted by
signal handlers: those run in the main thread (front.py), which only tells this one what to do by setting flags.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from ..client.clock import wall_ms
from ..client.logs import get_logger
from ..conf.exit_codes import EXIT_FAILURE, EXIT_FINE
from ..conf.limits import is_no_thread, used_up, with_remedy
from ..conf.segment_format import READY_DIR
from ..durable.room import NO_ROOM
from ..remoting.errors import RocketcrewError, UsageError
from .config import LoaderConfig
from .connect import shown
from .errors import RUN_AGAIN, StoppedError, exit_code, typed
from .loader import Loader
from .progress import STAGING
from .registration import Registrar, registrar_of
from .reports import BatchReport
from .staging import Staging
from .status import (
    FAILED,
    LOADING,
    STARTING,
    STOPPED,
    WAITING,
    StatusFile,
    batches_made,
    is_another,
    topics_of,
)
from .targets.delta import DeltaTarget
from .targets.making import make_loader, make_target
from .targets.parquet import ParquetTarget
from .targets.target import TableState, Target, Writer

STATUS_INTERVAL_S = 1.0
"""Between two writings of loader.json while nothing happens."""

TELL_EVERY_S = 3.0
"""Between two lines of how far a batch is."""

IN_MEMORY = "in-memory"
"""Spark's name of a metastore that is in the session itself."""

MakeTarget = Callable[[LoaderConfig, Writer, Executor], Target]


class CrashPoint:
    """Kills this process when a step's name comes up the n-th time; for tests of what a kill leaves."""

    def __init__(self, wanted: str) -> None:
        """`wanted`: "" for never, or a name of loader.POINTS, followed by ":n" for the n-th time."""
        self._point, _, nth = wanted.partition(":")
        self._left = int(nth or 1)

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Desk(NamedTuple):
    """One staging folder's loader and status file."""

    loader: Loader
    status: StatusFile


class Work:
    """The loader's work. `run` is the body of the worker thread; the other methods are called by the main thread."""

    def __init__(self, config: LoaderConfig, writer: Writer, target_of: MakeTarget = make_target) -> None:
        self._config = config
        self._writer = writer
        self._target_of = target_of
        self._drain = not config.follow
        self._asked_ms = 0
        """When `ask_load` was called last, by the wall clock: what was sealed by then does not wait for the trigger."""
        self._stop = False
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._telling = threading.RLock()
        """Held by whoever changes or writes the status."""
        self._canceller: threading.Thread | None = None
        self._crash_point = CrashPoint(config.crash_point)
        self._status: StatusFile | None = None
        self._loader: Loader | None = None
        """The one at work, and its folder's status; there are several when there are several folders."""
        self._statuses: list[StatusFile] = []
        self._stagings: list[Staging] = []
        self._begun = False
        self._registrar: Registrar | None = None
        self.error = ""
        """Why `run` ended with another code than 0."""
        self.batches = self.rows = 0
        """What `run` has put into the table."""
        self._log = get_logger()

    def ask_drain(self) -> None:
        """Load everything sealed, then end."""
        self._drain = True
        self._wake.set()

    def ask_load(self) -> None:
        """Load what is sealed now, without waiting for the trigger."""
        self._asked_ms = wall_ms()
        self._wake.set()

    def ask_stop(self) -> None:
        """Begin no further batch, and end."""
        self._stop = True
        self._wake.set()

    def cancel(self) -> None:
        """Make a running Spark job end. May be called again, should the job not have begun yet.

        In a thread of its own: a JVM that hangs does not answer, and the main thread has a deadline to keep.
        """
        self._stop = True
        self._wake.set()
        if self._canceller is None or not self._canceller.is_alive():
            self._canceller = threading.Thread(target=self._writer.cancel, name="cancel", daemon=True)
            self._canceller.start()

    def run(self) -> int:
        """Work until the end; returns the exit code, and raises nothing but KeyboardInterrupt of who calls it himself."""
        threading.Thread(target=self._tick, name="ticker", daemon=True).start()
        try:
            return self._guarded()
        finally:
            self._ended.set()
            for staging in self._stagings:
                staging.unlock()

    def _guarded(self) -> int:
        code, error = EXIT_FINE, ""
        try:
            self._run()
        except StoppedError as stopped:
            self._log.info("loader_stopped_early", reason=str(stopped))
        except RocketcrewError as failure:
            code, error = exit_code(failure), str(failure)
        except OSError as failure:
            code, error = EXIT_FAILURE, explained(failure, self._config)
        except Exception as failure:  # noqa: BLE001 -- the last line of defence: reported, and the parent starts us anew
            code, error = EXIT_FAILURE, f"a bug in the loader: {type(failure).__name__}: {failure}"
            if is_no_thread(failure):
                error = f"{with_remedy(failure)}. The segments stay"
            else:
                self._log.exception("loader_bug")
        if error:
            self._log.error("loader_failed", error=error, exit_code=code)
        self.error = error
        self._ended.set()
        self._writer.close()
        self._tell_end(code, error)
        return code

    def _run(self) -> None:
        config = self._config
        stagings = self._stagings = [Staging(folder) for folder in config.stagings]
        for staging in stagings:
            staging.lock()
        self._statuses = [self._status_of(staging) for staging in stagings]
        with (
            ThreadPoolExecutor(max(2, config.cores), "loader") as threads,
            closing(self._target_of(config, self._writer, threads)) as target,
        ):
            self._tell_table(target)
            desks = [
                Desk(self._loader_of(staging, target, threads, status), status)
                for staging, status in zip(stagings, self._statuses, strict=True)
            ]
            if config.table_replaced:
                self._take_on(target.state())
            for loader, status in desks:
                self._turn_to(loader, status)
                loader.recover(status.status.batch_id, status.status.table, status.status.plan)
            if not config.quarantine:
                refuse_misfits([loader for loader, _ in desks], config)
            self._register(target)
            # What was frozen has its number already: it comes before anything new of another folder.
            desks.sort(key=lambda desk: not desk[0].resuming)
            if config.follow:
                # Without Spark nothing will ever be loaded: better said now than when the first batch is due.
                self._writer.check()
            try:
                self._loop(desks)
            finally:
                if self._registrar is not None:
                    self._registrar.end()
            if self._drain and not self._stop:
                for loader, _ in desks:
                    self._log.info("all_loaded", **asdict(loader.totals))

    def _loader_of(self, staging: Staging, target: Target, threads: Executor, status: StatusFile) -> Loader:
        lost = status.status.batches_lost > 0
        return make_loader(self._config, staging, target, threads, self._at_point, batches_lost=lost)

    def _tell_table(self, target: Target) -> None:
        """Whether what is known is of the table at the target: one that was moved there goes on as it was."""
        if not (self._config.table_replaced or any(status.moved for status in self._statuses)):
            return
        table = target.state().table
        if self._config.table_replaced:
            refuse_unknown_table(self._statuses, table)
        for status in self._statuses:
            status.found(table)

    def _take_on(self, state: TableState) -> None:
        """Go on with the table as it is, where our folders' loaders have made more batches, or those of another one."""
        batch = state.batch
        lost = batches_made((one.status for one in self._statuses), state) - batch
        if lost <= 0:
            return
        topics = topics_of(one.status.topics for one in self._statuses if one.status.batch_id)
        for status in self._statuses:
            one = status.status
            known = not (is_another(one.table, state.table) or is_another(one.plan, state.plan_of(one.batch_id)))
            if known and one.batches_lost and (one.batch_id, one.batches_total) == (batch, 0):
                continue  # noted by a run that was killed before it had come to the others
            status.take_on(batch, lost, topics, state.table, state.plan_id)
            status.write(wall_ms())
        self._log.warning("table_replaced", batch=batch, batches_lost=lost, remedy=RUN_AGAIN)

    def _register(self, target: Target) -> None:
        """Begin to keep the table known to a metastore, where that is wished: Spark is started for it."""
        config = self._config
        if not config.table or not isinstance(target, DeltaTarget | ParquetTarget):
            return
        self._writer.start()
        session = self._writer.session
        assert session is not None, "the configuration has let Spark's formats through alone"
        if session.spark.conf.get("spark.sql.catalogImplementation", "") == IN_MEMORY:
            self._log.warning("metastore_in_memory", table=config.table, reason=(
                "it knows the table for as long as this Spark session lives: name one that stays in spark.conf, such as"
                " spark.sql.catalogImplementation = hive and spark.hadoop.hive.metastore.uris"
            ))  # fmt: skip
        self._registrar = registrar_of(
            session.spark, config.table, target.path, config.format, config.partition_by, lambda: self._stop
        )
        self._registrar.start()

    def _status_of(self, staging: Staging) -> StatusFile:
        status = StatusFile(staging.root, self._config.shown_identity)
        status.status.pid = os.getpid()
        status.status.master = shown(self._config.master)
        status.status.started_ms = wall_ms()
        self._turn_to(None, status)
        self._tell(STARTING)
        return status

    def _turn_to(self, loader: Loader | None, status: StatusFile) -> None:
        with self._telling:
            self._loader, self._status = loader, status

    def _loop(self, desks: list[Desk]) -> None:
        told, done_ms = 0.0, 0
        while not self._stop:
            # Asked for within a step, it is for the next one: this one may have looked at what is sealed before that.
            drain, asked_ms = self._drain, self._asked_ms
            reports = [self._step(desk, at_once=drain or asked_ms != done_ms) for desk in desks]
            # Not done with one batch: it may be a part only, or its plan was dropped for a smaller one.
            if not any(0 < loader.waiting.oldest_ms <= asked_ms for loader, _ in desks):
                done_ms = asked_ms
            if any(reports):
                continue
            if drain:
                if not any(loader.waiting.segments for loader, _ in desks):
                    return
                continue
            if time.monotonic() - told >= STATUS_INTERVAL_S:
                for loader, status in desks:
                    self._turn_to(loader, status)
                    self._tell(WAITING, loader)
                told = time.monotonic()
            self._writer.check()
            self._wake.wait(self._config.poll_interval_ms / 1000)
            self._wake.clear()

    def _step(self, desk: Desk, *, at_once: bool) -> bool:
        """Whether there was a batch."""
        if self._stop:
            return False
        self._turn_to(*desk)
        report = desk.loader.step(wall_ms(), at_once=at_once)
        if report is not None:
            if self._registrar is not None:
                self._registrar.committed()
            self._tell_batch(report, desk.loader)
        return report is not None

    def _at_point(self, point: str) -> None:
        if point in ("planned", "staged"):  # Spark may take long to start before the second, and to write after it
            self._tell(LOADING)
        if not self._begun and self._loader is not None:
            self._begun = True  # before Spark starts, which takes long: what there is to do
            self._log.info("loading", **asdict(self._loader.waiting))
        self._crash_point(point)

    def _tell_batch(self, report: BatchReport, loader: Loader) -> None:
        self.batches, self.rows = self.batches + 1, self.rows + report.rows
        usual_s = report.seconds
        if loader.totals.batches == 1:
            usual_s = max(0.0, usual_s - self._writer.start_seconds)  # the others find Spark running
        self._log.info(
            "batch_loaded",
            batch=report.batch,
            rows=report.rows,
            duration_ms=round(report.seconds * 1000),
            rows_per_s=round(report.rows / report.seconds),
            rows_dropped=report.rows_dropped,
            rows_left=loader.waiting.rows,
            seconds_left=round(loader.waiting.rows * usual_s / report.rows, 1),
        )
        if self._status is None:
            return
        with self._telling:
            status = self._status.status
            status.batch_id, status.topics = report.batch, topics_of([loader.topics])
            status.table, status.plan, status.began = loader.table, loader.plan, status.began or loader.plan
            status.batches_total += 1
            status.rows_total += report.rows
            status.committed(report.commit_s)
            status.last = {
                **{name: round(value, 3) for name, value in asdict(report).items()},
                "rows_per_s": round(report.rows / report.seconds),
            }
            self._tell(LOADING if loader.waiting.segments else WAITING, loader)

    def _tick(self) -> None:
        while not self._ended.wait(TELL_EVERY_S):
            try:
                self.tick(time.monotonic())
            except OSError as error:  # the work thread will meet it too, and end
                self._log.warning("status_not_written", error=str(error))

    def tick(self, now_s: float) -> None:
        """Tell how far the batch in work is, if there is one. By any thread; `now_s` is monotonic. Raises OSError."""
        loader = self._loader
        running = loader.progress.look() if loader is not None else None
        if loader is None or running is None:
            return
        if running.phase != STAGING:
            done, total = self._writer.tasks()
            running = replace(running, done=done, total=total)
        told: dict[str, float | str] = {
            "batch": running.batch, "phase": running.phase, "done": running.done, "total": running.total,
            "rows": running.rows, "seconds": round(now_s - running.begun_s, 1),
            "seconds_left": round(running.seconds_left(loader.costs, now_s), 1),
        }  # fmt: skip
        self._log.info("batch_running", **told)
        with self._telling:
            now = loader.progress.look()  # the answer of Spark may have come after the end
            if self._status is not None and now is not None and now.batch == running.batch:
                self._status.status.running = told
                self._tell(LOADING, loader)

    def _tell(self, state: str, loader: Loader | None = None) -> None:
        if self._status is None:
            return
        with self._telling:
            status = self._status.status
            status.state = state
            if self._registrar is not None:
                status.unregistered = self._registrar.look()
            if loader is not None:
                totals = loader.totals
                status.rows, status.rows_dropped, status.segments = totals.rows, totals.rows_dropped, totals.segments
                status.quarantined, status.replanned = totals.quarantined, totals.replanned
                status.elsewhere = totals.elsewhere
                status.waiting = asdict(loader.waiting)
                if loader.progress.look() is None:
                    status.running = {}
            session = self._writer.session
            if session is not None:
                status.jvm_pid = session.jvm_pid
                status.spark_start_seconds = round(self._writer.start_seconds, 2)
            self._status.write(wall_ms())

    def _tell_end(self, code: int, error: str) -> None:
        for status in self._statuses:
            self._turn_to(self._loader, status)
            status.status.exit_code, status.status.error = code, error
            status.status.running = {}
            try:
                self._tell(FAILED if code else STOPPED)
            except OSError as failure:
                self._log.error("status_not_written", error=str(failure))


def refuse_unknown_table(statuses: Sequence[StatusFile], table: str) -> None:
    """Raise UsageError where no loader of the folders knows anything of the table, of which `table` is the id: another one
    would be filled, and what is known of the right one would be forgotten. No table was begun yet."""
    if not any(one.status.knows_batches and (not one.moved or one.status.is_of(table)) for one in statuses):
        raise UsageError(
            f"nothing is known of an earlier table at {statuses[0].status.target}: is this the right one (spark.target,"
            " spark.options)? Without --table-replaced it is filled as it is"
        )


def refuse_misfits(loaders: Sequence[Loader], config: LoaderConfig) -> None:
    """Raise UsageError when segments that wait do not fit the table: nothing was loaded yet, and nothing was moved.

    Nor do they fit where those of a folder before bring a column that the table has not yet.
    """
    columns = loaders[0].columns()
    found: list[tuple[Path, str]] = []
    for loader, folder in zip(loaders, config.stagings, strict=True):
        misfits, columns = loader.misfits(columns)
        found += [(folder / READY_DIR / name, why) for name, why in misfits.items()]
    if found:
        path, why = found[0]
        aside = typed(config.load_line("--quarantine"))
        raise UsageError(
            f"{len(found)} of the sealed segments do not fit the table {config.target}; {path}: {why}. Nothing was loaded."
            f" Load into another table, or have {aside} set these segments aside, and run their messages again: {RUN_AGAIN}"
        )


def _is_gone(staging: Path) -> bool:
    return not (staging / READY_DIR).is_dir()


def explained(error: OSError, config: LoaderConfig) -> str:
    """What a failed system call means here, and what to do about it."""
    where = f" ({error.filename})" if error.filename else ""
    said = f"{error.strerror or error}{where}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and (gone := next(filter(_is_gone, config.stagings), None)):
        return (
            f"the staging folder {gone} is gone, with what was sealed in there: have its disk mounted again; if it was"
            f" deleted, run the messages again whose rows the table lacks: {RUN_AGAIN}"
        )
    if error.errno in NO_ROOM:
        return (
            f"{said}: make room on the disk of {config.staging} or {config.target}. The segments stay, nothing is lost"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{said}: the loader must be able to read and write {config.staging} and {config.target}. The segments stay"
        )
    return f"{said}{f' ({remedy})' if (remedy := used_up(error)) else ''}. The segments stay"
