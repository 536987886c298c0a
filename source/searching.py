"""The first message stored at or after a time, exactly.

A broker's search is near it, and not more: 4.9 answers with the message that is closest to the time, which may be older than
it, and with any of those that were stored in the same millisecond (ConsumeQueue.java, getOffsetInQueueByTime); before the
first message it may answer with an offset that is deleted. A query that ends at a time would miss a message, or have one too
many. So the neighbours are looked at: back while they are not older, then on while they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from ..client.cluster import Cluster
from ..client.operations import Operations, PullResult, PullStatus, parse_pull
from ..remoting.codes import PULL_SUBSCRIPTION
from ..remoting.headers import PullRequest
from ..remoting.queues import MessageQueue
from ..remoting.stored import record_info, walk
from ..remoting.subscription import EXPRESSION_TAG, SUB_ALL

LOOK_AT = 32
"""Records a time. By default brokers bring no more at once, and only 8 of old ones."""

StoreTimes = Callable[[int, int], Awaitable[dict[int, int]]]
"""The store times in ms of the records with offsets from the first to the second, as many of them as come at once."""


async def exact_offset(found: int, low: int, high: int, timestamp_ms: int, times: StoreTimes) -> int:
    """The first offset in `low..high` that is stored at or after the time, `high` when none is; `found` is near it."""
    at = min(max(found, low), high)
    while at > low:
        begin = max(low, at - LOOK_AT)
        stored = await _all(begin, at, times)
        late = at
        while late > begin and stored.get(late - 1, timestamp_ms - 1) >= timestamp_ms:
            late -= 1
        reached_begin, at = late == begin, late
        if not reached_begin:
            break
    while at < high:
        stored = await times(at, min(high, at + LOOK_AT))
        for offset in sorted(stored):
            if stored[offset] >= timestamp_ms:
                return offset
        if not stored:
            break
        at = max(stored) + 1
    return min(at, high)


async def _all(start: int, end: int, times: StoreTimes) -> dict[int, int]:
    stored: dict[int, int] = {}
    while start < end and (more := await times(start, end)):
        stored |= more
        start = max(more) + 1
    return stored


async def store_times(
    cluster: Cluster, operations: Operations, group: str, mq: MessageQueue, start: int, end: int
) -> dict[int, int]:
    """Store times by offset, of what one pull at `start` brings; all messages of an inner batch have one."""
    address = await cluster.address_of(mq, only_this=False)
    request = pull_request(group, mq, start, end - start)
    return times_in(parse_pull(await operations.pull(address, request), address), start, end)


def times_in(result: PullResult, start: int, end: int) -> dict[int, int]:
    """The same, of the answer to that pull."""
    if result.status is not PullStatus.FOUND:
        return {}
    found: dict[int, int] = {}
    positions, offsets = walk(result.body)
    for (position, following), last in zip(pairwise(positions), offsets, strict=True):
        info = record_info(result.body, position, following)
        for offset in range(max(info.queue_offset, start), min(last + 1, end)):
            found[offset] = info.store_timestamp_ms
    return found


def pull_request(group: str, mq: MessageQueue, offset: int, count: int) -> PullRequest:
    """A pull of anybody's: with its own subscription, without waiting, without a commit."""
    return PullRequest(
        consumer_group=group,
        topic=mq.topic,
        queue_id=mq.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=SUB_ALL,
        expression_type=EXPRESSION_TAG,
        broker_name=mq.broker_name,
    )
