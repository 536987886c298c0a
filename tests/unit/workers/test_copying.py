"""What a handler fills anew is taken before it goes on: every container, in every kind of result, for every message."""

from __future__ import annotations

import array
import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import structlog

from rocketcrew.testing import message
from rocketcrew.workers.api import BatchResult
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.copying import listed
from rocketcrew.workers.ddl import parse_ddl
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
