"""What a replay's rows and a table's differ in, found by Spark, in the columns that both have.

Rows are compared by the record that began a message's chain of retries, by their place among its rows, and by the user's
columns: a message that succeeded at its second attempt stands in the table under the retry topic, and in the replay under its
own. Of the table counts what `latest` shows, of the group, and of messages that the replay has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..conf.columns import BATCH_COLUMN, Column, ddl, misfits, quoted
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
    """How many rows stand in one of both only, or in both with other values, and the first of them.

    `not_compared`: columns that one of both has alone, or that have other types.
    """

    only_replay: int
    only_table: int
    changed: int
    replay_samples: tuple[Row, ...]
    table_samples: tuple[Row, ...]
    changed_samples: tuple[tuple[Row, Row], ...]
    """Pairs: the replay's row, and the table's of the same message and place."""
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """The verdict."""
        return not (self.only_replay or self.only_table or self.changed)


@dataclass(frozen=True, slots=True)
class Shared:
    """The columns to compare, and what is said of the others."""

    columns: tuple[Column, ...]
    not_compared: tuple[str, ...]


def shared_columns(table: Path, replayed: Sequence[Column], there: Sequence[Column]) -> Shared:
    """What rows of the columns `replayed` and the table's can be compared by. Pure. Raises UsageError when by nothing."""
    known = {column.name: column.type for column in _users(there)}
    ours = {column.name: column.type for column in _users(replayed)}
    if not known:
        raise UsageError(f"--diff {table}: there is no table of rocketcrew with rows")
    same = tuple(
        column
        for column in _users(replayed)
        if not misfits([Column(column.name, known.get(column.name, ""))], [column])
    )
    if not same:
        raise UsageError(
            f"--diff {table}: the handler returns {', '.join(ours)}, the table has {', '.join(known)}: no column of one name"
            " and type is in both"
        )
    others = [
        *(f"{name} (the replay's alone)" for name in ours if name not in known),
        *(f"{name} (the table's alone)" for name in known if name not in ours),
        *(f"{name} ({ours[name]} in the replay, {known[name]} in the table)" for name in ours
          if name in known and name not in {column.name for column in same}),
    ]  # fmt: skip
    return Shared(same, tuple(others))


def _users(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.name not in _NOT_USERS]


def compare(
    spark: Any, table: Path, group: str, columns: Sequence[Column], shared: Shared, files: Sequence[Path],
    seen: Sequence[Path],
) -> Difference:  # fmt: skip
    """`files` have the replay's rows, of `columns`; `seen` the origins of all messages in it. Raises UsageError."""
    register_views(spark, table)
    latest = spark.table("latest")
    users = shared.columns
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
    place = [ORIGIN, SEQ]
    pairs = only_here.alias("here").join(only_there.alias("there"), place, "left_semi").persist()
    new, gone = only_here.join(pairs, place, "left_anti"), only_there.join(pairs, place, "left_anti")
    changed = _samples(pairs)
    before = {(row[ORIGIN], row[SEQ]): row for row in _samples(only_there.join(pairs, place, "left_semi"))}
    return Difference(
        only_replay=new.count(), only_table=gone.count(), changed=pairs.count(),
        replay_samples=_samples(new), table_samples=_samples(gone),
        changed_samples=tuple((row, before[row[ORIGIN], row[SEQ]]) for row in changed),
        not_compared=shared.not_compared,
    )  # fmt: skip


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
