"""Pulls: every code, flow control, the byte budget, bodies that find no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.process_queue import RESERVE_BYTES_MAX, RESERVE_BYTES_MIN
from rocketcrew.supervisor.core.pulling import TRIM_EVERY_S, PullResult, thresholds
from rocketcrew.supervisor.core.slab import UNIT_BYTES

from .conftest import inner_batch, record

if TYPE_CHECKING:
    from .conftest import Bench


# --- codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SUCCESS]
)
def test_an_answer_without_messages_moves_on_and_pulls_at_once(bench: Bench, code: int) -> None:
    (handle,) = bench.open(0, offset=3)
    bench.take(act.Pull)
    bench.answer(handle, code, 9)
    pull = bench.one(act.Pull)
    assert (pull.offset, pull.commit_offset) == (9, 9)
    bench.answer(handle, code, 2)  # an offset never goes back without a word from the broker
    assert bench.one(act.Pull).offset == 9


def test_a_slave_whose_queue_ends_before_our_offset_is_asked_once_a_second_and_that_is_logged_once(
    bench: Bench,
) -> None:
    """It answers at once, with our own offset: it was asked some thousand times a second."""
    (handle,) = bench.open(0, offset=100)
    behind = PullResult(ResponseCode.PULL_RETRY_IMMEDIATELY, 100, end_offset=90)
    logs: list[act.Log] = []
    for _ in range(100):
        for pull in bench.take(act.Pull):
            assert pull.offset == 100
            bench.core.handle(ev.Pulled(handle, behind), bench.now)
        logs += bench.take(act.Log)
        bench.pass_ms(100)
    assert bench.counters.pulls == 11
    assert [log.level for log in logs if log.event == "pull_beyond_end"] == ["warning", *["debug"] * 9]
    bench.one(act.Pull)
    bench.core.handle(ev.Pulled(handle, PullResult(ResponseCode.PULL_NOT_FOUND, 100, end_offset=100)), bench.now)
    assert bench.one(act.Pull).offset == 100, "the broker holds that one"


def retry(bench: Bench, handle: int, next_offset: int, end: int, *, elsewhere: bool = False) -> None:
    code = ResponseCode.PULL_RETRY_IMMEDIATELY
    result = PullResult(code, next_offset, end_offset=end, elsewhere=elsewhere)
    bench.core.handle(ev.Pulled(handle, result), bench.now)


def test_an_answer_that_goes_on_is_followed_at_once_whatever_end_it_says(bench: Bench) -> None:
    """4.9 reads a queue's end before its index: a filtered pull may come back with an offset beyond that end."""
    (handle,) = bench.open(0, offset=100)
    for offset in (100, 111, 122):
        assert bench.one(act.Pull).offset == offset
        retry(bench, handle, offset + 11, offset + 10)
    assert not [log for log in bench.take(act.Log) if log.event == "pull_beyond_end"]


def test_a_slave_that_begins_after_our_offset_is_asked_once_a_second(bench: Bench) -> None:
    """It was built anew, and its master is gone: it corrects nobody's offset, and holds no pull."""
    (handle,) = bench.open(0, offset=100)
    bench.one(act.Pull)
    retry(bench, handle, 100, 900)
    bench.pass_ms(999)
    bench.none(act.Pull)
    bench.pass_ms(1)
    assert bench.one(act.Pull).offset == 100


def test_a_slave_that_sends_us_to_its_master_is_left_at_once_and_each_time(bench: Bench) -> None:
    """A backlog is read from a slave that is being built anew: each pull that it had was a second lost."""
    (handle,) = bench.open(0, offset=100)
    for offset in range(100, 110):
        bench.one(act.Pull)
        retry(bench, handle, offset, 3, elsewhere=True)
        assert bench.one(act.Pull).offset == offset
        assert bench.found(handle, [offset])
    assert not [log for log in bench.take(act.Log) if log.event == "pull_beyond_end"]


def test_replicas_that_send_us_to_each_other_are_asked_once_a_second(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    for second in range(10):
        assert bench.counters.pulls == second + (2 if second else 1)
        while bench.counters.pulls < 100 and bench.take(act.Pull):
            retry(bench, handle, 100, 90, elsewhere=True)
        bench.pass_ms(1000)


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
def test_a_broker_that_does_not_know_the_subscription_gets_a_heartbeat(bench: Bench, code: int) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.take(act.Heartbeat)
    bench.answer(handle, code, 0)
    bench.one(act.Heartbeat)
    bench.none(act.Pull)
    bench.pass_ms(1000)
    assert bench.one(act.Pull).offset == 0


@pytest.mark.parametrize(
    ("code", "delay_ms"),
    [
        (ResponseCode.FLOW_CONTROL, 20),
        (ResponseCode.SYSTEM_ERROR, 1000),
        (ResponseCode.SYSTEM_BUSY, 1000),
        (ResponseCode.TOPIC_NOT_EXIST, 1000),
        (ResponseCode.NO_PERMISSION, 1000),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 1000),
        (4711, 1000),
    ],
)
def test_a_refused_pull_is_sent_again_after_a_while(bench: Bench, code: int, delay_ms: int) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.answer(handle, code, 0)
    bench.pass_ms(delay_ms - 1)
    bench.none(act.Pull)
    bench.pass_ms(1)
    bench.one(act.Pull)
    assert bench.counters.pull_errors == 1
    assert "pull_refused" in bench.logged()


def test_a_refusal_that_repeats_is_told_once_a_minute(bench: Bench) -> None:
    (handle,) = bench.open(0)
    levels: list[str] = []
    for code in [ResponseCode.NO_PERMISSION] * 61 + [ResponseCode.SYSTEM_BUSY, ResponseCode.PULL_NOT_FOUND] * 2:
        bench.take(act.Pull)
        bench.answer(handle, code, 0)
        bench.pass_ms(1_000)
        levels += [log.level for log in bench.take(act.Log) if log.event == "pull_refused"]
    assert levels == ["warning", *["debug"] * 59, "warning", "warning", "warning"]


def test_a_pull_without_an_answer_opens_the_queue_anew(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    (handle,) = bench.open(0)
    bench.pass_ms(119_000)
    assert bench.core.state.pulled[handle].pull_pending
    bench.pass_ms(6_000)
    assert "pull_expired" in bench.logged()
    assert bench.slab.reserved_units == 0
    while bench.commits():
        pass
    assert handle not in bench.core.state.queues
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 0)
    assert bench.counters.late_answers == 1
    assert bench.take(act.FetchAssignment)
    bench.take(act.Pull)
    bench.open(0)
    bench.one(act.Pull)


def test_a_queue_that_flow_control_holds_does_not_expire(make: type[Bench]) -> None:
    bench = make(pull_threshold_for_queue=1)
    bench.core.handle(ev.Start(), bench.now)
    (handle,) = bench.open(0)
    bench.found(handle, range(5))
    bench.pass_ms(300_000)
    assert bench.counters.pulls_expired == 0
    assert handle in bench.core.state.queues


def test_a_refusal_with_a_body_gives_its_bytes_back(bench: Bench) -> None:
    (handle,) = bench.open(0)
    for code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.SYSTEM_ERROR):
        slot = bench.core.room_for(handle, 100)
        assert slot is not None
        bench.core.handle(ev.Pulled(handle, PullResult(code, 0, 100, slot)), bench.now)
        bench.pass_ms(1000)
        assert bench.slab.used_units == 0


def test_a_lost_connection_gives_the_half_received_body_back_and_pulls_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    slot = bench.core.room_for(handle, 100)
    bench.core.handle(ev.NoAnswer(handle, slot), bench.now)
    assert (bench.slab.used_units, bench.slab.reserved_units) == (0, 0)
    bench.none(act.Pull)
    bench.pass_ms(1000)
    bench.one(act.Pull)
    bench.core.handle(ev.NoAnswer(handle), bench.now)
    bench.pass_ms(1000)
    bench.one(act.Pull)


def test_a_body_that_is_no_messages_is_thrown_away_and_pulled_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    slot = bench.core.room_for(handle, 100)
    assert slot is not None
    bench.view[slot.start : slot.start + 100] = b"\xff" * 100
    bench.core.handle(ev.Pulled(handle, PullResult(ResponseCode.SUCCESS, 5, 100, slot)), bench.now)
    assert bench.slab.used_units == 0
    assert "pull_body_invalid" in bench.logged()
    bench.pass_ms(1000)
    assert bench.one(act.Pull).offset == 0


def test_offsets_beyond_the_end_of_the_answer_are_not_believed(bench: Bench) -> None:
    """A record that says it is a batch of many would let the commit run ahead of messages that nobody has seen."""
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.found(handle, [0, 1, 7], next_offset=3)
    assert bench.slab.used_units == 0
    assert "pull_body_invalid" in bench.logged()
    bench.pass_ms(1000)
    assert bench.one(act.Pull).offset == 0


def test_an_interval_between_pulls_is_kept(make: type[Bench]) -> None:
    bench = make(pull_interval_ms=50)
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.found(handle, [0])
    bench.none(act.Pull)
    bench.pass_ms(49)
    bench.none(act.Pull)
    bench.pass_ms(1)
    bench.one(act.Pull)


def test_at_most_one_pull_is_outstanding(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.one(act.Pull)
    bench.found(handle, [0])
    bench.one(act.Pull)
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    bench.pass_ms(5000)
    bench.none(act.Pull)


# --- what was finished before -----------------------------------------------------------------------------------


def test_messages_that_were_finished_are_skipped_wherever_they_stand(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (0, Intervals([(0, 2), (4, 5), (7, 9)]))})
    (handle,) = bench.open(0)
    bench.worker("w1", "w2", "w3")
    bench.found(handle, range(9))
    assert [list(chunk.offsets) for chunk in bench.dispatched()] == [[2], [3], [5], [6]]
    assert bench.counters.skipped_messages == 5
    assert bench.persist() == [2]


def test_a_pull_of_nothing_but_finished_messages_goes_straight_on(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (0, Intervals([(0, 3)]))})
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.found(handle, [0, 1, 2])
    assert bench.slab.used_units == 0
    assert bench.one(act.Pull).offset == 3
    assert bench.persist() == [3]


def test_a_gap_that_was_passed_before_belongs_to_no_record_any_more(bench: Bench) -> None:
    """Nothing was delivered at 2: an assignment before has passed it, and the next one gets it with the record after it."""
    bench.core.recover({bench.queue(): (0, Intervals([(0, 3)]))})
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 3, 4])
    assert [offset for chunk in bench.dispatched() for offset in chunk.offsets] == [3, 4]
    assert bench.persist() == [3]
    assert bench.counters.invariant_violations == 0


# --- inner batches ----------------------------------------------------------------------------------------------


def test_a_commit_does_not_cut_into_an_unfinished_inner_batch(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    body = inner_batch(0, 3) + inner_batch(3, 4)
    slot = bench.core.room_for(handle, len(body))
    assert slot is not None
    bench.view[slot.start : slot.start + len(body)] = body
    bench.core.handle(ev.Pulled(handle, PullResult(ResponseCode.SUCCESS, 7, len(body), slot)), bench.now)
    first, second = bench.dispatched()
    assert (list(first.offsets), list(second.offsets)) == ([2], [6])
    assert bench.persist() == []
    bench.done(first)
    assert bench.persist() == [3]
    bench.done(second, failures=[(0, 0, "no")])
    assert bench.persist() == []
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    assert bench.persist() == [7]
    assert [(a.start, a.end) for a in bench.take(act.JournalDone)] == [(0, 3), (3, 7)]


def test_what_the_broker_filtered_out_leaves_no_gaps_in_the_journal(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [4, 17], next_offset=30)
    for chunk in bench.dispatched():
        bench.done(chunk)
    assert [(a.start, a.end) for a in bench.take(act.JournalDone)] == [(0, 5), (5, 18)]
    assert bench.persist() == [30]


# --- flow control -----------------------------------------------------------------------------------------------


def test_too_many_unfinished_messages_hold_the_next_pull(make: type[Bench]) -> None:
    bench = make(pull_threshold_for_queue=3)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.found(handle, range(4))
    bench.none(act.Pull)
    bench.pass_ms(60_000)
    bench.none(act.Pull)
    bench.done(bench.dispatched()[0])
    assert bench.one(act.Pull).offset == 4


def test_too_many_unfinished_bytes_hold_the_next_pull(make: type[Bench]) -> None:
    bench = make(pull_threshold_size_bytes=1000)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.found(handle, [0, 1], body_bytes=900)
    bench.none(act.Pull)
    for chunk in bench.dispatched():
        bench.done(chunk)
    bench.one(act.Pull)
    assert bench.pq(handle).unfinished_bytes == 0


@pytest.mark.parametrize(("queues", "messages"), [(1, 7), (2, 4), (4, 2)])
def test_a_topics_threshold_is_shared_out_to_its_queues(make: type[Bench], queues: int, messages: int) -> None:
    bench = make(pull_threshold_for_topic=6)
    handles = bench.open(*range(queues))
    bench.take(act.Pull)
    bench.found(handles[0], range(messages - 1))
    bench.one(act.Pull)
    bench.found(handles[0], [messages - 1])
    bench.none(act.Pull)


def test_a_topics_bytes_are_shared_out_and_at_least_a_mib_each(make: type[Bench]) -> None:
    bench = make(units=512, pull_threshold_size_for_topic_bytes=5 << 20)
    handles = bench.open(0, 1)
    pq = bench.pq(handles[0])
    assert thresholds(bench.core.state, pq) == (1000, 5 << 19)
    bench = make(pull_threshold_size_for_topic_bytes=1 << 20)
    handles = bench.open(0, 1)
    assert thresholds(bench.core.state, bench.pq(handles[0])) == (1000, 1 << 20)


def test_a_wide_span_holds_the_next_pull_but_unsealed_rows_do_not_count(make: type[Bench]) -> None:
    bench = make(consume_concurrently_max_span=10)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.found(handle, [0, 11])
    bench.none(act.Pull)
    first, _ = bench.dispatched()
    bench.done(first, seq=1)
    bench.one(act.Pull)
    assert bench.pq(handle).head_offset == 0


def test_rows_that_wait_for_the_table_hold_neither_span_nor_count(make: type[Bench]) -> None:
    """Sealed is enough to pull on; the offset alone waits. And nobody is asked to seal again what is sealed."""
    bench = make(consume_concurrently_max_span=10, pull_threshold_for_queue=8, commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w1")
    for seq, first in enumerate(range(0, 30, 6), 1):
        assert bench.one(act.Pull).offset == first
        bench.found(handle, range(first, first + 6))
        bench.take(act.Seal)
        while chunks := bench.dispatched():
            for chunk in chunks:
                bench.done(chunk, seq=seq)
        bench.sealed("w1", seq)
        assert bench.persist() == []
    assert len(bench.take(act.Seal)) <= 1, "for the rows that are not sealed yet, if any"
    bench.core.handle(ev.Loaded("w1", 1), bench.now)
    bench.core.handle(ev.Loaded("w1", 3), bench.now)
    assert bench.persist() == [6], "what is loaded behind a gap waits"
    bench.core.handle(ev.Loaded("w1", 2), bench.now)
    assert bench.persist() == [18]


def test_an_open_send_back_holds_the_span(make: type[Bench]) -> None:
    bench = make(consume_concurrently_max_span=5)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    bench.found(handle, [0, 6])
    first, second = bench.dispatched()
    bench.done(first, failures=[(0, 0, "no")])
    bench.done(second)
    bench.none(act.Pull)
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, 0, accepted=True), 0.0)
    bench.one(act.Pull)


# --- bytes ------------------------------------------------------------------------------------------------------


def test_a_pull_reserves_a_quarter_more_than_the_last_body(bench: Bench) -> None:
    (handle,) = bench.open(0)
    assert bench.slab.reserved_units * UNIT_BYTES == RESERVE_BYTES_MIN
    bench.found(handle, [0], body_bytes=4 * UNIT_BYTES - 200)
    assert bench.slab.reserved_units == 5
    bench.found(handle, [1], body_bytes=30 * UNIT_BYTES)
    assert bench.slab.reserved_units * UNIT_BYTES == RESERVE_BYTES_MAX
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 2)  # idle: it does not sit on bytes that others wait for
    assert bench.slab.reserved_units * UNIT_BYTES == RESERVE_BYTES_MIN


def test_queues_without_bytes_stand_in_line_and_are_served_in_turn(make: type[Bench]) -> None:
    bench = make(units=8)  # one unit is overflow
    handles = bench.open(*range(9))
    assert [pull.handle for pull in bench.take(act.Pull)] == handles[:7]
    bench.answer(handles[1], 19, 0)
    assert [pull.handle for pull in bench.take(act.Pull)] == [handles[7]]
    bench.answer(handles[0], 19, 0)
    assert [pull.handle for pull in bench.take(act.Pull)] == [handles[8]]
    bench.core.handle(ev.NoAnswer(handles[2]), 0.0)
    assert [pull.handle for pull in bench.take(act.Pull)] == [handles[1]]


def test_a_starved_queue_that_was_taken_away_does_not_block_the_line(make: type[Bench]) -> None:
    bench = make(units=1)
    first, second, third = bench.open(0, 1, 2)
    assert bench.one(act.Pull).handle == first
    bench.core.handle(ev.Members("orders", [bench.queue(0), bench.queue(2)], ["10.0.0.1@1#1"]), 0.0)
    bench.commits()
    assert second not in bench.core.state.queues
    bench.answer(first, 19, 0)
    assert bench.one(act.Pull).handle == third


def test_a_body_without_room_is_dropped_counted_and_pulled_again(make: type[Bench]) -> None:
    bench = make(units=8, pull_threshold_for_queue=0)
    one, two = bench.open(0, 1)
    bench.worker("w1")
    bench.take(act.Pull)
    assert bench.found(one, [0], body_bytes=5 * UNIT_BYTES)
    (chunk,) = bench.dispatched()
    assert not bench.found(two, [0], body_bytes=4 * UNIT_BYTES)
    assert bench.counters.pull_bodies_dropped == 1
    assert two not in [pull.handle for pull in bench.take(act.Pull)]
    bench.done(chunk)
    assert [pull.handle for pull in bench.take(act.Pull)] == [two]
    assert bench.found(two, [0], body_bytes=4 * UNIT_BYTES)


def test_a_body_dropped_twice_waits_for_the_whole_slab(make: type[Bench]) -> None:
    bench = make(units=8, pull_threshold_for_queue=0)
    one, two = bench.open(0, 1)
    bench.worker("w1")
    bench.found(one, [0], body_bytes=100)
    (chunk,) = bench.dispatched()
    bench.take(act.Pull)
    bench.core.state.pulled[two].drops = 1
    assert not bench.found(two, [0], body_bytes=7 * UNIT_BYTES)
    bench.none(act.Pull)
    bench.done(chunk)
    assert [pull.handle for pull in bench.take(act.Pull)] == [two]
    assert bench.found(two, [0], body_bytes=7 * UNIT_BYTES)


def test_a_slow_message_holds_up_its_own_bytes_and_not_those_that_were_pulled_with_it(make: type[Bench]) -> None:
    bench = make(units=16)  # two are overflow
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    assert bench.found(handle, range(8), body_bytes=UNIT_BYTES - 200)
    slow, *rest = bench.dispatched()
    while rest:
        bench.done(rest.pop())
        rest += bench.dispatched()
    assert bench.pq(handle).unfinished == 1
    before = bytes(bench.view[slow.positions[0] : slow.positions[-1]])
    bench.pass_ms(50)
    assert bench.one(act.Pull).offset == 8, "it goes on though the slow one still runs"
    assert bench.counters.trimmed_units == 7
    assert bench.found(handle, range(8, 18), body_bytes=UNIT_BYTES - 200)
    assert bytes(bench.view[slow.positions[0] : slow.positions[-1]]) == before, "it may still be read"
    bench.done(slow)
    rest = bench.dispatched()
    while rest:
        bench.done(rest.pop())
        rest += bench.dispatched()
    assert bench.slab.used_units == 0


def test_a_line_that_waits_for_a_trim_is_served_by_the_trim_s_own_timer_at_any_time_of_the_clock(
    make: type[Bench],
) -> None:
    """A sum of two times rounds: at some times what is exactly due seems to be due in a moment, for ever."""
    rounds = (ms for ms in range(1000, 100_000) if (ms / 1000 + TRIM_EVERY_S) - ms / 1000 < TRIM_EVERY_S)
    bench = make(units=16)
    bench.pass_ms(next(rounds))
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.take(act.Pull)
    assert bench.found(handle, range(8), body_bytes=UNIT_BYTES - 200)
    _slow, *rest = bench.dispatched()
    while rest:
        bench.done(rest.pop())
        rest += bench.dispatched()
    bench.none(act.Pull)
    bench.core.tick(bench.now + TRIM_EVERY_S)
    assert bench.one(act.Pull).offset == 8


def test_a_body_that_is_being_received_is_not_cut_down(make: type[Bench]) -> None:
    bench = make(units=16)
    one, two = bench.open(0, 1)
    bench.worker("w1")
    slot = bench.core.room_for(two, 5 * UNIT_BYTES)
    assert slot is not None
    assert bench.found(one, range(8), body_bytes=UNIT_BYTES - 200)
    chunks = bench.dispatched()
    bench.done(chunks[1])
    bench.pass_ms(50)
    assert (slot.units, slot.refs) == (5, 1)


def test_what_fails_keeps_its_bytes_until_it_is_sent_back(make: type[Bench]) -> None:
    bench = make(units=16)
    (handle,) = bench.open(0)
    bench.worker("w1")
    assert bench.found(handle, range(8), body_bytes=UNIT_BYTES - 200)
    failing, *rest = bench.dispatched()
    bench.done(failing, failures=[(0, 0, "no")])
    rest += bench.dispatched()
    while rest:
        bench.done(rest.pop())
        rest += bench.dispatched()
    bench.pass_ms(50)
    send = bench.one(act.SendBack)
    assert bench.counters.trimmed_units
    assert bench.view[send.start : send.end] == record(0, UNIT_BYTES - 200)


def test_one_message_larger_than_what_may_be_reserved_gets_through_alone(make: type[Bench]) -> None:
    bench = make(units=8)
    (handle,) = bench.open(0)
    bench.worker("w1")
    assert bench.found(handle, [0], body_bytes=7 * UNIT_BYTES + 100)
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    assert bench.persist() == [1]
