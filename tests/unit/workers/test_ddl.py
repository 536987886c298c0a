from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.conf.columns import BATCH_COLUMN, folded
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.ddl import COLUMNS_MAX, as_schema, parse_ddl, to_ddl

UTC_US = pa.timestamp("us", tz="UTC")


def test_every_simple_type() -> None:
    text = (
        "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary, j date, k timestamp, "
        "l timestamp_ntz, m decimal(5,2), n decimal, o varchar(20), p char(3), q BYTE, r Short, s integer, t LONG, u real"
    )
    kinds = [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), UTC_US, pa.timestamp("us"), pa.decimal128(5, 2), pa.decimal128(10, 0), pa.string(), pa.string(),
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
    ]  # fmt: skip
    assert list(parse_ddl(text).types) == kinds


def test_nested_types_names_and_options() -> None:
    schema = parse_ddl(
        "`odd name` array<int> not null, m: map<string, array<double>> COMMENT 'what it is', "
        's struct<x: int, `y z`: struct<q string NOT NULL>> comment "it\'s"'
    )
    assert schema.field("odd name").type == pa.list_(pa.int32())
    assert not schema.field("odd name").nullable
    assert schema.field("m").type == pa.map_(pa.string(), pa.list_(pa.float64()))
    inner = pa.struct([pa.field("q", pa.string(), nullable=False)])
    assert schema.field("s").type == pa.struct([pa.field("x", pa.int32()), pa.field("y z", inner)])


simple = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
     pa.date32(), UTC_US, pa.timestamp("us"), pa.decimal128(38, 10)]
)  # fmt: skip
names = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("_") and name.strip() == name)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(
        st.builds(pa.field, names, inner, nullable=st.booleans()),
        min_size=1,
        max_size=3,
        unique_by=lambda field: field.name.casefold(),
    )
    return st.one_of(
        inner.map(pa.list_),
        st.tuples(simple, inner).map(lambda pair: pa.map_(*pair)),
        fields.map(pa.struct),
    )


types = st.recursive(simple, nested, max_leaves=6)
columns = st.lists(
    # Hypothesis draws words of the sources, too: among them is the one column's that every table has.
    st.builds(pa.field, names.filter(lambda name: folded(name) != BATCH_COLUMN), types, nullable=st.booleans()),
    min_size=1,
    max_size=5,
    unique_by=lambda field: field.name.casefold(),
)


@given(columns)
def test_ddl_comes_back(fields: list[pa.Field]) -> None:
    schema = pa.schema(fields)
    assert parse_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column name"),
        ("a", "expected a type"),
        ("a int,", "column name"),
        ("a int b int", 'expected ","'),
        ("a strnig", 'unknown type "strnig" at "strnig" \\(character 3\\)'),
        ("a array<int", 'expected ">"'),
        ("a map<int>", 'expected ","'),
        ("a decimal(50,2)", "precision 1 to 38"),
        ("a decimal(x)", "expected a number"),
        ("a decimal(\u00b2)", "expected a number"),
        ("a int not", 'expected "null"'),
        ("a int, A string", "declared twice"),
        ("straße int, STRASSE string", "declared twice"),
        ("s struct<x: int, X: int>", 'column "s.X" is declared twice'),
        ("s array<struct<x: int, m: map<string, struct<y: int, Y: int>>>>", 'column "s.m.Y" is declared twice'),
        ("s map<struct<x: int, X: int>, int>", 'column "s.X" is declared twice'),
        ("_offset int", "key columns"),
        ("a int; drop", 'unexpected ";'),
        ("1a int", "column name"),
        ("a int comment", "text in quotes"),
        ("a " + "array<" * 30 + "int" + ">" * 30, "deeper"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_ddl(text)


@given(st.text(alphabet="ab `'\"<>(),:1_ int", max_size=40))
def test_no_text_is_more_than_a_usage_error(text: str) -> None:
    try:
        parse_ddl(text)
    except UsageError:
        return


def test_an_arrow_schema_is_brought_to_types_that_spark_has() -> None:
    schema = as_schema(
        pa.schema(
            [
                pa.field("a", pa.uint8()),
                pa.field("b", pa.uint32(), nullable=False),
                pa.field("c", pa.timestamp("ns", tz="Europe/Berlin")),
                pa.field("d", pa.timestamp("s")),
                pa.field("e", pa.large_string()),
                pa.field("f", pa.large_list(pa.uint16())),
                pa.field("g", pa.struct([pa.field("h", pa.binary(4))])),
                pa.field("i", pa.date64()),
                pa.field("j", pa.float16()),
                pa.field("k", pa.map_(pa.large_string(), pa.uint8())),
            ]
        )
    )
    assert to_ddl(schema) == (
        "a smallint, b bigint not null, c timestamp, d timestamp_ntz, e string, f array<int>, "
        "g struct<h: binary>, i date, j float, k map<string,smallint>"
    )


@pytest.mark.parametrize("kind", [pa.uint64(), pa.null(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_types_that_spark_does_not_have(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match='column "a'):
        as_schema(pa.schema([pa.field("a", pa.list_(kind))]))


@dataclass
class Point:
    x: int
    y: float | None


@dataclass
class Row:
    name: str
    flag: bool
    raw: bytes
    when: datetime.datetime
    day: datetime.date | None
    price: decimal.Decimal
    points: list[Point] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)


def test_a_dataclass_declares_columns() -> None:
    assert to_ddl(as_schema(Row)) == (
        "name string, flag boolean, raw binary, when timestamp, day date, price decimal(38,18), "
        "points array<struct<x: bigint, y: double>>, scores map<string,double>"
    )


@dataclass
class Odd:
    value: object


@dataclass
class Unresolvable:
    value: Missing  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("declared", [Odd, Unresolvable, 3, Row, int])
def test_declarations_that_cannot_be_used(declared: object) -> None:
    if declared is Row:
        declared = "a int, " * COLUMNS_MAX
    with pytest.raises(UsageError, match="schema"):
        as_schema(declared)


def test_too_many_columns() -> None:
    with pytest.raises(UsageError, match="legal are 1 to"):
        parse_ddl(", ".join(f"c{number} int" for number in range(COLUMNS_MAX + 1)))


@pytest.mark.parametrize("name", ["batch_id", "Batch_ID"])
def test_a_column_that_every_table_has_is_refused(name: str) -> None:
    """It would hide the number of the batch, or be hidden by it."""
    with pytest.raises(UsageError, match=f'"{name}" is one that every table has'):
        parse_ddl(f"a int, {name} string")
