"""Rebalance: diff, drain, deadline, reset, come-back, offsets sent to the broker, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.durable.intervals import Intervals, QueueKey
from rocketcrew.durable.outcomes import LOST, SETTLED, SKIPPED
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.states import QueueState

from .conftest import noted

if TYPE_CHECKING:
    from .conftest import Bench

ME = "10.0.0.1@1#1"


# --- diff -------------------------------------------------------------------------------------------------------


def test_new_queues_are_opened_once_and_told_to_the_brokers(bench: Bench) -> None:
    bench.members([0, 1])
    assert [fetch.mq for fetch in bench.take(act.FetchOffset)] == [bench.queue(0), bench.queue(1)]
    bench.one(act.Heartbeat)
    bench.members([0, 1])
    bench.none(act.FetchOffset, act.Heartbeat)


@pytest.mark.parametrize(("queues", "members"), [(None, [ME]), ([], [ME]), ([0], None), ([0], [])])
def test_a_failed_look_up_changes_nothing(bench: Bench, queues: list[int] | None, members: list[str] | None) -> None:
    (handle,) = bench.open(0)
    names = None if queues is None else [bench.queue(q) for q in queues]
    bench.core.handle(ev.Members("orders", names, members), 0.0)
    assert bench.pq(handle).state is QueueState.ASSIGNED


def test_another_topics_queues_are_left_alone(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.core.handle(ev.Members("other", [bench.queue(5)._replace(topic="other")], [ME]), 0.0)
    assert bench.pq(handle).state is QueueState.ASSIGNED


def test_a_member_that_is_not_in_the_list_owns_nothing(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.members([0], ["somebody else"])
    assert bench.commits() == [0]
    assert handle not in bench.core.state.queues


def test_an_offset_that_cannot_be_found_is_asked_for_again(bench: Bench) -> None:
    bench.members([0, 1])
    for fetch in bench.take(act.FetchOffset):
        bench.core.handle(ev.Opened(fetch.handle, None), 0.0)
    bench.none(act.Pull)
    assert not bench.core.state.queues
    bench.pass_ms(999)
    bench.none(act.FetchAssignment)
    bench.pass_ms(1)
    bench.one(act.FetchAssignment)  # one for both


def test_a_queue_taken_away_while_it_opens_ends_at_once(bench: Bench) -> None:
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    bench.revoke()
    bench.core.handle(ev.Opened(fetch.handle, 5), 0.0)
    bench.none(act.Pull)
    assert bench.counters.late_answers == 1


# --- draining ---------------------------------------------------------------------------------------------------


def test_a_draining_queue_starts_nothing_settles_what_runs_and_ends(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(10))
    first, second = bench.dispatched()
    bench.take(act.Pull)
    bench.done(first)
    (third,) = bench.dispatched()
    bench.revoke()
    commit = bench.one(act.Commit)
    assert (commit.offset, commit.guarded) == (1, True)
    bench.core.handle(ev.Committed(handle, 1, ok=True), 0.0)
    bench.done(second)
    bench.done(third)
    bench.none(act.Dispatch, act.Pull)
    assert bench.commits() == [3]
    assert handle not in bench.core.state.queues
    assert bench.slab.used_units == 0
    assert bench.core.state.waiting_messages == 0
    bench.one(act.FetchAssignment)


def test_rows_of_a_draining_queue_are_sealed_on_request_also_late_ones(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.done(first, seq=1)
    bench.revoke()
    assert bench.one(act.Seal).worker_id == "w1"
    bench.sealed("w1", 1)
    assert bench.commits() == []
    bench.done(second, seq=2)
    assert bench.one(act.Seal).worker_id == "w1"
    bench.sealed("w1", 2)
    assert bench.commits() == [2]
    assert handle not in bench.core.state.queues


def test_failures_of_a_queue_that_was_taken_away_are_discarded_unsent(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.revoke()
    bench.done(first, failures=[(0, 0, "no")])
    bench.done(second)
    bench.none(act.SendBack)
    assert bench.counters.discarded_failures == 1
    assert bench.commits() == [0]  # nothing above the failed one
    assert handle not in bench.core.state.queues
    assert bench.slab.used_units == 0
    assert bench.core.state.recovered[bench.queue()] == (0, Intervals([(1, 2)]))


def test_a_send_back_under_way_may_still_be_accepted_while_the_queue_drains(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.done(first, failures=[(0, 0, "no")])
    back = bench.one(act.SendBack)
    bench.revoke()
    bench.core.handle(ev.SentBack(handle, back.chunk_id, back.index, accepted=True), 0.0)
    bench.done(second)
    assert bench.commits() == [2]


def test_one_that_is_accepted_while_the_last_commit_is_under_way_is_committed_too(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.done(first, failures=[(0, 0, "no")])
    bench.done(second)
    back = bench.one(act.SendBack)
    bench.revoke()
    bench.core.handle(ev.SentBack(handle, back.chunk_id, back.index, accepted=True), 0.0)
    assert bench.commits() == [0]
    assert bench.commits() == [2]
    assert handle not in bench.core.state.queues


def test_the_deadline_ends_a_queue_whose_worker_is_slow(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.dispatched()
    bench.revoke()
    bench.pass_ms(9_999)
    assert handle in bench.core.state.queues
    bench.none(act.CountCellsAnew)
    bench.pass_ms(1)
    assert handle not in bench.core.state.queues
    bench.one(act.CountCellsAnew)  # what the worker does of it from now on the journal is not told
    assert "drain_deadline" in bench.logged()
    assert bench.core.state.unfinished_at_stop == 0  # no stop: the new owner runs it


def test_a_refused_last_commit_is_tried_again_until_the_deadline(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    bench.revoke()
    assert bench.commits(ok=False) == [1]
    bench.none(act.Commit)
    bench.pass_ms(500)
    assert bench.commits() == [1]
    assert handle not in bench.core.state.queues
    assert bench.counters.commit_errors == 1


def test_a_stop_does_not_wait_for_a_broker_that_is_away(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    bench.core.handle(ev.Stop(), bench.now)
    for _ in range(2):
        assert bench.commits(ok=False) == [1]
        bench.none(act.Commit)
        bench.pass_ms(500)
    assert bench.commits(ok=False) == [1]
    assert handle not in bench.core.state.queues
    left = bench.one(act.Finished)
    assert (left.unfinished, left.unsealed, left.uncommitted) == (0, 0, 1)  # another member would run it again


def test_a_stop_asks_once_for_what_the_broker_knows_already(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    assert bench.persist() == [1]
    bench.core.handle(ev.Stop(), bench.now)
    assert bench.commits(ok=False) == [1]
    left = bench.one(act.Finished)
    assert (left.unfinished, left.unsealed) == (0, 0)


def test_a_stop_with_something_unfinished_waits_for_it_whatever_the_broker_says(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    bench.done(first)
    bench.core.handle(ev.Stop(), bench.now)
    for _ in range(8):
        bench.commits(ok=False)
        bench.pass_ms(500)
    assert handle in bench.core.state.queues
    bench.done(second)
    for _ in range(3):
        assert handle in bench.core.state.queues
        assert bench.commits(ok=False) == [2]
        bench.pass_ms(500)
    assert handle not in bench.core.state.queues


def test_a_pull_that_returns_to_a_draining_queue_gives_everything_back(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.dispatched()
    assert bench.slab.reserved_units
    bench.revoke()
    assert not bench.found(handle, [1])
    assert bench.slab.reserved_units == 0
    assert bench.counters.late_answers == 1


def test_what_waits_for_a_new_worker_is_left_when_the_queue_is_taken_away(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), 0.0)
    bench.revoke()
    bench.commits()
    assert handle not in bench.core.state.queues
    assert bench.slab.used_units == 0
    bench.worker("w2")
    assert bench.dispatched() == []


def test_progress_is_committed_guarded_while_a_slow_message_drains(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    first, _ = bench.dispatched()
    bench.revoke()
    bench.done(first)
    bench.none(act.Commit)
    bench.core.handle(ev.Persist(), 0.0)
    commit = bench.one(act.Commit)
    assert (commit.offset, commit.guarded) == (1, True)


# --- coming back ------------------------------------------------------------------------------------------------


def test_a_queue_that_comes_back_while_it_drains_is_opened_after_its_end(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    first, second = bench.dispatched()
    bench.done(second)
    (third,) = bench.dispatched()
    bench.revoke()
    bench.done(third)
    bench.members([0])
    bench.none(act.FetchOffset)
    bench.pass_ms(10_000)
    bench.one(act.FetchAssignment)
    (again,) = bench.open(0, offset=0)
    assert again != handle
    bench.found(again, [0, 1, 2, 3])
    assert [list(chunk.offsets) for chunk in bench.dispatched()] == [[0]]  # the other place is the slow one's
    assert bench.counters.skipped_messages == 2
    bench.done(first)
    assert bench.counters.late_reports == 1
    assert [list(chunk.offsets) for chunk in bench.dispatched()] == [[3]]


def test_what_was_finished_is_forgotten_where_the_broker_is_further(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (10, Intervals([(12, 14), (20, 22)]))})
    (handle,) = bench.open(0, offset=13)
    assert bench.pq(handle).ledger.done == Intervals([(13, 14), (20, 22)])
    assert bench.core.state.recovered == {}


def test_an_offset_below_what_was_noted_is_a_reset_and_forgets_it(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (10, Intervals([(12, 14)]))})
    (handle,) = bench.open(0, offset=9)
    assert not bench.pq(handle).ledger.done
    assert "offset_was_reset" in bench.logged()
    noted = bench.one(act.JournalCommitted)
    assert (noted.start, noted.offset) == (9, 9)


# --- moved ------------------------------------------------------------------------------------------------------


def test_a_moved_offset_is_committed_after_what_runs_and_opened_there(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100])
    (chunk,) = bench.dispatched()
    bench.take(act.JournalCommitted)
    bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, 40)
    bench.none(act.Commit)
    bench.done(chunk)
    commit = bench.one(act.Commit)
    assert (commit.offset, commit.guarded) == (40, False)
    bench.core.handle(ev.Committed(handle, 40, ok=True), 0.0)
    assert [(a.start, a.offset) for a in bench.take(act.JournalCommitted)] == [(-1, -1), (40, 40)]
    assert bench.core.state.recovered == {}
    bench.one(act.FetchAssignment)
    bench.take(act.Pull)
    (again,) = bench.open(0, offset=40)
    assert bench.one(act.Pull).offset == 40 and again != handle


def test_a_moved_offset_holds_although_what_runs_is_too_slow(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100])
    bench.dispatched()
    bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, 40)
    bench.pass_ms(10_000)
    assert bench.one(act.Commit).offset == 40
    bench.core.handle(ev.Committed(handle, 40, ok=True), 0.0)
    assert bench.counters.late_answers == 1


def test_what_the_broker_had_deleted_unread_is_noted_as_lost(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100])
    (chunk,) = bench.dispatched()
    bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, 140)
    bench.done(chunk)
    assert noted(bench)[LOST] == [(101, 140)]
    assert bench.one(act.Commit).offset == 140


def test_an_offset_that_is_corrected_backwards_loses_nothing(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, 40)
    assert noted(bench) == {}


def test_a_reset_to_where_the_queue_is_warns_of_nothing(bench: Bench) -> None:
    levels: list[str] = []
    for offset in (100, 101):
        (handle,) = bench.open(0, offset=100)
        bench.take(act.Log)
        bench.pass_ms(bench.config.pull_delay_on_error_ms)
        bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, offset)
        levels += [log.level for log in bench.take(act.Log) if log.event == "pull_offset_illegal"]
        bench.core.handle(ev.Committed(handle, offset, ok=True), 0.0)
    assert levels == ["info", "warning"]


# --- reset by an administrator ----------------------------------------------------------------------------------


def test_a_reset_lets_what_runs_finish_commits_and_begins_there(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100, 101])
    (chunk, _) = bench.dispatched()
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 7, bench.queue(5): 9}), bench.now)
    bench.none(act.Commit)
    bench.done(chunk)
    for other in bench.core.state.workers["w1"].in_flight.copy().values():
        bench.done(other)
    assert bench.commits() == [7]
    assert not bench.core.state.queues
    bench.one(act.FetchAssignment)
    bench.take(act.Pull)
    bench.open(0, offset=7)
    assert bench.one(act.Pull).offset == 7


def test_what_a_reset_passes_over_is_noted_as_skipped(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100, 101])
    (chunk, _) = bench.dispatched()
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 150}), bench.now)
    assert bench.pq(handle).state is QueueState.DRAINING
    bench.done(chunk)
    noted(bench)
    bench.pass_ms(10_000)
    assert noted(bench)[SKIPPED] == [(101, 150)]


def test_a_reset_backwards_skips_nothing(bench: Bench) -> None:
    bench.open(0, offset=100)
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 7}), bench.now)
    assert noted(bench) == {}


def test_a_second_reset_replaces_one_under_way(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 7}), bench.now)
    commit = bench.one(act.Commit)
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 50}), bench.now)
    bench.core.handle(ev.Committed(handle, commit.offset, ok=True), bench.now)
    assert bench.commits() == [50]
    assert not bench.core.state.queues


def test_a_queue_that_is_reset_while_it_opens_begins_there_once_that_is_committed(bench: Bench) -> None:
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 7}), bench.now)
    bench.core.handle(ev.Opened(fetch.handle, 100), bench.now)
    bench.none(act.Pull)
    assert bench.commits() == [7]
    assert bench.one(act.Pull).offset == 7


def test_a_queue_that_leaves_is_its_new_owners_to_reset(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    bench.found(handle, [100])
    (chunk,) = bench.dispatched()
    bench.revoke()
    bench.commits()
    bench.core.handle(ev.ResetOffsets({bench.queue(0): 7}), bench.now)
    bench.done(chunk)
    assert bench.commits() == [101]


# --- stop -------------------------------------------------------------------------------------------------------


def test_a_stop_without_queues_is_finished_at_once(bench: Bench) -> None:
    bench.core.handle(ev.Start(), 0.0)
    bench.one(act.FetchAssignment)
    bench.core.handle(ev.Stop(), 0.0)
    bench.core.handle(ev.Stop(), 0.0)
    finished = bench.one(act.Finished)
    assert (finished.unfinished, finished.unsealed) == (0, 0)
    bench.core.handle(ev.Rebalance(), 0.0)
    bench.members([0])
    bench.none(act.FetchAssignment, act.FetchOffset)


def test_a_clean_stop_finishes_what_was_dispatched_and_drops_the_rest(bench: Bench) -> None:
    one, two = bench.open(0, 1)
    bench.worker("w1")
    bench.found(one, range(5))
    bench.answer(two, 19, 0)
    first, second = bench.dispatched()
    bench.core.handle(ev.Stop(), 0.0)
    bench.done(first, seq=1)
    bench.none(act.Dispatch, act.Finished)
    bench.done(second, failures=[(0, 2, "no")])
    back = bench.one(act.SendBack)
    assert back.delay_level == 2
    bench.core.handle(ev.SentBack(one, back.chunk_id, back.index, accepted=False), bench.now)
    bench.none(act.Finished, act.SendBack)
    bench.pass_ms(5_000)
    back = bench.one(act.SendBack)
    assert back.attempt == 1
    bench.core.handle(ev.SentBack(one, back.chunk_id, back.index, accepted=True), bench.now)
    bench.one(act.Seal)
    bench.sealed("w1", 1)
    assert bench.commits() == [0, 2]  # of the idle queue too: a broker that was killed may have forgotten it
    finished = bench.one(act.Finished)
    assert (finished.unfinished, finished.unsealed) == (0, 0)
    assert bench.slab.used_units == 0


def test_a_worker_that_dies_while_stopping_leaves_its_messages_to_another(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.dispatched()
    bench.core.handle(ev.Stop(), 0.0)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), 0.0)
    bench.worker("w2")
    (again,) = bench.dispatched()
    assert (again.worker_id, list(again.offsets)) == ("w2", [0])
    bench.done(again)
    assert bench.commits() == [1]
    assert bench.one(act.Finished).unfinished == 0


def test_past_the_stops_deadline_the_expected_repeats_are_counted(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    first, _ = bench.dispatched()
    bench.done(first, seq=1)
    bench.dispatched()
    bench.core.handle(ev.Stop(), 0.0)
    bench.pass_ms(30_000)
    finished = bench.one(act.Finished)
    assert (finished.unfinished, finished.unsealed) == (2, 1)
    assert "drain_deadline" in bench.logged()


def test_a_stop_by_force_has_commits_to_wait_for_while_something_finished_is_not_committed(bench: Bench) -> None:
    leaving = bench.core.assigning.leaving
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.worker("w2")
    assert not leaving.owes_commits()
    bench.found(handle, [0, 1])
    first, second = bench.dispatched()
    assert not leaving.owes_commits()
    bench.done(first, seq=1)
    assert leaving.owes_commits()  # its rows are to be sealed
    bench.core.handle(ev.Stop(), 0.0)
    bench.sealed("w1", 1)
    assert leaving.owes_commits()  # and then its offset is to be sent
    assert bench.persist() == [1]
    assert not leaving.owes_commits()  # the second one runs on, and nobody waits for it
    assert second.reported == 0


def test_an_offset_under_way_is_not_asked_for_again_and_a_queue_that_was_moved_owes_where_it_goes_on(
    bench: Bench,
) -> None:
    leaving = bench.core.assigning.leaving
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.found(handle, [0, 1])
    first, _ = bench.dispatched()
    bench.done(first)
    assert leaving.uncommitted() == {handle: 1}
    bench.core.handle(ev.Persist(), bench.now)
    assert leaving.uncommitted() == {}
    assert leaving.owes_commits()  # the answer is not there
    bench.core.handle(ev.Committed(handle, 1, False), bench.now)
    assert leaving.uncommitted() == {handle: 1}
    bench.core.handle(ev.ResetOffsets({bench.core.state.queues[handle].mq: 0}), bench.now)
    assert leaving.uncommitted() == {handle: 0}
    bench.take(act.Commit)
    bench.core.handle(ev.Stop(), bench.now)
    assert bench.persist() == [0]
    assert not leaving.owes_commits()


def test_what_is_finished_is_not_forgotten_where_the_last_commit_fails_until_the_deadline(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    for _ in range(3):
        for chunk in bench.dispatched():
            if 1 not in chunk.offsets:
                bench.done(chunk)
            else:
                held = chunk
    bench.revoke()
    for _ in range(30):
        bench.pass_ms(500)
        bench.commits(ok=False)
    assert handle not in bench.core.state.queues
    assert bench.core.state.recovered == {bench.queue(): (0, Intervals([(0, 1), (2, 3)]))}
    bench.done(held)
    bench.take(act.Pull)
    again = bench.open(0)[0]
    bench.found(again, [0, 1, 2])
    assert [offset for chunk in bench.dispatched() for offset in chunk.offsets] == [1]


def test_what_is_finished_in_order_is_kept_too_where_the_last_commit_fails(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    for chunk in bench.dispatched():
        bench.done(chunk)
    bench.revoke()
    for _ in range(30):
        bench.pass_ms(500)
        bench.commits(ok=False)
    assert bench.core.state.recovered == {bench.queue(): (0, Intervals([(0, 2)]))}


def _with_a_passed_gap(make: type[Bench]) -> tuple[Bench, int]:
    """An assignment before has passed 12 to 14, the end of a pull; this one finishes 10 and 11, and has 15 in hand."""
    bench = make()
    bench.core.recover({bench.queue(): (10, Intervals([(12, 15)]))})
    bench.worker("w1", "w2")
    (handle,) = bench.open(0, offset=10)
    bench.found(handle, [10, 11, 15])
    chunks = {chunk.offsets[0]: chunk for chunk in bench.dispatched()}
    for offset in (10, 11):
        bench.done(chunks[offset], seq=1)
        chunks |= {chunk.offsets[0]: chunk for chunk in bench.dispatched()}
    return bench, handle


def test_a_record_that_is_given_up_takes_no_gap_before_it_back(make: type[Bench]) -> None:
    bench, handle = _with_a_passed_gap(make)
    pq = bench.pq(handle)
    (chunk,) = pq.open.values()
    bench.revoke()
    for worker in ("w1", "w2"):
        if worker != chunk.worker_id:
            bench.sealed(worker, 1)
    bench.core.handle(ev.WorkerDied(chunk.worker_id), bench.now)
    bench.core.handle(ev.SalvageComplete(chunk.worker_id), bench.now)
    assert bench.counters.invariant_violations == 0


def test_rows_of_a_record_hold_no_gap_before_it(make: type[Bench]) -> None:
    bench, handle = _with_a_passed_gap(make)
    for worker in ("w1", "w2"):
        bench.sealed(worker, 1)
    assert bench.persist() == [15]
    (chunk,) = bench.pq(handle).open.values()
    bench.done(chunk, seq=2)
    assert bench.pq(handle).head_offset == 15
    bench.pass_ms(31_000)
    bench.persist()
    assert bench.counters.invariant_violations == 0


def test_a_queue_that_leaves_does_not_wait_for_rows_that_are_lost(make: type[Bench]) -> None:
    bench = make()
    bench.worker("w1")
    (handle,) = bench.open(0, offset=10)
    bench.found(handle, [10])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.revoke()
    bench.commits()
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    bench.commits()
    assert handle not in bench.core.state.queues


def test_what_is_settled_is_noted_once(bench: Bench) -> None:
    bench.worker("w")
    settled: list[tuple[int, int]] = []
    for number in range(3):
        offset = 10 * number  # another member has consumed what lies between
        (handle,) = bench.open(0, offset=offset)
        bench.found(handle, [offset])
        for chunk in bench.dispatched():
            bench.done(chunk)
        bench.revoke()
        bench.commits()
        assert handle not in bench.core.state.queues
        settled += bench.core.state.outcomes.take("g").of_queue(SETTLED, QueueKey("g", *bench.queue())).pieces
        bench.core.handle(ev.Members("orders", None, None), bench.now)
    assert settled == [(10 * number, 10 * number + 1) for number in range(3)]


def test_what_a_stop_leaves_is_the_same_before_and_after_a_queue_has_ended_at_its_deadline(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.found(handle, [0, 1, 2])
    first, *_ = bench.dispatched()
    bench.done(first, seq=1)
    bench.core.handle(ev.Stop(), bench.now)
    before = bench.core.assigning.leaving.left()
    bench.pass_ms(bench.config.stop_deadline_ms)
    finished, after = bench.one(act.Finished), bench.core.assigning.leaving.left()
    assert not bench.core.state.queues
    numbers = [(left.unfinished, left.unsealed) for left in (before, finished, after)]
    assert numbers == [numbers[0]] * 3
    assert numbers[0][0] > 0
    assert numbers[0][1] == 1
