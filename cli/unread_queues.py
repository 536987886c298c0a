"""Queues of a group's retry topic that nobody reads: brokers put what fails into one of as many queues as the group's
retryQueueNums says (SendMessageProcessor.java), whether the topic has them or not. Members, Java's too, read those of its
route."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ..client.asking import ask
from ..client.cluster import Cluster
from ..client.operations import BOUND_TIMEOUT_MS, Operations
from ..conf.printed import counted
from ..remoting.admin_bodies import SubscriptionGroupConfig
from ..remoting.admin_headers import GroupName
from ..remoting.bodies import TopicRouteData
from ..remoting.codes import PERM_READ, RequestCode, ResponseCode
from ..remoting.errors import BrokerError
from ..remoting.names import RETRY_PREFIX
from ..remoting.queues import MessageQueue
from .watch import QueueLag, lag_of

NUMBERS_AT_ONCE: Final = 16
"""Queues that a broker is asked for, up to the group's retryQueueNums and on until it has none of so many: it takes them at
random, so a few messages leave gaps. Not each broker tells that number, and what lies above it came before it was lowered."""

NUMBERS_MAX: Final = 1024
"""Of each broker."""


def read_counts(route: TopicRouteData) -> dict[str, int]:
    """By broker, how many queues of the topic members read there."""
    return {one.broker_name: one.read_queue_nums if one.perm & PERM_READ else 0 for one in route.queue_datas}


async def unread_retries(cluster: Cluster, group: str) -> list[QueueLag]:
    """The queues of the group's retry topic that are above those of its route and have messages that wait; `group` with its
    namespace. Raises RocketcrewError where a broker does not answer."""
    topic, operations = RETRY_PREFIX + group, Operations(cluster)
    try:
        route = await cluster.route(topic, refresh=True)
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []

    async def above(broker: str, first: int) -> list[QueueLag]:
        found: list[QueueLag] = []
        filled = await _retry_queue_nums(cluster, broker, group)
        for start in range(first, first + NUMBERS_MAX, NUMBERS_AT_ONCE):
            queues = [MessageQueue(topic, broker, start + number) for number in range(NUMBERS_AT_ONCE)]
            try:
                ends = await asyncio.gather(*map(operations.max_offset, queues))
                there = [mq for mq, end in zip(queues, ends, strict=True) if end > 0]
                found += await lag_of(operations, there, group)
            except BrokerError:  # one that knows the queues of the route only, or tells this account nothing
                break
            if not there and start + NUMBERS_AT_ONCE >= filled:
                break
        return found

    # Of a broker without any, the topic may not be read: that has another cure.
    counts = [
        (broker, count)
        for broker, count in sorted(read_counts(route).items())
        if count and cluster.broker_address(broker) is not None
    ]
    parts = await asyncio.gather(*(above(*one) for one in counts))
    return [one._replace(unread=True) for part in parts for one in part if one.lag]


async def _retry_queue_nums(cluster: Cluster, broker: str, group: str) -> int:
    """In how many queues the broker puts what fails; 0 where it does not say, as one that does not know the request."""
    address = await cluster.address_of(MessageQueue(RETRY_PREFIX + group, broker, 0))
    try:
        return (await group_config(cluster, address, group)).retry_queue_nums
    except BrokerError:
        return 0


async def group_config(cluster: Cluster, address: str, group: str) -> SubscriptionGroupConfig:
    """What a broker knows of a group, from RocketMQ 5 on; one that may make groups makes it. Raises RocketcrewError."""
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    answer = await ask(cluster.remoting, address, code, GroupName(group), timeout_ms=BOUND_TIMEOUT_MS)
    return SubscriptionGroupConfig.decode(answer.body)


def unread_words(unread: Sequence[QueueLag]) -> str:
    """What waits in such queues of one topic, as a sentence without its end."""
    waiting = counted(sum(one.lag for one in unread), "message")
    places = ", ".join(f"{one.mq.broker_name} {one.mq.queue_id}" for one in unread)
    return (
        f"{waiting} of {unread[0].mq.topic} in queues that nobody can read now ({places}): brokers put what fails there (the"
        " group's retryQueueNums), and the topic has fewer queues"
    )


def cure(mqs: Sequence[MessageQueue]) -> str:
    """How such queues, of one topic, get their readers. Those that are empty by chance may get messages at any time."""
    queues = 1 + max(mq.queue_id for mq in mqs)
    return (
        f"`mqadmin updateTopic -t {mqs[0].topic} -r {queues} -w {queues}` at each of its brokers (with the group's"
        " retryQueueNums, where that is more)"
    )
