"""Reading the table back: the `results` and `latest` views, and a query on them.

`results` has every row of every batch, with `batch_id`. One message may stand in it more than once: after an uncertain
send-back it has two retry records, each with rows of its own. `latest` keeps, per group and message, the rows of one
record: that of the newest epoch, of these the one with the most reconsume times, among equals the one stored last.

Which message a record is of, two ids say together. The origin's is a broker's address and a place in its log, and comes
again when the broker begins with an empty store. The unique one, of the producer, a retry keeps. A record without any has
its own address and place there, which differ from retry to retry and say nothing: an address, the port in 8 digits and the
place in 16, of IPv4 32 in all and of IPv6 56. Where a port begins with 0000 a unique id has the process id of its producer.

One case is shown twice: a message without a unique id that a Java member sends once more as an ordinary one, because its
send-back failed or got no answer. Java's producer gives that retry a unique id, and what came before it has none.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..conf.columns import BATCH_COLUMN, Column, ddl
from ..conf.printed import command_line, counted
from ..conf.segment_format import EPOCH, GROUP, READY_DIR, SEGMENT_SUFFIX
from ..remoting.errors import UsageError
from .delta_log import is_delta
from .errors import LoaderError
from .hdfs import HdfsPath
from .iceberg_catalog import is_iceberg, read_spec
from .iceberg_spark import configure, quoted
from .object_store import Place, in_spark
from .table_state import read_state
from .targets.parquet import STATE_FILE, batch_folder, last_batch
from .targets.target import TableState

UNREAD: Final = "FAILED_READ_FILE"
"""How Spark names the error of a file that it can't read."""
SAID_MAX: Final = 1000
"""Characters of what Spark says that are passed on."""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNREADABLE_REMEDY: Final = "Look at the table with rocketcrew reconcile: --rerun brings rows of damaged files back"

PLACE: Final = "^(.{8}|.{32})0000.{20}$"
"""A record's own address and place, which say nothing of its message; a text to Spark's, DuckDB's and Arrow's expressions."""

_LATEST = """
SELECT * {without} (_rank) FROM (
  SELECT *, rank() OVER (
    PARTITION BY _group, _origin_message_id, regexp_replace(_message_id, '{place}', '')
    ORDER BY {epoch}_reconsume_times DESC, _store_time DESC, _topic DESC, _broker DESC, _queue_id DESC, _offset DESC
  ) AS _rank
  FROM results
) WHERE _rank = 1
"""


def open_table(spark: SparkSession, table: Place) -> DataFrame:
    """The table as a DataFrame, with the schema that it has itself written down. Raises UsageError when it is empty."""
    if is_delta(table):
        return spark.read.format("delta").load(in_spark(table))
    if isinstance(table, HdfsPath) and is_iceberg(table):
        return open_iceberg(spark, table)
    refuse_iceberg(table)
    return spark.read.schema(table_ddl(newest_state(table))).parquet(in_spark(table))


def open_iceberg(spark: SparkSession, table: HdfsPath) -> DataFrame:
    """The Iceberg table on HDFS, by the catalog that it was loaded through. Raises UsageError without Iceberg's jar."""
    spec = read_spec(table)
    configure(spark, spec, "")
    try:
        return spark.table(quoted(spec))
    except Exception as error:  # noqa: BLE001  Spark says it in several ways, the jar's absence most of the time
        said = " ".join(str(error).split())[:SAID_MAX]
        raise UsageError(
            f"{table} is an Iceberg table, and this session can't read it: {said}. It needs Iceberg's runtime jar for its"
            " version of Spark (pip install 'rocketcrew[iceberg-spark]', spark.format = iceberg-spark)"
        ) from None


def newest_state(table: Place) -> TableState:
    """What the newest batch of a Parquet folder says of the table. Raises UsageError when it is empty, LoaderError."""
    batch = last_batch(table)
    if not batch:
        raise nothing_loaded(table)
    return read_state(batch_folder(table, batch) / STATE_FILE)


def nothing_loaded(table: Place) -> UsageError:
    """The error for a table without a batch. What waits for it is looked for where the table of a group is its own."""
    waiting: list[Path] = []
    if isinstance(table, Path):
        waiting = sorted(table.absolute().parent.glob(f"[0-9]*/segments/{READY_DIR}/[!.]*{SEGMENT_SUFFIX}"))
    if not waiting:
        why = "nothing was loaded"
        if isinstance(table, Path) and not table.exists():
            why = "there is no such folder, the first batch makes it"
        elif isinstance(table, Path) and any(table.glob("[!.]*")):
            why += ", or it is no table of rocketcrew"
        return UsageError(f"{table} holds no batch yet: {why}")
    folders = [word for folder in sorted({path.parent.parent for path in waiting}) for word in ("--staging", folder)]
    return UsageError(
        f"{table} holds no batch yet: nothing was loaded, and {counted(len(waiting), 'sealed segment')}"
        f" {'waits' if len(waiting) == 1 else 'wait'}. `rocketcrew run` loads what is sealed within seconds; without it:"
        f" `{command_line('load', *folders, '--target', table)}`, with the spark.format and spark.partition_by"
        " of the run where it has any"
    )


def table_ddl(state: TableState) -> str:
    """The columns of the whole table as Spark DDL: those of its files, and the batch's number."""
    return ddl([*state.columns, Column(BATCH_COLUMN, "bigint")])


def refuse_iceberg(table: Place) -> None:
    """Raise UsageError for an Iceberg table, which Spark would need Iceberg's jar and the catalog for."""
    if is_iceberg(table):
        raise UsageError(
            f"{table} is an Iceberg table: ask it by DuckDB (`rocketcrew query --engine duckdb`; pip install"
            " 'rocketcrew[duckdb]'), or by a Spark of your own with Iceberg's runtime and the catalog of the table"
        )


def refuse_foreign(table: Place, columns: Collection[str]) -> None:
    """Raise UsageError for a table of somebody else: nothing in it says which message a row is of."""
    if GROUP not in columns:
        raise UsageError(f"{table} is no table that rocketcrew has filled: it has no column {GROUP}")


def register_views(spark: Any, table: Place) -> None:
    """Make the temporary views `results` and `latest`. Raises UsageError when the table is empty, or not one of ours."""
    rows = open_table(spark, table)
    refuse_foreign(table, rows.columns)
    rows.createOrReplaceTempView("results")
    spark.sql(latest_of(EPOCH in rows.columns, "EXCEPT")).createOrReplaceTempView("latest")


def latest_of(has_epochs: bool, without: str) -> str:
    """The query of the view `latest` on `results`; `without` is how the dialect leaves columns out: EXCEPT or EXCLUDE."""
    epoch = f"coalesce({EPOCH}, 0) DESC, " if has_epochs else ""
    return _LATEST.format(epoch=epoch, without=without, place=PLACE)


def as_data_frame(spark: Any, table: Place, *, latest: bool) -> Any:
    """The view `results` or `latest` as a DataFrame; the session gets no view by it. Raises as `open_table`."""
    rows = open_table(spark, table)
    if not latest:
        return rows
    refuse_foreign(table, rows.columns)
    plain = latest_of(EPOCH in rows.columns, "EXCEPT").replace("{", "{{").replace("}", "}}")
    return spark.sql(plain.replace("FROM results", "FROM {results}"), results=rows)


def query(spark: Any, table: Place, sql: str) -> list[dict[str, Any]]:
    """Run one statement on fresh `results` and `latest` views; the rows as dicts, in order."""
    register_views(spark, table)
    return [row.asDict(recursive=True) for row in spark.sql(sql).collect()]


def answer(spark: Any, statement: str) -> list[dict[str, Any]]:
    """The rows of a statement. Raises UsageError when Spark refuses it, LoaderError when it fails, each in a few words."""
    from pyspark.errors import AnalysisException

    try:
        return [row.asDict(recursive=True) for row in spark.sql(statement).collect()]
    except AnalysisException as error:  # also of what can't be parsed
        raise UsageError(f"{statement!r}: {short(error)}") from None
    except Exception as error:  # noqa: BLE001  py4j has errors of its own, and what a UDF raised
        said = short(error)  # asks the JVM, which is still there
        remedy = f". {UNREADABLE_REMEDY}" if UNREAD in said else ""
        raise LoaderError(f"{statement!r} failed: {said}{remedy}") from None


def short(error: Exception) -> str:
    """The cause, without the stacks of two languages."""
    lines = [line.strip() for line in str(error).split("JVM stacktrace")[0].splitlines()]
    told = [
        line
        for line in lines
        if line
        and not line.startswith(("at ", "... ", "An error occurred while calling"))
        and "Driver stacktrace" not in line
    ]
    return " ".join(told)[:SAID_MAX]
