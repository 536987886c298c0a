"""A Parquet file that somebody else has put into a batch's folder: named, never counted, never merged."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts


def test_a_file_of_somebody_else_is_named(world: World) -> None:
    world.load(1)
    world.load(2)
    foreign = world.table / "batch_id=1" / "other.parquet"
    pq.write_table(pa.table({"q": [1]}), foreign)
    facts, broken = table_facts(world.table, ())
    (said,) = broken
    assert said.startswith(f"{foreign} is no file of rocketcrew, as it has no column _group: take it out of the table")
    assert reconcile(facts, None).fine, "what is ours is counted all the same"
    before = sorted(world.table.rglob("*.parquet"))
    with pytest.raises(LoaderError, match=r"other\.parquet is no file of rocketcrew"):
        compact(world.table, 1 << 20)
    assert sorted(world.table.rglob("*.parquet")) == before
    foreign.unlink()
    assert compact(world.table, 1 << 20).files_after == 1
