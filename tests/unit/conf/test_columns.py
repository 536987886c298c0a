"""Arrow types as Spark types, and how a table's columns grow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rocketcrew.conf.columns import (
    Column,
    ColumnConflictError,
    TypeNotForSparkError,
    columns_of,
    ddl,
    merged,
    misfits,
    spark_type,
    widened,
)
from rocketcrew.conf.segment_format import KEY_COLUMNS, key_fields


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "tinyint"),
        (pa.int64(), "bigint"),
        (pa.uint32(), "bigint"),
        (pa.float32(), "float"),
        (pa.large_string(), "string"),
        (pa.binary(7), "binary"),
        (pa.date32(), "date"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.decimal128(12, 3), "decimal(12,3)"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.list_(pa.list_(pa.int32())), "array<array<int>>"),
        (pa.list_(pa.int32(), 3), "array<int>"),
        (pa.map_(pa.string(), pa.float64()), "map<string,double>"),
        (pa.struct([("a b", pa.int32()), ("c`d", pa.list_(pa.string()))]), "struct<`a b`:int,`c``d`:array<string>>"),
    ],
)
def test_arrow_types_as_spark_writes_them(arrow: pa.DataType, spark: str) -> None:
    assert spark_type(arrow) == spark


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(),
        pa.uint64(),
        pa.duration("s"),
        pa.time64("us"),
        pa.decimal256(60, 2),
        pa.list_(pa.uint64()),
        pa.float16(),
    ],
)
def test_a_type_that_spark_cannot_hold_is_refused_with_the_column_named(arrow: pa.DataType) -> None:
    with pytest.raises(TypeNotForSparkError, match="'speed'"):
        columns_of(pa.schema([("speed", arrow)]))


def test_names_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(TypeNotForSparkError, match="case"):
        columns_of(pa.schema([("Name", pa.string()), ("name", pa.string())]))


def test_the_key_columns_have_spark_types() -> None:
    columns = columns_of(pa.schema(key_fields()))
    assert tuple(column.name for column in columns) == KEY_COLUMNS
    assert ddl(columns[:4]) == "`_group` string, `_topic` string, `_broker` string, `_queue_id` int"


def test_a_table_grows_at_its_end_and_keeps_its_order() -> None:
    table = (Column("a", "int"), Column("b", "string"))
    assert merged(table, [Column("c", "date"), Column("a", "int")]) == (*table, Column("c", "date"))
    assert merged((), table) == table


@pytest.mark.parametrize("other", [Column("a", "bigint"), Column("A", "int")])
def test_another_type_or_another_case_is_a_conflict(other: Column) -> None:
    with pytest.raises(ColumnConflictError, match=r"'a'|'A'"):
        merged([Column("a", "int")], [other])


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("tinyint", "smallint"), ("smallint", "int"), ("tinyint", "bigint"), ("int", "bigint"), ("float", "double")],
)
def test_narrower_numbers_go_into_a_wider_column_which_stays_as_it_is(narrow: str, wide: str) -> None:
    assert merged([Column("a", wide)], [Column("a", narrow)]) == (Column("a", wide),)
    assert misfits([Column("a", narrow)], [Column("a", wide)])


@pytest.mark.parametrize(
    ("one", "other"), [("int", "double"), ("bigint", "double"), ("int", "string"), ("date", "timestamp")]
)
def test_types_that_would_change_values_or_meaning_do_not_mix(one: str, other: str) -> None:
    assert misfits([Column("a", one)], [Column("a", other)])
    assert misfits([Column("a", other)], [Column("a", one)])


def test_rows_are_widened_where_the_table_is_wider_alone() -> None:
    rows = pa.schema(
        [pa.field("a", pa.int32(), nullable=False), ("b", pa.string()), ("c", pa.float32()), ("d", pa.int8())]
    )
    table = [Column("a", "bigint"), Column("b", "string"), Column("c", "double"), Column("e", "int")]
    wanted = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), ("b", pa.string()), ("c", pa.float64()), ("d", pa.int8())]
    )
    assert widened(rows, table) == wanted


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.struct([("x", pa.int32()), ("X", pa.int32())]), "s.X"),
        (pa.struct([("x", pa.int32()), ("x", pa.int32())]), "s.x"),
        (pa.large_list(pa.struct([("x", pa.int32()), ("X", pa.int32())])), "s.X"),
        (pa.map_(pa.string(), pa.list_(pa.struct([("ß", pa.int32()), ("SS", pa.int32())]), 2)), "s.SS"),
    ],
)
def test_names_within_a_struct_that_are_one_to_spark(kind: pa.DataType, path: str) -> None:
    with pytest.raises(TypeNotForSparkError, match=f"column '{path}': Spark does not tell it from another one"):
        columns_of(pa.schema([("s", kind)]))


def test_the_same_name_in_two_structs_is_two_columns() -> None:
    inner = pa.struct([("x", pa.int32())])
    assert len(columns_of(pa.schema([("x", inner), ("y", pa.map_(inner, inner)), ("z", pa.list_(inner))]))) == 3
