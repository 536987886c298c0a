"""Nested columns in Arrow tables, batches and slices: what is wrong within them, and only there, is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from rocketcrew.conf.folders import folder_names
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError

pa: Any = pyarrow
pq: Any = pyarrow.parquet

INF = math.inf
FLOAT, DOUBLE, TEXT, TIME = pa.float32(), pa.float64(), pa.string(), pa.timestamp("us", "UTC")
NO_YEAR = 2**62
NO_TIME = r"column c .*: a time outside of the years 1 to 9999"
INFINITE = r"column c .*infinite in 32 bits: declare the column double"
STRUCT = "struct<a: float, b: array<float>>"


def struct(number: Any) -> Any:
    return pa.struct([("a", number), ("b", pa.list_(number))])


def map_of(number: Any) -> Any:
    return pa.map_(TEXT, number)


def forms(array: Any) -> list[Any]:
    """The same column in each form that a handler may give it in: alone, in a table of one or more chunks, in slices."""
    batch = pa.record_batch({"c": array})
    more = pa.concat_batches([batch, batch])
    return [
        batch,
        pa.Table.from_batches([batch]),
        pa.Table.from_batches([batch.slice(0, 1), batch.slice(1)]),
        more.slice(len(array)),
        pa.Table.from_batches([more]).slice(0, len(array)),
    ]


def fitted(columns: Columns, table: Any) -> list[Any]:
    """The values by both ways, the first look at a schema and the one at its like, which must agree."""
    found = [columns.checked(columns.fit_arrow(table)).column(0).to_pylist() for _ in range(2)]
    assert found[0] == found[1]
    return list(found[0])


def test_a_dictionary_that_many_batches_have_is_looked_at_once() -> None:
    text = numpy.frombuffer(b"abc", "u1").copy()
    words = pa.StringArray.from_buffers(3, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(text))
    batch = pa.record_batch({"c": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), words)})
    columns = Columns(parse_ddl("c string"))
    assert fitted(columns, batch.slice(0, 1)) == ["a"]
    text[2] = 0xFF
    assert fitted(columns, batch.slice(1, 1)) == ["b"]
    with pytest.raises(RowError, match=NO_UTF_8):
        columns.fit_arrow(batch.slice(2, 1))
    beyond = pa.DictionaryArray.from_arrays(pa.array([3]), words, safe=False)
    with pytest.raises(RowError, match="broken Arrow array"):
        columns.fit_arrow(pa.record_batch({"c": beyond}))
    others = pa.DictionaryArray.from_arrays(pa.array([0]), words.slice(1))
    with pytest.raises(RowError, match=NO_UTF_8):
        columns.fit_arrow(pa.record_batch({"c": others}))


LEGITIMATE: list[tuple[str, Any, list[Any]]] = [
    ("array<float>", pa.list_, [[1.0, INF], None, []]),
    ("map<string, float>", map_of, [[("a", 1.0)], None, [("b", INF), ("c", None)]]),
    (STRUCT, struct, [{"a": INF, "b": [-INF]}, None, {"a": None, "b": None}]),
]


@pytest.mark.parametrize("number", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize(("ddl", "kind", "values"), LEGITIMATE, ids=["list", "map", "struct"])
def test_what_is_infinite_goes_in_at_any_depth_and_in_each_form(ddl: str, kind: Any, values: Any, number: Any) -> None:
    for table in forms(pa.array(values, kind(number))):
        assert fitted(Columns(parse_ddl(f"c {ddl}")), table) == values


@pytest.mark.parametrize(
    ("ddl", "kind", "values"),
    [
        ("array<float>", pa.list_(DOUBLE), [[1.0, INF], None, [1e300]]),
        ("map<string, float>", pa.map_(TEXT, DOUBLE), [[("a", 1.0)], None, [("b", INF), ("c", 1e300)]]),
        (STRUCT, struct(DOUBLE), [{"a": INF, "b": [-INF]}, None, {"a": 1, "b": [INF, -1e300]}]),
    ],
    ids=["list", "map", "struct"],
)
def test_what_becomes_infinite_is_refused_in_each_form(ddl: str, kind: Any, values: Any) -> None:
    for table in forms(pa.array(values, kind)):
        with pytest.raises(RowError, match=INFINITE):
            fitted(Columns(parse_ddl(f"c {ddl}")), table)


def judged(ddl: str, array: Any, bad: int, words: str) -> None:
    """Of an array with one bad value, slices with it are refused, and those without it are not."""
    batch, columns = pa.record_batch({"c": array}), Columns(parse_ddl(f"c {ddl}"))
    for start in range(len(array)):
        for rows in range(1, len(array) - start + 1):
            part = batch.slice(start, rows)
            for table in (part, pa.Table.from_batches([part])):
                if start <= bad < start + rows:
                    with pytest.raises(RowError, match=words):
                        fitted(columns, table)
                else:
                    assert len(fitted(columns, table)) == rows


def test_a_slice_is_judged_by_what_is_in_it() -> None:
    times = pa.array([[("a", 0)], [("b", NO_YEAR), ("c", 0)], None, [("d", 5)]], pa.map_(TEXT, TIME))
    judged("map<string, timestamp>", times, 1, NO_TIME)
    judged("array<timestamp>", pa.array([[0], [5, NO_YEAR], None], pa.list_(TIME)), 1, NO_TIME)
    wide = pa.array([[("a", 1.0)], [("b", INF)], None, [("c", 1e300)]], pa.map_(TEXT, DOUBLE))
    judged("map<string, float>", wide, 3, INFINITE)
    within = pa.array([[[("a", 1.0)]], [[("b", 1e300)], None], None, [[("c", INF)]]], pa.list_(pa.map_(TEXT, DOUBLE)))
    judged("array<map<string, float>>", within, 1, INFINITE)


def test_a_null_in_a_map_is_one_of_its_slice() -> None:
    kind = pa.map_(TEXT, pa.struct([pa.field("x", pa.int32(), nullable=False)]))
    maps = [[("a", {"x": 1})], None, [("b", {"x": None}), ("c", {"x": 1})], [("d", {"x": 2}), ("e", None)]]
    judged("map<string, struct<x: int not null>>", pa.array(maps, kind), 2, "field x is null, but declared not null")


def test_what_is_within_a_null_map_is_not_there() -> None:
    keys, times = pa.array(["a", "b", "c"]), pa.array([0, NO_YEAR, 5], TIME)
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), keys, times, mask=pa.array([False, True, False])
    )
    assert hidden.items[1].value == NO_YEAR
    assert [bool(each) for each in fitted(Columns(parse_ddl("c map<string, timestamp>")), pa.table({"c": hidden}))] == [
        True, False, True,
    ]  # fmt: skip


NO_UTF_8 = r"column c .*: a string that is no UTF-8: decode it before"
NOT_TEXT = pa.array([b"ok", b"\xff\xfe", b"fine"])


def test_a_string_that_is_no_utf_8_is_refused_with_its_message() -> None:
    texts, ends = NOT_TEXT.view(pa.string()), pa.array([0, 1, 2, 3], pa.int32())
    judged("string", texts, 1, NO_UTF_8)
    judged("string", NOT_TEXT.cast(pa.large_binary()).view(pa.large_string()), 1, NO_UTF_8)
    judged("string", NOT_TEXT.cast(pa.binary_view()).view(pa.string_view()), 1, NO_UTF_8)
    judged("array<string>", pa.ListArray.from_arrays(ends, texts), 1, NO_UTF_8)
    judged("struct<x: string>", pa.StructArray.from_arrays([texts], ["x"]), 1, NO_UTF_8)
    judged("map<string, int>", pa.MapArray.from_arrays(ends, texts, pa.array([1, 2, 3], pa.int32())), 1, NO_UTF_8)
    judged("map<string, string>", pa.MapArray.from_arrays(ends, pa.array(["a", "b", "c"]), texts), 1, NO_UTF_8)
    for table in forms(pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), texts)):
        with pytest.raises(RowError, match=NO_UTF_8):
            fitted(Columns(parse_ddl("c string")), table)
    folders = Columns(parse_ddl("c string"), folder_names("pyarrow", "/data/t", ["c"]))
    with pytest.raises(RowError, match=NO_UTF_8):
        fitted(folders, pa.table({"c": texts}))


def buffers(*numbers: int) -> Any:
    return pa.py_buffer(b"".join(number.to_bytes(4, "little", signed=True) for number in numbers))


def broken(kind: Any, length: int, *parts: Any, children: Any = None) -> Any:
    """An array that Arrow itself does not make: with offsets that point outside, or backwards."""
    return pa.lib.Array.from_buffers(kind, length, list(parts), children=children)


BACKWARDS = buffers(0, 5, 2, 2)
BROKEN: list[tuple[str, Callable[[], Any]]] = [
    ("string", lambda: broken(pa.string(), 3, None, BACKWARDS, pa.py_buffer(b"ab"))),
    ("binary", lambda: broken(pa.binary(), 3, None, BACKWARDS, pa.py_buffer(b"ab"))),
    ("array<int>", lambda: broken(pa.list_(pa.int32()), 3, None, BACKWARDS, children=[pa.array([1, 2], pa.int32())])),
    ("string", lambda: pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), ["a"], safe=False)),
    ("array<string>", lambda: pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BROKEN[3][1]())),
    ("decimal(3,1)", lambda: broken(pa.decimal128(3, 1), 1, None, pa.py_buffer(b"\xff" * 15 + b"\x00"))),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "make"), BROKEN)
def test_a_broken_array_is_refused_with_its_message(ddl: str, make: Callable[[], Any]) -> None:
    for table in (pa.record_batch({"c": make()}), pa.table({"c": make()})):
        with pytest.raises(RowError, match=r"column c .*: a broken Arrow array"):
            fitted(Columns(parse_ddl(f"c {ddl}")), table)


HIDING = "struct<a: int not null, b: struct<c: string not null>>"


@pytest.mark.parametrize("within", ["{}", "array<{}>", "map<string, {}>"])
def test_what_is_hidden_in_a_null_struct_can_be_written(within: str) -> None:
    """Arrow's null structs have nulls in fields that may not be null: a writer of Parquet refuses the segment for them."""
    columns = Columns(parse_ddl(f"n int, c {within.format(HIDING)}"))
    declared: list[Any] = [columns.schema, parse_ddl(f"c {HIDING}")]
    kind, part = (schema.field("c").type for schema in declared)
    given = pa.concat_arrays([pa.nulls(2, part), pa.array([{"a": 1, "b": None}, {"a": 2, "b": {"c": "x"}}], part)])
    if pa.types.is_list(kind):
        given = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), given, type=kind)
    elif pa.types.is_map(kind):
        given = pa.MapArray.from_arrays(pa.array([0, 2, 4], pa.int32()), list("abcd"), given, type=kind)
    for batch in ({"n": pa.array(range(len(given)), pa.int32()), "c": given}, {"n": pa.array([1], pa.int32())}):
        for _ in range(2):
            fitted_batch = columns.checked(columns.fit_arrow(pa.record_batch(batch)))
            pq.write_table(pa.Table.from_batches([fitted_batch]), pa.BufferOutputStream())
            assert fitted_batch.column(1).to_pylist() == (given.to_pylist() if "c" in batch else [None])
