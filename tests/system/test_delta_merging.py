"""Merging beside Spark: a stream sees each row once, a slow reader keeps its files, and Spark's own commits win."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from delta_jars import delta_jars
from loader_world import World
from segment_helpers import Helpers, Record
from servers import ServerError

from rocketcrew.spark.delta_merging import merge_small_files
from rocketcrew.spark.merging import FILES_LEAST, MergeBounds
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.session import SessionSettings, delta_conf
from rocketcrew.spark.spark_writer import SparkWriter
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs, append_by_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BOUNDS = MergeBounds(1 << 20)
NOW_MS = 1_700_000_000_000
BY_SPARK = 6
"""Batches of each run up to a merge that Spark writes: a commit of its takes as long as dozens of delta-rs. What is merged
has files of both then, as in a table that was filled by one format and then by the other."""


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWriter]:
    try:
        jars = delta_jars()
    except ServerError as error:
        pytest.skip(f"no Delta jars: {error}")
    conf = {
        **delta_conf(jars),
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    settings = SessionSettings(tmp_path_factory.mktemp("spark"), driver_memory="800m", conf=conf, env={**os.environ})
    made = SparkWriter(settings)
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ThreadPoolExecutor(2) as threads:
        yield World(tmp_path, Helpers(), threads, "deltalake")


def loaded(world: World, batches: int, target: DeltaTarget) -> None:
    loader = world.loader(target=target)
    for _ in range(batches):
        world.seal([Record(len(world.written), ["a", "b"])])
        world.drain(loader)


def once(world: World) -> Counter[tuple[int, int]]:
    """Every row that was ever sent, by its key, once."""
    return Counter((record.offset, seq) for record in world.written for seq in range(2))


def keys(rows: Any) -> Counter[tuple[int, int]]:
    return Counter((row["_offset"], row["_seq"]) for row in rows)


def seen(spark: SparkSession, table: str) -> Counter[tuple[int, int]]:
    return keys(spark.table(table).select("_offset", "_seq").collect())


def streamed(spark: SparkSession, world: World, name: str, **options: str) -> Any:
    rows: DataFrame = spark.readStream.format("delta").options(**options).load(str(world.table))
    return rows.writeStream.format("memory").queryName(name).outputMode("append").start()


@pytest.mark.parametrize("format_", ["deltalake", "delta"])
def test_an_open_stream_and_a_slow_reader_see_each_row_once(
    world: World, writer: SparkWriter, format_: str, full_numbers: bool
) -> None:
    if format_ == "deltalake" and not full_numbers:
        pytest.skip("--full-numbers: the other one has files of both writers, most of them of delta-rs")
    spark = writer.spark()
    append = append_by_delta_rs if format_ == "deltalake" else append_by_spark(writer)
    target = DeltaTarget(world.table, append, writer.start, merge=BOUNDS)
    quick = DeltaTarget(world.table, append_by_delta_rs, writer.start, merge=BOUNDS)
    loaded(world, FAN - 2 - BY_SPARK, quick)
    loaded(world, BY_SPARK, target)
    name = f"open_{format_}"
    stream = streamed(spark, world, name, maxFilesPerTrigger="7")
    try:
        stream.processAllAvailable()
        assert seen(spark, name) == once(world)
        loaded(world, 1, target)
        before, held = once(world), DeltaTable(str(world.table)).version()
        spark.conf.set("spark.sql.files.openCostInBytes", str(1 << 40))  # a file a task, read when its turn comes
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 40))
        slow = spark.read.format("delta").load(str(world.table)).toLocalIterator()
        first = next(slow)
        files = len(DeltaTable(str(world.table)).file_uris())
        loaded(world, 1, target)
        assert files >= FAN - 1
        assert len(DeltaTable(str(world.table)).file_uris()) == 1, "merged"
        assert keys([first, *slow]) == before
        stream.processAllAvailable()
        assert seen(spark, name) == once(world)
        loaded(world, FAN - BY_SPARK, quick)
        loaded(world, BY_SPARK + 2, target)
        stream.processAllAvailable()
        assert stream.exception() is None
        assert seen(spark, name) == once(world)
    finally:
        stream.stop()
    late = streamed(spark, world, f"late_{format_}", startingVersion="0")
    try:
        late.processAllAvailable()
        assert seen(spark, f"late_{format_}") == once(world)
    finally:
        late.stop()
    then = spark.read.format("delta").option("versionAsOf", held).load(str(world.table))
    assert keys(then.select("_offset", "_seq").collect()) == before
    now = spark.read.format("delta").load(str(world.table))
    assert keys(now.select("_offset", "_seq").collect()) == once(world)
    world.assert_exact()


def by_spark(spark: SparkSession, table: Path) -> str:
    """A table that Spark has made, with what it alone writes: timestamps of 96 bits, and names that are not escaped."""
    name = f"delta.`{table}`"
    spark.sql(
        f"CREATE TABLE {name} (n INT, part STRING, at TIMESTAMP, price DECIMAL(20,3), text STRING,"
        " items ARRAY<STRUCT<a: INT>>, names MAP<STRING, INT>) USING delta PARTITIONED BY (part)"
    )
    for number in range(FILES_LEAST):
        spark.sql(
            f"INSERT INTO {name} SELECT {number}, part, TIMESTAMP'0800-01-0{number + 1} 12:00:00.123456', {number}.125,"
            f" repeat('long ', 20), array(named_struct('a', {number})), map('k', {number})"
            " FROM VALUES ('ü ö'), ('a%b/c'), (NULL) AS parts(part)"
        )
    return name


def test_tables_that_spark_has_written_keep_their_rows_and_its_changes_win(tmp_path: Path, writer: SparkWriter) -> None:
    spark = writer.spark()
    table = tmp_path / "table"
    name = by_spark(spark, table)

    def rows(where: str = "true") -> list[str]:
        return sorted(str(row) for row in spark.sql(f"SELECT * FROM {name} WHERE {where}").collect())

    before = rows()
    stale = DeltaTable(str(table))

    def deletes(point: str) -> None:
        if point == "written":
            spark.sql(f"UPDATE {name} SET text = 'new' WHERE n = 3")

    with pytest.raises(FileExistsError):
        merge_small_files(table, stale, BOUNDS, NOW_MS, deletes)
    assert len(rows("text = 'new'")) == 3
    assert len(rows()) == len(before) == 3 * FILES_LEAST
    before = rows()
    done = merge_small_files(table, DeltaTable(str(table)), BOUNDS, NOW_MS)
    assert done is not None
    assert done.into == 3
    assert rows() == before
    assert len(rows("at = TIMESTAMP'0800-01-05 12:00:00.123456'")) == 3, "not skipped by the merged statistics"
    assert len(rows("price = 4.125 AND part = 'ü ö'")) == 1
    assert len(rows("part IS NULL")) == FILES_LEAST
    spark.sql(f"DELETE FROM {name} WHERE n = 5")
    assert len(rows()) == 3 * (FILES_LEAST - 1)
    history = [row["operation"] for row in spark.sql(f"DESCRIBE HISTORY {name}").collect()]
    assert history[:2] == ["DELETE", "OPTIMIZE"]
    spark.sql(f"OPTIMIZE {name}")
    assert len(rows()) == 3 * (FILES_LEAST - 1)
