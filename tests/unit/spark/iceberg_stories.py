"""What becomes of an Iceberg table in any catalog."""

from __future__ import annotations

import pytest
from loader_world import World

from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.targets.iceberg import SNAPSHOT


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
