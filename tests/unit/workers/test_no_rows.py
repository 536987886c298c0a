"""What others take for a row, or for rows: the error names its class and how a row is made of it."""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pandas
import pyarrow as pa
import pydantic
import pytest
import structlog

from rocketcrew import Send
from rocketcrew.testing import message
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.rows import RowBuffer


class Model(pydantic.BaseModel):
    a: int


class Struct(msgspec.Struct):
    a: int


class Named(NamedTuple):
    a: Any
    b: Any = None


class Mapped(Mapping[str, int]):
    def __getitem__(self, name: str) -> int:
        return {"a": 1}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class Holder(pydantic.RootModel[list[Any]]):
    """A model that is iterated as its author wants."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.root)


NO_ROWS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Model(a=1), "not Model: return value.model_dump()"),
    (lambda: Struct(1), "not Struct: return msgspec.structs.asdict(value)"),
    (lambda: Named(1), "not Named: return value._asdict()"),
    (Mapped, "not Mapped: return dict(value)"),
    (lambda: collections.UserDict(a=1), "not UserDict: return dict(value)"),
    (lambda: types.MappingProxyType({"a": 1}), "not mappingproxy: return dict(value)"),
    (lambda: collections.ChainMap({"a": 1}), "not ChainMap: return dict(value)"),
    (lambda: pandas.DataFrame({"a": [1]}), "not DataFrame: return pa.Table.from_pandas(value, preserve_index=False)"),
    (lambda: pandas.Series({"a": 1}), "not Series: return value.to_dict()"),
]


def buffers(folder: Path) -> Iterator[RowBuffer[int]]:
    yield RowBuffer[int](parse_ddl("a int, b int"), "g")
    yield RowBuffer[int](None, "g", Inferring(folder / COLUMNS_FILE, structlog.get_logger()))


@pytest.mark.parametrize(("make", "words"), NO_ROWS, ids=[words for _, words in NO_ROWS])
def test_what_is_no_row_is_named_with_the_way_out(make: Callable[[], Any], words: str, tmp_path: Path) -> None:
    for rows, shape, at_once in itertools.product(
        buffers(tmp_path), (lambda row: row, lambda row: [row]), (True, False)
    ):
        with pytest.raises(RowError) as raised:
            rows.prepare(message("b"), shape(make()), at_once=at_once)
        assert str(raised.value) == f"a row must be a dict or a dataclass instance, {words}"


def test_what_holds_rows_is_one_of_several_rows() -> None:
    for result in (Named({"a": 1}, {"a": 2}), Holder([{"a": 1}, {"a": 2}])):
        prepared = RowBuffer[int](parse_ddl("a int"), "g").prepare(message("b"), result)
        assert prepared is not None
        assert prepared[1] == (1, 2)


def test_without_declared_columns_what_has_no_rows_is_done_and_ends_at_its_first_row() -> None:
    ran: list[object] = []

    def yielding(*given: object) -> Iterator[object]:
        try:
            for each in given:
                ran.append(each)
                yield each
        finally:
            ran.append("closed")

    rows = RowBuffer[int](None, "g")
    empty = pa.table({"a": []})
    for result in ([], yielding(), empty, [empty]):
        assert rows.prepare(message("b"), result) is None
    assert ran == ["closed"]
    for row, words in (
        ({"a": 1}, "no columns are declared"), (pa.table({"a": [1]}), "no columns are declared"), (5, "int"),
        (Send("t", b"x"), "not declared with @handler"),
    ):  # fmt: skip
        ran.clear()
        with pytest.raises(RowError, match=words) as raised:  # which keeps what is suspended
            rows.prepare(message("b"), yielding(row, row))
        assert ran == [row, "closed"], raised
