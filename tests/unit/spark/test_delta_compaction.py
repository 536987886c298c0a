"""Delta tables are compacted by one at a time, and whatever others commit meanwhile stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from deltalake import DeltaTable
from loader_world import World
from test_delta_vacuum import with_deletion_vector

from rocketcrew.spark.compaction import DELTA_TRIES, compact, to_merge
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.table_lock import DELTA_LOCK
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

FILE_BYTES = 1 << 20
pytestmark = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def loaded(world: World, batches: int) -> None:
    for _ in range(batches):
        world.seal([world.helpers.Record(len(world.written))])
        world.drain(world.loader())


def test_of_two_compactions_the_second_is_refused(world: World) -> None:
    loaded(world, 3)

    def begins_too(_point: str) -> None:
        with pytest.raises(LoaderError, match="another compact works on"):
            compact(world.table, FILE_BYTES)

    assert (to_merge(world.table, FILE_BYTES), to_merge(world.table, 1)) == ((3, 3), (0, 3))
    assert compact(world.table, FILE_BYTES, begins_too).files_after == 1
    assert to_merge(world.table, FILE_BYTES) == (0, 1)
    world.assert_exact()
    assert not (world.table / STATE_DIR / DELTA_LOCK).exists(), "another user could not open it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("folder", [1234, 0])
def test_what_root_has_merged_the_loader_s_user_reads(world: World, reachable: Path, folder: int) -> None:
    world.table = reachable / "table"
    loaded(world, 3)
    DeltaTable(str(world.table)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    for path in (world.table, *world.table.rglob("*")):
        os.chown(path, 1234, 1235)
    os.chown(world.table, folder, 1235)
    world.table.chmod(0o2770)
    before = os.umask(0o077)
    try:
        assert compact(world.table, FILE_BYTES).files_after == 1
    finally:
        os.umask(before)
    assert list((world.table / LOG_DIR).glob("*.checkpoint.parquet"))
    for status in (path.stat() for path in world.table.rglob("*")):
        assert (status.st_uid, status.st_gid) == (1234, 1235)
        assert status.st_mode & 0o440 == 0o440


def test_files_of_other_rights_are_not_merged_and_the_umask_counts_for_nothing(world: World) -> None:
    """Whoever may read some of the rows may not read them all; who runs it as a member of the group has a umask too."""
    loaded(world, 3)
    for path in world.table.rglob("*"):
        path.chmod(0o2770 if path.is_dir() else 0o660)
    min(world.table.rglob("*.parquet")).chmod(0o640)
    there = set(world.table.rglob("*"))
    before = os.umask(0o077)
    try:
        assert to_merge(world.table, FILE_BYTES) == (2, 3)
        assert compact(world.table, FILE_BYTES).files_after == 2
    finally:
        os.umask(before)
    made = {path.suffix: path.stat().st_mode & 0o777 for path in set(world.table.rglob("*")) - there}
    assert made == {".parquet": 0o660, ".json": 0o660}
    world.assert_exact()


def test_a_kill_before_a_checkpoint_has_its_rights_keeps_out_nobody(world: World, tmp_path: Path) -> None:
    """delta-rs makes it with the rights that the umask leaves to every file."""
    loaded(world, 3)
    for path in (world.table / LOG_DIR).iterdir():
        path.chmod(0o660)
    before = os.umask(0o077)
    try:
        compact(world.table, FILE_BYTES, lambda point: (tmp_path / point).touch())
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("committed", "later")] == [0o660, 0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize(("inherits", "mode"), [(False, 0o600), (True, 0o640)])
def test_what_is_for_the_group_of_a_table_is_not_for_that_of_who_compacts_it(
    world: World, tmp_path: Path, inherits: bool, mode: int
) -> None:
    loaded(world, 3)
    log = world.table / LOG_DIR
    for path in (log, *log.iterdir()):
        os.chown(path, -1, 1234)
        path.chmod(0o640 if path.is_file() else 0o2750 if inherits else 0o750)
    made = tmp_path / "made"
    if inherits:
        made = log / "made"
    before = os.umask(0o077)
    try:
        compact(world.table, FILE_BYTES, lambda _: made.touch())
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == mode


def at_first(do: Callable[[], object]) -> Callable[[str], None]:
    """`do` once, when the first merge has written its files."""
    left = [do]
    return lambda point: None if point != "written" or not left else (left.pop()(), None)[1]


def test_a_batch_that_is_loaded_meanwhile_is_kept(world: World) -> None:
    loaded(world, 3)
    assert compact(world.table, FILE_BYTES, at_first(lambda: loaded(world, 1))).files_after == 2
    world.assert_exact()


def test_where_somebody_else_merges_or_deletes_in_the_same_moment_it_begins_again(world: World) -> None:
    loaded(world, 3)
    compact(world.table, FILE_BYTES, at_first(DeltaTable(str(world.table)).optimize.compact))
    world.assert_exact()
    loaded(world, 3)
    log = DeltaTable(str(world.table))
    assert compact(world.table, FILE_BYTES, at_first(lambda: log.delete("_offset = 3"))).files_after == 1
    assert sorted(world.rows("_offset")) == [(n,) for n in (0, 1, 2, 4, 5)]


def test_it_gives_up_where_others_are_always_faster(world: World) -> None:
    loaded(world, 20)
    deleted: list[int] = []

    def delete(point: str) -> None:
        if point == "written":
            deleted.append(len(deleted))
            DeltaTable(str(world.table)).delete(f"_offset = {deleted[-1]}")

    with pytest.raises(LoaderError, match=rf"was not compacted: {DELTA_TRIES} times others .* Nothing is lost"):
        compact(world.table, FILE_BYTES, delete)
    assert len(deleted) == DELTA_TRIES
    assert sorted(world.rows("_offset")) == [(n,) for n in range(DELTA_TRIES, 20)]


def test_an_error_of_any_kind_is_told_without_a_traceback(world: World) -> None:
    loaded(world, 3)

    def breaks(_point: str) -> None:
        raise OverflowError("date value out of range")

    with pytest.raises(
        LoaderError, match=r"was not compacted: OverflowError: date value out of range\. Nothing is lost"
    ):
        compact(world.table, FILE_BYTES, breaks)
    world.assert_exact()


def test_a_checkpoint_that_cannot_be_made_leaves_the_commit_as_it_is(world: World) -> None:
    loaded(world, 3)
    log = DeltaTable(str(world.table))
    log.alter.set_table_properties({"delta.checkpointInterval": "1"})
    merged = log.version() + 1
    (world.table / f"_delta_log/{merged:020d}.checkpoint.parquet").mkdir()
    done = compact(world.table, FILE_BYTES)
    assert (done.files_before, done.files_after) == (3, 1)
    assert DeltaTable(str(world.table)).version() == merged


def test_what_only_spark_can_merge_is_left_with_what_to_do(world: World) -> None:
    loaded(world, 3)
    with_deletion_vector(world.table)
    for refused in (compact, to_merge):
        with pytest.raises(LoaderError, match=r"was not compacted: the table has .*deletionVectors.*OPTIMIZE"):
            refused(world.table, FILE_BYTES)


def test_partitions_that_spark_has_named_beyond_ascii_are_merged(world: World) -> None:
    """Spark writes `value=ü` into the log, delta-rs `value=%C3%BC`."""

    def append(*given: Any) -> None:
        append_by_delta_rs(*given, partition_by=["value"])

    target = DeltaTarget(world.table, append, lambda: None, ["value"])
    for number in range(2):
        world.seal([world.helpers.Record(number, ["ü"])])
        world.drain(world.loader(target=target))
    as_spark_names_it(world.table, "ü")
    assert compact(world.table, FILE_BYTES).files_after == 1
    world.assert_exact()


def as_spark_names_it(table: Path, value: str) -> None:
    (table / f"value={quote(value)}").rename(table / f"value={value}")
    for file in (table / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace(f"value={quote(quote(value))}", f"value={value}"))
