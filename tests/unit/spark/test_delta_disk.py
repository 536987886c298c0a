"""A commit to a Delta table on a disk that is found at a start: read whole before it counts, refused where it is torn."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from loader_world import Crash, World

from rocketcrew.durable.files import FileCalls
from rocketcrew.spark.delta_log import LOG_DIR, entry_of
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

worlds = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def without_rows(path: Path) -> None:
    """Whole pages of zeros in the middle, the footer as it was."""
    data = bytearray(path.read_bytes())
    data[4:100] = bytes(96)
    path.write_bytes(data)


def second_batch_is_made_and_the_loader_killed(world: World, segments: Any) -> Path:
    """The data file of the newest version, the plan of which is not over."""
    world.load(1, 2)
    world.seal([segments.Record(offset) for offset in (3, 4, 5)])
    world.drain_with_crash("renamed")
    table = DeltaTable(str(world.table))
    (path,) = set(table.file_uris()) - set(DeltaTable(str(world.table), version=table.version() - 1).file_uris())
    return Path(path)


def moved_as_the_refusal_says(world: World) -> None:
    """Of a first batch."""
    with pytest.raises(
        LoaderError, match="While nothing else uses the table, move all in its folder but _rocketcrew to another"
    ):
        world.loader()
    away = world.table.with_name("away")
    away.mkdir()
    for path in world.table.iterdir():
        if path.name != STATE_DIR:
            path.rename(away / path.name)


@worlds
def test_a_commit_of_a_killed_loader_counts_when_it_is_whole(world: World, segments: Any) -> None:
    second_batch_is_made_and_the_loader_killed(world, segments)
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


@worlds
@pytest.mark.parametrize("damage", [zeroed, cut_short, without_rows, Path.unlink])
def test_a_torn_commit_is_refused_and_loaded_anew_by_what_the_refusal_says(
    world: World, segments: Any, damage: Callable[[Path], None]
) -> None:
    path = second_batch_is_made_and_the_loader_killed(world, segments)
    damage(path)
    for _ in range(2):  # it stays refused, and nothing is deleted
        with pytest.raises(
            LoaderError, match=f"version 2 of the Delta table .* is not whole on the disk: .*{path.name}"
        ) as refusal:
            world.loader()
    found = re.search(r"move (\S+\.json) and", str(refusal.value))
    assert found is not None
    assert found[1] == str(entry_of(world.table, 2))
    Path(found[1]).unlink()
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


@worlds
def test_a_torn_entry_of_the_log_is_refused_with_what_to_do(world: World, segments: Any) -> None:
    second_batch_is_made_and_the_loader_killed(world, segments)
    zeroed(entry_of(world.table, 2))
    with pytest.raises(LoaderError, match=r"the entry .*2\.json of the log is damaged .* move "):
        world.loader()
    entry_of(world.table, 2).unlink()
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


@worlds
@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_what_only_texts_take_for_the_end_of_a_line_damages_no_entry(world: World, segments: Any, end: str) -> None:
    """It is in the bounds of the columns, which delta-rs writes as they are."""
    world.seal([segments.Record(1, [f"one{end}two"])])
    world.drain_with_crash("renamed")
    assert f"one{end}two" in entry_of(world.table, 1).read_text(encoding="utf-8")
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


@worlds
def test_an_empty_entry_is_torn_too(world: World, segments: Any) -> None:
    """To delta-rs it is a version in which nothing happened, or no table at all."""
    world.seal([segments.Record(1)])
    world.drain_with_crash("renamed")
    for version in (0, 1):
        entry_of(world.table, version).write_bytes(b"")
    moved_as_the_refusal_says(world)
    world.drain(world.loader())
    world.assert_exact()


@worlds
@pytest.mark.parametrize("gone", ["the log's entries", "the log"])
def test_a_first_batch_without_a_log_is_loaded_anew(world: World, segments: Any, gone: str) -> None:
    world.seal([segments.Record(1)])
    world.drain_with_crash("renamed")
    shutil.rmtree(world.table / LOG_DIR)
    if gone == "the log's entries":
        (world.table / LOG_DIR).mkdir()
    world.drain(world.loader())
    world.assert_exact()


@worlds
def test_a_torn_commit_below_somebody_elses_is_refused_too(world: World, segments: Any) -> None:
    path = second_batch_is_made_and_the_loader_killed(world, segments)
    table = DeltaTable(str(world.table))
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
    zeroed(path)
    with pytest.raises(LoaderError, match="Others have committed on top of it"):
        world.loader()


@worlds
def test_files_that_a_later_version_needs_no_more_are_not_asked_for(world: World, segments: Any) -> None:
    path = second_batch_is_made_and_the_loader_killed(world, segments)
    DeltaTable(str(world.table)).optimize.compact()
    path.unlink()
    world.drain(world.loader())
    world.assert_exact()


class Losing(FileCalls):
    """A disk that cannot write what its first fsync of a data file or of an entry is for, and says yes to each later one: as
    Linux does."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self.lost: set[int] = set()
        self.synced: set[int] = set()

    def fsync(self, fd: int) -> None:
        file = os.fstat(fd).st_ino
        if not self.lost and os.readlink(f"/proc/self/fd/{fd}").endswith(self._suffix):
            self.lost.add(file)
            self._kept = os.fdopen(os.dup(fd), "rb")  # so that its number is nobody else's
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.add(file)


def on(world: World, disk: FileCalls) -> DeltaTarget:
    return DeltaTarget(world.table, append_by_delta_rs, lambda: None, calls=disk)


@worlds
@pytest.mark.parametrize("suffix", [".parquet", "00001.json"])
def test_what_a_commit_wrote_on_a_disk_that_refused_it_counts_as_a_copy(
    world: World, segments: Any, suffix: str
) -> None:
    disk = Losing(suffix)
    world.seal([segments.Record(offset) for offset in (1, 2)])
    with pytest.raises(OSError, match="Input/output error"):
        world.drain(world.loader(target=on(world, disk)))
    assert disk.lost
    world.drain(world.loader(target=on(world, disk)))
    world.assert_exact()
    world.assert_clean()
    table = DeltaTable(str(world.table))
    written = [*map(Path, table.file_uris()), entry_of(world.table, 1)]
    assert {path.stat().st_ino for path in written} <= disk.synced - disk.lost


@worlds
def test_another_loader_s_file_that_the_disk_refused_is_copied_at_once(world: World, segments: Any) -> None:
    """The kernel has told the failure to us, and would tell its own loader that all is well."""
    world.load(1)
    (other,) = map(Path, DeltaTable(str(world.table)).file_uris())
    world.seal([segments.Record(2)])
    disk = Losing(".parquet")
    with pytest.raises(OSError, match="Input/output error"):
        world.drain(world.loader(target=on(world, disk)))
    assert other.stat().st_ino in disk.synced - disk.lost
    world.drain(world.loader())
    world.assert_exact()


class Killing(FileCalls):
    """Its loader dies at the first sync of what this commit wrote. `synced`: each with how many segments were there."""

    def __init__(self, world: World, entry: Path) -> None:
        self._world, self._entry = world, entry
        self.dead = False
        self.synced: dict[str, int] = {}

    def fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self._entry.exists() and not self.dead:
            self.dead = True
            raise Crash
        self.synced[path] = len(list((self._world.roots[0] / "ready").iterdir()))


def committed_killed_and_gone_on_from(world: World, segments: Any) -> Killing:
    """A loader dies with its commit in the log and not synced, and another one commits on top of it."""
    world.load(1)
    disk = Killing(world, entry_of(world.table, 2))
    world.seal([segments.Record(2)])
    with pytest.raises(Crash):
        world.drain(world.loader(target=on(world, disk)))
    world.seal([segments.Record(3)], at=1)
    world.drain(world.loader(at=1))
    return disk


@worlds
def test_a_commit_that_others_have_gone_on_from_is_copied_before_its_segments_go(world: World, segments: Any) -> None:
    disk = committed_killed_and_gone_on_from(world, segments)
    before = {path: path.stat().st_ino for path in files_of_version(world, 2)}
    loader = world.loader(target=on(world, disk))
    world.drain(loader)
    assert loader.totals.replanned == 0
    for path, file in before.items():
        assert path.stat().st_ino != file
        assert disk.synced[str(path.with_name(f".{path.name}.new"))] == 1
    world.assert_exact()
    world.assert_clean()


def files_of_version(world: World, version: int) -> list[Path]:
    files = set(DeltaTable(str(world.table), version=version).file_uris())
    files -= set(DeltaTable(str(world.table), version=version - 1).file_uris())
    return [*map(Path, files), entry_of(world.table, version)]


@worlds
def test_a_torn_commit_that_others_have_gone_on_from_keeps_its_segments(world: World, segments: Any) -> None:
    committed_killed_and_gone_on_from(world, segments)
    zeroed(files_of_version(world, 2)[0])
    with pytest.raises(LoaderError, match="Others have committed on top of it"):
        world.loader()
    assert len(list((world.roots[0] / "ready").iterdir())) == 1
