"""NaN is in no file's statistics that Arrow writes, and Spark's greatest number: of floats none are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from loader_world import World

from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.column_bounds import with_bounds
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.merged_file import write_merged
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

pq: Any = pyarrow.parquet
INNER: Any = pa.struct([("y", pa.float64())])
SCHEMA: Any = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("f", pa.float32()), ("s", INNER), ("t", pa.string())])
ROWS: Any = pa.Table.from_pylist(
    [{"n": n, "x": x, "f": x, "s": {"y": x}, "t": "a"} for n, x in enumerate((1.0, 5.0, float("nan")))], SCHEMA
)


def bounded(file: Path) -> set[str]:
    """The columns of which the file says least and greatest values."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {one.path_in_schema for one in columns if one.statistics is not None and one.statistics.has_min_max}


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ({"n": pa.int64(), "l": pa.list_(pa.int64())}, True),
        ({"n": pa.int64(), "x": pa.float32()}, ["n"]),
        ({"n": pa.int64(), "l": pa.list_(pa.struct([("y", pa.float64())]))}, ["n"]),
        ({"x": pa.float64()}, []),
    ],
)
def test_columns_with_bounds(kinds: dict[str, Any], wanted: object) -> None:
    assert with_bounds(pa.schema(list(kinds.items()))) == wanted


def test_a_merged_file(tmp_path: Path) -> None:
    write_merged([ROWS], SCHEMA, str(tmp_path / "file"), "SNAPPY")
    assert bounded(tmp_path / "file") == {"n", "t"}


def test_a_file_that_arrow_writes_once_more(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "staged")
    ArrowWriter(["t"]).write([tmp_path / "staged"], tmp_path / "out", [], 0)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert bounded(file) == {"n"}


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
@pytest.mark.parametrize("value", [float("nan"), 6.5])
def test_an_entry_of_delta_rs(world: World, segments: Any, value: float) -> None:
    world.seal([segments.Record(1, extra={"x": value})], columns=[("x", pa.float64())])
    world.drain(world.loader(target=DeltaTarget(world.table, append_by_delta_rs, lambda: None)))
    entries = sorted((world.table / LOG_DIR).glob("*.json"))
    (add,) = [json.loads(line)["add"] for line in entries[-1].read_text().splitlines() if line.startswith('{"add"')]
    stats = json.loads(add["stats"])
    assert "x" not in stats["minValues"] | stats["maxValues"]
    assert stats["maxValues"]["_offset"] == 1
    (file,) = world.table.glob("*.parquet")
    assert "x" not in bounded(file)
    assert "_offset" in bounded(file)
    assert file.name.endswith(".snappy.parquet"), "as delta-rs writes where nothing is said"
