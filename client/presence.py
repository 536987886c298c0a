"""What makes a producer a member of its group: heartbeats to the masters in use, and the sign-off.

A heartbeat goes out every 30 s (the first after a second). For a producer that only sends nobody is connected for a
heartbeat's sake. One that has transactions must be found by the broker that asks after them, which knows it by a connection
with a heartbeat on it, asks only so often and then drops the message. So for such a one

- heartbeats go to all masters of its topics, and at once on each new connection;
- a connection that is lost is made anew, though nothing is sent: after a second, then at longer waits while the broker is
  down, up to the interval of heartbeats (Java: at its next heartbeat). Once after each heartbeat that was answered: a
  broker that cuts every connection is left to the regular ones;
- its topics' routes stay in use, however long ago it has sent there and however long their brokers are away. Its default
  topic is one of them: so one is asked that has sent nothing yet, wherever brokers make topics by themselves.

A broker that is away is a warning once, until it answers. A cluster that is shared may be closed before its producers: their
work ends with it.

Source: client/impl/factory/MQClientInstance.java (sendHeartbeatToAllBrokerWithLock); the default topic is 4.9's
(DefaultMQProducerImpl.start), which 5.x has no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..remoting.bodies import HeartbeatData, ProducerData
from ..remoting.errors import RocketcrewError
from .background import background
from .cluster import Cluster
from .logs import get_logger
from .operations import Operations

T = TypeVar("T")

HEARTBEAT_INTERVAL_MS = 30_000
FIRST_HEARTBEAT_MS = 1_000
RECONNECT_FIRST_MS = 1_000
HELD_TOPICS_MAX = 4_096
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
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listens: list[Callable[[], object]] = []
        """Each ends one."""
        self._held: dict[str, None] | None = None
        """Topics that brokers may ask about; None: nobody asks."""
        self._returning: dict[str, asyncio.Task[None]] = {}
        """Masters whose connection was lost and that have answered no heartbeat since: what makes it anew, or has tried."""
        self._connecting: set[str] = set()
        """Masters that a heartbeat is about to be connected with: it is the first on its connection."""
        self._failing: set[str] = set()
        """Masters whose last heartbeat failed, which was logged."""
        self.started = False

    def start(self, asked_about: str | None) -> None:
        """`asked_about`: the first topic that brokers may ask about; None: they do not ask this producer."""
        self.started = True
        if asked_about is not None:
            self._held = {asked_about: None}
            remoting = self._cluster.remoting
            self._listens = [remoting.on_connect(self._connected), remoting.on_close(self._lost)]
            self._run(self._keep_held())
        self._run(self._keep_alive())
        if self._refresh:  # apart from the heartbeats: a name server that is silent must not hold them up
            self.repeat(self._cluster.refresh, self._interval_ms)

    def hold(self, topic: str) -> None:
        """Brokers may ask about this topic too, from now on."""
        if self._held is not None and len(self._held) < HELD_TOPICS_MAX:
            self._held[topic] = None

    def repeat(self, work: Callable[[], Awaitable[None]], interval_ms: int) -> None:
        """Do this too, again and again."""

        async def forever() -> None:
            while await self._goes_on(interval_ms):
                await work()

        self._run(forever())

    def abandon(self) -> None:
        """End the work, and tell nobody."""
        self.started = False
        while self._listens:
            self._listens.pop()()
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        """End the work, and tell the brokers in use that we are gone."""
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister(address) for address in self._connected_masters()))

    def _run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = background(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _goes_on(self, wait_ms: float) -> bool:
        """Wait so long; whether there is somebody to talk to then."""
        await asyncio.sleep(wait_ms / 1000)
        return not self._cluster.is_closed

    def _masters(self) -> list[str]:
        return self._cluster.all_broker_addresses(masters_only=True)

    def _connected_masters(self) -> list[str]:
        connected = set(self._cluster.remoting.addresses)
        return [address for address in self._masters() if address in connected]

    def _connected(self, address: str) -> None:
        if address not in self._connecting and address in self._masters():
            self._run(self._heartbeat(address))

    def _lost(self, address: str) -> None:
        if not self._cluster.is_closed and address in self._masters() and address not in self._returning:
            self._returning[address] = self._run(self._return_to(address))

    async def _return_to(self, address: str) -> None:
        """Connect with a master by a heartbeat; after the last try here the regular ones go on."""
        wait_ms = RECONNECT_FIRST_MS
        while wait_ms < self._interval_ms and await self._goes_on(wait_ms):
            if address not in self._masters() or await self._heartbeat(address):
                return
            wait_ms *= 2

    async def _keep_held(self) -> None:
        """Ask for the routes of what brokers may ask about: what was asked for lately is neither forgotten nor borrowed for
        ever. In a task of its own: a name server that is silent must not hold up the heartbeats."""
        wait_ms = 0
        while await self._goes_on(wait_ms):
            wait_ms = self._interval_ms
            for topic in tuple(self._held or ()):
                # Asked again; a renewal that fails is logged where it is made.
                with contextlib.suppress(RocketcrewError):
                    await self._cluster.route(topic)

    async def _keep_alive(self) -> None:
        wait_ms = min(FIRST_HEARTBEAT_MS, self._interval_ms)
        while await self._goes_on(wait_ms):
            wait_ms = self._interval_ms
            masters = self._masters()
            self._failing.intersection_update(masters)
            for address in self._returning.keys() - set(masters):
                self._answered(address)
            await asyncio.gather(
                *map(self._heartbeat, masters if self._held is not None else self._connected_masters())
            )

    async def _heartbeat(self, address: str) -> bool:
        """Whether the broker knows us now."""
        data = HeartbeatData(self._cluster.client_id, producer_data_set=(ProducerData(self._group),))
        remoting = self._cluster.remoting
        if remoting.connection_of(address) is None:
            self._connecting.add(address)
        try:
            wait_ms = self._cluster.access.heartbeat_timeout_ms(self._interval_ms)
            await self._operations.heartbeat(address, data, timeout_ms=wait_ms)
        except RocketcrewError as error:
            self._failed(address, error)
            return False
        finally:
            self._connecting.discard(address)
        if address in self._failing:
            self._failing.remove(address)
            _log.info("heartbeat_answered_again", broker=self._cluster.broker_at(address), address=address)
        if remoting.connection_of(address) is None:  # it was cut behind the answer
            return False
        self._answered(address)
        return True

    def _answered(self, address: str) -> None:
        """Nobody need return there; after the next loss somebody does."""
        task = self._returning.pop(address, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _failed(self, address: str, error: RocketcrewError) -> None:
        if self._cluster.is_closed:
            return
        said = {"broker": self._cluster.broker_at(address), "address": address, "error": str(error)}
        if address in self._failing:
            _log.debug("heartbeat_failed", **said)
        else:
            self._failing.add(address)
            _log.warning("heartbeat_failed", **said)

    async def _unregister(self, address: str) -> None:
        try:
            await self._operations.unregister(
                address, self._cluster.client_id, producer_group=self._group, timeout_ms=UNREGISTER_TIMEOUT_MS
            )
        except RocketcrewError as error:
            _log.info("unregister_failed", address=address, error=str(error))
