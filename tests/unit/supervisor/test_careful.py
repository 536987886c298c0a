"""A record that was in hand at too many deaths of whole runs: one message at a time until it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.charges import NOTED_MAX, Charges, Left
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.pool.post_mortem import between_calls
from rocketcrew.workers.failures import asked

from .conftest import Bench

Make = Callable[..., Bench]
SUSPECT = 2


def kill_runs(bench: Bench, times: int) -> None:
    """As a start finds it: whole runs died, each with the suspect and another message in hand."""
    for kill in range(times):
        left = [Left(bench.queue(), InHand(1, at, at, 1, mark=f"{kill}/{at}"), {}) for at in (SUSPECT, 50 + kill)]
        bench.core.state.charges.member_died(left, stopping=False)


def handed(bench: Bench) -> list[Chunk]:
    chunks = bench.dispatched()
    return chunks + [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]


@pytest.mark.parametrize(
    "config", [{}, {"order": "queue"}, {"order": "key"}, {"order": "queue", "auto_commit": False}], ids=str
)
def test_until_it_is_over_one_message_at_a_time_is_in_hand(make: Make, config: dict[str, Any]) -> None:
    bench = make(chunk_messages_max=8, **config)
    kill_runs(bench, 3)
    bench.worker("w1", "w2", "w3")
    handles = bench.open(0, 1)
    for handle in handles:
        bench.found(handle, range(4))
    started: list[tuple[int, int]] = []
    while (bench.queue(), SUSPECT) in bench.core.state.charges.noted:
        (chunk,) = handed(bench)
        started += [(chunk.handle, offset) for offset in chunk.offsets]
        bench.done(chunk)
        bench.persist()
    assert (handles[0], SUSPECT) in started
    assert len(handed(bench)) > 1, "all workers are given work again"


@pytest.mark.parametrize("order", ["queue", "key"])
def test_in_order_one_that_kills_between_two_calls_is_found_and_gets_no_more_workers(make: Make, order: str) -> None:
    """Nobody knows which of all that the worker had: these keep their places, so nothing else is in hand until they are over.
    They are few: however much waits by key, it waits after them; by queue, queues take turns."""
    bench = make(order=order, chunk_messages_max=4, chunks_in_flight=2)
    bench.worker("w1", "w2")
    handles = bench.open(0, 1, 2, 3)
    for handle in handles:
        bench.found(handle, range(8))
    killer, tried, deaths = (handles[0], 2), list[list[tuple[int, int]]](), 0
    while chunks := handed(bench):
        tried += [[(chunk.handle, offset) for chunk in chunks for offset in chunk.offsets]]
        fatal = next(
            (chunk.worker_id for chunk in chunks for at in chunk.offsets if (chunk.handle, at) == killer), None
        )
        for chunk in chunks:
            if chunk.worker_id != fatal:
                bench.done(chunk)
        if fatal is not None:
            deaths += 1
            death = Death(End.CRASHED, between_calls(str(deaths)), "SIGKILL", {"oom_kills": 1})
            bench.core.handle(ev.WorkerDied(fatal, death), bench.now)
            bench.core.handle(ev.SalvageComplete(fatal), bench.now)
            bench.worker(f"n{deaths}")
    back = bench.one(act.SendBack)
    assert back.facts is not None
    assert (back.handle, back.facts["deaths"], back.facts["oom_kills"]) == (handles[0], "3", "1")
    assert deaths == 4, "once among others"
    alone = [at for at, each in enumerate(tried) if each == [killer]]
    assert len(alone) == 3
    first = next(at for at, each in enumerate(tried) if killer in each)
    assert alone[0] - first <= (len(handles) if order == "queue" else 1) * len(tried[first])
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    while chunks := handed(bench):
        for chunk in chunks:
            bench.done(chunk)
    assert bench.persist() == [8, 8, 8, 8]
    assert not bench.core.state.charges.noted


def test_what_was_in_hand_less_often_runs_beside_the_others(make: Make) -> None:
    bench = make()
    kill_runs(bench, 2)
    bench.worker("w1", "w2", "w3")
    (handle,) = bench.open(0)
    bench.found(handle, range(4))
    assert len(bench.dispatched()) == 4
    assert not len(bench.core.state.charges), "it is suspected of nothing"


def test_another_members_queue_makes_nobody_careful(make: Make) -> None:
    bench = make()
    kill_runs(bench, 3)
    bench.worker("w1", "w2")
    (handle,) = bench.open(1)
    bench.found(handle, range(4))
    assert len(bench.dispatched()) == 4


def test_alone_in_hand_it_is_charged_and_a_dead_letter_in_the_end(make: Make) -> None:
    """What kills its container each time ends as a dead letter, though others were in hand at first."""
    bench = make(max_worker_deaths=3)
    kill_runs(bench, 3)
    for kill in range(3):
        left = [Left(bench.queue(), InHand(1, SUSPECT, SUSPECT, 1, mark=f"alone {kill}"), {"pid": "1"})]
        bench.core.state.charges.member_died(left, stopping=False)
    bench.worker("w1")
    (handle,) = bench.open(0)
    bench.found(handle, range(4))
    ran: list[int] = []
    while chunks := bench.dispatched():
        ran += [offset for chunk in chunks for offset in chunk.offsets]
        for chunk in chunks:
            bench.done(chunk)
    assert ran == [0, 1, 3]
    back = bench.one(act.SendBack)
    assert back.facts is not None
    assert (back.facts["deaths"], back.facts["end"]) == ("3", "whole run died")


def test_what_the_committed_offset_passed_is_forgotten(make: Make) -> None:
    charges = Charges()
    mq = make().queue()
    charges.member_died([Left(mq, InHand(1, at, at, 1, mark=str(at)), {}) for at in (3, 9)], stopping=False)
    assert charges.forget_below(mq, 5)
    assert [noted.offset for noted in charges.noted.values()] == [9]
    again = Charges()
    again.add_json(charges.to_json(), "deaths")
    again.add_json(charges.to_json(), "deaths")
    assert again.noted == charges.noted


def test_a_message_that_fails_and_leaves_its_worker_alive_is_no_suspect_any_more(make: Make) -> None:
    """In order it is tried again and again, by default without end: the others do not wait for that."""
    bench = make(order="queue")
    kill_runs(bench, 3)
    bench.worker("w1", "w2")
    (handle,) = bench.open(0)
    bench.found(handle, [SUSPECT])
    (chunk,) = handed(bench)
    bench.core.handle(ev.Returned("w1", chunk.chunk_id, 0, 1, asked(0, "no"), 10), bench.now)
    assert (bench.queue(), SUSPECT) not in bench.core.state.charges.noted


def test_a_note_beyond_what_was_pulled_makes_nobody_careful(make: Make) -> None:
    """The topic was made anew, or its offset moved back: that record may never come."""
    bench = make()
    kill_runs(bench, 3)
    bench.worker("w1", "w2", "w3")
    (handle,) = bench.open(0)
    bench.found(handle, range(SUSPECT))
    assert len(bench.dispatched()) == SUSPECT


@pytest.mark.parametrize("others", [32, 255])
def test_it_is_found_however_many_were_in_hand_beside_it(make: Make, others: int) -> None:
    charges, queue, fresh = Charges(), make().queue(), 100
    for run in range(4):
        left = [Left(queue, InHand(1, SUSPECT, SUSPECT, 1, mark=f"{run}"), {})]
        for index in range(others):
            left.append(Left(queue, InHand(1, fresh, fresh + 31, 32, mark=f"{run}:{index}"), {}))
            fresh += 32
        charges.member_died(left, stopping=False)
    assert charges.noted[queue, SUSPECT].runs >= 3
    assert len(charges.noted) <= NOTED_MAX


def test_all_workers_are_given_work_when_the_suspect_is_sent_back(make: Make) -> None:
    bench = make()
    kill_runs(bench, 3)
    bench.worker("w1", "w2", "w3")
    (handle,) = bench.open(0)
    bench.found(handle, [SUSPECT, 10, 11, 12])
    (first,) = bench.dispatched()
    bench.done(first, failures=[(0, 0, "no")])
    before = bench.dispatched()
    send = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(send.handle, send.chunk_id, send.index, True), bench.now)
    assert len(before) == 1
    assert [chunk.offsets for chunk in before + bench.dispatched()] == [[10], [11], [12]]
