"""Names that RocketMQ gives a meaning: prefixes of topics, topics and groups of the system.

common/MixAll.java, common/topic/TopicValidator.java.
"""

from __future__ import annotations

TOOLS_GROUP = "TOOLS_CONSUMER"
"""In whose name is pulled by who is no member: a group that brokers know without being told (MixAll.java), so that a read
leaves no group behind. In the name of living consumers' group an operator's reset of its offset would be told to us."""
OFFSET_RESET = "OFFSET_RESET"
"""The remark of the answer that is an operator's reset (5.2 and later); its code is that for an offset that a queue does not
have. The group's first pull takes it along."""
RETRY_PREFIX = "%RETRY%"
"""Before the group: the topic of what failed in it."""
DLQ_PREFIX = "%DLQ%"
"""Before the group: the topic of what was given up."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where brokers keep what waits for its delay: one queue a delay level."""
DEFAULT_TOPIC = "TBW102"
"""Whose route a producer takes for a topic that is not there yet."""
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""In whose name a consumer sends what a broker did not take back."""
REGION_DEFAULT = "DefaultRegion"
DELAY_LEVEL_MAX = 127
"""What a message or a retry may ask for; a worker reports it in one byte. Java has no bound: a broker takes a level above its
highest one for that (CommitLog.java 4.9, HookUtils.java 5.x), and how many it has is its own setting."""
MASTER_ID = 0
"""The broker id of a master; slaves have larger ones."""


def is_of_group(topic: str) -> bool:
    """Whether it is a group's retry or dead-letter topic."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_popped_retry(topic: str, group: str) -> bool:
    """Whether that topic is called as one of the group's retries of a topic that was popped: `%RETRY%group_topic` or
    `%RETRY%group+topic` (check_points.py). It may be another group's, which has such a name."""
    own = RETRY_PREFIX + group
    return topic.startswith((f"{own}_", f"{own}+"))


def is_own_retry(topic: str, group: str) -> bool:
    """Whether that topic is called as one of the group's own retries, pulled or popped."""
    return topic == RETRY_PREFIX + group or is_popped_retry(topic, group)


def popped_topic(topic: str, group: str) -> str:
    """The topic that was asked for, of the one that a message was popped from (KeyBuilder.parseNormalTopic)."""
    return topic[len(RETRY_PREFIX + group) + 1 :] if is_popped_retry(topic, group) else topic


def host_and_port(host: str, port: int) -> str:
    """As one text, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


SYSTEM_TOPICS = frozenset(
    {
        "TBW102", SCHEDULE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC", "rmq_sys_wheel_timer",
    }
)  # fmt: skip
"""Topics that brokers make for themselves (TopicValidator.java, SYSTEM_TOPIC_SET): nobody creates one, and no namespace is
written before them."""
