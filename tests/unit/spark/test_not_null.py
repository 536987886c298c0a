"""Columns that a handler declares NOT NULL from some batch on, in each kind of table and whatever merges it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from loader_world import World
from test_nested_nulls import merge

from rocketcrew import read
from rocketcrew.spark.merging import FILES_LEAST

pq: Any = pyarrow.parquet
TABLES = ("parquet", "deltalake", "iceberg")
VALUE = ("value", pa.string())
MUST: Any = pa.field("a", pa.int32(), nullable=False)
MAY: Any = pa.field("a", pa.int32())


def load(world: World, rows: list[tuple[int, dict[str, Any]]], *columns: tuple[Any, ...]) -> None:
    for offset, extra in rows:
        world.seal([world.helpers.Record(offset, extra=extra)], columns=[VALUE, *columns])
        world.drain(world.loader())


def found(world: World, name: str) -> list[Any]:
    return list(read(world.table).sort_by("_offset").column(name).to_pylist())


def merged(world: World) -> list[Any]:
    """The schemas of what was merged."""
    before = set(world.table.rglob("*.parquet"))
    merge(world)
    made = set(world.table.rglob("*.parquet")) - before
    assert made
    return [pq.read_schema(path) for path in made]


def test_a_column_that_came_later(world: World) -> None:
    load(world, [(n, {}) for n in range(FILES_LEAST // 2)])
    load(world, [(n, {"c": n}) for n in range(FILES_LEAST // 2, FILES_LEAST)], ("c", pa.int32(), False))
    wanted = [None] * (FILES_LEAST // 2) + list(range(FILES_LEAST // 2, FILES_LEAST))
    assert found(world, "c") == wanted
    assert all(schema.field("c").nullable for schema in merged(world))
    assert found(world, "c") == wanted
    load(world, [(FILES_LEAST, {})])
    assert found(world, "c") == [*wanted, None]


@pytest.mark.parametrize("fields", [(MAY, MUST), (MUST, MAY)])
def test_fields_within_other_columns(world: World, fields: tuple[Any, Any]) -> None:
    values: list[dict[str, Any]] = []
    for n in range(FILES_LEAST):
        field = fields[2 * n // FILES_LEAST]
        one = pa.struct([field])
        values.append({"a": n if n % 2 or not field.nullable else None})
        extra = {"s": values[-1], "l": [values[-1]], "m": [("k", values[-1])]}
        load(world, [(n, extra)], ("s", one), ("l", pa.list_(one)), ("m", pa.map_(pa.string(), one)))
    for look in range(2):
        assert found(world, "s") == values
        assert found(world, "l") == [[one] for one in values]
        assert found(world, "m") == [[("k", one)] for one in values]
        if not look:
            merged(world)


def test_segments_of_one_batch(world: World) -> None:
    """One without the column, and one with it."""
    load(world, [(0, {})])
    world.seal([world.helpers.Record(1)])
    world.seal([world.helpers.Record(2, extra={"c": 2})], columns=[VALUE, ("c", pa.int32(), False)])
    world.drain(world.loader())
    assert found(world, "c") == [None, None, 2]
    load(world, [(n, {"c": n}) for n in range(3, FILES_LEAST + 1)], ("c", pa.int32(), False))
    merged(world)
    assert found(world, "c") == [None, None, *range(2, FILES_LEAST + 1)]
