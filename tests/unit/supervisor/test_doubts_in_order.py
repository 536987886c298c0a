"""Ordered queues that may have been another member's unnoticed, and the locks of such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.locking import LOCK_EXPIRES_S
from rocketcrew.supervisor.core.states import QueueState

from .conftest import ME
from .test_doubts import lost, moved, restarts, stood_still

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketcrew.remoting.queues import MessageQueue

    from .conftest import Bench

    Make = Callable[..., Bench]


def locked(make: Make) -> tuple[Bench, MessageQueue, int]:
    """A queue that is handled in order, with its lock."""
    bench = make(order="queue", locks=True)
    mq = bench.queue()
    bench.members([0])
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    handle = bench.one(act.FetchOffset).handle
    bench.core.handle(ev.Opened(handle, 0), bench.now)
    return bench, mq, handle


def test_without_its_lock_a_queue_is_corrected_with_a_look_at_the_offset(make: Make) -> None:
    bench, mq, handle = locked(make)
    bench.core.handle(ev.Locked([mq], [], bench.now), bench.now)
    moved(bench, handle, 500, min_offset=500)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(500, True)]


def test_without_its_lock_a_queue_commits_with_a_look_at_the_offset(make: Make) -> None:
    bench, mq, handle = locked(make)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.done(bench.one(act.DispatchOrdered).chunks[0].chunk)
    bench.core.handle(ev.Locked([mq], [], bench.now), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(1, True)]


def waits_for_its_lock(make: Make) -> tuple[Bench, MessageQueue, int]:
    bench = make(order="queue", locks=True)
    bench.members([0])
    return bench, bench.queue(), next(iter(bench.core.state.queues))


def in_order(make: Make) -> tuple[Bench, MessageQueue, int]:
    """A locked queue with the messages 0 to 4, the first of which is in hand."""
    bench, mq, handle = locked(make)
    bench.worker("w1")
    bench.found(handle, range(5))
    return bench, mq, handle


def first_done(bench: Bench) -> None:
    bench.done(bench.one(act.DispatchOrdered).chunks[0].chunk)


def granted(bench: Bench, mq: MessageQueue) -> None:
    """When it is asked for the lock, as it is soon."""
    bench.pass_ms(bench.config.lock_retry_ms)
    assert mq in bench.take(act.LockQueues)[-1].mqs
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)


@pytest.mark.parametrize("group_at", [1, 4], ids=["ours", "elsewhere"])
def test_in_order_nothing_starts_before_the_offset_is_known(make: Make, group_at: int) -> None:
    """The lock came back first, and old messages ran after the newer ones that another member had handled."""
    bench, mq, _ = in_order(make)
    lost(bench)
    first_done(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.none(act.FetchOffset)  # not before the lock is ours: whoever has it may go on
    granted(bench, mq)
    fetch = bench.one(act.FetchOffset)
    bench.none(act.DispatchOrdered)
    granted(bench, mq)  # the question is out
    bench.none(act.FetchOffset, act.DispatchOrdered)
    bench.core.handle(ev.Opened(fetch.handle, group_at), bench.now)
    if group_at == 4:
        assert "queue_went_on_elsewhere" in bench.logged()
        bench.none(act.DispatchOrdered)
    else:
        granted(bench, mq)
        assert bench.one(act.DispatchOrdered).chunks[0].chunk.offsets[0] == 1


def stopping(make: Make, after: Callable[[Bench], None]) -> tuple[Bench, MessageQueue]:
    """A stop in doubt; the worker that has a message in hand has died."""
    bench, mq, _ = in_order(make)
    worker_id = bench.one(act.DispatchOrdered).worker_id
    bench.worker("w2")
    lost(bench)
    bench.core.handle(ev.Stop(), bench.now)
    bench.commits()
    after(bench)
    bench.core.handle(ev.WorkerDied(worker_id, ev.WorkerDied("x").death), bench.now)
    bench.core.handle(ev.SalvageComplete(worker_id), bench.now)
    bench.none(act.DispatchOrdered)
    return bench, mq


def test_a_guard_that_looked_before_the_group_was_found_further_back_says_nothing(make: Make) -> None:
    """The stop took it for done, and the last commit the lower offset for somebody else's."""
    bench, mq, handle = in_order(make)
    first_done(bench)
    assert bench.persist() == [1]
    first_done(bench)
    in_hand = bench.one(act.DispatchOrdered).chunks[0].chunk
    lost(bench)
    bench.core.handle(ev.Stop(), bench.now)
    for commit in bench.take(act.Commit):
        bench.core.handle(ev.Committed(handle, commit.offset, ok=False), bench.now)
    granted(bench, mq)
    asked = bench.one(act.FetchOffset)
    bench.core.handle(ev.Persist(), bench.now)
    under_way = bench.one(act.Commit)
    bench.core.handle(ev.Opened(asked.handle, 0), bench.now)  # the broker was killed
    bench.core.handle(ev.Committed(handle, under_way.offset, ok=True, left_at=0), bench.now)
    assert bench.core.state.pulled[handle].committed == 0
    bench.done(in_hand)
    bench.pass_ms(1000)
    assert {commit.known for commit in bench.take(act.Commit)} == {0}


def nothing(_bench: Bench) -> None:
    pass


@pytest.mark.parametrize("group_at", [0, -1], ids=["ours", "forgotten"])
def test_a_stop_in_doubt_finishes_what_it_has_once_its_lock_is_back(make: Make, group_at: int) -> None:
    """Nobody asked for it: the message stayed undone until the deadline, and the stop was not clean."""
    bench, mq = stopping(make, nothing)
    granted(bench, mq)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, group_at), bench.now)
    bench.none(act.DispatchOrdered)
    granted(bench, mq)
    first_done(bench)
    for commit in bench.take(act.Commit):
        assert (commit.guarded, commit.known) == (True, group_at)
        bench.core.handle(ev.Committed(commit.handle, commit.offset, ok=True), bench.now)
    while bench.commits():
        pass
    assert bench.one(act.Finished).clean


def test_a_stop_in_doubt_leaves_what_has_not_begun_where_another_has_gone_on(make: Make) -> None:
    bench, mq = stopping(make, nothing)
    granted(bench, mq)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 4), bench.now)
    assert {"queue_went_on_elsewhere", "drain_cut_short"} <= set(bench.logged())
    granted(bench, mq)
    bench.pass_ms(bench.config.lock_retry_ms)
    bench.none(act.DispatchOrdered, act.FetchOffset, act.LockQueues)


def test_a_stop_leaves_what_has_not_begun_where_another_had_the_lock(make: Make) -> None:
    def refused(bench: Bench) -> None:
        bench.pass_ms(bench.config.lock_retry_ms)
        bench.core.handle(ev.Locked([bench.queue()], [], bench.now), bench.now)

    bench, mq = stopping(make, refused)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    assert "drain_cut_short" in bench.logged()


def test_where_nobody_says_the_offset_confirmed_locks_ask_with_growing_pauses(make: Make) -> None:
    bench, mq, handle = in_order(make)
    lost(bench)
    granted(bench, mq)
    asked = 0
    for _ in range(40):
        for fetch in bench.take(act.FetchOffset):
            asked += 1
            bench.core.handle(ev.Opened(fetch.handle, None), bench.now)
        granted(bench, mq)
    assert asked == 5  # at once, then after 1, 2, 4 and 8 s
    assert bench.core.state.pulled[handle].in_doubt


def test_a_doubt_of_before_a_moved_queue_was_opened_ends_while_its_lock_is_held(make: Make) -> None:
    bench = make(order="queue", locks=True)
    mq = bench.queue()
    bench.core.handle(ev.Start(), bench.now)
    bench.members([0])
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    fetch = bench.one(act.FetchOffset)
    bench.core.handle(ev.ResetOffsets({mq: 5}), bench.now)
    bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    stood_still(bench)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    bench.commits()
    bench.take(act.FetchOffset)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 5), bench.now)
    assert not bench.core.state.pulled[fetch.handle].in_doubt


@pytest.mark.parametrize("answers", [False, True])
def test_a_lock_that_a_broker_may_have_still_is_given_up_with_the_queue(make: Make, answers: bool) -> None:
    bench, mq, handle = in_order(make)
    lost(bench)
    first_done(bench)
    if answers:
        granted(bench, mq)
    bench.revoke()
    while handle in bench.core.state.pulled:
        assert bench.commits()
    assert bench.one(act.UnlockQueues).mqs == (mq,)


def expired(bench: Bench, _mq: MessageQueue) -> None:
    bench.pass_ms(bench.config.lock_live_ms)


def expired_and_lost(bench: Bench, mq: MessageQueue) -> None:
    expired(bench, mq)
    lost(bench)


def granted_late(bench: Bench, mq: MessageQueue) -> None:
    asked_at = bench.now
    expired(bench, mq)
    bench.core.handle(ev.Locked([mq], [mq], asked_at), bench.now)


def unanswered(bench: Bench, mq: MessageQueue) -> None:
    bench.core.handle(ev.Locked([mq], None, bench.now), bench.now)


def refused(bench: Bench, mq: MessageQueue) -> None:
    expired(bench, mq)
    bench.core.handle(ev.Locked([mq], [], bench.now), bench.now)


@pytest.mark.parametrize(
    ("how", "held"),
    [(expired, True), (expired_and_lost, True), (granted_late, True), (unanswered, True), (refused, False)],
)
@pytest.mark.parametrize("opened", [True, False])
def test_a_lock_that_is_not_counted_on_is_given_up_unless_another_has_it(
    make: Make, how: Callable[[Bench, MessageQueue], None], held: bool, opened: bool
) -> None:
    """The next owner waited for it until it had expired at the broker, too."""
    if opened:
        bench, mq, handle = locked(make)
        bench.persist()
    else:
        bench, mq, handle = waits_for_its_lock(make)
        held = how in (granted_late, unanswered)
    how(bench, mq)
    bench.revoke()
    while handle in bench.core.state.pulled:
        assert bench.commits()
    assert [unlock.mqs for unlock in bench.take(act.UnlockQueues)] == ([(mq,)] if held else [])


def renewed(bench: Bench, _mq: MessageQueue) -> None:
    """A renewal is under way."""


def lost_and_asked(bench: Bench, _mq: MessageQueue) -> None:
    lost(bench)
    bench.pass_ms(bench.config.lock_retry_ms)


def expired_and_asked(bench: Bench, mq: MessageQueue) -> None:
    bench.core.handle(ev.Locked([mq], None, bench.now), bench.now)
    expired(bench, mq)
    bench.pass_ms(bench.config.lock_retry_ms)


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize("how", [renewed, lost_and_asked, expired_and_asked])
def test_a_lock_that_was_given_up_behind_the_question_is_asked_for_anew(
    make: Make, how: Callable[[Bench, MessageQueue], None], lingers: bool
) -> None:
    """The answer counted for the queue that was opened meanwhile: it ran here while another member could lock it."""
    bench, mq, handle = locked(make)
    bench.core.handle(ev.Start(), bench.now)
    bench.worker("w1")
    bench.persist()
    if lingers:
        bench.found(handle, [0])
    bench.pass_ms(1000)
    how(bench, mq)
    assert mq in bench.take(act.LockQueues)[-1].mqs
    asked_at = bench.now
    restarts(bench)
    while bench.commits():
        pass
    if lingers:
        bench.pass_ms(bench.config.drain_deadline_ms)
        bench.none(act.UnlockQueues)
        first_done(bench)
    assert bench.one(act.UnlockQueues).mqs == (mq,)
    bench.members([0])
    bench.none(act.LockQueues)  # one is under way
    bench.core.handle(ev.Locked([mq], [mq], asked_at), bench.now)
    bench.none(act.FetchOffset)
    granted(bench, mq)
    bench.one(act.FetchOffset)


@pytest.mark.parametrize("taken", [False, True])
def test_locks_that_are_given_up_at_once_are_one_request(make: Make, taken: bool) -> None:
    """1,000 queues that waited for theirs were 1,000 requests, and as many lines where the broker was away."""
    bench = make(order="queue", locks=True)
    bench.members(range(9))
    mqs = bench.one(act.LockQueues).mqs
    bench.core.handle(ev.Locked(mqs, None, bench.now), bench.now)
    bench.members(range(4, 9))
    if taken:
        assert [unlock.mqs for unlock in bench.take(act.UnlockQueues)] == [mqs[:4]]
    bench.members(range(4, 9), [*(f"0{number}" for number in range(9)), ME])
    assert [unlock.mqs for unlock in bench.take(act.UnlockQueues)] == [mqs[4:] if taken else mqs]


def test_a_lock_that_is_given_up_behind_a_question_is_no_part_of_the_request_before_it(make: Make) -> None:
    """The broker heard the unlock first, and kept the lock that it gave then until the question's answer."""
    bench = make(order="queue", locks=True)
    bench.members([0, 1])
    mqs = bench.one(act.LockQueues).mqs
    bench.core.handle(ev.Locked(mqs, None, bench.now), bench.now)
    bench.core.take_actions()
    locking = bench.core.locking
    assert locking is not None
    gone, stays = (bench.core.state.by_mq[mq] for mq in mqs)
    locking.ended(gone, bench.now)
    locking.open([stays])
    bench.core.handle(ev.Locked(mqs[1:], None, bench.now), bench.now)
    locking.ended(stays, bench.now)
    done = bench.core.take_actions()
    assert [action.mqs for action in done if isinstance(action, act.LockQueues | act.UnlockQueues)] == [
        mqs[:1],
        mqs[1:],
        mqs[1:],
    ]


@pytest.mark.parametrize(("answer", "held"), [("all", True), (None, True), ("none", False)])
def test_what_was_asked_for_a_queue_that_has_ended_is_given_up_unless_it_was_refused(
    make: Make, answer: str | None, held: bool
) -> None:
    bench, mq, _ = waits_for_its_lock(make)
    bench.revoke()
    bench.none(act.UnlockQueues)
    given = None if answer is None else [mq] if answer == "all" else []
    bench.core.handle(ev.Locked([mq], given, bench.now), bench.now)
    assert [unlock.mqs for unlock in bench.take(act.UnlockQueues)] == ([(mq,)] if held else [])


def test_where_another_had_the_lock_an_offset_that_went_back_stays(make: Make) -> None:
    """It may have been reset there. Of a queue without locks that is restarted in doubt it is what the broker forgot."""
    bench, mq, handle = in_order(make)
    first_done(bench)
    assert bench.persist() == [1]
    first_done(bench)
    (in_hand,) = bench.one(act.DispatchOrdered).chunks
    lost(bench)
    refused(bench, mq)
    bench.pass_ms(bench.config.lock_lost_retry_ms)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    bench.done(in_hand.chunk)
    for _ in range(2):
        for commit in bench.take(act.Commit):
            assert commit.guarded
            assert commit.known > 0
            bench.core.handle(ev.Committed(handle, commit.offset, ok=True, left_at=0), bench.now)
    assert handle not in bench.core.state.pulled


@pytest.mark.parametrize("seconds", [LOCK_EXPIRES_S - 1, LOCK_EXPIRES_S])
def test_a_lock_that_may_have_been_anothers_has_the_queue_read_again(make: Make, seconds: float) -> None:
    """The broker refuses to say for so long, and the connection stays."""
    bench, mq, handle = in_order(make)
    first_done(bench)
    for _ in range(int(seconds)):
        bench.pass_ms(1000)
    bench.take(act.DispatchOrdered)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    state = QueueState.DRAINING if seconds >= LOCK_EXPIRES_S else QueueState.ASSIGNED
    assert bench.pq(handle).state is state
