"""A null list or map, and an empty one, stay what the handler has returned, in each kind of table and whatever merges it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow
import pyiceberg.schema as iceberg
import pytest
from loader_world import World
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from rocketcrew import read
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.iceberg_catalog import catalog_of
from rocketcrew.spark.iceberg_nulls import KeepingProjection, keep_nulls
from rocketcrew.spark.merging import FILES_LEAST
from rocketcrew.spark.targets.iceberg import IcebergTarget

arrow: Any = pyiceberg.io.pyarrow
every_table = pytest.mark.parametrize("world", ["parquet", "deltalake", "iceberg"], indirect=True)
ITEM = pa.struct([("x", pa.int32()), ("y", pa.string())])
ONE = {"x": 1, "y": "a"}
ITEMS = pa.list_(ITEM)
BY_TEXT = pa.map_(pa.string(), ITEM)
SHAPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (ITEMS, [None, [], [ONE, None]]),
    "list_of_lists": (pa.list_(ITEMS), [None, [], [None, [], [ONE, None]]]),
    "struct_of_list": (pa.struct([("l", ITEMS)]), [None, {"l": None}, {"l": []}, {"l": [ONE]}]),
    "map": (BY_TEXT, [None, [], [("a", None), ("b", ONE)]]),
    "map_of_lists": (pa.map_(pa.string(), ITEMS), [None, [], [("a", None), ("b", []), ("c", [ONE])]]),
    "map_of_maps": (pa.map_(pa.string(), BY_TEXT), [None, [], [("a", None), ("b", []), ("c", [("d", ONE)])]]),
    "list_of_maps": (pa.list_(BY_TEXT), [None, [], [None, [], [("a", ONE)]]]),
    "struct": (ITEM, [None, ONE, {"x": None, "y": None}]),
    "texts": (pa.list_(pa.string()), [None, [], ["a", None]]),
    "numbers": (pa.map_(pa.string(), pa.int64()), [None, [], [("a", None)]]),
}
ROWS = max(len(values) for _, values in SHAPES.values())


def value_of(shape: str, row: int) -> Any:
    values = SHAPES[shape][1]
    return values[row % len(values)]


def assert_as_returned(world: World) -> None:
    """By what we read with, and by what others do. The first row and the last are of before and after these columns."""
    for found in (read(world.table).sort_by("_offset").select(list(SHAPES)).to_pylist(), others_rows(world)):
        for shape in SHAPES:
            wanted = [None, *(value_of(shape, row) for row in range(ROWS)), *[None] * (FILES_LEAST - 1 - ROWS)]
            assert [row[shape] for row in found] == wanted, shape


def others_rows(world: World) -> list[dict[str, Any]]:
    return [dict(zip(SHAPES, row[1:], strict=True)) for row in world.rows("_offset", *SHAPES)]


def merge(world: World) -> None:
    if world.format == "iceberg":
        IcebergTarget(world.table, catalog_of(world.table, {}), merge_files=True).merge(FILES_LEAST)
    else:
        compact(world.table, 1 << 20)


@every_table
def test_nested_nulls_through_batches_a_column_that_is_added_and_a_merge(world: World) -> None:
    columns = [("value", pa.string()), *((shape, kind) for shape, (kind, _) in SHAPES.items())]
    world.load(0)
    for row in range(ROWS):
        values = {shape: value_of(shape, row) for shape in SHAPES}
        world.seal([world.helpers.Record(row + 1, extra=values)], columns=columns)
        world.drain(world.loader())
    for offset in range(ROWS + 1, FILES_LEAST):
        world.load(offset)
    assert_as_returned(world)
    files = len(list(world.table.rglob("*.parquet")))
    merge(world)
    assert len(list(world.table.rglob("*.parquet"))) != files
    assert_as_returned(world)


@pytest.mark.parametrize("world", ["iceberg"], indirect=True)
def test_nested_nulls_in_partitions_and_where_names_do_not_tell(world: World) -> None:
    target = IcebergTarget(world.table, catalog_of(world.table, {}), ("value",))
    lists: list[Any] = [None, [], [ONE], None, []]
    records = [world.helpers.Record(row, [f"{row % 2}"], extra={"list": one}) for row, one in enumerate(lists)]
    world.seal(records, columns=[("value", pa.string()), ("list", ITEMS)])
    world.drain(world.loader(target=target))
    with world.target().table().update_schema() as update:
        update.rename_column("list", "renamed")
    assert read(world.table).sort_by("_offset").column("renamed").to_pylist() == lists


def schema_of(kind: pa.DataType) -> iceberg.Schema:
    found: iceberg.Schema = iceberg.assign_fresh_schema_ids(
        arrow._pyarrow_to_schema_without_ids(pa.schema([("column", kind)]))
    )
    return found


FIXED: Any = pa.list_(ITEM, 2)
LARGE: Any = pa.large_list(ITEM)


@pytest.mark.parametrize(
    ("kind", "values"), [*SHAPES.values(), (FIXED, [None, [ONE, ONE], [None, ONE]]), (LARGE, [None, [], [ONE, None]])]
)
def test_slices_are_brought_into_a_schema_as_they_are(kind: pa.DataType, values: list[Any]) -> None:
    keep_nulls()
    schema = schema_of(kind)
    values = values + values[::-1] + values
    (whole,) = pa.table({"column": pa.array(values, kind)}).to_batches()
    for start, rows in ((0, 9), (1, 5), (2, 1), (0, 1), (3, 0)):
        found = arrow._to_requested_schema(schema, schema, whole.slice(start, rows))
        found.validate(full=True)
        assert found.column(0).to_pylist() == values[start : start + rows]


def column(of: Any) -> iceberg.Schema:
    """A schema of one column, with lists and maps of lists around the type."""
    lists = ListType(20, ListType(21, of, element_required=False), element_required=False)
    return iceberg.Schema(NestedField(1, "m", MapType(22, StringType(), 23, lists, value_required=False)))


def test_what_was_renamed_or_came_later_far_within_is_found() -> None:
    keep_nulls()
    before = column(StructType(NestedField(30, "x", LongType())))
    after = column(StructType(NestedField(31, "new", LongType()), NestedField(30, "renamed", LongType())))
    rows = [None, [("a", None), ("b", [None, [], [{"x": 1}, None]])]]
    schema = arrow.schema_to_pyarrow(before)
    found = arrow._to_requested_schema(after, before, pa.RecordBatch.from_pylist([{"m": row} for row in rows], schema))
    renamed = [None, [("a", None), ("b", [None, [], [{"new": None, "renamed": 1}, None]])]]
    assert found.column(0).to_pylist() == renamed


class LosingProjection(KeepingProjection):
    """pyiceberg's own lists in ours."""

    list = KeepingProjection.__bases__[0].list  # type: ignore[attr-defined]


def test_a_projection_that_loses_nulls_ends_the_batch() -> None:
    schema = schema_of(ITEMS)
    rows = pa.RecordBatch.from_pylist([{"column": None}, {"column": []}], pa.schema([("column", ITEMS)]))
    losing = LosingProjection(schema)
    with pytest.raises(LoaderError, match=r"makes 0 nulls of 1 in column column, so"):
        iceberg.visit_with_partner(schema, rows, losing, arrow.ArrowAccessor(schema))
