"""The writer that is Spark: one job reads the staged Parquet files and writes the table's.

The job runs in a session of its own beside the main one (they share the JVM): each staged file is to be one task and one
file of the table, which takes settings that would slow down a user's query.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..conf.columns import BATCH_COLUMN, Column
from ..conf.segment_format import MESSAGE_ID, OFFSET, ORIGIN_MESSAGE_ID
from .connect import ConnectSession, endpoint, is_remote
from .errors import LoaderError, SparkDiedError, SparkStartError, StoppedError, remedy, without_rows
from .java import Java, find_java
from .object_store import Place, in_spark
from .pulse import Deadline, Pulse
from .session import Session, SessionSettings, kill_starting, open_any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

JOB_GROUP = "rocketcrew-load"
DYING_S = 1.0
"""What a failed job waits to learn whether the JVM is on its way out: then that is why it failed."""
START_TIMEOUTS = 20
"""A start may take so many times `spark.jvm_timeout_ms` (20 minutes, as it is set by default) before it counts as hanging:
packages are fetched meanwhile, and a cluster may have no room yet."""
_NEVER_REPEATING = (OFFSET, MESSAGE_ID, ORIGIN_MESSAGE_ID)
"""Columns for which Parquet would fill a dictionary, find it useless and begin again, whatever the rows hold."""
_HADOOP_CONF = {
    # Parquet has checksums in its pages. The usual class writes a second file of them beside each, at 5 % of the job's CPU.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    # Row groups are collected in memory: of the usual 128 MiB they fill a heap of 1 GiB, at another 5 %.
    "parquet.block.size": str(64 * 1024 * 1024),
}
"""How data files are written, unless the user's own `spark.hadoop.*` say otherwise."""
_ONE_FILE_A_TASK = str(1 << 40)
"""Bytes that opening a file is said to cost, and that a task may read: so Spark neither packs files together nor cuts
them, and the parts that were made about equal stay the tasks."""


class SparkWriter:
    """Starts Spark at the first `start`, and writes with it until `close`. `start` and `write` by one thread only."""

    def __init__(
        self,
        settings: SessionSettings,
        jvm_timeout_ms: int = 0,
        partition_by: Sequence[str] = (),
        *,
        opening: Callable[[SessionSettings], Session | ConnectSession] = open_any,
        kill_starting: Callable[[Path], None] = kill_starting,
    ) -> None:
        """`jvm_timeout_ms`: a JVM that does not answer for so long is killed; 0 = never. `partition_by`: of `write`.

        `opening` starts Spark; `kill_starting` makes that end when it hangs.
        """
        self._opening = opening
        self._kill_starting = kill_starting
        self._partition_by = tuple(partition_by)
        self._jvm_timeout_s = jvm_timeout_ms / 1000
        self._pulse: Pulse | None = None
        self.session: Session | ConnectSession | None = None
        self.start_seconds = 0.0
        self._settings = settings
        self._load_session: SparkSession | None = None
        self._cancelled = False
        self._java: Java | None = None
        self._remote = is_remote(settings.master)
        self._looked = False

    def check(self) -> None:
        """Look whether Spark could start, or is still there. Cheap. Raises SparkStartError, SparkDiedError."""
        if self.session is None:
            if self._remote:
                if not self._looked:
                    endpoint(self._settings.master)
                self._looked = True
            elif self._java is None:
                self._java = find_java(self._settings.java_home, self._settings.env)
        elif not self.session.alive():
            raise SparkDiedError(self._death())

    def check_dying(self) -> None:
        """The same, after Spark gave no answer: a JVM that dies breaks its connections before it is seen to be gone."""
        if self.session is not None and self.session.ends_within(DYING_S):
            raise SparkDiedError(self._death())

    def start(self) -> None:
        """Start Spark if it does not run yet. Raises SparkStartError, SparkDiedError when it ran and is gone."""
        self.check()
        if self.session is not None:
            return
        begun = time.monotonic()
        limit_s = 0.0 if self._remote else self._jvm_timeout_s * START_TIMEOUTS
        deadline = Deadline(limit_s, lambda: self._kill_starting(self._settings.folder))
        try:
            with deadline:
                self.session = self._opening(self._settings)
                self._load_session = self.session.new_session()
                for name in ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"):
                    self._load_session.conf.set(name, _ONE_FILE_A_TASK)
        except Exception as error:
            if deadline.passed:
                raise self._hung_at_start(limit_s) from error
            raise
        if deadline.passed:
            raise self._hung_at_start(limit_s)
        self.start_seconds = time.monotonic() - begun
        if self._jvm_timeout_s:
            self._pulse = Pulse(self.session.ask, self._jvm_timeout_s, self.session.kill)
            self._pulse.start()

    def spark(self) -> SparkSession:
        """The main session, started if there is none. Raises as `start`."""
        self.start()
        assert isinstance(self.session, Session), "who has a Spark Connect server does not ask for this"
        return self.session.spark

    def _hung_at_start(self, limit_s: float) -> SparkStartError:
        return SparkStartError(
            f"Spark did not start within {limit_s:g} s ({START_TIMEOUTS} times spark.jvm_timeout_ms), and its JVM was killed."
            f" {self._settings.folder}/jvm.log and spark.log may say why. The segments stay"
        )

    def write(self, files: Sequence[Path], output: Place, columns: Sequence[Column], bytes_in: int) -> None:
        """Write the files' rows as Parquet files into the folder `output`. `bytes_in` only names the job."""

        def as_parquet(rows: DataFrame) -> None:
            writing = rows.write.mode("overwrite").options(**self._hadoop_conf())
            for name in _NEVER_REPEATING:
                writing = writing.option(f"parquet.enable.dictionary#{name}", "false")
            partitioned(writing, self._partition_by).parquet(in_spark(output))

        self.run(files, columns, f"{bytes_in} bytes to {output.name}", as_parquet)
        if self._remote and not output.is_dir():
            raise LoaderError(
                f"Spark has written {output} where this process does not see it: the table's folder must be on a disk that"
                " the Spark Connect server and the loader share, by the same path; else use spark.format = foreach, or one"
                " of df.write. The segments stay"
            )

    def _hadoop_conf(self) -> dict[str, str]:
        return {
            name: value for name, value in _HADOOP_CONF.items() if f"spark.hadoop.{name}" not in self._settings.conf
        }

    def run(
        self, files: Sequence[Path], columns: Sequence[Column], what: str, action: Callable[[DataFrame], None]
    ) -> None:
        """Do `action` with the rows of `files`, as a job that `cancel` ends. Raises as `write` does."""
        self.job(f"{len(files)} files, {what}", lambda made, session: action(made.read(session, files, columns)))

    def job(self, what: str, action: Callable[[Session | ConnectSession, SparkSession], None]) -> None:
        """Do `action`, as a job that `cancel` ends. Raises as `write` does."""
        session = self._load_session
        if self.session is None or session is None:
            raise RuntimeError("start() comes before a job")
        if self._cancelled:
            raise StoppedError("the loader is to stop: no Spark job was started")
        try:
            self.session.name_job(session, JOB_GROUP, what)
            action(self.session, session)
        except Exception as error:
            raise self._translated(error) from error

    def setting(self, name: str, default: str) -> str:
        """What the session has it set to. Raises as `write` does."""
        if self._load_session is None:
            raise RuntimeError("start() comes before a setting is asked for")
        try:
            return str(self._load_session.conf.get(name, default))
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> LoaderError:
        if self._cancelled:
            return StoppedError("the Spark job was cancelled, as the loader is to stop")
        if self.session is not None and self.session.ends_within(DYING_S):
            return SparkDiedError(self._death())
        said = [line for line in without_rows(str(error)).splitlines() if line.strip()]
        log = f"More in {self._settings.folder}/spark.log"
        if self.session is not None and not self.session.jvm_pid:  # none that was started here
            log = f"The log of {self.session.where} says more"
        return LoaderError(
            f"the Spark job failed: {' | '.join(said[:3])}{remedy(str(error))}. {log}; the segments stay"
        )

    def _death(self) -> str:
        where = self.session.where if self.session is not None else "Spark"
        if self._pulse is not None and self._pulse.hung and self._remote:
            return (
                f"{where} did not answer for {self._jvm_timeout_s:g} s (spark.jvm_timeout_ms). The loader has to be started"
                " anew; the segments stay"
            )
        if self._remote:
            return (
                f"{where} is gone, or has forgotten our session. The loader has to be started anew; the segments stay"
            )
        if self._pulse is not None and self._pulse.hung:
            return (
                f"Spark's JVM did not answer for {self._jvm_timeout_s:g} s (spark.jvm_timeout_ms) and was killed. The"
                f" loader has to be started anew; the segments stay. {self._settings.folder}/spark.log may say why"
            )
        return (
            f"Spark's JVM is gone (was it killed, or short of memory? spark.driver_memory is {self._settings.driver_memory})."
            f" The loader has to be started anew; the segments stay. {self._settings.folder}/jvm.log may say why"
        )

    def cancel(self) -> None:
        """Cancel the running job from another thread; later writes end at once too."""
        self._cancelled = True
        session, load_session = self.session, self._load_session
        if session is not None and load_session is not None:
            # The session may be closed at this very moment, and the JVM gone: then there is nothing left to cancel.
            with contextlib.suppress(Exception):
                session.cancel_jobs(load_session, JOB_GROUP)

    def tasks(self) -> tuple[int, int]:
        """See `Engine.tasks`."""
        session = self.session
        if session is not None:
            with contextlib.suppress(Exception):  # it may be on its way out
                return session.tasks(JOB_GROUP)
        return 0, 0

    def close(self) -> None:
        """Stop Spark; bounded, as a session kills what does not stop."""
        session, self.session, self._load_session = self.session, None, None
        if self._pulse is not None and not self._pulse.hung:
            self._pulse.stop()
        if session is not None:
            session.close()


def partitioned(writing: DataFrameWriter, by: Sequence[str]) -> DataFrameWriter:
    """With a folder for each value of the columns `by`, where there are any."""
    return writing.partitionBy(*by) if by else writing


def numbered(rows: DataFrame, batch: int) -> DataFrame:
    """The rows with their batch's number as the last column."""
    return rows.selectExpr("*", f"cast({batch} as bigint) as {BATCH_COLUMN}")
