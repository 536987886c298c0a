"""Offsets told to the brokers: two-way, so that a refusal is noticed, and guarded where somebody else may know better."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from ..client.operations import Operations
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError
from .actions import Commit
from .core import Core

log = structlog.get_logger("rocketcrew.member")


class Commits:
    """Performs `Commit` for the group; `now` is the loop's clock, in seconds."""

    def __init__(self, operations: Operations, core: Core, group: str, now: Callable[[], float]) -> None:
        self._operations = operations
        self._core = core
        self._group = group
        self._now = now
        self._known: set[str] = set()
        """Topics that have an offset of the group at the broker for certain, because we committed one."""
        self._first: dict[str, asyncio.Lock] = {}

    async def commit(self, action: Commit) -> None:
        """One commit, answered by `Core.committed`."""
        ok = True
        try:
            async with self._alone_if_first(action.mq.topic):
                stored = (
                    await self._operations.query_consumer_offset(self._group, action.mq) if action.guarded else None
                )
                if stored is None or stored < action.offset:
                    await self._operations.update_consumer_offset(self._group, action.mq, action.offset)
                self._known.add(action.mq.topic)
        except RocketcrewError as error:
            # A topic that was deleted has no offset to be kept; asked again and again, a stop would wait for nothing.
            ok = isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
            log.warning("commit_failed", queue=tuple(action.mq), offset=action.offset, error=str(error))
        self._core.committed(action.handle, action.offset, ok, self._now())

    def known(self, topic: str) -> bool:
        """A commit of the topic is in for certain."""
        return topic in self._known

    def _alone_if_first(self, topic: str) -> contextlib.AbstractAsyncContextManager[None]:
        """One commit at a time until the first of a topic is in.

        A broker makes the group's table of a topic with its first offset, and of several that come at once it keeps one
        (ConsumerOffsetManager.commitOffset): the others are answered with success and are lost.
        """
        if topic in self._known:
            return contextlib.nullcontext()
        return self._first.setdefault(topic, asyncio.Lock())
