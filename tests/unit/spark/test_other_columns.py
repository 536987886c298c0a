"""Segments and the table's columns: widened, refused at the start, or set aside; and what a table says of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_world import WIDE, World

from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.table_columns import table_columns
from rocketcrew.spark.work import Work

ONE_ROW = PlanBounds(1, 1 << 30)


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_narrower_rows_are_widened_and_the_table_keeps_its_type(world: World, segments: Any) -> None:
    """A reader that takes the types of one file for those of all sees every row."""
    wide, narrow = [("value", pa.string()), ("n", pa.int64())], [("value", pa.string()), ("n", pa.int16())]
    world.seal([segments.Record(1, extra={"n": 2**40})], columns=wide)
    world.drain(world.loader())
    world.seal([segments.Record(2, extra={"n": 7})], columns=narrow)
    loader = world.loader()
    assert loader.misfits(loader.columns())[0] == {}
    world.drain(loader)
    assert loader.totals.quarantined == 0
    assert world.rows("_offset", "n") == [(1, 2**40), (2, 7)]
    files = [pq.read_schema(path).field("n").type for path in sorted(world.table.rglob("*.parquet"))]
    assert files == [pa.int64(), pa.int64()]


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_a_batch_of_both_types_has_the_wider_one(world: World, segments: Any) -> None:
    world.seal([segments.Record(1, extra={"n": 2**40})], columns=[("value", pa.string()), ("n", pa.int64())])
    world.seal([segments.Record(2, extra={"n": 7})], columns=[("value", pa.string()), ("n", pa.int8())])
    (report,) = world.drain(world.loader())
    assert report.rows == 2
    assert world.rows("_offset", "n") == [(1, 2**40), (2, 7)]


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
@pytest.mark.parametrize("bounds", [WIDE, ONE_ROW])
def test_a_roll_back_of_a_narrower_column_is_loaded_whole(world: World, segments: Any, bounds: PlanBounds) -> None:
    """Three versions of a handler, sealed before anything is loaded: in one batch and in three (workers/table_fit.py)."""
    for offset, kind, value in ((1, pa.int64(), 2**40), (2, pa.int32(), 7), (3, pa.int64(), 2**41)):
        world.seal([segments.Record(offset, extra={"n": value})], columns=[("value", pa.string()), ("n", kind)])
    loader = world.loader(bounds=bounds)
    assert loader.misfits(loader.columns())[0] == {}
    assert len(world.drain(loader)) == (1 if bounds is WIDE else 3)
    assert loader.totals.quarantined == 0
    assert world.rows("_offset", "n") == [(1, 2**40), (2, 7), (3, 2**41)]


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
@pytest.mark.parametrize("bounds", [WIDE, ONE_ROW])
def test_a_wider_column_behind_a_narrower_one_does_not_fit_and_is_kept(
    world: World, segments: Any, bounds: PlanBounds
) -> None:
    for offset, kind in ((1, pa.int32()), (2, pa.int64())):
        world.seal([segments.Record(offset, extra={"n": offset})], columns=[("value", pa.string()), ("n", kind)])
    loader = world.loader(bounds=bounds)
    (wrong,) = loader.misfits(loader.columns())[0].values()
    assert wrong == "column 'n' is bigint here and int there"
    world.drain(loader)
    assert (loader.totals.quarantined, world.rows("_offset", "n")) == (1, [(1, 1)])
    assert len(list((world.roots[0] / "bad").glob("*.arrows"))) == 1


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_the_columns_of_a_table_are_read_without_its_log(world: World, segments: Any) -> None:
    assert table_columns(world.table) == ()
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    world.seal([segments.Record(2, extra={"n": 7})], columns=[("value", pa.string()), ("n", pa.int16())])
    world.drain(world.loader())
    assert table_columns(world.table) == tuple(map(tuple, world.state()["columns"]))
    assert table_columns(world.table)[-2:] == (("value", "string"), ("n", "smallint"))


@pytest.mark.parametrize("quarantine", [False, True])
def test_a_loader_refuses_segments_that_do_not_fit_before_it_loads_any(
    world: World, segments: Any, quarantine: bool
) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    world.seal([segments.Record(2)])
    bad = world.seal([segments.Record(3, extra={"value": 3})], columns=[("value", pa.int32())])
    config = LoaderConfig(world.roots[0], world.table, format="pyarrow", quarantine=quarantine)
    code = Work(config, segments.ArrowWriter()).run()
    status = json.loads((world.roots[0] / "loader.json").read_text())
    if quarantine:
        assert (code, status["quarantined"]) == (0, 1)
        assert [offset for _, _, _, offset, *_ in world.rows()] == [1, 2]
        return
    assert code == 2
    assert bad.exists()
    assert [offset for _, _, _, offset, *_ in world.rows()] == [1]
    for words in (
        "'value' is int here",
        "and string there",
        bad.name,
        "another table",
        "load --quarantine",
        "reconcile --rerun",
    ):
        assert words in status["error"]


def two_types(world: World, segments: Any) -> LoaderConfig:
    """Two supervisors' segments of one column, for a table that is not there yet."""
    world.seal([segments.Record(1, extra={"n": 1})], columns=[("value", pa.string()), ("n", pa.int64())])
    world.seal([segments.Record(2, extra={"n": "2"})], columns=[("value", pa.string()), ("n", pa.string())], at=1)
    return LoaderConfig(world.roots[0], world.table, format="pyarrow", more_stagings=(world.roots[1],))


def test_a_loader_of_two_folders_refuses_what_does_not_fit_the_other_ones(world: World, segments: Any) -> None:
    work = Work(two_types(world, segments), segments.ArrowWriter())
    assert (work.run(), work.batches) == (2, 0)
    (second,) = (world.roots[1] / "ready").iterdir()
    assert f"1 of the sealed segments do not fit the table {world.table}; {second}: " in work.error
    for root in world.roots:
        assert len(list((root / "ready").iterdir())) == 1, "nothing was loaded, nothing was moved"


def test_or_sets_it_aside_where_that_is_wished(world: World, segments: Any) -> None:
    work = Work(replace(two_types(world, segments), quarantine=True), segments.ArrowWriter())
    assert (work.run(), work.batches) == (0, 1)
    assert len(list((world.roots[1] / "bad").glob("*.arrows"))) == 1
