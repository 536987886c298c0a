"""Looking at what brokers have without being a member: one pull, and the first message stored at or after a time, exactly.

A broker's search is near it, and not more: 4.9 answers with the message that is closest to the time, which may be older than
it, and with any of those that were stored in the same millisecond (ConsumeQueue.java, getOffsetInQueueByTime); before the
first message it may answer with an offset that is deleted. A query that ends at a time would miss a message, or have one too
many. So the neighbours are looked at: back while they are not older, then on while they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from ..client.asking import is_refusal
from ..client.cluster import Cluster
from ..client.operations import PULL_TIMEOUT_MS, Operations, PullResult, PullStatus, parse_pull
from ..remoting.codes import PULL_SUBSCRIPTION, ResponseCode
from ..remoting.errors import RocketcrewError
from ..remoting.headers import PullRequest, PullResponse
from ..remoting.names import OFFSET_RESET
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


class WasResetError(RocketcrewError):
    """A look in a group's own name was answered with an operator's reset, which no member will be told any more."""

    def __init__(self, group: str, mq: MessageQueue, header: PullResponse) -> None:
        super().__init__(
            f"{group} was just reset to {header.next_begin_offset} in queue {mq.queue_id} of {mq.topic} at {mq.broker_name},"
            " and this pull, which had to be made in its name, took that along: reset it once more"
        )
        self.header = header


async def look_at(
    operations: Operations, address: str, groups: list[str], mq: MessageQueue, at: int, count: int,
    *, timeout_ms: int = PULL_TIMEOUT_MS,
) -> PullResult:  # fmt: skip
    """One pull by somebody who is no member, in the name of the first of these groups; one that may not read, or is unknown,
    leaves the list, but for the last. Raises BrokerError, WasResetError."""
    while True:
        answer = await operations.pull(address, pull_request(groups[0], mq, at, count), timeout_ms=timeout_ms)
        said = answer.remark or ""
        unknown = answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        if len(groups) == 1 or not (unknown or is_refusal(answer.code, said)):
            break
        del groups[0]
    result = parse_pull(answer, address)
    if said == OFFSET_RESET:
        raise WasResetError(groups[0], mq, result.header)
    return result


async def store_times(
    cluster: Cluster, operations: Operations, groups: list[str], mq: MessageQueue, start: int, end: int
) -> dict[int, int]:
    """Store times by offset, of what one pull at `start` brings; all messages of an inner batch have one. As `look_at`."""
    address = await cluster.address_of(mq, only_this=False)
    return times_in(await look_at(operations, address, groups, mq, start, end - start), start, end)


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
