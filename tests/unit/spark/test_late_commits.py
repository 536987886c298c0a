"""A Delta commit that a server makes when its loader is dead: the next loader knows it for its own plan's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from loader_world import Crash, World

from rocketcrew.spark.convert import Staged
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs


def killed_with_its_commit_under_way(world: World, kept: Path) -> Callable[[], None]:
    """A loader dies in its commit; what is returned makes that commit, as a server does that was slow with it."""
    begun: list[tuple[Plan, Staged]] = []

    def dies(_path: Path, plan: Plan, staged: Staged, _snapshot: object | None) -> None:
        kept.mkdir()
        files = tuple(Path(shutil.copy(file, kept)) for file in staged.files)
        begun.append((plan, replace(staged, files=files)))
        raise Crash

    with pytest.raises(Crash):
        world.drain(world.loader(target=DeltaTarget(world.table, dies, lambda: None)))
    ((plan, staged),) = begun
    snapshot = DeltaTable(str(world.table))
    return lambda: append_by_delta_rs(world.table, plan, staged, snapshot)


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
@pytest.mark.parametrize("point", ["", "planned", "staged", "job_done", "noted"])
def test_a_commit_of_a_dead_loader_that_is_made_late_is_no_other_loader_s(
    world: World, tmp_path: Path, point: str
) -> None:
    record = world.helpers.Record
    world.seal([record(1)])
    world.drain(world.loader())
    world.seal([record(2), record(3)])
    late = killed_with_its_commit_under_way(world, tmp_path / "kept")
    made: list[str] = []

    def on_point(here: str) -> None:
        if here == point and not made:
            made.append(here)
            late()

    loader = world.loader(on_point=on_point, known_batch=1)
    if not point:
        late()
    world.drain(loader)
    assert loader.totals.replanned == 0
    assert world.target().state().batch == 2
    world.seal([record(3, ["again"]), record(4)])
    world.drain(world.loader(known_batch=2))
    assert world.target().state().batch == 3
    world.assert_exact()
    world.assert_clean()


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_a_plan_that_is_dropped_while_its_number_is_free_may_still_be_committed(world: World, tmp_path: Path) -> None:
    record = world.helpers.Record
    world.seal([record(1)])
    world.drain(world.loader())
    gone = world.seal([record(2)])
    late = killed_with_its_commit_under_way(world, tmp_path / "kept")
    gone.unlink()
    loader = world.loader(known_batch=1)
    world.drain(loader)
    assert loader.totals.replanned == 1
    late()
    world.seal([record(3)])
    world.drain(world.loader(known_batch=1))
    assert world.target().state().batch == 3
    world.assert_exact()
    world.assert_clean()
