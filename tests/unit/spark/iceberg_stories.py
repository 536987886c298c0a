"""What becomes of an Iceberg table in any catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from loader_world import Crash, World

from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import BRANCH, SNAPSHOT, Commit, commit_table


def branches(world: World) -> list[str]:
    """Those of plans."""
    return [name for name in world.target().table().refs() if name.startswith(BRANCH)]


def killed_within_the_commit(world: World, target: Callable[[Commit], IcebergTarget], *, made: bool) -> None:
    """The rows are on the branch; the transaction was made, or it was not. The first batch makes the table too.

    `target`: one that makes its transactions by what is given.
    """

    def dies(*commit: Any) -> None:
        if made:
            commit_table(*commit)
        raise Crash

    record = world.helpers.Record
    world.seal([record(1), record(2)])
    with pytest.raises(Crash):
        world.drain(world.loader(target=target(dies)))
    assert len(branches(world)) == (not made)
    world.seal([record(2, ["again"]), record(3)])
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()
    assert (branches(world), world.target().state().batch) == ([], 2)


def rolled_back_and_taken_forward(world: World) -> None:
    """`main` was rolled back by hand: refused, until the command that is named was run."""
    world.load(1)
    before = world.target().table().current_snapshot().snapshot_id
    world.load(2)
    table = world.target().table()
    table.manage_snapshots().set_current_snapshot(before).commit()
    world.seal([world.helpers.Record(3)])
    ours = table.properties[SNAPSHOT]
    with pytest.raises(LoaderError, match=rf"set_current_snapshot\({ours}\)"):
        world.drain(world.loader())
    world.target().table().manage_snapshots().set_current_snapshot(int(ours)).commit()
    world.drain(world.loader())
    world.assert_exact()
