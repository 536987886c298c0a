"""Values of which something would be lost without a word are refused, in whatever form they are given."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import subprocess
import sys
from typing import Any

import pyarrow
import pytest

from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError

pa: Any = pyarrow


class NaTType:
    """What pandas gives for no time, as far as Arrow looks at it."""


class Zone(datetime.tzinfo):
    """Says nothing: each method of its base raises."""


class Wordless:
    """Whoever asks for its number gets an error without a word."""

    def __index__(self) -> int:
        raise ZeroDivisionError


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
]


@pytest.mark.parametrize(("ddl", "row", "words"), ROWS, ids=[words for _, _, words in ROWS])
def test_row_is_refused(ddl: str, row: object, words: str) -> None:
    with pytest.raises(RowError, match=words):
        fit(ddl, row)


def test_numpy_array_is_no_integer() -> None:
    numpy: Any = pytest.importorskip("numpy")
    with pytest.raises(RowError, match="expected an integer, got ndarray"):
        fit("c int", {"c": numpy.array(5.7)})


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


TABLES = [
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
