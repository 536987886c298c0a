"""What a cell shows needs no report after each call; where worker and supervisor were killed together, a start reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import (
    BLOCKED_NS,
    CHUNK_ID,
    HELD,
    STATE,
    TEXT,
    UNREPORTED,
    CellFile,
    CellView,
    Naming,
    map_cell,
    private_cell,
)
from rocketcrew.workers.link import DescriptorsClosedError
from rocketcrew.workers.packets import QueueInfo, Report
from rocketcrew.workers.unreported import REPORT_INTERVALS, Unreported, shown, shown_by

Make = Callable[..., Any]
LIMITS = WorkerBounds(flush_interval_us=5_000)


def reports(b: Any) -> list[tuple[int, int, int]]:
    """(chunk, start, records), each report's."""
    return [(each.chunk_id, each.start, each.records) for each in b.story() if isinstance(each, Report)]


# --- when a worker reports --------------------------------------------------------------------------------------


def test_calls_that_return_nothing_are_reported_at_the_end_of_their_chunk(bench: Make, make_record: Make) -> None:
    b = bench(lambda _message: b.clock.advance_ms(9), bounds=LIMITS)
    b.worker.offer_reports()
    for chunk in (1, 2):
        b.chunk([make_record(offset=offset) for offset in range(chunk * 10, chunk * 10 + 4)], chunk)
    said = []
    for _ in range(4):
        b.steps(1)
        said.append(reports(b))
    assert said == [[], [(1, 0, 4)], [(2, 0, 4)], []]  # the first step reads which queue it is


def test_a_worker_whose_cell_is_not_read_reports_after_each_call(bench: Make, make_record: Make) -> None:
    b = bench(lambda _message: b.clock.advance_ms(9), bounds=LIMITS)
    b.chunk([make_record(offset=offset) for offset in range(4)], 1)
    b.steps(2)
    assert reports(b) == [(1, number, 1) for number in range(4)]


def test_a_chunk_that_takes_longer_is_reported_in_between(bench: Make, make_record: Make) -> None:
    b = bench(lambda _message: b.clock.advance_ms(10), bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(40)], 1)
    b.steps(2)
    at_once = REPORT_INTERVALS * 5 // 10
    assert reports(b) == [(1, 0, at_once), (1, at_once, at_once), (1, 2 * at_once, 40 - 2 * at_once)]


@pytest.mark.parametrize(("took_ms", "at_once"), [(4, 10), (10, 4)])
def test_rows_of_many_calls_make_one_block(
    bench: Make, make_record: Make, tmp_path: Path, took_ms: int, at_once: int
) -> None:
    """A block finds cold caches, and costs as much for one row as for a hundred."""

    @handler(schema="n int")
    def handle(_message: Any) -> Any:
        b.clock.advance_ms(took_ms)
        return {"n": 1}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=LIMITS)
    b.worker.offer_reports()
    b.worker._runner.spare_ns = -1_000_000_000
    b.chunk([make_record(offset=offset) for offset in range(20)], 1)
    b.steps(2)
    assert reports(b) == [(1, start, at_once) for start in range(0, 20, at_once)]


@pytest.mark.parametrize("window_open", [False, True])
def test_where_a_report_makes_room_for_the_next_chunk_no_later_one_is_waited_for(
    bench: Make, make_record: Make, tmp_path: Path, *, window_open: bool
) -> None:
    @handler(schema="n int")
    def handle(_message: Any) -> Any:
        b.clock.advance_ms(3)
        return {"n": 1}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=LIMITS)
    b.worker.offer_reports()
    for number in (1, 2, 3):
        b.chunk([make_record(offset=number)], number, window_open=window_open)
    b.steps(4)
    assert reports(b) == ([] if window_open else [(1, 0, 1), (2, 0, 1)])
    b.steps(1)
    assert len(reports(b)) == (3 if window_open else 1)  # none waits in vain


def test_after_a_report_beside_a_call_has_failed_no_later_call_waits(bench: Make, make_record: Make) -> None:
    calls: list[int] = []

    def handle(message: Any) -> None:
        calls.append(message.queue_offset)
        b.clock.advance_ms(6)
        b.worker._broken = OSError("the disk is gone")

    b = bench(handle, bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(20)], 1)
    with pytest.raises(OSError, match="the disk is gone"):
        b.steps(2)
    assert calls == [0]


def test_what_only_the_worker_knows_waits_less(bench: Make, make_record: Make) -> None:
    def handle(message: Any) -> None:
        b.clock.advance_ms(9)
        if message.queue_offset == 2:
            raise ValueError("no")

    b = bench(handle, bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(6)], 1)
    b.steps(2)
    assert reports(b) == [(1, 0, 3), (1, 3, 3)]


def test_what_waits_of_a_chunk_before_is_reported_between_two_calls(bench: Make, make_record: Make) -> None:
    """The cell names records of one chunk only."""
    b = bench(lambda message: b.clock.advance_ms(1 if message.queue_offset < 4 else 9), bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(4)], 1)
    b.chunk([make_record(offset=offset) for offset in range(4, 8)], 2)
    b.steps(2)
    assert reports(b) == []
    b.steps(1)
    assert reports(b) == [(1, 0, 4), (2, 0, 1), (2, 1, 3)]


# --- what a start reads -----------------------------------------------------------------------------------------


class Watched:
    """A cell of which somebody is told whenever a word of it has changed: a kill may come then."""

    def __init__(self, changed: Callable[[CellView], None]) -> None:
        self._cell, self._changed = private_cell(), changed

    def __getitem__(self, word: Any) -> Any:
        return self._cell[word]

    def __setitem__(self, word: Any, value: Any) -> None:
        self._cell[word] = value
        self._changed(self._cell)


@pytest.mark.parametrize("seed", range(20))
def test_at_no_moment_more_is_shown_than_what_ended_and_left_nothing(
    bench: Make, make_record: Make, make_inner_batch: Make, tmp_path: Path, seed: int
) -> None:
    """Rows, failures, filtered records and inner batches among plain calls; reports beside calls and between them."""
    random = Random(seed)
    ended: set[int] = set()
    showed: set[int] = set()
    in_hand = [-1]

    def changed(cell: CellView) -> None:
        found = shown_by(cell, 1)
        if found is not None:
            assert found[1] == in_hand[0] or found[1] not in ended
            assert set(range(*found)) <= ended
            showed.update(range(*found))

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        in_hand[0] = message.queue_offset
        fate = random.randrange(8)
        b.clock.advance_ms(random.choice([0.1, 2, 9]))
        if fate == 0:
            b.worker.report_beside()
        if fate == 1:
            raise ValueError("no")
        if fate == 2:
            return {"n": message.queue_offset}
        ended.add(message.queue_offset)
        return None

    b = bench(handle, schema="n int", folder=tmp_path, bounds=LIMITS, cell=Watched(changed))
    b.queue(QueueInfo("group", "TopicTest", "broker-a", 3, ("a",)))
    b.worker.offer_reports()
    offset = 0
    for chunk in range(1, 9):
        records = []
        for _ in range(random.randrange(1, 12)):
            if random.random() < 0.1:
                records.append(make_inner_batch([b"x", b"y"], offset=offset, tags=["a", "a"]))
                offset += 1
            else:
                tag = "b" if random.random() < 0.1 else "a"
                records.append(make_record(offset=offset, properties={"TAGS": tag}))
            offset += 1
        b.chunk(records, chunk)
    b.steps(12)
    assert showed


def test_of_chunks_before_a_reset_nothing_is_shown() -> None:
    cell = private_cell()
    unreported = Unreported(cell)
    unreported.offer()
    cell[CHUNK_ID] = 7
    unreported.begin(100)
    cell[STATE] = 103 + 1
    assert [shown_by(cell, counts_from) for counts_from in (0, 1, 7, 8)] == [None, (100, 103), (100, 103), None]


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[CellFile]:
    file = CellFile(tmp_path / "cells", 3)
    yield file
    file.close()


def test_the_file_says_it_by_queue_and_only_where_it_counts(cells: CellFile) -> None:
    for slot, queue_id in ((0, 5), (2, 6)):
        cell = map_cell(cells.path, slot, 100 + slot)
        unreported = Unreported(cell)
        unreported.offer()
        Naming(cell, lambda: 1).chunk(9, QueueInfo("group", "orders", "broker-a", queue_id))
        unreported.begin(40)
        cell[STATE] = 42 + 1
    assert list(shown(cells)) == [], "before a run has said from which chunk on its cells count"
    cells.counts_from = 1
    queues = [MessageQueue("orders", "broker-a", queue_id) for queue_id in (5, 6)]
    assert list(shown(cells)) == [(mq, 40, 42) for mq in queues]
    cells.clear(0)
    assert list(shown(cells)) == [(queues[1], 40, 42)]


def test_a_name_that_fills_the_text_does_not_reach_the_words_behind_it(cells: CellFile) -> None:
    cell = map_cell(cells.path, 0, 1)
    room = (BLOCKED_NS - TEXT) * 8
    for length in range(room - 60, room):
        Naming(cell, lambda: 1).chunk(9, QueueInfo("group", "t" * length, "b", 1))
        assert cell[BLOCKED_NS] == 0


def test_after_another_start_of_the_machine_no_cell_counts(tmp_path: Path) -> None:
    """A loss of power may leave pages of different moments: the first record of one call, and the last of another."""
    for boots, counted in (([5, 5], 3), ([5, 6], 0), ([0, 0], 0)):
        writer, reader = (CellFile(tmp_path / "cells", 1, boot=partial(int, boot)) for boot in boots)
        writer.counts_from = 3
        assert reader.counts_from == counted
        writer.close()
        reader.close()


@pytest.mark.parametrize("place", [0, 1])
def test_a_run_with_an_inner_batch_is_not_shown(
    bench: Make, make_record: Make, make_inner_batch: Make, place: int
) -> None:
    """The cell names records by their last offsets: others of the batch would not count, and be taken for lost."""
    seen: list[Any] = []
    b = bench(lambda _message: seen.append(shown_by(b.cell, 1)), bounds=LIMITS)
    b.worker.offer_reports()
    records = [make_record(offset=7), make_inner_batch([b"x", b"y"], offset=8), make_record(offset=10)]
    b.chunk(records[place:])
    b.steps(2)
    assert seen and not any(seen)


def test_what_the_journal_is_not_told_is_not_shown_and_is_reported_after_each_call(
    bench: Make, make_record: Make
) -> None:
    seen: list[Any] = []

    def handle(_message: Any) -> None:
        seen.append(shown_by(b.cell, 1))
        b.clock.advance_ms(9)

    b = bench(handle, bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(3)], journalled=False)
    b.steps(2)
    assert (seen, reports(b)) == ([None] * 3, [(1, number, 1) for number in range(3)])


def test_a_handler_that_closes_the_link_is_found_out_before_the_next_call(bench: Make, make_record: Make) -> None:
    """While nothing is written either: the fewer messages may have done it, the sooner it is known which one has."""
    ran: list[int] = []

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        b.clock.advance_ms(9)
        if message.queue_offset == 1:
            b.worker_link.close()

    b = bench(handle, bounds=LIMITS)
    b.worker.offer_reports()
    b.chunk([make_record(offset=offset) for offset in range(5)])
    with pytest.raises(DescriptorsClosedError):
        b.steps(2)
    assert ran == [0, 1]


class Moving:
    """A cell that its worker goes on to write: the other moment's words are there from the `at`-th read on."""

    def __init__(self, first: dict[int, int], then: dict[int, int], at: int) -> None:
        self._first, self._then, self._at = first, then, at
        self._reads = 0

    def __getitem__(self, word: int) -> int:
        self._reads += 1
        return (self._first if self._reads <= self._at else self._then)[word]


@pytest.mark.parametrize("at", range(9))
def test_a_worker_that_outlives_its_supervisor_for_a_moment_is_not_misread(at: int) -> None:
    """It begins another chunk, or reports what failed: words of two moments together would say what never was."""
    base = 1 << 63
    first = {UNREPORTED: 101, CHUNK_ID: 10, HELD: base, STATE: 105}
    for then in (
        {UNREPORTED: 5001, CHUNK_ID: 11, HELD: base, STATE: 5004},
        {UNREPORTED: 112, CHUNK_ID: 10, HELD: base | 1 << 40, STATE: 115},
    ):
        found = shown_by(Moving(first, then, at), 1)  # type: ignore[arg-type]
        assert found in (None, (100, 104), (then[UNREPORTED] - 1, then[STATE] - 1))


def test_a_long_chunk_of_short_calls_looks_once_a_millisecond_whether_it_can_wait(
    bench: Make, make_record: Make
) -> None:
    looks: list[int] = []
    b = bench(lambda _message: b.clock.advance_ms(0.1), bounds=LIMITS)
    b.worker.offer_reports()
    b.worker._runner._can_wait = lambda: not looks.append(1)
    b.chunk([make_record(offset=offset) for offset in range(250)])
    b.steps(2)
    assert reports(b) == [(1, 0, 250)]
    assert len(looks) <= 21  # 20 ms of it are beyond the flush interval
