"""The table of DefaultMQPushConsumerImpl.checkConfig: each line fails alone, in Java's words, and says what to do."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rocketcrew.conf.java_words import JAVA_RANGES, JavaRange
from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.subscription import FilterExpression
from rocketcrew.supervisor.core.checks import (
    CHECKS,
    DEPRECATED_WHERE,
    OURS_TOO,
    Subject,
    check_consumer,
    problems_of,
    subscriptions,
)
from rocketcrew.supervisor.service import WORKER_STOP_MS
from rocketcrew.supervisor.wiring import staff_policy

EVERYTHING = FilterExpression()
GOOD_TOPICS = {"orders": EVERYTHING}
OTHER_DIGITS = "٢٠٢٥٠١٠١٠٠٠٠٠٠"


def settings(**values: Any) -> Settings:
    """Good settings with some replaced after loading, as somebody who calls us from Python might do."""
    found = load({"consumer.group": "CID_orders-1%x|y", "consumer.topics": ["orders"]}, {}, None)
    for name, value in values.items():
        section, _, key = name.partition("__")
        replaced = dataclasses.replace(getattr(found, section), **{key: value})
        found = dataclasses.replace(found, **{section: replaced})
    return found


def problems(topics: dict[str, FilterExpression] | None = None, handler: str = "m:f", **values: Any) -> list[str]:
    return problems_of(Subject(settings(**values), GOOD_TOPICS if topics is None else topics, handler))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("the specified group is blank", {"consumer__group": ""}),
        ("the specified group is blank", {"consumer__group": " "}),
        ("the specified group is longer than group max length 255.", {"consumer__group": "g" * 256}),
        ("the specified group[" + "g" * 121 + "] is longer than group max length: 120.", {"consumer__group": "g" * 121}),
        ("the specified group[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
         {"consumer__group": "a b"}),
        ("consumerGroup can not equal DEFAULT_CONSUMER, please specify another one.",
         {"consumer__group": "DEFAULT_CONSUMER"}),
        ("messageModel is null", {"consumer__message_model": ""}),
        ("consumeFromWhere is null", {"consumer__consume_from_where": ""}),
        ("consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received 2025",
         {"consumer__consume_timestamp": "2025"}),
        ("consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received " + OTHER_DIGITS,
         {"consumer__consume_timestamp": OTHER_DIGITS}),
        ("allocateMessageQueueStrategy is null", {"consumer__allocate_strategy": ""}),
        ("allocateMessageQueueStrategy is CONFIG without messageQueueList", {"consumer__allocate_strategy": "CONFIG"}),
        ("allocateMessageQueueStrategy is MACHINE_ROOM without consumeridcs",
         {"consumer__allocate_strategy": "MACHINE_ROOM"}),
        ("machineRoomResolver is null", {"consumer__allocate_strategy": "MACHINE_ROOM_NEARBY-AVG"}),
        ("subscription is null", {"topics": {}}),
        ("the specified topic is blank", {"topics": {" ": EVERYTHING}}),
        ("the specified topic is longer than topic max length 127.", {"topics": {"t" * 128: EVERYTHING}}),
        ("the specified topic[orders!] contains illegal characters, allowing only", {"topics": {"orders!": EVERYTHING}}),
        ("messageListener is null", {"handler": " "}),
    ],
)  # fmt: skip
def test_every_check_has_javas_words_and_a_remedy(words: str, values: dict[str, Any]) -> None:
    found = problems(**values)
    assert [problem for problem in found if problem.startswith(words)], found
    assert all("(" in problem and ": " in problem for problem in found)


RANGES = [(setting, java) for setting, ranges in JAVA_RANGES.items() for java in ranges]


@pytest.mark.parametrize(("setting", "java"), RANGES, ids=[java.name for _, java in RANGES])
def test_every_range_is_javas_to_the_last_number(setting: str, java: JavaRange) -> None:
    name = setting.replace(".", "__")
    ours_too = OURS_TOO.get(setting, ())
    outside = [value for value in (java.low - 1, java.high + 1, -7) if value not in ours_too]
    for value in outside:
        wrong: dict[str, Any] = {name: value}
        (problem,) = [problem for problem in problems(**wrong) if problem.startswith(java.words)]
        assert f"({setting} = '{value}': give a value in the range)" in problem
    for value in (java.low, java.high, *ours_too):
        right: dict[str, Any] = {name: value}
        assert problems(**right) == []


def test_what_java_takes_is_taken() -> None:
    assert problems() == []
    assert all(problems(consumer__consume_from_where=where) == [] for where in DEPRECATED_WHERE)
    assert problems(consumer__message_model="BROADCASTING", workers__count=0) == []
    assert problems(consumer__consume_timestamp="20250101000000") == []


def test_the_table_has_every_range_of_java() -> None:
    words = {check.words for check in CHECKS}
    assert {java.words for ranges in JAVA_RANGES.values() for java in ranges} <= words


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        check_consumer(settings(consumer__group="", consumer__message_model="X"), {})
    text = str(caught.value)
    assert text.count("\n  - ") == 3
    assert "consumer.message_model = 'X': use CLUSTERING or BROADCASTING" in text


def test_the_loader_says_it_in_javas_words_too() -> None:
    with pytest.raises(UsageError) as caught:
        load({"consumer.pull_batch_size": 0, "consumer.message_model": "MULTICAST", "consumer.group": "a b"}, {}, None)
    text = str(caught.value)
    assert "1 to 1024 messages (RocketMQ: pullBatchSize Out of range [1, 1024])" in text
    assert "(RocketMQ: messageModel is null)" in text
    assert "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$" in text


def test_topics_with_tags_and_sql() -> None:
    found = subscriptions(("a", "b:x || y", "c: ", "d:sql92: price > 3 AND name = 'a:b'"))
    assert found == {
        "a": FilterExpression("*"),
        "b": FilterExpression("x || y"),
        "c": FilterExpression("*"),
        "d": FilterExpression("price > 3 AND name = 'a:b'", "SQL92"),
    }
    with pytest.raises(UsageError, match="names a twice"):
        subscriptions(("a", "a:x"))


@pytest.mark.parametrize("text", ["a:||", "a:SQL92:", "a:SQL92:  "])
def test_a_filter_that_is_none_is_refused_when_settings_are_loaded(text: str) -> None:
    with pytest.raises(UsageError, match=r"consumer\.topics"):
        load({"consumer.topics": [text]}, {}, None)


def test_subscriptions_as_text_are_split_at_their_own_commas_only() -> None:
    text = "a, b:SQL92:x IN ('p,q', 'r') AND f(1,2), c:t1 || t2"
    found = load({"consumer.topics": text}, {}, None).consumer.topics
    assert found == ("a", "b:SQL92:x IN ('p,q', 'r') AND f(1,2)", "c:t1 || t2")


@pytest.mark.parametrize(
    ("set_to", "leaves_within_s"), [({}, 915), ({"workers.hard_time_limit_ms": 2_000}, 17)],
)  # fmt: skip
def test_a_worker_that_leaves_counts_as_long_as_its_message_may_take(
    set_to: dict[str, object], leaves_within_s: float
) -> None:
    found = load({"consumer.group": "g", "consumer.topics": ["orders"], **set_to}, {}, None)
    assert staff_policy(found).leave_max_s == leaves_within_s


def test_a_stop_fits_into_the_30_s_that_kubernetes_grants() -> None:
    found = load({"consumer.group": "g", "consumer.topics": ["orders"]}, {}, None)
    assert found.supervisor.stop_deadline_ms + WORKER_STOP_MS < 30_000
