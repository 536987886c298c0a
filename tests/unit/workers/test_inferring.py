"""Columns found from the first rows: by whom, once, and what happens to rows that come later."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import message as made
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.ddl import parse_ddl, to_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring, as_rows, columns_of, declared_columns, frozen
from rocketcrew.workers.rows import RowBuffer


@dataclasses.dataclass
class Line:
    """In the order of the alphabet: older Arrows (22) put fields of a struct that they infer into that."""

    file: str
    line: int | None


@dataclasses.dataclass
class Loose:
    n: int
    tags: list  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    lines: tuple  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    any: Any = None


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([{"a": 1, "b": "x", "c": 1.5, "d": b"y", "e": True}], "a bigint, b string, c double, d binary, e boolean"),
        ([{"a": None}, {"a": [1, 2], "late": "x"}], "a array<bigint>, late string"),
        ([{"at": datetime(2026, 1, 1, tzinfo=UTC), "s": {"x": 1}}], "at timestamp, s struct<x: bigint>"),
        ([Line("m", None)], "file string, line bigint"),
        (
            [Loose(1, [], ()), Loose(2, ["x"], (Line("m", 1),), 1.5)],
            "n bigint, tags array<string>, lines array<struct<file: string, line: bigint>>, any double",
        ),
        ([pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int16())})], "n smallint"),
        ([pa.table({"c": pa.array(["x"]).dictionary_encode()})], "c string"),  # a category of pandas
        (
            [
                pa.table(
                    {"c": pa.array([[{"x": "y"}]], pa.list_(pa.struct([("x", pa.dictionary(pa.int8(), "string"))])))}
                )
            ],
            "c array<struct<x: string>>",
        ),
    ],
)
def test_columns_of_rows(rows: list[Any], columns: str) -> None:
    assert to_ddl(columns_of(rows)) == columns


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"a": None}], 'column "a" is null in the first rows'),
        ([{"a": 1}, {"a": "x"}], 'the type of column "a" cannot be inferred'),
        ([7], "not int"),
        ([Loose(1, ["x"], ("y",))], 'column "any" is null in the first rows'),
        ([{1: 2}], "a column's name is a string, not 1"),
    ],
)
def test_what_says_nothing_about_columns(rows: list[Any], said: str) -> None:
    with pytest.raises(RowError, match=said):
        columns_of(rows)


def test_what_could_not_be_read_again_is_not_frozen(tmp_path: Path) -> None:
    file = tmp_path / COLUMNS_FILE
    infer = Inferring(file, structlog.get_logger())
    with pytest.raises(RowError, match=r"struct<>.*declare results.schema"):
        infer([{"id": 1, "attrs": {}}])
    assert to_ddl(infer([{"id": 1, "attrs": {"k": 1}}])) == "id bigint, attrs struct<k: bigint>"
    assert frozen(file)


def test_what_is_rows() -> None:
    def generated() -> Iterator[dict[str, int]]:
        yield {"a": 1}

    assert as_rows(generated()) == [{"a": 1}]
    assert as_rows({"a": 1}) == [{"a": 1}]
    assert as_rows("text") is None
    assert as_rows(3) is None


def test_a_row_that_a_generator_fills_anew_is_taken_before_it_goes_on(tmp_path: Path) -> None:
    def generated() -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"buffer": bytearray(1), "inner": {"all": []}}
        for number in range(3):
            row["n"] = number
            row["buffer"][0] = number
            row["inner"]["all"].append(number)
            yield row

    def lines() -> Iterator[Line]:
        line = Line("m", 0)
        for line.line in range(3):
            yield line

    def batches() -> Iterator[Any]:
        memory = bytearray(8)
        for memory[0] in range(3):
            array: Any = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(memory)])
            yield pa.RecordBatch.from_arrays([array], ["n"])

    wanted = [{"n": n, "buffer": bytes([n]), "inner": {"all": list(range(n + 1))}} for n in range(3)]
    for given, rows in (
        (generated(), wanted),
        (lines(), [{"file": "m", "line": n} for n in range(3)]),
        (batches(), [{"n": n} for n in range(3)]),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        buffer = RowBuffer[int](None, "g", Inferring(folder / COLUMNS_FILE, structlog.get_logger()))
        prepared = buffer.prepare(made("b"), given)
        assert prepared is not None
        buffer.keep(0, prepared)
        batch, bad = buffer.take()
        assert bad == []
        assert batch is not None
        assert batch.select(list(rows[0])).to_pylist() == rows


def test_what_a_generator_yields_that_cannot_be_copied_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(RowError, match=r"lock cannot be copied, .*: return all rows in a list"):
        as_rows(iter([lock]))
    assert as_rows([lock]) == [lock]


def test_the_first_decides_for_all_and_for_later_starts(tmp_path: Path) -> None:
    file = tmp_path / COLUMNS_FILE
    log = structlog.get_logger()
    assert frozen(file) is None
    assert to_ddl(Inferring(file, log)([{"a": 1}])) == "a bigint"
    assert to_ddl(Inferring(file, log)([{"b": "x"}])) == "a bigint"
    assert [path.name for path in tmp_path.iterdir()] == [COLUMNS_FILE]
    assert declared_columns("infer", None, file) == "a bigint"
    assert declared_columns("infer", "c int", file) == "c int"
    assert declared_columns("d int", "c int", file) == "d int"
    assert declared_columns("", "c int", file) == "c int"
    with pytest.raises(RowError, match="names that start with"):
        Inferring(tmp_path / "other", log)([{"_a": 1}])
    file.write_text("not a schema at all !")
    with pytest.raises(UsageError, match="delete it, or declare them"):
        frozen(file)


@pytest.mark.parametrize("row", [{"v": 1, "w": 2}, pa.table({"v": [1], "w": [2]})])
def test_a_later_column_is_refused_with_the_file_that_keeps_the_inferred_ones(tmp_path: Path, row: object) -> None:
    """Those that an earlier run has left, and those that its own first rows gave."""
    file = tmp_path / COLUMNS_FILE
    said = rf'"w" is not among the columns v, which were inferred .*{file}: delete that file and start again'
    first: RowBuffer[str] = RowBuffer(None, "g", Inferring(file, structlog.get_logger()))
    first.are_inferred(file)
    first.prepare(made(b""), {"v": 1})
    later: RowBuffer[str] = RowBuffer(parse_ddl(frozen(file) or ""), "g")
    later.are_inferred(file)
    for rows in (first, later):
        with pytest.raises(RowError, match=said):
            rows.prepare(made(b""), row)
