"""Iceberg tables read without Spark, where the names in the files do not tell which column is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from loader_world import World
from pyiceberg.types import IntegerType

from rocketcrew import read
from rocketcrew.cli.reading import DuckViews

TABLES = ("iceberg",)
STRUCT = pa.struct([("x y", pa.int32()), ("z", pa.list_(pa.struct([("q.r", pa.string())])))])


def both_ways(world: World, *names: str) -> list[dict[str, Any]]:
    """The rows as `read` gives them; `query` must agree."""
    found: list[dict[str, Any]] = read(world.table).sort_by("_offset").select(list(names)).to_pylist()
    views = DuckViews(world.table)
    try:
        wanted = ", ".join(f'"{name}"' for name in names)
        assert views.answer(f"SELECT {wanted} FROM results ORDER BY _offset") == found
    finally:
        views.close()
    return found


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("net total", pa.float64(), 9.5),
        ("a.b", pa.string(), "x"),
        ("a=b", pa.string(), "x"),
        ("s", STRUCT, {"x y": 7, "z": [{"q.r": "in"}]}),
        ("m", pa.map_(pa.string(), pa.struct([("p-q", pa.int32())])), [("k", {"p-q": 1})]),
        ("plain", pa.struct([("x", pa.int32())]), {"x": 1}),
    ],
)
def test_names_that_no_file_may_have(world: World, name: str, kind: pa.DataType, value: object) -> None:
    world.seal([world.helpers.Record(1, extra={name: value})], columns=[("value", pa.string()), (name, kind)])
    world.drain(world.loader())
    assert read(world.table).column(name).to_pylist() == [value]


Change = Callable[[Any], object]
CHANGES: list[tuple[Change, dict[str, Any]]] = [
    (lambda update: update.rename_column("d.x", "z"), {"d": {"z": 7, "y": "why"}, "a": 1}),
    (lambda update: update.rename_column("a", "b"), {"d": {"x": 7, "y": "why"}, "b": 1}),
    (lambda update: update.delete_column("a"), {"d": {"x": 7, "y": "why"}}),
]


@pytest.mark.parametrize(("change", "row"), CHANGES)
def test_columns_that_were_changed_by_hand(world: World, change: Change, row: dict[str, Any]) -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    columns = [("value", pa.string()), ("d", inner), ("a", pa.int32())]
    world.seal([world.helpers.Record(1, extra={"d": {"x": 7, "y": "why"}, "a": 1})], columns=columns)
    world.drain(world.loader())
    with world.target().table().update_schema() as update:
        change(update)
    assert both_ways(world, *row) == [row]


def test_a_new_column_by_the_name_of_one_that_was_dropped(world: World) -> None:
    world.seal([world.helpers.Record(1, extra={"a": 1})], columns=[("value", pa.string()), ("a", pa.int32())])
    world.drain(world.loader())
    with world.target().table().update_schema() as update:
        update.delete_column("a")
    with world.target().table().update_schema() as update:
        update.add_column("a", IntegerType())
    assert both_ways(world, "a") == [{"a": None}]
