"""Small files of an Iceberg table are merged behind a commit: no row comes, goes or is read twice, whoever else works."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_stories import branches
from loader_world import Crash, World
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.types import LongType

from rocketcrew.spark.iceberg_catalog import Kept, catalog_of, local_path, superseded
from rocketcrew.spark.iceberg_merge import is_plain, mergeable
from rocketcrew.spark.merging import FILES_LEAST
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import MERGED, SNAPSHOT, commit_table

TABLES = ("iceberg",)


def merging(world: World, **options: Any) -> IcebergTarget:
    return IcebergTarget(world.table, catalog_of(world.table, {}), merge_files=True, **options)


def load(world: World, target: Any, *offsets: int, at: int = 0) -> None:
    for offset in offsets:
        world.seal([world.helpers.Record(offset)], at=at)
        world.drain(world.loader(at, target=target))


def files(world: World) -> list[str]:
    return [task.file.file_path for task in world.target().table().scan().plan_files()]


def test_the_files_of_many_batches_become_one_and_all_goes_on(world: World) -> None:
    target = merging(world)
    load(world, target, *range(1, FAN))
    before = world.target().table()
    assert len(files(world)) == FAN - 1
    load(world, target, FAN)
    table = world.target().table()
    assert len(files(world)) == 1
    head = table.current_snapshot()
    assert (head.summary.operation.value, head.summary[MERGED]) == ("replace", str(FAN))
    assert head.summary["total-records"] == str(FAN)
    assert table.properties[SNAPSHOT] == str(head.snapshot_id)
    assert before.scan().to_arrow().num_rows == FAN - 1, "a slow reader has its files"
    world.assert_exact()
    load(world, world.target(), FAN + 1)
    load(world, target, FAN + 2)
    world.assert_exact()
    assert branches(world) == []


def many(world: World) -> int:
    """As many batches of one file each as are worth a merge."""
    load(world, world.target(), *range(1, FILES_LEAST + 1))
    return FILES_LEAST


def at_merge(instead: Callable[..., object]) -> Callable[..., object]:
    """A target's `commit` that does something else in place of the one that merges files."""

    def commit(table: Any, requirements: Any, updates: Any) -> object:
        added = getattr(updates[0], "snapshot", None)
        if added is not None and MERGED in added.summary.additional_properties:
            return instead(table, requirements, updates)
        return commit_table(table, requirements, updates)

    return commit


def on_disk(world: World) -> set[Path]:
    return set((world.table / "data").rglob("*.parquet"))


def named(world: World) -> set[Path]:
    return {local_path(file) for file in files(world)}


def merged_into(world: World) -> int:
    """The number of files, and no row more or less."""
    world.assert_exact()
    return len(files(world))


@pytest.mark.parametrize("made", [False, True])
def test_killed_with_the_files_written_and_after_main_was_moved(world: World, made: bool) -> None:
    def dies(*commit: Any) -> None:
        if made:
            commit_table(*commit)
        raise Crash

    batch = many(world)
    with pytest.raises(Crash):
        merging(world, commit=at_merge(dies)).merge(batch)
    assert merged_into(world) == (1 if made else FILES_LEAST)
    world.seal([world.helpers.Record(1, ["again"]), world.helpers.Record(batch + 1)])
    world.drain(world.loader())
    world.assert_exact()
    merging(world).merge(batch + 1)
    assert merged_into(world) == (2 if made else 1), "a merged file is not merged again at once"


def test_an_answer_that_is_lost_deletes_no_file_that_the_table_has(world: World) -> None:
    def loses(*commit: Any) -> None:
        commit_table(*commit)
        raise OSError("the answer is lost")

    batch = many(world)
    merging(world, commit=at_merge(loses)).merge(batch)
    assert merged_into(world) == 1
    load(world, world.target(), batch + 1)
    world.assert_exact()


def test_of_two_who_merge_the_same_files_one_does_and_the_other_leaves_nothing(world: World) -> None:
    def overtaken(*commit: Any) -> object:
        merging(world).merge(batch)
        return commit_table(*commit)

    batch = many(world)
    olds = on_disk(world)
    merging(world, commit=at_merge(overtaken)).merge(batch)
    assert merged_into(world) == 1
    assert on_disk(world) == olds | named(world)


def test_a_merge_that_a_batch_comes_before_is_lost_and_the_next_one_is_made(world: World) -> None:
    def overtaken(*commit: Any) -> object:
        load(world, world.target(), FILES_LEAST + 1, at=1)
        return commit_table(*commit)

    batch = many(world)
    merging(world, commit=at_merge(overtaken)).merge(batch)
    assert merged_into(world) == FILES_LEAST + 1
    assert on_disk(world) == named(world)
    merging(world).merge(batch + 1)
    assert merged_into(world) == 1


@pytest.mark.parametrize("races", [3])
def test_a_batch_that_a_merge_comes_before_is_made_on_top_of_it(world: World, races: int) -> None:
    for race in range(races):
        first = race * 10 * FILES_LEAST + 1
        load(world, world.target(), *range(first, first + FILES_LEAST))
        done: list[int] = []

        def overtaken(*commit: Any, done: list[int] = done) -> object:
            if not done:
                done.append(1)
                merging(world).merge(world.target().state().batch)
            return commit_table(*commit)

        load(world, IcebergTarget(world.table, catalog_of(world.table, {}), commit=overtaken), first + FILES_LEAST)
        world.assert_exact()
        assert len(files(world)) == 2, "the merged one, and that of the batch"


def test_rows_that_a_user_deletes_meanwhile_stay_deleted(world: World) -> None:
    def overtaken(*commit: Any) -> object:
        world.target().table().delete("_offset = 3")
        return commit_table(*commit)

    batch = many(world)
    merging(world, commit=at_merge(overtaken)).merge(batch)
    assert [row[3] for row in world.rows()] == [offset for offset in range(1, batch + 1) if offset != 3]
    merging(world).merge(batch)
    assert [row[3] for row in world.rows()] == [offset for offset in range(1, batch + 1) if offset != 3]
    load(world, world.target(), batch + 1)
    assert len(world.rows()) == batch


def test_control_a_merge_that_does_not_ask_where_main_is_brings_deleted_rows_back(world: World) -> None:
    def overtaken(table: Any, _requirements: Any, updates: Any) -> object:
        theirs = world.target().table()
        theirs.delete("_offset = 3")
        newer = {"sequence_number": theirs.metadata.last_sequence_number + 1}
        added = updates[0].model_copy(update={"snapshot": updates[0].snapshot.model_copy(update=newer)})
        return commit_table(table, (), (added, *updates[1:]))

    batch = many(world)
    merging(world, commit=at_merge(overtaken)).merge(batch)
    assert 3 in [row[3] for row in world.rows()]


class Counted(IcebergTarget):
    """How often the files of the table are looked at."""

    looks = 0

    def _merged(self, table: Any, marks: Any) -> Any:
        self.looks += 1
        return super()._merged(table, marks)


def test_nothing_is_listed_where_few_files_are_new(world: World) -> None:
    target = Counted(world.table, catalog_of(world.table, {}), merge_files=True)
    load(world, world.target(), *range(1, FILES_LEAST))
    target.merge(FILES_LEAST - 1)
    assert target.looks == 0
    load(world, world.target(), FILES_LEAST)
    target.merge(FILES_LEAST)
    target.merge(FILES_LEAST)
    load(world, world.target(), *range(FILES_LEAST + 1, 2 * FILES_LEAST))
    target.merge(2 * FILES_LEAST - 1)
    assert (target.looks, merged_into(world)) == (1, FILES_LEAST)


def test_a_look_that_found_nothing_is_not_made_again_before_there_are_new_files(world: World) -> None:
    target = Counted(world.table, catalog_of(world.table, {}), ("value",), merge_files=True)
    for offset in range(1, FILES_LEAST + 1):
        world.seal([world.helpers.Record(offset, [f"value {offset}"])])
        world.drain(world.loader(target=target))
    target.merge(FILES_LEAST)
    target.merge(FILES_LEAST)
    assert (target.looks, merged_into(world)) == (1, FILES_LEAST)


def test_files_of_a_partition_are_merged_with_each_other_and_those_of_another_spec_with_none(world: World) -> None:
    by = ("value",)
    target = IcebergTarget(world.table, catalog_of(world.table, {}), by, merge_files=True)
    for offset in range(1, FILES_LEAST + 1):
        world.seal([world.helpers.Record(offset, ["a"]), world.helpers.Record(100 + offset, ["b/ %"])])
        world.drain(world.loader(target=target))
    target.merge(FILES_LEAST)
    assert merged_into(world) == 2
    assert {task.file.partition[0] for task in world.target().table().scan().plan_files()} == {"a", "b/ %"}
    with world.target().table().update_spec() as spec:
        spec.remove_field("value")
    load(world, world.target(), *range(201, 201 + FILES_LEAST))
    merging(world).merge(2 * FILES_LEAST)
    assert merged_into(world) == 3


def test_columns_that_came_later_or_were_widened_are_as_they_were(world: World) -> None:
    columns = [("value", pa.string()), ("n", pa.int32()), ("2 odd/é", pa.list_(pa.string()))]
    load(world, world.target(), 1)
    for offset in range(2, FILES_LEAST + 1):
        world.seal([world.helpers.Record(offset, extra={"n": offset, "2 odd/é": ["x", None]})], columns=columns)
        world.drain(world.loader())
        if offset == 4:
            with world.target().table().update_schema() as schema:
                schema.update_column("n", LongType())
    numbers = [None, *range(2, FILES_LEAST + 1)]
    wanted = ("_offset", "n", "2 odd/é", "batch_id")
    before = world.rows(*wanted)
    assert [row[1] for row in before] == numbers
    merging(world).merge(FILES_LEAST)
    assert (merged_into(world), world.rows(*wanted)) == (1, before)
    assert world.target().table().scan(row_filter="n > 4").to_arrow().num_rows == FILES_LEAST - 4, (
        "by the statistics of the new file"
    )


def test_files_that_pyiceberg_cannot_merge_without_loss_are_let_be(world: World) -> None:
    many(world)
    table = world.target().table()
    assert len(mergeable(table)) == FILES_LEAST
    version = table.metadata.model_copy(update={"format_version": 3})
    assert mergeable(Table(table.name(), version, "", table.io, table.catalog)) == {}
    file = next(iter(table.scan().plan_files())).file
    assert is_plain(file)
    for kept in ({"sort_order_id": 1}, {"key_metadata": b"k"}, {"file_format": FileFormat.ORC}):
        values: dict[str, Any] = {
            "content": DataFileContent.DATA,
            "file_path": "x",
            "file_format": FileFormat.PARQUET,
        } | kept
        assert not is_plain(DataFile.from_args(**values))


def test_snapshots_of_merges_are_expired_with_those_of_batches_and_old_files_where_asked_for(world: World) -> None:
    """The table's `main` and tag are at the newest, so what the state needs is never among them."""
    later = merging(world, now_s=lambda: time.time() + 7 * 3600)
    batch = many(world)
    later.merge(batch)
    load(world, later, *range(batch + 1, FAN + 1))
    table = world.target().table()
    assert len(table.metadata.snapshots) == 1
    assert MERGED in table.current_snapshot().summary.additional_properties
    assert world.target().state().batch == FAN
    assert len(on_disk(world)) == FAN + 2, "nobody has asked for more"
    load(world, later, FAN + 1)
    world.assert_exact()


@pytest.mark.parametrize("tagged", [False, True])
def test_merged_files_are_deleted_when_the_last_snapshot_that_has_them_is_expired(world: World, tagged: bool) -> None:
    vacuuming = merging(world, vacuum=True, now_s=lambda: time.time() + 7 * 3600)
    batch = many(world)
    merging(world).merge(batch)
    if tagged:
        table = world.target().table()
        table.manage_snapshots().create_tag(table.current_snapshot().parent_snapshot_id, "audit").commit()
    vacuuming.expire(batch)
    assert len(on_disk(world)) == batch + 1, "outcomes are not folded yet, so all snapshots stay"
    load(world, world.target(), *range(batch + 1, FAN))
    load(world, vacuuming, FAN)
    assert len(on_disk(world)) == FAN + 2 - (0 if tagged else FILES_LEAST)
    if tagged:
        table = world.target().table()
        assert table.scan(snapshot_id=table.refs()["audit"].snapshot_id).to_arrow().num_rows == batch
    world.assert_exact()


def test_a_merge_is_over_when_all_that_is_left_goes_on_from_it() -> None:
    chain = [Kept(number, number, number, number - 1) for number in range(1, 8)]
    assert superseded([4], chain, {1, 2, 3}) == [4]
    assert superseded([4], chain, {1, 2, 3, 4, 5}) == [4]
    assert superseded([4, 2], chain, {1, 2}) == [2]
    assert superseded([4], chain, {2, 3}) == [], "one before it is left"
    assert superseded([4], [*chain, Kept(9, 9, None, 2)], {1, 2, 3}) == [], "or one beside it"


def in_two_partitions(world: World) -> None:
    """FILES_LEAST files each of `a` and `b`."""
    target = IcebergTarget(world.table, catalog_of(world.table, {}), ("value",))
    for offset in range(1, FILES_LEAST + 1):
        world.seal([world.helpers.Record(offset, ["a"]), world.helpers.Record(100 + offset, ["b"])])
        world.drain(world.loader(target=target))
