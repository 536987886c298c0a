"""Names of columns in Delta tables: which ones Spark takes, and where a table maps them to others. Pure, without Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .columns import Column

COLUMN_MAPPING: Final = "delta.columnMapping.mode"
NOT_MAPPED: Final = "none"
"""What that property of a Delta table is where columns have their own names in its files."""
NEW_TABLES_MAPPING: Final = f"spark.databricks.delta.properties.defaults.{COLUMN_MAPPING.removeprefix('delta.')}"
"""Spark's setting that gives new Delta tables that property."""
_NOT_IN_DELTA_BY_SPARK = re.compile(r"[ ,;{}()\n\t=]")
_WITHIN = re.compile(r"`((?:[^`]|``)+)`")
"""The names of fields within a type that `spark_type` has written."""


def maps_names(mode: str) -> bool:
    """Whether a Delta table of that COLUMN_MAPPING has columns under other names in its files, and so takes any name."""
    return mode.lower() != NOT_MAPPED


def maps_new_names(spark_conf: Mapping[str, str]) -> bool:
    """Whether a Delta table that Spark makes with these settings does."""
    return maps_names(spark_conf.get(NEW_TABLES_MAPPING, NOT_MAPPED))


def refused_by_delta(table: Sequence[Column], rows: Sequence[Column]) -> str:
    """Why Spark adds no rows of these columns to a Delta `table` that maps no names of columns; empty: it does.

    It looks at all names, with those within structs, whenever a column is new (Delta's SchemaUtils.scala,
    `checkSchemaFieldNames`), so one that delta-rs has put into the table counts too. Else it looks at none.
    """
    known = {column.name for column in table}
    new = [column for column in rows if column.name not in known]
    if not new:
        return ""
    names = dict.fromkeys(name for column in (*table, *new) for name in (column.name, *_WITHIN.findall(column.type)))
    wrong = ", ".join(repr(name) for name in names if _NOT_IN_DELTA_BY_SPARK.search(name))
    if not wrong:
        return ""
    return (
        f"spark.format = delta: Spark brings no columns into a Delta table where one is named {wrong}, as names may have no"
        " space, tab or newline, and none of , ; { } ( ) =. Give other names, or set spark.format = deltalake, which writes"
        " the same table with these"
    )
