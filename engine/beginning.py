"""At each start of a stream: is the group ours alone, does it exist at the brokers, and where does each new queue begin?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog

from ..client.clock import wall_ms
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..client.route_cache import RouteCache
from ..client.same_cluster import Suspects
from ..conf.settings import ConsumerSettings
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, UsageError
from ..remoting.log_keys import place_keys
from ..remoting.names import RETRY_PREFIX
from ..remoting.queues import MessageQueue
from ..source.looking import say_hello, tell_beyond_end
from ..source.offsets import Offsets
from ..source.positions import Facts, within
from ..spark.errors import StoppedError
from ..supervisor.member.commits import BrokersOffsets
from ..supervisor.member.first_offset import FirstOffset, timestamp_to_begin_at
from .home import Home

LOOK_AGAIN_S = 1.0

_log = structlog.get_logger("rocketcrew.engine")


class Beginning:
    """Asks for one group. All coroutines run in the loop of the cluster."""

    def __init__(self, cluster: Cluster, operations: Operations, stopping: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._operations = operations
        self._access = cluster.access
        self._stopping = stopping

    async def topics_there(self, topics: Sequence[str]) -> list[MessageQueue]:
        """The queues of the topics, waited for as a member of a group does. Raises StoppedError."""
        told: set[str] = set()
        while True:
            queues, missing = await self._look(topics)
            if not missing:
                return queues
            for topic in missing - told:
                _log.warning("topic_missing", topic=topic, hint="it is waited for")
            told |= missing
            if self._stopping():
                raise StoppedError(f"stopped while waiting for topics: {', '.join(sorted(missing))}")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _look(self, topics: Sequence[str]) -> tuple[list[MessageQueue], set[str]]:
        queues: list[MessageQueue] = []
        missing: set[str] = set()
        for topic in topics:
            try:
                found = await self._cluster.queues_to_read(self._access.wrap(topic), refresh=True)
                queues += [queue._replace(topic=topic) for queue in found]
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                missing.add(topic)
        return queues, missing

    async def claim(self, group: str, queues: Sequence[MessageQueue]) -> None:
        """Make the group known to its brokers, which then have its retry topic. Raises UsageError when it has members."""
        members = await self._operations.consumer_ids(self._access.wrap(group), self._access.wrap(queues[0].topic))
        if members:
            raise UsageError(
                f"group {group} has members: {', '.join(sorted(set(members))[:5])}. With this engine it must have none, or"
                " messages would be consumed twice: stop them, or take another group"
            )
        await say_hello(self._cluster, self._operations, group, queues)

    async def starting(self, home: Home, consumer: ConsumerSettings, queues: Sequence[MessageQueue]) -> str:
        """The option startingOffsets: where the stream has begun, and where it begins in queues that are new to it."""
        if not home.begun():
            return home.write_starting(await self.starting_offsets(consumer, queues))
        starting, known = home.starting(), home.known()
        new = [queue for queue in queues if queue not in known]
        if starting is None or not new:
            return starting or "earliest"
        topics = {queue.topic for queue in known}
        return home.write_starting(home.starting_offsets() | await self.starting_offsets(consumer, new, topics))

    async def starting_offsets(
        self, consumer: ConsumerSettings, queues: Sequence[MessageQueue], consumed: Collection[str] = ()
    ) -> Offsets:
        """Where a stream begins in queues that are new to it, by the rules of a member: the group's offset, else
        consumeFromWhere. That is for topics that are new: all messages of one that was `consumed` before are ours, also those
        in queues that it got while nobody looked."""
        stored = BrokersOffsets(self._operations, self._access.wrap(consumer.group))
        timestamp_ms = timestamp_to_begin_at(consumer, wall_ms())
        rule = FirstOffset(self._operations, stored, consumer.consume_from_where, timestamp_ms)
        found: Offsets = {}
        facts: dict[MessageQueue, Facts] = {}
        for queue in queues:
            mq = queue._replace(topic=self._access.wrap(queue.topic))
            if queue.topic in consumed:
                offset, why = await stored.find(mq) or (0, "a new queue of a topic that is consumed: its beginning")
            else:
                offset, why = await rule.find(mq)
            facts[queue] = known = await self._facts(mq, offset)
            found[queue] = within(max(offset, known.minimum), queue, known, fail=False, was_read=True)
            _log.info("queue_begins", **place_keys(queue, found[queue]), reason=why)
        tell_beyond_end(found, facts)
        return found

    async def _facts(self, mq: MessageQueue, group: int) -> Facts:
        low, high = await self._operations.min_offset(mq), await self._operations.max_offset(mq)
        await self._cluster.route(mq.topic)
        return Facts(low, high, group, final=self._cluster.is_final(mq))

    async def all_queues(self, topics: Sequence[str], group: str, cache: RouteCache) -> list[MessageQueue]:
        """The queues of the topics and of the group's retry topic, the group being claimed first. `cache` keeps where they
        are: raises UsageError where that was another cluster before."""
        suspects = Suspects(self._cluster, cache)
        self._cluster.compare = suspects.compare
        queues = await self.topics_there(topics)
        await suspects.ask()
        await self.claim(group, queues)
        queues = await self.topics_there([*topics, f"{RETRY_PREFIX}{group}"])
        cache.save(suspects.noted(self._cluster.known_routes()))
        return queues
