"""The member's subscriptions: their versions, what may change, and when two filters are the same."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.subscription import FilterExpression
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.decisions import NOTICES_S
from rocketcrew.supervisor.core.subscriptions import Subscriptions, differences, same_filter

TOPIC = "orders"
TAGS = FilterExpression("a || b")


def made(*, broadcasting: bool = False) -> Subscriptions:
    return Subscriptions({"orders": TAGS}, "g", 1000, broadcasting=broadcasting)


def test_a_clustering_member_has_the_retry_topic_and_a_broadcasting_one_has_not() -> None:
    assert sorted(made()) == ["%RETRY%g", "orders"]
    assert sorted(made(broadcasting=True)) == ["orders"]


def test_a_change_has_a_newer_version_even_when_the_clock_went_back() -> None:
    found = made()
    assert not found.subscribe("orders", FilterExpression("b||a"), 2000), "the same tags"
    assert found["orders"].sub_version == 1000
    assert found.subscribe("orders", FilterExpression("a"), 500)
    assert found["orders"].sub_version == 1001
    assert found.subscribe("more", FilterExpression(), 3000)
    assert found["more"].sub_version == 3000


def test_the_last_topic_and_the_retry_topic_stay() -> None:
    found = made()
    with pytest.raises(UsageError, match="only topic"):
        found.unsubscribe("orders")
    found.subscribe("more", FilterExpression(), 2000)
    assert found.unsubscribe("orders")
    assert not found.unsubscribe("orders")
    with pytest.raises(UsageError, match="cannot be unsubscribed"):
        found.unsubscribe("%RETRY%g")
    found.subscribe("%RETRY%other", FilterExpression(), 3000)
    assert found.unsubscribe("more"), "another group's retries are a topic as any other"
    with pytest.raises(UsageError, match="only topic"):
        found.unsubscribe("%RETRY%other")


def test_workers_check_tags_again_and_nothing_else() -> None:
    found = Subscriptions(
        {"t": TAGS, "all": FilterExpression(), "sql": FilterExpression("a = 1", "SQL92")}, "g", 1, broadcasting=False
    )
    wanted = {topic: found.wanted_tags(topic) for topic in [*found, "unknown"]}
    assert wanted == {"t": ("a", "b"), "all": None, "sql": None, "%RETRY%g": None, "unknown": None}


def test_filters_are_the_same_by_what_they_let_through() -> None:
    of = SubscriptionData.of
    assert same_filter(of("t", "a || b", 1), of("t", "b||a", 2))
    assert not same_filter(of("t", "a", 1), of("t", "*", 1))
    assert not same_filter(of("t", "a = 1", 1, "SQL92"), of("t", "a = 1", 1))
    assert same_filter(of("t", "a = 1", 1, "SQL92"), of("t", "a = 1", 2, "SQL92"))


def table(**filters: str) -> dict[str, SubscriptionData]:
    return {topic: SubscriptionData.of(topic, text, 1) for topic, text in filters.items()}


def test_differences_name_the_topic_and_both_filters() -> None:
    assert differences(table(t="a || b", u="*"), table(t="b || a", u="*")) == []
    ours = {**table(t="a", u="*"), "%RETRY%g": SubscriptionData.of("%RETRY%g", "*", 1)}
    assert differences(ours, table(t="b", v="*")) == [
        "topic t is filtered there by 'b', by us by 'a'",
        "topic u is subscribed by us, and not there",
        "topic v is subscribed there, and not by us",
    ]
    sql = {"t": SubscriptionData.of("t", "a = 1", 1, "SQL92")}
    assert differences(table(t="a"), sql) == ["topic t is filtered there by SQL92 'a = 1', by us by 'a'"]


def test_a_changed_filter_ends_the_queues_and_opens_them_again(bench: Any) -> None:
    bench.worker("w")
    first, second = bench.open(0, 1)
    bench.take(act.Pull)
    bench.take(act.FetchAssignment)
    bench.core.handle(ev.Subscribe(TOPIC), bench.now)
    bench.commits()
    assert bench.take(act.FetchAssignment)
    bench.members([0, 1])
    assert len(bench.take(act.FetchOffset)) == 2
    assert not bench.core.state.queues.keys() & {first, second}


def test_an_answer_by_the_old_filter_is_dropped(bench: Any) -> None:
    bench.worker("w")
    [handle] = bench.open(0)
    bench.core.handle(ev.Subscribe(TOPIC), bench.now)
    bench.found(handle, [0, 1])
    assert bench.dispatched() == []
    assert bench.commits() == [0]


def test_a_topic_that_is_subscribed_while_running_is_looked_up(bench: Any) -> None:
    bench.core.handle(ev.Start(), bench.now)
    bench.open(0)
    bench.take(act.FetchAssignment)
    bench.core.handle(ev.Subscribe("more"), bench.now)
    assert [action.topic for action in bench.take(act.FetchAssignment)] == ["more"]
    bench.core.handle(ev.Members("more", None, None), bench.now)
    bench.core.handle(ev.Rebalance(), bench.now)
    bench.pass_ms(1000 * NOTICES_S)
    assert [action.topic for action in bench.take(act.FetchAssignment)] == [TOPIC, "more"]


def test_a_topic_that_is_unsubscribed_ends_and_does_not_come_back(bench: Any) -> None:
    bench.worker("w")
    bench.open(0, 1)
    bench.take(act.FetchAssignment)
    bench.core.handle(ev.Unsubscribe(TOPIC), bench.now)
    bench.commits()
    assert bench.core.state.queues == {}
    assert bench.take(act.FetchAssignment) == []
    bench.members([0, 1])
    bench.none(act.FetchOffset)
