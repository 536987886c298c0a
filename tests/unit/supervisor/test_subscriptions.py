"""The member's subscriptions: their versions, what may change, and when two filters are the same."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.subscription import FilterExpression
from rocketcrew.supervisor.subscriptions import Subscriptions, same_filter

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
