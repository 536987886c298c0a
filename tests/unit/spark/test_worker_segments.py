"""Segments as the workers really write, seal and salvage them are what the loader reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from loader_world import World

from rocketcrew.durable.intervals import IntervalSet
from rocketcrew.spark.plan import Take
from rocketcrew.spark.segments import read_facts, read_rows
from rocketcrew.workers.api import BatchResult
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.salvage import salvage
from rocketcrew.workers.sealing import seal_file
from rocketcrew.workers.segment import SegmentWriter

pa: Any = pyarrow

SCHEMA = (
    "text string, n int, big bigint, price decimal(12,2), tags array<string>, m map<string,int>, s struct<a:int,b:date>,"
    " t timestamp, ok boolean, raw binary"
)
ROW = {"text": "x", "n": 1, "tags": ["a"], "m": {"k": 1}, "s": {"a": 1, "b": None}, "raw": b"\0"}


def refuse(what: str, error: OSError) -> None:
    raise AssertionError(what) from error


def write(folder: Path) -> tuple[SegmentWriter, RowBuffer[int]]:
    rows: RowBuffer[int] = RowBuffer(parse_ddl(SCHEMA), "group")
    writer = SegmentWriter(folder, "w1", rows.schema, seal_rows=100, seal_bytes=10**6, seal_idle_ms=1000, pause=refuse)
    for offset in (3, 4, 7):
        prepared = rows.prepare(make_message(b"", queue_offset=offset), [ROW] * 2)
        assert prepared is not None
        rows.keep(offset, prepared)
        batch, _ = rows.take()
        assert batch is not None
        writer.append(batch, b"{}", 0)
    return writer, rows


def check(path: Path) -> None:
    facts = read_facts(path)
    (key,) = facts.offsets.queues
    assert facts.offsets.of_queue(key) == IntervalSet(((3, 5), (7, 8)))
    assert (facts.rows, facts.repeats) == (6, False)
    assert dict(facts.columns)["price"] == "decimal(12,2)"
    assert dict(facts.columns)["s"] == "struct<`a`:int,`b`:date>"
    rows = read_rows(path, Take(path.name, facts.offsets))
    assert rows.column("_seq").to_pylist() == [0, 1] * 3
    assert rows.column("text").to_pylist() == ["x"] * 6


def test_a_sealed_segment(tmp_path: Path) -> None:
    writer, _ = write(tmp_path)
    ended = writer.detach()
    assert ended is not None
    file, sealed = ended
    seal_file(file, tmp_path / "ready")
    check(tmp_path / "ready" / sealed.name)


def test_a_salvaged_segment(tmp_path: Path) -> None:
    """The worker died in the middle of its next flush."""
    write(tmp_path)
    (path,) = (tmp_path / "open").iterdir()
    with path.open("ab") as file:
        file.write(path.read_bytes()[-200:-90])
    salvage(path)
    check(tmp_path / "ready" / path.name)


@pytest.mark.parametrize(
    "rows_of",
    [
        lambda messages: [{"v": int(each.body)} for each in messages],
        lambda messages: [(each, {"v": int(each.body)}) for each in reversed(messages)],
        lambda messages: pa.table({"v": pa.array([int(each.body) for each in messages], pa.int32())}),
    ],
    ids=["one each", "tagged", "table"],
)
def test_no_row_is_lost_where_batches_are_cut_anew(world: World, rows_of: Callable[[list[Message]], Any]) -> None:
    """As after a rebalance: part of a batch comes again, with others, once its rows are in the table."""
    folder = world.roots[0]
    for number, offsets in enumerate(([0], range(4), [3, 4, 5], range(2, 9))):
        messages = [make_message(b"%d" % offset, queue_offset=offset) for offset in offsets]
        rows: RowBuffer[int] = RowBuffer(parse_ddl("v int"), "g")
        for message, result in zip(messages, batch_results(messages, BatchResult(rows_of(messages))), strict=True):
            if result is not None and (prepared := rows.prepare(message, result)) is not None:
                rows.keep(message.queue_offset, prepared)
        batch, _ = rows.take()
        assert batch is not None
        writer = SegmentWriter(
            folder, f"w{number}", rows.schema, seal_rows=100, seal_bytes=10**6, seal_idle_ms=1000, pause=refuse
        )
        writer.append(batch, b"[]", 0)
        ended = writer.detach()
        assert ended is not None
        seal_file(ended[0], folder / "ready")
        world.drain(world.loader())
    assert world.rows("_offset", "v") == [(offset, offset) for offset in range(9)]
