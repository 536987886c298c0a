"""A table's folder on this host: what is synced before segments go, and locks that are given back.

Data files are fsynced while they grow: a sync that failed is told, since no later one would say the truth.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loader_world import Crash, World

from rocketcrew.conf.columns import Column
from rocketcrew.durable.files import FileCalls, try_lock
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import Place
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.table_lock import locked_table
from rocketcrew.spark.targets.local_folder import EARLY_SYNC_BYTES, TMP_DIR, LocalFolder, early_sync
from rocketcrew.spark.targets.parquet import ParquetTarget

DEADLINE_S = 20.0


class Disk(FileCalls):
    """One whose next open and first fsync fail, if told so."""

    def __init__(self, *, opens: bool = True, syncs: bool = True) -> None:
        self.opens, self.syncs = opens, syncs
        self.asked = threading.Event()

    def open(self, path: str, flags: int) -> int:
        if not self.opens:
            self.opens = True
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return super().open(path, flags)

    def fsync(self, fd: int) -> None:
        self.asked.set()
        if not self.syncs:
            self.syncs = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def grow(output: Path) -> None:
    with (output / "part-0.parquet").open("wb") as file:
        file.truncate(EARLY_SYNC_BYTES)


def test_a_sync_that_fails_while_files_grow_fails_their_batch(tmp_path: Path) -> None:
    disk = Disk(syncs=False)
    with pytest.raises(OSError, match="Input/output error"), early_sync(tmp_path, disk):
        grow(tmp_path)
        assert disk.asked.wait(DEADLINE_S)


def test_a_file_that_was_moved_meanwhile_is_synced_before_the_commit(tmp_path: Path) -> None:
    disk = Disk(opens=False)
    with early_sync(tmp_path, disk):
        grow(tmp_path)
        assert disk.asked.wait(DEADLINE_S)


class Folders(FileCalls):
    """The first sync of the table's folder with a batch in it ends as `first` says. `left`: sealed segments at each later
    one."""

    def __init__(self, world: World, first: BaseException) -> None:
        self._world = world
        self._first: list[BaseException] = [first]
        self.left: list[int] = []

    def fsync(self, fd: int) -> None:
        if self._first:
            raise self._first.pop()
        self.left.append(len(list((self._world.roots[0] / "ready").iterdir())))


@pytest.mark.parametrize("first", [OSError(errno.EIO, "Input/output error"), Crash()])
def test_the_name_of_a_batch_is_on_the_disk_before_a_later_start_deletes_its_segments(
    world: World, segments: Any, first: BaseException
) -> None:
    calls = Folders(world, first)

    def on_it() -> ParquetTarget:
        return ParquetTarget(LocalFolder(world.table, world.threads, calls), segments.ArrowWriter())

    world.seal([segments.Record(1)], [segments.Record(2)])
    with pytest.raises(type(first)):
        world.drain(world.loader(target=on_it()))
    assert calls.left == []
    world.drain(world.loader(target=on_it()))
    assert calls.left == [1]
    world.assert_exact()
    world.assert_clean()


class Failing(ArrowWriter):
    """Its first batch fails."""

    failed = False

    def write(self, files: Sequence[Path], output: Place, columns: Sequence[Column], bytes_in: int) -> None:
        super().write(files, output, columns, bytes_in)
        if not self.failed:
            self.failed = True
            raise LoaderError("no room")


def test_a_batch_that_failed_locks_the_table_no_more(world: World, segments: Any) -> None:
    loader = world.loader(target=ParquetTarget(LocalFolder(world.table, world.threads), Failing()))
    world.seal([segments.Record(1)])
    with pytest.raises(LoaderError, match="no room"):
        world.drain(loader)
    with locked_table(world.table, fcntl.LOCK_EX, 0.0):
        pass
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_a_batch_whose_state_cannot_be_written_locks_the_table_no_more(world: World, segments: Any) -> None:
    def is_full(point: str) -> None:
        if point == "noted":
            (output,) = (world.table / TMP_DIR).glob("*[!k]")
            output.rename(world.table / TMP_DIR / "gone")

    world.seal([segments.Record(1)])
    with pytest.raises(OSError, match="No such file"):
        world.drain(world.loader(on_point=is_full))
    with locked_table(world.table, fcntl.LOCK_EX, 0.0):
        pass


def test_a_target_that_is_closed_between_writing_and_commit_locks_the_table_no_more(
    world: World, segments: Any
) -> None:
    world.seal([segments.Record(1)])
    world.drain_with_crash("job_done")
    with locked_table(world.table, fcntl.LOCK_EX, 0.0):
        pass
    assert (world.table / TMP_DIR).exists(), "as a kill leaves it, for the next start to sweep"
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_what_is_swept_by_another_start_is_not_written_to_meanwhile(world: World, at_first: Any) -> None:
    """The other one has the lock of a try that was killed, and deletes its folder: ours would be in it."""
    plan = Plan("00000001-1", 1, (), OffsetSet(), ())
    folder = LocalFolder(world.table, world.threads)
    left = world.table / TMP_DIR / plan.id
    left.mkdir(parents=True)
    lock_path = left.with_name(f"{plan.id}.lock")
    held = try_lock(lock_path)
    assert held is not None

    def swept() -> None:
        left.rmdir()
        lock_path.unlink()
        os.close(held)

    with at_first(time.sleep, swept):
        output = folder.prepare(plan)
    output.mkdir()
    assert try_lock(lock_path) is None
    LocalFolder(world.table, world.threads).sweep()
    assert output.exists()
    folder.discard(plan)
    assert list(world.table.iterdir()) == []


def test_two_starts_sweep_at_once(world: World, segments: Any, at_first: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain_with_crash("job_done")
    with at_first(os.open, LocalFolder(world.table, world.threads).sweep):
        LocalFolder(world.table, world.threads).sweep()
    assert list(world.table.iterdir()) == []
