"""What a replay's rows and a table's differ in, found by Spark.

Rows are compared by the record that began a message's chain of retries, by their place among its rows, and by the user's
columns: a message that succeeded at its second attempt stands in the table under the retry topic, and in the replay under its
own. Of the table counts what `latest` shows, of the group, and of messages that the replay has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..conf.columns import BATCH_COLUMN, Column, ddl, quoted
from ..conf.segment_format import EPOCH, GROUP, KEY_COLUMNS, MESSAGE_ID, ORIGIN_MESSAGE_ID, SEQ
from ..durable.files import spark_path
from ..remoting.errors import UsageError
from ..spark.views import register_views

SAMPLES_MAX = 20
ORIGIN = "_origin"
_NOT_USERS = {*KEY_COLUMNS, EPOCH, BATCH_COLUMN}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """How many rows stand in one of both only, and the first of them."""

    only_replay: int
    only_table: int
    replay_samples: tuple[Row, ...]
    table_samples: tuple[Row, ...]

    @property
    def same(self) -> bool:
        """The verdict."""
        return not (self.only_replay or self.only_table)


def compare(
    spark: Any, table: Path, group: str, columns: Sequence[Column], files: Sequence[Path], seen: Sequence[Path]
) -> Difference:
    """`files` have the replay's rows, `seen` the origins of all messages in it. Raises UsageError."""
    register_views(spark, table)
    latest = spark.table("latest")
    users = [column for column in columns if column.name not in _NOT_USERS]
    missing = [column.name for column in users if column.name not in latest.columns]
    if missing:
        raise UsageError(
            f"--diff {table}: the table has no column {', '.join(missing)}, which the handler returns: compare with a table"
            " of the same columns"
        )
    if seen:
        origins = spark.read.schema("origin string").parquet(*(spark_path(file) for file in seen)).distinct()
    else:
        origins = spark.createDataFrame([], "origin string")
    reader = spark.read.schema(ddl(columns))
    replayed = (
        reader.parquet(*(spark_path(file) for file in files)) if files else spark.createDataFrame([], ddl(columns))
    )
    there = latest.where(latest[GROUP] == group).selectExpr(*_shown(users))
    there = there.join(origins, there[ORIGIN] == origins["origin"], "left_semi")
    here = replayed.selectExpr(*_shown(users))
    # Each is looked at twice, and is small where somebody is going to read it.
    only_here, only_there = here.exceptAll(there).persist(), there.exceptAll(here).persist()
    return Difference(only_here.count(), only_there.count(), _samples(only_here), _samples(only_there))


def _shown(users: Sequence[Column]) -> list[str]:
    """Maps cannot be compared: they are as text, in the order of their keys."""
    origin = f"coalesce({ORIGIN_MESSAGE_ID}, {MESSAGE_ID}) AS {ORIGIN}"
    return [origin, SEQ, *(_comparable(column) for column in users)]


def _comparable(column: Column) -> str:
    name = quoted(column.name)
    if column.type.startswith("map<"):
        return f"to_json(array_sort(map_entries({name}))) AS {name}"
    return f"to_json(struct({name})) AS {name}" if "map<" in column.type else name


def _samples(frame: Any) -> tuple[Row, ...]:
    rows = frame.orderBy(ORIGIN, SEQ).limit(SAMPLES_MAX).collect()
    return tuple(row.asDict(recursive=True) for row in rows)
