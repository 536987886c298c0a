"""What others do to an Iceberg table beside the loader: it goes on, or says what puts it right."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from loader_world import World
from pyiceberg.transforms import BucketTransform, TruncateTransform

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
