"""What a read asks of the cluster before it pulls: queues, their ends, offsets of a group, searches by time.

Queues are named with plain topics outside of this file and with those of the namespace at brokers. What fails for a moment is
tried again (`numRetries`, `retryIntervalMs`); at most 32 questions are under way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from ..client.access import Access
from ..client.admin import Admin
from ..client.asking import is_missing_topic
from ..client.cluster import Cluster
from ..client.logs import get_logger
from ..client.operations import Operations
from ..client.routes import is_final
from ..remoting.bodies import CONSUME_ACTIVELY, ConsumerData, HeartbeatData, TopicRouteData
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UsageError, retriable
from ..remoting.log_keys import queue_keys
from ..remoting.names import RETRY_PREFIX
from ..remoting.queues import MessageQueue
from .connections import Link
from .matching import OPTION as PATTERN
from .matching import matching_topics, nothing_matches
from .offsets import Place, Spec, names
from .options import refuse
from .positions import Facts
from .reading import ReadOptions
from .searching import exact_offset, store_times

QUESTIONS_MAX = 32

T = TypeVar("T")

_log = get_logger("rocketcrew.source")


async def patiently(
    ask: Callable[[], Awaitable[T]],
    retries: int,
    interval_ms: int,
    *,
    topic_exists: bool = False,
    renew: Callable[[], Awaitable[object]] | None = None,
    say: Callable[[Exception], None] | None = None,
) -> T:
    """What `ask` gives; asked again after failures that may pass, which `say` is told or the log, and after `renew`. Raises
    its last error.

    A topic that nobody knows does not exist; but when it is known to (`topic_exists`), its brokers are restarting.
    """
    for _ in range(retries):
        try:
            return await ask()
        except RocketcrewError as error:
            if not retriable(error) or (is_missing_topic(error) and not topic_exists):
                raise
            if say is None:
                _log.warning("asked_again", error=str(error), after_ms=interval_ms)
            else:
                say(error)
        await asyncio.sleep(interval_ms / 1000)
        if renew is not None:
            await renew()
    return await ask()


async def renewed_route(cluster: Cluster, topic: str) -> TopicRouteData | None:
    """The topic's route as the name server has it now, None when it cannot say. Brokers may have new addresses."""
    try:
        return await cluster.route(topic, refresh=True)
    except RocketcrewError as error:
        _log.warning("route_not_renewed", topic=topic, error=str(error))
        return None


class Looker:
    """Asks for one read. All methods are coroutines of the link's loop."""

    def __init__(self, link: Link, options: ReadOptions) -> None:
        self._access: Access = link.access
        self._cluster: Cluster = link.cluster
        self._admin = Admin(link.cluster)
        self._operations: Operations = link.operations
        self._options = options
        self._at_once = asyncio.Semaphore(QUESTIONS_MAX)

    async def queues(self, away: set[str] | None = None) -> list[MessageQueue]:
        """The queues to be read, as routes have them now. Raises UsageError for topics that do not exist.

        With `away` a topic without a route is none, for now: it may be that its brokers restart. The set holds those that
        were away at the last look, so that each is told once.
        """
        if self._options.pattern:
            return await self._matching_queues(may_be_none=away is not None)
        found: list[MessageQueue] = []
        for topic in self._options.topics:
            known = await self._queues_of(topic)
            if known is not None:
                found += known
                if away is not None:
                    away.discard(topic)
            elif away is None:
                raise UsageError(
                    f"rocketmq: topic {topic} does not exist: check option subscribe or assign, nameServer and namespace"
                )
            elif topic not in away:
                away.add(topic)
                _log.warning("topic_away", topic=topic, hint="its brokers are down, or it was deleted")
        assigned = self._options.assigned
        return sorted(found) if not assigned else [queue for queue in assigned if queue in set(found)]

    async def matching(self) -> tuple[str, ...]:
        """The topics that the pattern means now."""
        try:
            known = await self._ask(self._admin.topic_list)
            system = await self._ask(self._admin.system_topics)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise refuse(
                PATTERN, self._options.pattern, "needs a name server, and this one cannot list topics (RocketMQ's proxy is"
                " none): name the topics by option subscribe",
            ) from None  # fmt: skip
        return matching_topics(self._options.pattern, known, frozenset(system), self._access)

    async def _matching_queues(self, *, may_be_none: bool) -> list[MessageQueue]:
        """Topics come and go; that of one that is gone in between is none of ours any more."""
        topics = await self.matching()
        queues = [queue for topic in topics for queue in await self._queues_of(topic) or ()]
        if not queues and not may_be_none:
            raise nothing_matches(self._options.pattern)
        return sorted(queues)

    async def _queues_of(self, topic: str) -> list[MessageQueue] | None:
        """None where the name server knows no such topic."""
        try:
            ask = functools.partial(self._cluster.queues_to_read, self._access.wrap(topic), refresh=True)
            return [queue._replace(topic=topic) for queue in await self._ask(ask)]
        except BrokerError as error:
            if is_missing_topic(error):
                return None
            raise

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
            low, high = await self._bounds(mq)
            committed = await self._committed(mq) if group else None
            found = None if by_time is None else await self._search(mq, by_time.timestamp_of(queue), low, high)
            return Facts(low, high, committed, found, await self._is_final(mq))

        return await _of_each(queues, one)

    async def searches(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The first offset stored at or after a time, in each queue."""

        async def one(queue: MessageQueue) -> int:
            mq = self._wrapped(queue)
            return await self._search(mq, times_ms[queue], *await self._bounds(mq))

        return await _of_each(times_ms, one)

    async def _bounds(self, mq: MessageQueue) -> tuple[int, int]:
        low = await self._ask(lambda: self._operations.min_offset(mq), mq)
        return low, max(low, await self._ask(lambda: self._operations.max_offset(mq), mq))

    async def _is_final(self, mq: MessageQueue) -> bool:
        """Whether a master was asked, by the route that `queues` has just looked up."""
        route = await self._cluster.route(mq.topic)
        return is_final(route, mq.broker_name, self._cluster.broker_address(mq.broker_name) or "")

    async def introduce(self, group: str, queues: Iterable[MessageQueue]) -> None:
        """Make a group known that never had a member: lag tools find a group by its retry topic.

        Brokers make that when a member says hello (ClientManageProcessor.java). We do, and take our leave at once. A group
        that is known is left alone.
        """
        wrapped, me = self._access.wrap(group), self._cluster.client_id
        hello = HeartbeatData(me, (), (ConsumerData(wrapped, CONSUME_ACTIVELY),))
        try:
            if await self._exists(f"{RETRY_PREFIX}{wrapped}"):
                return
            # One queue of each broker is enough to know its address.
            for queue in {queue.broker_name: queue for queue in queues}.values():
                address = await self._cluster.address_of(self._wrapped(queue))
                await self._operations.heartbeat(address, hello)
                await self._operations.unregister(address, me, wrapped)
        except RocketcrewError as error:
            _log.warning("group_not_introduced", group=group, error=str(error))

    async def _exists(self, topic: str) -> bool:
        try:
            await self._cluster.route(topic, refresh=True)
        except BrokerError as error:
            if is_missing_topic(error):
                return False
            raise
        return True

    async def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell brokers how far a group is, for lag tools. A failure is logged and is over: the checkpoint is what counts."""

        async def one(queue: MessageQueue) -> None:
            try:
                await self._operations.update_consumer_offset(
                    self._access.wrap(group), self._wrapped(queue), offsets[queue]
                )
            except RocketcrewError as error:
                _log.warning("group_offset_not_reported", group=group, **queue_keys(queue), error=str(error))

        await _of_each(offsets, one)

    async def has_members(self, group: str, topics: Iterable[str]) -> bool:
        """Whether somebody consumes one of the topics in this group now. Asked once, as `report` tells it once."""
        wrapped = self._access.wrap(group)
        for topic in topics:
            if set(await self._operations.consumer_ids(wrapped, self._access.wrap(topic))) - {self._cluster.client_id}:
                return True
        return False

    async def stored_at(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """When the message at one offset of each queue was stored, ms since 1970; None where there is none."""

        async def one(queue: MessageQueue) -> int | None:
            at = places[queue]
            return (await self._times(self._wrapped(queue), at, at + 1)).get(at)

        return await _of_each(places, one)

    async def _committed(self, mq: MessageQueue) -> int | None:
        group = self._access.wrap(self._options.group)
        ask = self._operations.query_consumer_offset
        return await self._ask(lambda: ask(group, mq, set_zero_if_not_found=False), mq)

    async def _search(self, mq: MessageQueue, timestamp_ms: int, low: int, high: int) -> int:
        found = await self._ask(lambda: self._operations.search_offset(mq, timestamp_ms), mq)
        return await exact_offset(found, low, high, timestamp_ms, functools.partial(self._times, mq))

    async def _times(self, mq: MessageQueue, start: int, end: int) -> dict[int, int]:
        group = self._options.pull_group_at(self._access)
        return await self._ask(lambda: store_times(self._cluster, self._operations, group, mq, start, end), mq)

    async def _ask(self, question: Callable[[], Awaitable[T]], mq: MessageQueue | None = None) -> T:
        """`mq`: the queue whose broker is asked; when it does not answer, its address is looked up again."""
        renew = None if mq is None else functools.partial(renewed_route, self._cluster, mq.topic)
        async with self._at_once:
            return await patiently(question, self._options.retries, self._options.retry_interval_ms, renew=renew)

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._access.wrap(queue.topic))


async def _of_each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    """Not a task group: that would wrap the one clear error in another."""
    listed = list(queues)
    return dict(zip(listed, await asyncio.gather(*(ask(queue) for queue in listed)), strict=True))
