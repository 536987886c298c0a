"""What others do to an Iceberg table beside the loader: it goes on, or says what puts it right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest
from loader_world import World
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import DecimalType, IntegerType, StringType
from structlog.testing import capture_logs

from rocketcrew import read
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.iceberg_catalog import catalog_of, last_in_order
from rocketcrew.spark.targets.iceberg import IcebergTarget

TABLES = ("iceberg",)


def target_of(world: World, by: tuple[str, ...]) -> IcebergTarget:
    return IcebergTarget(world.table, catalog_of(world.table, {}), by)


@pytest.mark.parametrize(
    ("log", "back"),
    [
        ([10, 20, 30, 20], 30),
        ([10, 20, 30, 40, 41, 20], 41),  # somebody appended twice before the rollback
        ([10, 20, 30, 40, 41, 20, 21], 41),  # and once behind it
        ([10, 20, 30, 40, 32], 40),  # main was moved to the branch of a plan
        ([20, 21], 30),  # the log was cut short
        ([30, 99, 20], 30),  # an expired one
    ],
)
def test_main_is_taken_back_to_where_it_was_last_with_our_commit(log: list[int], back: int) -> None:
    parents = {10: None, 20: 10, 21: 20, 30: 20, 32: 30, 40: 30, 41: 40}
    assert last_in_order(log, 30, 2, parents, {10: 0, 20: 1, 30: 2, 32: 3}) == back


def test_what_others_have_committed_behind_the_batch_comes_back_with_it(world: World) -> None:
    world.load(1)
    before = world.target().table().current_snapshot().snapshot_id
    world.load(2)
    table = world.target().table()
    table.delete("_offset = 1")
    last = world.target().table().current_snapshot().snapshot_id
    table.manage_snapshots().set_current_snapshot(before).commit()
    with pytest.raises(LoaderError, match=rf"its last snapshot with that batch: .*set_current_snapshot\({last}\)"):
        world.target().state()
    world.target().table().manage_snapshots().set_current_snapshot(last).commit()
    world.load(3)
    assert [row[3] for row in world.rows()] == [2, 3]


TRANSFORMS: list[tuple[Any, str]] = [
    (BucketTransform(4), r"bucket\[4\]\(value\)"),
    (TruncateTransform(3), r"truncate\[3\]\(value\)"),
]


@pytest.mark.parametrize(("transform", "said"), TRANSFORMS)
def test_partitions_by_more_than_a_column_are_refused_with_what_takes_them_away(
    world: World, transform: Any, said: str
) -> None:
    world.load(1)
    with world.target().table().update_spec() as spec:
        spec.add_field("value", transform, "piece")
    target = target_of(world, ())
    with pytest.raises(
        UsageError, match=rf"partitioned by {said}, .*ALTER TABLE \S+ DROP PARTITION FIELD piece in Spark"
    ):
        target.state()
    if find_spec("pyiceberg_core") is None:
        with pytest.raises(UsageError, match="only with pyiceberg-core"):
            target_of(world, ("value",)).state()
    with world.target().table().update_spec() as spec:
        spec.remove_field("piece")
    world.load(2)
    assert target.state().batch == 2


Change = Callable[[Any], object]
A = ("a", pa.int32())


def change_schema(world: World, *changes: Change) -> None:
    for change in changes:
        with world.target().table().update_schema(allow_incompatible_changes=True) as update:
            change(update)


def load_a(world: World, offset: int, value: object, kind: pa.DataType = A[1]) -> None:
    world.seal([world.helpers.Record(offset, extra={"a": value})], columns=[("value", pa.string()), ("a", kind)])
    world.drain(world.loader())


def fields(world: World) -> dict[str, tuple[str, bool]]:
    """Type of each column, and whether it is NOT NULL."""
    return {one.name: (str(one.field_type), one.required) for one in world.target().table().schema().fields}


@pytest.mark.parametrize("by", [(), ("value",)])
def test_columns_that_are_not_null_and_identify_rows_stay_so(world: World, by: tuple[str, ...]) -> None:
    world.seal([world.helpers.Record(1, extra={"a": 1})], columns=[("value", pa.string()), A])
    world.drain(world.loader(target=target_of(world, by)))
    required = ("_topic", "_offset", "value", "batch_id")
    change_schema(
        world,
        lambda update: [update.update_column(name, required=True) for name in required],
        lambda update: update.set_identifier_fields("_topic", "_offset"),
    )
    before = fields(world)
    load_a(world, 2, None)
    world.load(3)
    assert fields(world) == before
    assert {name for name, (_, is_required) in before.items() if is_required} == set(required)
    assert len(world.target().table().schema().identifier_field_ids) == 2
    assert read(world.table).sort_by("_offset").column("a").to_pylist() == [1, None, None]


@pytest.mark.parametrize("brought", [True, False])
def test_a_column_that_is_not_null_gets_no_null(world: World, *, brought: bool) -> None:
    load_a(world, 1, 1)
    change_schema(world, lambda update: update.update_column("a", required=True))
    with pytest.raises(
        LoaderError, match=r"column a is NOT NULL there, .* 1 of the rows have null\. .*ALTER COLUMN `a` DROP NOT NULL"
    ):
        load_a(world, 2, None) if brought else world.load(2)
    assert fields(world)["a"] == ("int", True)
    assert world.target().state().batch == 1
    change_schema(world, lambda update: update.make_column_optional("a"))
    world.drain(world.loader())
    assert read(world.table).sort_by("_offset").column("a").to_pylist() == [1, None]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_column_that_was_renamed_or_dropped_comes_back_only_with_rows_that_have_it(
    world: World, *, renamed: bool
) -> None:
    load_a(world, 1, 1)
    change_schema(world, lambda update: update.rename_column("a", "b") if renamed else update.delete_column("a"))
    changed = fields(world)
    with capture_logs() as logs:
        world.load(2)
    assert fields(world) == changed
    assert "iceberg_column_added" not in [line["event"] for line in logs]
    with capture_logs() as logs:
        load_a(world, 3, 3)
    added = [(line["log_level"], line["column"]) for line in logs if line["event"] == "iceberg_column_added"]
    assert added == [("info", "a")]
    rows = read(world.table).sort_by("_offset")
    assert rows.column("a").to_pylist() == [None, None, 3]
    if renamed:
        assert rows.column("b").to_pylist() == [1, None, None]


@pytest.mark.parametrize(
    ("kind", "value", "theirs", "said"),
    [
        (pa.int32(), 7, StringType(), "string there, .* rows have int"),
        (pa.decimal128(10, 2), None, DecimalType(6, 2), r"decimal\(6, 2\) there, .* rows have decimal\(10, 2\)"),
        (pa.struct([("x", pa.int32())]), {"x": 1}, IntegerType(), "int there, .* rows have struct<.*>"),
        (pa.int64(), 7, IntegerType(), "int there, .* rows have long"),
    ],
)
def test_a_column_of_another_type_is_refused_with_what_makes_room_for_ours(
    world: World, kind: pa.DataType, value: object, theirs: Any, said: str
) -> None:
    load_a(world, 1, value, kind)
    change_schema(world, lambda update: update.delete_column("a"), lambda update: update.add_column("a", theirs))
    with pytest.raises(LoaderError, match=rf"column a is {said}\. ALTER TABLE \S+ RENAME COLUMN `a` TO another name"):
        load_a(world, 2, value, kind)
    assert fields(world)["a"] == (str(theirs), False)
    change_schema(world, lambda update: update.rename_column("a", "theirs"))
    world.drain(world.loader())
    assert read(world.table).sort_by("_offset").column("a").to_pylist() == [None, value]


def test_a_table_that_was_dropped_with_its_folder_within_a_batch_is_not_made_anew(world: World) -> None:
    world.load(1)

    def drop(point: str) -> None:
        if point == "job_done":
            catalog = world.target().table().catalog
            catalog.drop_table("default.table")
            catalog.close()
            shutil.rmtree(world.table)

    segment = world.seal([world.helpers.Record(2)])
    with pytest.raises(LoaderError, match=r"was dropped from the catalog .* while a batch was written"):
        world.drain(world.loader(on_point=drop))
    assert world.target().table() is None
    assert segment.exists()
