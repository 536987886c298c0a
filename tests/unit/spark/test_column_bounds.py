"""NaN is in no file's statistics that Arrow writes, and Spark's greatest number: of floats none are written, nor, in Delta's
log, of decimals that JSON's numbers do not hold. And of 0.0 and -0.0, which are equal, a dictionary of floats has one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
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


def with_dictionary(file: Path) -> set[str]:
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {one.path_in_schema for one in columns if one.has_dictionary_page}


@pytest.mark.parametrize(
    ("kinds", "wanted", "in_log"),
    [
        ({"n": pa.int64(), "l": pa.list_(pa.int64())}, True, True),
        ({"n": pa.int64(), "x": pa.float32()}, ["n"], ["n"]),
        ({"n": pa.int64(), "l": pa.list_(pa.struct([("y", pa.float64())]))}, ["n"], ["n"]),
        ({"x": pa.float64()}, [], []),
        ({"n": pa.int64(), "d": pa.decimal128(15, 2)}, True, True),
        ({"n": pa.int64(), "d": pa.decimal128(16, 2)}, True, ["n"]),
        ({"d": pa.decimal128(15, 15), "s": pa.struct([("y", pa.list_(pa.decimal128(38, 18)))])}, True, ["d"]),
    ],
)
def test_columns_with_bounds(kinds: dict[str, Any], wanted: object, in_log: object) -> None:
    schema = pa.schema(list(kinds.items()))
    assert (with_bounds(schema), with_bounds(schema, in_log=True)) == (wanted, in_log)


def test_a_merged_file(tmp_path: Path) -> None:
    write_merged([ROWS], SCHEMA, str(tmp_path / "file"), "SNAPPY")
    assert bounded(tmp_path / "file") == {"n", "t"}


def test_floats_of_a_merged_file_have_no_dictionary(tmp_path: Path) -> None:
    """Within other columns, and whatever their names."""
    schema = pa.schema([*SCHEMA, ("a.b", pa.float64()), ("l", pa.list_(INNER)), ("m", pa.map_(pa.string(), INNER)),
                        ("k", pa.list_(pa.struct([("y", pa.string())])))])  # fmt: skip
    row = {
        "n": 1,
        "x": 0.0,
        "f": 0.0,
        "s": {"y": 0.0},
        "t": "a",
        "a.b": 0.0,
        "l": [{"y": 0.0}],
        "m": [("k", {"y": 0.0})],
    }
    write_merged([pa.Table.from_pylist([{**row, "k": [{"y": "a"}]}], schema)], schema, str(tmp_path / "file"), "SNAPPY")
    assert with_dictionary(tmp_path / "file") == {"n", "t", "m.key_value.key", "k.list.element.y"}


def test_a_file_that_arrow_writes_once_more(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "staged")
    ArrowWriter(["t"]).write([tmp_path / "staged"], tmp_path / "out", [], 0)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert bounded(file) == {"n"}


def noted(world: World) -> dict[str, Any]:
    """What the newest entry of the log says of its only file; numbers as they are written."""
    entries = sorted((world.table / LOG_DIR).glob("*.json"))
    (add,) = [json.loads(line)["add"] for line in entries[-1].read_text().splitlines() if line.startswith('{"add"')]
    stats: dict[str, Any] = json.loads(add["stats"], parse_float=Decimal)
    return stats


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
@pytest.mark.parametrize("value", [float("nan"), 6.5])
def test_an_entry_of_delta_rs(world: World, segments: Any, value: float) -> None:
    world.seal([segments.Record(1, extra={"x": value})], columns=[("x", pa.float64())])
    world.drain(world.loader(target=DeltaTarget(world.table, append_by_delta_rs, lambda: None)))
    stats = noted(world)
    assert "x" not in stats["minValues"] | stats["maxValues"]
    assert stats["maxValues"]["_offset"] == 1
    (file,) = world.table.glob("*.parquet")
    assert "x" not in bounded(file)
    assert "_offset" in bounded(file)
    assert file.name.endswith(".snappy.parquet"), "as delta-rs writes where nothing is said"


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "value", "within"), [(pa.float64(), 0.0, {"l.list.element"}), (INNER, {"y": 0.0}, set())]
)
def test_floats_of_delta_rs_have_no_dictionary(
    world: World, segments: Any, kind: Any, value: object, within: set[str]
) -> None:
    """What is within other columns has one where no float is."""
    columns = [("value", pa.string()), ("x", kind), ("l", pa.list_(pa.string()))]
    world.seal([segments.Record(1, extra={"x": value, "l": ["a"]})], columns=columns)
    world.drain(world.loader())
    (file,) = world.table.glob("*.parquet")
    said = {name.replace(".item", ".element") for name in with_dictionary(file)}
    assert {name for name in said if not name.startswith("_")} == {"value", "batch_id", *within}


MOMENT = datetime(1950, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
BOUNDED: dict[str, tuple[Any, Any, Any, tuple[object, object]]] = {
    "i": (pa.int64(), -(2**63), 2**53 + 1, (-(2**63), 2**53 + 1)),
    "b": (pa.bool_(), False, True, (False, True)),
    "d9": (pa.decimal128(9, 2), Decimal("-1234567.89"), Decimal("0.10"), (Decimal("-1234567.89"), Decimal("0.1"))),
    "d15": (
        pa.decimal128(15, 1),
        Decimal("0.1"),
        Decimal("90071992547409.9"),
        (Decimal("0.1"), Decimal("90071992547409.9")),
    ),
    "d16": (pa.decimal128(16, 2), Decimal("0.1"), Decimal("90071992547409.93"), (None, None)),
    "d38": (pa.decimal128(38, 18), Decimal(1), Decimal(2), (None, None)),
    # To a millisecond below: Delta's readers know it.
    "t": (pa.timestamp("us", "UTC"), MOMENT, MOMENT, ("1950-01-01T12:00:00.123Z", "1950-01-01T12:00:00.123Z")),
    "day": (pa.date32(), date(1, 1, 1), date(9999, 12, 31), ("0001-01-01", "9999-12-31")),
    "s": (pa.string(), "a" * 70, "\u00ff" * 70, ("a" * 64, "\u00ff" * 31 + "\u0100")),
    "bin": (pa.binary(), b"a", b"b", (None, None)),
    "x": (pa.struct([("y", pa.decimal128(18, 2))]), {"y": Decimal(1)}, {"y": Decimal(2)}, (None, None)),
}
"""Of each kind two values, and what the log may say of them: no more than the one, no less than the other."""


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_what_the_log_says_of_every_kind(world: World, segments: Any) -> None:
    both = [segments.Record(n, extra={name: of[1 + n] for name, of in BOUNDED.items()}) for n in (0, 1)]
    world.seal(both, columns=[(name, of[0]) for name, of in BOUNDED.items()])
    world.drain(world.loader())
    stats = noted(world)
    assert {name: (stats["minValues"].get(name), stats["maxValues"].get(name)) for name in BOUNDED} == {
        name: of[3] for name, of in BOUNDED.items()
    }
