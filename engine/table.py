"""The table of the engine: the loader's own steps, in the driver's process and in the driver's Spark session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from ..client.clock import wall_ms
from ..conf.delta_names import maps_new_names
from ..conf.formats import on_hdfs
from ..conf.segment_format import FOLDER_FORMATS
from ..conf.settings import Settings, require
from ..remoting.errors import UsageError
from ..spark.config import ARROW, DELTA_RS, LoaderConfig
from ..spark.config import loader_config as config_of
from ..spark.errors import RESET
from ..spark.iceberg_catalog import ICEBERG
from ..spark.session import SessionSettings, format_conf
from ..spark.spark_writer import SparkWriter
from ..spark.staging import Staging
from ..spark.table_columns import table_columns
from ..spark.targets.making import make_loader, make_target, make_writer
from ..supervisor.loader_child import where
from ..workers.boot import TableSpec
from ..workers.ddl import as_schema
from ..workers.table_fit import check_fits
from .home import Reached

TASK_FAILURES_MAX = "64"
"""How often Spark repeats a task: each death that one message costs is a failure of its task (hands.py)."""

ANEW = (
    "Put it back; or begin the stream anew, in another supervisor.data_dir: it goes on at the group's offsets, and what the"
    f" table had comes again after `{RESET}`"
)
"""What to do about a table that has gone back: the engine keeps its number in its own folder, where the checkpoint is too."""

_log = structlog.get_logger("rocketcrew.engine")


def loader_config(settings: Settings, staging: Path, table: Path, env: Mapping[str, str]) -> LoaderConfig:
    """What the loader's steps are told; as `rocketcrew load` is. Raises UsageError."""
    return config_of(settings.spark, staging, where(settings.spark, table), env)


def session_settings(config: LoaderConfig, folder: Path, app_name: str) -> SessionSettings:
    """The driver's session. A local master repeats no task by itself: it is told to."""
    conf = {
        "spark.task.maxFailures": TASK_FAILURES_MAX,
        # A comparison shuffles; Spark's own 200 parts are for clusters.
        **({"spark.sql.shuffle.partitions": str(4 * config.cores)} if config.master.startswith("local[") else {}),
        "spark.sql.streaming.stopTimeout": "30s",
        **format_conf(config.format, config.delta_jars, config.iceberg_jars),
        **config.conf,
        # Of a task that ran twice side by side one would be taken for dead, with what it has in hand.
        "spark.speculation": "false",
    }
    return SessionSettings(
        folder=folder, master=repeating(config.master, conf["spark.task.maxFailures"]), driver_memory=config.driver_memory,
        java_home=config.java_home, conf=conf, env=config.env, app_name=app_name,
    )  # fmt: skip


def repeating(master: str, failures_max: str) -> str:
    """`local[N]` with a number of failures; other masters go by spark.task.maxFailures."""
    if master == "local":
        return f"local[1,{failures_max}]"
    if master.startswith("local[") and master.endswith("]") and "," not in master:
        return f"{master[:-1]},{failures_max}]"
    return master


class Table:
    """The loader's steps over one staging folder. `writer` has the driver's session."""

    def __init__(
        self, config: LoaderConfig, staging: Staging, writer: SparkWriter, known: Callable[[], Reached]
    ) -> None:
        self._threads = ThreadPoolExecutor(max(2, config.cores), "table")
        target_writer = make_writer(config) if config.format in (ARROW, DELTA_RS, ICEBERG) else writer
        self._known = known
        self._target = make_target(config, target_writer, self._threads)
        self._loader = make_loader(config, staging, self._target, self._threads, table_replaced=ANEW)

    def recover(self) -> None:
        """Take up what an earlier run left half done. Raises LoaderError."""
        self._loader.recover(*self._known())

    def load(self) -> Reached:
        """Load all that is staged; what the table has reached then. Raises LoaderError."""
        for report in self._loader.drain(wall_ms, lambda: False):
            _log.info("batch_loaded", batch=report.batch, rows=report.rows, rows_dropped=report.rows_dropped,
                      duration_ms=round(report.seconds * 1000))  # fmt: skip
        return Reached(self._loader.batch, self._loader.table, self._loader.plan)

    def close(self) -> None:
        """End the threads, and let the table's next loader in."""
        self._target.close()
        self._threads.shutdown()


def check_columns(config: LoaderConfig, declared: object, segments: Path) -> None:
    """Raise UsageError when rows of the columns that are `declared` (None: there are no rows) do not fit the table."""
    if declared is not None:
        columns = table_columns(config.place) if config.format in FOLDER_FORMATS else ()
        mapped = maps_new_names(config.conf)
        table = TableSpec(str(config.target), columns, config.partition_by, config.format, mapped)
        check_fits(as_schema(declared), table, segments)


def check_target(settings: Settings) -> None:
    """A format without a folder needs a target; on HDFS the engine writes no table. Raises UsageError."""
    if not settings.results.enabled:
        return
    if settings.spark.format not in (*FOLDER_FORMATS, "foreach"):
        require(settings, ["spark.target"], flag_names={"spark.target": "--target PATH"})
    elif settings.spark.format in FOLDER_FORMATS and on_hdfs(settings.spark.target):
        raise UsageError(
            f"spark.target = {settings.spark.target}: the engine writes no tables on HDFS. Let supervisors fill it (run"
            " without --engine), or name a folder, such as a mount of HDFS"
        )
