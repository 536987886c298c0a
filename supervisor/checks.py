"""Checks before the start, with the rules and the wording of Java (DefaultMQPushConsumerImpl.checkConfig, Validators.java).

What a single setting may hold is checked when the configuration is loaded (conf/); here is what concerns the consumer as
a whole. All problems are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from ..conf.settings import Settings
from ..remoting.errors import UsageError
from .machine_rooms import NEARBY_PREFIX

CHARACTER_MAX_LENGTH = 255
TOPIC_MAX_LENGTH = 127
DEFAULT_GROUP = "DEFAULT_CONSUMER"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
SYSTEM_TOPICS = frozenset({"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"})
CONSUME_FROM_WHERE = frozenset({"CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"})


def group_problem(group: str) -> str | None:
    """What is wrong with a consumer group's name, None when it may be used."""
    if not group.strip():
        return "consumerGroup is null: the specified group is blank; set consumer.group (--group)"
    if len(group) > CHARACTER_MAX_LENGTH:
        return f"the specified group is longer than group max length {CHARACTER_MAX_LENGTH}: it has {len(group)} characters"
    if not _LEGAL.fullmatch(group):
        return f"the specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if group == DEFAULT_GROUP:
        return f"consumerGroup can not equal {DEFAULT_GROUP}, please specify another one"
    return None


def topic_problem(topic: str) -> str | None:
    """What is wrong with a topic's name, None when it may be subscribed."""
    if not topic.strip():
        return "the specified topic is blank"
    if len(topic) > TOPIC_MAX_LENGTH:
        return f"the specified topic is longer than topic max length {TOPIC_MAX_LENGTH}: it has {len(topic)} characters"
    if not _LEGAL.fullmatch(topic):
        return f"the specified topic[{topic}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def subscriptions(topics: tuple[str, ...]) -> dict[str, str]:
    """Topic -> tag expression, from `topic` or `topic:tagA || tagB`; a topic named twice is a UsageError."""
    found: dict[str, str] = {}
    for text in topics:
        topic, _, expression = text.partition(":")
        topic = topic.strip()
        if topic in found:
            raise UsageError(
                f"consumer.topics names {topic} twice: give one entry a topic, such as '{topic}:tagA || tagB'"
            )
        found[topic] = expression.strip() or "*"
    return found


def check_consumer(settings: Settings, topics: Mapping[str, str]) -> None:
    """Raise one UsageError with every reason why this consumer must not start."""
    consumer = settings.consumer
    problems: list[str | None] = [group_problem(consumer.group)]
    if not topics:
        problems.append("subscription is null: set consumer.topics (--topic)")
    problems.extend(topic_problem(topic) for topic in topics)
    if consumer.message_model != "CLUSTERING":
        problems.append(f"consumer.message_model = {consumer.message_model!r}: this version consumes CLUSTERING only")
    if settings.results.commit_after != "sealed":
        problems.append(
            f"results.commit_after = {settings.results.commit_after!r}: this version commits when results are sealed"
        )
    if consumer.consume_from_where not in CONSUME_FROM_WHERE:
        problems.append(
            f"consumer.consume_from_where = {consumer.consume_from_where!r}: use {', '.join(sorted(CONSUME_FROM_WHERE))}"
        )
    if consumer.consume_timestamp and consume_timestamp_ms(consumer.consume_timestamp) is None:
        problems.append(
            f"consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss, but received {consumer.consume_timestamp}"
        )
    strategy = consumer.allocate_strategy
    if strategy == "CONFIG" and not consumer.allocate_queues:
        problems.append(
            "consumer.allocate_strategy = 'CONFIG' needs consumer.allocate_queues: the queues of this member"
        )
    if strategy == "MACHINE_ROOM" and not consumer.machine_room_ids:
        problems.append(
            "consumer.allocate_strategy = 'MACHINE_ROOM' needs consumer.machine_room_ids: rooms to consume from"
        )
    if strategy.startswith(NEARBY_PREFIX) and not consumer.machine_rooms:
        problems.append(f"consumer.allocate_strategy = {strategy!r} needs consumer.machine_rooms: which room is where")
    found = [problem for problem in problems if problem]
    if found:
        raise UsageError("the consumer cannot start:\n" + "\n".join(f"  - {problem}" for problem in found))


def consume_timestamp_ms(text: str) -> int | None:
    """`yyyyMMddHHmmss` in local time as milliseconds since the epoch, None when it does not parse."""
    if not re.fullmatch(r"\d{14}", text):
        return None
    try:
        # Local time without a zone, as Java reads it (UtilAll.parseDate).
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1000)  # noqa: DTZ007
    except ValueError:
        return None
