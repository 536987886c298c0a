"""A worker that one message holds up gives the others to one that idles; each runs once, nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.reclaiming import TRY_AGAIN_MS

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench


@pytest.fixture
def held(make: Callable[..., Bench]) -> tuple[Bench, int, list[Chunk]]:
    """Worker a has two chunks of four messages, and idle is another, b."""
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(8))
    chunks = bench.dispatched()
    assert [chunk.offsets for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    bench.worker("b")
    bench.none(act.Dispatch)
    return bench, handle, chunks


def pass_looks(bench: Bench, ms: int = 60) -> None:
    for _ in range(ms // 10):
        bench.pass_ms(10)


def offsets(chunks: list[Chunk]) -> list[list[int]]:
    return [list(chunk.offsets) for chunk in chunks]


def test_the_rest_goes_to_the_idle_worker(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, handle, (first, second) = held
    pass_looks(bench, 40)
    asked = bench.one(act.Reclaim)
    old = second.chunk_id
    assert (asked.worker_id, asked.chunk_ids) == ("a", (first.chunk_id, old))
    bench.core.handle(ev.Reclaimed("a", asked.chunk_ids, 1, 1), bench.now)
    rest, again = bench.dispatched()
    assert offsets([rest, again]) == [[1, 2, 3], [4, 5, 6, 7]]
    assert {rest.worker_id, again.worker_id} == {"b"}
    assert again.chunk_id != old  # ids that a worker has seen are not used again
    bench.done(rest)
    bench.done(again)
    assert bench.persist() == []  # message 0 is still in hand
    bench.done(first)
    assert bench.persist() == [8]
    assert bench.counters.reclaimed_messages == 7
    assert bench.pq(handle).unfinished == bench.pq(handle).unfinished_bytes == 0
    assert bench.core.state.chunks == {}


def test_a_late_word_of_what_was_taken_back_counts_for_nothing(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = held
    old = second.chunk_id
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, old), 1, 4), bench.now)
    bench.core.handle(ev.Reported("a", old, 0, 4, 0, 400, 100, 0, ()), bench.now)
    assert bench.counters.late_reports == 1
    assert [chunk.worker_id for chunk in bench.dispatched()] == ["b"]


def test_a_worker_that_is_held_up_gets_nothing_until_it_reports(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, handle, (first, second) = held
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 1), bench.now)
    bench.found(handle, range(8, 24))
    assert {chunk.worker_id for chunk in bench.dispatched()} == {"b"}
    pass_looks(bench, 200)
    bench.none(act.Reclaim)  # there is nothing more to be had of it
    bench.done(first)
    assert "a" in {chunk.worker_id for chunk in bench.dispatched()}


def test_nobody_is_asked_while_no_worker_idles_or_something_waits(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(20))
    chunks = bench.dispatched()
    pass_looks(bench)
    bench.none(act.Reclaim)
    for chunk in [chunk for chunk in chunks if chunk.worker_id == "b"]:
        bench.done(chunk)
    for chunk in bench.dispatched():
        bench.done(chunk)
    pass_looks(bench)
    assert {asked.worker_id for asked in bench.take(act.Reclaim)} == {"a"}


def test_who_reports_from_time_to_time_is_left_alone(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, _) = held
    for _ in range(3):
        bench.pass_ms(10)
        bench.pass_ms(5)
        bench.done(first, count=1)
    bench.none(act.Reclaim)


def test_a_last_message_has_nothing_behind_it(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.found(handle, [0])
    pass_looks(bench)
    bench.none(act.Reclaim)


def test_what_is_reported_to_the_split_is_over(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = held
    bench.done(first, count=2)
    bench.core.handle(ev.RetireWorker("a"), bench.now)
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 2), bench.now)
    assert offsets(bench.dispatched()) == [[2, 3], [4, 5, 6, 7]]
    assert bench.one(act.Retired).worker_id == "a"
    assert bench.persist() == [2]


def test_who_has_begun_nothing_gives_everything_and_gets_something_later(
    held: tuple[Bench, int, list[Chunk]],
) -> None:
    bench, handle, (first, second) = held
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 2, 0), bench.now)
    assert offsets(bench.dispatched()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not bench.core.state.workers["a"].in_flight
    assert "a" in bench.core.busy_workers()  # if its loop stands still, that shall be noticed
    bench.found(handle, range(8, 16))
    bench.none(act.Dispatch)
    bench.pass_ms(TRY_AGAIN_MS)
    assert {chunk.worker_id for chunk in bench.dispatched()} == {"a"}


def test_a_worker_that_dies_behind_it_leaves_only_what_was_its_own(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = held
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 2), bench.now)
    others = bench.dispatched()
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id,), 0, 1), bench.now)  # too late
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    for chunk in others:
        bench.done(chunk)
    (again,) = bench.dispatched()
    assert offsets([again]) == [[0, 1]]
    bench.done(again)
    assert bench.persist() == [8]


def test_a_part_of_its_own_does_not_end_the_hold_up(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, handle, (first, second) = held
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 2), bench.now)
    bench.done(first, count=1)  # on its way since before it was held up
    bench.found(handle, range(8, 24))
    assert {chunk.worker_id for chunk in bench.dispatched()} == {"b"}
    bench.done(first)
    assert "a" in {chunk.worker_id for chunk in bench.dispatched()}


def test_what_is_taken_back_of_a_queue_that_leaves_is_left_to_its_next_owner(
    held: tuple[Bench, int, list[Chunk]],
) -> None:
    bench, handle, (first, second) = held
    bench.revoke()
    bench.commits()
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 1), bench.now)
    bench.none(act.Dispatch)
    assert handle in bench.core.state.queues
    bench.done(first)
    assert [commit.offset for commit in bench.take(act.Commit)] == [1]  # at once, not at the deadline of the drain


def test_a_queue_that_leaves_ends_when_nothing_of_it_was_begun(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = held
    bench.revoke()
    bench.commits()
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 2, 0), bench.now)
    bench.commits()
    assert bench.core.state.queues == {}
    assert bench.slab.used_units == 0


def test_a_worker_that_may_be_given_something_again_by_a_timer_is_seen_to_idle(
    held: tuple[Bench, int, list[Chunk]],
) -> None:
    bench, _, (first, _) = held
    state = bench.core.state
    state.hold_up(state.workers["b"], True)
    state.at(bench.now + 0.05, lambda _now: state.hold_up(state.workers["b"], False))
    bench.pass_ms(49)
    bench.done(first, count=1)
    bench.none(act.Reclaim)
    for _ in range(40):
        bench.pass_ms(1)
    assert bench.one(act.Reclaim).worker_id == "a"


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
def test_whatever_gives_a_worker_something_a_look_is_due(make: Callable[..., Bench], order: str) -> None:
    """Also what was waited for: here a function's keys, a lock that came again, a rate."""
    bench = make(order=order, order_key="", chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.core.handle(ev.Pause("operator"), bench.now)
    bench.found(handle, range(4))
    if order == "key":
        asked = bench.one(act.Classify)
        assert bench.core.next_timer() is None
        bench.core.handle(ev.Classified(asked.worker_id, handle, [b"k"] * asked.count), bench.now)
    assert bench.core.state.busy
    assert bench.core.next_timer() is not None


@pytest.mark.parametrize("order", ["queue", "key"])
def test_in_order_nothing_is_taken_back(make: Callable[..., Bench], order: str) -> None:
    bench = make(chunk_messages_max=4, order=order)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.found(handle, range(8))
    pass_looks(bench, 100)
    bench.none(act.Reclaim)


def test_the_bytes_of_an_ended_queue_are_given_back(held: tuple[Bench, int, list[Chunk]]) -> None:
    bench, _, (first, second) = held
    bench.revoke()
    bench.pass_ms(60_000)
    bench.commits()
    assert bench.core.state.queues == {}
    bench.core.handle(ev.Reclaimed("a", (first.chunk_id, second.chunk_id), 1, 1), bench.now)
    bench.none(act.Dispatch)
    assert bench.slab.used_units > 0
    bench.core.handle(ev.Reported("a", first.chunk_id, 0, 1, 0, 100, 100, 0, ()), bench.now)
    assert bench.slab.used_units == 0
    assert bench.core.state.chunks == {}
