"""`read`: a table as Arrow, pandas or Spark have it, for scripts and notebooks.

`latest` is the view of that name (spark/views.py): per group and message, which two ids tell, the rows of one record, that of
the newest epoch, of these the one with the most reconsume times, among equals the one stored last.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, overload

import pyarrow
import pyarrow.compute

from ..cli.reading import dataset
from ..conf.current_folder import current_folder_named
from ..conf.formats import not_a_table, on_hdfs
from ..conf.segment_format import (
    BROKER,
    EPOCH,
    GROUP,
    MESSAGE_ID,
    OFFSET,
    ORIGIN_MESSAGE_ID,
    QUEUE_ID,
    RECONSUME_TIMES,
    STORE_TIME,
    TOPIC,
)
from ..remoting.arguments import FLAG, NONE, PATH, TABLE, TEXT, Filename, Rule, check
from ..remoting.errors import UsageError
from ..spark.errors import LoaderError
from ..spark.guest import session_of
from ..spark.hdfs import hdfs_table
from ..spark.object_store import ObjectPath, Place, place_of
from ..spark.views import PLACE, UNREADABLE_REMEDY, as_data_frame, refuse_foreign

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow
pc: Any = pyarrow.compute

FORMS: Final = ("arrow", "dataset", "pandas", "spark")
SESSION: Final = Rule("a SparkSession", lambda value: value is None or hasattr(value, "createDataFrame"))
_RULES: Final = {
    "target": PATH,
    "latest": FLAG,
    "form": TEXT,
    "spark": SESSION,
    "options": TABLE | NONE,
}
_OF_MESSAGE: Final = [GROUP, ORIGIN_MESSAGE_ID, MESSAGE_ID]
_ROW: Final = "_row"
_RECORD: Final = (EPOCH, RECONSUME_TIMES, STORE_TIME, TOPIC, BROKER, QUEUE_ID, OFFSET)
"""What tells the records of one message apart, in the order in which the later one is found."""


@overload
def read(
    target: Filename, *, latest: bool = ..., form: Literal["arrow"] = ..., spark: None = ...,
    options: Mapping[str, str] | None = ...,
) -> pyarrow.Table: ...  # fmt: skip


@overload
def read(
    target: Filename, *, latest: bool = ..., form: str = ..., spark: Any = ..., options: Mapping[str, str] | None = ...
) -> Any: ...


@current_folder_named()
def read(
    target: Filename,
    *,
    latest: bool = False,
    form: str = "arrow",
    spark: Any = None,
    options: Mapping[str, str] | None = None,
) -> Any:
    """The table in the folder `target`, or in the bucket `s3://bucket/table`: every row of every batch with its key columns
    and `batch_id`. One on HDFS (`hdfs://namenode/table`) is read with `spark` only.

    `latest=True` leaves out what a message's earlier attempts gave. `form` is "arrow" (a `pyarrow.Table`), "dataset" (a
    `pyarrow.dataset.Dataset`, read when it is used; not with `latest`) or "pandas" (a DataFrame, where integers with
    nulls are of the kind `Int64`). With `spark`, a SparkSession, or as "spark", with the active one, it is a Spark
    DataFrame; for a Delta table the session needs Delta's jars, and a bucket is not read so.
    `options` are those of `spark.options` for a bucket, such as `endpoint`; its keys are in the environment.

    Raises UsageError for a target that is no table yet, LoaderError for one that cannot be read.
    """
    given = {"target": target, "latest": latest, "form": form, "spark": spark, "options": options}
    taken = check("read", given, _RULES)
    table, latest, form = taken["target"], taken["latest"], taken["form"]
    wrong = "" if on_hdfs(table) else not_a_table(table)
    if wrong:
        raise UsageError(f"target {table!r} {wrong}")
    if on_hdfs(table) and spark is None and form != "spark":
        raise UsageError(f"{table} is on HDFS, which is read by Spark only: read(target, spark=session)")
    if form == "spark" and spark is None:
        spark = session_of(None)
    place: Place = hdfs_table(table, spark) if on_hdfs(table) else place_of(table, taken["options"] or {})
    check_form(form, latest=latest, spark=spark is not None, pandas=find_spec("pandas") is not None)
    if spark is not None:
        if isinstance(place, ObjectPath):
            raise UsageError(
                f"{table} is in a bucket: read it without spark=. Your own Spark reads it as format delta, with hadoop-aws"
            )
        return as_data_frame(spark, place, latest=latest)
    found = dataset(place)
    if latest:
        refuse_foreign(place, found.schema.names)
    if form == "dataset":
        return found
    try:
        rows = found.to_table()
    except (pa.ArrowException, OSError) as error:
        raise LoaderError(f"the table {table} can't be read: {error}. {UNREADABLE_REMEDY}") from None
    rows = latest_rows(rows) if latest else rows
    return as_pandas(rows) if form == "pandas" else rows


def as_pandas(rows: Any) -> Any:
    """A DataFrame with each value as the table has it: pandas' own integers know no null, so that Arrow makes floats of a
    column with one, and these round an id above 2^53."""
    rows = rows.replace_schema_metadata(None)  # no column is anybody's index
    apart = [
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if column.null_count and pa.types.is_integer(column.type)
    ]
    frame = rows.drop_columns(apart).to_pandas(integer_object_nulls=True)  # in lists and structs
    for name in apart:
        frame[name] = rows.column(name).to_pandas(types_mapper=_nullable)
    return frame[rows.column_names]


def _nullable(kind: Any) -> Any:
    """pandas' kind for an integer of Arrow's that may be null."""
    pandas: Any = import_module("pandas")
    return pandas.api.types.pandas_dtype(str(kind).replace("int", "Int").replace("uI", "UI"))  # Int64, UInt8


def check_form(form: str, *, latest: bool, spark: bool, pandas: bool) -> None:
    """Raise UsageError for a form that cannot be had. `spark`: a session was given; `pandas`: it is installed."""
    if form not in FORMS:
        raise UsageError(f"form={form!r} is none of {', '.join(FORMS)}")
    if form not in {"arrow", "spark"} and spark:
        raise UsageError(f"form={form!r} is read without Spark: leave one of form= and spark= out")
    if form == "dataset" and latest:
        raise UsageError("form='dataset' has every row: latest=True is possible with form='arrow' and 'pandas'")
    if form == "pandas" and not pandas:
        raise UsageError("form='pandas' needs pandas, which is not installed: pip install pandas")


def latest_rows(table: Any) -> Any:
    """The rows of the last record of each message, in their order."""
    # A null is no value that a join finds again.
    origin, unique = (table.column(name).cast(pa.string()).fill_null("") for name in (ORIGIN_MESSAGE_ID, MESSAGE_ID))
    unique = pc.replace_substring_regex(unique, PLACE, "")
    epoch = table.column(EPOCH).fill_null(0) if EPOCH in table.column_names else pa.nulls(len(table)).cast(pa.int64())
    columns = {name: table.column(name) for name in (GROUP, *_RECORD[1:])}
    keys = pa.table({**columns, EPOCH: epoch.fill_null(0), ORIGIN_MESSAGE_ID: origin, MESSAGE_ID: unique})
    newest_first = keys.sort_by([(name, "descending") for name in _RECORD])
    newest = newest_first.group_by(_OF_MESSAGE, use_threads=False).aggregate([(n, "first") for n in _RECORD])
    newest = newest.rename_columns([*_OF_MESSAGE, *_RECORD])
    placed = keys.append_column(_ROW, pa.array(range(len(keys)), pa.int64()))
    kept = placed.join(newest, [*_OF_MESSAGE, *_RECORD], join_type="left semi")
    return table.take(kept.column(_ROW).combine_chunks().sort())
