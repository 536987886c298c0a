"""Commits of offsets at the brokers: two-way, so that a refusal is noticed, and guarded where somebody else knows better."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UnreachableError
from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.actions import Commit
from ..core.decisions import Core

log = structlog.get_logger("rocketcrew.member")


class Commits:
    """Performs `Commit` for the group; `now` is the loop's clock, in seconds."""

    def __init__(
        self, cluster: Cluster, operations: Operations, core: Core, group: str, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._operations = operations
        self._core = core
        self._group = group
        self._now = now
        self._known: dict[tuple[str, str], str] = {}
        """(broker, topic) that has an offset of the group for certain, because we committed one: at which address, since we
        are connected there. A broker that was killed may have forgotten it, and one forgets those of a deleted topic."""
        self._first: dict[tuple[str, str], asyncio.Lock] = {}
        cluster.remoting.on_close(self._connection_lost)

    def _connection_lost(self, address: str) -> None:
        self._known = {each: where for each, where in self._known.items() if where != address}

    async def commit(self, action: Commit) -> None:
        """One commit, answered by `Committed`."""
        ok = True
        try:
            async with self._alone_if_first(action.mq):
                await self._tell(action)
                if (where := self._address(action.mq)) is not None:
                    self._known[action.mq.broker_name, action.mq.topic] = where
        except RocketcrewError as error:
            # A topic that was deleted has no offset to be kept; asked again and again, a stop would wait for nothing.
            ok = isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
            if ok:
                self._known.pop((action.mq.broker_name, action.mq.topic), None)
            log.warning("commit_failed", **place_keys(action.mq, action.offset), error=str(error))
        self._core.handle(ev.Committed(action.handle, action.offset, ok), self._now())

    async def _tell(self, action: Commit) -> None:
        """To the master that the route names; when it cannot be reached, once more to the one that a new route names."""
        try:
            await self._store(action)
        except UnreachableError:
            before = self._cluster.broker_address(action.mq.broker_name)
            await self._cluster.route(action.mq.topic, refresh=True)
            if self._cluster.broker_address(action.mq.broker_name) == before:
                raise
            await self._store(action)

    async def _store(self, action: Commit) -> None:
        mq = action.mq
        if action.guarded:
            stored = await self._operations.query_consumer_offset(self._group, mq)
            if stored is not None and not action.known <= stored < action.offset:
                return
        await self._operations.update_consumer_offset(self._group, mq, action.offset)

    def known(self, mq: MessageQueue) -> bool:
        """A commit of the topic is in at that broker for certain."""
        where = self._known.get((mq.broker_name, mq.topic))
        return where is not None and where == self._address(mq)

    def _address(self, mq: MessageQueue) -> str | None:
        return self._cluster.broker_address(mq.broker_name, only_this=False)

    def _alone_if_first(self, mq: MessageQueue) -> contextlib.AbstractAsyncContextManager[None]:
        """One commit at a time until the first of a topic is in at that broker.

        A broker makes the group's table of a topic with its first offset, and of several that come at once it keeps one
        (ConsumerOffsetManager.commitOffset): the others are answered with success and are lost.
        """
        if self.known(mq):
            return contextlib.nullcontext()
        return self._first.setdefault((mq.broker_name, mq.topic), asyncio.Lock())
