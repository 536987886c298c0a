"""The checkpoint that a merge makes is on the disk when the merge ends; one that a power cut has torn is refused with what to
do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.errors import LoaderError

pytestmark = pytest.mark.parametrize("world", ["deltalake"], indirect=True)
BATCHES = 10
EVERY = BATCHES + 2
"""A merge behind these batches, and behind the version that says so, makes a checkpoint."""


def synced_by(act: Callable[[], object]) -> dict[str, int]:
    """What is synced in this thread while `act` runs, each with its size then."""
    found: dict[str, int] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "fsync":
            fd = frame.f_locals["fd"]
            found[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(before)
    return found


def loaded(world: World, batches: int) -> Path:
    """The log of a table of so many batches."""
    for offset in range(batches):
        world.load(offset)
    return world.table / LOG_DIR


def test_a_checkpoint_of_a_merge_is_synced(world: World) -> None:
    log = loaded(world, BATCHES)
    DeltaTable(str(world.table)).alter.set_table_properties({"delta.checkpointInterval": str(EVERY)})
    synced = synced_by(lambda: compact(world.table, 1 << 20))
    checkpoint = log / f"{EVERY:020d}.checkpoint.parquet"
    assert synced[str(checkpoint)] == checkpoint.stat().st_size
    assert str(log / "_last_checkpoint") in synced
    assert str(log) in synced


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def nothing(_path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("of_checkpoint", "of_note"),
    [
        (emptied, nothing),
        (zeroed, nothing),
        (cut_short, nothing),
        (Path.unlink, nothing),
        (zeroed, emptied),
        (zeroed, Path.unlink),
    ],
)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_torn_checkpoint_is_refused_with_what_to_move_away(
    world: World, of_checkpoint: Callable[[Path], None], of_note: Callable[[Path], None], earlier: int
) -> None:
    log = loaded(world, 2)
    if earlier:
        DeltaTable(str(world.table), version=earlier).create_checkpoint()
    DeltaTable(str(world.table)).create_checkpoint()
    of_checkpoint(log / f"{2:020d}.checkpoint.parquet")
    of_note(log / "_last_checkpoint")
    world.seal([world.helpers.Record(2)])
    with pytest.raises(LoaderError, match="before the log's last checkpoint was synced") as refusal:
        world.loader()
    found = re.search(r"move (.+) to another place", str(refusal.value))
    assert found is not None
    for path in found[1].split(" and "):
        Path(path).rename(world.table.with_name(Path(path).name))
    world.drain(world.loader())
    world.assert_exact()
