"""What a read asks of the cluster before it pulls: queues, their ends, offsets of a group, searches by time.

Queues are named with plain topics outside of this file and with those of the namespace at brokers. What fails for a moment is
tried again (`numRetries`, `retryIntervalMs`); at most 32 questions are under way. A broker that does not answer is logged
once for each look, and a stream (`goes_on`) waits no longer for one that no route names meanwhile: its queues are away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ..client.access import Access
from ..client.admin import Admin
from ..client.asking import is_missing_topic, is_refusal
from ..client.cluster import Cluster
from ..client.logs import get_logger
from ..client.operations import BOUND_TIMEOUT_MS, Operations, parse_pull
from ..client.routes import queues_to_read
from ..remoting.bodies import CONSUME_ACTIVELY, ConsumerData, HeartbeatData, TopicRouteData
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, ProtocolError, RocketcrewError, UnreachableError, UsageError, retriable
from ..remoting.log_keys import place_keys, queue_keys
from ..remoting.names import RETRY_PREFIX
from ..remoting.queues import MessageQueue
from .connections import Link
from .matching import OPTION as PATTERN
from .matching import matching_topics, nothing_matches
from .offsets import Place, Spec, names
from .options import refuse
from .positions import BEYOND_END, Facts, beyond_end
from .reading import ReadOptions
from .searching import exact_offset, pull_request, times_in

QUESTIONS_MAX = 32
ASSIGNED_MIN = 8
"""Assigned queues of one broker, from which on the ends of all that it has of the topic are asked for at once."""

T = TypeVar("T")

_log = get_logger("rocketcrew.source")


async def patiently(
    ask: Callable[[], Awaitable[T]],
    retries: int,
    interval_ms: int,
    *,
    topic_exists: bool = False,
    renew: Callable[[], Awaitable[object]] | None = None,
    warn: Callable[..., object] | None = None,
) -> T:
    """What `ask` gives; asked again after failures that may pass, and after `renew`. Raises its last error, and `renew`'s.

    A topic that nobody knows does not exist; but when it is known to (`topic_exists`), its brokers are restarting.
    """
    for _ in range(retries):
        try:
            return await ask()
        except RocketcrewError as error:
            if not retriable(error) or (is_missing_topic(error) and not topic_exists):
                raise
            (warn or _log.warning)("asked_again", error=str(error), after_ms=interval_ms)
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


class AwayError(UnreachableError):
    """A broker that did not answer is not in its topic's route any more."""


class Looker:
    """Asks for one look of one read. All methods are coroutines of the link's loop."""

    def __init__(self, link: Link, options: ReadOptions, *, goes_on: bool = False, is_first: bool = False) -> None:
        """`goes_on`: a stream that has begun. It goes on without brokers that are away: AwayError, so that it looks again.
        `is_first`: nobody knows yet whether there are name servers at these addresses."""
        self._goes_on = goes_on
        self._name_server_tries = options.first_retries if is_first else options.retries
        self._told = set[tuple[str, str]]()
        self._access: Access = link.access
        self._cluster: Cluster = link.cluster
        self._without_stats = link.without_stats
        self._admin = Admin(link.cluster, timeout_ms=BOUND_TIMEOUT_MS)
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
            if known:
                found += known
                if away is not None:
                    away.discard(topic)
            elif away is None and known is None:
                raise UsageError(
                    f"rocketmq: topic {topic} does not exist: check option subscribe or assign, nameServer and namespace"
                )
            elif away is None:
                raise UsageError(
                    f"rocketmq: no queue of topic {topic} may be read: brokers have it for writing only (perm)"
                )
            elif topic not in away:
                away.add(topic)
                gone, closed = "its brokers are down, or it was deleted", "brokers have it for writing only (perm)"
                _log.warning("topic_away", topic=topic, hint=gone if known is None else closed)
        assigned, there = self._options.assigned, set(found)
        return sorted(found) if not assigned else [queue for queue in assigned if queue in there]

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

    @staticmethod
    def tell(queues: Collection[MessageQueue]) -> None:
        """What is read. A broker that is down is in no route, so nobody else can tell that it is not among these."""
        _log.info("begins_to_read", brokers=sorted({queue.broker_name for queue in queues}), queues=len(queues))

    async def facts(self, queues: Iterable[MessageQueue], *specs: Spec) -> dict[MessageQueue, Facts]:
        """What brokers say of these queues; the group's offset and searches only where a spec needs them (one of each)."""
        group = any(spec.place is Place.GROUP for spec in specs)
        by_time = next((spec for spec in specs if spec.place is Place.TIMESTAMP), None)
        queues = list(queues)
        ends = await self._ends(queues)

        async def one(queue: MessageQueue) -> Facts:
            mq = self._wrapped(queue)
            low, high = ends.get(mq) or await self._bounds(mq)
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

    async def _ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """First offsets and ends of those queues whose broker says them all at once, by their names at brokers.

        Of some assigned queues of a topic each is asked for by itself: the answer would be of all of them.
        """
        by_broker: dict[MessageQueue, int] = {}
        for queue in queues:
            one = self._wrapped(queue)._replace(queue_id=0)
            by_broker[one] = by_broker.get(one, 0) + 1
        asked = [one for one, count in by_broker.items() if count >= ASSIGNED_MIN or not self._options.assigned]
        found: dict[MessageQueue, tuple[int, int]] = {}
        for part in (await _of_each(asked, self._stats)).values():
            found |= part
        return found

    async def _stats(self, mq: MessageQueue) -> dict[MessageQueue, tuple[int, int]]:
        """The ends of all queues of the topic on one broker; none where it does not say: a proxy, or one with ACLs, which is
        not asked again; or one that is busy at the moment."""

        async def question() -> dict[MessageQueue, tuple[int, int]]:
            address = await self._cluster.address_of(mq)
            if address in self._without_stats:
                return {}
            try:
                table = (await self._admin.topic_stats_at(address, mq.topic)).offset_table
            except (BrokerError, ProtocolError) as error:
                if isinstance(error, ProtocolError) or _is_for_good(error):
                    self._without_stats.add(address)
                return {}
            return {
                mq._replace(queue_id=one.queue_id): (told.min_offset, max(told.min_offset, told.max_offset))
                for one, told in table.items()
            }

        return await self._ask(question, mq)

    async def _bounds(self, mq: MessageQueue) -> tuple[int, int]:
        low = await self._ask(lambda: self._operations.min_offset(mq), mq)
        return low, max(low, await self._ask(lambda: self._operations.max_offset(mq), mq))

    async def _is_final(self, mq: MessageQueue) -> bool:
        """Whether a master was asked, by the route that `queues` has just looked up."""
        await self._cluster.route(mq.topic)
        return self._cluster.is_final(mq)

    async def introduce(self, group: str, queues: Iterable[MessageQueue]) -> None:
        """Make a group known that never had a member: lag tools find a group by its retry topic. One that is known is left
        alone."""
        try:
            if not await self._exists(f"{RETRY_PREFIX}{self._access.wrap(group)}"):
                await say_hello(self._cluster, self._operations, group, queues)
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
                async with self._at_once:
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

        async def question() -> dict[int, int]:
            address = await self._cluster.address_of(mq, only_this=False)
            answer = await self._operations.pull(address, pull_request(group, mq, start, end - start))
            return times_in(parse_pull(answer, address), start, end)

        return await self._ask(question, mq)

    async def _ask(self, question: Callable[[], Awaitable[T]], mq: MessageQueue | None = None) -> T:
        """`mq`: the queue whose broker is asked; when it does not answer, its address is looked up again."""
        options = self._options
        warn = functools.partial(self._warn, mq.broker_name if mq is not None else "")
        renew = None if mq is None else functools.partial(self._renew, mq, warn)
        retries = self._name_server_tries if mq is None else options.retries
        async with self._at_once:
            return await patiently(question, retries, options.retry_interval_ms, renew=renew, warn=warn)

    async def _renew(self, mq: MessageQueue, warn: Callable[..., object]) -> None:
        """Raises AwayError, to a stream that goes on."""
        try:
            route = await self._cluster.route(mq.topic, refresh=True)
        except RocketcrewError as error:
            away = is_missing_topic(error)
            warn("route_not_renewed", topic=mq.topic, error=str(error))
        else:
            away = mq not in queues_to_read(mq.topic, route)
        if away and self._goes_on:
            raise AwayError(mq.broker_name, f"no route of topic {mq.topic} names it any more")

    def _warn(self, whose: str, event: str, **keys: object) -> None:
        log = _log.debug if (whose, event) in self._told else _log.warning
        self._told.add((whose, event))
        log(event, **keys)

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._access.wrap(queue.topic))


async def say_hello(cluster: Cluster, operations: Operations, group: str, queues: Iterable[MessageQueue]) -> None:
    """Have the brokers of these queues make the group's retry topic, as they do when a member says hello
    (ClientManageProcessor.java); we take our leave at once."""
    wrapped, me = cluster.access.wrap(group), cluster.client_id
    hello = HeartbeatData(me, (), (ConsumerData(wrapped, CONSUME_ACTIVELY),))
    # One queue of each broker is enough to know its address.
    for queue in {queue.broker_name: queue for queue in queues}.values():
        address = await cluster.address_of(queue._replace(topic=cluster.access.wrap(queue.topic)))
        await operations.heartbeat(address, hello)
        await operations.unregister(address, me, wrapped)


def tell_beyond_end(begins: Mapping[MessageQueue, int], facts: Mapping[MessageQueue, Facts]) -> None:
    """Of what begins elsewhere than at the group's offset, as the queue does not reach there."""
    for queue, at in begins.items():
        group = facts[queue].group
        if group is not None and beyond_end(group, facts[queue]):
            _log.warning("goes_back", **place_keys(queue, group), to=at, hint=BEYOND_END)


def _is_for_good(error: BrokerError) -> bool:
    """Whether the broker will not answer this question in a moment either."""
    return error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or is_refusal(error.code, error.remark)


async def _of_each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    """Not a task group: that would wrap the one clear error in another. Where one fails the others need not go on."""
    listed = list(queues)
    asked = [asyncio.ensure_future(ask(queue)) for queue in listed]
    try:
        return dict(zip(listed, await asyncio.gather(*asked), strict=True))
    finally:
        for each in asked:
            each.cancel()


def looked(look: Callable[[], T], tries: int) -> T:
    """What a stream's look gives; looked again where a broker has left the route meanwhile. Raises what it raises."""
    for _ in range(tries):
        with contextlib.suppress(AwayError):
            return look()
    return look()
