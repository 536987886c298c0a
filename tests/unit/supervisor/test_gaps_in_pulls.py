"""Offsets that a pull's answer passes over: filtered where the subscription has a filter, else named one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.durable.intervals import Intervals, QueueKey
from rocketcrew.durable.outcomes import FILTERED, LOST, NO_ROWS, SENT_BACK, UNDELIVERED, Outcomes
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import walk
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.pulling import GAPS_LOGGED_EVERY_S, gaps_between

from .conftest import inner_batch, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench

NOTHING_HERE = [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY]


def noted(bench: Bench) -> Outcomes:
    return bench.core.state.outcomes.take("g")


def pieces(outcomes: Outcomes, kind: str, bench: Bench) -> tuple[tuple[int, int], ...]:
    return outcomes.of_queue(kind, QueueKey("g", *bench.queue())).pieces


def test_with_a_filter_they_are_filtered_in_one_range(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.found(handle, [4, 17], next_offset=30)
    found = noted(bench)
    assert pieces(found, FILTERED, bench) == ((0, 30),)
    assert not found.of_kind(UNDELIVERED)
    assert "pull_gap" not in bench.logged()


def test_without_one_each_gap_is_named(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.found(handle, [4, 5, 17], next_offset=30, takes_all=True)
    found = noted(bench)
    assert pieces(found, UNDELIVERED, bench) == ((0, 4), (6, 17), (18, 30))
    assert not found.of_kind(FILTERED)
    assert bench.counters.undelivered_messages == 4 + 11 + 12


@pytest.mark.parametrize("code", NOTHING_HERE)
def test_also_where_nothing_comes(bench: Bench, code: int) -> None:
    (handle,) = bench.open(0, offset=3)
    bench.answer(handle, code, 9, takes_all=True)
    assert pieces(noted(bench), UNDELIVERED, bench) == ((3, 9),)


@pytest.mark.parametrize("takes_all", [True, False])
@pytest.mark.parametrize("code", NOTHING_HERE)
def test_what_its_broker_says_to_have_deleted_is_lost_with_a_filter_too(
    bench: Bench, code: int, takes_all: bool
) -> None:
    """Nor may the outcome of the next record take it along."""
    (handle,) = bench.open(0, offset=3)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.answer(handle, code, 9, takes_all=takes_all, deleted=True)
    found = noted(bench)
    assert pieces(found, LOST, bench) == ((3, 9),)
    assert not found.of_kind(FILTERED)
    assert not found.of_kind(UNDELIVERED)
    assert bench.counters.undelivered_messages == 0
    (log,) = [log for log in bench.take(act.Log) if log.event == "pull_gap"]
    assert (log.keys["messages"], log.keys["upto"], log.keys["deleted"]) == (6, 9, True)
    bench.found(handle, [9])
    for chunk in bench.dispatched():
        bench.done(chunk)
    assert pieces(noted(bench), NO_ROWS, bench) == ((9, 10),)


@pytest.mark.parametrize("takes_all", [True, False])
def test_a_queue_at_its_end_notes_nothing(bench: Bench, takes_all: bool) -> None:
    """Or each held pull that is over would keep the next one from taking the offset along."""
    (handle,) = bench.open(0, offset=3)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 3, takes_all=takes_all)
    assert not bench.core.state.outcomes
    assert not noted(bench)


def test_they_are_waited_for_by_offsets_as_other_notes_are(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=3)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 9, takes_all=True)
    assert bench.core.state.outcomes


def test_whole_answers_leave_no_gap(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=3)
    bench.found(handle, [3, 4, 5], takes_all=True)
    assert not noted(bench)
    assert bench.counters.undelivered_messages == 0


def test_the_messages_of_an_inner_batch_are_no_gap() -> None:
    body = inner_batch(2, 3) + record(7) + inner_batch(8, 2)
    positions, offsets = walk(body)
    assert offsets == [4, 7, 9]
    assert gaps_between(bytearray(body), positions, offsets, 2, 10) == [(5, 7)]
    assert gaps_between(bytearray(body), positions, offsets, 0, 12) == [(0, 2), (5, 7), (10, 12)]
    assert gaps_between(bytearray(body), positions, offsets, 3, 10) == [(5, 7)], "it was pulled from within a batch"


@pytest.mark.parametrize("failures", [[], [(0, 0, "no")]], ids=["no rows", "sent back"])
def test_what_became_of_the_messages_around_it_does_not_hide_it(
    bench: Bench, failures: list[tuple[int, int, str]]
) -> None:
    """Their notes take the offsets before each along; so the kind must count before theirs."""
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [4, 7], takes_all=True)
    for chunk in bench.dispatched():
        bench.done(chunk, failures=failures)
    for back in bench.take(act.SendBack):
        bench.core.handle(ev.SentBack(handle, back.chunk_id, back.index, accepted=True), bench.now)
    found = noted(bench)
    assert pieces(found, UNDELIVERED, bench) == ((0, 4), (5, 7))
    around = pieces(found, SENT_BACK if failures else NO_ROWS, bench)
    assert around == ((0, 8),)
    kinds = list(found.to_json())
    assert kinds.index(UNDELIVERED) < kinds.index(SENT_BACK if failures else NO_ROWS)


def test_the_log_says_it_once_a_minute_for_a_queue(bench: Bench) -> None:
    one, other = bench.open(0, 1)
    bench.answer(one, ResponseCode.PULL_RETRY_IMMEDIATELY, 5, takes_all=True)
    bench.answer(other, ResponseCode.PULL_RETRY_IMMEDIATELY, 5, takes_all=True)
    bench.answer(one, ResponseCode.PULL_RETRY_IMMEDIATELY, 8, takes_all=True)
    bench.pass_ms(GAPS_LOGGED_EVERY_S * 1000)
    bench.answer(one, ResponseCode.PULL_RETRY_IMMEDIATELY, 9, takes_all=True)
    gaps = [log for log in bench.take(act.Log) if log.event == "pull_gap"]
    told = [
        (log.level, log.keys["queue_id"], log.keys["offset"], log.keys["upto"], log.keys["messages"]) for log in gaps
    ]
    assert told == [
        ("warning", 0, 0, 5, 5), ("warning", 1, 0, 5, 5), ("debug", 0, 5, 8, 3), ("warning", 0, 8, 9, 1),
    ]  # fmt: skip


def test_what_the_journal_has_as_finished_does_not_hide_a_gap(make: Callable[..., Bench]) -> None:
    """It counts a gap to the record after it; the run before may have been killed before it had written that it was one."""
    done = Intervals()
    done.add(1, 6)
    bench = make(recovered={MessageQueue("orders", "b", 0): (0, done)})
    (handle,) = bench.open(0)
    bench.found(handle, [0, 5, 6], takes_all=True)
    assert pieces(noted(bench), UNDELIVERED, bench) == ((1, 5),)
    assert bench.counters.undelivered_messages == 4
