"""Rows are given back as a handler returns them: maps are dicts, at any depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rocketcrew.testing import message, run
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.plain_rows import plain_rows


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("v map<string,int>", {"k": 1}), ("v map<string,int>", {}), ("v map<string,int>", None),
        ("v array<map<string,int>>", [{"k": 1}, None]), ("v map<string,map<string,int>>", {"a": {"b": 1}}),
        ("v struct<m: map<string,int>, n: int>", {"m": {"k": None}, "n": 1}), ("v array<int>", [1]),
    ],
)  # fmt: skip
def test_maps_are_dicts(ddl: str, value: Any) -> None:
    assert plain_rows(pa.Table.from_pylist([{"v": value}], parse_ddl(ddl))) == [{"v": value}]


def test_the_test_kit_gives_what_the_handler_returned() -> None:
    assert run(lambda _: {"v": {"k": 1}}, [message("x")], settings={"results.schema": "v map<string,int>"}).rows == [
        {"v": {"k": 1}}
    ]
