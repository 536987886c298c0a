"""Damaged segments: each is set aside with what is known of it, none is loaded with other rows, and the others are loaded."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from loader_world import World
from segment_helpers import Record, rows_of, segment_schema, with_checks, write_segment

from rocketcrew.conf.segment_format import CHECK_PREFIX, END_OF_STREAM, META_BATCH_CHECK
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.spark.errors import BadSegmentError
from rocketcrew.spark.plan import Take
from rocketcrew.spark.segments import read_facts, read_rows, read_times, readable_offsets
from rocketcrew.spark.staging import ReadyFile, inspect
from rocketcrew.workers.segment import SegmentWriter

QUEUE = QueueKey("g", "orders", "broker-a", 0)
SCHEMA_FLIPS = 2_000
"""Of some 15,000; each takes a millisecond."""


def refuse(what: str, error: OSError) -> None:
    raise AssertionError(what) from error


def sealed(root: Path, *flushes: list[Record]) -> Path:
    """A segment as a worker writes it: each batch with its checksum."""
    writer = SegmentWriter(root, "w1", segment_schema(), seal_rows=1, seal_bytes=1, seal_idle_ms=1, pause=refuse)
    for flush in flushes:
        rows = [row for record in flush for row in rows_of(record)]
        writer.append(pa.RecordBatch.from_pylist(rows, schema=segment_schema()), b"[]", 0)
    ended = writer.detach()
    assert ended is not None
    return ended[0].rename(root / "ready" / ended[0].name)


def ends_of(data: bytes) -> list[int]:
    """Where the schema ends, and each batch."""
    source = pa.BufferReader(data)
    reader = pa.ipc.open_stream(source)
    return [source.tell(), *(source.tell() for _ in reader)]


def of_queue(*offsets: int) -> OffsetSet:
    return OffsetSet({QUEUE: IntervalSet.from_offsets(offsets)}) if offsets else OffsetSet()


# --- what checksums find ------------------------------------------------------------------------------------------------


def test_any_byte_of_a_batch_that_changed_makes_the_segment_bad(tmp_path: Path) -> None:
    path = sealed(tmp_path, [Record(1)], [Record(2), Record(3)], [Record(4)])
    whole = path.read_bytes()
    ends = ends_of(whole)
    known = [of_queue(), of_queue(1), of_queue(1, 2, 3), of_queue(1, 2, 3, 4)]
    marks = [range(at, at + 20) for at in (whole.index(META_BATCH_CHECK), whole.index(CHECK_PREFIX), len(whole) - 20)]
    for at in sorted({*range(ends[0], len(whole), 11), *(at for mark in marks for at in mark)}):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(BadSegmentError):
            read_facts(path)
        with pytest.raises(BadSegmentError):
            read_rows(path, Take(path.name, None))
        with pytest.raises(BadSegmentError):
            read_times(path, QUEUE, IntervalSet(((1, 5),)))
        assert readable_offsets(path) == known[sum(end <= at for end in ends[1:])], at


def test_a_page_of_zeros_at_a_batchs_start_is_no_end(tmp_path: Path) -> None:
    path = sealed(tmp_path, [Record(1)], [Record(2)])
    whole = path.read_bytes()
    ends = ends_of(whole)
    for length in (8, 64, 512):
        path.write_bytes(whole[: ends[1]] + bytes(length) + whole[ends[1] + length :])
        with pytest.raises(BadSegmentError, match=f"ends at byte {ends[1]}, and other bytes follow"):
            read_facts(path)
        assert readable_offsets(path) == of_queue(1)


def test_a_salvaged_segment_needs_no_end_mark(tmp_path: Path) -> None:
    path = sealed(tmp_path, [Record(1)], [Record(2)])
    path.write_bytes(path.read_bytes().removesuffix(END_OF_STREAM))
    assert read_facts(path).offsets == of_queue(1, 2)


def test_a_batch_without_a_checksum_is_not_believed(tmp_path: Path) -> None:
    path = sealed(tmp_path, [Record(1)], [Record(2)])
    table: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(BadSegmentError, match=r"batch 1, .* is not as it was written"):
        read_facts(path)


def test_a_changed_value_or_offset_reaches_no_table(world: World) -> None:
    path = sealed(world.roots[0], [Record(n, [f"value-{n:04}"]) for n in range(40, 60)])
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(b"value-0045") + 9] = ord("9")
    damaged[whole.index((41).to_bytes(8, "little") + (42).to_bytes(8, "little"))] = 141
    path.write_bytes(damaged)
    world.seal([Record(1)])
    (report,) = world.drain(world.loader())
    assert (report.rows, report.rows_dropped) == (1, 0)
    world.assert_exact()
    assert (world.roots[0] / "bad" / path.name).exists()


# --- what nothing but Arrow finds ---------------------------------------------------------------------------------------


def test_a_changed_bit_of_the_schema_ends_no_loader(tmp_path: Path) -> None:
    path = sealed(tmp_path, [Record(1)])
    whole = path.read_bytes()
    end = ends_of(whole)[0]
    texts = [8 * whole.index(name) + 7 for name in (b"_origin_topic", b"value", b"UTC")]
    bits = {*texts, *random.Random(5).sample(range(8 * end), SCHEMA_FLIPS)}
    bad = 0
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        bad += isinstance(inspect(ReadyFile(path, len(damaged), 1)), str)
        readable_offsets(path)
    assert bad > SCHEMA_FLIPS / 10


@pytest.mark.parametrize("name", ["_topic", "_queue_id", "_offset", "_seq", "_store_time", "_origin_topic"])
def test_a_null_in_a_key_sets_its_segment_aside_and_the_others_are_loaded(world: World, name: str) -> None:
    path = world.seal([Record(1), Record(2)])
    world.written.clear()
    rewrite(path, name, None)
    world.seal([Record(3)])
    world.drain(world.loader())
    world.assert_exact()
    assert (world.roots[0] / "bad" / path.name).exists()
    assert list((world.roots[0] / "ready").iterdir()) == []


def write_rows(path: Path, table: Any) -> None:
    path.write_bytes(with_checks(table.schema, [(batch, b"") for batch in table.to_batches()]))


def rewrite(path: Path, name: str, value: object) -> None:
    """Give the segment's last row that value."""
    table: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
    field = table.schema.field(name)
    arrow: Any = pa
    changed = arrow.array([*table.column(name).to_pylist()[:-1], value], field.type)
    table = table.set_column(table.schema.get_field_index(name), field, changed)
    write_rows(path, table)
    os.utime(path, (1, 1))


def test_a_time_that_python_does_not_know_is_no_crash(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", 1, [[Record(1)], [Record(1)]])
    rewrite(path, "_store_time", pa.scalar(1 << 62, pa.timestamp("us", tz="UTC")))
    with pytest.raises(BadSegmentError, match="two records with offset 1"):
        read_facts(path)


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (pa.field("value", pa.string(), nullable=False), pa.field("value", pa.string())),
        (pa.field("value", pa.string()), pa.field("value", pa.large_string())),
    ],
)
def test_sound_segments_whose_types_are_one_to_spark_are_one_batch(world: World, early: Any, late: Any) -> None:
    for field, offset in ((early, 1), (late, 2), (early, 3)):
        path = world.seal([Record(offset)])
        table: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
        schema = table.schema.set(table.schema.get_field_index("value"), field)
        write_rows(path, table.cast(schema))
        os.utime(path, (offset, offset))
    (report,) = world.drain(world.loader())
    assert (report.segments, report.rows) == (3, 3)
    world.assert_exact()
    world.assert_clean()
