"""Queues that may have been another member's unnoticed: after a lost connection, and after this process stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.assigning import CUT_SHORT_MS
from rocketcrew.supervisor.core.doubts import GONE_S, STOOD_STILL_S, WITHHELD_S
from rocketcrew.supervisor.core.journal import JournalSent, JournalState, entries_of
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.supervisor.journal_file import JournalFile, read_journal

from .conftest import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench

    Make = Callable[..., Bench]


def lost(bench: Bench) -> None:
    bench.core.handle(ev.BrokerLost("b"), bench.now)


def stood_still(bench: Bench) -> None:
    bench.pass_ms(STOOD_STILL_S * 1000)


def stops(bench: Bench) -> None:
    bench.core.handle(ev.Stop(), bench.now)


def restarts(bench: Bench) -> None:
    bench.core.handle(ev.Subscribe(TOPIC), bench.now)


def is_revoked(bench: Bench) -> None:
    bench.revoke()


BOTH = pytest.mark.parametrize("doubt", [lost, stood_still])
LEAVES = pytest.mark.parametrize("leaves", [stops, is_revoked])


def running(make: Make, **config: object) -> tuple[Bench, int]:
    """A queue of which the messages 0 and 1 are finished, and nothing of that is committed."""
    bench = make(**config)
    bench.core.handle(ev.Start(), bench.now)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    for _ in range(2):
        for chunk in bench.dispatched():
            bench.done(chunk)
    bench.take(act.FetchAssignment)
    bench.take(act.Pull)
    bench.take(act.Log)
    assert bench.pq(handle).head_offset == 2
    return bench, handle


def answered(bench: Bench, offset: int | None) -> None:
    """The look-up says that the queue is still ours, and the group is at `offset`."""
    assert [look.topic for look in bench.take(act.FetchAssignment)] == [TOPIC]
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, offset), bench.now)


@BOTH
def test_nothing_is_committed_before_it_is_known_where_the_group_is(make: Make, doubt: Callable[[Bench], None]) -> None:
    """The old offset went over that of the member that had the queue meanwhile: all that it had finished ran again."""
    bench, handle = running(make)
    doubt(bench)
    assert bench.persist() == []
    bench.answer(handle, 19, 2)  # a pull that was held: the next one takes no offset along either
    assert [pull.commit_offset for pull in bench.take(act.Pull)] == [0]
    answered(bench, 0)
    assert bench.persist() == [2]


@BOTH
def test_a_queue_that_went_on_elsewhere_is_read_from_there(make: Make, doubt: Callable[[Bench], None]) -> None:
    bench, handle = running(make)
    doubt(bench)
    answered(bench, 562)
    assert "queue_went_on_elsewhere" in bench.logged()
    commits = bench.take(act.Commit)
    assert [(commit.offset, commit.guarded, commit.known) for commit in commits] == [(2, True, 0)]
    bench.core.handle(ev.Committed(handle, 2, ok=True), bench.now)  # what is guarded leaves the offset as it is
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 562), bench.now)
    assert [pull.offset for pull in bench.take(act.Pull)] == [562]


def test_a_broker_that_forgot_the_newest_offsets_is_told_them_again(make: Make) -> None:
    """At once, also of an idle queue whose pull was not broken off."""
    bench, _ = running(make)
    assert bench.persist() == [2]
    lost(bench)
    answered(bench, 0)
    assert bench.logged()[-1] == "group_offset_went_back"
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(2, False)]


@pytest.mark.parametrize("committed", [0, 2])
@pytest.mark.parametrize("offset", [0, 2])
def test_a_queue_that_goes_on_here_counts_as_opened_after_all_that_others_of_the_host_know(
    make: Make, tmp_path: Path, offset: int, committed: int
) -> None:
    """One that had it meanwhile and was killed may have finished something that a reset asks for, which we heard of since.
    Else our journal says what it did, also where the answer to the only commit was lost."""
    forgets: list[bool] = []
    bench, _ = running(make)
    mq, theirs = bench.queue(), JournalState()
    ours = JournalFile(tmp_path / "journal", JournalState(), 1 << 20, forgets=lambda: forgets.append(True))
    for entry in (act.JournalCommitted(mq, 2, 2, 5_000), act.JournalDone(mq, 7, 9, "", 0)):
        theirs.apply(entry)
    ours.append([act.JournalCommitted(mq, 0, 0, 1_000), JournalSent(mq, 2), act.JournalDone(mq, 5, 6, "", 0)])
    bench.core.handle(ev.Persist(), bench.now)
    bench.commits(ok=committed == 2)
    ours.append(bench.take(act.JournalCommitted)[1:])
    lost(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    forgets.clear()
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, offset, 6_000), bench.now)
    ours.append(entries_of(bench.core.take_actions()))
    ours.close()
    assert not forgets, "what cells show counts"
    known = read_journal(tmp_path / "journal")
    assert known == ours.state
    assert (known.queues[mq].committed, known.queues[mq].opened_ms, known.sent()) == (committed, 6_000, {mq: 2})
    known.merge(theirs)
    assert known.recovered() == {mq: (committed, Intervals([(5, 6)]))}


def cut_off(bench: Bench) -> None:
    """Once more just before the end: what counts is the first time."""
    lost(bench)
    for _ in range(int(GONE_S)):
        bench.pass_ms(1000)
        bench.commits(ok=False)
    lost(bench)


@pytest.mark.parametrize("opened_at", [0, 1000])
def test_where_nothing_was_ever_committed_or_finished_a_stop_owes_nothing(make: Make, opened_at: int) -> None:
    """It tried three times to tell that to a broker that was away, and logged a deadline that had not come."""
    bench = make()
    bench.core.handle(ev.Start(), bench.now)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, opened_at), bench.now)
    bench.take(act.FetchAssignment)
    lost(bench)
    answered(bench, -1)
    lost(bench)
    bench.take(act.Log)
    assert bench.core.assigning.leaving.uncommitted() == {}
    stops(bench)
    assert len(bench.commits(ok=False)) == 1
    assert bench.one(act.Finished).clean
    assert "drain_deadline" not in bench.logged()


def test_what_the_broker_had_none_of_twice_is_still_owed(make: Make) -> None:
    bench, handle = running(make)
    assert bench.persist() == [2]
    for _ in range(2):
        lost(bench)
        answered(bench, -1)
    assert bench.core.assigning.leaving.uncommitted() == {handle: 2}


def in_a_long_doubt(make: Make) -> tuple[Bench, int]:
    """The broker had confirmed 2, and a guarded commit of 3 is under way."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    bench.pass_ms(WITHHELD_S * 1000)
    bench.found(handle, [2])
    for chunk in bench.dispatched():
        bench.done(chunk)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.known) for commit in bench.take(act.Commit)] == [(3, 2)]
    return bench, handle


def frozen(make: Make) -> tuple[Bench, int]:
    """The broker was killed meanwhile, and has forgotten the 2: it is at 1."""
    bench, handle = in_a_long_doubt(make)
    bench.core.handle(ev.Committed(handle, 3, ok=True, left_at=1), bench.now)
    return bench, handle


def test_a_guarded_commit_that_left_the_offset_is_not_in(make: Make) -> None:
    """It was taken for stored, and the next one looked for that: all froze behind an offset that had gone back."""
    bench, handle = frozen(make)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.known) for commit in bench.take(act.Commit)] == [(3, 2)]
    bench.core.handle(ev.Committed(handle, 3, ok=True), bench.now)
    assert bench.core.state.pulled[handle].committed == 3


@pytest.mark.parametrize(("refusals", "uncommitted"), [(0, 0), (2, 0), (3, 2)])
def test_a_stop_in_doubt_tells_the_broker_what_that_forgot_or_says_so(
    make: Make, refusals: int, uncommitted: int
) -> None:
    """It was told that only where the queue went on: each stop while a killed broker came back was not clean."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    bench.core.handle(ev.Stop(), bench.now)
    assert bench.one(act.Commit).known == 2
    bench.core.handle(ev.Committed(handle, 2, ok=True, left_at=0), bench.now)
    tell(bench, handle, refusals)
    finished = bench.one(act.Finished)
    assert (finished.uncommitted, finished.clean) == (uncommitted, not uncommitted)


def tell(bench: Bench, handle: int, refusals: int) -> None:
    """The last commits of a stop, to a group that is at 0 of 2, so many of which are refused."""
    told = 0
    for answer in range(3):
        bench.pass_ms(600)
        for commit in bench.take(act.Commit):
            assert (commit.offset, commit.guarded, commit.known) == (2, True, 0)
            bench.core.handle(ev.Committed(handle, 2, ok=answer >= refusals), bench.now)
            told += answer >= refusals
    assert told == (refusals < 3)


@pytest.mark.parametrize(("refusals", "uncommitted"), [(1, 0), (3, 2)])
def test_a_stop_counts_what_the_group_was_found_behind(make: Make, refusals: int, uncommitted: int) -> None:
    """What was committed once counted as known: one refusal, and the stop was called clean."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    answered(bench, 0)  # it was killed
    stops(bench)
    assert bench.core.assigning.leaving.owes_commits()
    tell(bench, handle, refusals)
    finished = bench.one(act.Finished)
    assert (finished.uncommitted, finished.clean) == (uncommitted, not uncommitted)


def test_what_is_not_under_way_of_what_the_group_was_found_behind_is_owed(make: Make) -> None:
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    answered(bench, 0)
    assert bench.core.assigning.leaving.uncommitted() == {handle: 2}


def with_a_long_message(make: Make) -> tuple[Bench, int]:
    """Up to 2 all is committed, and 2 outlasts any deadline."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    bench.found(handle, [2])
    assert len(bench.dispatched()) == 1
    bench.pass_ms(1)
    return bench, handle


@pytest.mark.parametrize("doubt_first", [True, False])
def test_a_queue_that_is_restarted_in_doubt_with_a_long_message_tells_the_broker_what_that_forgot(
    make: Make, doubt_first: bool
) -> None:
    """Nothing new was finished, and the last commit never came: behind the message all was run again."""
    bench, handle = with_a_long_message(make)
    for step in (lost, restarts) if doubt_first else (restarts, lost):
        step(bench)
    for at in (0, -1):
        bench.core.handle(ev.Persist(), bench.now)
        commit = bench.one(act.Commit)
        assert (commit.offset, commit.known) == (2, 0 if at < 0 else 2)
        bench.core.handle(ev.Committed(handle, 2, ok=True, left_at=at), bench.now)
    bench.pass_ms(600)
    assert bench.persist() == []


@pytest.mark.parametrize("ends", [stops, restarts])
def test_a_queue_that_ends_in_doubt_before_the_next_persist_tells_the_broker_what_that_forgot(
    make: Make, ends: Callable[[Bench], None]
) -> None:
    """The deadline came before: the group stayed where the broker was, and all of the queue was run again."""
    bench, handle = with_a_long_message(make)
    lost(bench)
    ends(bench)
    bench.pass_ms(CUT_SHORT_MS - 1)
    bench.none(act.Commit)
    bench.pass_ms(1)
    assert bench.one(act.Commit).offset == 2
    bench.core.handle(ev.Committed(handle, 2, ok=True, left_at=0), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    commit = bench.one(act.Commit)
    assert (commit.offset, commit.known) == (2, 0)


def test_a_stop_in_doubt_does_not_ask_before_what_runs_has_finished(make: Make) -> None:
    """What was committed was told again at once: where the broker was away, the last commit waited for that time-out."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    bench.found(handle, [2])
    (chunk,) = bench.dispatched()
    bench.pass_ms(1)
    lost(bench)
    stops(bench)
    bench.none(act.Commit)
    bench.done(chunk)
    assert bench.one(act.Commit).offset == 3


@LEAVES
def test_what_a_broker_forgot_is_told_to_it_though_the_queue_leaves_before_the_next_persist(
    make: Make, leaves: Callable[[Bench], None]
) -> None:
    """The last commit is guarded, and took the lower offset for somebody else's: the stop was called clean."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    answered(bench, 0)  # it was killed
    leaves(bench)
    last = bench.one(act.Commit)
    assert (last.offset, last.guarded, last.known) == (2, True, 0)
    bench.core.handle(ev.Committed(handle, 2, ok=True), bench.now)
    assert [(finished.uncommitted, finished.clean) for finished in bench.take(act.Finished)] in ([(0, True)], [])


@LEAVES
def test_a_commit_of_before_the_answer_that_left_the_group_behind_is_asked_for_again_though_the_queue_leaves(
    make: Make, leaves: Callable[[Bench], None]
) -> None:
    """It was taken for done: the broker was not told, and the stop called clean."""
    bench, handle = in_a_long_doubt(make)
    answered(bench, 0)  # it was killed
    leaves(bench)
    bench.core.handle(ev.Committed(handle, 3, ok=True, left_at=0), bench.now)
    bench.pass_ms(600)
    last = bench.one(act.Commit)
    assert (last.offset, last.guarded, last.known) == (3, True, 0)


def test_where_the_group_was_found_behind_counts_no_more_once_it_is_found_further(make: Make) -> None:
    """Guarded commits went over what an operator had reset it to since."""
    bench, _ = running(make)
    assert bench.persist() == [2]
    for group_at in (0, 2):
        lost(bench)
        answered(bench, group_at)
    lost(bench)
    bench.pass_ms(WITHHELD_S * 1000)
    assert [(commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(True, 2)]


def test_where_the_group_was_found_behind_counts_no_more_once_a_commit_finds_it_further(make: Make) -> None:
    bench, handle = in_a_long_doubt(make)
    answered(bench, 0)
    lost(bench)
    bench.core.handle(ev.Committed(handle, 3, ok=True, left_at=50), bench.now)
    bench.revoke()
    assert {commit.known for commit in bench.take(act.Commit)} == {2}


def test_a_commit_that_finds_the_group_further_is_no_error_and_not_asked_each_time(make: Make) -> None:
    bench, handle = running(make)
    lost(bench)
    bench.pass_ms(WITHHELD_S * 1000)
    bench.take(act.Commit)
    bench.core.handle(ev.Committed(handle, 2, ok=True, left_at=50), bench.now)
    assert (bench.core.state.pulled[handle].committed, bench.counters.commit_errors) == (0, 0)
    assert bench.persist() == []
    answered(bench, 1)  # an operator has reset it since
    bench.core.handle(ev.Persist(), bench.now)
    assert bench.one(act.Commit).offset == 2


def test_a_queue_that_leaves_for_another_member_leaves_its_offset_to_that(make: Make) -> None:
    bench, handle = frozen(make)
    bench.revoke()
    bench.take(act.Commit)
    bench.core.handle(ev.Committed(handle, 3, ok=True, left_at=1), bench.now)
    assert handle not in bench.core.state.pulled


def test_a_commit_that_was_asked_for_before_the_doubt_is_guarded(make: Make) -> None:
    """It waited for what it depends on, and went over the offset of the member that had the queue meanwhile."""
    bench, handle = running(make)
    bench.core.handle(ev.Persist(), bench.now)
    commit = bench.one(act.Commit)
    assert (commit.guarded, bench.core.doubts.guards(commit)) == (False, False)
    lost(bench)
    assert bench.core.doubts.guards(commit)
    del bench.core.state.pulled[handle]
    assert bench.core.doubts.guards(commit), "its queue has ended: the new owner may know better"


def test_an_operators_reset_says_nothing_of_a_commit_before_it(make: Make) -> None:
    bench, _ = running(make)
    bench.core.handle(ev.Persist(), bench.now)
    commit = bench.one(act.Commit)
    lost(bench)
    bench.core.handle(ev.ResetOffsets({bench.queue(): 1}), bench.now)
    assert bench.core.doubts.guards(commit)


def test_an_operators_reset_is_never_guarded(make: Make) -> None:
    bench, handle = running(make)
    lost(bench)
    bench.core.handle(ev.ResetOffsets({bench.queue(): 1}), bench.now)
    reset = bench.one(act.Commit)
    assert not bench.core.doubts.guards(reset)
    del bench.core.state.pulled[handle]
    assert not bench.core.doubts.guards(reset)


def test_what_the_look_up_gives_to_another_member_is_not_asked_for(make: Make) -> None:
    bench, handle = running(make)
    lost(bench)
    bench.revoke()
    bench.none(act.FetchOffset)
    assert bench.pq(handle).state is QueueState.DRAINING
    assert [commit.guarded for commit in bench.take(act.Commit)] == [True]


def test_an_answer_of_before_the_standstill_counts_for_nothing(make: Make) -> None:
    bench, handle = running(make)
    lost(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.one(act.FetchOffset)
    stood_still(bench)
    bench.core.handle(ev.Opened(handle, 0), bench.now)
    assert bench.persist() == []
    answered(bench, 562)
    assert "queue_went_on_elsewhere" in bench.logged()


def test_a_queue_that_was_being_opened_is_asked_for_once_more(make: Make) -> None:
    bench = make()
    bench.core.handle(ev.Start(), bench.now)
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    stood_still(bench)
    bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    bench.none(act.Pull)
    assert bench.one(act.FetchOffset).handle == fetch.handle
    bench.core.handle(ev.Opened(fetch.handle, 562), bench.now)
    assert [pull.offset for pull in bench.take(act.Pull)] == [562]


@pytest.mark.parametrize("nobody", ["members", "offset"])
def test_it_is_asked_with_growing_pauses_until_somebody_answers(make: Make, nobody: str) -> None:
    bench, handle = running(make)
    lost(bench)
    for pause_ms in (1_000, 2_000, 4_000, 8_000):  # before the next rebalance
        if nobody == "members":
            assert [look.topic for look in bench.take(act.FetchAssignment)] == [TOPIC]
            bench.core.handle(ev.Members(TOPIC, [bench.queue()], None), bench.now)
            bench.none(act.FetchOffset)
        else:
            answered(bench, None)
        bench.core.handle(ev.Members(TOPIC, [bench.queue()], None), bench.now)  # a rebalance: no second question for it
        bench.pass_ms(pause_ms - 1)
        bench.none(act.FetchAssignment)
        bench.pass_ms(1)
    bench.take(act.Commit)
    bench.core.handle(ev.Committed(handle, 2, ok=True), bench.now)
    answered(bench, 2)
    bench.pass_ms(4_000)
    bench.none(act.FetchAssignment)


def test_in_a_doubt_that_lasts_commits_look_at_the_offset(make: Make) -> None:
    """Nobody may answer for hours, and then all since the connection was lost would run again after a kill."""
    bench, _ = running(make)
    lost(bench)
    bench.pass_ms(WITHHELD_S * 1000 - 1)
    bench.none(act.Commit)
    bench.pass_ms(1)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(2, True, 0)]


def test_other_brokers_and_broadcasting_members_have_no_doubts(make: Make) -> None:
    bench, _ = running(make)
    bench.core.handle(ev.BrokerLost("another"), bench.now)
    assert bench.persist() == [2]
    bench, _ = running(make, broadcasting=True)
    lost(bench)
    stood_still(bench)
    assert bench.persist() == [2]


def test_a_pause_that_is_none_puts_nothing_in_doubt(make: Make) -> None:
    bench, _ = running(make)
    bench.pass_ms(STOOD_STILL_S * 1000 - 1)
    assert "stood_still" not in bench.logged()
    assert bench.persist() == [2]


def test_a_reset_in_doubt_is_committed_as_ever(make: Make) -> None:
    bench, _ = running(make)
    lost(bench)
    bench.core.handle(ev.ResetOffsets({bench.queue(): 1}), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(1, False)]


def moved(bench: Bench, handle: int, offset: int, **more: int) -> None:
    """The broker corrects the queue's offset."""
    bench.core.handle(ev.Pulled(handle, PullResult(ResponseCode.PULL_OFFSET_MOVED, offset, **more)), bench.now)


def opened_again(bench: Bench, offset: int) -> int:
    """The queue is still ours, and the group is at `offset`; its handle."""
    bench.take(act.FetchAssignment)
    bench.take(act.Pull)
    bench.members([0])
    handle = bench.one(act.FetchOffset).handle
    bench.core.handle(ev.Opened(handle, offset), bench.now)
    return handle


def reads_again(bench: Bench, handle: int, *, told: int, group_at: int) -> None:
    """What it was moved to is in, and it goes on where the group is, with nothing to tell."""
    bench.core.handle(ev.Committed(handle, told, ok=True), bench.now)
    opened_again(bench, group_at)
    bench.none(act.Commit)
    assert [pull.offset for pull in bench.take(act.Pull)] == [group_at]


@BOTH
def test_a_correction_in_doubt_leaves_an_offset_that_went_on_elsewhere(
    make: Make, doubt: Callable[[Bench], None]
) -> None:
    """What the broker has deleted below 500 we had not read: the member that had the queue meanwhile was beyond that."""
    bench, handle = running(make)
    doubt(bench)
    moved(bench, handle, 500, min_offset=500)
    assert [(commit.offset, commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(500, True, 0)]
    reads_again(bench, handle, told=500, group_at=562)


def test_a_correction_backwards_is_committed_when_the_broker_says_it_once_more(make: Make) -> None:
    """What is guarded never goes back: the group's offset may be a newer one."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    moved(bench, handle, 1, min_offset=0, end_offset=1)
    assert [(commit.offset, commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(1, True, 2)]
    bench.core.handle(ev.Committed(handle, 1, ok=True), bench.now)
    again = opened_again(bench, 2)
    moved(bench, again, 1, min_offset=0, end_offset=1)
    bench.pass_ms(bench.config.pull_delay_on_error_ms)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(1, False)]


@pytest.mark.parametrize("in_a_stop", [False, True])
def test_a_correction_in_doubt_is_told_to_a_broker_that_forgot_what_was_committed(make: Make, in_a_stop: bool) -> None:
    """A failover had replaced the end of the queue, and had the group's offset of ten seconds before: all since ran again."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    moved(bench, handle, 1)
    if in_a_stop:
        stops(bench)
    assert [(commit.offset, commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(1, True, 2)]
    bench.core.handle(ev.Committed(handle, 1, ok=True, left_at=0), bench.now)
    bench.pass_ms(600)
    assert [(commit.offset, commit.guarded, commit.known) for commit in bench.take(act.Commit)] == [(1, True, 0)]
    assert bench.core.state.pulled[handle].pq.state is QueueState.DRAINING


def in_hand(make: Make) -> tuple[Bench, int, Chunk]:
    bench = make()
    bench.core.handle(ev.Start(), bench.now)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    return bench, handle, chunk


def test_a_doubt_while_what_runs_ends_makes_a_correction_guarded(make: Make) -> None:
    bench, handle, chunk = in_hand(make)
    moved(bench, handle, 500, min_offset=500)
    lost(bench)
    bench.none(act.Commit)
    bench.done(chunk)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(500, True)]


def test_a_correction_in_doubt_that_meets_its_deadline_is_left_to_the_broker(make: Make) -> None:
    bench, handle, _ = in_hand(make)
    lost(bench)
    moved(bench, handle, 500, min_offset=500)
    bench.pass_ms(bench.config.drain_deadline_ms)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(500, True)]
    reads_again(bench, handle, told=500, group_at=562)


def test_a_reset_that_the_broker_tells_in_doubt_is_committed_as_ever(make: Make) -> None:
    bench, handle = running(make)
    lost(bench)
    moved(bench, handle, 300, min_offset=0, end_offset=400)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(300, False)]
