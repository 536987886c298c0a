"""Tables cut into folders by columns of their rows, and the files that Arrow writes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.cli.reading import dataset
from rocketcrew.conf.columns import Column, check_partition_columns
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.rerun import how_written, load_again, only_rerun
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.making import make_target, make_writer

MIB = 1024 * 1024
COLUMNS = ["_offset", "_seq", "value"]


def loaded(world: World, format_: str, *partition_by: str) -> None:
    """Load what is sealed into the world's table, as the configuration says."""
    config = LoaderConfig(world.roots[0], world.table, format=format_, partition_by=partition_by)
    target = make_target(config, make_writer(config), world.threads)
    world.drain(world.loader(target=target))


def rows(table: Path) -> list[tuple[object, ...]]:
    if (table / "_delta_log").exists():
        found: Any = DeltaTable(str(table)).to_pyarrow_table(columns=COLUMNS)
    else:
        hive = pa.dataset.partitioning(
            pa.schema([pa.field("batch_id", pa.int64()), pa.field("value", pa.string())]), flavor="hive"
        )
        found = pa.dataset.dataset(table, partitioning=hive).to_table(columns=COLUMNS)
    return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_a_folder_for_each_value(world: World, segments: Any, format_: str) -> None:
    for first in (1, 4):
        world.seal([segments.Record(first, ["a", "b/c"]), segments.Record(first + 1, ["a"])])
        loaded(world, format_, "value")
    assert rows(world.table) == [
        (1, 0, "a"), (1, 1, "b/c"), (2, 0, "a"), (4, 0, "a"), (4, 1, "b/c"), (5, 0, "a")
    ]  # fmt: skip
    folders = {file.parent.name for file in world.table.rglob("*.parquet")}
    assert len(folders) == 2
    assert "value=a" in folders
    assert reconcile(table_facts(world.table, ())[0], None).fine
    done = compact(world.table, 128 * MIB)
    assert (done.files_before, done.files_after) == (4, 2)
    assert len(rows(world.table)) == 6
    assert reconcile(table_facts(world.table, ())[0], None).fine
    assert compact(world.table, 128 * MIB).files_after == 2


@pytest.mark.parametrize(("begun", "after"), [(("value",), ()), ((), ("value",))])
@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_a_table_keeps_its_folders(
    world: World, segments: Any, format_: str, begun: tuple[str, ...], after: tuple[str, ...]
) -> None:
    world.seal([segments.Record(1)])
    loaded(world, format_, *begun)
    world.seal([segments.Record(2)])
    with pytest.raises(UsageError, match="set it as the table is, or give the path of a new table"):
        loaded(world, format_, *after)
    loaded(world, format_, *begun)
    assert [row[0] for row in rows(world.table)] == [1, 2]


def test_no_text_and_no_value_are_one_folder(world: World, segments: Any) -> None:
    world.seal([segments.Record(1, ["", None, "x"])])
    loaded(world, "pyarrow", "value")
    found = sorted(file.parent.name for file in world.table.rglob("*.parquet"))
    assert found == ["value=__HIVE_DEFAULT_PARTITION__", "value=x"]


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake", "iceberg"])
def test_rows_without_the_column_are_those_of_no_value(world: World, segments: Any, format_: str) -> None:
    """As those of an earlier version of the handler, whose segments wait."""
    columns = [("value", pa.string()), ("day", pa.string()), ("hour", pa.int32())]
    known = {"day": "mon", "hour": 7}
    for first, second in ((1, 2), (3, None), (4, 5)):
        if second is not None:
            world.seal([segments.Record(second, extra=known)], columns=columns)
        world.seal([segments.Record(first)])
        loaded(world, format_, "day", "hour")
    world.seal([segments.Record(6, extra={"day": "tue"})], columns=columns[:2])
    loaded(world, format_, "day", "hour")
    found = dataset(world.table).to_table(columns=["_offset", "day", "hour"]).to_pylist()
    told = {row["_offset"]: (row["day"], row["hour"]) for row in found}
    assert told == {1: (None, None), 2: ("mon", 7), 3: (None, None), 4: (None, None), 5: ("mon", 7), 6: ("tue", None)}


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_columns_that_cannot_be_folders(world: World, segments: Any, format_: str) -> None:
    columns = [("value", pa.string()), ("share", pa.float64())]
    world.seal([segments.Record(1, extra={"share": 0.5})], columns=columns)
    with pytest.raises(UsageError, match="names 'day', which is no column of the rows: they have value, share"):
        loaded(world, format_, "day")
    with pytest.raises(UsageError, match="column 'share' is double; folders can be made of bigint, boolean, date"):
        loaded(world, format_, "share")
    loaded(world, format_)
    assert [row[0] for row in rows(world.table)] == [1]


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    check_partition_columns(["day"], [Column("day", "date")])
    with pytest.raises(UsageError, match="_topic is no column of the rows, but one that rocketcrew adds"):
        LoaderConfig(Path("s"), Path("t"), partition_by=("_topic",))
    with pytest.raises(UsageError, match="batch_id is no column of the rows"):
        LoaderConfig(Path("s"), Path("t"), partition_by=("batch_id",))
    with pytest.raises(UsageError, match="does not go with spark\\.format = foreach"):
        LoaderConfig(Path("s"), Path("t"), format="foreach", function="m:f", partition_by=("day",))


def written(source: Path, output: Path, table: Any, writer: ArrowWriter) -> Path:
    staged = source / "staged.parquet"
    pq.write_table(table, staged, store_schema=True)
    writer.write([staged], output, (), 1)
    return output


def test_staged_files_become_the_tables_without_a_copy(tmp_path: Path) -> None:
    (file,) = written(tmp_path, tmp_path / "out", pa.table({"a": [1, 2]}), ArrowWriter()).iterdir()
    assert file.samefile(tmp_path / "staged.parquet")


def test_across_file_systems_they_are_copied(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        output = written(tmp_path, Path(other) / "out", pa.table({"a": [1, 2]}), ArrowWriter())
        assert pq.read_table(output).to_pydict() == {"a": [1, 2]}


def test_types_that_spark_reads_otherwise_are_made_plain(tmp_path: Path) -> None:
    odd = pa.table({"a": pa.array([7], pa.uint8()), "b": pa.array(["x"]).dictionary_encode()})
    (file,) = written(tmp_path, tmp_path / "out", odd, ArrowWriter()).iterdir()
    assert pq.read_schema(file).types == [pa.int16(), pa.string()]
    assert pq.read_table(file).to_pydict() == {"a": [7], "b": ["x"]}


def read_folders(output: Path, **columns: pa.DataType) -> list[dict[str, Any]]:
    hive = pa.dataset.partitioning(pa.schema(list(columns.items())), flavor="hive")
    found: Any = pa.dataset.dataset(output, partitioning=hive).to_table()
    rows: list[dict[str, Any]] = found.sort_by("n").to_pylist()
    return rows


def test_more_folders_than_files_can_be_open(tmp_path: Path) -> None:
    table = pa.table({"a": ["x", "y", None, "z", "x", "y"], "n": list(range(6))})
    output = written(tmp_path, tmp_path / "out", table, ArrowWriter(["a"], folders_at_once=2))
    assert len(list(output.rglob("*.parquet"))) == 4, "one in each folder"
    assert read_folders(output, a=pa.string()) == table.sort_by("n").select(["n", "a"]).to_pylist()


def test_folders_have_the_names_that_spark_gives_them(tmp_path: Path) -> None:
    odd = "\x01\n\"#%'*/:=?\\\x7f{[]^"
    texts = ["Zürich", "日本", "a b+c~}", odd, "..", "100%20"]
    table = pa.table({"t": texts, "d": pa.array([1] * 6, pa.date32()), "n": list(range(6))})
    output = written(tmp_path, tmp_path / "out", table, ArrowWriter(["t", "d"]))
    assert {folder.name for folder in output.iterdir()} == {
        "t=Zürich", "t=日本", "t=a b+c~}", "t=..", "t=100%2520",
        "t=%01%0A%22%23%25%27%2A%2F%3A%3D%3F%5C%7F%7B%5B%5D%5E",
    }  # fmt: skip
    assert [row["t"] for row in read_folders(output, t=pa.string(), d=pa.date32())] == texts


def test_a_table_with_folders_of_both_names_is_read_and_compacted(world: World, segments: Any) -> None:
    for first in (1, 2):
        world.seal([segments.Record(first, ["Zürich"])])
        loaded(world, "pyarrow", "value")
    folder = world.table / "batch_id=1" / "value=Zürich"
    folder.rename(folder.with_name("value=Z%C3%BCrich"))  # as Arrow names it
    assert rows(world.table) == [(1, 0, "Zürich"), (2, 0, "Zürich")]
    assert dataset(world.table).to_table().column("value").to_pylist() == ["Zürich"] * 2
    compact(world.table, 128 * MIB)
    assert rows(world.table) == [(1, 0, "Zürich"), (2, 0, "Zürich")]
    assert reconcile(table_facts(world.table, ())[0], None).fine


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_what_was_lost_comes_back_into_its_folder(world: World, segments: Any, tmp_path: Path, format_: str) -> None:
    world.seal([segments.Record(1, ["a"]), segments.Record(2, ["b"])])
    loaded(world, format_, "value")
    (lost,) = world.table.rglob("value=b/*.parquet")
    lost.unlink()
    report = reconcile(table_facts(world.table, ())[0], None)
    segments.write_segment(tmp_path / "private", "w", 1, [[segments.Record(2, ["b"])]])
    with only_rerun(world.table):
        assert load_again(world.table, tmp_path / "private", report.to_reopen(), report.rows_lost) == 1
    found = [file for file in world.table.rglob("*.parquet") if file.parent.name == "value=b"]
    assert len(found) == 1
    assert pq.read_table(found[0], partitioning=None).column("_offset").to_pylist() == [2]


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake", "iceberg"])
def test_a_rerun_knows_which_folders_a_table_has(world: World, segments: Any, format_: str) -> None:
    """By them it judges values that can name none, for their message alone."""
    world.seal([segments.Record(1, ["a"])])
    loaded(world, format_, "value")
    assert how_written(world.table) == (format_, ("value",))
