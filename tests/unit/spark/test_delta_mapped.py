"""A Delta table whose columns others have mapped: loading without Spark goes on as long as no column is new. And names of
columns that Spark takes in such a table alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from loader_world import World
from test_reading_filters import renamed

from rocketcrew.conf.delta_names import NEW_TABLES_MAPPING
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_spark

pq: Any = pyarrow.parquet
TABLES = ("deltalake",)


def test_the_same_columns(world: World) -> None:
    world.load(1)
    renamed(world.table, "name", "value")
    world.load(2)
    world.load(3)
    world.assert_exact()


def test_a_column_that_segments_do_not_have(world: World) -> None:
    both = [("value", pa.string()), ("more", pa.int64())]
    world.seal([world.helpers.Record(1, extra={"more": 7})], columns=both)
    world.drain(world.loader())
    renamed(world.table, "name", "value")
    world.load(2)
    assert world.rows("_offset", "value", "more") == [(1, "row", 7), (2, "row", None)]


def test_a_column_of_another_name_has_that_in_the_files(world: World) -> None:
    world.load(1)
    before = set(world.table.rglob("*.parquet"))
    renamed(world.table, "name", "col-1")
    world.load(2)
    (file,) = set(world.table.rglob("*.parquet")) - before
    assert pq.read_table(file, partitioning=None).column("col-1").to_pylist() == ["row"]


def test_a_float_of_another_name_has_no_dictionary(world: World) -> None:
    """Spark would not find -0.0 by it where 0.0 is asked for (test_column_bounds.py)."""
    for offset in (1, 2):
        world.seal([world.helpers.Record(offset, extra={"value": 0.0})], columns=[("value", pa.float64())])
        before = set(world.table.rglob("*.parquet"))
        world.drain(world.loader())
        if offset == 1:
            renamed(world.table, "name", "col-1")
    (file,) = set(world.table.rglob("*.parquet")) - before
    group = pq.read_metadata(file).row_group(0)
    columns = {one.path_in_schema: one for one in map(group.column, range(group.num_columns))}
    assert not columns["col-1"].has_dictionary_page
    assert columns["_topic"].has_dictionary_page


def test_a_new_column_needs_spark(world: World) -> None:
    world.load(1)
    renamed(world.table, "name", "value")
    columns = [("value", pa.string()), ("more", pa.int64())]
    world.seal([world.helpers.Record(2, extra={"more": 7})], columns=columns)
    with pytest.raises(LoaderError, match=r"spark\.format = delta.*The segments stay"):
        world.drain(world.loader())


class JobRanError(Exception):
    """A Spark job was asked for."""


class NoSpark:
    """In place of a SparkWriter: a job ends in JobRanError."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def setting(self, name: str, default: str) -> str:
        return self.settings.get(name, default)

    def run(self, *_: object) -> None:
        raise JobRanError


def test_spark_is_not_asked_for_columns_whose_names_it_refuses_and_the_segments_go_in_without_it(world: World) -> None:
    spark: Any = NoSpark()
    by_spark = DeltaTarget(world.table, append_by_spark(spark), lambda: None)
    world.seal([world.helpers.Record(1, extra={"c d": 7})], columns=[("c d", pa.int64())])
    with pytest.raises(
        UsageError, match=r"named 'c d', .*segments stay: load --set spark\.format=deltalake loads them"
    ):
        world.drain(world.loader(target=by_spark))
    world.drain(world.loader())
    assert world.rows("_offset", "c d") == [(1, 7)]
    world.seal([world.helpers.Record(2, extra={"c d": 8})], columns=[("c d", pa.int64())])
    with pytest.raises(JobRanError):  # no column is new
        world.drain(world.loader(target=by_spark))
    world.drain(world.loader())
    world.seal([world.helpers.Record(3)])
    with pytest.raises(UsageError, match="named 'c d', "):
        world.drain(world.loader(target=by_spark))
    renamed(world.table, "name", "value")
    with pytest.raises(JobRanError):
        world.drain(world.loader(target=by_spark))


def test_spark_is_asked_for_any_names_of_a_new_table_where_it_maps_those_of_new_ones(world: World) -> None:
    world.seal([world.helpers.Record(1, extra={"c d": 7})], columns=[("c d", pa.int64())])
    for mode, ends in (("none", UsageError), ("name", JobRanError)):
        spark: Any = NoSpark(**{NEW_TABLES_MAPPING: mode})
        with pytest.raises(ends):
            world.drain(world.loader(target=DeltaTarget(world.table, append_by_spark(spark), lambda: None)))
