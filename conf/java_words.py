"""What Java's client says to a setting that is out of its range (DefaultMQPushConsumerImpl.checkConfig, Validators.java).

A user who knows RocketMQ looks for these words, so a problem with one of these settings ends with them. The ranges are
Java's; `tests/unit/conf` holds them against the schema, which may be narrower and says so, never wider.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class JavaRange(NamedTuple):
    """Java's name of a setting and what it may hold."""

    name: str
    low: int
    high: int

    @property
    def words(self) -> str:
        return f"{self.name} Out of range [{self.low}, {self.high}]"


JAVA_RANGES: Final[dict[str, tuple[JavaRange, ...]]] = {
    "workers.count": (JavaRange("consumeThreadMin", 1, 1000), JavaRange("consumeThreadMax", 1, 1000)),
    "consumer.consume_concurrently_max_span": (JavaRange("consumeConcurrentlyMaxSpan", 1, 65_535),),
    "consumer.pull_threshold_for_queue": (JavaRange("pullThresholdForQueue", 1, 65_535),),
    "consumer.pull_threshold_for_topic": (JavaRange("pullThresholdForTopic", 1, 6_553_500),),
    "consumer.pull_threshold_size_for_queue_mib": (JavaRange("pullThresholdSizeForQueue", 1, 1024),),
    "consumer.pull_threshold_size_for_topic_mib": (JavaRange("pullThresholdSizeForTopic", 1, 102_400),),
    "consumer.pull_interval_ms": (JavaRange("pullInterval", 0, 65_535),),
    "consumer.consume_message_batch_max_size": (JavaRange("consumeMessageBatchMaxSize", 1, 1024),),
    "consumer.pull_batch_size": (JavaRange("pullBatchSize", 1, 1024),),
    "consumer.pop_invisible_time_ms": (JavaRange("popInvisibleTime", 5000, 300_000),),
    "consumer.pop_batch_nums": (JavaRange("popBatchNums", 1, 32),),
}
"""By setting; one that has two of Java's behind it names both."""

JAVA_WORDS: Final[dict[str, str]] = {
    **{setting: ", ".join(each.words for each in ranges) for setting, ranges in JAVA_RANGES.items()},
    "consumer.group": "the specified group is blank, longer than group max length: 120, or contains illegal characters,"
    " allowing only ^[%|a-zA-Z0-9_-]+$; consumerGroup can not equal DEFAULT_CONSUMER",
    "consumer.topics": "the specified topic is blank, longer than topic max length 127, or contains illegal characters,"
    " allowing only ^[%|a-zA-Z0-9_-]+$",
    "consumer.message_model": "messageModel is null",
    "consumer.consume_from_where": "consumeFromWhere is null",
    "consumer.consume_timestamp": "consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss",
    "consumer.allocate_strategy": "allocateMessageQueueStrategy is null",
}
"""What stands behind a problem with the setting."""
