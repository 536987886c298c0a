"""Loaders that plan while others commit and a compaction merges: a number is nobody's twice, and no record either.

The order of events is a seed's; a race that fails is run again by that seed alone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts

MIB = 1024 * 1024
ONE_SEGMENT = PlanBounds(1, 1)
FREE = ("planned", "staged", "renamed", "done_marked", "deleting", "finished")
"""Points at which a loader does not hold the table's folder, so that a compaction may exchange it."""


def data_bytes(world: World, batch: int) -> int:
    return sum(path.stat().st_size for path in world.table.glob(f"batch_id={batch}/*.parquet"))


@pytest.mark.parametrize("point", ["planned", "staged"])
def test_a_number_that_somebody_planned_is_not_freed_by_a_compaction(world: World, segments: Any, point: str) -> None:
    """Batch 2 is planned; another loader commits 2 and 3, of the same records; they are merged into 3, and 2 is no folder."""
    world.seal([segments.Record(0)], at=1)
    world.drain(world.loader(at=1))
    intruded: list[str] = []

    def intrude(here: str) -> None:
        if here == point and not intruded:
            intruded.append(here)
            world.seal([segments.Record(n) for n in range(10, 20)], at=1)
            world.seal([segments.Record(n) for n in range(20, 30)], at=1)
            world.drain(world.loader(at=1, bounds=ONE_SEGMENT))
            assert compact(world.table, MIB).files_after == 1
            assert not (world.table / "batch_id=2").exists()

    world.seal([segments.Record(n) for n in range(15, 40)])
    loader = world.loader(on_point=intrude)
    world.drain(loader)
    assert intruded
    world.assert_exact()
    assert loader.totals.replanned == 1
    assert world.state()["batch"] == 4
    assert reconcile(table_facts(world.table, ())[0], None).fine


def test_a_loader_that_runs_on_sees_batches_whose_numbers_were_merged_away(world: World, segments: Any) -> None:
    """It knew batch 1, which is too large to be merged; 2 is gone, and 3 is the newest."""
    world.seal([segments.Record(n, [f"{n * 7919:x}"]) for n in range(2000)])
    loader = world.loader()
    world.drain(loader)
    for start in (3000, 4000):
        world.seal([segments.Record(start)], at=1)
        world.drain(world.loader(at=1))
    assert compact(world.table, data_bytes(world, 1) - 1).files_after == 2
    assert sorted(path.name for path in world.table.iterdir()) == ["batch_id=1", "batch_id=3"]
    world.seal([segments.Record(3000, ["again"]), segments.Record(5000)])
    (report,) = world.drain(loader)
    assert (report.batch, report.rows) == (4, 1)
    world.assert_exact()


def test_a_plan_is_of_the_state_that_it_was_made_on(world: World, segments: Any, tmp_path: Path) -> None:
    """The table is exchanged by hand for another with as many batches: the number alone would fit. Nothing is written into
    it, and the next look says what happened."""
    other = World(tmp_path / "other", segments, world.threads)
    for one in (world, other):
        one.seal([segments.Record(0)], at=1)
        one.drain(one.loader(at=1))

    def swap(here: str) -> None:
        if here == "planned" and other.table.exists():
            world.table.rename(tmp_path / "away")
            other.table.rename(world.table)

    state = other.table / "batch_id=1" / "_loaded.json"
    state.write_text(state.read_text().replace('"plan":"', '"plan":"x'))
    world.seal([segments.Record(1)])
    loader = world.loader(on_point=swap)
    with pytest.raises(LoaderError, match="its batch 1 is not the one that it had reached"):
        world.drain(loader)
    assert (world.target().state().batch, loader.totals.replanned) == (1, 1)


@pytest.mark.parametrize("seed", range(10))
def test_loaders_and_compactions_in_any_order_leave_each_record_once(world: World, segments: Any, seed: int) -> None:
    dice = Random(seed)
    loaders: list[Loader] = []
    depth = 0

    def seal(at: int) -> None:
        start = dice.randrange(60)
        world.seal([segments.Record(n) for n in range(start, start + dice.randint(1, 12))], at=at)

    def happen(own: int, here: str) -> None:
        nonlocal depth
        if depth or dice.random() < 0.6:
            return
        depth += 1
        other = loaders[1 - own]
        for _ in range(dice.randint(1, 3)):
            seal(1 - own)
            other.step(10**13, at_once=True)
        if here in FREE and dice.random() < 0.7:
            compact(world.table, dice.choice((2_000, 6_000, MIB)))
        depth -= 1

    loaders += (world.loader(at=at, bounds=ONE_SEGMENT, on_point=partial(happen, at)) for at in (0, 1))
    seal(0)
    loaders[0].step(10**13, at_once=True)
    for _ in range(8):
        at = dice.randrange(2)
        seal(at)
        loaders[at].step(10**13, at_once=True)
    for loader in loaders:
        world.drain(loader)
    offsets = world.rows("_offset")
    assert len(offsets) == len(set(offsets))
    assert set(offsets) == {(record.offset,) for record in world.written}
    assert reconcile(table_facts(world.table, ())[0], None).fine
    compact(world.table, MIB)
    assert world.rows("_offset") == offsets
