"""Offsets of a group, asked again and again: for the demo's progress, benchmarks and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from ..client.access import Access, NameServerList, access_to
from ..client.cluster import Cluster
from ..client.loop_thread import Runner
from ..client.opening import new_cluster
from ..client.operations import Operations
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, UnreachableError
from ..remoting.names import SCHEDULE_TOPIC
from ..remoting.queues import MessageQueue

T = TypeVar("T")

SCHEDULE_QUEUES = 18
"""Queues of the topic of delayed messages (SCHEDULE_TOPIC_QUEUE_NUM); levels beyond are found by their progress."""


class QueueLag(NamedTuple):
    """One queue: the offset that its next message will get, and what the group has committed (None = nothing yet)."""

    mq: MessageQueue
    end: int
    committed: int | None
    begin: int = 0
    """The first offset that the broker keeps, where it was asked for that."""
    unread: bool = False
    """No member can read it: the topic's route does not have it (cli/unread_queues.py)."""

    @property
    def lag(self) -> int:
        """Messages that are not committed; of a group that a reset has left above the queue's end, none."""
        return max(0, self.end - (self.committed if self.committed is not None else self.begin))


async def lag_of(operations: Operations, queues: Iterable[MessageQueue], group: str) -> list[QueueLag]:
    """Ask for each queue's bounds and the group's committed offset."""
    return [
        QueueLag(
            mq,
            begin=await operations.min_offset(mq),
            end=await operations.max_offset(mq),
            committed=await operations.query_consumer_offset(group, mq, set_zero_if_not_found=False),
        )
        for mq in queues
    ]


class Watch:
    """Blocking questions to one cluster over connections that stay open; a context manager.

    They run in the caller's thread, or where `runner` runs them, which is closed with this.
    """

    def __init__(self, target: NameServerList | Access, runner: Runner | None = None) -> None:
        self._runner: Runner = asyncio.Runner() if runner is None else runner

        async def make() -> Cluster:
            return new_cluster(replace(access_to(target), poll_interval_ms=1000))

        self._cluster = self._run(make())
        self._operations = Operations(self._cluster)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """Every readable queue of these topics; a topic that does not exist (yet) has none."""

        async def ask() -> list[QueueLag]:
            found: list[QueueLag] = []
            for topic in topics:
                try:
                    queues = await self._cluster.queues_to_read(topic, refresh=True)
                except BrokerError as error:
                    if error.code != ResponseCode.TOPIC_NOT_EXIST:
                        raise
                    continue
                found += await lag_of(self._operations, queues, group)
            return found

        return self._run(ask())

    def stored(self, group: str, topic: str) -> int:
        """How many messages the topic has ever got."""
        return sum(row.end for row in self.lag(group, [topic]))

    def delay_ends(self, brokers: Iterable[str]) -> dict[tuple[str, int], int]:
        """(broker name, delay level) -> the end of the queue of what waits for that delay, at the masters of these brokers.

        A broker that does not say how far it is (a proxy, access control) is left out. Raises UnreachableError.
        """

        async def ask() -> dict[tuple[str, int], int]:
            found: dict[tuple[str, int], int] = {}
            for broker in brokers:
                try:
                    levels = {*range(1, SCHEDULE_QUEUES + 1), *await self._reached(broker)}
                    for level in sorted(levels):
                        queue = MessageQueue(SCHEDULE_TOPIC, broker, level - 1)
                        found[broker, level] = await self._operations.max_offset(queue)
                except BrokerError:
                    found = {place: end for place, end in found.items() if place[0] != broker}
            return found

        return self._run(ask())

    def delays_reached(self, brokers: Iterable[str]) -> dict[tuple[str, int], int]:
        """The same places -> the offset up to which messages are delivered to their topics. Raises UnreachableError, and
        BrokerError."""

        async def ask() -> dict[tuple[str, int], int]:
            return {(broker, level): at for broker in brokers for level, at in (await self._reached(broker)).items()}

        return self._run(ask())

    async def _reached(self, broker: str) -> dict[int, int]:
        address = self._cluster.broker_address(broker)
        if address is None:
            raise UnreachableError(broker, "no route in use names its master")
        return await self._operations.delay_offsets(address)

    def close(self) -> None:
        async def end() -> None:
            await self._cluster.close()
            await self._cluster.remoting.close()

        self._run(end())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
