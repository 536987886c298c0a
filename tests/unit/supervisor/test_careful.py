"""A record that was in hand at too many deaths of whole runs: one message at a time until it is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.charges import NOTED_MAX, Charges, Left
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.state import CHARGES_WRITTEN_EVERY_S
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


def dies_between_calls(bench: Bench, worker_id: str, mark: str, successor: str) -> None:
    """Nobody knows which of all that it had in hand it was."""
    death = Death(End.CRASHED, between_calls(mark), "SIGKILL", {"oom_kills": 1})
    bench.core.handle(ev.WorkerDied(worker_id, death), bench.now)
    bench.core.handle(ev.SalvageComplete(worker_id), bench.now)
    bench.worker(successor)


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
            dies_between_calls(bench, fatal, str(deaths), f"n{deaths}")
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


class ShortOfMemory:
    """Workers of one control group. When `big` is in hand the kernel kills its worker: each time, or only beside others."""

    def __init__(self, bench: Bench, big: tuple[int, int], *, fits_alone: bool) -> None:
        self.bench = bench
        self.big = big
        self.tries: list[int] = []
        """What was in hand in all, each time that the big one was."""
        self._fits_alone = fits_alone
        self._in_hand: list[Chunk] = []

    def work_off(self) -> None:
        """Go on until nothing more is handed out. All that is handed out in one step is in hand at one time."""
        while chunks := handed(self.bench):
            self._in_hand += chunks
            places = [(chunk.handle, offset) for chunk in self._in_hand for offset in chunk.offsets]
            if self.big in places:
                self.tries.append(len(places))
                if len(places) > 1 or not self._fits_alone:
                    self._kill(next(c for c in self._in_hand if (c.handle, self.big[1]) == (self.big[0], c.offsets[0])))
                    continue
            for chunk in self._in_hand:
                self.bench.done(chunk)
            self._in_hand.clear()

    def _kill(self, chunk: Chunk) -> None:
        self._in_hand.remove(chunk)
        mark = str(len(self.tries))
        in_hand = InHand(chunk.chunk_id, chunk.offsets[0], chunk.offsets[0], 1, mark=mark)
        death = Death(End.CRASHED, in_hand, "SIGKILL", {"oom_kills": 1})
        worker_id = chunk.worker_id or ""
        self.bench.core.handle(ev.WorkerDied(worker_id, death), self.bench.now)
        self.bench.core.handle(ev.SalvageComplete(worker_id), self.bench.now)
        self.bench.worker(f"n{mark}")
        if not self.bench.core.state.workers[f"n{mark}"].in_flight:
            for each in self._in_hand:
                self.bench.done(each)
            self._in_hand.clear()


def worked_off(make: Make, order: str, limit: int, *, fits_alone: bool) -> tuple[Bench, ShortOfMemory]:
    """Three queues of four messages each, of which the second of the first queue is the big one, after all of them."""
    bench = make(order=order, max_worker_deaths=limit, chunks_in_flight=1)
    handles = bench.open(0, 1, 2)
    bench.worker("w1", "w2")
    for handle in handles:
        bench.found(handle, range(4))
    short = ShortOfMemory(bench, (handles[0], 1), fits_alone=fits_alone)
    short.work_off()
    return bench, short


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_what_fits_into_the_memory_alone_is_no_dead_letter(make: Make, order: str, limit: int) -> None:
    """Its last attempt before that is one with nothing else in hand."""
    bench, short = worked_off(make, order, limit, fits_alone=True)
    bench.none(act.SendBack)
    assert short.tries[-1] == 1
    assert len(short.tries) <= max(limit, 2)
    assert bench.persist() == [4, 4, 4]
    assert bench.core.state.charges.empty


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
@pytest.mark.parametrize("limit", [1, 3])
def test_what_needs_too_much_memory_alone_is_a_dead_letter(make: Make, order: str, limit: int) -> None:
    """And holds nobody up any more, however long its broker does not take it."""
    bench, short = worked_off(make, order, limit, fits_alone=False)
    back = bench.one(act.SendBack)
    assert back.facts is not None
    assert (back.handle, back.facts["deaths"], back.facts["oom_kills"]) == (short.big[0], str(limit), "1")
    assert short.tries[-1] == 1
    assert len(short.tries) == max(limit, 2)
    assert not bench.core.state.charges.noted
    again = [log.keys for log in bench.take(act.Log) if log.event == "worker_died"]
    assert [keys.get("runs_again") for keys in again[-2:]] == ["alone in this member", None]


def test_of_other_deaths_the_last_attempt_runs_beside_others(make: Make) -> None:
    bench = make(max_worker_deaths=2, chunks_in_flight=1)
    (handle,) = bench.open(0)
    bench.worker("w1", "w2", "w3")
    bench.found(handle, range(2))
    for number in range(2):
        chunk = next(chunk for chunk in handed(bench) if 0 in chunk.offsets)
        death = Death(End.CRASHED, InHand(chunk.chunk_id, 0, 0, 1, mark=str(number)), "SIGSEGV")
        bench.core.handle(ev.WorkerDied(chunk.worker_id or "", death), bench.now)
        bench.core.handle(ev.SalvageComplete(chunk.worker_id or ""), bench.now)
        bench.worker(f"n{number}")
    assert bench.one(act.SendBack).facts


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


# --- more than there is room for ----------------------------------------------------------------------------------------


def queues_noted(charges: Charges) -> set[int]:
    return {mq.queue_id for mq, _ in charges.noted}


def test_suspects_beyond_what_is_remembered_end_nothing_and_the_first_of_each_queue_are_kept(make: Make) -> None:
    """Each kills again at most until it is the first of its queue that is not finished."""
    charges, queues = Charges(), [make().queue(queue_id) for queue_id in range(8)]
    for at in range(2 * NOTED_MAX):
        charges.watch(queues[at % 8], at // 8, 3)
    assert len(charges.noted) <= NOTED_MAX
    assert all(charges.noted[mq, 0].runs == 3 for mq in queues)
    for at in range(NOTED_MAX):
        charges.watch(queues[0], NOTED_MAX - at, 3)
    assert queues_noted(charges) == set(range(8))
    assert charges.careful(3, lambda mq: int(mq == queues[5]))


@pytest.mark.parametrize("order", ["queue", "key"])
def test_one_that_kills_is_found_however_many_workers_die_together(make: Make, order: str) -> None:
    """All workers die with each death, and there is no room for half of what they had in hand."""
    bench = make(order=order, chunk_messages_max=8, chunks_in_flight=1)
    bench.core.state.charges.noted_max = 8
    workers = ["a", "b", "c", "d"]
    bench.worker(*workers)
    handles = bench.open(0, 1, 2, 3)
    for handle in handles:
        bench.found(handle, range(16))
    killer, deaths = (handles[3], 12), 0
    while chunks := handed(bench):
        ends = any((chunk.handle, at) == killer for chunk in chunks for at in chunk.offsets)
        for chunk in chunks:
            if not ends:
                bench.done(chunk)
        for worker_id in sorted({str(chunk.worker_id) for chunk in chunks}) if ends else ():
            deaths += 1
            dies_between_calls(bench, worker_id, str(deaths), f"n{deaths}")
        assert deaths < 40
        bench.persist()
    back = bench.one(act.SendBack)
    assert (back.handle, back.index) == (killer[0], 0)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    while chunks := handed(bench):
        for chunk in chunks:
            bench.done(chunk)
    assert [bench.pq(handle).head_offset for handle in handles] == [16] * 4


# --- how often, and how much ----------------------------------------------------------------------------------------------


def test_suspects_that_are_over_are_written_together_once_a_second(make: Make) -> None:
    bench = make(order="queue", chunk_messages_max=64, chunks_in_flight=2)
    bench.worker("w")
    for handle in bench.open(0, 1):
        bench.found(handle, range(64))
    handed(bench)
    bench.take(act.ChargesChanged)
    dies_between_calls(bench, "w", "1", "n")
    bench.one(act.ChargesChanged)
    over = 0
    while chunks := handed(bench):
        for chunk in chunks:
            bench.done(chunk)
            over += chunk.count
        if over == 40:
            bench.none(act.ChargesChanged)
            bench.pass_ms(1000 * CHARGES_WRITTEN_EVERY_S)
            bench.one(act.ChargesChanged)
    assert over == 128
    assert not bench.core.state.charges.noted
    bench.none(act.ChargesChanged)
    bench.pass_ms(1000 * CHARGES_WRITTEN_EVERY_S)
    bench.one(act.ChargesChanged)
    bench.pass_ms(1000 * CHARGES_WRITTEN_EVERY_S)
    bench.none(act.ChargesChanged)


def test_a_stop_writes_what_is_over_before_it_is_finished(make: Make) -> None:
    bench = make(order="queue")
    kill_runs(bench, 3)
    bench.worker("w1")
    (handle,) = bench.open(0)
    bench.found(handle, [SUSPECT])
    (chunk,) = handed(bench)
    bench.take(act.ChargesChanged)
    bench.done(chunk)
    bench.core.handle(ev.Stop(), bench.now)
    commit = bench.one(act.Commit)
    bench.none(act.ChargesChanged)
    bench.core.handle(ev.Committed(commit.handle, commit.offset, True), bench.now)
    kinds = [type(action) for action in bench.core.take_actions()]
    assert kinds.index(act.ChargesChanged) < kinds.index(act.Finished)


def test_what_was_over_before_a_kill_and_is_still_noted_is_over_when_it_is_pulled(make: Make) -> None:
    """One before it may be tried for ever: the others do not wait for that."""
    done = Intervals()
    done.add(SUSPECT, SUSPECT + 1)
    bench = make(recovered={make().queue(): (0, done)}, order="key", order_key="k")
    kill_runs(bench, 3)
    bench.worker("w1", "w2")
    (handle,) = bench.open(0)
    bench.found(handle, range(4))
    assert sorted(at for chunk in handed(bench) for at in chunk.offsets) == [0, 1, 3]
    assert (bench.queue(), SUSPECT) not in bench.core.state.charges.noted
    bench.pass_ms(1000 * CHARGES_WRITTEN_EVERY_S)
    bench.one(act.ChargesChanged)


def test_neighbours_are_written_as_one_and_read_one_by_one(make: Make) -> None:
    queue, charges, again = make().queue(), Charges(), Charges()
    for offset in [*range(5000), *range(6000, 6010)]:
        charges.watch(queue, offset, 3)
    left = [Left(queue, InHand(1, at, at, 1, mark="a run"), {}) for at in (4999, 6003)]
    charges.member_died(left, stopping=False)
    text = charges.to_json()
    assert text.count('"offset"') == 5
    again.add_json(text, "deaths")
    assert again.noted == charges.noted
    again.add_json(text, "deaths")
    assert again.noted == charges.noted


@pytest.mark.parametrize("last", [1 << 60, 2, "x"])
def test_a_range_that_nobody_wrote_is_refused(make: Make, last: object) -> None:
    entry = {"topic": "orders", "broker_name": "b", "queue_id": 0, "offset": 3, "last": last, "marks": ["m"]}
    with pytest.raises(ProtocolError):
        Charges().add_json(json.dumps({"records": [], "origins": {}, "noted": [entry]}), "deaths")


class Lookups:
    """Where queues were pulled to; counts how often that is asked."""

    def __init__(self, known: dict[MessageQueue, int]) -> None:
        self.known, self.asked = known, 0

    def __call__(self, mq: MessageQueue) -> int:
        self.asked += 1
        return self.known.get(mq, 0)


def test_a_look_costs_as_much_as_there_are_queues_however_many_are_noted(make: Make) -> None:
    bench, charges = make(), Charges()
    queues = [bench.queue(queue_id) for queue_id in range(4)]
    for at in range(NOTED_MAX):
        charges.watch(queues[at % 4], at // 4, 3)
    elsewhere = Lookups({})
    assert not charges.careful(3, elsewhere)
    assert elsewhere.asked == 4
    ours = Lookups({queues[3]: 2})
    assert charges.careful(3, ours)
    assert not charges.careful(4, ours)
    for offset in (0, 1):
        assert charges.careful(3, ours)
        charges.finished(queues[3], offset, sent_back=False)
    assert not charges.careful(3, ours)
    assert ours.asked <= 5 * 4
    charges.watch(queues[3], 1, 3)
    assert charges.careful(3, ours), "it is noted again"
