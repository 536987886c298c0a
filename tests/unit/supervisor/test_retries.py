"""A message that no broker takes back runs here again, and no offset passes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message, raise_reconsume_times, record_info
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.workers.failures import Mode, asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench

RETRY_MS = 5_000


def refused(bench: Bench, *, level: int = 0) -> tuple[int, Chunk]:
    """A queue with one message that failed at w1 and was refused; its handle and chunk."""
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, level, "no")])
    refuse(bench)
    return handle, chunk


def refuse(bench: Bench) -> None:
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=False), bench.now)


def shadow_of(bench: Bench) -> Chunk:
    bench.pass_ms(RETRY_MS)
    (shadow,) = bench.dispatched()
    return shadow


def test_after_a_while_it_runs_again_with_one_attempt_more(bench: Bench) -> None:
    handle, chunk = refused(bench)
    bench.pass_ms(RETRY_MS - 1)
    bench.none(act.Dispatch, act.SendBack)
    bench.pass_ms(1)
    (shadow,) = bench.dispatched()
    assert shadow.offsets == [0]
    assert record_info(bench.view, shadow.positions[0]).reconsume_times == 1
    assert bench.persist() == []
    assert chunk.failed
    bench.done(shadow)
    assert bench.persist() == [1]
    assert (bench.counters.local_retries, bench.counters.done_messages, bench.counters.sent_back_messages) == (1, 1, 0)
    assert bench.pq(handle).unfinished == 0
    assert bench.slab.used_units == 0


def test_rows_of_it_are_waited_for(bench: Bench) -> None:
    refused(bench)
    bench.done(shadow_of(bench), seq=4)
    assert bench.persist() == []
    bench.sealed("w1", 4)
    assert bench.persist() == [1]
    assert [(done.start, done.end, done.seq) for done in bench.take(act.JournalDone)] == [(0, 1, 4)]


def test_failing_again_it_is_sent_back_again_as_the_handler_says_now(bench: Bench) -> None:
    refused(bench)
    bench.done(shadow_of(bench), failures=[(0, 5, "again")])
    back = bench.one(act.SendBack)
    assert (back.delay_level, back.attempt) == (5, 1)
    assert record_info(bench.view, back.start).reconsume_times == 1
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert bench.persist() == [1]
    assert bench.slab.used_units == 0


def test_it_may_be_refused_many_times(bench: Bench) -> None:
    refused(bench)
    for attempt in range(1, 6):
        shadow = shadow_of(bench)
        assert record_info(bench.view, shadow.positions[0]).reconsume_times == attempt
        bench.done(shadow, failures=[(0, 0, "no")])
        refuse(bench)
        assert bench.persist() == []
    bench.done(shadow_of(bench))
    assert bench.persist() == [1]


def test_what_is_to_be_a_dead_letter_is_not_run_again(bench: Bench) -> None:
    refused(bench, level=-1)
    bench.pass_ms(RETRY_MS)
    bench.none(act.Dispatch)
    assert bench.one(act.SendBack).mode is Mode.DEAD_LETTER


def test_what_has_used_up_its_attempts_here_is_sent_back_until_a_broker_makes_a_dead_letter_of_it(
    make: type[Bench],
) -> None:
    """The broker's own count stays where it was, so it would retry what it does not get as a dead letter."""
    bench = make(max_reconsume_times=1)
    refused(bench)
    bench.done(shadow_of(bench), failures=[(0, 0, "no")])
    for _ in range(3):
        refuse(bench)
        bench.pass_ms(RETRY_MS)
        bench.none(act.Dispatch)
    back = bench.one(act.SendBack)
    assert (back.mode, back.last) == (Mode.SEND_BACK, True)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert (bench.counters.local_retries, bench.counters.dead_letter_messages) == (1, 1)
    assert bench.persist() == [1]


def test_its_worker_may_die_with_it(bench: Bench) -> None:
    refused(bench)
    shadow_of(bench)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.persist() == []
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert bench.persist() == [1]
    assert bench.slab.used_units == 0


def test_rows_that_its_dead_worker_left_complete_count(bench: Bench) -> None:
    handle, _ = refused(bench)
    shadow_of(bench)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.Salvaged("w1", 1, [(MessageQueue("orders", "b", 0), [(0, 1)])]), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    bench.none(act.SendBack)
    assert bench.persist() == [1]
    assert bench.pq(handle).unfinished == 0
    assert bench.slab.used_units == 0


def test_rows_that_its_dead_worker_left_wait_for_the_table_where_only_that_counts(make: type[Bench]) -> None:
    bench = make(commit_after_loaded=True)
    refused(bench)
    shadow_of(bench)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.Salvaged("w1", 1, [(MessageQueue("orders", "b", 0), [(0, 1)])]), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.persist() == []
    bench.core.handle(ev.Loaded("w1", 1), bench.now)
    assert bench.persist() == [1]


def test_while_we_stop_the_send_back_is_repeated(bench: Bench) -> None:
    refused(bench)
    bench.core.handle(ev.Stop(), bench.now)
    bench.pass_ms(RETRY_MS)
    bench.none(act.Dispatch)
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    bench.commits()
    assert bench.one(act.Finished).unfinished == 0


def test_of_a_queue_that_was_taken_away_nothing_runs_again(bench: Bench) -> None:
    refused(bench)
    bench.revoke()
    bench.pass_ms(RETRY_MS)
    bench.none(act.Dispatch, act.SendBack)
    bench.commits()
    assert not bench.core.state.queues
    assert bench.slab.used_units == 0


def test_a_shadow_that_nobody_has_yet_ends_with_a_reset(bench: Bench) -> None:
    refused(bench)
    bench.core.handle(ev.RetireWorker("w1"), bench.now)
    bench.pass_ms(RETRY_MS)
    bench.none(act.Dispatch)
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 9}), bench.now)
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert bench.commits() == [9]
    assert bench.slab.used_units == 0


def test_the_neighbours_of_its_chunk_are_settled_apart(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.found(handle, range(12))
    bench.worker("w1")
    seen: list[int] = []
    while chunks := bench.dispatched():
        for chunk in chunks:
            seen += chunk.offsets
            bench.done(chunk, failures=[(0, 0, "no")] if chunk.offsets[0] == 0 else [])
    assert seen == list(range(12))
    refuse(bench)
    assert bench.persist() == []
    shadow = shadow_of(bench)
    bench.done(shadow)
    assert bench.persist() == [12]


@pytest.mark.parametrize("hosts", [0, SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6])
def test_attempts_are_counted_in_the_record(hosts: int) -> None:
    born = "2001:db8::1" if hosts & SYSFLAG_BORN_HOST_V6 else "10.0.0.1"
    store = "2001:db8::2" if hosts & SYSFLAG_STORE_HOST_V6 else "10.0.0.2"
    message = StoredMessage("t", b"body", b"a\x01b", born_host=born, store_host=store, reconsume_times=7)
    record = bytearray(b"xx" + encode_message(message))
    before = record_info(record, 2)
    raise_reconsume_times(record, 2)
    assert record_info(record, 2) == before._replace(reconsume_times=8)


def test_a_message_that_cost_a_worker_its_life_here_is_not_run_here_again(make: type[Bench]) -> None:
    """Its send-back is repeated, however often it is refused; the charge is kept until a broker has the message."""
    bench = make(max_worker_deaths=3)
    refused(bench)
    shadow = shadow_of(bench)
    in_hand = InHand(shadow.chunk_id, 0, 0, 1)
    bench.core.handle(ev.WorkerDied("w1", Death(End.CRASHED, in_hand, "SIGSEGV")), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    bench.worker("w2")
    for _ in range(5):
        refuse(bench)
        bench.pass_ms(RETRY_MS)
        bench.none(act.Dispatch)
    (charge,) = bench.core.state.charges
    assert charge.deaths == 1
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert not len(bench.core.state.charges)
    assert bench.persist() == [1]


def test_a_charged_message_that_fails_keeps_its_charge_until_it_is_sent_back(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1", Death(End.CRASHED, InHand(chunk.chunk_id, 0, 0, 1), "SIGSEGV")), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    bench.worker("w2")
    (again,) = bench.dispatched()
    bench.done(again, failures=[(0, 0, "no")])
    refuse(bench)
    bench.pass_ms(RETRY_MS)
    bench.none(act.Dispatch)  # it would cost another worker its life
    assert [charge.deaths for charge in bench.core.state.charges] == [1]


def test_a_suspect_that_succeeds_here_is_charged_with_nothing(bench: Bench) -> None:
    refused(bench)
    bench.core.state.charges.suspect(bench.queue(), 0)
    bench.done(shadow_of(bench))
    assert not len(bench.core.state.charges)


# --- at which level -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "mode", "level"), [(0, Mode.SEND_BACK, 3), (5, Mode.SEND_BACK, 5), (-1, Mode.DEAD_LETTER, 0)]
)
def test_a_hard_limit_goes_back_at_the_configured_level(
    make: type[Bench], configured: int, mode: Mode, level: int
) -> None:
    bench = make(delay_level_when_next_consume=configured)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1", Death(End.TIME_LIMIT, InHand(chunk.chunk_id, 0, 0, 1))), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    back = bench.one(act.SendBack)
    assert (back.mode, back.delay_level) == (mode, level)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    kind = "dead_letter" if mode is Mode.DEAD_LETTER else "sent_back"
    assert list(bench.core.state.outcomes.take("g").kinds) == [kind]


@pytest.mark.parametrize(("level", "configured", "goes"), [(0, 0, 0), (0, 4, 4), (2, 4, 2)])
def test_a_key_that_passes_is_sent_back_at_the_level_asked_for(
    make: type[Bench], level: int, configured: int, goes: int
) -> None:
    bench = make(order="key", order_holds=False, delay_level_when_next_consume=configured)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    ((item,),) = [action.chunks for action in bench.take(act.DispatchOrdered)]
    bench.core.handle(ev.Returned("w1", item.chunk.chunk_id, 0, 1, asked(level, "no"), -1), bench.now)
    back = bench.one(act.SendBack)
    assert (back.mode, back.delay_level) == (Mode.SEND_BACK, goes)


def test_what_is_held_when_its_member_stops_is_no_dead_letter(make: type[Bench]) -> None:
    """Failed messages that cannot be tried again here go back to be tried elsewhere."""
    bench = make(order="key", delay_level_when_next_consume=-1)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    chunks = [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]
    bench.core.handle(ev.Returned("w1", chunks[0].chunk_id, 0, 1, asked(0, "no"), 30_000), bench.now)
    bench.core.handle(ev.Stop(), bench.now)
    for chunk in chunks[1:]:
        bench.core.handle(ev.Returned("w1", chunk.chunk_id, 0, 1, asked(0, "no"), -1), bench.now)
    assert {back.mode for back in bench.take(act.SendBack)} == {Mode.SEND_BACK}


@pytest.mark.parametrize(
    ("attempts", "limit", "level", "letters"),
    [(16, -1, 0, 1), (15, -1, 0, 0), (3, 3, 0, 1), (2, 3, 0, 0), (0, 0, 0, 1), (0, -1, -1, 1)],
)
def test_what_its_broker_makes_a_dead_letter_of_is_counted_as_one(
    make: Callable[..., Bench], attempts: int, limit: int, level: int, letters: int
) -> None:
    """SendMessageProcessor.consumerSendMsgBack: the attempts in the record against the limit, or a level below 0."""
    bench = make(max_reconsume_times=limit)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    for _ in range(attempts):
        raise_reconsume_times(bench.view, chunk.positions[0])
    bench.done(chunk, failures=[(0, level, "KeyError: 'total'")])
    back = bench.one(act.SendBack)
    assert bench.counters.dead_letter_messages == 0, "its broker has not got it yet"
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert (bench.counters.sent_back_messages, bench.counters.dead_letter_messages) == (1, letters)
    said = [log for log in bench.take(act.Log) if log.event == "message_dead_lettered"]
    assert [log.keys["error"] for log in said] == ["KeyError: 'total'"] * letters


def test_the_line_of_a_dead_letter_has_its_id(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0], properties={"UNIQ_KEY": "U1"})
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, -1, "KeyError: 'total'")])
    accept(bench)
    (said,) = [log for log in bench.take(act.Log) if log.event == "message_dead_lettered"]
    assert (said.keys["msg_id"], said.keys["error"]) == ("U1", "KeyError: 'total'")


def accept(bench: Bench) -> None:
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)


def test_the_levels_that_messages_wait_at_are_counted_but_not_of_dead_letters(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    levels = [0, 5, -1]
    for _ in range(3):
        for chunk in bench.dispatched():
            bench.done(chunk, failures=[(index, levels.pop(0), "no") for index in range(chunk.count)])
    for back in bench.take(act.SendBack):
        bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    assert bench.core.state.sent_back_levels == {3: 1, 5: 1}
    (mq,) = {pq.mq for pq in bench.core.state.queues.values()}
    delays = bench.core.state.retry_delays
    assert [delays.waiting(bench.now + after) for after in (0, 9, 11, 59, 63)] == [
        {mq: 2},
        {mq: 2},
        {mq: 1},
        {mq: 1},
        {},
    ]
    assert bench.counters.sent_back_messages == 3


def test_a_refused_one_waits_by_its_attempts_here_or_by_those_that_its_broker_knows(bench: Bench) -> None:
    refused(bench)
    bench.done(shadow_of(bench), failures=[(0, 0, "again")])
    accept(bench)
    assert bench.core.state.sent_back_levels == {3: 1, 4: 1}
