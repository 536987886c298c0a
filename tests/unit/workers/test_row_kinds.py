"""Each kind of row that a handler may return is taken in every message of a worker as in its first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow
import pytest

from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import DATACLASSES_MAX, Columns
from rocketcrew.workers.message import make_message
from rocketcrew.workers.rows import RowBuffer

pa: Any = pyarrow


@dataclass(slots=True)
class Slots:
    a: Any
    b: Any


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any


@dataclass
class Less:
    a: Any


class Inheriting(Slots):
    """A subclass that is not declared as a dataclass itself."""


@dataclass
class Completed(Less):
    b: Any


class Counted(dict[str, Any]):
    """A subclass of dict."""


@dataclass
class Inner:
    x: Any


DICTS: list[tuple[Callable[[Any], Any], str | None]] = [
    (lambda a: {"a": a, "b": "y"}, "y"),
    (lambda a: {"b": "y", "a": a}, "y"),
    (lambda a: Counted(a=a, b="y"), "y"),
    (lambda a: {"a": a}, None),
]
DATACLASSES: list[tuple[Callable[[Any], Any], str | None]] = [
    (lambda a: Slots(a, "y"), "y"),
    (lambda a: Frozen(a, "y"), "y"),
    (lambda a: Inheriting(a, "y"), "y"),
    (lambda a: Completed(a, "y"), "y"),
    (Less, None),
]
"""Makers of a row by the value of its column a, and the value of its column b."""
PLAIN_VALUES: list[tuple[str, Callable[[int], Any], Callable[[int], Any]]] = [
    ("int", lambda x: x, lambda x: x),
    ("array<int>", lambda x: [x], lambda x: [x]),
    ("struct<x: int>", lambda x: {"x": x}, lambda x: {"x": x}),
]
NESTED_VALUES: list[tuple[str, Callable[[int], Any], Callable[[int], Any]]] = [
    ("struct<x: int>", Inner, lambda x: {"x": x}),
    ("array<struct<x: int>>", lambda x: [Inner(x)], lambda x: [{"x": x}]),
    ("map<string,struct<x: int>>", lambda x: {"k": Inner(x)}, lambda x: [("k", {"x": x})]),
]
"""Types of column a, makers of its value, and what is to be read of that."""


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("shape", [None, list, iter], ids=["alone", "list", "generated"])
@pytest.mark.parametrize(
    ("row_kind", "value_kind"),
    [*product(DICTS + DATACLASSES, PLAIN_VALUES), *product(DATACLASSES, NESTED_VALUES)],
)
def test_every_message_of_a_worker_is_taken_as_its_first(
    row_kind: tuple[Callable[[Any], Any], str | None],
    value_kind: tuple[str, Callable[[int], Any], Callable[[int], Any]],
    shape: Callable[[Any], Any] | None,
    times: int,
) -> None:
    (make, b), (kind, value, wanted) = row_kind, value_kind
    rows = [[make(value(number))] * times for number in range(3)]
    results = [row for several in rows for row in several] if shape is None else [shape(several) for several in rows]
    buffer = RowBuffer[int](parse_ddl(f"a {kind}, b string"), "group")
    for number, result in enumerate(results):
        prepared = buffer.prepare(make_message(b"", queue_offset=number), result)
        assert prepared is not None
        buffer.keep(number, prepared)
    batch, bad = buffer.take()
    assert batch is not None
    assert not bad
    read = [(row["a"], row["b"]) for row in batch.to_pylist()]
    assert read == [(wanted(number), b) for number in range(3) for _ in range(times)]


def test_a_class_is_taken_also_when_no_more_are_remembered() -> None:
    columns = Columns(parse_ddl("a int, b string"))
    for number in range(DATACLASSES_MAX + 2):
        row_class = dataclasses.make_dataclass("Made", ["a", "b"])
        for _ in range(2):
            assert columns.values_of(row_class(number, "x")) == (number, "x")


@pytest.mark.parametrize("make", [list, iter])
def test_rows_and_tables_of_one_message_stay_in_order(make: Callable[[list[Any]], Any]) -> None:
    given = [{"n": 0}, table(1), table(), {"n": 2}, {"n": 3}, table(4, 5), {"n": 6}]
    for at_once in (False, True):
        buffer = RowBuffer[int](parse_ddl("n bigint"), "g")
        prepared = buffer.prepare(make_message(b"x"), make(given), at_once=at_once)
        assert prepared is not None
        buffer.keep(0, prepared)
        batch, _ = buffer.take()
        assert batch is not None
        assert batch.column("n").to_pylist() == list(range(7))
        assert batch.column("_seq").to_pylist() == list(range(7))


def table(*numbers: int) -> Any:
    return pa.table({"n": pa.array(numbers, pa.int64())})
