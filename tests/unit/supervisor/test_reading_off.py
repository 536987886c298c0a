"""What a worker in a long call had finished before is read off its cell, counted once; never what only it can report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.workers.failures import Failure, asked

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench


@pytest.fixture
def busy(make: Callable[..., Bench]) -> tuple[Bench, int, list[Chunk]]:
    """The only worker has two chunks of four messages."""
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(8))
    chunks = bench.dispatched()
    assert [list(chunk.offsets) for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    return bench, handle, chunks


def done(bench: Bench) -> list[tuple[int, int, int]]:
    """(from, to, segment) as journalled since the last look."""
    return [(entry.start, entry.end, entry.seq) for entry in bench.take(act.JournalDone)]


def in_hand(bench: Bench, chunk: Chunk, offset: int, held: tuple[int, int] | None = None) -> None:
    bench.core.handle(ev.CellRead("a", chunk.chunk_id, offset, held), bench.now)


@pytest.mark.parametrize(("rows", "late_ms"), [(False, 170), (True, 80)])
def test_a_worker_is_read_once_it_keeps_what_ended_for_longer_than_between_calls(
    busy: tuple[Bench, int, list[Chunk]], rows: bool, late_ms: int
) -> None:
    """What its cell shows it reports once a chunk; rows it keeps for eight flush intervals, and some time."""
    bench, _, (first, _) = busy
    bench.core.state.sizer.rows = rows
    bench.pass_ms(171)  # the first look is as for calls that leave no rows
    for _ in range(2):
        bench.done(first, count=1)
        bench.core.state.sizer.rows = rows
        bench.take(act.ReadCell)
        for _ in range(late_ms // 5 - 1):
            bench.pass_ms(5)
        bench.none(act.ReadCell)
        bench.pass_ms(20)
        assert bench.take(act.ReadCell)[0].worker_id == "a"


def test_a_worker_of_which_something_is_taken_back_is_no_less_silent_for_it(
    busy: tuple[Bench, int, list[Chunk]],
) -> None:
    bench, _, (first, second) = busy
    bench.pass_ms(100)
    bench.worker("b")
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 3), bench.now)
    bench.take(act.ReadCell)
    for _ in range(100):
        bench.pass_ms(1)
    assert bench.take(act.ReadCell)[0].worker_id == "a"


def looks(bench: Bench, ms: int) -> int:
    """How often the worker, which never reports, was looked at."""
    found = 0
    for _ in range(ms):
        bench.pass_ms(1)
        found += len(bench.take(act.ReadCell))
    return found


def test_no_look_comes_before_it_can_find_something(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """Each wakes the loop up, with cold caches: of calls that are alike there are as many as reports."""
    bench, _, chunks = busy
    wakes = 0
    for at in range(1_200):
        due = bench.core.state.next_timer()
        assert due is not None
        bench.pass_ms(1)
        wakes += due <= bench.now
        if at % 150 == 149:
            bench.done(chunks[at // 600], count=1)
    assert wakes <= 1_200 / 150 + 2
    bench.none(act.ReadCell)


def test_looks_that_find_nothing_become_rare(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, _) = busy
    bench.core.state.sizer.rows = True
    bench.pass_ms(171)
    in_hand(bench, first, 1)
    bench.take(act.ReadCell)
    assert looks(bench, 79) <= 1  # the one that was due
    assert 45 <= looks(bench, 1_000) <= 60  # of 200
    in_hand(bench, first, 2)
    assert looks(bench, 79) <= 1  # the one that was due
    assert looks(bench, 41) >= 7  # calls may be uneven now


def test_a_worker_that_idles_brings_the_next_look_forward(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, _ = busy
    bench.pass_ms(35)
    bench.worker("b")
    bench.none(act.Reclaim)
    bench.pass_ms(5.1)
    assert bench.one(act.Reclaim).worker_id == "a"


def test_a_look_names_the_first_record_that_is_open(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """While the worker runs that one, nobody has to look closer."""
    bench, _, (first, _) = busy
    bench.done(first, count=2)
    bench.pass_ms(170.1)
    bench.pass_ms(20.1)
    assert {asked.first_open for asked in bench.take(act.ReadCell)} == {(first.chunk_id, 2)}


def test_a_worker_with_one_record_in_all_is_not_read(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=1, chunks_in_flight=1)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(2))
    for _ in range(10):
        bench.pass_ms(5.1)
    bench.none(act.ReadCell)


def test_a_coroutine_handler_is_not_read(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """Its messages end in any order."""
    bench, _, (first, _) = busy
    bench.core.handle(ev.WorkerWindow("a", 8), bench.now)
    for _ in range(10):
        bench.pass_ms(5.1)
    bench.none(act.ReadCell)
    in_hand(bench, first, 2)
    assert done(bench) == []


@pytest.mark.parametrize("order", ["queue", "key"])
def test_in_order_nothing_is_read_off_and_the_worker_is_asked_once_a_call(
    make: Callable[..., Bench], order: str
) -> None:
    """What it has to give back only it knows; what was held until a timer let it go is looked at, too."""
    bench = make(chunk_messages_max=4, order=order)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(2))
    first = bench.one(act.DispatchOrdered).chunks[0].chunk
    bench.core.handle(ev.Returned("a", first.chunk_id, 0, 1, asked(0, "no"), 20), bench.now)
    bench.pass_ms(5.1)
    bench.pass_ms(50.1)
    bench.one(act.DispatchOrdered)
    bench.take(act.ReadCell)
    bench.pass_ms(80.1)
    bench.pass_ms(5.1)
    assert bench.take(act.ReadCell)
    bench.none(act.Reclaim)
    for _ in range(2):
        in_hand(bench, first, first.offsets[-1], (first.chunk_id, 0))
    assert bench.one(act.AskReport).worker_id == "a"
    assert done(bench) == []


def test_where_the_handler_commits_nothing_is_looked_for(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=4, order="queue", auto_commit=False)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(4))
    for _ in range(5):
        bench.pass_ms(20)
    bench.none(act.ReadCell, act.AskReport)


def test_what_stands_before_the_record_in_hand_is_done_and_may_be_committed(
    busy: tuple[Bench, int, list[Chunk]],
) -> None:
    bench, handle, (first, _) = busy
    in_hand(bench, first, 2)
    in_hand(bench, first, 2)
    assert done(bench) == [(0, 2, 0)]
    assert bench.persist() == [2]
    assert (bench.counters.done_messages, bench.counters.read_off_messages, bench.pq(handle).unfinished) == (2, 2, 6)


def test_chunks_before_the_one_in_hand_are_over(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, handle, (first, second) = busy
    in_hand(bench, second, 5)
    assert done(bench) == [(0, 4, 0), (4, 5, 0)]
    assert bench.persist() == [5]
    bench.core.handle(ev.Reported("a", first.chunk_id, 0, 4, 0, 400, 100, 0, ()), bench.now)
    bench.core.handle(ev.Reported("a", second.chunk_id, 0, 4, 0, 400, 100, 0, ()), bench.now)
    assert bench.persist() == [8]
    assert bench.counters.late_reports == 0
    assert (bench.counters.done_messages, bench.counters.busy_us) == (8, 800)
    assert bench.core.state.workers["a"].read_ahead == {}
    assert bench.core.state.chunks == {}
    assert bench.pq(handle).unfinished == 0


def test_the_worker_reports_what_was_read_again_and_it_counts_once(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, _) = busy
    in_hand(bench, first, 2)
    done(bench)
    bench.core.handle(ev.Reported("a", first.chunk_id, 0, 3, 1, 300, 100, 0, ((2, asked(0, "no")),)), bench.now)
    assert done(bench) == []  # the third failed
    bench.core.handle(ev.Reported("a", first.chunk_id, 3, 1, 1, 100, 100, 0, ()), bench.now)
    assert done(bench) == [(3, 4, 1)]
    assert (bench.counters.done_messages, bench.counters.failed_messages) == (3, 1)
    bench.none(act.KillWorker)


@pytest.mark.parametrize(("start", "count", "failures"), [(1, 2, ()), (0, 3, ((1, asked(0, "no")),)), (0, 5, ())])
def test_a_report_that_contradicts_what_was_read_ends_the_worker(
    start: int, count: int, failures: tuple[tuple[int, Failure], ...], busy: tuple[Bench, int, list[Chunk]]
) -> None:
    bench, _, (first, _) = busy
    in_hand(bench, first, 2)
    bench.core.handle(ev.Reported("a", first.chunk_id, start, count, 0, 100, 100, 0, failures), bench.now)
    assert bench.one(act.KillWorker).worker_id == "a"


def test_a_failure_in_a_chunk_that_was_read_to_its_end_ends_the_worker(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = busy
    in_hand(bench, second, 4)
    bench.core.handle(ev.Reported("a", first.chunk_id, 0, 4, 0, 100, 100, 0, ((1, asked(0, "no")),)), bench.now)
    assert bench.one(act.KillWorker).worker_id == "a"


def test_from_the_first_that_is_held_on_the_worker_is_asked_once_a_call(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = busy
    in_hand(bench, second, 5, (first.chunk_id, 1))
    in_hand(bench, second, 5, (first.chunk_id, 1))
    assert done(bench) == [(0, 1, 0)]
    assert bench.one(act.AskReport).worker_id == "a"
    in_hand(bench, second, 6, (first.chunk_id, 1))
    bench.one(act.AskReport)


def test_nothing_is_asked_for_when_only_the_record_in_hand_is_held(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """As while its rows are being written down."""
    bench, _, (first, _) = busy
    in_hand(bench, first, 2, (first.chunk_id, 2))
    assert done(bench) == [(0, 2, 0)]
    bench.none(act.AskReport)


@pytest.mark.parametrize("offset", [9, -1])
def test_what_a_cell_says_of_a_record_that_is_not_its_own_counts_for_nothing(
    offset: int, busy: tuple[Bench, int, list[Chunk]]
) -> None:
    bench, _, (first, second) = busy
    in_hand(bench, second, offset)
    bench.core.handle(ev.CellRead("a", 99, 5, None), bench.now)
    bench.core.handle(ev.CellRead("b", first.chunk_id, 2, None), bench.now)
    in_hand(bench, second, 6, (77, 0))
    assert done(bench) == []


def test_of_a_death_that_names_what_was_read_before_the_rest_is_suspected(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """A worker that ends by an error names all that it has not reported itself."""
    bench, _, (first, _) = busy
    in_hand(bench, first, 1)
    mark = InHand(first.chunk_id, first.offsets[0], first.offsets[2], 3, mark="1:1")
    bench.core.handle(ev.WorkerDied("a", Death(End.CRASHED, mark)), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    assert sorted(offset for chunk in bench.core.state.quarantine for offset in chunk.offsets) == [1, 2]
    assert sorted(offset for chunk in bench.core.state.redo for offset in chunk.offsets) == [3, 4, 5, 6, 7]


def test_after_a_death_only_what_was_not_read_runs_again(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (_, second) = busy
    in_hand(bench, second, 5)
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    bench.worker("b")
    assert [offset for chunk in bench.dispatched() for offset in chunk.offsets] == [5, 6, 7]


def test_what_is_reclaimed_and_read_is_reported_once(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, handle, (first, second) = busy
    in_hand(bench, first, 2)
    bench.worker("b")
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 3), bench.now)
    elsewhere = bench.dispatched()
    assert [list(chunk.offsets) for chunk in elsewhere] == [[3], [4, 5, 6, 7]]
    bench.core.handle(ev.Reported("a", first.chunk_id, 0, 3, 0, 300, 100, 0, ()), bench.now)
    for chunk in elsewhere:
        bench.done(chunk)
    assert bench.persist() == [8]
    assert bench.pq(handle).unfinished == bench.pq(handle).unfinished_bytes == 0


def test_a_queue_that_was_taken_away_is_read_without_harm(busy: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, _) = busy
    bench.revoke()
    in_hand(bench, first, 2)
    assert done(bench) == [(0, 2, 0)]


def test_what_is_read_off_a_dead_worker_makes_no_room_at_it(busy: tuple[Bench, int, list[Chunk]]) -> None:
    """It is told to get nothing more before its cell is read (worker_pool.py)."""
    bench, handle, (first, second) = busy
    bench.found(handle, range(8, 12))
    bench.none(act.Dispatch)
    bench.core.handle(ev.WorkerStops("a"), bench.now)
    in_hand(bench, second, 5)
    assert done(bench) == [(0, 4, 0), (4, 5, 0)]
    assert first.reported == 4
    bench.none(act.Dispatch)


def test_where_rows_are_rare_only_cells_that_hold_something_are_read_early(
    busy: tuple[Bench, int, list[Chunk]],
) -> None:
    """What the others show they report in time."""
    bench, _, (first, _) = busy
    bench.core.state.sizer.rows = True
    bench.pass_ms(171)
    bench.done(first, count=1)
    bench.core.state.sizer.rows = True
    bench.take(act.ReadCell)
    asked: list[bool] = []
    for _ in range(40):
        bench.pass_ms(5.1)
        asked += [action.held_only for action in bench.take(act.ReadCell)]
    assert asked[:5] == [True] * 5
    assert asked[-1] is False


def test_what_is_given_out_after_a_reset_was_committed_in_a_stop_counts_for_no_start(
    make: Callable[..., Bench],
) -> None:
    """All of it is to run again: what a worker gave back goes to another, and a kill may come before that has reported."""
    bench = make(chunk_messages_max=8)
    (handle,) = bench.open(0, offset=100)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 10.0
    bench.found(handle, range(100, 108))
    first = bench.one(act.Dispatch)
    assert first.journalled
    bench.worker("b")
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 50}), bench.now)
    bench.core.handle(ev.Stop(), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    bench.commits()
    bench.take(act.Dispatch)
    bench.core.handle(ev.Reclaimed("a", (first.chunk.chunk_id,), 0, 1), bench.now)
    (again,) = bench.take(act.Dispatch)
    assert (list(again.chunk.offsets), again.journalled) == (list(range(101, 108)), False)
