"""Checks before the start: one table with every check of DefaultMQPushConsumerImpl.checkConfig, in its order and wording.

Most of them are made a first time when the configuration is loaded (conf/, which ends its messages with Java's words from
conf/java_words.py); who comes by another way is caught here. All problems are reported at once, each with Java's words, the
setting that is meant, its value, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...conf.formats import consume_timestamp
from ...conf.java_words import JAVA_RANGES, JavaRange
from ...conf.settings import Settings, value_of
from ...remoting.errors import UsageError
from ...remoting.subscription import FilterExpression, split_subscription
from .machine_rooms import NEARBY_PREFIX

CHARACTER_MAX_LENGTH = 255
GROUP_MAX_LENGTH = 120
TOPIC_MAX_LENGTH = 127
DEFAULT_GROUP = "DEFAULT_CONSUMER"
LEGAL = "^[%|a-zA-Z0-9_-]+$"
MESSAGE_MODELS = ("CLUSTERING", "BROADCASTING")
CONSUME_FROM_WHERE = ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP")
DEPRECATED_WHERE = (
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)
"""Java takes them for CONSUME_FROM_LAST_OFFSET (RebalancePushImpl.java)."""
OURS_TOO = {
    "workers.count": (0,),  # one per core
    "consumer.pull_threshold_for_topic": (-1,),
    "consumer.pull_threshold_size_for_topic_mib": (-1,),
}
"""Values that are legal beside Java's ranges; Java makes the same exception for -1."""


class Subject(NamedTuple):
    """What is checked: the settings, the subscriptions, and the handler's name (empty = there is none)."""

    settings: Settings
    topics: Mapping[str, FilterExpression]
    handler: str = "handler"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `wrong` gives the value that is wrong, None when all is well."""

    words: str
    """Java's; {value} is replaced by what was found."""
    setting: str
    wrong: Callable[[Subject], object]
    remedy: str


def _group(test: Callable[[str], bool]) -> Callable[[Subject], object]:
    return lambda subject: subject.settings.consumer.group if test(subject.settings.consumer.group) else None


def _topic(test: Callable[[str], bool]) -> Callable[[Subject], object]:
    return lambda subject: next((topic for topic in subject.topics if test(topic)), None)


def _not_among(setting: str, legal: tuple[str, ...]) -> Callable[[Subject], object]:
    def wrong(subject: Subject) -> object:
        value = value_of(subject.settings, setting)
        return None if value in legal else value

    return wrong


def _outside(setting: str, java: JavaRange) -> Callable[[Subject], object]:
    def wrong(subject: Subject) -> object:
        value = value_of(subject.settings, setting)
        if value in OURS_TOO.get(setting, ()) or (isinstance(value, int) and java.low <= value <= java.high):
            return None
        return value

    return wrong


def _illegal(name: str) -> bool:
    return bool(name.strip()) and re.fullmatch(LEGAL, name) is None


def _bad_timestamp(subject: Subject) -> object:
    text = subject.settings.consumer.consume_timestamp
    try:
        consume_timestamp(text)
    except ValueError:
        return text or None
    return None


def _strategy_without(name: str, setting: str) -> Callable[[Subject], object]:
    def wrong(subject: Subject) -> object:
        strategy = subject.settings.consumer.allocate_strategy
        return strategy if strategy.startswith(name) and not value_of(subject.settings, setting) else None

    return wrong


CHECKS: tuple[Check, ...] = (
    Check("the specified group is blank", "consumer.group", _group(lambda name: not name.strip()),
          "consumerGroup is null: give the group's name"),
    Check(f"the specified group is longer than group max length {CHARACTER_MAX_LENGTH}.", "consumer.group",
          _group(lambda name: len(name) > CHARACTER_MAX_LENGTH), "give it a shorter name"),
    Check(f"the specified group[{{value}}] is longer than group max length: {GROUP_MAX_LENGTH}.", "consumer.group",
          _group(lambda name: GROUP_MAX_LENGTH < len(name) <= CHARACTER_MAX_LENGTH),
          "give it a shorter name: no broker of 4.9 stores what goes back to its retry topic"),
    Check("the specified group[{value}] contains illegal characters, allowing only " + LEGAL, "consumer.group",
          _group(_illegal), "use the letters, digits, % | _ - only"),
    Check(f"consumerGroup can not equal {DEFAULT_GROUP}, please specify another one.", "consumer.group",
          _group(lambda name: name == DEFAULT_GROUP), "RocketMQ reserves it for no group at all"),
    Check("messageModel is null", "consumer.message_model", _not_among("consumer.message_model", MESSAGE_MODELS),
          "use CLUSTERING or BROADCASTING"),
    Check("consumeFromWhere is null", "consumer.consume_from_where",
          _not_among("consumer.consume_from_where", (*CONSUME_FROM_WHERE, *DEPRECATED_WHERE)),
          f"use one of {', '.join(CONSUME_FROM_WHERE)}"),
    Check("consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received {value}",
          "consumer.consume_timestamp", _bad_timestamp, "give 14 digits in local time, or nothing for half an hour ago"),
    Check("allocateMessageQueueStrategy is null", "consumer.allocate_strategy",
          lambda subject: None if subject.settings.consumer.allocate_strategy else "", "name one, such as AVG"),
    Check("allocateMessageQueueStrategy is CONFIG without messageQueueList", "consumer.allocate_queues",
          _strategy_without("CONFIG", "consumer.allocate_queues"), "name the queues of this member"),
    Check("allocateMessageQueueStrategy is MACHINE_ROOM without consumeridcs", "consumer.machine_room_ids",
          _strategy_without("MACHINE_ROOM", "consumer.machine_room_ids"), "name the rooms to consume from"),
    Check("machineRoomResolver is null", "consumer.machine_rooms",
          _strategy_without(NEARBY_PREFIX, "consumer.machine_rooms"), "say by patterns which broker and client is where"),
    Check("subscription is null", "consumer.topics", lambda subject: None if subject.topics else "",
          "name at least one topic, or let the handler name its own: @handler(topic=...)"),
    Check("the specified topic is blank", "consumer.topics", _topic(lambda name: not name.strip()),
          "name the topic in front of the colon"),
    Check(f"the specified topic is longer than topic max length {TOPIC_MAX_LENGTH}.", "consumer.topics",
          _topic(lambda name: len(name) > TOPIC_MAX_LENGTH), "no broker has such a topic"),
    Check("the specified topic[{value}] contains illegal characters, allowing only " + LEGAL, "consumer.topics",
          _topic(_illegal), "use the letters, digits, % | _ - only"),
    Check("messageListener is null", "HANDLER", lambda subject: None if subject.handler.strip() else "",
          "name a function as package.module:function"),
    *(
        Check(java.words, setting, _outside(setting, java), "give a value in the range")
        for setting, ranges in JAVA_RANGES.items()
        for java in ranges
    ),
)  # fmt: skip
"""In Java's order; the two lengths of a group are those of 4.9 and of 5.x. That a listener is "instanceof
MessageListenerOrderly or MessageListenerConcurrently" is checked where the handler is loaded (workers/api.as_handler): only
a worker imports it. Java's "consumeThreadMin (..) is larger than consumeThreadMax (..)" cannot happen to one number of
workers. Those with CONFIG and MACHINE_ROOM fail in Java at the first rebalance."""
# MACHINE_ROOM_NEARBY-... begins with MACHINE_ROOM and needs no room ids.
_EXCEPT = {"consumer.machine_room_ids": NEARBY_PREFIX}


def problems_of(subject: Subject) -> list[str]:
    """Every reason why this consumer must not start, in Java's words and ours."""
    found: list[str] = []
    strategy = subject.settings.consumer.allocate_strategy
    for check in CHECKS:
        if check.setting in _EXCEPT and strategy.startswith(_EXCEPT[check.setting]):
            continue
        value = check.wrong(subject)
        if value is not None:
            words = check.words.format(value=value)
            shown = "" if value == "" else f" = {str(value)[:100]!r}"
            found.append(f"{words} ({check.setting}{shown}: {check.remedy})")
    return found


def subscriptions(topics: tuple[str, ...]) -> dict[str, FilterExpression]:
    """Topic -> filter; a topic named twice, or a filter that is none, is a UsageError."""
    found: dict[str, FilterExpression] = {}
    for text in topics:
        topic, wish = split_subscription(text)
        if topic in found:
            raise UsageError(
                f"consumer.topics names {topic} twice: give one entry a topic, such as '{topic}:tagA || tagB'"
            )
        found[topic] = wish
    return found


def check_consumer(settings: Settings, topics: Mapping[str, FilterExpression], handler: str = "handler") -> None:
    """Raise one UsageError with every reason why this consumer must not start."""
    found = problems_of(Subject(settings, topics, handler))
    if found:
        raise UsageError("the consumer cannot start:\n" + "\n".join(f"  - {problem}" for problem in found))
