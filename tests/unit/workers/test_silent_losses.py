"""Values of which something would be lost without a word are refused, in whatever form they are given."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import math
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import numpy
import pandas
import pyarrow
import pytest

from rocketcrew.testing import message
from rocketcrew.workers.copying import listed
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.rows import RowBuffer

pa: Any = pyarrow


class NaTType:
    """What pandas gives for no time, as far as Arrow looks at it."""


class Zone(datetime.tzinfo):
    """Says nothing: each method of its base raises."""


class Wordless:
    """Whoever asks for its number gets an error without a word."""

    def __index__(self) -> int:
        raise ZeroDivisionError


class Tensor:
    """A number in memory that may be changed, which has an index only where it is whole."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __index__(self) -> int:
        if isinstance(self.number, float):
            raise TypeError("only integer tensors can be an index")
        return self.number

    def __int__(self) -> int:
        return int(self.number)


class Quantity(numpy.ndarray[Any, Any]):
    """An array of a class of one's own."""


def fit(ddl: str, row: object) -> list[Any]:
    """The row's values by both ways, which must agree."""
    columns = Columns(parse_ddl(ddl))
    values = columns.values_of_plain(row)
    if values is None:
        values = columns.values_of(row)
    found = [array.to_pylist() for array in columns.arrays([values])]
    assert found == [array.to_pylist() for array in columns._by_column([values])]  # pyright: ignore[reportPrivateUsage]
    return found


ROWS = [
    ("a int, b int", collections.defaultdict(int, {"a": 1, "typo": 2}), '"typo" is not declared'),
    ("a int, b int", collections.Counter({"a": 1, "typo": 2}), '"typo" is not declared'),
    ("s struct<x: int>", {"s": (1.9,)}, "expected an integer, got float"),
    ("s struct<x: int>", {"s": [("x", 1.9)]}, "expected an integer, got float"),
    ("s struct<x: int>", {"s": [("x", 1), ("y", 2)]}, 'field "y" is not declared'),
    ("s struct<x: timestamp>", {"s": (5,)}, "whose unit nobody knows"),
    ("s struct<x: int not null>", {"s": {"x": None}}, "field x is null, but declared not null"),
    ("s struct<x: int not null>", {"s": {}}, "field x is null, but declared not null"),
    ("s array<struct<x: int not null>>", {"s": [{"x": 1}, {}]}, "field x is null, but declared not null"),
    ("s map<string, struct<x: int not null>>", {"s": {"k": {}}}, "field x is null, but declared not null"),
    ("d date", {"d": NaTType()}, "got NaT: return None"),
    ("c array<string>", {"c": "abc"}, "expected a list, got str"),
    ("c array<string>", {"c": {"a": 1}}, "expected a list, got dict"),
    ("t timestamp", {"t": datetime.datetime(2020, 1, 1, tzinfo=Zone())}, "utcoffset"),
    ("c int", {"c": Wordless()}, "column c int: .+"),
    ("c map<string, int>", {"c": [{"key": "k", "value": 1, "typo": 2}]}, 'field "typo" is not declared'),
    ("c map<string, timestamp>", {"c": [{"key": "k", "value": 5}]}, "whose unit nobody knows"),
    ("c map<int, string>", {"c": [{"key": 1.9, "value": "v"}]}, "expected an integer, got float"),
]


def within(value: Any) -> list[tuple[str, Any]]:
    """A value in each container: the type around that of the value, and the value of the column."""
    return [
        ("{}", value),
        ("array<{}>", [value]),
        ("array<{}>", (value,)),
        ("array<{}>", numpy.array([None, value], object)[1:]),
        ("struct<x: {}>", {"x": value}),
        ("struct<x: {}>", (value,)),
        ("struct<x: {}>", [("x", value)]),
        ("map<string, {}>", {"k": value}),
        ("map<string, {}>", [("k", value)]),
        ("map<string, {}>", [{"key": "k", "value": value}]),
        ("map<string, {}>", [[("key", "k"), ("value", value)]]),
        ("map<string, struct<x: {}>>", [{"key": "k", "value": {"x": value}}]),
        ("array<array<{}>>", [[value]]),
        ("array<struct<x: {}>>", [{"x": value}]),
        ("map<string, array<{}>>", {"k": [value]}),
    ]


def in_arrays(values: Any) -> list[tuple[str, Any]]:
    """The same of a list's type and an array of values."""
    return [
        (f"{kind.format('array<{}>')}", found) for kind, found in within(values) if not isinstance(found, numpy.ndarray)
    ]


UNITS = ["Y", "M", "D", "h", "m", "s", "ms", "ns", "ps", "5us"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_times_of_numpy_in_another_unit(kind: str, unit: str) -> None:
    times = numpy.array(["2026-01-31"], dtype=f"M8[{unit}]")
    for ddl, value in [*within(times[0]), *in_arrays(times)]:
        with pytest.raises(
            RowError, match=r"expected a datetime, got datetime64\[.*astype\('datetime64\[us\]'\)\.tolist"
        ):
            fit(f"c {ddl.format(kind)}", {"c": value})
    assert fit(f"c array<{kind}>", {"c": times[:0]}) == [[[]]]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_the_hint_for_a_time_of_numpy_is_taken(kind: str, unit: str) -> None:
    for value in numpy.array(["2026-01-31", "NaT"], dtype=f"M8[{unit}]"):
        with pytest.raises(RowError, match=r"return value\.astype\('datetime64\[us\]'\)\.tolist\(\)"):
            fit(f"c {kind}", {"c": value})
        ((found,),) = fit(f"c {kind}", {"c": value.astype("datetime64[us]").tolist()})
        assert (found is None) == numpy.isnat(value)


def test_the_hint_where_arrow_takes_no_time_of_numpy_alone() -> None:
    value = numpy.datetime64("2026-01-31", "us")
    for ddl, given in (("timestamp", value), ("array<timestamp>", [value])):
        with pytest.raises(RowError, match=r"return value\.astype\('datetime64\[us\]'\)\.tolist\(\)"):
            fit(f"c {ddl}", {"c": given})


FRACTIONS = [
    (pandas.Timestamp("2026-01-31 12:00:00.123456789"), r"nanoseconds.*: return value\.floor\('us'\)"),
    (pandas.Timestamp("2026-01-31 12:00:00.000000001", tz="Europe/Berlin"), "a time with nanoseconds"),
    (
        datetime.datetime(2026, 1, 31, tzinfo=datetime.timezone(datetime.timedelta(seconds=1, microseconds=500_000))),
        r"fractions of a second, which are lost: return value\.astimezone\(UTC\)",
    ),
]


@pytest.mark.parametrize(("value", "words"), FRACTIONS, ids=["nanoseconds", "with a zone", "offset"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_fractions_of_a_second_are_not_cut_off(kind: str, value: Any, words: str) -> None:
    for ddl, given in within(value):
        with pytest.raises(RowError, match=words):
            fit(f"c {ddl.format(kind)}", {"c": given})
    with pytest.raises(RowError, match=words):
        fit(f"c array<{kind}>", {"c": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), value, None]})
    assert fit("c date", {"c": value}) == [[datetime.date(2026, 1, 31)]]
    way_out = value.floor("us") if isinstance(value, pandas.Timestamp) else value.astimezone(datetime.UTC)
    assert way_out.tzinfo is None or fit("c timestamp", {"c": way_out}) == [[way_out]]
    assert way_out.tzinfo is not None or fit("c timestamp_ntz", {"c": way_out}) == [[way_out]]


@pytest.mark.parametrize("year", ["12000", "-0500"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_a_year_that_only_pandas_has(kind: str, year: str) -> None:
    value = pandas.Timestamp(numpy.datetime64(f"{year}-05-05T01:02:03", "s"))
    series: Any = pandas.Series(numpy.array([f"{year}-05-05"], "M8[s]"))
    for ddl, given in [*within(value), ("array<{}>", series)]:
        with pytest.raises(RowError, match="a time outside of the years 1 to 9999"):
            fit(f"c {ddl.format(kind)}", {"c": given})


def test_times_that_are_whole_go_in() -> None:
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    east = noon.astimezone(datetime.timezone(datetime.timedelta(hours=5, seconds=1)))
    for value in (noon, east, pandas.Timestamp(noon), pandas.Timestamp(noon).tz_convert("Europe/Berlin")):
        assert fit("c timestamp, d array<timestamp>", {"c": value, "d": [None, value]}) == [[noon], [[None, noon]]]


@pytest.mark.parametrize("kind", ["double", "float"])
def test_a_bool_is_no_number(kind: str) -> None:
    """As in columns of integers and decimals, and as those of numpy."""
    for value in (True, False):
        for ddl, given in within(value):
            with pytest.raises(RowError, match="expected a number, got bool: return float"):
                fit(f"c {ddl.format(kind)}", {"c": given})
        long = Columns(parse_ddl(f"c {kind}"))
        numbers: list[tuple[Any, ...]] = [(number + 0.5,) for number in range(1_000)]
        assert long.arrays([*numbers, (float(value),)])[0][1_000].as_py() == value
        with pytest.raises(RowError, match="expected a number, got bool: return float"):
            long.arrays([*numbers, (value,)])


def test_a_number_of_numpy_that_is_too_large() -> None:
    for value in (numpy.int64(1 << 40), numpy.uint64((1 << 63) + 5)):
        for ddl, given in within(value):
            with pytest.raises(RowError, match=f"{value} is too large for 32 bits: declare the column"):
                fit(f"c {ddl.format('int')}", {"c": given})


class YX(NamedTuple):
    """Its values stand in another order than the fields of the columns here."""

    y: int
    x: int


class Z(NamedTuple):
    """Has none of the fields."""

    x: int
    z: int


class Plain:
    """Has an index; of a class whose values are converted at once."""

    def __index__(self) -> int:
        return 7


@dataclasses.dataclass
class Holding:
    """A row of which a value may hold named tuples."""

    c: Any


def all_ways(ddl: str, value: Any) -> list[Any]:
    """What a value of the column c becomes by each way that a row may take, which must agree."""
    found: list[Any] = []
    results: list[Any] = [
        {"c": value},
        Holding(value),
        [{"c": value}] * 2,
        iter([{"c": value}]),
        iter([Holding(value)]),
    ]
    others: list[Any] = [{"c": value, "u": Plain()}, [{"c": value, "u": Plain()}, {"c": value}]]
    for result, declared, at_once in [
        *((result, f"c {ddl}", at_once) for result in results[:3] for at_once in (False, True)),
        *((result, f"c {ddl}", False) for result in results[3:]),
        *((result, f"c {ddl}, u int", at_once) for result in others for at_once in (False, True)),
    ]:
        rows = RowBuffer[int](parse_ddl(declared), "g")
        prepared = rows.prepare(message("b"), result, at_once=at_once)
        assert prepared is not None
        rows.keep(0, prepared)
        batch, bad = rows.take()
        if bad:
            raise bad[0][1]
        assert batch is not None
        found += batch.column("c").to_pylist()
    for copied in listed(iter([{"c": value, "u": threading.Event}])), listed(iter([Holding(value)])):
        row = copied[0]
        values = Columns(parse_ddl(f"c {ddl}")).values_of({"c": row["c"] if isinstance(row, dict) else row.c})
        found += Columns(parse_ddl(f"c {ddl}")).arrays([values])[0].to_pylist()
    return found


def test_a_named_tuple_is_a_struct_by_its_names() -> None:
    right = {"x": 2, "y": 1}
    for ddl, value, wanted in [
        ("struct<x: int, y: int>", YX(1, 2), right),
        ("array<struct<x: int, y: int>>", [YX(1, 2), None, (2, 1), {"x": 2, "y": 1}], [right, None, right, right]),
        ("map<string, struct<x: int, y: int>>", {"k": YX(1, 2)}, [("k", right)]),
        ("struct<s: struct<x: int, y: int>>", {"s": YX(1, 2)}, {"s": right}),
        ("array<int>", YX(1, 2), [1, 2]),
        ("map<string, int>", [Z("k", 5)], [("k", 5)]),  # type: ignore[arg-type]
        ("array<struct<x: int>>", [(1,), {"x": 2}], [{"x": 1}, {"x": 2}]),
        ("array<struct<x: int>>", [{"x": 2}, (1,)], [{"x": 2}, {"x": 1}]),
    ]:
        assert {str(each) for each in all_ways(ddl, value)} == {str(wanted)}


def test_a_named_tuple_with_other_names_is_refused() -> None:
    with pytest.raises(RowError, match='field "z" is not declared'):
        all_ways("struct<x: int, y: int>", Z(1, 2))
    with pytest.raises(RowError, match=r"YX has not the fields x, y in this order: return its _asdict\(\)"):
        fit("c array<struct<x: int, y: int>>", {"c": pandas.Series([YX(1, 2), None])})


class Broken(tuple[int, ...]):
    """Has no values."""

    __slots__ = ()

    def __iter__(self) -> Any:
        raise KeyError("i")


def test_a_tuple_that_raises_does_not_fit() -> None:
    with pytest.raises(RowError, match="column c struct"):
        fit("c struct<x: int>", {"c": pandas.Series([Broken((1,))])})
    with pytest.raises(RowError, match="column c struct"):
        Columns(parse_ddl("c struct<x: int>")).arrays([(Broken((1,)),)])


class Wild(int):
    """Whoever asks for its number gets an error."""

    def __int__(self) -> int:
        raise KeyError("n")

    def __str__(self) -> str:
        raise KeyError("s")

    def bit_length(self) -> int:
        raise KeyError("b")


NARROW = pa.scalar(1.5, pa.float32())


@pytest.mark.parametrize(
    ("ddl", "values", "bad"),
    [
        ("float", [NARROW, 1.5, math.inf], []),
        ("float", [NARROW, math.inf, 1e300], [2]),
        ("array<float>", [[NARROW], [math.inf]], []),
        ("double", [5.0, Wild(2)], []),
        ("double", [5.0, Wild(1 << 64)], [1]),
        ("int", [5, Wild(1 << 40)], [1]),
        ("decimal(3,1)", [5, Wild(1 << 40)], [1]),
    ],
)
def test_what_cannot_be_looked_at_is_its_own_message_s_fault(ddl: str, values: list[Any], bad: list[int]) -> None:
    rows = RowBuffer[int](parse_ddl(f"c {ddl}"), "g")
    for number, value in enumerate(values):
        prepared = rows.prepare(message("b"), {"c": value})
        assert prepared is not None
        rows.keep(number, prepared)
    batch, refused = rows.take()
    assert [owner for owner, _ in refused] == bad
    assert batch is not None
    assert batch.num_rows == len(values) - len(bad)


def test_times_of_numpy_in_the_right_unit() -> None:
    times = numpy.array(["2026-01-31T12:00", "NaT"], dtype="M8[us]")
    noon = datetime.datetime(2026, 1, 31, 12)  # noqa: DTZ001  it has no zone there
    assert fit("c array<timestamp_ntz>", {"c": times}) == [[[noon, None]]]
    assert fit("c timestamp_ntz", {"c": times[0]}) == [[noon]]
    with pytest.raises(
        RowError, match=r"expected a date, got datetime64: return value.astype\('datetime64\[D\]'\).tolist"
    ):
        fit("c array<date>", {"c": times})
    assert fit("c array<date>", {"c": times.astype("datetime64[D]").tolist()}) == [[[noon.date(), None]]]


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - (1 << 53), (1 << 64) - 1])
def test_large_unsigned_numbers_are_no_negative_floats(kind: str, number: int) -> None:
    numbers = numpy.array([0, number], dtype="u8")
    given = [
        *within(numbers[1]),
        *within(numpy.ulonglong(number)),
        *in_arrays(numbers),
        ("array<{}>", pandas.Series(numbers)),
        ("array<{}>", pandas.Series(numbers, dtype="UInt64")),
        ("struct<x: array<{}>>", {"x": pandas.Series(numbers)}),
    ]
    for ddl, value in given:
        with pytest.raises(RowError, match="an int of 64 bits, of which it may not hold all: return float"):
            fit(f"c {ddl.format(kind)}", {"c": value})
    long = Columns(parse_ddl(f"c {kind}, d array<{kind}>"))
    negative: list[tuple[Any, ...]] = [(-1.0, [-1.0])] * 1_000
    assert long.arrays(negative)[0].to_pylist() == [-1.0] * 1_000
    for row in ((numbers[1], None), (None, numbers)):
        with pytest.raises(RowError, match="an int of 64 bits"):
            long.arrays([*negative, row])
    assert fit("c double", {"c": numpy.uint64(1 << 53)}) == [[float(1 << 53)]]
    assert fit("c array<double>", {"c": numbers[:1]}) == [[[0.0]]]


@pytest.mark.parametrize(("kind", "values"), [("int", [1, 2]), ("double", [1.5, 2.5]), ("string", ["a", "b"])])
def test_what_is_masked_is_no_value(kind: str, values: list[Any]) -> None:
    masked: Any = numpy.ma.array(values, mask=[False, True])
    for ddl, value in in_arrays(masked):
        with pytest.raises(RowError, match=r"a masked array, whose mask would be lost: return value.tolist\(\)"):
            fit(f"c {ddl.format(kind)}", {"c": value})
    assert fit(f"c array<{kind}>", {"c": masked.tolist()}) == [[[values[0], None]]]
    for whole in (numpy.ma.array(values), numpy.ma.array(values, mask=[False, False])):
        assert fit(f"c array<{kind}>", {"c": whole}) == [[values]]


@pytest.mark.parametrize(("ddl", "row", "words"), ROWS, ids=[words for _, _, words in ROWS])
def test_row_is_refused(ddl: str, row: object, words: str) -> None:
    with pytest.raises(RowError, match=words):
        fit(ddl, row)


@pytest.mark.parametrize(
    "value",
    [
        numpy.array(1.9),
        numpy.ma.array(1.9),
        numpy.array(1.9).view(Quantity),
        Tensor(1.9),
        numpy.array(True),
        numpy.float64(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_index_is_no_integer(value: Any) -> None:
    for ddl, given in within(value):
        with pytest.raises(RowError, match=f"expected an integer, got {type(value).__name__}: return int"):
            fit(f"c {ddl.format('int')}", {"c": given})


@pytest.mark.parametrize(
    "value", [numpy.int8(3), numpy.array(3), numpy.ma.array(3), Tensor(3), pa.scalar(3, pa.int32())]
)
def test_what_has_an_index_is_an_integer(value: Any) -> None:
    assert fit("c int, d array<int>", {"c": value, "d": [value]}) == [[3], [[3]]]


def test_each_value_of_a_class_is_asked_for_its_index() -> None:
    with pytest.raises(RowError, match="expected an integer, got Tensor"):
        fit("c array<int>", {"c": [Tensor(1), Tensor(1.9)]})


def test_a_null_of_arrow_is_null_in_a_column_of_integers() -> None:
    assert fit("c int", {"c": pa.scalar(None, pa.int32())}) == [[None]]


@pytest.mark.parametrize("kind", ["int", "double"])
def test_a_number_that_is_masked_is_none(kind: str) -> None:
    for value in (numpy.ma.array(5, mask=True), numpy.ma.masked):
        for ddl, given in within(value):
            with pytest.raises(RowError, match=r"expected (an integer|a number), got Masked"):
                fit(f"c {ddl.format(kind)}", {"c": given})


def test_scalar_of_arrow_that_is_no_utf_8() -> None:
    bad, good = pa.array([b"\xff", b"ok"]).view(pa.string())
    for ddl, value in within(bad):
        rows = RowBuffer[int](parse_ddl(f"c {ddl.format('string')}"), "g")
        with pytest.raises(RowError, match=r"column c .*string"):
            rows.prepare(message("b"), {"c": value})
    assert fit("c string", {"c": good}) == [["ok"]]


def test_what_is_whole_goes_in() -> None:
    assert fit("s struct<x: int, y: int>", {"s": (1, 2)}) == [[{"x": 1, "y": 2}]]
    assert fit("s struct<x: int not null>", {"s": None}) == [[None]]
    assert fit("a int, b int", collections.defaultdict(int, {"a": 1})) == [[1], [None]]


@dataclasses.dataclass
class Late:
    a: int
    b: int = dataclasses.field(init=False)


def test_field_that_was_never_set() -> None:
    columns, whole = Columns(parse_ddl("a int, b int")), Late(1)
    whole.b = 2
    assert columns.values_of(whole) == (1, 2)
    assert columns.values_of_each_plain([whole, Late(3)]) is None, "each is asked for alone"
    assert columns.values_of_plain(Late(3)) is None
    with pytest.raises(RowError, match="has no value: 'Late' object has no attribute 'b'"):
        columns.values_of(Late(3))


def _nested(values: list[Any], kind: Any = None) -> Any:
    return pa.record_batch({"s": pa.array(values, kind)})


TWINS = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
TABLES = [
    ("s struct<x: int>", pa.record_batch({"s": TWINS}), 'field "x" is given twice'),
    (
        "s array<struct<x: int>>",
        pa.record_batch({"s": pa.ListArray.from_arrays([0, 1], TWINS)}),
        'field "x" is given twice',
    ),
    ("s struct<x: int>", _nested([{"x": 1, "y": 2}]), 'field "y" is not declared'),
    ("s struct<x: int, y: int>", _nested([{"x": 1, "yy": 2}]), 'field "yy" is not declared'),
    ("s array<timestamp>", _nested([[5]]), "whose unit nobody knows"),
    ("s struct<x: timestamp>", _nested([{"x": 5}]), "whose unit nobody knows"),
    (
        "s struct<x: int not null>",
        _nested([{"x": None}], pa.struct([pa.field("x", pa.int32(), nullable=False)])),
        "field x is null",
    ),
    ("a int", pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["a", "a"]), '"a" is given twice'),
    ("a int", pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), '"a" is given twice'),
]


TEXT = [pa.array(["12"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary())]
NUMBERS = [pa.array([1], pa.int8()), pa.array([1], pa.uint64()), pa.array([1.5]), pa.array([decimal.Decimal(1)])]
BOOL, DATE, NAN = pa.array([True]), pa.array([datetime.date(2026, 1, 31)]), pa.array([float("nan")])
NOT_CAST: dict[str, list[Any]] = {
    "boolean": [*TEXT, *NUMBERS, NAN, pa.array([2**64 - 1], pa.uint64())],
    "int": [*TEXT, BOOL, DATE, NAN, pa.array([1.5]), pa.array([2**40])],
    "float": [*TEXT, BOOL, DATE, pa.array([decimal.Decimal("1.2345678901")])],
    "double": [*TEXT, BOOL, DATE, pa.array([decimal.Decimal("1.234567890123456789")])],
    "decimal(10,2)": [*TEXT, BOOL, NAN],
    "date": [*TEXT, *NUMBERS, BOOL],
    "timestamp": [*TEXT, *NUMBERS, BOOL],
    "string": [*NUMBERS, BOOL, DATE],
    "binary": [*NUMBERS, BOOL, DATE],
}
CAST: list[tuple[str, Any, Any]] = [
    ("bigint", pa.array([1], pa.int8()), 1),
    ("int", pa.array([7], pa.uint64()), 7),
    ("int", pa.array([1.0]), 1),
    ("double", pa.array([1], pa.int16()), 1.0),
    ("double", pa.array([1.5], pa.float32()), 1.5),
    ("string", pa.array(["x"], pa.large_string()), "x"),
    ("string", pa.array(["x"]).dictionary_encode(), "x"),
    ("string", pa.array(["x"], pa.string_view()), "x"),
    ("string", pa.array([b"x"]), "x"),
    ("binary", pa.array(["x"]), b"x"),
    ("binary", pa.array([b"0" * 16], pa.uuid()), b"0" * 16),
    ("timestamp_ntz", pa.array([0], pa.timestamp("s")), datetime.datetime(1970, 1, 1)),  # noqa: DTZ001
    ("timestamp_ntz", DATE, datetime.datetime(2026, 1, 31)),  # noqa: DTZ001
    ("boolean", pa.nulls(1), None),
    ("int", pa.nulls(1), None),
]


def arrays_of(array: Any) -> list[tuple[str, Any]]:
    """An array of one value alone, as a dictionary, and in each nested form, with the type around its own."""
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
    return [
        ("{}", array),
        ("{}", array.dictionary_encode()),
        ("array<{}>", lists),
        ("array<{}>", lists.cast(pa.large_list(array.type))),
        ("struct<x: {}>", pa.StructArray.from_arrays([array], ["x"])),
        ("map<string, {}>", pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), array)),
    ]


@pytest.mark.parametrize("kind", NOT_CAST)
def test_arrow_is_refused_what_rows_are(kind: str) -> None:
    for array in NOT_CAST[kind]:
        for ddl, column in arrays_of(array):
            with pytest.raises(RowError, match="column c "):
                Columns(parse_ddl(f"c {ddl.format(kind)}")).fit_arrow(pa.table({"c": column}))


VIEWS = [[[1, 2]], [[1], [2]], [None, [1, 2]], [[], [1, 2], [3]]]


@pytest.mark.parametrize("values", VIEWS, ids=str)
@pytest.mark.parametrize("kind", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())], ids=str)
def test_views_of_lists_are_none(kind: Any, values: list[Any]) -> None:
    """Arrow makes empty lists of them, and broken ones."""
    several = pa.array(values, kind)
    slices = [several.slice(number) for number in range(len(values))]
    nested = pa.StructArray.from_arrays([several], ["x"])
    for ddl, array in [
        *(("array<bigint>", each) for each in (*slices, pa.chunked_array(slices))),
        ("struct<x: array<bigint>>", nested),
        ("array<array<bigint>>", pa.ListArray.from_arrays([0, len(values)], several)),
        ("array<struct<x: array<bigint>>>", pa.ListArray.from_arrays([0, len(values)], nested)),
        ("map<string, array<bigint>>", pa.MapArray.from_arrays([0, len(values)], ["k"] * len(values), several)),
    ]:
        with pytest.raises(RowError, match=rf"got {kind}.*pa\.array\(column\.to_pylist\(\), pa\.list_"):
            Columns(parse_ddl(f"c {ddl}")).fit_arrow(pa.table({"c": array}))
    lists = pa.array(several.to_pylist(), pa.list_(pa.int64()))
    (found,) = Columns(parse_ddl("c array<bigint>")).fit_arrow(pa.table({"c": lists})).columns
    assert found.to_pylist() == values


@pytest.mark.parametrize(("kind", "array", "value"), CAST)
def test_arrow_is_widened(kind: str, array: Any, value: Any) -> None:
    (found,) = Columns(parse_ddl(f"c {kind}")).fit_arrow(pa.table({"c": array})).columns
    assert found.to_pylist() == [value]


@pytest.mark.parametrize(("ddl", "table", "words"), TABLES)
def test_table_is_refused(ddl: str, table: Any, words: str) -> None:
    columns = Columns(parse_ddl(ddl))
    for _ in range(2):
        with pytest.raises(RowError, match=words):
            columns.checked(columns.fit_arrow(table))


def test_fields_of_a_struct_in_another_order() -> None:
    (found,) = Columns(parse_ddl("s struct<x: int, y: int>")).fit_arrow(_nested([{"y": 2, "x": 1}])).columns
    assert found.to_pylist() == [{"x": 1, "y": 2}]


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is Linux's")
def test_worker_does_not_take_the_core_from_the_supervisor() -> None:
    code = "import os; from rocketcrew.workers.main import place; place(0, 0, 'none', None); print(os.sched_getscheduler(0))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.strip() == "3", "SCHED_BATCH"


@pytest.mark.parametrize("value", [numpy.timedelta64(5, "s"), numpy.timedelta64("NaT")])
@pytest.mark.parametrize("ddl", ["d double", "d float", "d array<double>"])
def test_a_span_of_time_is_no_number(ddl: str, value: Any) -> None:
    """numpy's is an Integral, and has no int."""
    with pytest.raises(RowError, match="timedelta64"):
        fit(ddl, {"d": [value] if "array" in ddl else value})


@pytest.mark.parametrize("ddl", ["d double", "d float", "d array<double>", "d map<string, float>"])
@pytest.mark.skipif(numpy.finfo(numpy.longdouble).maxexp <= 1024, reason="a double has as many bits here")
def test_a_long_double_does_not_become_infinite(ddl: str) -> None:
    def within(number: Any) -> list[Any]:
        if "array" in ddl:
            return [[number], numpy.array([0, number]), [number, 1.5]]
        return [{"a": number} if "map" in ddl else number]

    for text in ("1e4000", "-1e4000"):
        for value in within(numpy.longdouble(text)):
            with pytest.raises(RowError, match="a number that is infinite in 64 bits: return None"):
                fit(ddl, {"d": value})
    for text in ("inf", "-inf", "2.5"):
        for value in within(numpy.longdouble(text)):
            fit(ddl, {"d": value})


def test_arrow_s_own_bool8_is_boolean() -> None:
    given = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 77, None], pa.int8()))
    for ddl in ("b decimal(10,2)", "b bigint", "b double"):
        with pytest.raises(RowError, match="got bool: cast it before, in the way that is meant"):
            Columns(parse_ddl(ddl)).fit_arrow(pa.table({"b": given}))
    given = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    assert Columns(parse_ddl("b boolean")).fit_arrow(pa.table({"b": given})).column(0).to_pylist() == [
        True,
        False,
        None,
    ]
