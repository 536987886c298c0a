"""Queue locks at the edge: one request for each broker, to its master, and every request answered to the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog

from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.errors import BrokerError, RocketcrewError
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.actions import LockQueues, UnlockQueues
from ..core.decisions import Core
from .stale_locks import StaleLocks

log = structlog.get_logger("rocketcrew.member")


class QueueLocks:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ for the group. `acted` after each answer; `now` is the loop's clock."""

    def __init__(
        self, cluster: Cluster, operations: Operations, core: Core, group: str, now: Callable[[], float],
        acted: Callable[[], None], left: StaleLocks,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._core = core
        self._group = group
        self._now = now
        self._acted = acted
        self._left = left
        self._connected: set[str] = set()
        self._at: dict[str, set[str]] = {}
        """Where each broker's master knows us, or was when its loss was told, by name: we were connected to it as such."""

    async def lock(self, action: LockQueues) -> None:
        """Answered by `Locked`, broker by broker."""
        self._left.note()
        await asyncio.gather(*(self._lock_at(mqs) for mqs in _by_broker(action.mqs)))

    async def _lock_at(self, mqs: Sequence[MessageQueue]) -> None:
        granted: Collection[MessageQueue] | None = None
        asked_at = self._now()
        try:
            address = await self._cluster.address_of(mqs[0])
            await self._give_up_left(address, mqs)
            asked_at = self._now()
            granted = await self._operations.lock_batch(address, self._group, mqs)
        except RocketcrewError as error:
            log.warning("lock_failed", broker=mqs[0].broker_name, queues=len(mqs), error=str(error))
        self._core.handle(ev.Locked(mqs, granted, asked_at), self._now())
        self._acted()

    async def _give_up_left(self, address: str, mqs: Sequence[MessageQueue]) -> None:
        """Before we ask for them first: what a killed run on our state folder holds."""
        left = self._left.to_give_up(mqs)
        if left:
            for client_id in self._left.owners:
                try:
                    await self._operations.unlock_batch(address, self._group, left, client_id=client_id)
                except BrokerError as error:
                    log.warning(
                        "left_locks_not_given_up", broker=left[0].broker_name, owner=client_id, error=str(error)
                    )
            self._left.given_up(left)
            log.info("left_locks_given_up", broker=left[0].broker_name, queues=len(left), owners=self._left.owners)

    async def unlock(self, action: UnlockQueues) -> None:
        """One-way, as Java; a lock that stays would expire at the broker. No broker waits for another: one that hears it late
        would take away a lock that it gave again meanwhile."""
        await asyncio.gather(*(self._unlock_at(mqs) for mqs in _by_broker(action.mqs)))

    async def _unlock_at(self, mqs: Sequence[MessageQueue]) -> None:
        try:
            address = await self._cluster.address_of(mqs[0])
            await self._operations.unlock_batch(address, self._group, mqs, oneway=True)
        except RocketcrewError as error:
            log.warning("unlock_failed", broker=mqs[0].broker_name, queues=len(mqs), error=str(error))

    def connected(self, address: str) -> None:
        """A broker that is elsewhere now knows neither us nor our locks; the connection before may end later, or never."""
        self._connected.add(address)
        for name in self._cluster.broker_names():
            if self._cluster.broker_address(name) == address:
                known = self._at.setdefault(name, {address})
                if address not in known:
                    self._at[name] = {address, *(known & self._connected)}
                    self._lost(name)
            elif name in self._at:
                self._at[name].discard(address)

    def routes_changed(self) -> None:
        """A slave that has become master, as in a planned switch of roles: no connection tells of that, as heartbeats went to
        it before. It knows none of our locks, and may have older offsets."""
        masters = (self._cluster.broker_address(name) for name in self._cluster.broker_names())
        for address in dict.fromkeys(masters):
            if address in self._connected:
                self.connected(address)

    def connection_lost(self, address: str) -> None:
        """The broker at that address may have restarted, also where the route names another one by now: unless that one knows
        us as well, as where a route changes to and fro."""
        self._connected.discard(address)
        for name in dict.fromkeys((*self._cluster.broker_names(), *self._at)):
            known, now_at = self._at.get(name, set[str]()), self._cluster.broker_address(name)
            if now_at == address:
                self._lost(name)
            elif address in known:
                known.discard(address)
                if now_at not in known:
                    if now_at in self._connected:
                        known.add(now_at)
                    self._lost(name)

    def _lost(self, name: str) -> None:
        self._core.handle(ev.BrokerLost(name), self._now())
        self._acted()


def _by_broker(mqs: Sequence[MessageQueue]) -> list[list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for mq in mqs:
        found.setdefault(mq.broker_name, []).append(mq)
    return list(found.values())
