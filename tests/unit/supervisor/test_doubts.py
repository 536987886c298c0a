"""Queues that may have been another member's unnoticed: after a lost connection, and after this process stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.doubts import STOOD_STILL_S, WITHHELD_S
from rocketcrew.supervisor.core.states import QueueState

from .conftest import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench

    Make = Callable[..., Bench]


def lost(bench: Bench) -> None:
    bench.core.handle(ev.BrokerLost("b"), bench.now)


def stood_still(bench: Bench) -> None:
    bench.pass_ms(STOOD_STILL_S * 1000)


BOTH = pytest.mark.parametrize("doubt", [lost, stood_still])


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
    bench, handle = running(make)
    assert bench.persist() == [2]
    lost(bench)
    bench.core.handle(ev.NoAnswer(handle), bench.now)
    answered(bench, 0)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(2, False)]


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


def test_without_its_lock_a_queue_commits_with_a_look_at_the_offset(make: Make) -> None:
    bench = make(order="queue", locks=True)
    mq = bench.queue()
    bench.members([0])
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    handle = bench.one(act.FetchOffset).handle
    bench.core.handle(ev.Opened(handle, 0), bench.now)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.done(bench.one(act.DispatchOrdered).chunks[0].chunk)
    bench.core.handle(ev.Locked([mq], [], bench.now), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(1, True)]
