"""The options of a read, checked whole, in one frozen value that travels to executors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..client.access import Access
from ..client.validation import check_group
from ..remoting.errors import UsageError
from ..remoting.names import TOOLS_GROUP
from ..remoting.queues import MessageQueue
from ..remoting.subscription import EXPRESSION_TAG, parse_filter, parse_subscription
from .matching import OPTION as PATTERN
from .matching import check_pattern
from .offsets import Place, Spec, parse_assign, parse_place, parse_timestamps, parse_topics
from .options import BATCH, STREAM, parse_options, refuse

STREAM_RETRIES, BATCH_RETRIES = 60, 3


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is read, and how. Times in milliseconds. With a `pattern` the topics are found when it is looked for them."""

    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[MessageQueue, ...]
    group: str
    pull_group: str
    starting: Spec
    ending: Spec
    new_at_group: bool
    """Whether queues that enter a stream later begin at the group's offset, where there is one."""
    latest_when_too_late: bool
    fail_on_data_loss: bool
    tags: frozenset[str]
    include_body: bool
    include_properties: bool
    min_partitions: int
    max_per_partition: int
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay_ms: int
    report_group_offsets: bool
    report_kept_group: bool
    """Though the stream has begun at that group's offsets."""
    kept_group: str
    """That of `startingOffsets=group`, for the checkpoint; empty where a stream is started without it."""
    pull_batch_size: int
    pull_timeout_ms: int
    retries: int
    first_retries: int
    """Of what is asked of name servers first: an address may be wrong."""
    retry_interval_ms: int

    def pull_group_at(self, access: Access) -> str:
        """The group of pulls as brokers know it."""
        return self.pull_group if self.pull_group == TOOLS_GROUP else access.wrap(self.pull_group)


def read_options(given: Mapping[str, str], streaming: bool) -> ReadOptions:
    """Raises UsageError naming the option, and what to do."""
    found = parse_options(given, STREAM if streaming else BATCH)
    topics, pattern, assigned = _what(found)
    group: str = found["group"] or ""
    pull_group: str = found["pullGroup"] or TOOLS_GROUP
    for option, name in (("group", group), ("pullGroup", pull_group)):
        if name:
            _check_group(option, name)
    starting = _place(found, "starting", "latest" if streaming else "earliest")
    ending = Spec(Place.LATEST, "endingOffsets") if streaming else _place(found, "ending", "latest")
    if not streaming:
        _check_batch(starting, ending)
    if Place.GROUP in (starting.place, ending.place) and not group:
        raise UsageError(
            "rocketmq: option startingOffsets (or endingOffsets) is group, but which? give option group too"
        )
    return ReadOptions(
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        group=group,
        pull_group=pull_group,
        starting=starting,
        ending=ending,
        new_at_group=_new_at_group(found, starting, group),
        latest_when_too_late=found["startingOffsetsByTimestampStrategy"] == "latest",
        fail_on_data_loss=found["failOnDataLoss"],
        tags=_tags(found["tags"]),
        include_body=found["includeBody"],
        include_properties=found["includeProperties"],
        min_partitions=found["minPartitions"] or 0,
        max_per_partition=found["maxRecordsPerPartition"] or 0,
        max_offsets_per_trigger=found.get("maxOffsetsPerTrigger") or 0,
        min_offsets_per_trigger=_minimum(found),
        max_trigger_delay_ms=found.get("maxTriggerDelay") or 0,
        report_group_offsets=_reports(found, group),
        report_kept_group=bool(found.get("reportGroupOffsets")),
        kept_group=group if _begins_at_group(found) else "",
        pull_batch_size=found["pullBatchSize"],
        pull_timeout_ms=found["pullTimeoutMs"],
        retries=retries_of(found["numRetries"], streaming=streaming),
        first_retries=retries_of(found["numRetries"], streaming=False),
        retry_interval_ms=found["retryIntervalMs"],
    )


def _what(found: Mapping[str, Any]) -> tuple[tuple[str, ...], str, tuple[MessageQueue, ...]]:
    """Topics, or a pattern for them; and where they are assigned, the queues."""
    given = [name for name in ("subscribe", PATTERN, "assign") if found[name] is not None]
    if len(given) != 1:
        said = f"{' and '.join(given)} are given" if given else "none is given"
        raise UsageError(
            "rocketmq: what to read is told by option subscribe (topics), subscribePattern (a regular expression for them) or"
            f" assign (queues), and {said}: give one of them"
        )
    if found["subscribe"] is not None:
        return parse_topics(found["subscribe"]), "", ()
    if found[PATTERN] is not None:
        return (), check_pattern(found[PATTERN]), ()
    assigned = parse_assign(found["assign"])
    return tuple(dict.fromkeys(queue.topic for queue in assigned)), "", assigned


def _place(found: Mapping[str, Any], end: str, default: str) -> Spec:
    """By time for all, by time per queue, by offsets: the first that is given counts, as in Kafka's source."""
    for_all, by_time, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if found[for_all] is not None:
        return Spec(Place.TIMESTAMP, for_all, timestamp_ms=found[for_all])
    if found[by_time] is not None:
        return parse_timestamps(by_time, found[by_time])
    return parse_place(offsets, found[offsets] or default)


def _check_batch(starting: Spec, ending: Spec) -> None:
    if starting.place is Place.LATEST or -1 in starting.values.values():
        raise UsageError("rocketmq: option startingOffsets: a batch read cannot begin at latest, where nothing is: "
                         "give earliest, offsets or a timestamp")  # fmt: skip
    if ending.place is Place.EARLIEST or -2 in ending.values.values():
        raise UsageError("rocketmq: option endingOffsets: a batch read cannot end at earliest, before anything is: "
                         "give latest, offsets or a timestamp")  # fmt: skip
    first, last = starting.timestamp_ms, ending.timestamp_ms
    if first is not None and last is not None and first > last:
        raise UsageError(
            f"rocketmq: option startingTimestamp {first} is later than endingTimestamp {last}: exchange them"
        )


def _reports(found: Mapping[str, Any], group: str) -> bool:
    """Whether a stream moves the group's offsets at brokers: by itself not those of a group at whose offsets it begins, which
    is one that consumes. That group would go on from where the stream is, and never see what lies between."""
    told: bool | None = found.get("reportGroupOffsets", False)  # a batch does not know the option
    if told and not group:
        raise UsageError("rocketmq: option reportGroupOffsets is true, but of which group? give option group too")
    return bool(group) and (not _begins_at_group(found) if told is None else told)


def _new_at_group(found: Mapping[str, Any], starting: Spec, group: str) -> bool:
    told: str | None = found.get("newQueues")
    if told == Place.GROUP.value and not group:
        raise UsageError("rocketmq: option newQueues is group, but which? give option group too")
    return starting.place is Place.GROUP if told is None else told == Place.GROUP.value


def _begins_at_group(found: Mapping[str, Any]) -> bool:
    """Also where a time comes before it: the group that is named so is one that consumes."""
    place: str = found["startingOffsets"] or ""
    return place.strip().lower() == Place.GROUP.value


def _minimum(found: Mapping[str, Any]) -> int:
    least, most = found.get("minOffsetsPerTrigger") or 0, found.get("maxOffsetsPerTrigger") or 0
    if most and least > most:
        raise UsageError(
            f"rocketmq: option minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}: no batch could be both"
        )
    return int(least)


def retries_of(told: int | None, *, streaming: bool) -> int:
    """How often what failed is tried again, where the option says nothing: a stream outlives the restart of a broker; whoever
    waits for a batch wants to hear of a wrong address soon."""
    if told is not None:
        return told
    return STREAM_RETRIES if streaming else BATCH_RETRIES


def _tags(expression: str) -> frozenset[str]:
    """The tags that are wanted; empty: all messages."""
    try:
        kind = parse_filter(expression).type
    except UsageError as error:
        raise refuse("tags", expression, f"is wrong: {error}") from None
    if kind != EXPRESSION_TAG:
        raise refuse("tags", expression, "is an SQL92 filter. Brokers apply those, and a reader could not tell what they "
                     "left out from what is lost: leave the option out and filter rows, as by "
                     """.where("properties['price'] > 3")""")  # fmt: skip
    if any(not part.strip() for part in expression.split("||")):
        raise refuse("tags", expression, "has no tag on one side of ||: write tagA || tagB, or * for everything")
    return frozenset(parse_subscription(expression).tags)


def looks_like_several(tag: str) -> bool:
    """Whether somebody may have meant more than one. Java's clients take all of it for one tag, too, and such tags may be."""
    return any(mark in tag for mark in ",|") or " or " in tag.lower()


def _check_group(option: str, group: str) -> None:
    try:
        check_group(group)
    except UsageError as error:
        raise refuse(option, group, f"is wrong: {error}") from None
