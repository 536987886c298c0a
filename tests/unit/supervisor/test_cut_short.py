"""A queue that leaves while calls take far longer than they did: what has not begun is left to the next owner in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rocketcrew.durable.outcomes import LOST
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.assigning import CUT_SHORT_MS, RECLAIM_AGAIN_MS
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.workers.failures import asked

from .conftest import ME, Bench, noted

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

Make = Callable[..., Bench]


def given_out(make: Make, *workers: str, messages: int = 8) -> tuple[Bench, int, list[Chunk]]:
    """Messages of a queue in chunks of up to four, the handle of the queue, and what the workers have of it."""
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker(*workers)
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(messages))
    return bench, handle, bench.dispatched()


def leave(bench: Bench, *, stops: bool) -> None:
    if stops:
        bench.core.handle(ev.Stop(), bench.now)
    else:
        bench.revoke()
    bench.commits()


@pytest.mark.parametrize("stops", [False, True])
def test_what_has_not_begun_is_left(make: Make, stops: bool) -> None:
    bench, handle, (first, second) = given_out(make, "a")
    leave(bench, stops=stops)
    bench.pass_ms(CUT_SHORT_MS - 1)
    bench.none(act.Reclaim)
    bench.done(first, count=1)
    bench.pass_ms(1)
    asked = bench.one(act.Reclaim)
    assert asked.chunk_ids == (first.chunk_id, second.chunk_id)
    bench.pass_ms(RECLAIM_AGAIN_MS)
    assert bench.one(act.Reclaim).chunk_ids == asked.chunk_ids  # it had just gone on
    bench.core.handle(ev.Reclaimed("a", asked.chunk_ids, 1, 2), bench.now)
    bench.none(act.Dispatch)
    bench.done(first)
    assert bench.commits()[-1] == 2
    assert handle not in bench.core.state.queues
    assert "drain_deadline" not in bench.logged()
    if stops:
        left = bench.one(act.Finished)
        assert (left.unfinished, left.uncommitted) == (0, 0)


def test_a_stop_says_what_is_finished_above_what_was_left(make: Make) -> None:
    """Another member runs that again, too."""
    bench, _, (first, *others) = given_out(make, "a", "b")
    leave(bench, stops=True)
    for chunk in others:
        bench.done(chunk)
    bench.pass_ms(CUT_SHORT_MS)
    asked = bench.take(act.Reclaim)[-1]
    assert asked.worker_id == first.worker_id
    bench.core.handle(ev.Reclaimed(asked.worker_id, asked.chunk_ids, 0, 1), bench.now)
    bench.done(first)
    assert bench.commits()[-1] == 1
    left = bench.one(act.Finished)
    assert (left.unfinished, left.uncommitted) == (0, sum(chunk.count for chunk in others))


def test_what_a_dead_worker_left_is_not_begun_in_a_stop_that_takes_long(make: Make) -> None:
    bench, handle, chunks = given_out(make, "a", "b")
    leave(bench, stops=True)
    bench.pass_ms(CUT_SHORT_MS)
    died = next(chunk.worker_id for chunk in chunks if chunk.worker_id != chunks[0].worker_id)
    assert died is not None
    theirs = [chunk for chunk in chunks if chunk.worker_id == died]
    bench.core.handle(ev.WorkerDied(died), bench.now)
    bench.core.handle(ev.SalvageComplete(died), bench.now)
    bench.none(act.Dispatch)
    for chunk in chunks:
        if chunk not in theirs:
            bench.done(chunk)
    assert bench.commits()[-1] == min(chunk.begin for chunk in theirs)
    assert handle not in bench.core.state.queues


@pytest.mark.parametrize(
    ("in_hand", "unfinished"),
    [
        ((0, 1, 2), 3),  # the cell names what runs, and chunks are run in the order of dispatch
        ((1, 5, 5), 6),
        (None, 8),  # it may have begun any of them
    ],
)
@pytest.mark.parametrize("dies_first", [False, True])
def test_of_what_a_dead_worker_left_only_that_which_had_begun_is_unfinished(
    make: Make, in_hand: tuple[int, int, int] | None, unfinished: int, dies_first: bool
) -> None:
    bench, handle, chunks = given_out(make, "a")
    leave(bench, stops=True)
    hand = None
    if in_hand is not None:
        number, first, last = in_hand
        hand = InHand(chunks[number].chunk_id, first, last, last - first + 1)
    if not dies_first:
        bench.pass_ms(CUT_SHORT_MS)
    bench.core.handle(ev.WorkerDied("a", Death(End.OURS, hand)), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    if dies_first:
        bench.pass_ms(CUT_SHORT_MS)  # nobody was there to run it meanwhile
    bench.commits()
    assert handle not in bench.core.state.queues
    assert bench.one(act.Finished).unfinished == unfinished


def test_what_was_given_back_before_and_nobody_took_has_not_begun(make: Make) -> None:
    bench, _, (first, second) = given_out(make, "a")
    leave(bench, stops=True)
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 0), bench.now)
    bench.pass_ms(CUT_SHORT_MS)
    bench.done(first)
    bench.commits()
    assert bench.one(act.Finished).unfinished == 0


@pytest.mark.parametrize("order", ["queue", "key"])
@pytest.mark.parametrize("stops", [False, True])
def test_in_order_it_is_recalled(make: Make, stops: bool, order: str) -> None:
    bench = make(order=order, locks=False, chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(4))
    chunks = [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]
    leave(bench, stops=stops)
    bench.done(chunks[0], count=1)
    bench.pass_ms(CUT_SHORT_MS)
    assert bench.one(act.Recall).worker_id == "a"
    for chunk in chunks:
        if chunk.reported < chunk.count:
            bench.core.handle(ev.Returned("a", chunk.chunk_id, chunk.reported, 0, None, 0), bench.now)
    bench.none(act.DispatchOrdered)
    assert bench.commits()[-1] == 1
    assert handle not in bench.core.state.queues


def test_one_that_drains_in_time_is_asked_for_nothing(make: Make) -> None:
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(2))
    chunks = bench.dispatched()
    leave(bench, stops=False)
    for chunk in chunks:
        bench.done(chunk)
    bench.commits()
    bench.pass_ms(CUT_SHORT_MS + RECLAIM_AGAIN_MS)
    bench.none(act.Reclaim)
    assert "drain_cut_short" not in bench.logged()


def test_what_a_queue_passes_that_goes_on_elsewhere_is_run(make: Make) -> None:
    """The broker has deleted messages: nobody else runs those that we have. What was not given out is lost, and noted."""
    bench, handle, (first, second) = given_out(make, "a", messages=12)
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, 100, min_offset=100)
    bench.core.handle(ev.Pulled(handle, moved), bench.now)
    bench.pass_ms(CUT_SHORT_MS)
    bench.none(act.Reclaim)
    bench.done(first)
    bench.done(second)
    assert bench.commits() == [100]
    assert noted(bench)[LOST] == [(8, 100)]


def test_what_is_held_comes_again(make: Make) -> None:
    bench = make(order="queue", locks=False, chunk_messages_max=4)
    bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(bench.one(act.Pull).handle, range(4))
    (chunk,) = [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]
    leave(bench, stops=True)
    bench.core.handle(ev.Returned("a", chunk.chunk_id, 0, 1, asked(0, "later"), 30_000), bench.now)
    bench.pass_ms(CUT_SHORT_MS)
    bench.commits()
    assert bench.one(act.Finished).unfinished == 4


def test_long_calls_are_not_cut_short(make: Make) -> None:
    """Two calls of three seconds are what was planned."""
    bench = make()
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 3_000_000.0
    bench.found(handle, range(2))
    bench.dispatched()
    leave(bench, stops=True)
    bench.pass_ms(5_999)
    bench.none(act.Reclaim)
    bench.pass_ms(1)
    bench.one(act.Reclaim)


def test_a_worker_that_was_given_more_since_is_asked_again(make: Make) -> None:
    """Two are asked in one step, and what the first gives back goes to the second."""
    bench = make(chunk_messages_max=2)
    leaving, staying = bench.open(0, 1)
    bench.core.state.sizer.tail_us = 100.0
    bench.worker("a")
    bench.found(leaving, range(2))
    bench.found(staying, range(2))
    bench.worker("b")
    bench.found(leaving, range(2, 4))
    bench.dispatched()
    bench.members([0, 1], ["0", ME])
    bench.commits()
    bench.pass_ms(CUT_SHORT_MS)
    for asked_for in bench.take(act.Reclaim):
        unbegun = len(asked_for.chunk_ids) - 1
        bench.core.handle(ev.Reclaimed(asked_for.worker_id, asked_for.chunk_ids, unbegun, 1), bench.now)
    (again,) = bench.dispatched()
    assert (again.handle, again.worker_id) == (staying, "b")
    bench.worker("c")
    for _ in range(10):
        bench.pass_ms(20)
    assert {reclaim.worker_id for reclaim in bench.take(act.Reclaim)} == {"b"}
