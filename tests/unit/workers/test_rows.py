from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketcrew.conf.segment_format import KEY_COLUMNS
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.rows import FLUSH_ROWS_MAX, RowBuffer


def buffer(ddl: str | None) -> RowBuffer[str]:
    return RowBuffer(None if ddl is None else parse_ddl(ddl), "group")


def message(offset: int = 0) -> Message:
    return make_message(b"", queue_offset=offset, queue_id=2, store_timestamp_ms=1_700_000_000_123)


def kept(rows: RowBuffer[str], *results: object) -> list[dict[str, Any]]:
    for number, result in enumerate(results):
        prepared = rows.prepare(message(number), result)
        if prepared is not None:
            rows.keep(f"m{number}", prepared)
    batch, bad = rows.take()
    assert not bad
    found: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
    return found


def user(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_offset"], row["_seq"], *[value for key, value in row.items() if key[0] != "_"]) for row in found]


@dataclass
class Row:
    b: str
    a: int


@dataclass
class Wider(Row):
    c: int


def generate(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"a": number, "b": "g"}


def test_rows_of_every_kind() -> None:
    rows = buffer("a int, b string")
    found = kept(
        rows,
        {"b": "dict", "a": 1},
        [{"a": 2, "b": "x"}, Row("y", 3)],
        Row("dataclass", 4),
        generate(2),
        pa.table({"b": ["t"], "a": pa.array([5], pa.int64())}),
        (row for row in [pa.record_batch({"a": [6]}), {"a": 7}]),
        [],
        iter(()),
        {},
    )
    assert user(found) == [
        (0, 0, 1, "dict"),
        (1, 0, 2, "x"),
        (1, 1, 3, "y"),
        (2, 0, 4, "dataclass"),
        (3, 0, 0, "g"),
        (3, 1, 1, "g"),
        (4, 0, 5, "t"),
        (5, 0, 6, None),
        (5, 1, 7, None),
        (8, 0, None, None),
    ]


def test_the_key_columns() -> None:
    rows = buffer("a int")
    row = kept(rows, {"a": 1})[0]
    assert tuple(row)[: len(KEY_COLUMNS)] == KEY_COLUMNS
    source = message()
    assert {key: value for key, value in row.items() if key in KEY_COLUMNS} == {
        "_group": "group",
        "_topic": "TopicTest",
        "_broker": "broker-a",
        "_queue_id": 2,
        "_offset": 0,
        "_seq": 0,
        "_origin_topic": "TopicTest",
        "_message_id": source.message_id,
        "_origin_message_id": source.origin_message_id,
        "_reconsume_times": 0,
        "_store_time": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.UTC),
    }
    assert rows.schema.metadata == {
        b"rocketcrew.version": b"1",
        b"rocketcrew.group": b"group",
        b"rocketcrew.schema": b"a int",
    }


def test_a_single_column() -> None:
    assert user(kept(buffer("a int"), {"a": 1}, [{"a": 2}, {}])) == [(0, 0, 1), (1, 0, 2), (1, 1, None)]

    @dataclass
    class One:
        a: int

    assert user(kept(buffer("a int"), One(3))) == [(0, 0, 3)]


ENTRY_NONE = "an entry of the map is None: return a dict, or pairs of a key and a value"
BAD: list[tuple[str, object, str]] = [
    ("a int", {"a": "x"}, "column a int: expected an integer, got str"),
    ("a int", {"a": 1.5}, "column a int: expected an integer, got float"),
    ("a int", {"a": decimal.Decimal("1.5")}, "column a int: expected an integer, got Decimal"),
    ("a int", {"a": 2**31}, "column a int: 2147483648 is too large for 32 bits: declare the column bigint"),
    ("a bigint", {"a": 2**70}, "too large for 64 bits: declare the column decimal(38,0)"),
    ("a bigint", {"a": 2**20_000}, "column a bigint: an int of 20001 bits is too large for 64 bits"),
    ("a int", {"a": True}, "column a int: expected an integer, got bool: return int(value)"),
    ("a boolean", {"a": 1}, "column a boolean: expected a bool, got int: return bool(value)"),
    ("a double", {"a": "1.5"}, "column a double: expected a number, got str: return float(value)"),
    ("a date", {"a": "2026-01-31"}, "column a date: expected a date, got str: return date.fromisoformat(value)"),
    ("a string", {"a": b"\xff"}, "column a string: bytes that are no UTF-8"),
    ("a array<string>", {"a": ["x", 1]}, "column a array<string>: an element: expected a string, got int"),
    ("a struct<b: string>", {"a": {"b": 1}}, "field b: expected a string, got int: return str(value)"),
    ("a map<string,array<double>>", {"a": {"k": [2**60 + 1]}}, "a value: an element: an int of 61 bits"),
    ("a map<string,int>", {"a": {1: 1}}, "a key: expected a string, got int"),
    ("a map<string,int>", {"a": [None]}, ENTRY_NONE),  # for each of these Arrow ends the process
    ("a map<string,int>", {"a": (("k", 1), None)}, ENTRY_NONE),
    ("a map<string,int>", {"a": numpy.array([None])}, ENTRY_NONE),
    ("a array<map<string,int>>", {"a": [{}, [None]]}, ENTRY_NONE),
    ("a map<string,map<string,int>>", {"a": {"k": [None]}}, ENTRY_NONE),
    ("a map<string,map<string,int>>", {"a": [{"key": "k", "value": [None]}]}, ENTRY_NONE),
    ("a map<string,map<string,int>>", {"a": [[("key", "k"), ("value", [None])]]}, ENTRY_NONE),
    ("a struct<n: int, b: map<string,int>>", {"a": {"b": [None]}}, ENTRY_NONE),
    ("a struct<n: int, b: map<string,int>>", {"a": (1, [None])}, ENTRY_NONE),
    ("a struct<n: int, b: map<string,int>>", {"a": [("b", [None])]}, ENTRY_NONE),
    ("a map<string,int>", [{"a": [None]}, {"a": 5}], ENTRY_NONE),
    ("a map<string,int>", [{"a": 5}, {"a": [None]}], "column a map<string,int>: expected a dict, got int"),
    ("a array<int>", {"a": 3}, "column a array<int>"),
    ("a decimal(5,2)", {"a": 1.5}, "column a decimal(5,2): expected a Decimal, got float: return Decimal(str(value))"),
    ("a decimal(5,2)", {"a": decimal.Decimal("NaN")}, "column a decimal(5,2): NaN is no number"),
    ("a string", pa.table({"a": [[1]]}), "column a string: "),
    ("a string", {"a": 1}, "column a string: expected a string, got int: return str(value)"),
    ("a binary", {"a": 1}, "column a binary: expected bytes, got int"),
    (
        "a timestamp",
        {"a": 1_700_000_000},
        "column a timestamp: expected a datetime or a date, got int, whose unit nobody",
    ),
    ("a timestamp_ntz", {"a": numpy.int64(1)}, "expected a datetime or a date, got int64"),
    ("a date", {"a": 19_000}, "column a date: expected a datetime or a date, got int"),
    ("a array<timestamp>", {"a": [1]}, "expected a datetime or a date, got int"),
    ("a struct<at: date>", {"a": {"at": 1}}, "expected a datetime or a date, got int"),
    ("a timestamp", pa.table({"a": [1]}), "expected a datetime or a date, got int"),
    (
        "a double",
        {"a": 2**53 + 1},
        "column a double: an int of 54 bits, of which it may not hold all: return float(value)",
    ),
    ("a double", {"a": 2**2000}, "column a double: an int of 2001 bits"),
    ("a float", {"a": 2**24 + 1}, "column a float: an int of 25 bits"),
    ("a string", {"a": "\ud800"}, "column a string"),
    ("a decimal(5,2)", {"a": decimal.Decimal("1.234")}, "column a decimal(5,2): 1.234 has more digits than"),
    ("a int not null", {"a": None}, "column a int not null: is null"),
    ("a int not null, b int", {"b": 1}, "column a int not null: is null"),
    ("a int", {"b": 1}, 'column "b" is not declared'),
    ("a int", {"a": 1, "A": 1}, 'column "A" is not declared'),
    ("a int, b int", {"a": 1, "c": 1}, 'column "c" is not declared'),
    ("a int, b string", Wider("x", 1, 2), 'column "c" is not declared'),
    ("a array<int>", {"a": [1, 2.5]}, "expected an integer, got float"),
    ("a array<struct<x: int>>", {"a": [{"x": 1}, {"y": 1}]}, 'field "y" is not declared'),
    ("a map<string,int>", {"a": {"k": 1.5}}, "expected an integer, got float"),
    ("a struct<x: int>", {"a": 3}, "column a struct<x: int>: expected a dict, got int"),
    ("a int", pa.table({"a": ["x"]}), "column a int"),
    ("a int", pa.table({"b": [1]}), 'column "b" is not declared'),
    ("a int not null", pa.table({"a": pa.array([1, None])}), "is null"),
    ("a int not null, b int", pa.table({"b": [1]}), "is null"),
    ("a int", pa.record_batch({"a": [2**40]}), "column a int"),
    ("a int", True, "returned bool"),
    ("a int", "text", "returned str"),
    ("a int", b"bytes", "returned bytes"),
    ("a int", 3, "returned int"),
    ("a int", [{"a": 1}, None], "not NoneType"),
    ("a int", [1], "not int"),
    ("a int", Row, "returned type"),
]


@pytest.mark.parametrize(("ddl", "result", "message_part"), BAD)
def test_what_does_not_fit_names_the_column_and_leaves_the_others_alone(
    ddl: str, result: object, message_part: str
) -> None:
    rows = buffer(ddl)
    failed: list[str] = []
    good: Any = {"a": None} if "not null" not in ddl else {"a": 7}
    for owner, value in (("before", good), ("bad", result), ("after", good)):
        try:
            prepared = rows.prepare(message(), value)
            assert prepared is not None
            rows.keep(owner, prepared)
        except RowError as error:
            assert owner == "bad"
            failed.append(str(error))
    batch, bad = rows.take()
    failed += [str(error) for owner, error in bad if owner == "bad"]
    assert len(failed) == 1
    assert message_part in failed[0]
    assert batch is not None
    assert batch.num_rows == 2
    assert rows.take() == (None, [])


def test_a_misfit_takes_all_rows_of_its_owner_with_it() -> None:
    rows = buffer("a int")
    for owner, value in (("unit", 1), ("other", 2), ("unit", "x")):
        prepared = rows.prepare(message(), {"a": value})
        assert prepared is not None
        rows.keep(owner, prepared)
    batch, bad = rows.take()
    assert [owner for owner, _ in bad] == ["unit"]
    assert batch is not None
    assert batch.column("a").to_pylist() == [2]


def test_nothing_but_misfits() -> None:
    rows = buffer("a int")
    prepared = rows.prepare(message(), {"a": "x"})
    assert prepared is not None
    rows.keep("m", prepared)
    batch, bad = rows.take()
    assert batch is None
    assert [owner for owner, _ in bad] == ["m"]


def test_values_that_the_handler_changes_later_are_taken_as_they_were() -> None:
    rows = buffer("a array<int>, b binary")
    shared, raw = [1], bytearray(b"x")
    row: dict[str, Any] = {"a": shared, "b": raw}
    first = rows.prepare(message(0), row)
    shared.append(2)
    raw[0:1] = b"changed"
    second = rows.prepare(message(1), row)
    assert first is not None
    assert second is not None
    rows.keep("0", first)
    rows.keep("1", second)
    batch, _ = rows.take()
    assert batch is not None
    assert user(batch.to_pylist()) == [(0, 0, [1], b"x"), (1, 0, [1, 2], b"changed")]


@pytest.mark.parametrize("as_plain", [False, True])
def test_values_of_several_rows_are_taken_as_they_were_wherever_they_stand(as_plain: bool) -> None:
    rows, raw, shared = buffer("a string, b binary, c array<int>"), bytearray(b"x"), [1]
    given_rows = [
        {"a": "1", "b": b"y", "c": None},
        {"a": raw, "b": raw, "c": shared},
        {"a": "3", "b": None, "c": shared},
    ]
    if as_plain:
        plain = rows.plain_rows(given_rows)
        assert plain is not None
        rows.keep("m", (message(), plain, None))
    else:
        prepared = rows.prepare(message(), given_rows)
        assert prepared is not None
        rows.keep("m", prepared)
    raw[:] = b"spoilt"
    shared.clear()
    for row in given_rows:
        row.clear()
    batch, _ = rows.take()
    assert batch is not None
    assert user(batch.to_pylist()) == [(0, 0, "1", b"y", None), (0, 1, "x", b"x", [1]), (0, 2, "3", None, [1])]


def test_plain_rows_count_for_how_full_the_buffer_is() -> None:
    rows = buffer("a int, b string")
    row = {"a": 1, "b": "x"}
    for number in range(2):
        assert not rows.full
        plain = rows.plain_rows([row] * (FLUSH_ROWS_MAX // 2 + number))
        assert plain is not None
        rows.kept.append(("m", message(number), plain, None))
    assert rows.full
    assert rows.rows == FLUSH_ROWS_MAX + 1
    batch, _ = rows.take()
    assert batch is not None
    assert batch.num_rows == FLUSH_ROWS_MAX + 1
    assert not rows.full
    assert rows.rows == 0


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.floats(0, 1), st.text("ab", max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.binary(max_size=3).map(bytearray),
        st.binary(max_size=3).map(bytearray).map(memoryview), st.sets(st.integers(0, 3), max_size=2),
        st.lists(st.integers(0, 9), max_size=3).map(numpy.array), st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    ),
    max_leaves=6,
)  # fmt: skip
NESTED = [
    "binary",
    "string",
    "array<int>",
    "array<binary>",
    "struct<x: int, y: array<int>>",
    "map<string,int>",
    "array<array<string>>",
]


def spoil(value: Any) -> None:
    """Change all that can be changed."""
    if isinstance(value, list | tuple):
        for each in value:
            spoil(each)
    if isinstance(value, dict):
        for each in value.values():
            spoil(each)
    if isinstance(value, numpy.ndarray):
        value += 1
    elif isinstance(value, memoryview | bytearray):
        value[:] = bytes(len(value))
    elif isinstance(value, list | dict | set):
        value.clear()


def without_addresses(text: object) -> str:
    """As the text of a memoryview has them."""
    return re.sub("0x[0-9a-f]+", "", str(text))


@given(st.sampled_from(NESTED), st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=4))
def test_values_of_any_kind_are_taken_as_they_were(ddl: str, given_values: list[tuple[Any, bool]]) -> None:
    """As if each message had been converted alone, before the handler went on."""
    rows, columns = buffer(f"a {ddl}, b int"), Columns(parse_ddl(f"a {ddl}, b int"))
    wanted: list[Any] = []
    failed: list[tuple[int, str]] = []
    for number, (value, _) in enumerate(given_values):
        try:
            wanted += columns.arrays([(value, number)])[0].to_pylist()
        except RowError as error:
            failed.append((number, str(error)))
    found: list[tuple[int, str]] = []
    for number, (value, as_list) in enumerate(given_values):
        row = {"a": value, "b": number}
        try:
            prepared = rows.prepare(message(number), [row] if as_list else row)
            assert prepared is not None
            rows.keep(str(number), prepared)
        except RowError as error:
            found.append((number, str(error)))
        spoil(value)
    batch, bad = rows.take()
    assert (batch.column("a").to_pylist() if batch else []) == wanted
    found += [(int(owner), str(error)) for owner, error in bad]
    assert [(number, without_addresses(text)) for number, text in sorted(found)] == [
        (number, without_addresses(text)) for number, text in failed
    ]


class Text(str):
    """A string, and more than that."""

    __slots__ = ()


class Raising:
    """An object that nothing can be made of."""

    def __index__(self) -> int:
        raise ZeroDivisionError

    __float__ = __str__ = __len__ = __index__  # pyright: ignore[reportAssignmentType]


ODD = st.one_of(
    st.sampled_from([
        None, True, 7, 1.5, float("nan"), 2**40, 2**70, -(2**20_000), decimal.Decimal("1.5"), decimal.Decimal("NaN"), "text",
        Text("more"), "\ud800", b"ab", b"\xff", numpy.int64(3), numpy.float64(2.5), numpy.bool_(True), numpy.str_("n"),
        datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), object, Raising(),
    ]),
    st.builds(bytearray, st.just(b"cd")), st.builds(list, st.just([1, None])), st.builds(dict, st.just({"x": 1})),
    st.integers(-5, 5), st.floats(0, 1), st.text("ab", max_size=3),
)  # fmt: skip
FLAT = ["a bigint, b string", "a double, b boolean", "a int not null, b binary", "a decimal(5,2), b date", "a string",
        "a timestamp, b array<int>", "a struct<x: int>, b map<string,int>"]  # fmt: skip


@dataclass
class Pair:
    a: Any
    b: Any


ROW = st.one_of(
    st.fixed_dictionaries({"a": ODD, "b": ODD}),
    st.fixed_dictionaries({"b": ODD, "a": ODD}),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), ODD, max_size=3),
    st.builds(Pair, ODD, ODD),
    st.sampled_from([None, 1, Row]),
)
ALIKE = st.one_of(
    st.lists(ROW, min_size=1, max_size=4),
    st.lists(st.fixed_dictionaries({"a": ODD, "b": ODD}), min_size=1, max_size=4),
    st.lists(st.fixed_dictionaries({"a": ODD}), min_size=1, max_size=4),
    st.lists(st.builds(Pair, ODD, ODD), min_size=1, max_size=4),
)


def one_by_one(ddl: str, results: list[list[Any]]) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """The rows, each taken by itself and converted with its message alone, and the errors. Nothing is remembered between
    rows, or what is remembered wrongly would be wrong here, too."""
    schema = parse_ddl(ddl)
    columns = Columns(schema)
    found: list[tuple[Any, ...]] = []
    failed: list[tuple[int, str]] = []
    for number, result in enumerate(results):
        try:
            arrays = columns.arrays([Columns(schema).values_of(row) for row in result])
            found += [
                (number, seq, *values)
                for seq, values in enumerate(zip(*[each.to_pylist() for each in arrays], strict=True))
            ]
        except RowError as error:
            failed.append((number, without_addresses(error)))
    return found, failed


@given(st.sampled_from(FLAT), st.lists(st.tuples(ALIKE, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_rows_with_odd_values_are_as_if_each_had_been_taken_by_itself(
    ddl: str, given_rows: list[tuple[list[Any], bool, bool]]
) -> None:
    results: list[Any] = [
        several[0] if alone and isinstance(several[0], dict | Pair) else several for several, alone, _ in given_rows
    ]
    wanted, failed = one_by_one(ddl, [result if isinstance(result, list) else [result] for result in results])
    rows = buffer(ddl)
    found: list[tuple[int, str]] = []
    for number, (result, (_, _, as_plain)) in enumerate(zip(results, given_rows, strict=True)):
        plain = (rows.plain_rows(result) if isinstance(result, list) else rows.plain(result)) if as_plain else None
        try:
            if plain is not None:
                rows.kept.append((str(number), message(number), plain, None))
            elif (prepared := rows.prepare(message(number), result)) is not None:
                rows.keep(str(number), prepared)
        except RowError as error:
            found.append((number, without_addresses(error)))
        for row in result if isinstance(result, list) else [result]:
            spoil(vars(row) if isinstance(row, Pair) else row)
    batch, bad = rows.take()
    taken = [] if batch is None else user(batch.to_pylist())
    found += [(int(owner), without_addresses(error)) for owner, error in bad]
    assert str(taken) == str(wanted)  # NaN is not equal to itself
    assert sorted(found) == failed


def converted(columns: Columns, rows: list[tuple[Any, ...]]) -> object:
    """The arrays as text (NaN is not equal to itself) with the sizes of their buffers, or the error."""
    try:
        arrays = columns.arrays(rows)
    except RowError as error:
        return without_addresses(error)
    return [(str(each.type), str(each.to_pylist()), [part and part.size for part in each.buffers()])
            for each in arrays]  # fmt: skip


PAIRS = st.tuples(st.one_of(ODD, VALUES), st.one_of(ODD, VALUES))


@given(
    st.sampled_from([*FLAT, *[f"a {ddl}, b {ddl} not null" for ddl in NESTED]]),
    st.one_of(
        st.lists(PAIRS, min_size=2, max_size=5),
        st.lists(st.tuples(st.integers(-5, 5), st.text("ab", max_size=3)), min_size=2, max_size=5),
    ),
)
@example("a array<string>, b array<string>", [(("a", "x"), ("b", "y")), (None, ["z"])])
@example("a bigint not null, b string", [(1, "x"), (None, "y")])
@example("a map<string,int>, b map<string,int>", [({"x": 1}, {"y": 2}), ([("x", 1)], [None])])
def test_rows_in_tuples_of_their_own_become_what_they_become_in_one(ddl: str, pairs: list[tuple[Any, Any]]) -> None:
    columns = Columns(parse_ddl(ddl))
    width = columns.width
    rows: list[tuple[Any, ...]] = [pair[:width] for pair in pairs]
    assert converted(columns, rows) == converted(columns, [tuple(chain.from_iterable(rows))])


def refilled(ddl: str) -> tuple[pa.RecordBatch, Callable[[], None]]:
    """A batch of two rows with one column of every kind of Arrow buffer, all over numpy arrays; and what fills them anew."""
    numbers, ends, bits = (
        numpy.arange(2),
        numpy.array([0, 1, 2], dtype=numpy.int32),
        numpy.array([3], dtype=numpy.uint8),
    )
    letters, wide = numpy.array([65, 66], dtype=numpy.uint8), numpy.array([1, 0, 2, 0])
    valid, text = pa.py_buffer(bits), [pa.py_buffer(ends), pa.py_buffer(letters)]
    word = pa.Array.from_buffers(pa.string(), 2, [valid, *text])
    number: Any = pa.array(numbers)
    columns = {
        "n": number,
        "s": word,
        "b": pa.Array.from_buffers(pa.binary(), 2, [None, *text]),
        "yes": pa.Array.from_buffers(pa.bool_(), 2, [None, valid]),
        "d": pa.Array.from_buffers(pa.decimal128(10, 2), 2, [None, pa.py_buffer(wide)]),
        "l": pa.ListArray.from_arrays(pa.array(ends), number),
        "t": pa.StructArray.from_arrays([number, word], ["n", "s"]),
        "m": pa.MapArray.from_arrays(pa.array(ends), word, number),
        "k": pa.DictionaryArray.from_arrays(pa.array(numpy.zeros(2, dtype=numpy.int32)), word),
        "at": pa.Array.from_buffers(pa.timestamp("us"), 2, [None, pa.py_buffer(numbers)]),
    }
    names = [field.name for field in parse_ddl(ddl)]

    def fill() -> None:
        for each, value in ((numbers, 9), (ends, 0), (bits, 0), (letters, 90), (wide, 9)):
            each.fill(value)

    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names), fill


EVERY_BUFFER = (
    "n bigint, s string, b binary, yes boolean, d decimal(10,2), l array<bigint>, t struct<n: bigint, s: string>,"
    " m map<string, bigint>, at timestamp_ntz"
)


@pytest.mark.parametrize("ddl", [EVERY_BUFFER, "k string, n bigint", "n double, l array<int>", "n bigint"])
@pytest.mark.parametrize(
    "shape",
    [
        lambda batch: batch,
        lambda batch: batch.slice(1, 1),
        lambda batch: batch.slice(0, 1),
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: [batch],
        lambda batch: [batch, pa.Table.from_batches([batch])],
    ],
)
def test_arrow_batches_are_taken_as_they_were(ddl: str, shape: Callable[[pa.RecordBatch], Any]) -> None:
    rows = buffer(ddl)
    expected: list[dict[str, Any]] = []
    for offset in range(3):  # from the second one on, the columns are known to be those declared
        batch, fill = refilled(ddl)
        given_rows = shape(batch)
        for each in given_rows if isinstance(given_rows, list) else [given_rows]:
            expected.extend(each.to_pylist())
        prepared = rows.prepare(message(offset), given_rows)
        fill()
        assert prepared is not None
        rows.keep("a", prepared)
    taken, bad = rows.take()
    assert taken is not None
    assert not bad
    assert taken.select(parse_ddl(ddl).names).to_pylist() == expected


def test_what_a_generator_yields_is_taken_before_it_goes_on() -> None:
    def batches() -> Iterator[Any]:
        same = numpy.zeros(1, dtype=numpy.int64)
        for same[0] in range(3):
            yield pa.RecordBatch.from_arrays([pa.array(same), pa.array([list(same)])], names=["n", "l"])

    def dicts() -> Iterator[Any]:
        row: dict[str, Any] = {"n": 0, "l": [0]}
        for row["n"] in range(3):
            row["l"][0] = row["n"]
            yield row

    for generated in (batches(), dicts()):
        found = kept(buffer("n bigint, l array<bigint>"), generated)
        assert [(row["n"], row["l"]) for row in found] == [(0, [0]), (1, [1]), (2, [2])]


def test_dataclasses_inside_rows() -> None:
    @dataclass
    class Inner:
        x: int

    @dataclass
    class Outer:
        a: Inner
        b: list[Inner]

    found = kept(buffer("a struct<x: int>, b array<struct<x: int>>"), Outer(Inner(1), [Inner(2)]))
    assert user(found) == [(0, 0, {"x": 1}, [{"x": 2}])]


def test_types_are_brought_to_the_declared_ones() -> None:
    table = pa.table(
        {
            "a": pa.chunked_array([[1], [2]], pa.int64()),
            "b": pa.array(["x", "y"], pa.large_string()),
            "c": pa.array([1, 2], pa.timestamp("ns", tz="Europe/Berlin")),
        }
    )
    empty = table.slice(0, 0)
    rows = buffer("a int, b string, c timestamp")
    with pytest.raises(RowError, match="column c timestamp"):  # nanoseconds would be lost
        rows.prepare(message(), table)
    assert rows.prepare(message(), empty) is None
    good = table.set_column(2, "c", pa.array([1_000, 2_000], pa.timestamp("ns", tz="Europe/Berlin")))
    assert [row[2:4] for row in user(kept(rows, good))] == [(1, "x"), (2, "y")]


def test_without_declared_columns_every_row_is_an_error() -> None:
    rows = buffer(None)
    for result in ({"a": 1}, [{"a": 1}], pa.table({"a": [1]})):
        with pytest.raises(RowError, match="no columns are declared"):
            rows.prepare(message(), result)
    with pytest.raises(RowError, match="returned int"):
        rows.prepare(message(), 3)
    assert rows.take() == (None, [])


def test_the_first_rows_decide_on_columns_where_that_is_asked_for() -> None:
    asked: list[object] = []
    known: list[object] = []

    def infer(rows: list[Any]) -> pa.Schema:
        asked.append(rows)
        return parse_ddl("a int, b string")

    rows: RowBuffer[str] = RowBuffer(None, "group", infer)
    rows.on_columns = lambda: known.append(rows.schema)
    with pytest.raises(RowError, match="neither None nor a row"):
        rows.prepare(message(), 7)
    assert rows.prepare(message(), []) is None
    assert (asked, known) == ([], [])
    found = kept(rows, ({"a": at, "b": "x"} for at in range(2)), {"a": 5})
    assert [(row["a"], row["b"]) for row in found] == [(0, "x"), (1, "x"), (5, None)]
    assert asked == [[{"a": 0, "b": "x"}, {"a": 1, "b": "x"}]]
    assert known == [rows.schema]
    with pytest.raises(RowError, match='column "c" is not declared'):
        rows.prepare(message(), {"c": 1})


def test_the_buffer_says_when_it_is_full() -> None:
    rows = buffer("a int, b string")
    prepared = rows.prepare(message(), generate(FLUSH_ROWS_MAX))
    assert prepared is not None
    assert not rows.full
    rows.keep("m", prepared)
    assert rows.full
    rows.take()
    assert not rows.full


def test_the_buffer_learns_how_large_rows_are() -> None:
    rows = buffer("a int, b string")

    def add(count: int) -> None:
        prepared = rows.prepare(message(), [{"a": 1, "b": "x" * 50_000}] * count)
        assert prepared is not None
        rows.keep("m", prepared)

    add(100)
    assert not rows.full
    rows.take()
    add(100)
    assert rows.full


def test_slices_of_a_large_table_count_as_what_they_are() -> None:
    rows = buffer("a int, b string")
    table: Any = pa.RecordBatch.from_pydict({"a": pa.array(range(10_000), pa.int32()), "b": ["x" * 1_000] * 10_000})
    for start in (0, 5_000):
        prepared = rows.prepare(message(), table.slice(start, 1_000))
        assert prepared is not None
        rows.keep("m", prepared)
        assert not rows.full
        rows.take()


def test_many_messages_with_different_numbers_of_rows_stay_whole() -> None:
    rows = buffer("a int, b string")
    found = kept(rows, *[generate(count) for count in (3, 0, 1, 2)])
    assert [(row["_offset"], row["_seq"]) for row in found] == [(0, 0), (0, 1), (0, 2), (2, 0), (3, 0), (3, 1)]
