"""A disk with little room: a plan takes what fits, gives way where it does not, and leaves no copies. Exact each time."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from loader_world import Crash, World, crash_at

from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.convert import CopyDisk, stage
from rocketcrew.spark.plan import ROOM_SHARE, Plan, PlanBounds, Take
from rocketcrew.spark.reports import BatchReport
from rocketcrew.spark.segments import read_facts

PLENTY = 1 << 40
SEGMENTS = 8
ROW_BYTES = 30_000
WAIT_S = 30.0
A_MOMENT_S = 0.2
TABLES = ["parquet", "deltalake"]


class Disk(CopyDisk):
    """A disk on which copies get no more than `room` bytes at once; it says that `free` are left. Its write number `full_at`
    is refused too, and so are those after it where it `stays_full`."""

    def __init__(self, room: int = PLENTY, free: int = PLENTY, full_at: int = -1, *, stays_full: bool = False) -> None:
        self.room = room
        self.free = free
        self.full_at = full_at
        self.stays_full = stays_full
        self.writes = 0
        self.refused = 0
        self._open: list[_Copy] = []

    def free_bytes(self, folder: Path) -> int:
        del folder
        return self.free

    def sink(self, file: Path) -> Any:
        self._open.append(_Copy(self, file))
        return self._open[-1]

    def check(self, size: int, folder: Path) -> None:
        at, self.writes = self.writes, self.writes + 1
        used = sum(path.stat().st_size for path in folder.iterdir())
        if used + size > self.room or at == self.full_at or (self.stays_full and 0 <= self.full_at <= at):
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        for file in self._open:
            file.close()


class _Copy(io.FileIO):
    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__(path, "w")
        self._disk = disk
        self._folder = path.parent

    def write(self, data: Any, /) -> int:
        self._disk.check(len(data), self._folder)
        return super().write(data)


@pytest.fixture
def backlog(world: World) -> World:
    """Segments of about equal size, none of whose rows Snappy makes smaller."""
    for offset in range(SEGMENTS):
        world.seal([world.helpers.Record(offset, [os.urandom(ROW_BYTES).hex()])])
    return world


def size_of(world: World) -> int:
    return next((world.roots[0] / "ready").iterdir()).stat().st_size


def loaded(world: World, disk: Disk, **options: Any) -> list[BatchReport]:
    with closing(disk):
        return world.drain(world.loader(disk=disk, **options))


def copies(world: World) -> list[Path]:
    return list((world.roots[0] / "plan").glob("*.staged"))


@pytest.mark.parametrize("fitting", [1, 2, 3, SEGMENTS])
def test_a_plan_takes_no_more_segments_than_there_is_room_for(backlog: World, fitting: int) -> None:
    disk = Disk(free=ROOM_SHARE * size_of(backlog) * fitting)
    reports = loaded(backlog, disk)
    assert [report.segments for report in reports[:-1]] == [fitting] * ((SEGMENTS - 1) // fitting)
    backlog.assert_exact()
    backlog.assert_clean()


def test_one_segment_is_tried_however_little_room_there_seems_to_be(backlog: World) -> None:
    assert len(loaded(backlog, Disk(free=0))) == SEGMENTS
    backlog.assert_exact()


def test_a_plan_that_met_a_full_disk_is_halved_and_later_ones_grow_again(backlog: World) -> None:
    """Each half is tried anew: 8 segments, 4, 2; then 4 again, which still do not fit."""
    disk = Disk(room=3 * size_of(backlog))
    loader = backlog.loader(disk=disk)
    with closing(disk):
        (first, *others) = backlog.drain(loader)
    assert (first.batch, first.segments) == (1, 2)
    assert loader.totals.replanned >= 2
    assert sum(report.segments for report in others) == SEGMENTS - 2
    backlog.assert_exact()
    backlog.assert_clean()


def test_it_takes_all_again_once_there_is_room(backlog: World) -> None:
    disk = Disk(room=3 * size_of(backlog))
    loader = backlog.loader(disk=disk, bounds=PlanBounds(10**6, SEGMENTS * size_of(backlog)))
    with closing(disk):
        assert loader.step(0, at_once=True) is None
        assert loader.step(0, at_once=True) is None
        disk.room = PLENTY
        sizes = [report.segments for report in backlog.drain(loader)]
        assert sizes == [2, 4, 2]
        for offset in range(100, 100 + SEGMENTS):
            backlog.seal([backlog.helpers.Record(offset, ["x"])])
        assert [report.segments for report in backlog.drain(loader)] == [SEGMENTS]
    backlog.assert_exact()


def test_what_a_plan_that_was_dropped_had_mapped_is_given_back_at_once(backlog: World) -> None:
    """Else segments keep their room when they are deleted, until Python collects its garbage."""
    disk = Disk(full_at=1)
    loader = backlog.loader(disk=disk)
    gc.collect()
    gc.disable()
    try:
        with closing(disk):
            assert loader.step(0, at_once=True) is None
        assert disk.refused == 1
        mapped = Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
    assert str(backlog.roots[0] / "ready") not in mapped


class Sizes(NamedTuple):
    total: int
    free: int


@pytest.mark.parametrize(("told", "room"), [(Sizes(0, 0), sys.maxsize), (Sizes(9, 0), 0), (Sizes(9, 7), 7)])
def test_a_mount_that_says_nothing_of_its_size_has_room(tmp_path: Path, told: Sizes, room: int) -> None:
    assert CopyDisk(None, lambda _: told).free_bytes(tmp_path) == room
    assert CopyDisk(tmp_path / "table", lambda _: told).free_bytes(tmp_path) == room


def count_of_writes(world: World) -> int:
    disk = Disk()
    with closing(disk):
        loader = world.loader(disk=disk, on_point=crash_at("staged"))
        with pytest.raises(Crash):
            loader.step(0, at_once=True)
    return disk.writes


def test_whichever_write_of_the_copies_finds_the_disk_full_each_row_is_loaded_once(backlog: World) -> None:
    """A disk that is full for a moment, from the first one to the last; the plan is of the same process, or of one that was
    killed."""
    writes = count_of_writes(backlog)
    assert writes > SEGMENTS
    for at in sorted({0, 1, *range(0, writes, -(-writes // 6)), writes - 2, writes - 1}):
        disk = Disk(full_at=at)
        reports = loaded(backlog, disk)
        assert disk.refused == 1
        assert [report.segments for report in reports] == [SEGMENTS // 2] * 2
        backlog.assert_exact()
        backlog.assert_clean()
        for _ in range(SEGMENTS):
            backlog.seal([backlog.helpers.Record(len(backlog.written), [os.urandom(ROW_BYTES).hex()])])
        if at % 2:
            backlog.drain_with_crash("staged")


def test_one_segment_that_does_not_fit_ends_the_loader_leaves_no_copies_and_loses_nothing(backlog: World) -> None:
    for at in range(3):
        with pytest.raises(OSError, match="No space left"):
            loaded(backlog, Disk(full_at=at, stays_full=True))
        assert copies(backlog) == []
        assert len(list((backlog.roots[0] / "ready").iterdir())) == SEGMENTS
    loaded(backlog, Disk())
    backlog.assert_exact()
    backlog.assert_clean()


@pytest.mark.parametrize("point", ["planned", "staged", "job_done", "noted"])
def test_a_plan_of_a_killed_loader_that_has_no_room_any_more_is_made_smaller(backlog: World, point: str) -> None:
    backlog.drain_with_crash(point)
    reports = loaded(backlog, Disk(free=ROOM_SHARE * size_of(backlog) * 2))
    assert [(report.batch, report.segments) for report in reports] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    backlog.assert_exact()
    backlog.assert_clean()


@pytest.mark.parametrize("point", ["renamed", "done_marked", "deleting"])
def test_a_plan_that_was_committed_is_finished_whatever_room_there_is(backlog: World, point: str) -> None:
    backlog.drain_with_crash(point)
    assert loaded(backlog, Disk(free=0, room=0)) == []
    backlog.assert_exact()
    backlog.assert_clean()


def test_what_a_target_may_have_had_that_cannot_tell_is_given_it_again_and_nothing_else(backlog: World) -> None:
    """With other rows under the same number the rest would come under the next one, and be there twice."""
    backlog.drain_with_crash("job_done", exact=False)
    (frozen,) = (backlog.roots[0] / "plan").glob("*.json")
    with pytest.raises(OSError, match="No space left"):
        loaded(backlog, Disk(room=3 * size_of(backlog), free=0), exact=False)
    assert copies(backlog) == []
    assert frozen.exists()
    (report,) = loaded(backlog, Disk(free=0), exact=False)
    assert report.segments == SEGMENTS
    backlog.assert_exact()
    backlog.assert_clean()


def test_a_new_plan_for_such_a_target_is_made_smaller(backlog: World) -> None:
    assert loaded(backlog, Disk(room=3 * size_of(backlog)), exact=False)[0].segments == 2
    backlog.assert_exact()


def test_a_part_that_fails_is_told_when_no_other_is_written_any_more(world: World, tmp_path: Path) -> None:
    """Else who removes the folder would meet files that are still made in it."""
    text = pa.string()
    narrow = world.seal([world.helpers.Record(1)])
    wide = world.seal([world.helpers.Record(2, extra={"more": "x"})], columns=[("value", text), ("more", text)])
    facts = {path.name: read_facts(path) for path in (narrow, wide)}
    columns = facts[wide.name].columns
    plan = Plan("p", 1, tuple(Take(name, None) for name in facts), OffsetSet(), columns)
    other = _Slow()
    with closing(other), pytest.raises(OSError, match="No space left"):
        stage(plan, facts, world.roots[0] / "ready", tmp_path / "copies", world.threads, 2, disk=other)
    other.told.set()
    assert other.ended.is_set()


class _Slow(Disk):
    """One part is refused, when the other has begun; that one writes on until the failure is told, or for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.told, self.ended = Event(), Event(), Event()

    def sink(self, file: Path) -> Any:
        if file.stem.endswith("0"):
            self.begun.wait(WAIT_S)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.begun.set()
        if not self.told.wait(A_MOMENT_S):
            self.ended.set()
        return super().sink(file)
