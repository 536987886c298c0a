"""Commits of offsets at the brokers: two-way, so that a refusal is noticed, and guarded where somebody else knows better."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from ...client.asking import is_missing_topic
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.errors import RocketcrewError, UnreachableError
from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.actions import Commit
from ..core.decisions import Core

log = structlog.get_logger("rocketcrew.member")


@dataclass(slots=True)
class Questions:
    """Those about one (broker, topic), one at a time."""

    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    ended: int = 0
    """The number of the last one that has ended."""
    error: RocketcrewError | None = None
    """How, where it failed."""
    meanwhile: set[int] = field(default_factory=set[int])
    """The queues that have committed since the last one was asked."""


class BrokersOffsets:
    """Clustering: the broker has the group's offsets."""

    def __init__(self, operations: Operations, group: str) -> None:
        self._operations = operations
        self._group = group
        self._forgotten: dict[tuple[str, str], set[int]] = {}
        """(broker, topic) that had no offset any more, and the queues that have one of ours since."""
        self._questions: dict[tuple[str, str], Questions] = {}

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        """(offset, where it comes from), None without one."""
        offset = await self._operations.query_consumer_offset(self._group, mq)
        if offset is None:
            return None
        if offset == 0:
            real = await self._operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
            if real is None:
                return 0, "a young queue: it still has its first message, so the broker starts a new group there"
        return offset, "the broker's stored offset"

    async def stored(self, mq: MessageQueue, known: int) -> int | None:
        """The group's offset at the broker, None without one.

        Brokers of 4.9 also say 0 where they have none and the queue's first message is in memory still. Whether they have any
        of the topic tells another question, and no more once the first queue has committed.
        """
        stored = await self._operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
        if stored or known <= 0:
            return stored
        if self._may_have_one(mq):
            # Also where it says that it has none: once this queue has committed, nobody can ask for the others.
            await self._look_for_any(mq)
            if stored == 0 and self._may_have_one(mq):
                return stored
            # The other question took its time: another member may have committed one meanwhile.
            stored = await self._operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
        return stored or None

    def _may_have_one(self, mq: MessageQueue) -> bool:
        """Else it is known that the broker had none of the topic, and we have not committed this queue's since."""
        since = self._forgotten.get((mq.broker_name, mq.topic))
        return since is None or mq.queue_id in since

    async def _look_for_any(self, mq: MessageQueue) -> None:
        """Whether the broker has any offset of the topic: the answer tells all of the group's, so queues that come while a
        question is under way share the next one, also when it fails: each would wait as long."""
        place = (mq.broker_name, mq.topic)
        questions = self._questions.setdefault(place, Questions())
        came = questions.begun
        async with questions.line:
            if questions.ended > came:  # begun since
                if questions.error is not None:
                    raise questions.error.with_traceback(None)
                return
            questions.begun += 1
            questions.meanwhile = set()
            try:
                has_any = await self._operations.has_offsets(self._group, mq)
            except RocketcrewError as error:
                questions.ended, questions.error = questions.begun, error
                raise
            questions.ended, questions.error = questions.begun, None
            if not has_any:
                self._forgotten[place] = set(questions.meanwhile)

    def committed(self, mq: MessageQueue) -> None:
        """The broker has one of ours."""
        place = (mq.broker_name, mq.topic)
        if place in self._questions:
            self._questions[place].meanwhile.add(mq.queue_id)
        if place in self._forgotten:
            self._forgotten[place].add(mq.queue_id)


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
        self.offsets = BrokersOffsets(operations, group)
        cluster.remoting.on_close(self._connection_lost)

    def _connection_lost(self, address: str) -> None:
        self._known = {each: where for each, where in self._known.items() if where != address}

    async def commit(self, action: Commit) -> None:
        """One commit, answered by `Committed`."""
        ok, left_at, final = True, -1, self._cluster.is_final(action.mq)
        try:
            left_at = await self._tell(action)
        except RocketcrewError as error:
            # A topic that was deleted has no offset to be kept; asked again and again, a stop would wait for nothing. A slave
            # may not have it yet.
            ok = is_missing_topic(error) and final and self._cluster.is_final(action.mq)
            if ok:
                self._known.pop((action.mq.broker_name, action.mq.topic), None)
            log.warning("commit_failed", **place_keys(action.mq, action.offset), error=str(error))
        final = final and self._cluster.is_final(action.mq)
        self._core.handle(ev.Committed(action.handle, action.offset, ok, left_at, final), self._now())

    async def _tell(self, action: Commit) -> int:
        """To the master that the route names; when it cannot be reached, once more to the one that a new route names, where
        another member may have gone on meanwhile.

        That the topic is gone only the master can say: a name server knows none whose brokers are all away."""
        try:
            return await self._store(action)
        except UnreachableError as lost:
            before = self._cluster.broker_address(action.mq.broker_name)
            try:
                await self._cluster.route(action.mq.topic, refresh=True)
            except RocketcrewError:
                raise lost from None
            if self._cluster.broker_address(action.mq.broker_name) == before:
                raise
            return await self._store(replace(action, guarded=action.guarded or not action.moves))

    async def _store(self, action: Commit, *, waited: bool = False) -> int:
        """-1, or where the group is that a guarded commit leaves there.

        One commit at a time until the first of a topic is in at that broker: a broker makes the group's table of a topic with
        its first offset, and of several that come at once it keeps one (ConsumerOffsetManager.commitOffset): the others are
        answered with success and are lost. Those that have `waited` for it look again: another member may have gone on.
        """
        if (left_at := await self._look(action, waited=waited)) is not None:
            return left_at
        if self.known(action.mq):
            return await self._update(action)
        async with self._first.setdefault((action.mq.broker_name, action.mq.topic), asyncio.Lock()):
            if not self.known(action.mq):
                left_at = await self._look(action, waited=True)
                return await self._update(action) if left_at is None else left_at
        return await self._store(action, waited=True)

    async def _look(self, action: Commit, *, waited: bool) -> int | None:
        """Where the group is that the commit leaves there, -1 where that is its offset. None = the commit may go over it, as
        long as nothing else is waited for."""
        if not self._is_guarded(action):
            return None
        stored = await self.offsets.stored(action.mq, action.known)
        if stored is None:  # the broker was killed, or made to forget them (deleteSubGroup)
            if not waited:  # else the topic has an offset since, of another queue
                self._known.pop((action.mq.broker_name, action.mq.topic), None)
        elif not action.known <= stored < action.offset:
            return -1 if stored == action.offset else stored
        return None

    async def _update(self, action: Commit) -> int:
        mq = action.mq
        await self._operations.update_consumer_offset(self._group, mq, action.offset)
        if (where := self._address(mq)) is not None:
            self._known[mq.broker_name, mq.topic] = where
        self.offsets.committed(mq)
        return -1

    def _is_guarded(self, action: Commit) -> bool:
        """By now: since it was asked for it has waited, for what it depends on and for others."""
        return action.guarded or self._core.doubts.guards(action)

    def known(self, mq: MessageQueue) -> bool:
        """A commit of the topic is in at that broker for certain."""
        where = self._known.get((mq.broker_name, mq.topic))
        return where is not None and where == self._address(mq)

    def _address(self, mq: MessageQueue) -> str | None:
        return self._cluster.broker_address(mq.broker_name, only_this=False)
