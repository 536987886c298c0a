"""What names and messages may look like (client/Validators.java, common/topic/TopicValidator.java, common/message/
MessageConst.java). Pure; every failure is a UsageError that says what is wrong and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import cast

from ..remoting.arguments import plain, shown
from ..remoting.errors import UsageError
from ..remoting.names import SYSTEM_TOPICS, is_of_group
from ..remoting.properties import KEY_SEPARATOR, RESERVED_PROPERTIES

TOPIC_MAX_CHARACTERS = 127
RETRY_TOPIC_MAX_CHARACTERS = 255
GROUP_MAX_CHARACTERS = 255
LEGAL_CHARACTERS = "^[%|a-zA-Z0-9_-]+$"

Keys = str | Collection[str] | None
"""The keys of a message as its sender gives them: one str, where blanks divide them, or several; None and "" = none."""

_is_legal = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch

# Topics only brokers write (TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET).
NOT_SENDABLE_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
# Nobody may create a topic that begins so (TopicValidator.SYSTEM_TOPIC_PREFIX), nor one of SYSTEM_TOPICS.
SYSTEM_TOPIC_PREFIX = "rmq_sys_"


def check_topic(topic: str) -> None:
    """A topic's name: not blank, legal characters, at most 127 of them (255 for the retry and dead letter topics)."""
    if not isinstance(topic, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        raise UsageError(f"the topic is of type {type(topic).__name__} ({shown(topic)}): give its name, a str")
    if not topic.strip():
        raise UsageError("the topic is blank: give its name")
    limit = RETRY_TOPIC_MAX_CHARACTERS if is_of_group(topic) else TOPIC_MAX_CHARACTERS
    if len(topic) > limit:
        raise UsageError(f"topic {topic[:40]!r}... has {len(topic)} characters; at most {limit} are allowed")
    if not _is_legal(topic):
        raise UsageError(f"topic {topic!r} contains illegal characters; allowed are {LEGAL_CHARACTERS}")


def check_topic_to_send(topic: str) -> None:
    """As `check_topic`, and not one that only brokers write."""
    check_topic(topic)
    if topic in NOT_SENDABLE_TOPICS:
        raise UsageError(f"sending to topic {topic} is forbidden: only brokers write it")


def check_topic_to_create(topic: str) -> None:
    """As `check_topic`, and not a system topic."""
    check_topic(topic)
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        raise UsageError(f"topic {topic} conflicts with a system topic: choose another name")


def check_group(group: str) -> None:
    """A group's name: not blank, legal characters, at most 255 of them."""
    if not isinstance(group, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        raise UsageError(f"the group is of type {type(group).__name__} ({shown(group)}): give its name, a str")
    if not group.strip():
        raise UsageError("the group is blank: give its name")
    if len(group) > GROUP_MAX_CHARACTERS:
        raise UsageError(
            f"group {group[:40]!r}... has {len(group)} characters; at most {GROUP_MAX_CHARACTERS} are allowed"
        )
    if not _is_legal(group):
        raise UsageError(f"group {group!r} contains illegal characters; allowed are {LEGAL_CHARACTERS}")


def check_user_properties(properties: Mapping[str, str]) -> None:
    """A user's own properties: no reserved names, neither name nor value blank or with a separator character."""
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise UsageError(f"property {name!r} is used by the system: choose another name")
        if not name.strip() or not value.strip():
            raise UsageError(f"property {name!r} with value {value!r}: neither name nor value may be blank")
        if not {"\x01", "\x02"}.isdisjoint(name + value):
            raise UsageError(f"property {name!r} contains one of the separator characters \\x01 and \\x02")


def joined_keys(keys: Keys, where: str) -> str:
    """The keys as a message has them: joined by blanks, as Java's `setKeys` does; "" = none.

    `where` ends the message of the error, as in "of a message for topic orders". Raises UsageError for what is neither a str
    nor several, and for one of several that is empty or has a blank: nobody would find the message by it.
    """
    if keys is None or isinstance(keys, str):
        return plain(keys) or ""
    given = cast("object", keys)
    several = isinstance(given, Collection) and not isinstance(given, (bytes, bytearray, memoryview, Mapping))
    each: list[object] = list(cast("Collection[object]", given)) if several else [given]
    for key in each:
        if not isinstance(key, str):
            raise UsageError(f"keys {where}: {key!r} is of type {type(key).__name__}: give a str, or several")
        if not key:
            raise UsageError(f"keys {where}: one of them is empty: leave it out")
        if KEY_SEPARATOR in key:
            raise UsageError(
                f"keys {where}: {key!r} has a blank, and brokers divide keys there: give its parts as keys of their own, or"
                " another character"
            )
    return KEY_SEPARATOR.join(cast("list[str]", each))
