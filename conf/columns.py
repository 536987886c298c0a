"""The table's columns: Arrow types of segments as Spark types, and what happens when a segment brings other columns.

The schema is never inferred from files: each segment says its own, the table remembers its own, and Spark is told. So
a file without rows, or with a column all null, can't change the table's types behind the user's back.

A table grows by nullable columns only. Rows may lack columns (they read as null) or bring new ones (earlier rows read as
null). A column keeps its name and its type for ever: files of two types under one name can't be read as one table by every
reader. Rows whose type is narrower are widened (`WIDER_TYPES`); any other type, and a name that differs in case alone, is
refused where rows are made (workers/table_fit.py), and where they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ..remoting.errors import UsageError

BATCH_COLUMN = "batch_id"
"""The column that every table has beside the segments' own: the number of the batch by which a row came in."""
DECIMAL_PRECISION_MAX = 38
"""Spark's widest decimal; also what Arrow's 128-bit one holds."""


class Column(NamedTuple):
    """A column as Spark knows it: its name and its type as Spark SQL writes it, such as `array<int>`."""

    name: str
    type: str


WIDER_TYPES: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""Types of a table's column into which rows of another type go without a change of their values."""
WAYS_OUT = (
    "Give the column the name and the type that the table has, or another name; or load into another table (spark.target)."
    " A table's column keeps its type; narrower numbers are widened"
)


class TypeNotForSparkError(ValueError):
    """An Arrow type has no Spark type that keeps its values."""


class ColumnConflictError(ValueError):
    """A segment's column has another type than the table's column of the same name."""


_PLAIN_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}


def quoted(name: str) -> str:
    """`name` as a Spark SQL identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def spark_type(arrow: pa.DataType) -> str:
    """The Spark SQL type that Spark reads from Parquet written with `arrow`. Raises TypeNotForSparkError."""
    plain = _PLAIN_TYPES.get(arrow)
    if plain is not None:
        return plain
    for recognises, build in _NESTED_TYPES:
        if recognises(arrow):
            return build(arrow)
    raise TypeNotForSparkError(f"Spark has no type for Arrow's {arrow}")


def _timestamp(arrow: Any) -> str:
    return "timestamp" if arrow.tz is not None else "timestamp_ntz"


def _decimal(arrow: Any) -> str:
    if arrow.precision > DECIMAL_PRECISION_MAX or not 0 <= arrow.scale <= arrow.precision:
        raise TypeNotForSparkError(
            f"Spark's decimals have at most {DECIMAL_PRECISION_MAX} digits, {arrow} does not fit"
        )
    return f"decimal({arrow.precision},{arrow.scale})"


def _bytes(_arrow: Any) -> str:
    return "binary"


def _dictionary(arrow: Any) -> str:
    return spark_type(arrow.value_type)


def _array(arrow: Any) -> str:
    return f"array<{spark_type(arrow.value_type)}>"


def _map(arrow: Any) -> str:
    return f"map<{spark_type(arrow.key_type)},{spark_type(arrow.item_type)}>"


def _struct(arrow: Any) -> str:
    fields = (arrow.field(at) for at in range(arrow.num_fields))
    return "struct<" + ",".join(f"{quoted(field.name)}:{spark_type(field.type)}" for field in fields) + ">"


_NESTED_TYPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_fixed_size_binary, _bytes),
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_list, _array),
    (pa.types.is_large_list, _array),
    (pa.types.is_fixed_size_list, _array),
    (pa.types.is_map, _map),
    (pa.types.is_struct, _struct),
)
"""Decimals stand before fixed-size binary: Arrow counts a decimal as one."""


_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


def plain_schema(schema: Any) -> Any:
    """The schema with the Arrow types that table formats have, where they differ: what `spark_type` names, in Arrow."""
    kind: Any = pa
    return kind.schema(
        [kind.field(name, _plain(arrow)) for name, arrow in zip(schema.names, schema.types, strict=True)]
    )


def _plain(arrow: Any) -> Any:
    kind: Any = pa
    if arrow in _WIDER:
        return _WIDER[arrow]
    if kind.types.is_timestamp(arrow):
        return kind.timestamp("us", None if arrow.tz is None else "UTC")
    if kind.types.is_dictionary(arrow):
        return _plain(arrow.value_type)
    if kind.types.is_fixed_size_binary(arrow):
        return kind.binary()
    if kind.types.is_map(arrow):
        return kind.map_(_plain(arrow.key_type), _plain(arrow.item_type))
    if kind.types.is_struct(arrow):
        return kind.struct([kind.field(field.name, _plain(field.type)) for field in arrow])
    if kind.types.is_list(arrow) or kind.types.is_large_list(arrow) or kind.types.is_fixed_size_list(arrow):
        return kind.list_(_plain(arrow.value_type))
    return arrow


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of an Arrow schema. Raises TypeNotForSparkError naming the column."""
    columns: list[Column] = []
    for name, arrow in zip(schema.names, schema.types, strict=True):
        try:
            columns.append(Column(name, spark_type(arrow)))
        except TypeNotForSparkError as error:
            raise TypeNotForSparkError(f"column {name!r}: {error}") from None
    twice = named_twice(schema)
    if twice:
        raise TypeNotForSparkError(f"column {twice!r}: Spark does not tell it from another one that differs in case")
    return tuple(columns)


def folded(name: str) -> str:
    """What is equal of two names that are one to Spark, which compares without regard to case."""
    return name.casefold()


def named_twice(kind: Any) -> str:
    """The first name in a schema, or within a type, that is one to Spark with another one beside it, as a path; empty: none.

    Within a struct too: Spark can't read a table with such columns, and delta-rs makes none.
    """
    of: Any = pa.types
    fields: list[Any] = []
    if isinstance(kind, pa.Schema):
        fields = list(kind)
    elif of.is_struct(kind):
        fields = list(kind.fields)
    elif of.is_map(kind):
        return named_twice(kind.key_type) or named_twice(kind.item_type)
    elif of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return named_twice(kind.value_type)
    seen: set[str] = set()
    for field in fields:
        if folded(field.name) in seen:
            return str(field.name)
        seen.add(folded(field.name))
        if within := named_twice(field.type):
            return f"{field.name}.{within}"
    return ""


PARTITION_TYPES = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint", "date"})
"""Types whose values can be names of folders and be read back as they were."""


def check_partition_columns(wanted: Iterable[str], columns: Sequence[Column]) -> None:
    """Raise UsageError unless each of `wanted` is a column that rows can be sorted into folders by."""
    known = {column.name: column.type for column in columns}
    for name in wanted:
        if name not in known:
            own = ", ".join(column.name for column in columns if not column.name.startswith("_"))
            raise UsageError(f"spark.partition_by names {name!r}, which is no column of the rows: they have {own}")
        if known[name] not in PARTITION_TYPES:
            raise UsageError(
                f"spark.partition_by: column {name!r} is {known[name]}; folders can be made of"
                f" {', '.join(sorted(PARTITION_TYPES))}"
            )


def merged(table: Sequence[Column], segment: Sequence[Column]) -> tuple[Column, ...]:
    """The table's columns, in their order, then those that the segment brings. Raises ColumnConflictError.

    Names are compared as Spark does, without regard to case.
    """
    wrong = misfits(table, segment)
    if wrong:
        raise ColumnConflictError("; ".join(wrong))
    known = {column.name for column in table}
    return (*table, *(column for column in segment if column.name not in known))


def misfits(table: Sequence[Column], rows: Sequence[Column]) -> list[str]:
    """What of the `rows` does not go into the table, a column each; empty: they fit."""
    known = {folded(column.name): column for column in table}
    wrong: list[str] = []
    for column in rows:
        there = known.get(folded(column.name), column)
        if there.name != column.name:
            wrong.append(
                f"column {column.name!r} is called {there.name!r} there, and names in two cases are one to Spark"
            )
        elif column.type != there.type and there.type not in WIDER_TYPES.get(column.type, ()):
            wrong.append(f"column {column.name!r} is {column.type} here and {there.type} there")
    return wrong


def widened(schema: Any, table: Iterable[Column]) -> Any:
    """The Arrow schema of rows that fit, with the table's types where these are wider."""
    wide = {"smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    types = {column.name: column.type for column in table}
    kind: Any = pa
    fields: list[Any] = []
    for field in schema:
        plain = _PLAIN_TYPES.get(field.type)
        wanted = types.get(field.name, plain)
        fields.append(
            kind.field(field.name, wide[wanted], field.nullable)
            if wanted in WIDER_TYPES.get(plain or "", ())
            else field
        )
    return kind.schema(fields)


def ddl(columns: Iterable[Column]) -> str:
    """The columns as a Spark SQL schema string."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
