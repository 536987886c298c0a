"""A stop owes the offsets that queues were moved to: they are committed before it ends, or it says that they are not."""

from __future__ import annotations

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.states import QueueState

from .conftest import TOPIC, Bench
from .test_moves import DRAIN_MS, ended_at_its_deadline, reset, stop, with_one_in_hand

RETRY_MS = 500


def found_where(bench: Bench, offset: int | None = 500) -> None:
    """Answer each question where a queue begins."""
    for fetch in bench.take(act.FetchOffset):
        bench.core.handle(ev.Opened(fetch.handle, offset), bench.now)


def given_up(bench: Bench) -> list[object]:
    """The offsets that were said not to be committed."""
    return [log.keys["offset"] for log in bench.take(act.Log) if log.event == "reset_not_committed"]


def ended(bench: Bench) -> bool:
    return len(bench.take(act.Finished)) == 1 and not bench.core.state.queues


def assert_refused_until_given_up(bench: Bench, offset: int) -> None:
    """The move of a queue with nothing in hand is tried three times, and then said not to be committed."""
    for _ in range(3):
        bench.none(act.Finished)
        assert bench.commits(ok=False) == [offset]
        bench.pass_ms(RETRY_MS)
    assert ended(bench)
    assert given_up(bench) == [offset]


# --- a queue that is being opened ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["concurrent", "queue"])
def test_a_reset_of_a_queue_that_is_being_opened_is_committed_by_a_stop(make: type[Bench], order: str) -> None:
    bench = make(order=order)
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    bench.none(act.Finished)
    found_where(bench)
    assert bench.commits() == [100]
    assert ended(bench)
    assert given_up(bench) == []


def test_one_that_is_being_committed_when_the_stop_comes_is_waited_for(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    found_where(bench)
    stop(bench)
    bench.none(act.Finished, act.FetchOffset)
    assert bench.commits() == [100]
    assert ended(bench)


def test_a_refused_one_is_tried_again_and_then_given_up_aloud(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    for _ in range(3):
        bench.none(act.Finished)
        found_where(bench)
        assert bench.commits(ok=False) == [100]
        bench.pass_ms(RETRY_MS)
    assert ended(bench)
    assert given_up(bench) == [100]


def test_one_whose_place_is_not_found_is_given_up_as_well(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    for _ in range(3):
        bench.none(act.Finished)
        found_where(bench, None)
        bench.pass_ms(RETRY_MS)
    assert ended(bench)
    assert given_up(bench) == [100]


def test_no_answer_holds_the_stop_up_until_its_deadline(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    bench.pass_ms(bench.config.stop_deadline_ms)
    assert ended(bench)
    assert given_up(bench) == [100]


def test_the_last_of_two_resets_counts(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    found_where(bench)
    reset(bench, 200)
    assert bench.commits() == [100]
    assert bench.commits() == [200]
    assert ended(bench)


# --- a queue that has ended ----------------------------------------------------------------------------------------


def test_a_move_that_waits_for_its_queue_to_be_opened_is_committed_by_a_stop(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    stop(bench)
    bench.none(act.Finished)
    found_where(bench)
    assert bench.commits() == [100]
    assert ended(bench)


def with_one_queue_ended(bench: Bench) -> act.Chunk:
    """A stop waits for queue 1; queue 0 has ended."""
    bench.worker("w1")
    _, second = bench.open(0, 1, offset=500)
    bench.found(second, [500])
    (chunk,) = bench.dispatched()
    stop(bench)
    bench.commits()
    assert [*bench.core.state.queues] == [second]
    return chunk


def test_a_reset_of_a_queue_that_has_ended_in_the_stop_is_committed(bench: Bench) -> None:
    chunk = with_one_queue_ended(bench)
    reset(bench, 100)
    found_where(bench)
    assert bench.commits() == [100]
    bench.done(chunk)
    assert bench.commits() == [501]
    assert ended(bench)


@pytest.mark.parametrize("moved_before", [False, True])
def test_a_reset_of_a_queue_that_the_stop_has_not_let_open_is_committed(bench: Bench, *, moved_before: bool) -> None:
    bench.worker("w1")
    (second,) = bench.open(1, offset=500)
    bench.found(second, [500])
    bench.members([0, 1])
    if moved_before:
        reset(bench, 100)
    stop(bench)
    found_where(bench)
    bench.commits()
    assert [*bench.core.state.queues] == [second]
    reset(bench, 200)
    found_where(bench)
    assert bench.commits() == [200]


def test_a_reset_after_the_end_is_not_said_to_be_taken(bench: Bench) -> None:
    chunk = with_one_queue_ended(bench)
    bench.done(chunk)
    bench.commits()
    assert ended(bench)
    reset(bench, 100)
    logged = bench.take(act.Log)
    assert [log.keys["offset"] for log in logged if log.event == "reset_not_committed"] == [100]
    assert "offset_reset_by_admin" not in [log.event for log in logged]
    bench.none(act.Commit, act.FetchOffset)


def test_a_reset_of_a_queue_that_nobody_knows_whose_it_is_is_not_committed_by_a_stop(bench: Bench) -> None:
    reset(bench, 100)
    stop(bench)
    assert ended(bench)
    assert given_up(bench) == [100]
    bench.none(act.Commit)


def test_a_look_up_that_is_answered_after_the_stop_has_not_said_whose_it_is(bench: Bench) -> None:
    stop(bench)
    bench.members([0])
    reset(bench, 100)
    assert given_up(bench) == [100]


# --- a queue that drains -------------------------------------------------------------------------------------------


def test_where_it_is_refused_until_the_stop_gives_up_that_is_said(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    bench.done(chunk)
    assert_refused_until_given_up(bench, 100)


def test_a_reset_to_where_we_are_is_not_known_to_hold(bench: Bench) -> None:
    """The broker may be elsewhere: so an operator's reset is tried as often as any other."""
    _, chunk = with_one_in_hand(bench)
    reset(bench, 500)
    stop(bench)
    bench.done(chunk)
    assert_refused_until_given_up(bench, 500)


def test_a_stop_by_force_sends_where_a_queue_goes_on_though_a_message_of_it_runs(bench: Bench) -> None:
    handle, _ = with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    leaving = bench.core.assigning.leaving
    assert leaving.owes_commits()
    assert leaving.uncommitted() == {handle: 100}
    assert bench.persist() == [100]
    assert not leaving.owes_commits()
    assert bench.pq(handle).state is QueueState.DRAINING


def test_what_held_before_the_deadline_of_the_stop_is_not_given_up(bench: Bench) -> None:
    with_one_in_hand(bench)
    reset(bench, 100)
    bench.pass_ms(DRAIN_MS - 1)
    stop(bench)
    assert bench.persist() == [100]
    bench.pass_ms(1)
    assert ended(bench)
    assert given_up(bench) == []


def test_a_topic_that_is_not_subscribed_any_more_gives_its_moves_up_aloud(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.core.handle(ev.Unsubscribe(TOPIC), bench.now)
    assert given_up(bench) == [100]


# --- what a stop must not pass ----------------------------------------------------------------------------------------


def test_a_step_forward_waits_for_what_runs_and_for_rows_that_are_not_sealed(bench: Bench) -> None:
    bench.worker("w1")
    (handle,) = bench.open(0, offset=500)
    bench.found(handle, [500, 501])
    bench.done(bench.dispatched()[0], seq=1, count=1)
    reset(bench, 900)
    stop(bench)
    assert bench.persist() == []
    assert bench.pq(handle).running()
    assert bench.core.assigning.leaving.uncommitted() == {}


def test_what_finishes_after_a_step_back_is_not_in_the_journal(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    assert bench.persist() == [100]
    bench.take(act.JournalDone)
    bench.done(chunk)
    bench.none(act.JournalDone)
    assert bench.commits(ok=False) == [100]
    assert ended(bench)


def test_a_move_of_a_queue_that_another_member_has_is_not_committed(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    reset(bench, 100)
    bench.revoke()
    assert given_up(bench) == [100]
    bench.done(chunk)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(501, True)]


def test_a_step_back_that_holds_leaves_nothing_uncommitted(bench: Bench) -> None:
    with_one_in_hand(bench)
    reset(bench, 100)
    bench.pass_ms(DRAIN_MS - 1)
    stop(bench)
    assert bench.persist() == [100]
    bench.pass_ms(1)
    (finished,) = bench.take(act.Finished)
    assert (finished.unfinished, finished.unsealed, finished.uncommitted) == (1, 0, 0)


# --- what an end is called --------------------------------------------------------------------------------------------


def given_up_by_force(bench: Bench) -> list[object]:
    bench.core.assigning.leaving.give_up_moves()
    return given_up(bench)


def test_a_stop_by_force_says_which_moves_of_queues_that_drain_it_leaves(bench: Bench) -> None:
    with_one_in_hand(bench)
    reset(bench, 900)
    stop(bench)
    assert given_up_by_force(bench) == [900]
    assert bench.core.assigning.leaving.left().moves_given_up == 1


def test_a_stop_by_force_says_which_commits_of_moves_have_no_answer(bench: Bench) -> None:
    with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    bench.core.handle(ev.Persist(), bench.now)
    assert given_up_by_force(bench) == [100]


def test_a_stop_by_force_says_which_moves_of_queues_that_open_it_leaves(bench: Bench) -> None:
    bench.members([0])
    reset(bench, 100)
    stop(bench)
    found_where(bench)
    assert given_up_by_force(bench) == [100]
    assert not bench.core.assigning.leaving.left().clean


def test_a_stop_by_force_leaves_no_move_that_holds(bench: Bench) -> None:
    with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    assert bench.persist() == [100]
    assert given_up_by_force(bench) == []


def test_a_stop_that_gives_a_move_up_is_not_clean(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    reset(bench, 100)
    stop(bench)
    bench.done(chunk)
    for _ in range(3):
        assert bench.commits(ok=False) == [100]
        bench.pass_ms(RETRY_MS)
    (finished,) = bench.take(act.Finished)
    assert (finished.unfinished, finished.uncommitted, finished.moves_given_up) == (0, 0, 1)
    assert not finished.clean


def test_a_move_that_was_given_up_before_the_stop_does_not_count_for_it(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.core.handle(ev.Unsubscribe(TOPIC), bench.now)
    stop(bench)
    assert bench.one(act.Finished).clean


def test_a_reset_after_the_last_queue_has_ended_counts_for_the_stop(bench: Bench) -> None:
    stop(bench)
    assert bench.one(act.Finished).clean
    reset(bench, 100)
    assert not bench.core.assigning.leaving.left().clean
