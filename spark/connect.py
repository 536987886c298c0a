"""Spark somewhere else, spoken to by Spark Connect: `spark.master = "sc://host:15002"`. No Java is needed here.

The session is the server's. It reads staged files by their path where it sees them (a shared disk, or the same host), which
costs nothing; where it does not, the rows travel over the connection. A table that is a folder must be seen by both, because
its commit is a rename of this process.

What Spark keeps to itself for ten minutes, trying again without a word, is cut to 45 s: then the loader ends with a failure
that says why, and is started anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..conf.columns import Column, ddl, quoted
from ..conf.redaction import masked_text
from ..durable.files import spark_path
from ..remoting.errors import UsageError
from .errors import SparkStartError
from .pulse import Deadline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEME = "sc://"
CONNECT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
"""What a server may take to hear that the session ends; then it is left to find out."""
START_TIMEOUT_S = 120.0
"""What a server that has taken the connection may take to begin a session; one that hangs would never."""
RETRIES_MAX = 8
BACKOFF_MAX_MS = 10_000
STATIC = "CANNOT_MODIFY_STATIC_CONFIG"
NO_SUCH_PATH = "PATH_NOT_FOUND"
PLAIN_ANSWER = "WRONG_VERSION_NUMBER"
"""What TLS says of an answer that is none of TLS."""
_DETAILS = re.compile(r'^\s*details = "(.+?)"?$', re.MULTILINE)
"""In the text of an error of gRPC: what it says of itself, the first line of it."""
_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""What makes `pyspark.sql.functions`, in a user's function, those of Connect."""
FORMAT_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # As the sessions of our own have it (session.py); a session's settings reach Hadoop without a prefix.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def is_remote(master: str) -> bool:
    """Whether a master is a Spark Connect server."""
    return master.startswith(SCHEME)


def is_local(master: str) -> bool:
    """Whether a master's executors run on this host, as this user, and so see its files."""
    return master.startswith("local")


def shown(master: str) -> str:
    """A master for people: what follows the address of a Connect server may be a token, what stands before it a password."""
    return masked_text(master.partition(";")[0].rstrip("/") if is_remote(master) else master)


def endpoint(master: str) -> tuple[str, int]:
    """Host and port of a server. Raises UsageError, SparkStartError where a package is missing."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise _not_installed(error) from None
    try:
        address = DefaultChannelBuilder(master).endpoint
    except (PySparkException, ValueError):  # neither is shown: they quote what may be a token
        raise UsageError(
            f"spark.master {shown(master)!r} is no address of Spark Connect: write it as sc://host:15002,"
            " followed by /;use_ssl=true;token=... where the server asks for them"
        ) from None
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class ConnectSession:
    """A session at a Connect server. As `Session`; there is no JVM of ours."""

    jvm_pid = 0

    def __init__(self, spark: SparkSession, master: str) -> None:
        self.spark = spark
        self._name = shown(master)
        self._spark: Any = spark
        self._gone = False
        self._by_path: bool | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"the Spark Connect server {self._name}"

    def alive(self) -> bool:
        """Whether it was not found out that the server, or our session, is gone."""
        return not self._gone

    def ends_within(self, seconds: float) -> bool:
        """Whether the server is gone or does not know us any more."""
        answered = threading.Event()

        def put() -> None:
            with contextlib.suppress(Exception):
                self.ask()
                answered.set()

        asking = threading.Thread(target=put, name="connect-ask", daemon=True)
        asking.start()
        asking.join(seconds + CONNECT_TIMEOUT_S)
        self._gone = self._gone or not answered.is_set()
        return self._gone

    def ask(self) -> object:
        """A question that needs no Spark job. Blocks while the server hangs, raises when it is gone."""
        return self._spark.conf.get("spark.sql.session.timeZone")

    def kill(self) -> None:
        """Give the connection up: what waits for an answer fails."""
        self._gone = True
        with contextlib.suppress(Exception):
            self._spark.client._channel.close()

    def new_session(self) -> SparkSession:
        """The one session: nobody but the loader uses it."""
        return self.spark

    def name_job(self, session: SparkSession, group: str, what: str) -> None:
        """Name what is done next, so that it can be cancelled."""
        del session, what
        if group not in self._spark.getTags():
            self._spark.addTag(group)

    def cancel_jobs(self, session: SparkSession, group: str) -> None:
        """Cancel what is named so."""
        del session
        self._spark.interruptTag(group)

    def tasks(self, group: str) -> tuple[int, int]:
        """Unknown: the server tells a query's progress only to who waits for it."""
        del group
        return 0, 0

    def read(self, session: SparkSession, files: Sequence[Path], columns: Sequence[Column]) -> DataFrame:
        """The rows of staged files: by their paths, or over the connection where the server does not see them."""
        if self._by_path is not False:
            frame = session.read.schema(ddl(columns)).parquet(*(spark_path(file) for file in files))
            try:
                found = frame.schema
            except Exception as error:
                if NO_SUCH_PATH not in str(error):
                    raise
                self._by_path = False
            else:
                self._by_path = bool(found)
                return frame
        return rows_over_the_connection(session, files, columns)

    def close(self) -> None:
        """End the session at the server, and the connection. Never raises."""
        os.environ.pop(_MODE, None)
        if self._gone:
            return
        with Deadline(STOP_TIMEOUT_S, self.kill), contextlib.suppress(Exception):
            self._spark.stop()


def rows_over_the_connection(session: Any, files: Sequence[Path], columns: Sequence[Column]) -> DataFrame:
    """The rows of staged files as parts of the query itself; they are in this process's memory until it is done."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl(columns))
    reader: Any = pq  # pyarrow's types are partial
    parts = [as_told(reader.read_table(str(file), partitioning=None), schema) for file in files]
    frame, *others = [session.createDataFrame(part, schema=schema) for part in parts]
    for other in others:
        frame = frame.unionAll(other)
    wanted: DataFrame = frame.select(*(quoted(column.name) for column in columns)).coalesce(len(files))
    return wanted


def as_told(rows: Any, schema: Any) -> Any:
    """The rows, a pyarrow table, with exactly the columns of Spark's `schema`; those that they lack are null."""
    from pyspark.sql.pandas.types import to_arrow_schema

    target: Any = to_arrow_schema(schema, timezone="UTC")
    there = set(rows.column_names)
    arrays: list[Any] = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(rows), field.type)
        for field in target
    ]
    return pa.Table.from_arrays(arrays, schema=target)


def open_connect(master: str, conf: dict[str, str], start_timeout_s: float = START_TIMEOUT_S) -> ConnectSession:
    """Begin a session at the server `master`. Raises UsageError, SparkStartError with the reason and the remedy."""
    host, port = endpoint(master)
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise SparkStartError(
            f"there is no Spark Connect server at {host}:{port} ({error}): start one (sbin/start-connect-server.sh of Spark),"
            " or correct spark.master. Results stay safe in their segments"
        ) from None
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    os.environ[_MODE] = "1"
    spark: Any = None

    def give_up() -> None:
        spark.client._channel.close()

    deadline = Deadline(start_timeout_s, give_up)
    try:
        # Its builder makes it the session that users' functions find, too. The server is asked for nothing yet.
        spark = RemoteSession.builder.remote(master).create()
        spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES_MAX, max_backoff=BACKOFF_MAX_MS)])
        with deadline:
            for name, value in {**FORMAT_CONF, **conf}.items():
                spark.conf.set(name, value)
    except Exception as error:
        os.environ.pop(_MODE, None)
        if spark is not None:
            with Deadline(STOP_TIMEOUT_S, give_up), contextlib.suppress(Exception):
                spark.stop()
        raise refused(master, error, start_timeout_s if deadline.passed else 0) from error
    return ConnectSession(spark, master)


def said_by(error: Exception) -> str:
    """Why a server gives no session, in a line: of an error of gRPC that stands below a line that tells nothing."""
    text = str(error)
    found = _DETAILS.search(text)
    return found[1] if found else next((line for line in text.splitlines() if line.strip()), type(error).__name__)


def refused(master: str, error: Exception, waited_s: float) -> SparkStartError:
    """Why there is no session at the server, and what to do about it."""
    said = said_by(error)
    if waited_s:
        said = f"no answer within {waited_s:g} s"
    hint = ""
    if STATIC in str(error):
        hint = ". What spark.conf says of static settings belongs to the start of the server: leave it out here"
    elif "UNAUTHENTICATED" in str(error) or "PERMISSION_DENIED" in str(error):
        hint = ". Give its token: SPARK_CONNECT_AUTHENTICATE_TOKEN in the environment, or /;token=... in spark.master"
    elif PLAIN_ANSWER in said:
        hint = (
            ". It speaks no TLS, and Spark's client does with use_ssl=true, and where it has a token (the environment may"
            " have one in SPARK_CONNECT_AUTHENTICATE_TOKEN): put TLS before it, or name it localhost if it is on this host"
        )
    return SparkStartError(
        f"the Spark Connect server {shown(master)} gives no session: {said}{hint}. Results stay safe in their segments"
    )


def _not_installed(error: ImportError) -> SparkStartError:
    said = str(error).strip().splitlines()[0] if str(error).strip() else "a package is missing"
    return SparkStartError(f"spark.master is an sc:// address, and {said}: pip install 'rocketcrew[connect]'")
