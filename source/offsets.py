"""Places in queues as users and checkpoints write them: `{"topic": {"broker": {"0": 23, "1": -1}}}`.

The same shape serves startingOffsets and endingOffsets (-2: the earliest, -1: the latest), offsets by timestamp
(milliseconds), assign (a list of queue ids in place of the innermost object), and the offsets of a stream in Spark's
checkpoint, so what stands in a checkpoint can be given to a new query: what stands beside the topics there (`BESIDE`) is
passed over. Topics are without their namespace. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, cast

from ..client.validation import check_topic
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .options import check_time_ms, refuse

EARLIEST, LATEST = -2, -1
MARKS = "@marks"
"""By which messages the queues are known again."""
KEPT_GROUP = "@group"
"""The group that the stream began at: it consumes, and its offsets are its own."""
BEGIN = "@begin"
"""In the end of a first batch: where it begins. Spark asks for that again when the batch is run again, under the options of
then."""
BESIDE = frozenset({MARKS, KEPT_GROUP, BEGIN})
"""What stands beside the topics in a stream's checkpoint; no topic can be called so."""
OFFSET_MAX = (1 << 63) - 1

Offsets = dict[MessageQueue, int]


class Mark(NamedTuple):
    """One message of a queue, by which the queue is known again: its offset, and when it was stored (ms since 1970).

    Negative where that message was deleted before anybody saw it: whatever it was, it was stored before that time.
    """

    offset: int
    stored_ms: int

    @property
    def latest_ms(self) -> int:
        """When the message was stored at the latest."""
        return abs(self.stored_ms)

    def fits(self, stored_ms: int | None) -> bool:
        """Whether what is at its offset, and was stored then, is the message. None: nothing is known to be there."""
        return stored_ms is not None and (stored_ms == self.stored_ms or stored_ms < -self.stored_ms)


Marks = dict[MessageQueue, Mark]


class Place(Enum):
    """Where in a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Spec:
    """Where reading begins or ends, in every queue. `values`: offsets or timestamps by queue; `timestamp_ms` is for all."""

    place: Place
    option: str
    values: Mapping[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])
    timestamp_ms: int | None = None

    @property
    def moves(self) -> bool:
        """Whether it may mean another offset when somebody looks again later, other than by retention."""
        return self.place in (Place.LATEST, Place.GROUP, Place.TIMESTAMP) or LATEST in self.values.values()

    def timestamp_of(self, queue: MessageQueue) -> int:
        """The time for one queue, ms since 1970."""
        return self.values[queue] if self.timestamp_ms is None else self.timestamp_ms


def parse_place(option: str, value: str) -> Spec:
    """startingOffsets or endingOffsets. Raises UsageError."""
    word = value.strip().lower()
    for place in (Place.EARLIEST, Place.LATEST, Place.GROUP):
        if word == place.value:
            return Spec(place, option)
    if not value.strip().startswith("{"):
        raise refuse(option, value, "is none of earliest, latest, group, and no JSON such as "
                     '{"topic": {"broker-a": {"0": 23, "1": -1}}}')  # fmt: skip
    return Spec(
        Place.OFFSETS, option, parse_numbers(option, value, EARLIEST, "an offset, -2 (earliest) or -1 (latest)")
    )


def parse_timestamps(option: str, value: str) -> Spec:
    """Timestamps by queue. Raises UsageError."""
    times = parse_numbers(option, value, 0, "a time in milliseconds since 1970")
    for queue, told in times.items():
        try:
            check_time_ms(told)
        except ValueError as error:
            raise refuse(option, value, f"holds {told} for {name(queue)}, which {error}") from None
    return Spec(Place.TIMESTAMP, option, times)


def parse_numbers(option: str, value: str, low: int, what: str) -> Offsets:
    """A number for each queue. Raises UsageError."""
    found: Offsets = {}
    for topic, broker, queues in _brokers(option, value):
        if not isinstance(queues, dict) or not queues:
            raise refuse(option, value, f'has no object such as {{"0": 23}} for broker {broker} of topic {topic}')
        for queue_id, number in cast("dict[str, Any]", queues).items():
            if type(number) is not int or not low <= number <= OFFSET_MAX:
                raise refuse(
                    option, value, f"holds {number!r} for queue {queue_id} of {topic} on {broker}: give {what}"
                )
            found[MessageQueue(topic, broker, _queue_id(option, value, queue_id))] = number
    return found


def parse_assign(value: str) -> tuple[MessageQueue, ...]:
    """The queues of `{"topic": {"broker": [0, 1]}}`, sorted. Raises UsageError."""
    found: set[MessageQueue] = set()
    for topic, broker, ids in _brokers("assign", value):
        if not isinstance(ids, list) or not ids:
            raise refuse(
                "assign", value, f"has no list of queue ids such as [0, 1] for broker {broker} of topic {topic}"
            )
        for queue_id in cast("list[object]", ids):
            found.add(MessageQueue(topic, broker, _queue_id("assign", value, queue_id)))
    return tuple(sorted(found))


def parse_topics(value: str) -> tuple[str, ...]:
    """The topics of `subscribe`: names with commas between them. Raises UsageError."""
    topics = tuple(dict.fromkeys(topic for topic in (part.strip() for part in value.split(",")) if topic))
    if not topics:
        raise refuse("subscribe", value, "names no topic: give one, or several with commas between them")
    for topic in topics:
        _check_topic("subscribe", value, topic)
    return topics


def to_json(
    offsets: Mapping[MessageQueue, int],
    marks: Mapping[MessageQueue, Mark] | None = None,
    kept_group: str = "",
    begin: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """Offsets as Spark's checkpoint keeps them, with the marks of their queues, the group that is kept, and where a first
    batch begins, if any."""
    told = _by_topic(offsets)
    if marks:
        told[MARKS] = _by_topic({queue: list(mark) for queue, mark in marks.items()})
    if kept_group:
        told[KEPT_GROUP] = kept_group
    if begin is not None:
        told[BEGIN] = _by_topic(begin)
    return told


def _by_topic(values: Mapping[MessageQueue, object]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for queue in sorted(values):
        told.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return told


def from_json(told: Mapping[str, Any]) -> Offsets:
    """Offsets from Spark's checkpoint. Raises UsageError when they are not ours."""
    if not told:
        return {}
    return parse_numbers("checkpoint", json.dumps(told), 0, "an offset")


def marks_from_json(told: Mapping[str, Any]) -> Marks:
    """The marks from Spark's checkpoint; none of a queue that was taken out of it."""
    return {
        MessageQueue(topic, broker, int(queue_id)): Mark(*mark)
        for topic, brokers in told.get(MARKS, {}).items()
        for broker, queues in brokers.items()
        for queue_id, mark in queues.items()
        if queue_id in told.get(topic, {}).get(broker, {})
    }


def name(queue: MessageQueue) -> str:
    """A queue, for people."""
    return f"queue {queue.queue_id} of topic {queue.topic} on {queue.broker_name}"


def names(queues: Iterable[MessageQueue], most: int = 5) -> str:
    """The first of some queues, for people."""
    known = sorted(queues)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(name(queue) for queue in known[:most]) + more


def _brokers(option: str, value: str) -> list[tuple[str, str, object]]:
    try:
        told: object = json.loads(value)
    except ValueError as error:
        raise refuse(option, value, f"is no JSON: {error}") from None
    found: list[tuple[str, str, object]] = []
    if not isinstance(told, dict) or not told:
        raise refuse(option, value, "is no object of topics")
    for topic, brokers in cast("dict[str, Any]", told).items():
        if topic in BESIDE:
            continue
        _check_topic(option, value, topic)
        if not isinstance(brokers, dict) or not brokers:
            raise refuse(option, value, f"has no object of brokers for topic {topic}")
        found += [(topic, broker, queues) for broker, queues in cast("dict[str, Any]", brokers).items()]
    return found


def _check_topic(option: str, value: str, topic: str) -> None:
    try:
        check_topic(topic)
    except UsageError as error:
        raise refuse(option, value, f"is wrong: {error}") from None


def _queue_id(option: str, value: str, queue_id: object) -> int:
    text = str(queue_id)
    if isinstance(queue_id, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise refuse(option, value, f"holds {queue_id!r} where a queue id should stand")
    return int(text)
