"""Small files of a Delta table are merged behind a batch: no row comes, goes or changes, and whoever else commits wins."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from loader_world import Crash, World, calls_of, crash_at
from obstore.store import LocalStore
from structlog.testing import capture_logs
from test_delta_compaction import as_spark_names_it
from test_delta_vacuum import with_deletion_vector

from rocketcrew.spark.delta_merging import DRAFT_S, POINTS, merge_small_files, merged_statistics
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.merging import FILES_LEAST, MergeBounds
from rocketcrew.spark.object_store import Bucket, ObjectPath
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.table_lock import only_merge
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

parquet: Any = pyarrow.parquet
BOUNDS = MergeBounds(1 << 20)
NOW_MS = 1_700_000_000_000
worlds = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def merging(world: World) -> DeltaTarget:
    return DeltaTarget(world.table, append_by_delta_rs, lambda: None, merge=BOUNDS)


def loaded(world: World, batches: int, at: int = 0) -> None:
    loader = world.loader(at, target=merging(world))
    for _ in range(batches):
        world.seal([world.helpers.Record(len(world.written))], at=at)
        world.drain(loader)


def files_of(table: Path) -> int:
    return len(DeltaTable(str(table)).file_uris())


def entry_of(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (table / f"_delta_log/{version:020d}.json").read_text().splitlines()]


@worlds
def test_the_loader_with_the_number_that_is_due_merges_and_goes_on(world: World) -> None:
    loaded(world, FAN - 1)
    assert files_of(world.table) == FAN - 1
    opened: Any = DeltaTable(str(world.table))
    reader = opened.to_pyarrow_dataset()
    before = world.state()
    loaded(world, 1)
    assert files_of(world.table) == 1
    assert DeltaTable(str(world.table)).transaction_version("rocketcrew") == before["batch"] + 1
    assert reader.count_rows() == FAN - 1, "a slow reader has its files"
    loaded(world, 2)
    world.assert_exact()
    assert world.state()["batch"] == FAN + 2
    table: Any = DeltaTable(str(world.table)).to_pyarrow_table(columns=["_offset", "batch_id"])
    assert sorted(table.column("batch_id").to_pylist()) == list(range(1, FAN + 3)), "a row keeps its batch"
    (info, *actions) = entry_of(world.table, FAN + 1)
    assert info["commitInfo"]["operation"] == "OPTIMIZE"
    assert {one["dataChange"] for action in actions for one in action.values()} == {False}


@worlds
def test_files_stay_where_nobody_has_asked_for_it(world: World) -> None:
    loader = world.loader(target=DeltaTarget(world.table, append_by_delta_rs, lambda: None))
    for _ in range(FAN):
        world.seal([world.helpers.Record(len(world.written))])
        world.drain(loader)
    assert files_of(world.table) == FAN


@worlds
def test_who_has_another_number_does_not_look(world: World) -> None:
    assert calls_of("get_add_actions", lambda: loaded(world, 2 * FAN + 3)) == 2


@worlds
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_the_table_whole(world: World, point: str) -> None:
    loaded(world, FILES_LEAST)
    with pytest.raises(Crash):
        merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS, crash_at(point))
    world.assert_exact()
    assert files_of(world.table) == (1 if point == "committed" else FILES_LEAST)
    loaded(world, FAN)
    world.assert_exact()


@worlds
def test_the_draft_of_an_entry_that_a_kill_left_is_nobodys(world: World) -> None:
    loaded(world, FILES_LEAST)
    draft = world.table / "_delta_log" / f".{FILES_LEAST + 1:020d}.json.0123.new"
    draft.write_bytes(b'{"remove": {"pa')
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None
    loaded(world, FAN)
    world.assert_exact()


@worlds
def test_the_draft_of_an_entry_that_a_kill_left_goes_after_hours(world: World) -> None:
    loaded(world, FILES_LEAST)
    old, young, others = (
        world.table / "_delta_log" / name
        for name in (f".{4:020d}.json.{1:032x}.new", f".{4:020d}.json.{2:032x}.new", ".00000000000000000004.json.crc")
    )
    for path, age_s in ((old, DRAFT_S + 60), (young, DRAFT_S - 60), (others, DRAFT_S + 60)):
        path.write_bytes(b"{")
        os.utime(path, (NOW_MS / 1000 - age_s,) * 2)
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None
    assert (old.exists(), young.exists(), others.exists()) == (False, True, True)


@worlds
def test_an_interrupted_merge_deletes_what_it_has_written(world: World) -> None:
    loaded(world, FILES_LEAST)
    before = set(world.table.glob("*.parquet"))

    def interrupt(point: str) -> None:
        raise KeyboardInterrupt(point)

    with pytest.raises(KeyboardInterrupt, match="written"):
        merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS, interrupt)
    assert set(world.table.glob("*.parquet")) == before
    world.assert_exact()


def raced(table: Path, other: Any) -> None:
    """What `other` does between a merge's reading and its commit wins; the merge is given up."""
    log = DeltaTable(str(table))

    def between(point: str) -> None:
        if point == "written":
            other()

    with pytest.raises(FileExistsError):
        merge_small_files(table, log, BOUNDS, NOW_MS, between)


@worlds
def test_of_two_merges_of_one_version_one_is_given_up(world: World) -> None:
    loaded(world, FILES_LEAST)
    raced(world.table, lambda: merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS))
    assert files_of(world.table) == 1
    world.assert_exact()


@worlds
def test_a_merge_goes_behind_the_batches_of_another_loader(world: World) -> None:
    loaded(world, FILES_LEAST)
    log = DeltaTable(str(world.table))
    others = merge_small_files(
        world.table, log, BOUNDS, NOW_MS, lambda point: loaded(world, 3, at=1) if point == "written" else None
    )
    assert others is not None
    assert files_of(world.table) == 1 + 3
    assert entry_of(world.table, FILES_LEAST + 4)[0]["commitInfo"]["operation"] == "OPTIMIZE"
    world.assert_exact()
    loaded(world, FAN)
    world.assert_exact()


@worlds
@pytest.mark.parametrize("work", ["_create", "sync_commits"])
def test_what_came_in_between_is_passed_without_a_draft_for_each(world: World, work: str) -> None:
    """Else whoever commits without a pause is never caught up with."""
    loaded(world, FILES_LEAST)
    log = DeltaTable(str(world.table))
    for number in range(3):
        write_deltalake(str(world.table), pa.table({"_offset": [number]}), mode="append", schema_mode="merge")
    made = calls_of(work, lambda: merge_small_files(world.table, log, BOUNDS, NOW_MS))
    assert (made, int(DeltaTable(str(world.table)).version())) == (1, FILES_LEAST + 4)


@worlds
def test_a_batch_with_a_new_column_wins(world: World) -> None:
    """The merged files are of the schema that was read."""
    loaded(world, FILES_LEAST)
    rows = pa.table({"new": [1]})
    raced(world.table, lambda: write_deltalake(str(world.table), rows, mode="append", schema_mode="merge"))
    assert files_of(world.table) == FILES_LEAST + 1


@worlds
def test_a_file_that_is_added_again_is_not_taken_out(world: World) -> None:
    """With other statistics, or other rows in it that count."""
    loaded(world, FILES_LEAST)
    adds = [one for one in entry_of(world.table, FILES_LEAST) if "add" in one]
    entry = world.table / f"_delta_log/{FILES_LEAST + 1:020d}.json"
    raced(world.table, lambda: entry.write_text(json.dumps(adds[0])))
    assert files_of(world.table) == FILES_LEAST


@worlds
def test_an_entry_that_cannot_be_read_is_not_passed(world: World) -> None:
    loaded(world, FILES_LEAST)
    entry = world.table / f"_delta_log/{FILES_LEAST + 1:020d}.json"
    raced(world.table, lambda: entry.write_text('{"add": {"pa'))
    entry.unlink()
    world.assert_exact()


@worlds
def test_a_batch_that_was_planned_before_a_merge_is_in_the_table_once(world: World) -> None:
    """The other way round: the merge is first, and the append that has read the version before goes behind it."""
    loaded(world, FILES_LEAST)
    merges: list[object] = []

    def append(*given: Any) -> None:
        merges.append(merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS))
        append_by_delta_rs(*given)

    world.seal([world.helpers.Record(len(world.written))])
    world.drain(world.loader(target=DeltaTarget(world.table, append, lambda: None)))
    assert len(merges) == 1
    assert merges != [None]
    assert files_of(world.table) == 2
    world.assert_exact()


@worlds
@pytest.mark.parametrize("how", ["delete", "update"])
def test_a_delete_or_update_of_a_user_wins(world: World, how: str) -> None:
    loaded(world, FILES_LEAST)

    def change() -> None:
        log = DeltaTable(str(world.table))
        log.delete("_offset = 3") if how == "delete" else log.update({"value": "'new'"}, predicate="_offset = 3")

    raced(world.table, change)
    rows = [value for offset, value in world.rows("_offset", "value") if offset == 3]
    assert rows == ([] if how == "delete" else ["new"])
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None or how == "delete"
    assert len(world.rows()) == FILES_LEAST - (how == "delete")


@worlds
@pytest.mark.parametrize("how", ["delete", "update"])
def test_a_delete_that_a_merge_has_overtaken_is_refused_and_brings_no_row_twice(world: World, how: str) -> None:
    loaded(world, FILES_LEAST)
    log = DeltaTable(str(world.table))
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None
    try:
        log.delete("_offset = 3") if how == "delete" else log.update({"value": "'new'"}, predicate="_offset = 3")
    except DeltaError:
        assert len(world.rows()) == FILES_LEAST
    else:
        assert len(world.rows()) == FILES_LEAST - (how == "delete")


@worlds
@pytest.mark.parametrize("predicate", [None, "true"])
@pytest.mark.parametrize("how", ["delete", "overwrite"])
def test_what_delta_rs_does_of_all_rows_beside_a_merge(world: World, how: str, predicate: str | None) -> None:
    """Without a predicate it does not look at what was merged meanwhile: the documents warn of that, and can stop where this
    fails for a newer one."""
    loaded(world, FILES_LEAST)
    log: Any = DeltaTable(str(world.table))
    rows = log.to_pyarrow_table().slice(0, 1)
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None
    refused = pytest.raises(DeltaError) if predicate else contextlib.nullcontext()
    with refused:
        if how == "delete":
            log.delete(predicate)
        else:
            write_deltalake(log, rows, mode="overwrite", predicate=predicate)
    assert len(world.rows()) == FILES_LEAST + (how == "overwrite" and not predicate)


@worlds
def test_it_waits_for_compact(world: World) -> None:
    loaded(world, FAN - 1)
    with only_merge(world.table) as alone:
        assert alone
        loaded(world, 1)
    assert files_of(world.table) == FAN
    loaded(world, FAN)
    assert files_of(world.table) < FAN
    world.assert_exact()


@worlds
def test_a_restored_table_is_loaded_and_merged_on(world: World) -> None:
    loaded(world, FAN + 2)
    DeltaTable(str(world.table)).restore(FAN - 1)
    loaded(world, FAN - 2)
    offsets = [offset for (offset,) in world.rows("_offset")]
    assert len(offsets) == len(set(offsets)) == FAN - 1 + FAN - 2
    assert files_of(world.table) < FAN


@worlds
@pytest.mark.parametrize("by", ["Spark", "delta-rs"])
def test_a_merge_in_the_place_of_a_checkpoint_makes_it(world: World, by: str) -> None:
    loaded(world, FILES_LEAST)
    log = DeltaTable(str(world.table))
    merged = log.version() + 2
    log.alter.set_table_properties({"delta.checkpointInterval": str(merged if by == "Spark" else merged + 1)})
    assert merge_small_files(world.table, DeltaTable(str(world.table)), BOUNDS, NOW_MS) is not None
    assert (world.table / f"_delta_log/{merged:020d}.checkpoint.parquet").exists()
    loaded(world, 2)
    world.assert_exact()


class Unanswered:
    """delta-rs's snapshot whose store does not answer behind the commit."""

    def __init__(self, log: DeltaTable, method: str) -> None:
        self._log = log
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise FileExistsError("no answer")
        return getattr(self._log, name)


@worlds
@pytest.mark.parametrize("method", ["update_incremental", "create_checkpoint"])
def test_what_fails_behind_the_commit_is_a_warning_and_the_merge_counts(world: World, method: str) -> None:
    loaded(world, FILES_LEAST)
    log: Any = DeltaTable(str(world.table))
    log.alter.set_table_properties({"delta.checkpointInterval": "1"})
    with capture_logs() as logs:
        done = merge_small_files(world.table, Unanswered(DeltaTable(str(world.table)), method), BOUNDS, NOW_MS)
    assert done is not None
    assert (done.files, done.into, files_of(world.table)) == (FILES_LEAST, 1, 1)
    (said,) = [line for line in logs if line["event"] == "delta_checkpoint_not_made"]
    assert "no answer" in said["error"]
    world.assert_exact()


@worlds
def test_a_table_with_deletion_vectors_is_left_alone(world: World) -> None:
    loaded(world, FAN - 1)
    with_deletion_vector(Path(world.table))
    with capture_logs() as logs:
        loaded(world, 1)
    (said,) = [line for line in logs if line["event"] == "delta_files_not_merged"]
    assert "deletionVectors" in said["error"]
    assert "OPTIMIZE" in said["error"]


@worlds
def test_a_file_that_is_damaged_or_gone_is_named_and_the_batch_stays(world: World) -> None:
    loaded(world, FAN - 1)
    victim = next(iter(world.table.glob("*.parquet")))
    kept = victim.read_bytes()
    victim.write_bytes(kept[:-8])
    with capture_logs() as logs:
        loaded(world, 1)
    (said,) = [line for line in logs if line["event"] == "delta_files_not_merged"]
    assert victim.name in said["error"]
    victim.write_bytes(kept)
    world.assert_exact()


@worlds
def test_an_error_of_any_kind_is_told_and_the_batch_stays(world: World) -> None:
    broken: Any = MergeBounds("none")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    target = DeltaTarget(world.table, append_by_delta_rs, lambda: None, merge=broken)
    with capture_logs() as logs:
        for _ in range(FAN):
            world.seal([world.helpers.Record(len(world.written))])
            world.drain(world.loader(target=target))
    (said,) = [line for line in logs if line["event"] == "delta_files_not_merged"]
    assert "TypeError" in said["error"]
    world.assert_exact()


VALUES = ["a", "a b", "ü", "100%", "x/y", "a=b", "é%20:?#", None]


@pytest.mark.parametrize("spark_names", [False, True])
def test_files_of_partitions_with_any_name_are_merged_within_them(tmp_path: Path, *, spark_names: bool) -> None:
    values = ["ü"] if spark_names else VALUES
    for number in range(FILES_LEAST):
        rows = pa.table({"n": [number] * len(values), "value": pa.array(values, pa.string())})
        write_deltalake(str(tmp_path), rows, mode="append", partition_by=["value"])
    if spark_names:
        as_spark_names_it(tmp_path, "ü")
    before = rows_of(tmp_path)
    done = merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert done is not None
    assert (done.files, done.into) == (FILES_LEAST * len(values), len(values))
    assert rows_of(tmp_path) == before
    assert files_of(tmp_path) == len(values)


def test_in_a_bucket_the_entry_is_a_conditional_put(tmp_path: Path) -> None:
    """The same, by the objects of a store: here one whose objects are files."""
    for number in range(FILES_LEAST):
        write_deltalake(str(tmp_path / "table"), pa.table({"n": [number]}), mode="append")
    place = ObjectPath(Bucket("s3://bucket/table", {}, LocalStore(prefix=str(tmp_path / "table"))))
    before, stale = rows_of(tmp_path / "table"), DeltaTable(str(tmp_path / "table"))
    assert merge_small_files(place, DeltaTable(str(tmp_path / "table")), BOUNDS, NOW_MS) is not None
    assert rows_of(tmp_path / "table") == before
    assert files_of(tmp_path / "table") == 1
    write_deltalake(str(tmp_path / "table"), pa.table({"n": [FILES_LEAST]}), mode="append")
    before = rows_of(tmp_path / "table")
    with pytest.raises(FileExistsError):
        merge_small_files(place, stale, BOUNDS, NOW_MS)
    assert rows_of(tmp_path / "table") == before


def rows_of(table: Path) -> list[str]:
    found: Any = DeltaTable(str(table)).to_pyarrow_table()
    return sorted(map(str, found.to_pylist()))


def typed(number: int) -> dict[str, list[Any]]:
    day = datetime.date(2020, 1, 1 + number)
    return {
        "p": [day, None], "flag": [True, None], "day": [day, None], "n": [number, None], "x": [number / 3, float("nan")],
        "at": [datetime.datetime(1600, 1, 1 + number, 12, 0, 0, 123456, datetime.UTC), None],
        "local": [datetime.datetime.combine(datetime.date(9999, 1, 1 + number), datetime.time()), None],
        "price": [Decimal("1.20") + number, None],
        "text": [f"t{number}", ""], "raw": [b"\0\xff", None], "items": [[number], None], "of": [{"a": number}, None],
    }  # fmt: skip


SCHEMA: Any = pa.schema([
    ("p", pa.date32()), ("flag", pa.bool_()), ("day", pa.date32()), ("n", pa.int16()), ("x", pa.float32()),
    ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("price", pa.decimal128(20, 2)),
    ("text", pa.string()), ("raw", pa.binary()), ("items", pa.list_(pa.int64())), ("of", pa.struct([("a", pa.int64())])),
])  # fmt: skip


def test_values_of_every_type_stay_and_files_are_still_skipped_by_their_statistics(tmp_path: Path) -> None:
    for number in range(FILES_LEAST):
        columns = SCHEMA if number else pa.schema([field for field in SCHEMA if field.name != "text"])
        rows = pa.table(
            {name: values for name, values in typed(number).items() if name in columns.names}, schema=columns
        )
        write_deltalake(str(tmp_path), rows, mode="append", partition_by=["p"], schema_mode="merge")
        same_day = rows.set_column(0, "p", pa.array([datetime.date(2019, 1, 1)] * 2, pa.date32()))
        write_deltalake(str(tmp_path), same_day, mode="append", partition_by=["p"], schema_mode="merge")
    before, schema = rows_of(tmp_path), DeltaTable(str(tmp_path)).schema().to_json()
    assert merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS) is not None
    assert rows_of(tmp_path) == before
    log = DeltaTable(str(tmp_path))
    assert log.schema().to_json() == schema
    adds = [one["add"] for one in entry_of(tmp_path, log.version()) if "add" in one]
    (stats,) = [json.loads(add["stats"]) for add in adds if add["partitionValues"]["p"] == "2019-01-01"]
    assert stats["numRecords"] == 2 * FILES_LEAST
    assert stats["nullCount"] == dict.fromkeys(("flag", "day", "n", "at", "local", "price"), 8) | {
        "x": 0,
        "text": 2,
    }
    assert stats["minValues"]["n"] == 0
    assert stats["maxValues"]["at"] == "1600-01-08T12:00:00.123Z", (
        "as Delta's writers have it, who cut off what is below"
    )
    assert stats["maxValues"]["day"] == "2020-01-08"
    path = next(iter(tmp_path.glob("p=2019*/*.parquet")))
    assert path.exists()
    found: Any = log.to_pyarrow_table(filters=[("n", "=", 5)])
    assert found.num_rows == 2


def test_a_bound_that_one_file_does_not_know_the_merged_one_does_not_say() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("new", pa.int64())])
    known = {"num_records": 2, "null_count": {"a": 0, "b": 1, "new": 0}, "min": {"a": 1, "b": "x", "new": 7},
             "max": {"a": 2, "b": "x", "new": 8}}  # fmt: skip
    nulls = {"num_records": 3, "null_count": {"a": 3, "b": 0}, "min": {"b": "k"}, "max": {"b": "z"}}
    assert merged_statistics(schema, [known, nulls], [{"a", "b", "new"}, {"a", "b"}]) == {
        "numRecords": 5, "nullCount": {"a": 3, "b": 1, "new": 3},
        "minValues": {"a": 1, "b": "k", "new": 7}, "maxValues": {"a": 2, "b": "z", "new": 8},
    }  # fmt: skip
    silent = {"num_records": 3, "null_count": None, "min": None, "max": None}
    said = merged_statistics(schema, [known, silent], [{"a", "b", "new"}, {"a", "b"}])
    assert said == {"numRecords": 5, "nullCount": {"new": 3}, "minValues": {"new": 7}, "maxValues": {"new": 8}}
    nobody: dict[str, Any] = {**silent, "num_records": None}
    assert "numRecords" not in merged_statistics(schema, [known, nobody], [{"a"}, {"a"}])


def test_a_file_that_has_what_the_table_has_not_is_refused(tmp_path: Path) -> None:
    for number in range(FILES_LEAST):
        write_deltalake(str(tmp_path), pa.table({"n": [number]}), mode="append")
    path = next(iter(tmp_path.glob("*.parquet")))
    parquet.write_table(pa.table({"n": [1, 2]}), path)
    with pytest.raises(LoaderError, match=r"has 2 rows, and the table's log says 1"):
        merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    parquet.write_table(pa.table({"N": [1]}), path)
    with pytest.raises(LoaderError, match=r"has the columns N"):
        merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)


def test_a_partitions_column_within_the_files_counts_for_nothing(tmp_path: Path) -> None:
    """Spark has written them so: what the log says of a file is its value of the partition."""
    partitioned(tmp_path, FILES_LEAST)
    before = rows_of(tmp_path)
    for entry in (tmp_path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for add in (line["add"] for line in lines if "add" in line):
            file = tmp_path / add["path"]
            rows = parquet.ParquetFile(file).read()
            parquet.write_table(rows.append_column("p", pa.array(["of the file"] * len(rows))), file)
            add["size"] = file.stat().st_size
        entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows_of(tmp_path) == before
    done = merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert done is not None
    assert done.into == 2
    assert rows_of(tmp_path) == before
    for file in DeltaTable(str(tmp_path)).file_uris():
        assert parquet.ParquetFile(file).schema_arrow.names == ["n"]


def test_a_table_partitioned_by_what_writers_spell_differently_is_left_alone(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))})
    write_deltalake(str(tmp_path), rows, partition_by=["at"])
    with pytest.raises(LoaderError, match=r"partitioned by at, a timestamp"):
        merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)


def partitioned(table: Path, files: int) -> Path:
    """Two partitions with as many files each; the path of one of `b`."""
    for number in range(files):
        write_deltalake(str(table), pa.table({"n": [number] * 2, "p": ["a", "b"]}), mode="append", partition_by=["p"])
    return sorted((table / "p=b").glob("*.parquet"))[3]


def test_a_file_that_cannot_be_read_keeps_no_other_group_from_being_merged(tmp_path: Path) -> None:
    partitioned(tmp_path, FILES_LEAST).write_bytes(b"damaged")
    with capture_logs() as logs:
        done = merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert done is not None
    assert (done.files, done.into) == (FILES_LEAST, 1)
    assert ["p=b" in line["error"] for line in logs if line["event"] == "delta_files_not_merged"] == [True]
    assert files_of(tmp_path) == FILES_LEAST + 1
    before = set(tmp_path.rglob("*.parquet"))
    with pytest.raises(LoaderError, match="p=b"):
        merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert set(tmp_path.rglob("*.parquet")) == before, "and leaves nothing"


def test_a_damaged_file_of_the_group_that_takes_all_that_is_merged_at_once(tmp_path: Path) -> None:
    partitioned(tmp_path, FILES_LEAST)
    for file in (tmp_path / "p=a").glob("*.parquet"):  # the one that is chosen first
        file.write_bytes(b"damaged")
    bounds = MergeBounds(1 << 20, files_at_once=FILES_LEAST)
    done = merge_small_files(tmp_path, DeltaTable(str(tmp_path)), bounds, NOW_MS)
    assert done is not None
    assert (done.files, done.into) == (FILES_LEAST, 1)


NAN = float("nan")


def of_floats(*bounds: tuple[Any, Any]) -> dict[str, Any]:
    """The statistics of files with these least and greatest values."""
    noted = [
        {"num_records": 2, "null_count": {"x": 0}, "min": {"x": least}, "max": {"x": greatest}}
        for least, greatest in bounds
    ]
    said = merged_statistics(pa.schema([("x", pa.float64())]), noted, [{"x"}] * len(noted))
    return {name: said[name] for name in ("minValues", "maxValues")}


@pytest.mark.parametrize("nan", [NAN, "NaN"])
def test_of_a_column_with_a_nan_nothing_is_said(nan: object) -> None:
    """Spark notes it as the greatest value: with a smaller one its rows are not found, and not deleted."""
    for files in ([(1.0, 5.0), (2.0, nan)], [(2.0, nan), (1.0, 5.0)]):
        assert of_floats(*files) == {"minValues": {"x": 1.0}, "maxValues": {}}
    assert of_floats((nan, nan), (1.0, 5.0)) == {"minValues": {}, "maxValues": {}}
    assert of_floats((1.0, 4.0), (1.0, 5.0)) == {"minValues": {"x": 1.0}, "maxValues": {}}, (
        "delta-rs may have left it out"
    )


def test_a_least_value_of_zero_holds_for_both_zeros() -> None:
    for files in ([(0.0, 0.0), (-0.0, -0.0)], [(-0.0, -0.0), (0.0, 0.0)]):
        said = of_floats(*files)
        assert str(said["minValues"]["x"]) == "-0.0"


def in_year(year: int, rows: int = 1) -> Any:
    days = (year - 1970) * 365.2425
    return pa.array([int(days)] * rows, pa.int32()).cast(pa.date32())


def with_dates(table: Path, year: int, **how: Any) -> None:
    for number in range(FILES_LEAST):
        write_deltalake(str(table), pa.table({"n": [number], "day": in_year(year)}), mode="append", **how)


@pytest.mark.parametrize("year", [-221, 10_001])
def test_a_date_that_python_does_not_have_is_no_known_bound(tmp_path: Path, year: int) -> None:
    with_dates(tmp_path, year)
    assert merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS) is not None
    log = DeltaTable(str(tmp_path))
    (stats,) = [json.loads(one["add"]["stats"]) for one in entry_of(tmp_path, log.version()) if "add" in one]
    assert stats["maxValues"] == {"n": FILES_LEAST - 1}
    assert stats["nullCount"] == {"n": 0, "day": 0}
    rows: Any = log.to_pyarrow_table()
    assert rows.column("day").cast(pa.int32()).unique().to_pylist() == in_year(year).cast(pa.int32()).to_pylist()


def test_a_partition_of_such_a_date_stays_as_it_is(tmp_path: Path) -> None:
    for year in (2020, 10_001):
        with_dates(tmp_path, year, partition_by=["day"])
    done = merge_small_files(tmp_path, DeltaTable(str(tmp_path)), BOUNDS, NOW_MS)
    assert done is not None
    assert (done.files, done.into, files_of(tmp_path)) == (FILES_LEAST, 1, FILES_LEAST + 1)
