"""Small files of a Delta table are merged by levels, replaced ones deleted once a day, and neither changes what is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.delta_upkeep import VACUUM_EVERY_S, VACUUMED, DeltaUpkeep, size_to_merge

TOP = 256 << 20
LOW, MIDDLE = TOP >> 10, TOP >> 5
FEW = 4
"""Files that are many enough to be merged in these tests."""


def same_partition(*sizes: int) -> list[tuple[object, int]]:
    return [(None, size) for size in sizes]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ([], 0),
        (same_partition(*[3_000] * (FAN - 1)), 0),
        (same_partition(*[3_000] * FAN), LOW),
        (same_partition(*[3_000] * (FAN - 1), LOW), MIDDLE),
        (same_partition(*[3_000] * (FAN - 1), MIDDLE, TOP), TOP),
        (same_partition(*[LOW // 2] * FAN), MIDDLE),
        (same_partition(*[MIDDLE // 2] * FAN), TOP),
        (same_partition(*[TOP // 2] * FAN), 0),
        # A table of before: merged to the size at which few are left, in one go.
        (same_partition(*[3_000] * 100_000), TOP),
        ([(partition, 3_000) for partition in range(2) for _ in range(FAN - 1)], 0),
        ([(0, 3_000), *[(1, 3_000)] * FAN], LOW),
    ],
)  # fmt: skip
def test_files_of_one_partition_are_due_when_there_are_many_small_ones(
    files: list[tuple[object, int]], wanted: int
) -> None:
    assert size_to_merge(files, TOP) == wanted


def test_each_row_is_written_a_few_times_however_many_commits_there_are() -> None:
    """Merges as delta-rs makes them: files of less than the size, joined in order as long as they fit."""
    sizes: list[int] = []
    each, commits, written, most = 3_000, 20_000, 0, 0
    for commit in range(1, commits + 1):
        sizes.append(each)
        if commit % FAN == 0 and (size := size_to_merge(same_partition(*sizes), TOP)):
            sizes, rewritten = merged(sizes, size)
            written += rewritten
        most = max(most, len(sizes))
    assert sum(sizes) == each * commits
    assert most <= 4 * FAN
    assert written <= 7 * each * commits


def merged(sizes: list[int], size: int) -> tuple[list[int], int]:
    left = [one for one in sizes if one >= size]
    bins: list[list[int]] = []
    for one in sizes:
        if one < size:
            if not bins or sum(bins[-1]) + one > size:
                bins.append([])
            bins[-1].append(one)
    return left + [sum(one) for one in bins], sum(sum(one) for one in bins if len(one) > 1)


class Table:
    """A Delta table of small commits, and its upkeep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_s = 0.0
        self.commits = 0
        self.upkeep = DeltaUpkeep(path, TOP, lambda: self.now_s, fan=FEW)

    def commit(self, count: int) -> None:
        """Each of one row, followed by what the loader does."""
        for _ in range(count):
            self.commits += 1
            write_deltalake(str(self.path), pa.table({"number": [self.commits]}), mode="append")
            self.upkeep.run(self.opened(), self.commits)

    def opened(self) -> Any:
        return DeltaTable(str(self.path))

    def files(self) -> int:
        """How many the newest version has."""
        return len(self.opened().file_uris())

    def on_disk(self) -> int:
        return len(list(self.path.glob("*.parquet")))

    def check(self) -> None:
        """Each row is there once."""
        numbers = self.opened().to_pyarrow_table().column("number").to_pylist()
        assert sorted(numbers) == list(range(1, self.commits + 1))

    def end_grace(self) -> None:
        self.opened().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})

    def let_a_day_pass(self, but_s: float = 0.0) -> None:
        mark = self.path / STATE_DIR / VACUUMED
        self.now_s = mark.stat().st_mtime + VACUUM_EVERY_S - but_s


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_a_loader_s_table_has_few_files_and_the_same_rows(world: World) -> None:
    upkeep = DeltaUpkeep(world.table, TOP, fan=FEW)
    record = world.helpers.Record
    loaders = [
        world.loader(at=at, target=DeltaTarget(world.table, append_by_delta_rs, lambda: None, upkeep=upkeep))
        for at in (0, 1)
    ]
    for number in range(2 * FEW + 1):
        # The other loader has not seen the merge, and commits after it.
        world.seal([record(number)], at=number % 2)
        world.drain(loaders[number % 2])
    opened = DeltaTable(str(world.table))
    assert len(opened.file_uris()) == 2
    merges = [entry for entry in opened.history() if entry["operation"] == "OPTIMIZE"]
    assert [entry["rocketcrew.upkeep"] for entry in merges] == ["merge", "merge"]
    world.assert_exact()
    batches = opened.to_pyarrow_table(columns=["batch_id"]).column("batch_id").to_pylist()
    assert sorted(batches) == list(range(1, 2 * FEW + 2))
    assert world.target().state().batch == 2 * FEW + 1


def test_streams_are_told_that_a_merge_changes_no_data(table: Table) -> None:
    table.commit(FEW)
    newest = max((table.path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    changed = [found["dataChange"] for each in actions if (found := each.get("add") or each.get("remove"))]
    assert changed == [False] * (FEW + 1)


def test_a_reader_at_work_keeps_the_files_that_it_has_begun_with(table: Table) -> None:
    table.commit(FEW - 1)
    slow = table.opened()
    table.commit(FEW + 1)
    assert table.files() == 1
    assert slow.to_pyarrow_table().num_rows == FEW - 1


def test_what_was_replaced_is_deleted_after_a_day_and_the_grace_of_the_table(table: Table) -> None:
    table.commit(FEW)
    table.let_a_day_pass()
    table.commit(FEW)
    assert table.on_disk() == 2 * FEW + 2, "no file is older than the week that is Delta's grace"
    table.end_grace()
    table.let_a_day_pass(but_s=1)
    table.commit(FEW)
    assert table.on_disk() == 3 * FEW + 3
    table.let_a_day_pass()
    table.commit(FEW)
    assert table.on_disk() == table.files() == 1
    table.check()


def test_a_folder_with_files_of_somebody_else_is_not_vacuumed(table: Table) -> None:
    table.commit(FEW)
    table.end_grace()
    (table.path / "notes.txt").write_text("of somebody")
    table.let_a_day_pass()
    table.commit(FEW)
    assert (table.path / "notes.txt").exists()
    assert table.on_disk() == 2 * FEW + 2


def test_a_merge_that_fails_keeps_nobody_from_loading_and_is_tried_again(table: Table) -> None:
    table.commit(FEW - 1)
    lost = next(table.path.glob("*.parquet"))
    content = lost.read_bytes()
    lost.unlink()
    table.commit(1)
    assert table.files() == FEW
    lost.write_bytes(content)
    table.commit(FEW)
    assert table.files() == 1
    table.check()


def test_partitions_that_spark_has_named_are_not_merged_twice(tmp_path: Path) -> None:
    """Spark writes `day=ü` into the log, delta-rs removes `day=%C3%BC`, and the file stays: its rows would be there twice."""
    table = Table(tmp_path / "table")
    for number in range(FEW):
        rows = pa.table({"number": [number], "day": ["ü"]})
        write_deltalake(str(table.path), rows, mode="append", partition_by=["day"])
    as_spark_names_them(table.path, "ü")
    table.upkeep.run(table.opened(), FEW)
    assert table.files() == FEW
    assert table.opened().to_pyarrow_table().num_rows == FEW


def as_spark_names_them(path: Path, value: str) -> None:
    os.rename(path / f"day={quote(value)}", path / f"day={value}")
    for file in (path / "_delta_log").glob("*.json"):
        written = file.read_text().replace(f"day={quote(quote(value))}", f"day={value}")
        file.write_text(written)


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_compact_refuses_such_partitions_by_name(world: World) -> None:
    target = DeltaTarget(
        world.table, lambda *given: append_by_delta_rs(*given, partition_by=["value"]), lambda: None, ["value"]
    )
    for number in range(2):
        world.seal([world.helpers.Record(number, ["ü"])])
        world.drain(world.loader(target=target))
    for file in (world.table / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace(f"value={quote(quote('ü'))}", "value=ü"))
    os.rename(world.table / f"value={quote('ü')}", world.table / "value=ü")
    with pytest.raises(LoaderError, match=r"value=ü\)\. Let Spark do it: OPTIMIZE"):
        compact(world.table, TOP)
