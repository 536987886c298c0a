"""Which topics an option subscribePattern means: a regular expression that a topic's whole name must match. Pure.

Kafka's source knows the option. What a cluster has for itself is never meant (its system topics, brokers' and clusters' own,
replies); retry and dead letter topics only by a pattern that begins with `%`, since `.*` is rarely said of those. Names are
without their namespace, and topics of other namespaces are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..client.access import Access
from ..client.validation import SYSTEM_TOPIC_PREFIX
from ..remoting.errors import UsageError
from ..remoting.names import SYSTEM_TOPICS
from .options import refuse

REPLY_SUFFIX = "_REPLY_TOPIC"
"""Each cluster has one: MixAll.java, REPLY_TOPIC_POSTFIX."""
OPTION = "subscribePattern"


def check_pattern(pattern: str) -> str:
    """The pattern, if it is one. Raises UsageError."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise refuse(OPTION, pattern, f"is no regular expression: {error}") from None
    return pattern


def matching_topics(pattern: str, known: Iterable[str], system: frozenset[str], access: Access) -> tuple[str, ...]:
    """The plain names of those topics in `known` (brokers' names) that are meant, sorted. `system`: not these."""
    matches = re.compile(pattern).fullmatch
    found: set[str] = set()
    for topic in known:
        plain = access.unwrap(topic)
        if access.wrap(plain) != topic or _of_the_cluster(topic, system):
            continue
        if plain.startswith("%") and not pattern.startswith("%"):
            continue
        if matches(plain):
            found.add(plain)
    return tuple(sorted(found))


def nothing_matches(pattern: str) -> UsageError:
    """The error of a batch that would read nothing; a stream waits for a topic instead."""
    return refuse(
        OPTION, pattern, "matches no topic (it must match the whole name): check it, nameServer and namespace"
    )


def _of_the_cluster(topic: str, system: frozenset[str]) -> bool:
    # Brokers of 5.x have RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC, which no list of theirs names.
    prefixed = topic.lower().startswith(SYSTEM_TOPIC_PREFIX)
    return topic in SYSTEM_TOPICS or topic in system or prefixed or topic.endswith(REPLY_SUFFIX)
