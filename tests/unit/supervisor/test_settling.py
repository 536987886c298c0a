"""Outcomes, send-backs, seals, and what a dead worker leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.supervisor.core.states import QueueState, StateError
from rocketcrew.workers.failures import Mode

if TYPE_CHECKING:
    from .conftest import Bench

import pytest


def _fail_one(bench: Bench, level: int = 0) -> tuple[int, act.SendBack]:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, level, "no")])
    return handle, bench.one(act.SendBack)


# --- send-back --------------------------------------------------------------------------------------------------


def test_a_failure_is_sent_back_with_its_level_and_bytes(bench: Bench) -> None:
    handle, back = _fail_one(bench, level=5)
    chunk = bench.core.state.chunks[back.chunk_id]
    assert (back.delay_level, back.attempt, back.mq) == (5, 0, bench.queue())
    assert (back.start, back.end) == (chunk.positions[0], chunk.positions[1])
    assert bench.persist() == []
    assert bench.slab.used_units == 1
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    assert bench.persist() == [1]
    assert bench.slab.used_units == 0
    assert (bench.counters.failed_messages, bench.counters.sent_back_messages) == (1, 1)
    assert [(a.start, a.end, a.seq) for a in bench.take(act.JournalDone)] == [(0, 1, 0)]
    assert not bench.core.state.chunks


def test_a_refused_send_back_keeps_the_message_and_is_tried_again(bench: Bench) -> None:
    handle, back = _fail_one(bench)
    for attempt in range(1, 4):
        bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=False), bench.now)
        bench.none(act.SendBack)
        assert bench.persist() == []
        bench.pass_ms(4_999)
        bench.none(act.SendBack, act.Dispatch)
        bench.pass_ms(1)
        bench.none(act.SendBack)
        bench.done(bench.dispatched()[0], failures=[(0, 2, "no")])  # it runs here again: retries.py
        back = bench.one(act.SendBack)
        assert back.attempt == attempt
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), bench.now)
    assert bench.persist() == [1]
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), bench.now)  # a second answer is late
    assert bench.counters.late_answers == 1
    bench.pass_ms(60_000)
    bench.none(act.SendBack)


def test_done_and_failed_neighbours_are_settled_apart(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=8)
    bench.core.state.sizer.tail_us = 200.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(5))
    (chunk,) = bench.dispatched()
    bench.done(chunk, count=3, seq=1, failures=[(1, 0, "no")])
    bench.done(chunk, seq=1, failures=[(3, -1, "no")])
    assert [(a.start, a.end, a.seq) for a in bench.take(act.JournalDone)] == [(0, 1, 1), (2, 3, 1), (4, 5, 1)]
    assert [(back.index, back.mode, back.delay_level) for back in bench.take(act.SendBack)] == [
        (1, Mode.SEND_BACK, 0),
        (3, Mode.DEAD_LETTER, 0),
    ]
    bench.sealed("w1", 1)
    assert bench.persist() == [1]
    bench.core.handle(ev.SentBack(handle, chunk.chunk_id, 1, accepted=True), 0.0)
    assert bench.persist() == [3]
    bench.core.handle(ev.SentBack(handle, chunk.chunk_id, 3, accepted=True), 0.0)
    assert bench.persist() == [5]
    assert bench.counters.done_messages == 3


def test_a_chunk_of_failures_only_waits_for_no_seal(bench: Bench) -> None:
    handle, back = _fail_one(bench)
    assert not bench.core.state.unsealed
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    assert bench.persist() == [1]


def test_what_was_durable_of_a_chunk_stays_so_when_later_messages_of_it_wait_for_a_seal(make: type[Bench]) -> None:
    """The offset was committed, or is in the journal: reported again it must not be a lower one, which reads as a reset."""
    bench = make(chunk_messages_max=4, recommit_interval_ms=1_000)
    bench.core.state.sizer.tail_us = 200.0
    handle = bench.open(0)[0]
    bench.worker("w1")
    bench.found(handle, [0, 1, 2, 3])
    chunk = bench.dispatched()[0]
    assert chunk.count == 4
    bench.done(chunk, count=2)
    assert bench.persist() == [2]
    bench.done(chunk, count=1, seq=1)
    assert bench.persist() == []
    bench.pass_ms(1_000)
    assert bench.persist() == [2]
    bench.done(chunk, count=1, seq=1)
    bench.revoke()
    assert bench.pq(handle).ledger.finished_above(0).pairs() == [(0, 2)]
    assert bench.commits() == []
    bench.sealed("w1", 1)
    assert bench.commits() == [4]
    assert bench.counters.invariant_violations == 0


@pytest.mark.parametrize("rows", [False, True])
def test_rows_of_a_message_that_ran_again_hold_the_offset_before_it(make: type[Bench], *, rows: bool) -> None:
    """Its send-back was refused; the neighbours before it are durable, those after it are not passed."""
    bench = make(chunk_messages_max=3)
    bench.core.state.sizer.tail_us = 200.0
    handle = bench.open(0)[0]
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    chunk = bench.dispatched()[0]
    bench.done(chunk, failures=[(1, 0, "no")], seq=1)
    assert bench.persist() == []
    bench.sealed("w1", 1)
    assert bench.persist() == [1]
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 1, accepted=False), bench.now)
    bench.pass_ms(5_000)
    shadow = bench.dispatched()[0]
    bench.done(shadow, seq=2 if rows else 0)
    assert bench.persist() == ([] if rows else [3])
    assert bench.pq(handle).head_offset == (1 if rows else 3)
    bench.sealed("w1", 2)
    assert bench.persist() == ([3] if rows else [])
    assert bench.counters.invariant_violations == 0


# --- death ------------------------------------------------------------------------------------------------------


def test_a_dead_workers_messages_run_again_before_anything_new(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(4))
    bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.worker("w2")
    assert [list(c.offsets) for c in bench.dispatched()] == [[2], [3]]
    for chunk in list(bench.core.state.workers["w2"].in_flight.values()):
        bench.done(chunk)
    bench.none(act.Dispatch)  # not before its segment was looked at
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    again = bench.dispatched()
    assert [(list(c.offsets), c.worker_id) for c in again] == [([0], "w2"), ([1], "w2")]
    for chunk in again:
        bench.done(chunk)
    assert bench.persist() == [4]
    assert bench.slab.used_units == 0
    assert (bench.counters.worker_deaths, bench.counters.redispatched_messages) == (1, 2)


def test_rows_that_were_complete_count_as_done(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=8)
    bench.core.state.sizer.tail_us = 200.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(6))
    (chunk,) = bench.dispatched()
    bench.done(chunk, count=2, seq=1, failures=[(0, 0, "no")])
    back = bench.one(act.SendBack)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.Salvaged("w1", 1, [(bench.queue(), [(1, 2), (2, 3), (4, 5)])]), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.counters.salvaged_messages == 2
    bench.worker("w2")
    again = bench.dispatched()
    assert [list(c.offsets) for c in again] == [[3], [5]]
    assert bench.persist() == []
    bench.core.handle(ev.SentBack(handle, back.chunk_id, back.index, accepted=True), 0.0)
    assert bench.persist() == [3]
    bench.done(again[0])
    assert bench.persist() == [5]
    bench.done(again[1])
    assert bench.persist() == [6]
    assert bench.slab.used_units == 0
    assert (bench.pq(handle).unfinished, bench.pq(handle).unfinished_bytes) == (0, 0)


def test_sealed_rows_need_no_salvage(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    assert bench.core.unsealed_of("w1") == [1]
    bench.sealed("w1", 1)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.persist() == [1]
    assert bench.counters.lost_rows_restarts == 0


def test_reported_rows_that_are_gone_make_the_queue_be_read_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    first, second = bench.dispatched()
    bench.done(first)
    bench.done(second, seq=1)
    bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.counters.lost_rows_restarts == 1
    assert [(lost.worker_id, lost.seq) for lost in bench.take(act.JournalLost)] == [("w1", 1)]
    assert bench.pq(handle).state is QueueState.DRAINING
    assert bench.commits() == [1]
    assert handle not in bench.core.state.queues
    assert bench.slab.used_units == 0
    bench.worker("w2")
    (again,) = bench.open(0, offset=1)
    bench.found(again, [1, 2])
    assert [list(c.offsets) for c in bench.dispatched()] == [[1], [2]]


def test_a_worker_that_dies_while_it_boots_charges_nobody(bench: Bench) -> None:
    bench.core.handle(ev.WorkerStarted(Worker("w1")), bench.now)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.counters.worker_deaths == 0
    assert not bench.core.state.workers


def test_a_worker_dies_once(bench: Bench) -> None:
    bench.worker("w1")
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    with pytest.raises(StateError):
        bench.core.handle(ev.WorkerDied("w1"), bench.now)
    with pytest.raises(StateError):
        bench.core.handle(ev.WorkerReady("w1"), bench.now)


def test_a_salvage_of_an_unknown_worker_changes_nothing(bench: Bench) -> None:
    bench.core.handle(ev.Salvaged("w9", 1, [(bench.queue(), [(0, 1)])]), bench.now)
    bench.none(act.JournalDone, act.JournalSealed)


def test_what_is_salvaged_of_an_ended_assignment_is_not_noted_as_done(bench: Bench) -> None:
    """It would outlive a reset: the journal is read again at the next start, and the message must run again."""
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.dispatched()
    bench.revoke()
    bench.pass_ms(10_000)
    assert handle not in bench.core.state.queues
    bench.open(0)
    bench.take(act.JournalDone)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.Salvaged("w1", 1, [(bench.queue(), [(0, 1)])]), bench.now)
    bench.none(act.JournalDone)
    bench.one(act.JournalSealed)


def test_a_chunk_of_an_ended_queue_is_forgotten_with_its_worker(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.dispatched()
    bench.revoke()
    bench.pass_ms(10_000)
    assert handle not in bench.core.state.queues
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.slab.used_units == 0
    assert not bench.core.state.chunks and not bench.core.state.redo


# --- dispatch ---------------------------------------------------------------------------------------------------


def test_the_least_loaded_worker_is_served_first_two_chunks_each(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.found(handle, range(9))
    assert [chunk.worker_id for chunk in bench.dispatched()] == ["w1", "w2", "w1", "w2"]


def test_queues_are_served_in_turn(bench: Bench) -> None:
    one, two = bench.open(0, 1)
    bench.found(one, range(5))
    bench.found(two, range(5))
    bench.worker("w1", "w2")
    assert [chunk.handle for chunk in bench.dispatched()] == [one, two, one, two]


def test_nothing_is_given_to_a_worker_that_boots(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.core.handle(ev.WorkerStarted(Worker("w1")), bench.now)
    bench.found(handle, [0])
    assert bench.dispatched() == []
    bench.core.handle(ev.WorkerReady("w1"), bench.now)
    assert len(bench.dispatched()) == 1


def test_a_pull_without_an_answer_has_the_offset_committed_again(bench: Bench) -> None:
    """Its broker may have died, with the newest offsets that it confirmed; its older one would be taken for a reset."""
    handle = bench.open(0)[0]
    bench.worker("w1")
    bench.found(handle, [0, 1])
    for chunk in bench.dispatched():
        bench.done(chunk)
    assert bench.persist() == [2]
    assert bench.persist() == []
    bench.core.handle(ev.NoAnswer(handle), bench.now)
    assert bench.persist() == [2]
    assert bench.persist() == []
