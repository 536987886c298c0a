"""A member that brokers answer and do not list: it says so, and begins when they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.unlisted import FORGOTTEN_S, LOOK_AGAIN_S

from .conftest import ME, TOPIC

if TYPE_CHECKING:
    from .conftest import Bench


def started(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    bench.take(act.FetchAssignment)
    bench.take(act.Heartbeat)
    bench.logged()


def looked(bench: Bench, *members: str, unlisted: bool = True) -> list[str]:
    """The answer of a look-up; what is logged of it."""
    bench.core.handle(ev.Members(TOPIC, [bench.queue()], members, unlisted=unlisted), bench.now)
    return [event for event in bench.logged() if event != "assignment_changed"]


def test_it_is_said_once_when_it_is_still_so(bench: Bench) -> None:
    started(bench)
    assert looked(bench) == []
    bench.pass_ms(200)  # at the start, and when somebody joins
    assert looked(bench) == []
    assert bench.core.unlisted.topics == []
    bench.pass_ms(LOOK_AGAIN_S * 1000 - 200)
    assert looked(bench, "other") == ["member_not_listed"]
    assert bench.core.unlisted.topics == [TOPIC]
    for _ in range(20):
        bench.pass_ms(LOOK_AGAIN_S * 1000)
        assert looked(bench) == []


def test_heartbeats_and_looks_go_on_at_their_rate_until_it_is_listed(bench: Bench) -> None:
    started(bench)
    for _ in range(3):
        looked(bench)
    for _ in range(4):
        bench.pass_ms(LOOK_AGAIN_S * 1000 - 1)
        bench.none(act.Heartbeat)
        bench.pass_ms(1)
        bench.one(act.Heartbeat)
        assert {look.topic for look in bench.take(act.FetchAssignment)} == {TOPIC}
        looked(bench)
    looked(bench, ME, unlisted=False)
    bench.one(act.FetchOffset)
    bench.one(act.Heartbeat)
    assert bench.core.unlisted.topics == []
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    bench.none(act.Heartbeat)


def test_a_look_that_nobody_answers_says_nothing_and_is_repeated(bench: Bench) -> None:
    started(bench)
    looked(bench)
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    bench.core.handle(ev.Members(TOPIC, None, None), bench.now)
    assert "member_not_listed" not in bench.logged()
    bench.take(act.FetchAssignment)
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    bench.one(act.FetchAssignment)


def test_of_two_brokers_in_turn_one_without_the_group_is_not_said_by_each(bench: Bench) -> None:
    started(bench)
    for _ in range(5):
        assert looked(bench) == []
        assert looked(bench, ME, unlisted=False) == []
        bench.pass_ms(LOOK_AGAIN_S * 1000)


def test_it_is_forgotten_where_nobody_says_so_any_more(bench: Bench) -> None:
    """As of a topic that was deleted."""
    started(bench)
    looked(bench)
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    looked(bench)
    assert bench.core.unlisted.topics == [TOPIC]
    bench.pass_ms(FORGOTTEN_S * 1000)
    assert bench.core.unlisted.topics == []
    bench.take(act.FetchAssignment)
    bench.take(act.Heartbeat)
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    bench.none(act.Heartbeat, act.FetchAssignment)


def test_a_stop_ends_it(bench: Bench) -> None:
    started(bench)
    looked(bench)
    bench.core.handle(ev.Stop(), bench.now)
    bench.take(act.FetchAssignment)
    bench.pass_ms(LOOK_AGAIN_S * 1000)
    bench.none(act.Heartbeat, act.FetchAssignment)
