"""The loader in a session of somebody else: of a notebook, of `spark-submit`, of a platform that makes the session itself.

Its settings, jars, master and user are the session's own, wherever they came from (spark-defaults.conf, SPARK_HOME). What the
loader needs beside them is set in a session next to it (`newSession`); the caller's stays as it was and goes on afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..remoting.errors import UsageError
from .connect import FORMAT_CONF
from .errors import SparkDiedError
from .session import Session, SessionSettings
from .spark_writer import SparkWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class GuestSession(Session):
    """As `Session`, and nothing of it is ever ended."""

    where = "the Spark session"

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._context: Any = spark.sparkContext

    @property
    def jvm_pid(self) -> int:
        """None that is ours to watch or to end."""
        return 0

    def alive(self) -> bool:
        """Whether the session was not stopped."""
        try:
            return not self._context._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001  stopped by Python, or its JVM is gone
            return False

    def ends_within(self, seconds: float) -> bool:
        """Whether it was stopped; nobody ends it here."""
        del seconds
        return not self.alive()

    def kill(self) -> None:
        """The JVM is the caller's."""

    def new_session(self) -> SparkSession:
        """A session beside the caller's, with what tables need."""
        made = super().new_session()
        for name, value in FORMAT_CONF.items():
            made.conf.set(name, value)
        return made

    def close(self, end_timeout_s: float = 0, stop_timeout_s: float = 0) -> None:
        """Leave it: jobs of this thread are the caller's again."""
        del end_timeout_s, stop_timeout_s
        if self.alive():
            for name in JOB_PROPERTIES:
                self._context.setLocalProperty(name, None)


class GuestWriter(SparkWriter):
    """As `SparkWriter`, in a session that is there."""

    def __init__(self, spark: SparkSession, folder: Path, partition_by: Sequence[str] = ()) -> None:
        settings = SessionSettings(
            folder, str(spark.sparkContext.master), conf=dict(spark.sparkContext.getConf().getAll())
        )
        super().__init__(settings, 0, partition_by, opening=lambda _: GuestSession(spark))

    def check(self) -> None:
        """Look whether the session is still there. Raises SparkDiedError."""
        if self.session is not None and not self.session.alive():
            raise SparkDiedError(self._death())

    def _death(self) -> str:
        return "the Spark session was stopped: the segments stay"


def session_of(given: Any) -> SparkSession:
    """The session that was given, or the active one. Raises UsageError where there is none, or one of Spark Connect."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"pyspark can't be imported ({error}): pip install 'rocketcrew[spark]'") from None
    spark: Any = given if given is not None else SparkSession.getActiveSession()
    if spark is None:
        raise UsageError("there is no active Spark session: give one, as spark=SparkSession.builder.getOrCreate()")
    if not isinstance(spark, SparkSession):
        raise UsageError(
            "spark= is a session of Spark Connect, or none: load by `rocketcrew load --master sc://host:15002` there"
        )
    if not GuestSession(spark).alive():
        raise UsageError("the Spark session was stopped: make a new one")
    return spark
