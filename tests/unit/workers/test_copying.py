"""What a handler fills anew is taken before it goes on: every container, in every kind of result, for every message."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pandas
import pyarrow
import pytest
import structlog

from rocketcrew.testing import message
from rocketcrew.workers.api import BatchResult
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.copying import copy_of, listed
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.message import Message
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sends import Send, parted

pa: Any = pyarrow
Fill = Callable[[Any, int], None]


class Items(list[Any]):
    """A list of one's own."""


class Fields(dict[str, Any]):
    """A dict of one's own."""


def first(value: Any, number: int) -> None:
    value[0] = number


def named(value: Any, number: int) -> None:
    value["a"] = number


def only(value: set[int], number: int) -> None:
    value.clear()
    value.add(number)


def view(kind: str) -> memoryview:
    return memoryview(bytearray(8)).cast(kind)


class Tensor:
    """A number whose memory is filled anew, as those of torch; `copies`: it has a copy."""

    def __init__(self, *, copies: bool = True) -> None:
        self.number = 0
        self.copies = copies

    def __index__(self) -> int:
        return self.number

    def __deepcopy__(self, memo: object) -> Tensor:
        if not self.copies:
            raise RuntimeError("only some tensors support the deepcopy protocol")
        other = Tensor()
        other.number = self.number
        return other


def set_number(value: Any, number: int) -> None:
    value.number = number


def whole(value: Any, number: int) -> None:
    value[()] = number


@dataclasses.dataclass
class Whole:
    """A value whose `values` are a view."""

    values: Any


class Named(NamedTuple):
    """A tuple of one value that may be changed."""

    a: list[int]


CONTAINERS: dict[str, tuple[str, Callable[[], Any], Fill]] = {
    "list": ("array<int>", lambda: [0], first),
    "subclass of list": ("array<int>", lambda: Items([0]), first),
    "deque": ("array<int>", lambda: collections.deque([0]), first),
    "deque of lists": ("array<array<int>>", lambda: collections.deque([[0]]), lambda value, n: first(value[0], n)),
    "set": ("array<int>", lambda: {0}, only),
    "array": ("array<int>", lambda: array.array("i", [0]), first),
    "view as list": ("array<int>", lambda: view("q"), first),
    "view": ("binary", lambda: view("B"), first),
    "view of numbers": ("binary", lambda: view("q"), first),
    "view of another order": ("binary", lambda: memoryview(numpy.zeros(1, ">i8")), lambda v, n: first(v.obj, n)),
    "bytearray": ("binary", lambda: bytearray(1), first),
    "numpy": ("array<int>", lambda: numpy.zeros(1, "i4"), first),
    "numpy of objects": ("array<int>", lambda: numpy.zeros(1, object), first),
    "numpy of lists": ("array<array<int>>", lambda: numpy.array([[0], None], object), lambda value, n: first(value[0], n)),
    "numpy of str": ("array<string>", lambda: numpy.array(["0"]), first),
    "numpy of bytes": ("array<string>", lambda: numpy.array([b"0"]), lambda value, n: first(value, b"%d" % n)),
    "numpy of times": ("array<timestamp_ntz>", lambda: numpy.zeros(1, "M8[us]"), first),
    "numpy in a list": ("array<array<int>>", lambda: [numpy.zeros(1, "i4")], lambda value, n: first(value[0], n)),
    "numpy in a struct": ("struct<a: array<int>>", lambda: {"a": numpy.zeros(1, "i4")}, lambda v, n: first(v["a"], n)),
    "masked": ("array<bigint>", lambda: numpy.ma.array([0]), first),
    "pandas": ("array<bigint>", lambda: pandas.Series([0]), first),
    "struct": ("struct<a: int>", lambda: {"a": 0}, named),
    "ordered struct": ("struct<a: int>", lambda: collections.OrderedDict(a=0), named),
    "subclass as struct": ("struct<a: int>", lambda: Fields(a=0), named),
    "ordered in a list": ("array<struct<a: int>>", lambda: [collections.OrderedDict(a=0)], lambda v, n: named(v[0], n)),
    "map": ("map<string, int>", lambda: {"a": 0}, named),
    "map with a default": ("map<string, int>", lambda: collections.defaultdict(int, a=0), named),
    "map of pairs": ("map<string, array<int>>", lambda: [("a", [0])], lambda value, n: first(value[0][1], n)),
    "counter": ("map<string, int>", lambda: collections.Counter(a=0), named),
    "subclass as map": ("map<string, int>", lambda: Fields(a=0), named),
    "map of entries": ("map<string, int>", lambda: [{"key": "a", "value": 0}], lambda v, n: v[0].update(value=n)),
    "tensor": ("int", Tensor, set_number),
    "tensor in a list": ("array<int>", lambda: [Tensor()], lambda value, n: set_number(value[0], n)),
    "array of one": ("int", lambda: numpy.zeros((), "i4"), whole),
    "masked array of one": ("int", lambda: numpy.ma.array(0), whole),
    "named tuple": ("array<array<int>>", lambda: Named([0]), lambda value, n: first(value.a, n)),
    "struct in a tuple": ("struct<a: struct<b: int>>", lambda: ({"b": 0},), lambda v, n: v[0].update(b=n)),
    "list in a tuple": ("struct<a: array<int>>", lambda: ([0],), lambda v, n: first(v[0], n)),
}  # fmt: skip


@dataclasses.dataclass
class Row:
    n: int
    v: Any


class Rows:
    """An iterable that makes its rows when they are asked for, and is no iterator."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class RowsInList(list[Any]):
    """The same, and a list."""

    def __init__(self, rows: Iterable[Any]) -> None:
        super().__init__([None])
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


def rows_over(container: Any, fill: Fill, *, as_dict: bool = True) -> Iterator[Any]:
    for number in range(3):
        fill(container, number)
        yield {"n": number, "v": container} if as_dict else Row(number, container)


def taken(rows: RowBuffer[int], results: Iterable[object], *, at_once: bool = False) -> list[tuple[int, Any]]:
    """What is in the segment of several messages' results, the handler called again after each."""
    for number, result in enumerate(results):
        prepared = rows.prepare(message("b"), result, at_once=at_once)
        assert prepared is not None
        rows.keep(number, prepared)
    batch, bad = rows.take()
    assert not bad
    assert batch is not None
    return list(zip(batch.column("n").to_pylist(), batch.column("v").to_pylist(), strict=True))


def wanted(ddl: str, make: Callable[[], Any], fill: Fill) -> list[tuple[int, Any]]:
    """Of a new container for each row."""
    found: list[tuple[int, Any]] = []
    for number in range(3):
        fill(container := make(), number)
        found += taken(RowBuffer[int](parse_ddl(f"n int, v {ddl}"), "g"), [{"n": number, "v": container}])
    return found


@pytest.mark.parametrize(("ddl", "make", "fill"), CONTAINERS.values(), ids=CONTAINERS)
def test_what_is_filled_anew_is_taken_as_it_was(ddl: str, make: Callable[[], Any], fill: Fill) -> None:
    right = wanted(ddl, make, fill)
    assert len({str(row) for row in right}) == 3
    for as_dict, at_once in itertools.product((True, False), repeat=2):
        for shape in (iter, Rows, RowsInList):
            result = shape(rows_over(make(), fill, as_dict=as_dict))
            assert taken(RowBuffer[int](parse_ddl(f"n int, v {ddl}"), "g"), [result], at_once=at_once) == right
        each = rows_over(make(), fill, as_dict=as_dict)
        assert taken(RowBuffer[int](parse_ddl(f"n int, v {ddl}"), "g"), each, at_once=at_once) == right


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name not in ("set", "view as list")])
def test_also_where_the_first_rows_decide_on_the_columns(name: str, tmp_path: Path) -> None:
    ddl, make, fill = CONTAINERS[name]
    (tmp_path / COLUMNS_FILE).write_text(f"n int, v {ddl}")
    for number, shape in enumerate((iter, Rows)):
        rows = RowBuffer[int](None, "g", Inferring(tmp_path / COLUMNS_FILE, structlog.get_logger()))
        assert taken(rows, [shape(rows_over(make(), fill))]) == wanted(ddl, make, fill), number


def test_rows_that_are_there_at_once_are_not_copied() -> None:
    row = {"n": 0, "v": [0]}
    for rows in ([row], (row,), collections.deque([row]), {"a": row}.values()):
        assert listed(rows)[0] is row


def test_rows_of_a_message_stay_with_it() -> None:
    given, row = message("b"), {"v": [0]}
    (found,) = listed(iter([(given, row)]))
    row["v"][0] = 1
    assert found == (given, {"v": [0]})
    assert found[0] is given


@pytest.mark.parametrize("make", [lambda data: data, lambda data: [data], lambda data: {"a": data}])
def test_a_view_in_a_dataclass_is_taken_as_it_was(make: Callable[[memoryview], Any]) -> None:
    memory = bytearray(b"0")

    def given() -> Iterator[Row]:
        for number in range(3):
            memory[:] = b"%d" % number
            yield Row(number, make(memoryview(memory)))

    found = listed(given())
    assert [type(row) for row in found] == [Row] * 3
    assert [row.v for row in found] == [make(memoryview(b"%d" % number)) for number in range(3)]


def test_a_field_without_a_value_has_none_in_the_copy() -> None:
    row = Row(1, 2)
    del row.v
    (found,) = listed(iter([row]))
    assert (found.n, hasattr(found, "v")) == (1, False)


@pytest.mark.parametrize("shape", [iter, Rows])
def test_rows_beside_messages_that_a_coroutine_sends(shape: Callable[[Any], Any]) -> None:
    row = {"n": 0}

    def given() -> Iterator[Any]:
        for row["n"] in range(3):
            yield row
            yield Send("t", b"x")

    rows, sends = parted(shape(given()))
    assert rows == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len(sends) == 3


def test_plain_values_of_a_generator_are_converted_with_their_block() -> None:
    rows = RowBuffer[int](parse_ddl("n int, v array<int>"), "g")
    for make in (lambda: [0], lambda: {0}, lambda: numpy.zeros(1, "i4"), lambda: collections.deque([0])):
        prepared = rows.prepare(message("b"), ({"n": n, "v": make()} for n in range(3)))
        assert prepared is not None
        assert prepared[2] is None


def test_rows_of_a_batch_are_taken_as_they_were_given() -> None:
    messages, row = [message("a"), message("b")], {"v": [0]}

    def rows_of() -> Iterator[tuple[Message, dict[str, list[int]]]]:
        for number, each in enumerate(messages):
            row["v"][0] = number
            yield each, row

    assert batch_results(messages, BatchResult(rows=rows_of())) == [[{"v": [0]}], [{"v": [1]}]]


VIEWS: dict[str, tuple[str, Callable[[dict[Any, Any]], Any], Fill]] = {
    "values": ("array<int>", dict.values, first),
    "of lists": ("array<array<int>>", dict.values, lambda value, n: value.__setitem__(0, [n])),
}


@pytest.mark.parametrize(("ddl", "view", "fill"), VIEWS.values(), ids=VIEWS)
def test_a_view_of_a_dict_is_taken_as_it_was(
    ddl: str, view: Callable[[dict[Any, Any]], Any], fill: Fill, tmp_path: Path
) -> None:
    entries: dict[Any, Any] = {0: 0}

    def given() -> Iterator[dict[str, Any]]:
        for number in range(3):
            fill(entries, number)
            yield {"n": number, "v": view(entries)}

    right = taken(RowBuffer[int](parse_ddl(f"n int, v {ddl}"), "g"), [given()])
    assert len({str(row) for row in right}) == 3
    (tmp_path / COLUMNS_FILE).write_text(f"n int, v {ddl}")
    assert (
        taken(RowBuffer[int](None, "g", Inferring(tmp_path / COLUMNS_FILE, structlog.get_logger())), [given()]) == right
    )
    messages = [message("b") for _ in range(3)]
    results = batch_results(messages, BatchResult(rows=zip(messages, given(), strict=True)))
    assert taken(RowBuffer[int](parse_ddl(f"n int, v {ddl}"), "g"), results) == right


def test_what_cannot_be_copied_is_not_kept() -> None:
    tensor = Tensor(copies=False)
    for row in (tensor, {"v": [tensor]}, (message("b"), {"v": tensor}), {"v": {"a": tensor}.values()}, Whole(tensor)):
        with pytest.raises(
            RowError, match=r"(list|Tensor|Whole) cannot be copied.*: return all rows in a list"
        ) as refused:
            listed(iter([row]))
        assert isinstance(refused.value.__cause__, RuntimeError)


@pytest.mark.parametrize("start", range(3))
@pytest.mark.parametrize("text", [True, False])
def test_a_broken_batch_is_left_to_who_tells_of_it(start: int, text: bool) -> None:
    """Arrow ends the process where it writes one."""
    ends = pa.array([0, 1 << 30, 1, 2], pa.int32()).buffers()[1]
    parts = pa.array(["a", "b"]) if text else pa.array([1, 2])
    array = pa.ListArray.from_buffers(pa.list_(parts.type), 3, [None, ends], children=[parts])
    inner = "array<string>" if text else "array<bigint>"
    several: list[tuple[str, Any]] = [
        (inner, array),
        (f"struct<x: {inner}>", pa.StructArray.from_arrays([array], ["x"])),
        (f"array<{inner}>", pa.ListArray.from_arrays([0, 1, 2, 3], array)),
        (f"map<string, {inner}>", pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], array)),
    ]
    for count, (ddl, values) in itertools.product(range(1, 4 - start), several):
        batch = pa.record_batch({"v": values}).slice(start, count)
        for table in (batch, pa.Table.from_batches([batch])):
            columns = Columns(parse_ddl(f"v {ddl}"))
            (found,) = listed(iter([table]))
            assert fault_of(columns, found) == fault_of(columns, table)
            assert bool(fault_of(columns, found)) == (start < 2)


def fault_of(columns: Columns, table: Any) -> str:
    try:
        columns.fit_arrow(table)
    except RowError as error:
        return str(error)
    return ""


class Stamp(datetime.datetime):
    """As pandas' own."""

    def __deepcopy__(self, memo: object) -> Stamp:
        raise AssertionError("it cannot be changed")


def test_what_needs_no_copy_and_no_conversion_of_its_own() -> None:
    stamp = Stamp(2026, 1, 31)
    assert copy_of(stamp) is stamp
    rows = RowBuffer[int](parse_ddl("n int, v struct<a: int, b: array<int>>, w array<array<int>>"), "g")
    given = ({"n": n, "v": (n, [n]), "w": numpy.array([[n], None], object)} for n in range(3))
    prepared = rows.prepare(message("b"), given)
    assert prepared is not None
    assert prepared[2] is None, "converted with its block"


def test_numbers_of_numpy_cannot_be_changed() -> None:
    columns, number = Columns(parse_ddl("n int, v bigint")), numpy.int64(1)
    values = columns.values_of_plain({"n": 1, "v": number})
    assert values is not None
    assert values[1] is number


def test_a_named_tuple_of_a_message_and_its_row_stays_one() -> None:
    class Pair(NamedTuple):
        message: Message
        row: dict[str, int]

    messages = [message("a"), message("b")]
    rows = (Pair(each, {"n": number}) for number, each in enumerate(messages))
    assert batch_results(messages, BatchResult(rows=rows)) == [[{"n": 0}], [{"n": 1}]]
