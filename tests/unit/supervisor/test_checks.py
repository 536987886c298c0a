"""The rules of DefaultMQPushConsumerImpl.checkConfig, each with its message."""

from __future__ import annotations

import pytest

from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.checks import (
    check_consumer,
    consume_timestamp_ms,
    group_problem,
    subscriptions,
    topic_problem,
)


def settings(**flags: object) -> Settings:
    return load({key.replace("__", "."): value for key, value in flags.items()}, {}, None)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("", "the specified group is blank"),
        (" ", "the specified group is blank"),
        ("g" * 256, "longer than group max length 255"),
        ("a b", "illegal characters"),
        ("DEFAULT_CONSUMER", "can not equal DEFAULT_CONSUMER"),
    ],
)
def test_groups_that_java_refuses(group: str, text: str) -> None:
    assert text in (group_problem(group) or "")


def test_groups_and_topics_that_java_takes() -> None:
    assert group_problem("CID_orders-1%x|y") is None
    assert topic_problem("orders_1") is None
    assert "longer than topic max length 127" in (topic_problem("t" * 128) or "")
    assert "illegal characters" in (topic_problem("orders!") or "")
    assert "blank" in (topic_problem("") or "")


def test_topics_with_tags() -> None:
    assert subscriptions(("a", "b:x || y", "c: ")) == {"a": "*", "b": "x || y", "c": "*"}
    with pytest.raises(UsageError, match="names a twice"):
        subscriptions(("a", "a:x"))


def test_all_problems_are_told_at_once() -> None:
    found = settings(consumer__message_model="BROADCASTING", results__commit_after="loaded")
    with pytest.raises(UsageError) as caught:
        check_consumer(found, {})
    text = str(caught.value)
    assert "group is blank" in text
    assert "subscription is null" in text
    assert "BROADCASTING" in text
    assert "results.commit_after" in text


def test_consume_timestamps() -> None:
    assert consume_timestamp_ms("20250101000000") is not None
    assert consume_timestamp_ms("20251301000000") is None
    assert consume_timestamp_ms("2025") is None
