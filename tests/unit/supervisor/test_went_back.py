"""A group's offset that went back below what was committed: the broker forgot its last seconds, or an operator reset it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.doubts import GONE_S, TAIL_S

from .conftest import TOPIC
from .test_doubts import answered, cut_off, lost, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench

    Make = Callable[..., Bench]


def goes_on(bench: Bench, handle: int, *, final: bool = True) -> None:
    """Until its offset is so old that no broker forgets it."""
    for _ in range(int(4 * TAIL_S)):
        bench.pass_ms(1000)
        for commit in bench.take(act.Commit):
            bench.core.handle(ev.Committed(handle, commit.offset, ok=True, final=final), bench.now)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, bench.pq(handle).next_offset)


def one_more_committed(make: Make) -> tuple[Bench, int]:
    """2 long ago, and 3 just now."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    goes_on(bench, handle)
    bench.found(handle, [2])
    for chunk in bench.dispatched():
        bench.done(chunk)
    assert bench.persist() == [3]
    return bench, handle


def still_for_long(bench: Bench) -> None:
    bench.pass_ms(GONE_S * 1000)


@pytest.mark.parametrize("doubt", [cut_off, still_for_long])
def test_a_reset_that_another_member_took_is_not_undone(make: Make, doubt: Callable[[Bench], None]) -> None:
    """We committed 2, then were away for so long that the brokers forgot us; an operator asked for 0 to be run again."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    goes_on(bench, handle)
    doubt(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    assert "group_offset_went_back" in bench.logged()
    commits = bench.take(act.Commit)
    assert [(commit.guarded, commit.known) for commit in commits] == [(True, 2)]
    bench.core.handle(ev.Committed(handle, 2, ok=True, left_at=0), bench.now)
    bench.take(act.Pull)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    assert [pull.offset for pull in bench.take(act.Pull)] == [0]
    bench.none(act.Commit)


@pytest.mark.parametrize(("offset", "final", "again"), [(2, True, False), (1, True, True), (0, False, False)])
def test_what_a_broker_that_was_away_for_long_forgot_does_not_run_again(
    make: Make, offset: int, final: bool, again: bool
) -> None:
    """A hung master's slave serves when the name server has dropped that one, two minutes later: what was finished since the
    slave had fetched the offsets ran again."""
    bench, _ = one_more_committed(make)
    cut_off(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.take(act.Log)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, offset, final=final), bench.now)
    (told,) = bench.take(act.Log)
    assert (told.event, told.keys["again"]) == ("group_offset_went_back", again)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(3, again)]


def test_what_only_a_slave_was_told_its_master_need_not_have(make: Make) -> None:
    """Nor does it count how long ago that was."""
    bench, handle = running(make)
    goes_on(bench, handle, final=False)
    cut_off(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 1), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(2, False)]


def test_no_offset_is_no_reset(make: Make) -> None:
    """The broker has lost all of the group's: the queue would be opened at its end, and what lies between be passed over."""
    bench, _ = running(make)
    assert bench.persist() == [2]
    cut_off(bench)
    bench.take(act.FetchAssignment)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, -1), bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(2, False)]


def test_many_offsets_that_went_back_are_one_line(make: Make) -> None:
    bench = make()
    bench.core.handle(ev.Start(), bench.now)
    bench.open(0, 1, 2, offset=7)
    lost(bench)
    bench.take(act.FetchAssignment)
    bench.members([0, 1, 2])
    bench.take(act.Log)
    for fetch in bench.take(act.FetchOffset):
        bench.none(act.Log)
        bench.core.handle(ev.Opened(fetch.handle, 5), bench.now)
    told = {"broker": "b", "queues": 3, "first": f"{TOPIC}/0", "offset": 7, "committed": 5, "again": False}
    assert [(log.event, log.keys) for log in bench.take(act.Log)] == [("group_offset_went_back", told)]


def test_where_nothing_was_ever_committed_no_offset_went_back(make: Make) -> None:
    bench = make()
    bench.core.handle(ev.Start(), bench.now)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    bench.take(act.FetchAssignment)
    lost(bench)
    answered(bench, -1)
    assert "group_offset_went_back" not in bench.logged()
    bench.core.handle(ev.Persist(), bench.now)
    assert [(commit.offset, commit.guarded) for commit in bench.take(act.Commit)] == [(0, False)]


def test_a_stop_that_leaves_the_group_behind_is_not_clean(make: Make) -> None:
    """It may have been reset: the broker may have forgotten us."""
    bench, handle = running(make)
    assert bench.persist() == [2]
    goes_on(bench, handle)
    cut_off(bench)
    bench.core.handle(ev.Stop(), bench.now)
    for _ in range(3):
        for commit in bench.take(act.Commit):
            bench.core.handle(ev.Committed(handle, commit.offset, ok=True, left_at=1), bench.now)
        bench.pass_ms(600)
    finished = bench.one(act.Finished)
    assert (finished.uncommitted, finished.clean) == (1, False)  # from where the group is


@pytest.mark.parametrize(
    ("seconds", "left_at", "final", "again"),
    [(1, 0, True, True), (GONE_S, 0, True, False), (GONE_S, 2, True, True), (GONE_S, 0, False, True)],
)
def test_a_queue_that_is_restarted_in_doubt_tells_the_broker_what_that_forgot(
    make: Make, seconds: float, left_at: int, final: bool, again: bool
) -> None:
    """Its commit was left behind and taken for done, and all was run again from the older offset. What the group went back to
    when the broker may have forgotten us is a reset, and counts."""
    bench, handle = one_more_committed(make)
    lost(bench)
    bench.pass_ms(seconds * 1000)
    bench.commits(ok=False)
    bench.core.handle(ev.Subscribe(TOPIC), bench.now)
    bench.pass_ms(600)
    bench.one(act.Commit)
    bench.core.handle(ev.Committed(handle, 3, ok=True, left_at=left_at, final=final), bench.now)
    bench.pass_ms(600)
    assert [(commit.offset, commit.known) for commit in bench.take(act.Commit)] == ([(3, left_at)] if again else [])
    assert (handle in bench.core.state.pulled) is again
