"""Files of a Delta table that nobody needs go by themselves, after the table's own grace period, under its readers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.outcome_levels import FAN

WEEK_S = 7 * 86_400
pytestmark = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def loaded(world: World, batches: int) -> None:
    loader = world.loader()
    for _ in range(batches):
        world.seal([world.helpers.Record(len(world.written))])
        world.drain(loader)


def aged(path: Path) -> Path:
    then = time.time() - WEEK_S - 3600
    os.utime(path, (then, then))
    return path


def test_what_no_version_names_goes_a_week_later_and_what_readers_may_have_open_stays(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 2)
    reader = DeltaTable(str(table)).to_pyarrow_dataset()  # it has listed the files, and is slow to open them
    compact(table, 1 << 20)
    orphan, young = table / "part-0-dead.parquet", table / "part-1-alive.parquet"
    orphan.write_bytes(b"of a loader that died before its commit")
    young.write_bytes(b"of a loader that is about to commit")
    aged(orphan)
    mine = [aged(path) for path in (table / "_rocketcrew").rglob("*") if path.is_file()]
    loaded(world, 1)
    assert orphan.exists(), "not before the batch whose number is due"
    kept = [path for path in mine if path.exists()]
    loaded(world, 1)
    assert not orphan.exists()
    assert young.exists()
    assert reader.count_rows() == FAN - 2
    assert kept
    world.assert_exact()
    state = world.target().state()
    assert (state.batch, state.loaded.count()) == (FAN, FAN)
    assert len(list(world.target().outcomes())) > 0


def test_the_files_that_a_merge_has_replaced_go_when_the_table_says_so(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 1)
    DeltaTable(str(table)).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    compact(table, 1 << 20)
    assert len(list(table.glob("*.parquet"))) == FAN
    loaded(world, 1)
    assert len(list(table.glob("*.parquet"))) == 2
    world.assert_exact()
