"""Two processes with one client id: said when it lasts longer than a connection that a broker takes for alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.unlisted import SHARED_S

from .conftest import ME, TOPIC

if TYPE_CHECKING:
    from .conftest import Bench

LOOK_S = 20.0


def looked(bench: Bench, *members: str, topic: str = TOPIC) -> list[str]:
    """The answer of a look-up; what is logged of ids."""
    bench.core.handle(ev.Members(topic, [bench.queue()], members), bench.now)
    return [event for event in bench.logged() if event.startswith("client_id")]


def shared_for(bench: Bench, seconds: float) -> list[str]:
    said: list[str] = []
    until = bench.now + seconds
    while bench.now < until:
        said += looked(bench, "other", ME, ME)
        bench.pass_ms(LOOK_S * 1000)
    return said


def test_an_id_that_stands_twice_for_long_is_said_once_and_so_is_its_end(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    assert shared_for(bench, SHARED_S) == []
    assert shared_for(bench, 3600) == ["client_id_shared"]
    assert looked(bench) == []  # no broker has answered
    assert looked(bench, "other", ME) == ["client_id_shared_no_more"]
    assert looked(bench, "other", ME) == []
    assert shared_for(bench, SHARED_S) == []


def test_the_connection_that_a_reconnect_leaves_behind_is_no_other_member(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    for _ in range(5):
        assert shared_for(bench, 120.0 + 10.0) == []
        assert looked(bench, ME) == []


def test_another_member_that_stands_twice_is_its_own_affair(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    for _ in range(20):
        assert looked(bench, "other", "other", ME) == []
        bench.pass_ms(LOOK_S * 1000)


def test_a_topic_that_is_not_subscribed_any_more_holds_nothing_up(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    bench.core.handle(ev.Subscribe("more"), bench.now)
    for _ in range(10):
        looked(bench, ME, ME, topic="more")
        bench.pass_ms(LOOK_S * 1000)
    bench.core.handle(ev.Unsubscribe("more"), bench.now)
    assert looked(bench, ME) == ["client_id_shared_no_more"]
