"""Delta tables are compacted by one at a time, and not where delta-rs would double rows."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.spark.compaction import compact, to_merge
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.table_lock import DELTA_LOCK
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

FILE_BYTES = 1 << 20
pytestmark = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def loaded(world: World, batches: int) -> None:
    for _ in range(batches):
        world.seal([world.helpers.Record(len(world.written))])
        world.drain(world.loader())


def test_of_two_compactions_the_second_is_refused(world: World) -> None:
    loaded(world, 3)

    def begins_too(_point: str) -> None:
        with pytest.raises(LoaderError, match="another compact works on"):
            compact(world.table, FILE_BYTES)

    assert (to_merge(world.table, FILE_BYTES), to_merge(world.table, 1)) == ((3, 3), (0, 3))
    assert compact(world.table, FILE_BYTES, begins_too).files_after == 1
    assert to_merge(world.table, FILE_BYTES) == (0, 1)
    world.assert_exact()
    lock = os.open(world.table / STATE_DIR / DELTA_LOCK, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


def test_a_batch_that_is_loaded_meanwhile_is_kept(world: World) -> None:
    loaded(world, 3)
    assert compact(world.table, FILE_BYTES, lambda _: loaded(world, 1)).files_after == 2
    world.assert_exact()


def test_a_merge_of_somebody_else_in_the_same_moment_is_reported_with_the_way_back(world: World) -> None:
    loaded(world, 3)

    def optimizes(_point: str) -> None:
        DeltaTable(str(world.table)).optimize.compact()

    with pytest.raises(LoaderError, match=r"rows are in it twice now.*restore\(") as caught:
        compact(world.table, FILE_BYTES, optimizes)
    version = int(str(caught.value).rpartition("restore(")[2].rstrip(")"))
    table = DeltaTable(str(world.table))
    assert table.to_pyarrow_table().num_rows == 2 * 3, "delta-rs refuses it now: the check has nothing more to find"
    table.restore(version)
    world.assert_exact()
    loaded(world, 1)
    world.assert_exact()


def test_partitions_that_spark_has_named_beyond_ascii_are_refused(world: World) -> None:
    """Spark writes `value=ü` into the log, delta-rs removes `value=%C3%BC`: the file would stay, and its rows be doubled."""
    target = DeltaTarget(
        world.table, lambda *given: append_by_delta_rs(*given, partition_by=["value"]), lambda: None, ["value"]
    )
    for number in range(2):
        world.seal([world.helpers.Record(number, ["ü"])])
        world.drain(world.loader(target=target))
    as_spark_names_it(world.table, "ü")
    with pytest.raises(LoaderError, match=r"value=ü\)\. Let Spark do it: OPTIMIZE"):
        compact(world.table, FILE_BYTES)
    world.assert_exact()


def as_spark_names_it(table: Path, value: str) -> None:
    (table / f"value={quote(value)}").rename(table / f"value={value}")
    for file in (table / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace(f"value={quote(quote(value))}", f"value={value}"))
