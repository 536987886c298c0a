"""What makes a producer a member of its group: heartbeats to the masters in use, and the sign-off.

A heartbeat goes out every 30 s (the first after a second), and at once on each new connection where the group must be found
by the broker, which asks after its transactions. Nobody is connected for a heartbeat's sake.

Source: client/impl/factory/MQClientInstance.java (sendHeartbeatToAllBrokerWithLock).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..remoting.bodies import HeartbeatData, ProducerData
from ..remoting.errors import RocketcrewError
from .background import background
from .cluster import Cluster
from .logs import get_logger
from .operations import Operations

HEARTBEAT_INTERVAL_MS = 30_000
FIRST_HEARTBEAT_MS = 1_000
UNREGISTER_TIMEOUT_MS = 1_000

_log = get_logger("rocketcrew.client")


class Presence:
    """The background work of one producer."""

    def __init__(self, cluster: Cluster, group: str, interval_ms: int, *, refresh: bool) -> None:
        """`refresh`: the routes are this producer's own to renew."""
        self._cluster = cluster
        self._group = group
        self._interval_ms = interval_ms
        self._refresh = refresh
        self._operations = Operations(cluster)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_listening: Callable[[], object] = lambda: None
        self.started = False

    def start(self, *, at_once: bool) -> None:
        """`at_once`: a heartbeat on each new connection too."""
        self.started = True
        self._run(self._keep_alive())
        if self._refresh:  # apart from the heartbeats: a name server that is silent must not hold them up
            self.repeat(self._cluster.refresh, self._interval_ms)
        if at_once:
            self._stop_listening = self._cluster.remoting.on_connect(self._connected)

    def repeat(self, work: Callable[[], Awaitable[None]], interval_ms: int) -> None:
        """Do this too, again and again."""

        async def forever() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                await work()

        self._run(forever())

    async def leave(self) -> None:
        """End the work, and tell the brokers in use that we are gone."""
        self.started = False
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister(address) for address in self._connected_masters()))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = background(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _masters(self) -> list[str]:
        return self._cluster.all_broker_addresses(masters_only=True)

    def _connected_masters(self) -> list[str]:
        connected = set(self._cluster.remoting.addresses)
        return [address for address in self._masters() if address in connected]

    def _connected(self, address: str) -> None:
        if self.started and address in self._masters():
            self._run(self._heartbeat(address))

    async def _keep_alive(self) -> None:
        wait_ms = min(FIRST_HEARTBEAT_MS, self._interval_ms)
        while True:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = self._interval_ms
            await asyncio.gather(*map(self._heartbeat, self._connected_masters()))

    async def _heartbeat(self, address: str) -> None:
        data = HeartbeatData(self._cluster.client_id, producer_data_set=(ProducerData(self._group),))
        try:
            wait_ms = self._cluster.access.heartbeat_timeout_ms(self._interval_ms)
            await self._operations.heartbeat(address, data, timeout_ms=wait_ms)
        except RocketcrewError as error:
            broker = self._cluster.broker_at(address)
            _log.warning("heartbeat_failed", broker=broker, address=address, error=str(error))

    async def _unregister(self, address: str) -> None:
        try:
            await self._operations.unregister(
                address, self._cluster.client_id, producer_group=self._group, timeout_ms=UNREGISTER_TIMEOUT_MS
            )
        except RocketcrewError as error:
            _log.info("unregister_failed", address=address, error=str(error))
