"""What a read asks of the cluster before it pulls: queues, their ends, offsets of a group, searches by time.

Queues are named with plain topics outside of this file and with those of the namespace at brokers. What fails for a moment is
tried again (`numRetries`, `retryIntervalMs`); at most 32 questions are under way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import structlog

from ..client.access import Access
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UsageError, retriable
from ..remoting.queues import MessageQueue
from .connections import Link
from .offsets import Place, Spec, names
from .positions import Facts
from .reading import ReadOptions

QUESTIONS_MAX = 32

T = TypeVar("T")

_log = structlog.get_logger("rocketcrew.source")


async def patiently(ask: Callable[[], Awaitable[T]], retries: int, interval_ms: int) -> T:
    """What `ask` gives; asked again after failures that may pass. Raises its last error."""
    for _ in range(retries):
        try:
            return await ask()
        except RocketcrewError as error:
            if not retriable(error) or _is_missing_topic(error):
                raise
            _log.warning("asked_again", error=str(error), after_ms=interval_ms)
        await asyncio.sleep(interval_ms / 1000)
    return await ask()


class Looker:
    """Asks for one read. All methods are coroutines of the link's loop."""

    def __init__(self, link: Link, options: ReadOptions) -> None:
        self._access: Access = link.access
        self._cluster: Cluster = link.cluster
        self._operations: Operations = link.operations
        self._options = options
        self._at_once = asyncio.Semaphore(QUESTIONS_MAX)

    async def queues(self) -> list[MessageQueue]:
        """The queues to be read, as routes have them now. Raises UsageError for topics and queues that do not exist."""
        found: list[MessageQueue] = []
        for topic in self._options.topics:
            wrapped = self._access.wrap(topic)
            try:
                known = await self._ask(functools.partial(self._cluster.queues_to_read, wrapped, refresh=True))
            except BrokerError as error:
                if _is_missing_topic(error):
                    raise UsageError(f"rocketmq: topic {topic} does not exist: check option subscribe or assign, "
                                     "nameServer and namespace") from None  # fmt: skip
                raise
            found += [queue._replace(topic=topic) for queue in known]
        assigned = self._options.assigned
        return sorted(found) if not assigned else [queue for queue in assigned if queue in set(found)]

    def check_assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Every assigned queue must be there when a read begins. Raises UsageError."""
        if missing := set(self._options.assigned) - set(queues):
            raise UsageError(
                f"rocketmq: option assign names {names(missing)}, which does not exist (or its broker is down)"
            )

    async def facts(self, queues: Iterable[MessageQueue], *specs: Spec) -> dict[MessageQueue, Facts]:
        """What brokers say of these queues; the group's offset and searches only where a spec needs them (one of each)."""
        group = any(spec.place is Place.GROUP for spec in specs)
        by_time = next((spec for spec in specs if spec.place is Place.TIMESTAMP), None)

        async def one(queue: MessageQueue) -> Facts:
            mq = self._wrapped(queue)
            low = await self._ask(lambda: self._operations.min_offset(mq))
            high = await self._ask(lambda: self._operations.max_offset(mq))
            committed = await self._committed(mq) if group else None
            found = None if by_time is None else await self._search(mq, by_time.timestamp_of(queue))
            return Facts(low, max(low, high), committed, found)

        return await _of_each(queues, one)

    async def searches(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first offset stored at or after a time, in each queue."""
        return await _of_each(queues, lambda queue: self._search(self._wrapped(queue), timestamp_ms))

    async def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell brokers how far a group is, for lag tools. A failure is logged and is over: the checkpoint is what counts."""

        async def one(queue: MessageQueue) -> None:
            try:
                await self._operations.update_consumer_offset(
                    self._access.wrap(group), self._wrapped(queue), offsets[queue]
                )
            except RocketcrewError as error:
                _log.warning("group_offset_not_reported", group=group, queue=queue, error=str(error))

        await _of_each(offsets, one)

    async def _committed(self, mq: MessageQueue) -> int | None:
        group = self._access.wrap(self._options.group)
        ask = self._operations.query_consumer_offset
        return await self._ask(lambda: ask(group, mq, set_zero_if_not_found=False))

    async def _search(self, mq: MessageQueue, timestamp_ms: int) -> int:
        return await self._ask(lambda: self._operations.search_offset(mq, timestamp_ms))

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        async with self._at_once:
            return await patiently(question, self._options.retries, self._options.retry_interval_ms)

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._access.wrap(queue.topic))


async def _of_each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    listed = list(queues)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(ask(queue))) for queue in listed]
    return {queue: task.result() for queue, task in zip(listed, tasks, strict=True)}


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _is_missing_topic(error: RocketcrewError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
