"""Iceberg tables read without Spark, where the names in the files do not tell which column is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyiceberg.table.update
import pytest
from loader_world import World
from pyiceberg.types import IntegerType

from rocketcrew import read
from rocketcrew.cli.reading import DuckViews, dataset

updates: Any = pyiceberg.table.update
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


def forget_schemas(world: World) -> None:
    """Remove all schemas but today's, as `expire_snapshots(clean_expired_metadata => true)` of Spark does."""
    table = world.target().table()
    old = [number for number in table.schemas() if number != table.schema().schema_id]
    assert old
    table.catalog.commit_table(table, (), (updates.RemoveSchemasUpdate(schema_ids=old),))


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


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize(("change", "row"), CHANGES)
def test_columns_that_were_changed_by_hand(world: World, change: Change, row: dict[str, Any], forget: bool) -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    columns = [("value", pa.string()), ("d", inner), ("a", pa.int32())]
    world.seal([world.helpers.Record(1, extra={"d": {"x": 7, "y": "why"}, "a": 1})], columns=columns)
    world.drain(world.loader())
    with world.target().table().update_schema() as update:
        change(update)
    if forget:
        forget_schemas(world)
    assert both_ways(world, *row) == [row]


@pytest.mark.parametrize("forget", [False, True])
def test_a_new_column_by_the_name_of_one_that_was_dropped(world: World, forget: bool) -> None:
    columns = [("value", pa.string()), ("a", pa.int32())]
    world.seal([world.helpers.Record(1, extra={"a": 1})], columns=columns)
    world.drain(world.loader())
    with world.target().table().update_schema() as update:
        update.delete_column("a")
    with world.target().table().update_schema() as update:
        update.add_column("a", IntegerType())
    if forget:
        forget_schemas(world)
    assert both_ways(world, "a") == [{"a": None}]
    world.seal([world.helpers.Record(2, extra={"a": 2})], columns=columns)
    world.drain(world.loader())
    assert both_ways(world, "a") == [{"a": None}, {"a": 2}]


def test_a_name_that_a_column_has_again_when_the_schema_in_between_is_gone(world: World) -> None:
    """The first schema is today's once more, so that the numbers of those that are left have no gap."""
    world.load(1)
    with world.target().table().update_schema() as update:
        update.rename_column("value", "text")
    world.target().table().append(pa.table({"text": ["between"], "_offset": pa.array([2], pa.int64())}))
    with world.target().table().update_schema() as update:
        update.rename_column("text", "value")
    forget_schemas(world)
    assert list(world.target().table().schemas()) == [0]
    assert both_ways(world, "value") == [{"value": "row"}, {"value": "between"}]


def test_rows_of_before_a_column_with_a_default(world: World) -> None:
    world.load(1)
    with world.target().table().update_schema() as update:
        update.add_column("d", IntegerType(), default_value=7)
    assert both_ways(world, "d") == [{"d": 7}]


def test_what_was_never_changed_is_read_file_by_file(world: World) -> None:
    """Not as a table in memory."""
    inner = pa.struct([("x", pa.int32()), ("z", pa.list_(pa.struct([("r", pa.string())])))])
    mapped = pa.map_(pa.string(), pa.struct([("p", pa.int32())]))
    world.load(1)
    columns = [("value", pa.string()), ("s", inner), ("m", mapped)]
    extra = {"s": {"x": 7, "z": [{"r": "in"}]}, "m": [("k", {"p": 1})]}
    world.seal([world.helpers.Record(2, extra=extra)], columns=columns)
    world.drain(world.loader())
    assert len(dataset(world.table).files) == 2
    assert both_ways(world, "s", "m") == [{"s": None, "m": None}, extra]
