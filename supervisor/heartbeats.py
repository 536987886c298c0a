"""Heartbeats: every broker is told who we are and what we subscribe, at an interval and when something changed.

They go to every address known, masters and slaves, as Java's do (MQClientInstance.sendHeartbeatToAllBroker). A wish for a
heartbeat that comes while a round runs makes one more round after it, not many. Remembered is which brokers have had one on
the connection that stands: a broker that does not know us yet leaves us out of the group's list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.bodies import HeartbeatData
from ..remoting.errors import RocketcrewError, UnreachableError

log = structlog.get_logger("rocketcrew.member")


class Heartbeats:
    """`data` makes what is sent, anew for each round; `run` starts a task; the interval is in milliseconds."""

    def __init__(
        self, cluster: Cluster, operations: Operations, data: Callable[[], HeartbeatData], interval_ms: int,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._data = data
        self._interval_s = interval_ms / 1000
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._greeted: set[str] = set()
        """Brokers that have had our heartbeat on the connection that stands."""
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._again = False

    def arm(self) -> None:
        """Send them at the interval from now on."""
        self._timer = self._loop.call_later(self._interval_s, self._due)

    def disarm(self) -> None:
        """No more by the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.now()
        self.arm()

    def now(self) -> None:
        """Send a round soon: at once, or behind the one that runs."""
        if self._running:
            self._again = True
        else:
            self._run(self._rounds())

    async def _rounds(self) -> None:
        self._running = True
        try:
            again = True
            while again:
                self._again = False
                await self.send()
                again = self._again
        except RocketcrewError as error:
            log.warning("heartbeat_failed", error=str(error))
        finally:
            self._running = False

    async def send(self) -> None:
        """One round, to every address known; one that fails is logged. Raises UnreachableError when all fail."""
        addresses = self._cluster.all_broker_addresses()
        data = self._data()
        answers = await asyncio.gather(
            *(self._operations.heartbeat(address, data) for address in addresses), return_exceptions=True
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        self._greeted.update(
            address for address, answer in zip(addresses, answers, strict=True) if not isinstance(answer, BaseException)
        )
        for failure in failures:
            log.warning("heartbeat_failed", error=str(failure))
        if failures and len(failures) == len(addresses) and isinstance(failures[0], UnreachableError):
            raise failures[0]

    def forget(self, address: str) -> None:
        """The connection is gone, and with it what the broker knew of us."""
        self._greeted.discard(address)

    def known_to_all(self) -> bool:
        """Every broker has had one on the connection that stands."""
        return self._greeted.issuperset(self._cluster.all_broker_addresses())
