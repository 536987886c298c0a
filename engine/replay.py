"""`rocketcrew replay`: a handler over what was stored in a past stretch of time, as one Spark job.

It reads the topics and nothing else of the group: no offset is read or told, no message is sent back, no table changed.
Retries are not read: each message runs once, as at its first delivery. What fails is counted and shown.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..conf.columns import Column, columns_of, merged
from ..conf.segment_format import OPEN_DIR
from ..conf.settings import Settings, require
from ..durable.files import remove_tree
from ..durable.intervals import OffsetSet
from ..remoting.errors import UsageError
from ..spark.config import DELTA
from ..spark.convert import stage
from ..spark.delta_log import is_delta
from ..spark.plan import Plan, Take
from ..spark.segments import read_facts
from ..spark.spark_writer import SparkWriter
from ..spark.table_columns import table_columns
from ..spark.views import refuse_iceberg
from ..supervisor.member.access import access_of
from ..workers.api import Handler
from ..workers.ddl import as_schema
from ..workers.loading import HandlerSpec, load
from ..workers.rows import RowBuffer
from .batches import spark_job
from .diff import Difference, Shared, compare, shared_columns
from .fitting import check_handler, check_settings
from .home import FAILED_DIR, SEEN_DIR, make_task_folders, own_files, warn_of
from .options import tags_by_topic, task_bounds, window_options
from .shipping import ship
from .spec import RECORD_SCHEMA, Report, TaskSpec
from .table import loader_config, session_settings
from .task import SEEN_SCHEMA

pa: Any = pyarrow
pq: Any = pyarrow.parquet

REPLAY_DIR = "replay"
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that the handler failed."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    error: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it; `failures` are the first of them."""

    handled: int
    failed: int
    rows: int
    failures: tuple[Failed, ...]
    difference: Difference | None

    @property
    def fine(self) -> bool:
        """With a comparison its verdict; else whether nothing failed."""
        return self.difference.same if self.difference is not None else not self.failed


@dataclass(frozen=True, slots=True)
class Window:
    """What is replayed, in milliseconds since 1970, and what becomes of the rows."""

    from_ms: int
    to_ms: int
    output: Path | None = None
    diff: Path | None = None


def check_window(from_ms: int, to_ms: int) -> None:
    """Raise UsageError for a window with nothing in it."""
    if from_ms >= to_ms:
        raise UsageError(
            "--from must be earlier than --to: messages stored from the one until before the other are run"
        )


def run_replay(settings: Settings, spec: HandlerSpec, env: Mapping[str, str], window: Window) -> Replayed:
    """Run the handler over the window. Raises RocketcrewError; leaves nothing behind but `output`."""
    flags = {"consumer.group": "-g GROUP", "consumer.topics": "-t TOPIC", "cluster.name_servers": "-n HOST:PORT"}
    require(settings, list(flags), flag_names=flags)
    check_settings(settings)
    check_window(window.from_ms, window.to_ms)
    _check_output(window.output)
    handler = load(spec)
    check_handler(handler)
    declared = settings.results.schema or handler.schema
    if declared is None and (window.diff or window.output):
        raise UsageError(
            f"handler {handler.name} declares no columns, so there are no rows to keep or compare: give --schema"
        )
    shared = None
    if window.diff is not None:
        there = [Column(*column) for column in table_columns(window.diff)]
        shared = shared_columns(window.diff, columns_of(as_schema(declared)), there)
    data_dir = Path(settings.supervisor.data_dir).absolute()
    folder = data_dir / settings.consumer.group / REPLAY_DIR / f"{time.time_ns():x}"
    for left in make_task_folders(folder, data_dir):
        warn_of(left)
    try:
        with own_files(data_dir):
            return _Replay(settings, spec, handler, folder, window, shared).run(env)
    finally:
        remove_tree(folder)


class _Replay:
    def __init__(
        self,
        settings: Settings,
        spec: HandlerSpec,
        handler: Handler,
        folder: Path,
        window: Window,
        shared: Shared | None,
    ) -> None:
        """`shared`: the columns that are compared with the table's; None: nothing is."""
        self._shared = shared
        self._settings = settings
        self._folder = folder
        self._window = window
        self._access = access_of(settings)
        declared = settings.results.schema or handler.schema
        self._columns: tuple[Column, ...] = ()
        self._group = self._access.wrap(settings.consumer.group)
        if declared is not None:
            self._columns = columns_of(RowBuffer[object](as_schema(declared), self._group).schema)
        self._spec = TaskSpec(
            handler=spec, run=folder.name, prefix=f"r{folder.name}", folder=folder, group=self._group,
            namespace=self._access.namespace, tags=tags_by_topic(settings, self._access), schema=settings.results.schema,
            results=declared is not None, seen=window.diff is not None, bounds=task_bounds(settings),
            deaths_max=settings.workers.max_worker_deaths, spans=settings.trace.spans,
            log_format=settings.log.format, log_level=settings.log.level,
        )  # fmt: skip

    def run(self, env: Mapping[str, str]) -> Replayed:
        settings, window = self._settings, self._window
        config = loader_config(settings, self._folder / "segments", self._folder / "table", env)
        if window.diff is not None:
            refuse_iceberg(window.diff)
        if window.diff is not None and is_delta(window.diff):
            config = replace(config, format=DELTA)
        writer = SparkWriter(
            session_settings(config, self._folder / "spark", "rocketcrew-replay"), config.jvm_timeout_ms
        )
        try:
            writer.start()
            session = writer.session
            assert session is not None, "start() makes a session or raises"
            spark: Any = session.spark
            ship(spark.sparkContext, self._spec.handler.module, settings.engine.py_files, self._folder / "ship")
            partitions = settings.engine.partitions or int(spark.sparkContext.defaultParallelism)
            options = window_options(settings, self._access, window.from_ms, window.to_ms, partitions)
            frame = spark.read.format("rocketmq").schema(RECORD_SCHEMA).options(**options).load()
            reports = spark_job(frame, self._spec)
            columns, files = self._rows(reports, config.cores, config.target_file_bytes)
            difference = None
            if window.diff is not None and self._shared is not None:
                seen = [self._as_parquet(report.seen) for report in reports if report.seen]
                difference = compare(spark, window.diff, self._group, columns, self._shared, files, seen)
        finally:
            writer.close()
        if window.output is not None:
            _keep(files, window.output)
        return Replayed(
            handled=sum(report.handled for report in reports),
            failed=sum(report.failed for report in reports),
            rows=sum(report.rows for report in reports),
            failures=self._failures(reports),
            difference=difference,
        )

    def _rows(self, reports: Sequence[Report], cores: int, file_bytes: int) -> tuple[tuple[Column, ...], list[Path]]:
        """The segments that count as Parquet files, as a batch of the loader would be staged."""
        opened = self._folder / OPEN_DIR
        facts = {name: read_facts(opened / name) for report in reports for name in report.segments}
        columns = self._columns
        for fact in facts.values():
            columns = merged(columns, fact.columns)
        plan = Plan("replay", 1, tuple(Take(name, None) for name in facts), OffsetSet(), columns)
        with ThreadPoolExecutor(max(2, cores), "replay") as threads:
            staged = stage(plan, facts, opened, self._folder / "rows", threads, cores, file_bytes)
        return columns, list(staged.files)

    def _as_parquet(self, name: str) -> Path:
        """Spark reads no Arrow streams."""
        source, target = self._folder / SEEN_DIR / name, self._folder / SEEN_DIR / f"{name}.parquet"
        with pa.memory_map(str(source)) as mapped, pq.ParquetWriter(str(target), SEEN_SCHEMA) as writer:
            for batch in pa.ipc.open_stream(mapped):
                writer.write_batch(batch)
        return target

    def _failures(self, reports: Sequence[Report]) -> tuple[Failed, ...]:
        found: list[Failed] = []
        for report in reports:
            if report.failures and len(found) < SHOWN_MAX:
                with pa.memory_map(str(self._folder / FAILED_DIR / report.failures)) as mapped:
                    table = pa.ipc.open_stream(mapped).read_all().slice(0, SHOWN_MAX)
                    rows = table.select(["topic", "broker", "queue_id", "offset", "error"]).to_pylist()
                found += [Failed(**row) for row in rows]
        return tuple(found[:SHOWN_MAX])


def _check_output(output: Path | None) -> None:
    if output is not None and output.exists() and any(output.iterdir()):
        raise UsageError(f"--output {output} is not empty: name a folder that is new, or empty it")


def _keep(files: Sequence[Path], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.move(file, output / file.name)
