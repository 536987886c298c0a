"""Where failed messages went, by the brokers: what a table's records do not know, or have by the word of a member only.

A kill -9 takes the last notes along: of what was finished just before, the table knows nothing but that (`recovered`). And
whether a failed message is retried or becomes a dead letter its broker decides, by a count of attempts of its own.

Every record that a failed message becomes has the unique key and ORIGIN_MESSAGE_ID of the first one, and one attempt more.
Brokers find records by unique key (their index), so what is asked for grows with the records in question, never with the
topics: at most ASKED_MAX records, and as many dead letters of each queue. Only of a queue's first epoch: where a group was
re-run, what a record became then and what it became before look alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..client.admin import Admin
from ..client.asking import ask
from ..client.cluster import Cluster
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
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
from ..spark.reconciling import Fate, Report
from .messages import messages

ASKED_MAX: Final = 1_000
"""Records whose whereabouts are looked for in one run: each costs a few questions."""
QUESTIONS_MAX: Final = 16
"""At once."""
ANSWERS_MAX: Final = 64
TIMEOUT_MS: Final = 5_000


def origin_of(message: StoredMessage) -> str:
    """The id of the record that was sent first."""
    found = message.properties
    return (
        found.get(PROPERTY_ORIGIN_MESSAGE_ID) or found.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID) or message.offset_message_id
    )


def next_fate(record: StoredMessage, others: Iterable[StoredMessage], group: str) -> Fate | None:
    """What became of a finished record without rows, by all `others` of its unique key in its own topic, the group's retry
    and dead-letter topics, and of those that wait for their delay. None = its broker's index does not even have itself."""
    same = [one for one in others if origin_of(one) == origin_of(record)]
    if all(one.offset_message_id != record.offset_message_id for one in same):
        return None
    mine = [one for one in same if one.reconsume_times > record.reconsume_times]
    topics = {one.properties.get(PROPERTY_REAL_TOPIC, one.topic) if one.topic == SCHEDULE_TOPIC else one.topic
              for one in mine}  # fmt: skip
    if RETRY_PREFIX + group in topics:
        return Fate.SENT_BACK
    return Fate.DEAD_LETTER if DLQ_PREFIX + group in topics else Fate.NO_ROWS


def in_question(report: Report, count_max: int = ASKED_MAX) -> OffsetSet:
    """Records that were finished, and nobody knows how; at most so many, and of queues' first epochs."""
    newest: dict[QueueKey, int] = {}
    for queue in report.queues:
        newest[queue.key.in_epoch(0)] = max(newest.get(queue.key.in_epoch(0), 0), queue.key.epoch)
    found: list[tuple[QueueKey, IntervalSet]] = []
    left = count_max
    for queue in report.queues:
        if newest[queue.key.in_epoch(0)]:
            continue
        for start, stop in queue.fates.get(Fate.RECOVERED, IntervalSet()).pieces:
            end = min(stop, start + left)
            found.append((queue.key, IntervalSet.of([(start, end)])))
            left -= end - start
    return OffsetSet.of(found)


async def told(cluster: Cluster, report: Report) -> dict[Fate, OffsetSet]:
    """The records of the report whose fate the brokers know better, by that. Raises RocketcrewError where a broker does not
    answer: then nobody can say that a record is in no topic."""
    asking = _Asking(cluster, await _masters(cluster))
    found: dict[Fate, list[tuple[QueueKey, IntervalSet]]] = {}
    for fate, key, offset in [*await asking.of_records(in_question(report)), *await asking.of_letters(report)]:
        found.setdefault(fate, []).append((key, IntervalSet.of([(offset, offset + 1)])))
    return {fate: OffsetSet.of(pairs) for fate, pairs in found.items()}


_Told = tuple[Fate, QueueKey, int]


class _Asking:
    """`masters`: addresses by broker name."""

    def __init__(self, cluster: Cluster, masters: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._masters = masters
        self._turns = asyncio.Semaphore(QUESTIONS_MAX)

    async def of_records(self, wanted: OffsetSet) -> list[_Told]:
        """What became of these records; those that their broker has no more, or that have no unique key, are left out."""
        found: list[_Told] = []
        for key, offsets in wanted.queues.items():
            mq = MessageQueue(key.topic, key.broker, key.queue_id)
            records = [
                one for start, stop in offsets.pieces
                async for one in messages(self._cluster, mq, start, stop, group=key.group)
                if one.queue_offset in offsets and PROPERTY_UNIQ_KEY in one.properties
            ]  # fmt: skip
            topics = {key.topic, RETRY_PREFIX + key.group, SCHEDULE_TOPIC, DLQ_PREFIX + key.group}
            copies = await asyncio.gather(*(self._copies(topics, one) for one in records))
            for record, others in zip(records, copies, strict=True):
                fate = next_fate(record, [one for _, one in others], key.group)
                if fate is not None:
                    found.append((fate, key, record.queue_offset))
        return found

    async def of_letters(self, report: Report) -> list[_Told]:
        """The last attempts of dead letters that the table takes for retried; looked for where the group has more dead
        letters than it knows of."""
        found: list[_Told] = []
        by_place = {queue.key: queue for queue in report.queues if not queue.key.epoch}
        for group in sorted({key.group for key in by_place}):
            known = sum(
                queue.fates.get(Fate.DEAD_LETTER, IntervalSet()).count()
                for queue in report.queues if queue.key.group == group
            )  # fmt: skip
            letters = await self._newest_letters(group, known)
            for place in await asyncio.gather(*(self._last_attempt(group, letter) for letter in letters)):
                queue = by_place.get(place[0]) if place is not None else None
                if (
                    place is not None
                    and queue is not None
                    and place[1] in queue.fates.get(Fate.SENT_BACK, IntervalSet())
                ):
                    found.append((Fate.DEAD_LETTER, *place))
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
            letter for mq, end in sorted(ends.items())
            async for letter in messages(
                self._cluster, mq, max(end.min_offset, end.max_offset - ASKED_MAX), end.max_offset
            )
            if PROPERTY_UNIQ_KEY in letter.properties
        ]  # fmt: skip

    async def _last_attempt(self, group: str, letter: StoredMessage) -> tuple[QueueKey, int] | None:
        """The record whose failure made the dead letter."""
        properties = letter.properties
        first = properties.get(PROPERTY_RETRY_TOPIC) or properties.get(PROPERTY_DLQ_ORIGIN_TOPIC)
        topics = (RETRY_PREFIX + group, *((first,) if first else ()))
        attempts = [
            (broker, one) for broker, one in await self._copies(topics, letter)
            if origin_of(one) == origin_of(letter) and one.reconsume_times < letter.reconsume_times
        ]  # fmt: skip
        if not attempts:
            return None
        broker, last = max(attempts, key=lambda one: one[1].reconsume_times)
        return QueueKey(group, last.topic, broker, last.queue_id), last.queue_offset

    async def _copies(self, topics: Iterable[str], message: StoredMessage) -> list[tuple[str, StoredMessage]]:
        """Broker and record of all that have the message's unique key in these topics."""
        unique = message.properties[PROPERTY_UNIQ_KEY]
        answers = await asyncio.gather(
            *(self._listed(topic, unique, broker) for topic in topics for broker in self._masters)
        )
        return [
            (broker, one) for broker, listed in answers for one in listed
            if one.properties.get(PROPERTY_UNIQ_KEY) == unique
        ]  # fmt: skip

    async def _listed(self, topic: str, unique: str, broker: str) -> tuple[str, list[StoredMessage]]:
        header = QueryMessage(topic, unique, ANSWERS_MAX, 0, INT64_MAX, unique_key_query=True)
        accept = (int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND))
        async with self._turns:
            answer = await ask(
                self._cluster.remoting, self._masters[broker], RequestCode.QUERY_MESSAGE, header, timeout_ms=TIMEOUT_MS,
                accept=accept,
            )  # fmt: skip
        return broker, decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []


async def _masters(cluster: Cluster) -> dict[str, str]:
    info = await Admin(cluster).cluster_info()
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in info.broker_addr_table.items()
        if MASTER_ID in data.broker_addrs
    }
