"""Merges of small files and expiries that meet a full disk, a damaged file, a lost answer or a server that asks less."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from obstore.store import LocalStore
from structlog.testing import capture_logs

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loader_world import World
from segment_helpers import Helpers
from test_delta_merging import BOUNDS, NOW_MS, files_of, partitioned, rows_of
from test_iceberg_merging import files, in_two_partitions, load, many, merged_into, merging, on_disk

from rocketcrew.spark.delta_merging import merge_small_files
from rocketcrew.spark.merging import FILES_LEAST
from rocketcrew.spark.object_store import Bucket, ObjectPath
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import commit_table


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An Iceberg table."""
    with ThreadPoolExecutor(2) as threads:
        yield World(tmp_path, Helpers(), threads, "iceberg")


@pytest.mark.parametrize("how", ["overtaken", "full for the entry", "full for the rows"])
def test_a_merge_that_is_not_made_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    partitioned(tmp_path, FILES_LEAST)
    before = set(tmp_path.rglob("*.parquet"))
    log = DeltaTable(str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def between(_: str) -> None:
        if how == "overtaken":
            DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.appendOnly": "false"})
        elif how == "full for the entry":
            monkeypatch.setattr("os.fsync", full)

    if how == "full for the rows":
        monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left|File exists"):
        merge_small_files(tmp_path, log, BOUNDS, NOW_MS, between)
    assert set(tmp_path.rglob("*.parquet")) == before


@pytest.mark.parametrize("bucket", [False, True])
def test_a_merge_whose_entry_is_there_or_may_come_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, bucket: bool
) -> None:
    """The entry is made, and the answer is lost: the disk fails behind it, or the client has asked a second time."""
    partitioned(tmp_path, FILES_LEAST)
    before, create = rows_of(tmp_path), ObjectPath.create

    def twice(path: ObjectPath, data: bytes) -> None:
        create(path, data)
        if path.name.endswith(".json"):
            create(path, data)

    def dies(folder: Path) -> None:
        if folder.name == "_delta_log" and any("OPTIMIZE" in one.read_text() for one in folder.glob("*8.json")):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(ObjectPath, "create", twice)
    monkeypatch.setattr("rocketcrew.spark.delta_merging.sync_path", dies)
    place = ObjectPath(Bucket("s3://bucket/table", {}, LocalStore(prefix=str(tmp_path)))) if bucket else tmp_path
    with contextlib.nullcontext() if bucket else pytest.raises(OSError, match=r"Input/output error"):
        merge_small_files(place, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert files_of(tmp_path) == 2
    assert rows_of(tmp_path) == before


def test_a_damaged_file_keeps_no_other_group_from_being_merged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcrew.spark.iceberg_merge.PIECE_BYTES", 1)
    in_two_partitions(world)
    victim = max(file for file in on_disk(world) if file.parent.name == "value=b")
    kept = victim.read_bytes()
    victim.write_bytes(bytes(len(kept)))
    before = on_disk(world)
    with capture_logs() as logs:
        merging(world).merge(FILES_LEAST)
    assert [victim.name in line["error"] for line in logs if line["event"] == "iceberg_files_not_merged"] == [True]
    assert len(files(world)) == FILES_LEAST + 1
    assert len(on_disk(world) - before) == 1, "no half file"
    merging(world).merge(FILES_LEAST)
    assert len(on_disk(world) - before) == 1
    victim.write_bytes(kept)
    world.assert_exact()


def test_a_disk_that_is_full_has_nothing_of_the_merge(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    many(world)
    before = set(world.table.rglob("*.*"))
    for step in (
        "rocketcrew.spark.iceberg_merge.Merge.__init__",
        "pyiceberg.table.update.snapshot.write_manifest_list",
    ):
        with monkeypatch.context() as patched:
            patched.setattr(step, full)
            merging(world).merge(FILES_LEAST)
        assert set(world.table.rglob("*.*")) == before
    merging(world).merge(FILES_LEAST)
    assert merged_into(world) == 1


def expired(world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[int], object]) -> tuple[set[Path], Any]:
    """The data files that an expiry has deleted with the snapshots before a merge, and what it has said. `meanwhile`: is done
    between its look and its commit, with an id of a snapshot before the merge. As by a REST server, which is asked for known
    branches and tags only.
    """
    batch = many(world)
    before = world.target().table().current_snapshot().snapshot_id
    merging(world).merge(batch)
    load(world, world.target(), *range(batch + 1, FAN + 1))
    had = on_disk(world)
    world.target()._outcomes(FAN).tidy(time.time(), 1e9)

    def commit(table: Any, requirements: Any, updates: Any) -> Any:
        meanwhile(before)
        return commit_table(table, requirements, updates)

    monkeypatch.setattr("rocketcrew.spark.targets.iceberg.unchanged", lambda _: ())
    monkeypatch.setattr("rocketcrew.spark.targets.iceberg.commit_table", commit)
    with capture_logs() as logs:
        merging(world, vacuum=True, now_s=lambda: time.time() + 7 * 3600).expire(FAN)
    return had - on_disk(world), logs


def test_files_that_a_branch_names_which_a_server_did_not_ask_for_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def branched(before: int) -> None:
        table = world.target().table()
        table.manage_snapshots().create_branch(before, "fix").commit()
        table = world.target().table()
        table.append(table.scan(limit=1).to_arrow(), branch="fix")

    gone, logs = expired(world, monkeypatch, branched)
    assert gone == set()
    assert [line["files"] for line in logs if line["event"] == "iceberg_files_left"] == [FILES_LEAST]
    table = world.target().table()
    assert len(table.metadata.snapshots) < FAN, "the expiry is made"
    assert table.scan(snapshot_id=table.refs()["fix"].snapshot_id).to_arrow().num_rows == FILES_LEAST + 1


def test_files_of_a_tag_that_a_server_has_removed_with_its_snapshot_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tagged(before: int) -> None:
        world.target().table().manage_snapshots().create_tag(before, "audit").commit()

    gone, _ = expired(world, monkeypatch, tagged)
    assert "audit" not in world.target().table().refs()
    assert gone == set()


@pytest.mark.parametrize("fails", ["", "sync", "unlink"])
def test_the_expiry_is_on_the_disk_before_files_go_and_each_that_stays_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    calls: list[str] = []
    unlink, sync = Path.unlink, IcebergTarget._sync_catalog

    def syncing(target: IcebergTarget) -> None:
        calls.append("sync")
        if fails == "sync" and "committed" in calls:
            raise OSError(5, "Input/output error")
        sync(target)

    def deleting(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            calls.append("unlink")
            if fails == "unlink" and calls.count("unlink") == 1:
                raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(IcebergTarget, "_sync_catalog", syncing)
    monkeypatch.setattr(Path, "unlink", deleting)
    gone, logs = expired(world, monkeypatch, lambda _: calls.append("committed"))
    after = calls[calls.index("committed") + 1 :]
    assert after[0] == "sync"
    assert len(gone) == {"": FILES_LEAST, "sync": 0, "unlink": FILES_LEAST - 1}[fails]
    said = {"": [], "sync": ["iceberg_files_left"], "unlink": ["iceberg_file_not_deleted"]}
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == said[fails]
    assert all(line["file"].endswith(".parquet") for line in logs if line["event"] == "iceberg_file_not_deleted")
    world.assert_exact()
