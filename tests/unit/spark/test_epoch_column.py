"""The column of epochs: what each row gets, and that it costs as much for thousands of queues as for one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_world import calls_of
from segment_helpers import Record, write_segment

from rocketcrew.conf.columns import Column
from rocketcrew.conf.segment_format import EPOCH
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.spark.convert import stage
from rocketcrew.spark.epochs import EpochRequest, in_epochs, next_stretch
from rocketcrew.spark.plan import Ends, Plan, SegmentFacts, Take
from rocketcrew.spark.segments import read_facts, with_epochs

pq: Any = pyarrow.parquet

TEXTS = st.sampled_from(["", "a", "b", "%RETRY%a"])
QUEUES = st.tuples(TEXTS, TEXTS, TEXTS, st.integers(0, 3))


def rows_in(queues: Iterable[tuple[str, str, str, int]], chunk: int) -> Any:
    """A table with a row in each of these queues, in chunks of so many."""
    queues = list(queues)
    names = ("_group", "_topic", "_broker", "_queue_id")
    types = (pa.string(), pa.string(), pa.string(), pa.int32())
    schema = pa.schema(list(zip(names, types, strict=True)))
    batches = [
        pa.RecordBatch.from_pylist(
            [dict(zip(names, one, strict=True)) for one in queues[start : start + chunk]], schema
        )
        for start in range(0, len(queues), chunk)
    ]
    return pa.Table.from_batches(batches, schema)


@settings(max_examples=200)
@given(st.lists(QUEUES, max_size=30), st.dictionaries(QUEUES, st.integers(1, 9), max_size=12), st.integers(1, 7))
def test_each_row_gets_the_epoch_of_its_queue(
    rows: list[tuple[str, str, str, int]], begun: dict[tuple[str, str, str, int], int], chunk: int
) -> None:
    table = rows_in(rows, chunk)
    found = with_epochs(table, [QueueKey(*base, epoch) for base, epoch in begun.items()])
    assert found.schema.field(EPOCH).type == pa.int64()
    assert found.column(EPOCH).to_pylist() == [begun.get(row) for row in rows]
    assert found.drop_columns([EPOCH]).equals(table)


def arrow_calls(act: Callable[[], object]) -> int:
    """How often functions of pyarrow.compute are called in this thread while `act` runs."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.endswith("pyarrow/compute.py")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def keys(count: int) -> tuple[QueueKey, ...]:
    return tuple(QueueKey("g", "orders", "broker-a", queue_id, 1) for queue_id in range(count))


def test_rows_are_gone_over_as_often_for_a_thousand_queues_as_for_one() -> None:
    table = rows_in([key[:4] for key in keys(1_000)], 100)
    one = arrow_calls(lambda: with_epochs(table, keys(1)))
    assert 0 < one == arrow_calls(lambda: with_epochs(table, keys(1_000)))


class Here(Executor):
    """Runs all in the thread that asks."""

    def submit(self, fn: Any, /, *args: Any, **names: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **names))
        return done


def test_only_the_queues_of_a_segment_are_looked_for_in_it(tmp_path: Path) -> None:
    """A plan names every queue of the table that ever began anew."""
    path = write_segment(tmp_path, "w", 1, [[Record(1), Record(2, queue_id=1)]])
    facts = read_facts(path)
    looks: list[int] = []
    for count in (1, 1_000):
        columns = (*facts.columns, Column(EPOCH, "bigint"))
        plan = Plan("p", 1, (Take(path.name, None),), OffsetSet(), columns, keys(count))
        known = {path.name: in_epochs(facts, plan.epochs)}
        folder = tmp_path / f"{count}.staged"
        looks.append(arrow_calls(lambda: stage(plan, known, path.parent, folder, Here(), 1)))  # noqa: B023
        (file,) = folder.iterdir()
        assert pq.read_table(file).column(EPOCH).to_pylist() == [1, 1 if count > 1 else None]
    assert looks[0] == looks[1] > 0


def no_times(_name: str, _key: QueueKey, _offsets: IntervalSet) -> tuple[Ends, ...]:
    return ()


def test_planning_puts_the_epochs_of_all_queues_together_once() -> None:
    def planned(segments: int) -> int:
        ends = Ends(0, 0, 0, 0)
        base = QueueKey("g", "orders", "broker-a", 0)
        offsets = OffsetSet({base: IntervalSet(((0, 1),))})
        waiting = [SegmentFacts(f"w-{n}", 1, 1, offsets, False, (), {base: ends}) for n in range(segments)]
        request = EpochRequest(keys(500), frozenset())
        return calls_of("in_epoch", lambda: next_stretch(waiting, OffsetSet(), {}, request, no_times))

    assert planned(101) - planned(1) <= 100 * 10
