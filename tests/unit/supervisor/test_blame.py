"""Who is charged with a worker's death, what becomes of the records it had in hand, and when a record is a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import VERDICTS, CellContent, Death, End, InHand, Verdict, how_ended
from rocketcrew.supervisor.core.charges import CHARGES_MAX, Charges
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.pool.post_mortem import between_calls
from rocketcrew.workers.failures import Mode

from .conftest import Bench

MQ = MessageQueue("orders", "b", 0)


def crash(chunk: Chunk, index: int, records: int = 1, *, taken: int | None = None, mark: str = "m", end: End = End.CRASHED
          ) -> Death:  # fmt: skip
    offsets = chunk.offsets
    in_hand = InHand(chunk.chunk_id, offsets[index], offsets[index + records - 1], records, taken, mark)
    return Death(end, in_hand, "SIGSEGV", {"pid": 7, "run_ms": 12, "stack": "Fatal Python error", "oom_kills": None})


def wide(make: Callable[..., Bench], records: int = 8, **config: object) -> tuple[Bench, int, Chunk]:
    """One worker with one chunk of `records` records in hand."""
    bench = make(chunk_messages_max=records, chunks_in_flight=1, **config)
    bench.core.state.sizer.tail_us = 1.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(records))
    (chunk,) = bench.dispatched()
    assert chunk.count == records
    return bench, handle, chunk


def die(bench: Bench, worker_id: str, death: Death, *heirs: str) -> list[list[int]]:
    """The worker dies, nothing is salvaged, the heirs come; offsets of the chunks that are handed out then."""
    bench.core.handle(ev.WorkerDied(worker_id, death), bench.now)
    bench.core.handle(ev.SalvageComplete(worker_id), bench.now)
    bench.worker(*heirs)
    return [list(chunk.offsets) for chunk in bench.dispatched()]


def test_deaths_are_counted_by_cause_and_nobody_dies_who_was_asked_to_leave(bench: Bench) -> None:
    ends = [End.CRASHED, End.TIME_LIMIT, End.CRASHED, End.RETIRED, End.OURS]
    for number, end in enumerate(ends):
        bench.worker(f"w{number}")
        die(bench, f"w{number}", Death(end))
    counted = {end: count for end, count in bench.core.state.deaths.items() if count}
    assert counted == {End.CRASHED: 2, End.TIME_LIMIT: 1, End.OURS: 1}
    assert bench.counters.worker_deaths == 4


# --- the table --------------------------------------------------------------------------------------------------


def test_every_end_has_a_verdict() -> None:
    assert set(VERDICTS) == set(product(End, CellContent))
    assert {end for (end, _), verdict in VERDICTS.items() if verdict is Verdict.CHARGED} == {End.CRASHED, End.MEMBER}
    assert {end for (end, _), verdict in VERDICTS.items() if verdict is Verdict.NOTED} == {End.MEMBER_AMONG_OTHERS}


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        ({}, End.CRASHED),
        ({"retired": True}, End.RETIRED),
        ({"retired": True, "by_itself": True}, End.CRASHED),
        ({"unattended": True}, End.FORKSERVER),
        ({"retired": True, "unattended": True}, End.FORKSERVER),
        ({"ours": True, "by_itself": True}, End.OURS),
        ({"stalled": True, "retired": True, "by_itself": True}, End.STALLED),
        ({"stalled": True, "by_machine": True, "by_itself": True}, End.MACHINE),
        ({"stalled": True, "ours": True}, End.OURS),
        ({"timed_out": True, "by_itself": True}, End.TIME_LIMIT),
        ({"timed_out": True, "ours": True, "retired": True}, End.TIME_LIMIT),
    ],
)
def test_how_a_worker_ended(facts: dict[str, bool], end: End) -> None:
    all_facts = dict.fromkeys(("retired", "ours", "timed_out", "unattended", "by_itself"), False) | facts
    assert how_ended(**all_facts) is end


# --- one record in hand -----------------------------------------------------------------------------------------


def test_only_the_record_in_hand_is_charged_and_runs_alone(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make)
    bench.done(chunk, count=2)
    given = die(bench, "w1", crash(chunk, 4), "w2", "w3")
    assert sorted(given) == [[2, 3], [4], [5, 6, 7]] or sorted(given) == [[2, 3], [4]]
    charges = list(bench.core.state.charges)
    assert [(c.offset, c.deaths) for c in charges] == [(4, 1)]
    assert bench.counters.charged_deaths == 1
    bench.one(act.ChargesChanged)
    alone = next(c for w in bench.core.state.workers.values() for c in w.in_flight.values() if c.alone)
    assert list(alone.offsets) == [4]
    keeper = bench.core.state.workers[alone.worker_id or ""]
    assert list(keeper.in_flight.values()) == [alone], "nothing else is in that worker's hands"


def test_a_record_whose_properties_are_no_utf8_is_charged_by_its_place(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make)
    start, end = chunk.positions[4:6]
    odd = b"KEYS\x01\xff\x02"
    stored = StoredMessage(MQ.topic, b"x" * (20 - len(odd)), odd, queue_offset=chunk.offsets[4])
    bench.core.state.view[start:end] = encode_message(stored)
    die(bench, "w1", crash(chunk, 4), "w2", "w3")
    assert [(each.offset, each.deaths) for each in bench.core.state.charges] == [(4, 1)]


def test_a_suspect_that_comes_through_is_charged_with_nothing(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make, 1)
    assert die(bench, "w1", crash(chunk, 0), "w2") == [[0]]
    (alone,) = bench.core.state.workers["w2"].in_flight.values()
    bench.take(act.ChargesChanged)
    bench.done(alone)
    assert len(bench.core.state.charges) == 0
    bench.one(act.ChargesChanged)
    assert bench.core.state.isolated is None
    assert bench.persist() == [1]


def test_a_record_that_was_reported_is_not_charged(make: Callable[..., Bench]) -> None:
    """The cell may still name it: it was read after the outcome."""
    bench, _, chunk = wide(make)
    bench.done(chunk, count=3)
    die(bench, "w1", crash(chunk, 2), "w2")
    assert len(bench.core.state.charges) == 0


@pytest.mark.parametrize("end", [End.RETIRED, End.FORKSERVER, End.OURS, End.STALLED, End.MACHINE])
def test_deaths_that_are_nobodys_fault(end: End, make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make)
    assert die(bench, "w1", crash(chunk, 4, end=end), "w2") == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert len(bench.core.state.charges) == 0


def test_at_the_limit_it_is_a_dead_letter_with_the_facts_and_one_log_event(make: Callable[..., Bench]) -> None:
    bench, handle, chunk = wide(make, 1, max_worker_deaths=3)
    for number in range(3):
        bench.none(act.SendBack)
        heir = f"x{number}"
        die(bench, chunk.worker_id or "", crash(chunk, 0, mark=str(number)), heir)
        if number < 2:
            (chunk,) = bench.core.state.workers[heir].in_flight.values()
    back = bench.one(act.SendBack)
    assert back.mode is Mode.DEAD_LETTER
    assert back.facts is not None
    assert back.facts["deaths"] == "3"
    assert back.facts["cause"] == "SIGSEGV"
    assert back.facts["stack"] == "Fatal Python error"
    assert "oom_kills" not in back.facts
    assert "message_dead_lettered" not in bench.logged(), "its broker has not got it yet"
    assert bench.persist() == []
    assert [c.deaths for c in bench.core.state.charges] == [3], "until it is accepted: a restart must not run it again"
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    (said,) = [log for log in bench.take(act.Log) if log.event == "message_dead_lettered"]
    assert (said.keys["offset"], said.keys["deaths"], said.keys["cause"]) == (0, 3, "SIGSEGV")
    assert (said.keys["pid"], said.keys["run_ms"], said.keys["error"]) == (7, 12, "crashed 3 workers"), (
        "as of worker_died"
    )
    assert len(bench.core.state.charges) == 0
    assert bench.counters.dead_letter_messages == 1
    assert bench.persist() == [1]
    assert bench.slab.used_units == 0


def test_a_fact_of_a_dead_letter_that_only_looks_like_a_number_stays_a_text(make: Callable[..., Bench]) -> None:
    bench, handle, chunk = wide(make, 1, max_worker_deaths=1)
    death = Death(End.CRASHED, crash(chunk, 0).in_hand, "9", {"pid": 7, "exit_code": -9})
    die(bench, "w1", death, "w2")
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    (said,) = [log for log in bench.take(act.Log) if log.event == "message_dead_lettered"]
    assert (said.keys["cause"], said.keys["exit_code"], said.keys["pid"]) == ("9", -9, 7)


def test_a_refused_dead_letter_is_sent_again_with_its_facts(make: Callable[..., Bench]) -> None:
    bench, handle, chunk = wide(make, 1, max_worker_deaths=1)
    assert die(bench, "w1", crash(chunk, 0), "w2") == []
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=False), 0.0)
    bench.core.tick(10.0)
    again = bench.one(act.SendBack)
    assert (again.facts, again.attempt) == (back.facts, 1)


def test_counts_of_an_earlier_run_hold(make: Callable[..., Bench]) -> None:
    """What was charged before the restart is cut out of its chunk, runs alone, or not at all."""
    bench = make(chunk_messages_max=8, chunks_in_flight=4)
    bench.core.state.sizer.tail_us = 1.0
    before = Charges()
    before.charge(MQ, 2, "1", {"cause": "SIGKILL"})
    for mark in "123":
        before.charge(MQ, 5, mark, {"cause": "SIGKILL"})
    bench.core.state.charges.add_json(before.to_json(), "test")
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.found(handle, range(8))
    given = [list(chunk.offsets) for chunk in bench.dispatched()]
    assert [0, 1] in given
    assert [3, 4] in given
    assert [6, 7] in given
    assert [5] not in given, "three deaths: it is not run again"
    assert [back.facts and back.facts["deaths"] for back in bench.take(act.SendBack)] == ["3"]


def test_the_count_follows_the_message_through_its_retries(make: Callable[..., Bench]) -> None:
    charges = Charges()
    charges.charge(MQ, 7, "a", {}, "ID1")
    assert charges.finished(MQ, 7, sent_back=True)
    assert len(charges) == 0
    assert not charges.empty
    retry = MQ._replace(topic="%RETRY%g")
    assert charges.charge(retry, 0, "b", {}, "ID1").deaths == 2
    assert charges.empty is False


# --- batches ----------------------------------------------------------------------------------------------------


def test_a_batch_is_halved_until_the_killer_is_alone(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make)
    killer, worker, number = 5, "w1", 0
    bench.core.handle(ev.WorkerDied(worker, crash(chunk, 0, 8)), bench.now)
    bench.core.handle(ev.SalvageComplete(worker), bench.now)
    tried: list[list[int]] = []
    while not (backs := bench.take(act.SendBack)):
        number += 1
        worker = f"x{number}"
        bench.worker(worker)
        for part in bench.dispatched():
            assert list(bench.core.state.workers[worker].in_flight) == [part.chunk_id]
            tried.append(list(part.offsets))
            while killer not in part.offsets:
                bench.done(part)
                (part,) = bench.dispatched()
                tried.append(list(part.offsets))
            bench.core.handle(ev.WorkerDied(worker, crash(part, 0, part.count, mark=str(number))), bench.now)
            bench.core.handle(ev.SalvageComplete(worker), bench.now)
    assert tried[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tried.count([5]) == 3
    assert [back.facts and back.facts["deaths"] for back in backs] == ["3"]
    assert {c.offset for c in bench.core.state.charges} == {5}
    assert bench.counters.charged_deaths == 3


def test_of_a_batch_taken_one_by_one_the_last_is_charged_and_the_rest_looked_at(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make)
    bench.core.handle(ev.WorkerDied("w1", crash(chunk, 0, 8, taken=3)), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    bench.worker("w2")
    assert [(c.offset, c.deaths) for c in bench.core.state.charges] == [(3, 1)]
    order: list[list[int]] = []
    while parts := bench.dispatched():
        for part in parts:
            order.append(list(part.offsets))
            bench.done(part)
    assert order == [[0, 1, 2], [3], [4, 5, 6, 7]]
    assert bench.core.state.charges.empty
    assert bench.persist() == [8]


# --- several calls of a coroutine handler, none of which ran ----------------------------------------------------


def waited(end: End = End.CRASHED) -> Death:
    return Death(end, InHand(0, 1 << 62, 0, 1, waiting=True), "SIGSEGV", {"pid": 7})


@pytest.mark.parametrize("end", [End.CRASHED, End.TIME_LIMIT])
def test_of_several_that_waited_each_chunk_runs_alone_and_the_next_death_halves_it(
    end: End, make: Callable[..., Bench]
) -> None:
    bench = make(chunk_messages_max=4, chunks_in_flight=3)
    bench.core.state.sizer.tail_us = 1.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(12))
    first, second, _ = bench.dispatched()
    bench.done(first)
    bench.done(second, count=1)
    assert die(bench, "w1", waited(end), "w2") == [[5, 6, 7]]
    (suspect,) = bench.core.state.workers["w2"].in_flight.values()
    assert (suspect.count, suspect.alone, len(bench.core.state.charges)) == (3, True, 0)
    bench.core.handle(ev.WorkerDied("w2", waited(end)), bench.now)
    bench.core.handle(ev.SalvageComplete("w2"), bench.now)
    bench.worker("w3")
    tried: list[list[int]] = []
    while parts := bench.dispatched():
        for part in parts:
            tried.append(list(part.offsets))
            bench.done(part)
    assert sorted(tried) == [[5], [6, 7], [8, 9, 10, 11]], "the halves of the one, and the other as a whole"
    assert bench.counters.charged_deaths == 0
    assert bench.persist() == [12]


@pytest.mark.parametrize("other_ends", [False, True])
def test_a_single_record_is_charged_only_where_its_worker_had_nothing_else(
    other_ends: bool, make: Callable[..., Bench]
) -> None:
    """Also nothing of a queue that has ended: that may have done it. Nor what came before it, which is over by its cell."""
    bench = make(chunk_messages_max=1, chunks_in_flight=2)
    first, second = bench.open(0, 1)
    bench.worker("w1")
    bench.found(first, [5])
    if other_ends:
        bench.found(second, [7])
    bench.dispatched()
    bench.members([0])
    bench.pass_ms(10_000)
    assert len(bench.core.state.workers["w1"].in_flight) == 1 + other_ends
    bench.core.handle(ev.WorkerDied("w1", waited()), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert not list(bench.core.state.charges)
    if other_ends:
        return
    bench.worker("w2")
    (chunk,) = bench.dispatched()
    assert (chunk.offsets, chunk.alone) == ([5], True)
    bench.core.handle(ev.WorkerDied("w2", waited()), bench.now)
    assert [charge.offset for charge in bench.core.state.charges] == [5]


@pytest.mark.parametrize("end", [End.CRASHED, End.STALLED])
def test_one_whose_rows_kill_between_two_calls_is_found_and_gets_no_more_workers(
    end: End, make: Callable[..., Bench]
) -> None:
    """No cell names it: the worker had finished its call. Eight records in two chunks, of which one kills, or takes too long
    to convert each time."""
    bench = make(chunk_messages_max=4, chunks_in_flight=2)
    bench.core.state.sizer.tail_us = 1.0
    (handle,) = bench.open(0)
    bench.found(handle, range(8))
    killer, tried = 5, list[list[int]]()
    for number in range(100):
        worker = f"w{number}"
        bench.worker(worker)
        while parts := bench.dispatched():
            tried += [list(part.offsets) for part in parts]
            if any(killer in part.offsets for part in parts):
                break
            for part in parts:
                bench.done(part)
        if not parts:
            break
        death = Death(end, between_calls(str(number)), "SIGKILL", {"oom_kills": 1})
        bench.core.handle(ev.WorkerDied(worker, death), bench.now)
        bench.core.handle(ev.SalvageComplete(worker), bench.now)
    (back,) = bench.take(act.SendBack)
    assert back.facts is not None
    assert (back.facts["deaths"], back.facts["oom_kills"], back.facts["end"]) == ("3", "1", end.value)
    assert {charge.offset for charge in bench.core.state.charges} == {killer}
    assert tried.count([killer]) == 3
    assert len(tried) <= 12


def test_a_machine_that_stands_still_is_charged_to_nobody_unless_it_does_so_with_one_message_again_and_again(
    make: Callable[..., Bench],
) -> None:
    """What they had runs apart all the same: two messages that take too long may meet, each time."""
    bench, _, _ = wide(make, 2)
    limit = bench.core.state.config.max_worker_deaths
    charged: list[bool] = []
    given_up: list[str] = []
    # The first is of both messages; then each is let off as often as it is charged.
    for number in range(1, 2 + 2 * 2 * limit):
        die(bench, f"w{number}", Death(End.MACHINE, between_calls(str(number)), "SIGABRT"), f"w{number + 1}")
        given_up += [back.facts["deaths"] for back in bench.take(act.SendBack) if back.facts]
        charged.append(not bench.core.state.charges.empty)
        for suspect in bench.core.state.workers[f"w{number + 1}"].in_flight.values():
            assert suspect.alone
            assert suspect.count == 1
    assert charged.index(True) == 1 + 2 * limit
    assert given_up == [str(limit)] * 2


def test_a_death_between_two_calls_names_what_was_not_reported(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=2, chunks_in_flight=6)
    bench.core.state.sizer.tail_us = 1.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(12))
    bench.done(bench.dispatched()[0], count=1)
    bench.core.handle(ev.WorkerDied("w1", Death(End.STALLED, between_calls("m"), "SIGABRT")), bench.now)
    (said,) = [log for log in bench.take(act.Log) if log.event == "worker_died"]
    assert said.keys["unreported"] == "orders/b/0@1, orders/b/0@2-3, orders/b/0@4-5, orders/b/0@6-7, ..."
    assert (said.keys["unreported_messages"], said.keys["suspects"], said.keys["verdict"]) == (11, 11, "suspected")


# --- time limits ------------------------------------------------------------------------------------------------


def test_a_time_out_is_one_failed_attempt_at_javas_level(make: Callable[..., Bench]) -> None:
    bench, handle, chunk = wide(make)
    bench.done(chunk, count=4)
    assert die(bench, "w1", crash(chunk, 4, end=End.TIME_LIMIT), "w2") == [[5, 6, 7]]
    back = bench.one(act.SendBack)
    assert (back.delay_level, back.facts) == (3, None)
    assert back.start == chunk.positions[0] or back.end > back.start
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    assert len(bench.core.state.charges) == 0
    assert (bench.counters.timed_out_messages, bench.counters.dead_letter_messages) == (1, 0)
    for rest in list(bench.core.state.workers["w2"].in_flight.values()):
        bench.done(rest)
    assert bench.persist() == [8]


def test_of_a_batch_over_its_limit_every_message_has_failed(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make, 4)
    assert die(bench, "w1", crash(chunk, 1, 3, end=End.TIME_LIMIT), "w2") == [[0]]
    assert [back.delay_level for back in bench.take(act.SendBack)] == [3, 3, 3]


# --- queues that go away ----------------------------------------------------------------------------------------


def test_a_queue_that_was_taken_away_leaves_its_suspects_to_the_next_owner(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make, 2)
    bench.core.handle(ev.WorkerDied("w1", crash(chunk, 0, 2)), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.core.state.quarantine
    bench.revoke()
    assert not bench.core.state.quarantine
    bench.worker("w2")
    assert bench.dispatched() == []
    assert bench.slab.used_units == 0


def test_the_kept_worker_is_free_again_when_it_retires_or_dies(make: Callable[..., Bench]) -> None:
    bench, _, chunk = wide(make, 1)
    die(bench, "w1", crash(chunk, 0), "w2")
    assert bench.core.state.isolated == "w2"
    (alone,) = bench.core.state.workers["w2"].in_flight.values()
    die(bench, "w2", crash(alone, 0, mark="2", end=End.FORKSERVER), "w3")
    assert bench.core.state.isolated == "w3"
    assert [c.deaths for c in bench.core.state.charges] == [1]


# --- the ledger -------------------------------------------------------------------------------------------------


def test_the_ledger_is_bounded_and_drops_suspects_first() -> None:
    charges = Charges()
    charges.charge(MQ, 0, "m", {})
    for offset in range(1, CHARGES_MAX + 10):
        charges.suspect(MQ, offset)
    assert len(charges) == CHARGES_MAX
    assert charges.get(MQ, 0) is not None


def test_one_death_is_counted_once() -> None:
    charges = Charges()
    charges.charge(MQ, 3, "4711:1", {})
    again = Charges()
    again.add_json(charges.to_json(), "test")
    assert again.charge(MQ, 3, "4711:1", {}).deaths == 1
    assert again.charge(MQ, 3, "4711:2", {}).deaths == 2


def test_what_the_committed_offset_has_passed_is_forgotten() -> None:
    charges = Charges()
    for offset in (1, 5, 9):
        charges.suspect(MQ, offset)
    assert not charges.forget_below(MQ, 1)
    assert charges.forget_below(MQ, 6)
    assert [c.offset for c in charges] == [9]
    assert charges.first_in(MQ, 0, 8) is None
    assert charges.first_in(MQ, 0, 9) == 9
