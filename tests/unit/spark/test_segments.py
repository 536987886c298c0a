"""Reading segments: what is inside, what is chosen, and that nothing damaged or foreign gets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segment_helpers import with_checks

from rocketcrew.conf.segment_format import END_OF_STREAM, KEY_COLUMNS
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.spark.errors import BadSegmentError
from rocketcrew.spark.plan import Take
from rocketcrew.spark.segments import read_facts, read_rows, readable_offsets

QUEUE = QueueKey("g", "orders", "broker-a", 0)
RETRY = QueueKey("g", "%RETRY%g", "broker-a", 0)


def values(rows: Any) -> list[str]:
    return list(rows.column("value").to_pylist())


def of_queue(*offsets: int) -> OffsetSet:
    return OffsetSet({QUEUE: IntervalSet.from_offsets(offsets)})


def test_facts_of_a_segment(tmp_path: Path, segments: Any) -> None:
    record = segments.Record
    path = segments.write_segment(
        tmp_path, "w", 1, [[record(5), record(6, ["a", "b"])], [record(9), record(2, topic="%RETRY%g")], [record(7)]]
    )
    facts = read_facts(path)
    assert facts.name == "w-00000001.arrows"
    assert facts.bytes == path.stat().st_size
    assert facts.rows == 6
    assert not facts.repeats
    assert facts.offsets.queues == {QUEUE: IntervalSet(((5, 8), (9, 10))), RETRY: IntervalSet(((2, 3),))}
    assert [column.name for column in facts.columns] == [*KEY_COLUMNS, "value"]
    assert read_rows(path, Take(path.name, None)).num_rows == 6


def test_a_segment_without_rows_is_fine(tmp_path: Path, segments: Any) -> None:
    path = segments.write_segment(tmp_path, "w", 1, [])
    facts = read_facts(path)
    assert (facts.rows, facts.offsets, facts.repeats) == (0, OffsetSet(), False)
    assert read_rows(path, Take(path.name, OffsetSet())).num_rows == 0


def test_of_a_record_handled_twice_the_first_run_is_taken(tmp_path: Path, segments: Any) -> None:
    record = segments.Record
    path = segments.write_segment(
        tmp_path, "w", 1, [[record(1, ["a", "b"]), record(2, ["c"])], [record(1, ["x", "y", "z"]), record(3, ["d"])]]
    )
    facts = read_facts(path)
    assert facts.repeats
    assert facts.offsets == of_queue(1, 2, 3)
    assert values(read_rows(path, Take(path.name, of_queue(0, 1, 2, 3, 4)))) == ["a", "b", "c", "d"]


def test_the_chosen_records_only(tmp_path: Path, segments: Any) -> None:
    record = segments.Record
    other = record(1, ["other queue"], queue_id=1)
    path = segments.write_segment(
        tmp_path, "w", 1, [[record(1, ["a"]), other, record(2, ["b", "c"]), record(3, ["d"])]]
    )
    assert values(read_rows(path, Take(path.name, of_queue(2, 3)))) == ["b", "c", "d"]
    assert values(read_rows(path, Take(path.name, OffsetSet()))) == []
    assert values(read_rows(path, Take(path.name, None))) == ["a", "other queue", "b", "c", "d"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 3)), max_size=6), max_size=4),
    st.sets(st.integers(0, 9)),
)
def test_any_segment_against_a_model(
    tmp_path: Path, segments: Any, flushes: list[list[tuple[int, int, int]]], chosen: set[int]
) -> None:
    """The first run of each chosen record, in file order, whatever repeats."""
    run = 0
    expected: list[str] = []
    seen: set[tuple[int, int]] = set()
    written: list[list[Any]] = []
    for flush in flushes:
        written.append([])
        for queue_id, offset, count in flush:
            names = [f"{run}.{seq}" for seq in range(count)]
            written[-1].append(segments.Record(offset, names, queue_id=queue_id))
            if queue_id == 0 and offset in chosen and (queue_id, offset) not in seen:
                expected += names
            seen.add((queue_id, offset))
            run += 1
    path = segments.write_segment(tmp_path, "w", 1, written)
    facts = read_facts(path)
    assert facts.offsets.count() == len(seen)
    assert facts.repeats == (run > len(seen))
    assert values(read_rows(path, Take(path.name, of_queue(*chosen)))) == expected


def bad(path: Path, match: str) -> None:
    with pytest.raises(BadSegmentError, match=match):
        read_facts(path)


def test_what_is_no_segment_is_named(tmp_path: Path, segments: Any) -> None:
    path = tmp_path / "x.arrows"
    path.write_bytes(b"")
    bad(path, "empty")
    path.write_bytes(b"hello, this is not Arrow at all" * 20)
    bad(path, "not an Arrow stream")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.schema([("a", pa.int32())])):
        pass
    bad(path, "not written by rocketcrew")
    bad(segments.write_segment(tmp_path, "w", 1, [[segments.Record(1)]], version=0), "version 0")
    schema = segments.segment_schema()
    for broken, match in (
        (schema.remove(3), "key column 3 should be _queue_id"),
        (schema.set(4, pa.field("_offset", pa.int32())), "key column 4 should be _offset"),
        (pa.schema(list(schema)[:5]).with_metadata(schema.metadata), "key column 5"),
        (schema.append(pa.field("speed", pa.uint64())), "'speed'"),
    ):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, broken):
            pass
        bad(path, match)


def test_cut_anywhere_it_is_bad_or_whole_batches(tmp_path: Path, segments: Any) -> None:
    record = segments.Record
    path = segments.write_segment(tmp_path, "w", 1, [[record(1), record(2)], [record(3)]])
    whole = path.read_bytes()
    assert whole.endswith(END_OF_STREAM)
    cut = tmp_path / "cut.arrows"
    held: list[OffsetSet] = []
    for length in range(len(whole) - 1, 0, -7):
        cut.write_bytes(whole[:length])
        try:
            found = read_facts(cut).offsets
        except BadSegmentError:
            found = readable_offsets(cut)
        held.append(found)
    assert [one for at, one in enumerate(held) if not at or held[at - 1] != one] == [
        of_queue(1, 2, 3),
        of_queue(1, 2),
        OffsetSet(),
    ]


def test_damage_inside_never_raises_anything_else(tmp_path: Path, segments: Any) -> None:
    path = segments.write_segment(tmp_path, "w", 1, [[segments.Record(1, ["a", "b"]), segments.Record(2)]])
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_facts(path)
        except BadSegmentError:
            readable_offsets(path)


@pytest.mark.parametrize("seqs", [[1], [0, 2], [0, 1, 1], [0, 1, 3]])
def test_rows_that_do_not_count_are_bad(tmp_path: Path, segments: Any, seqs: list[int]) -> None:
    path = tmp_path / "x.arrows"
    schema = segments.segment_schema()
    rows = [{**segments.rows_of(segments.Record(1))[0], "_seq": seq} for seq in seqs]
    path.write_bytes(with_checks(schema, [(pa.RecordBatch.from_pylist(rows, schema=schema), b"")]))
    bad(path, "counted by _seq")
