"""Where failed messages went, by the brokers: what a table's records do not know, or have by the word of a member only.

A kill -9 takes the last notes along: of what was finished just before, the table knows nothing but that (`recovered`). And
whether a failed message is retried or becomes a dead letter its broker decides, by a count of attempts of its own.

Every record that a failed message becomes has the unique key and ORIGIN_MESSAGE_ID of the first one, and one attempt more.
Brokers find records by unique key (their index), so what is asked for grows with the records in question, never with the
topics: at most ASKED_MAX records, and as many dead letters of each queue, without their bodies. Only of a queue's first
epoch: where a group was re-run, what a record became then and what it became before look alike.

What is found is so. That there is nothing can be said only where each broker was asked by its master and gave all that it
has: a broker answers with its newest records of a key alone, and a record that could not be sent back to its own broker is
given to any other one. Nor where this account may not look among those that wait for their delay, as with the default
rights of genuine brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Final

from ..client.admin import Admin
from ..client.asking import ask
from ..client.cluster import Cluster
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..remoting.admin_bodies import ClusterInfo
from ..remoting.arguments import INT64_MAX
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.errors import BrokerError
from ..remoting.headers import QueryMessage
from ..remoting.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, SCHEDULE_TOPIC
from ..remoting.properties import (
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_KEY,
)
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_messages
from ..spark.epochs import opened
from ..spark.reconciling import Fate, QueueReport, Report
from .messages import messages

ASKED_MAX: Final = 1_000
"""Records whose whereabouts are looked for in one run: each costs a few questions."""
QUESTIONS_MAX: Final = 16
"""At once."""
ANSWERS_MAX: Final = 64
"""Asked for. Of a unique key brokers give no more than FULL_COUNT all the same (defaultQueryMaxNum)."""
FULL_COUNT: Final = 32
FULL_BYTES: Final = 4 << 20
"""An embedded broker ends its answer there."""
TIMEOUT_MS: Final = 5_000


def origin_of(message: StoredMessage) -> str:
    """The id of the record that was sent first."""
    found = message.properties
    return (
        found.get(PROPERTY_ORIGIN_MESSAGE_ID) or found.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID) or message.offset_message_id
    )


def is_full(body: Sized, count: int) -> bool:
    """Whether an answer with so many records may have left others out."""
    return count >= FULL_COUNT or len(body) >= FULL_BYTES


def next_fate(
    record: StoredMessage, others: Iterable[StoredMessage], group: str, *, whole: bool = True
) -> Fate | None:  # fmt: skip
    """What became of a finished record without rows, by all `others` of its unique key in its own topic, the group's retry
    and dead-letter topics, and of those that wait for their delay. None = its broker's index does not even have itself, or
    the others are not `whole` and what is missing decides."""
    same = [one for one in others if origin_of(one) == origin_of(record)]
    if all(one.offset_message_id != record.offset_message_id for one in same):
        return None
    mine = [one for one in same if one.reconsume_times > record.reconsume_times]
    topics = {one.properties.get(PROPERTY_REAL_TOPIC, one.topic) if one.topic == SCHEDULE_TOPIC else one.topic
              for one in mine}  # fmt: skip
    if RETRY_PREFIX + group in topics:
        return Fate.SENT_BACK
    if not whole:
        return None
    return Fate.DEAD_LETTER if DLQ_PREFIX + group in topics else Fate.NO_ROWS


def whom_to_ask(info: ClusterInfo) -> tuple[dict[str, str], set[str]]:
    """Addresses by broker name, of the master where there is one; and the brokers that have none, whose slaves may not have
    the newest records."""
    found = {
        name: data.broker_addrs[min(data.broker_addrs)]
        for name, data in info.broker_addr_table.items() if data.broker_addrs
    }  # fmt: skip
    headless = {name for name, data in info.broker_addr_table.items() if MASTER_ID not in data.broker_addrs}
    return found, headless


def run_once(report: Report) -> list[QueueReport]:
    """The queues that were never run again."""
    again = opened(queue.key for queue in report.queues)
    return [queue for queue in report.queues if queue.key.in_epoch(0) not in again]


def in_question(report: Report, count_max: int = ASKED_MAX) -> OffsetSet:
    """Records that were finished, and nobody knows how; at most so many, and of queues' first epochs."""
    found: list[tuple[QueueKey, IntervalSet]] = []
    left = count_max
    for queue in run_once(report):
        for start, stop in queue.fates.get(Fate.RECOVERED, IntervalSet()).pieces:
            end = min(stop, start + left)
            found.append((queue.key, IntervalSet.of([(start, end)])))
            left -= end - start
    return OffsetSet.of(found)


async def told(cluster: Cluster, report: Report) -> dict[Fate, OffsetSet]:
    """The records of the report whose fate the brokers know better, by that. Raises RocketcrewError where a broker does not
    answer: then nobody can say that a record is in no topic."""
    addresses, headless = whom_to_ask(await Admin(cluster).cluster_info())
    whole = not headless and {queue.key.broker for queue in report.queues} <= addresses.keys()
    asking = _Asking(cluster, addresses, whole=whole)
    found: dict[Fate, list[tuple[QueueKey, IntervalSet]]] = {}
    for fate, key, offset in [*await asking.of_records(in_question(report)), *await asking.of_letters(report)]:
        found.setdefault(fate, []).append((key, IntervalSet.of([(offset, offset + 1)])))
    return {fate: OffsetSet.of(pairs) for fate, pairs in found.items()}


_Told = tuple[Fate, QueueKey, int]


@dataclass(frozen=True, slots=True)
class _Copies:
    """Broker and record of all that were found; `whole` where there are no others."""

    found: list[tuple[str, StoredMessage]]
    whole: bool


class _Asking:
    """`addresses` by broker name; `whole` where these are all brokers, and all masters."""

    def __init__(self, cluster: Cluster, addresses: Mapping[str, str], *, whole: bool) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._whole = whole
        self._turns = asyncio.Semaphore(QUESTIONS_MAX)

    async def of_records(self, wanted: OffsetSet) -> list[_Told]:
        """What became of these records; those that their broker has no more, or that have no unique key, are left out."""
        found: list[_Told] = []
        for key, offsets in wanted.queues.items():
            mq = MessageQueue(key.topic, key.broker, key.queue_id)
            records = [
                _without_body(one) for start, stop in offsets.pieces
                async for one in messages(self._cluster, mq, start, stop, or_group=key.group)
                if one.queue_offset in offsets and PROPERTY_UNIQ_KEY in one.properties
            ]  # fmt: skip
            topics = {key.topic, RETRY_PREFIX + key.group, SCHEDULE_TOPIC, DLQ_PREFIX + key.group}
            for some in _slices(records):
                copies = await asyncio.gather(*(self._copies(topics, one, key.topic) for one in some))
                for record, others in zip(some, copies, strict=True):
                    fate = next_fate(record, [one for _, one in others.found], key.group, whole=others.whole)
                    if fate is not None:
                        found.append((fate, key, record.queue_offset))
        return found

    async def of_letters(self, report: Report) -> list[_Told]:
        """The last attempts of dead letters that the table takes for retried; looked for where the group has more dead
        letters than it knows of."""
        found: list[_Told] = []
        by_place = {queue.key: queue for queue in run_once(report)}
        for group in sorted({key.group for key in by_place}):
            known = sum(
                queue.fates.get(Fate.DEAD_LETTER, IntervalSet()).count()
                for queue in report.queues if queue.key.group == group
            )  # fmt: skip
            letters = await self._newest_letters(group, known)
            for some in _slices(letters):
                places = await asyncio.gather(*(self._last_attempt(group, letter) for letter in some))
                for key, offset in (place for place in places if place is not None):
                    queue = by_place.get(key)
                    if queue is not None and offset in queue.fates.get(Fate.SENT_BACK, IntervalSet()):
                        found.append((Fate.DEAD_LETTER, key, offset))
        return found

    async def _newest_letters(self, group: str, known: int) -> Sequence[StoredMessage]:
        """None where there are no more than `known`."""
        try:
            ends = (await Admin(self._cluster).topic_stats(DLQ_PREFIX + group)).offset_table
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []
        if sum(end.max_offset - end.min_offset for end in ends.values()) <= known:
            return []
        return [
            _without_body(letter) for mq, end in sorted(ends.items())
            async for letter in messages(
                self._cluster, mq, max(end.min_offset, end.max_offset - ASKED_MAX), end.max_offset
            )
            if PROPERTY_UNIQ_KEY in letter.properties
        ]  # fmt: skip

    async def _last_attempt(self, group: str, letter: StoredMessage) -> tuple[QueueKey, int] | None:
        """The record whose failure made the dead letter; None where another one may be it."""
        properties = letter.properties
        first = properties.get(PROPERTY_RETRY_TOPIC) or properties.get(PROPERTY_DLQ_ORIGIN_TOPIC)
        topics = (RETRY_PREFIX + group, *((first,) if first else ()))
        copies = await self._copies(topics, letter)
        attempts = [
            (broker, one) for broker, one in copies.found
            if origin_of(one) == origin_of(letter) and one.reconsume_times < letter.reconsume_times
        ]  # fmt: skip
        if not attempts or not copies.whole:
            return None
        broker, last = max(attempts, key=lambda one: one[1].reconsume_times)
        return QueueKey(group, last.topic, broker, last.queue_id), last.queue_offset

    async def _copies(self, topics: Iterable[str], message: StoredMessage, first: str = "") -> _Copies:
        """All that have the message's unique key in these topics. Of the topic `first`, which has the record itself and none
        that it became, others may be missing."""
        unique = message.properties[PROPERTY_UNIQ_KEY]
        asked = [(topic, broker) for topic in topics for broker in self._addresses]
        answers = await asyncio.gather(*(self._listed(topic, unique, broker) for topic, broker in asked))
        whole = self._whole
        found: list[tuple[str, StoredMessage]] = []
        for (topic, broker), (listed, full) in zip(asked, answers, strict=True):
            whole = whole and (not full or (topic == first and not topic.startswith(RETRY_PREFIX)))
            found += [(broker, one) for one in listed if one.properties.get(PROPERTY_UNIQ_KEY) == unique]
        return _Copies(found, whole)

    async def _listed(self, topic: str, unique: str, broker: str) -> tuple[list[StoredMessage], bool]:
        """Records, and whether there may be more."""
        header = QueryMessage(topic, unique, ANSWERS_MAX, 0, INT64_MAX, unique_key_query=True)
        accept = [int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)]
        if topic == SCHEDULE_TOPIC:
            accept.append(int(ResponseCode.NO_PERMISSION))
        async with self._turns:
            answer = await ask(
                self._cluster.remoting, self._addresses[broker], RequestCode.QUERY_MESSAGE, header,
                timeout_ms=TIMEOUT_MS, accept=accept,
            )  # fmt: skip
            if answer.code != ResponseCode.SUCCESS:
                return [], answer.code == ResponseCode.NO_PERMISSION
            listed = [_without_body(one) for one in decode_messages(answer.body)]
            return listed, is_full(answer.body, len(listed))


def _slices(records: Sequence[StoredMessage]) -> Iterator[Sequence[StoredMessage]]:
    """What is asked about at once; the copies of one slice are forgotten with it."""
    return (records[at : at + QUESTIONS_MAX] for at in range(0, len(records), QUESTIONS_MAX))


def _without_body(message: StoredMessage) -> StoredMessage:
    return replace(message, body=b"")
