"""A queue that leaves while calls take far longer than they did: what has not begun is left to the next owner in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.assigning import CUT_SHORT_MS, RECALL_AGAIN_MS

if TYPE_CHECKING:
    from .conftest import Bench

Make = Callable[..., "Bench"]


def leave(bench: Bench, *, stops: bool) -> None:
    if stops:
        bench.core.handle(ev.Stop(), bench.now)
    else:
        bench.revoke()
    bench.commits()


@pytest.mark.parametrize("stops", [False, True])
def test_what_has_not_begun_is_left(make: Make, stops: bool) -> None:
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(8))
    first, second = bench.dispatched()
    leave(bench, stops=stops)
    bench.pass_ms(CUT_SHORT_MS - 1)
    bench.none(act.Reclaim)
    bench.done(first, count=1)
    bench.pass_ms(1)
    asked = bench.one(act.Reclaim)
    assert asked.chunk_ids == (first.chunk_id, second.chunk_id)
    bench.pass_ms(RECALL_AGAIN_MS)
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
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(8))
    first, *others = bench.dispatched()
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
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(8))
    chunks = bench.dispatched()
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
    recall = bench.one(act.Recall)
    assert (recall.worker_id, recall.handle) == ("a", handle)
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
    bench.pass_ms(CUT_SHORT_MS + RECALL_AGAIN_MS)
    bench.none(act.Reclaim)
    assert "drain_cut_short" not in bench.logged()
