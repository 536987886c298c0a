"""The life of messages through the whole core: pulled, dispatched, reported, sealed, committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.states import QueueState

if TYPE_CHECKING:
    from .conftest import Bench


def test_start_asks_for_every_topic_and_keeps_asking(bench: Bench) -> None:
    bench.core.handle(ev.Start(), 0.0)
    assert bench.one(act.FetchAssignment).topic == "orders"
    bench.pass_ms(19_999)
    bench.none(act.FetchAssignment)
    bench.pass_ms(1)
    assert bench.one(act.FetchAssignment).topic == "orders"


def test_messages_without_rows_are_committed_when_they_are_done(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=7)
    pull = bench.one(act.Pull)
    assert (pull.offset, pull.commit_offset) == (7, 0)
    bench.worker("w1")
    bench.found(handle, [7, 8, 9])
    first, second = bench.dispatched()
    assert [chunk.offsets for chunk in (first, second)] == [[7], [8]]
    assert bench.persist() == []
    bench.done(first)
    assert bench.persist() == [8]
    (third,) = bench.dispatched()
    bench.done(third)
    assert bench.persist() == []  # 8 is not finished
    bench.done(second)
    assert bench.persist() == [10]
    assert bench.slab.used_units == 0
    assert bench.counters.invariant_violations == 0


def test_rows_hold_the_offset_until_their_segment_is_sealed(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.done(first, seq=1)
    bench.done(second)
    assert bench.persist() == []
    bench.none(act.Seal)  # its worker seals by rows, bytes and time
    bench.sealed("w1", 1)
    assert bench.persist() == [2]
    journal = [(a.start, a.end, a.worker_id, a.seq) for a in bench.take(act.JournalDone)]
    assert journal == [(0, 1, "w1", 1), (1, 2, "w1", 0)]
    assert [(a.worker_id, a.seq) for a in bench.take(act.JournalSealed)] == [("w1", 1)]
    assert [(a.start, a.offset) for a in bench.take(act.JournalCommitted)] == [(0, 0), (0, 2)]


def test_an_outcome_behind_its_seal_is_durable_at_once(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.sealed("w1", 1)
    bench.done(chunk, seq=1)
    assert bench.persist() == [1]


def test_a_seal_covers_every_earlier_segment_of_the_worker(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.found(handle, [0, 1, 2])
    chunks = bench.dispatched()
    by_worker = {chunk.worker_id: chunk for chunk in chunks[:2]}
    bench.done(by_worker["w1"], seq=1)
    bench.done(by_worker["w2"], seq=1)
    bench.done(chunks[2], seq=2)
    bench.sealed(chunks[2].worker_id or "", 2)
    assert bench.core.unsealed_of("w1") + bench.core.unsealed_of("w2") == [1]


def test_an_offset_that_stands_still_is_told_again(bench: Bench) -> None:
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    bench.core.handle(ev.Opened(fetch.handle, 7), bench.now)
    assert bench.persist() == [7]  # perhaps nobody stored it
    bench.pass_ms(29_999)
    assert bench.persist() == []
    bench.pass_ms(1)
    assert bench.persist() == [7]
    assert len(bench.take(act.JournalCommitted)) == 1


def test_a_pull_carries_what_can_be_committed(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    assert bench.one(act.Pull).commit_offset == 0
    for chunk in bench.dispatched():
        bench.done(chunk)
    bench.answer(handle, 19, 2)
    assert bench.one(act.Pull).commit_offset == 2


def test_a_late_outcome_of_an_ended_queue_is_dropped_and_counted(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.revoke()
    assert bench.pq(handle).state is QueueState.DRAINING
    bench.pass_ms(10_000)
    assert handle not in bench.core.state.queues
    bench.take(act.JournalDone)
    bench.done(chunk, seq=1)
    bench.none(act.JournalDone, act.Commit)
    assert bench.counters.late_reports == 1
    assert bench.slab.used_units == 0
    assert not bench.core.state.unsealed


def test_bytes_of_an_ended_queue_feed_the_line_of_starved_queues(make: type[Bench]) -> None:
    bench = make(units=8)  # 7 units to reserve
    first, second = bench.open(0, 1)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.found(first, [0], body_bytes=7 * 16 * 1024 - 300)
    bench.answer(second, 19, 0)
    bench.none(act.Pull)
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.Members("orders", [bench.queue(0), bench.queue(1)], ["0", "10.0.0.1@1#1"]), 0.0)
    bench.pass_ms(10_000)
    assert first not in bench.core.state.queues
    bench.none(act.Pull)
    bench.done(chunk)
    assert bench.one(act.Pull).handle == second


def test_an_outcome_out_of_order_kills_the_worker(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.Reported("w1", chunk.chunk_id, 1, 1, 0, 1, 1, 0, ()), 0.0)
    assert bench.one(act.KillWorker).worker_id == "w1"
    bench.core.handle(ev.Reported("w1", chunk.chunk_id, 0, 2, 0, 1, 1, 0, ()), 0.0)
    assert bench.one(act.KillWorker).worker_id == "w1"
    assert bench.persist() == []
    bench.core.handle(ev.Reported("w2", chunk.chunk_id, 0, 1, 0, 1, 1, 0, ()), 0.0)
    assert bench.counters.late_reports == 1


def test_a_notice_before_the_start_opens_nothing(bench: Bench) -> None:
    """A broker notifies its members of us before it answers our first heartbeat."""
    bench.core.handle(ev.Rebalance(), 0.0)
    bench.none(act.FetchAssignment)
    bench.core.handle(ev.Start(), 0.0)
    assert bench.one(act.FetchAssignment).topic == "orders"
