"""What a rebalance asks of the cluster: the queues of a topic, the members of the group, and whose the queues are where a
user's own strategy decides that.

Broadcasting asks for no members: every member reads every queue (RebalanceImpl.rebalanceByTopic). With
`consumer.client_rebalance` = false the brokers say whose the queues are (QUERY_ASSIGNMENT, 5.x), and how each is read, by
pulls or pops (CL/impl/consumer/RebalanceImpl.java, queryAssignment). `mqadmin setConsumeMode` says which groups pop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from ...client.asking import ask, is_missing_topic
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...client.routes import queues_to_read, refuse_static
from ...conf.settings import Settings, logs_as
from ...remoting.bodies import TopicRouteData
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError
from ...remoting.names import MASTER_ID, RETRY_PREFIX
from ...remoting.pop_headers import MODE_POP, QueryAssignment, QueryAssignmentResponse
from ...remoting.queues import MessageQueue
from ..core.allocation import is_users_own
from ..core.machine_rooms import AllocationError
from .heartbeats import Heartbeats
from .user_strategy import UserStrategy, strategy_process

QUERY_TIMEOUT_MS = 3_000

Answer = TypeVar("Answer")

log = structlog.get_logger("rocketcrew.member")


class Assignment(NamedTuple):
    """The answer for one topic; None = not known, `mine` also where the core allocates itself."""

    queues: Sequence[MessageQueue] | None = None
    members: Sequence[str] | None = None
    mine: Sequence[MessageQueue] | None = None
    pop: Sequence[MessageQueue] | None = None
    """Queues to pop from, where the broker assigns."""
    unlisted: bool = False
    """The broker has answered our heartbeat, and leaves us out of the members."""


class BrokerAssignment(NamedTuple):
    """Our queues of one topic; one to pop with the id -1 means all of its broker."""

    pull: list[MessageQueue]
    pop: list[MessageQueue]


class BrokerAssignments:
    """Asks for one member of the group."""

    def __init__(self, cluster: Cluster, group: str, client_id: str, strategy: str, message_model: str) -> None:
        self._cluster = cluster
        self._group = group
        self._client_id = client_id
        self._strategy = strategy
        self._message_model = message_model

    async def query(self, topic: str) -> BrokerAssignment | None:
        """None = the broker does not say. Raises BrokerError, UnreachableError; UsageError when it cannot know."""
        route = await self._cluster.route(topic)
        if not route.broker_datas:
            raise UnreachableError(topic, "the route of this topic names no broker")
        data = self._cluster.random.choice(route.broker_datas)
        address = data.broker_addrs.get(MASTER_ID) or min(data.broker_addrs.values())
        body = QueryAssignment(topic, self._group, self._client_id, self._strategy, self._message_model).encode()
        code = RequestCode.QUERY_ASSIGNMENT
        try:
            answer = await ask(self._cluster.remoting, address, code, body=body, timeout_ms=QUERY_TIMEOUT_MS)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise UsageError(
                    f"consumer.client_rebalance = false needs RocketMQ 5: the broker at {address} does not assign queues"
                    " (QUERY_ASSIGNMENT), and so has no POP; set it to true"
                ) from error
            raise
        found = QueryAssignmentResponse.decode(answer.body).message_queue_assignments
        if found is None:
            return None
        pop = [each.message_queue for each in found if each.mode == MODE_POP]
        return BrokerAssignment([each.message_queue for each in found if each.mode != MODE_POP], pop)


class LookUps:
    """Asks for one member of the group."""

    def __init__(
        self,
        cluster: Cluster,
        operations: Operations,
        heartbeats: Heartbeats,
        settings: Settings,
        client_id: str,
    ) -> None:
        self._cluster = cluster
        self._operations = operations
        self._heartbeats = heartbeats
        consumer = settings.consumer
        self._group = consumer.group
        self._client_id = client_id
        self._alone = consumer.message_model == "BROADCASTING"
        self._by_brokers: BrokerAssignments | None = None
        if not consumer.client_rebalance and not self._alone:
            self._by_brokers = BrokerAssignments(
                cluster, consumer.group, client_id, consumer.allocate_strategy, consumer.message_model
            )
        self._leaves_retries = (
            consumer.allocate_strategy == "CONFIG" and not self._alone and consumer.client_rebalance
            and not any(text.startswith(RETRY_PREFIX) for text in consumer.allocate_queues)
        )  # fmt: skip
        self._static: set[str] = set()
        """Topics that became static and were refused."""
        self._strategy: UserStrategy | None = None
        if is_users_own(consumer.allocate_strategy) and not self._alone:
            path = consumer.allocate_strategy
            self._strategy = UserStrategy(path, consumer.group, client_id, strategy_process(path, logs_as(settings)))

    async def start(self) -> None:
        """Raises UsageError when the user's strategy cannot be had."""
        if self._strategy is not None:
            await self._strategy.start()
        if self._leaves_retries:
            log.warning("retries_not_consumed_here", reason="consumer.allocate_queues names no queue of the retry topic",
                        hint=f"some member must name {RETRY_PREFIX}{self._group}@<broker>:0")  # fmt: skip

    async def check_brokers(self, topics: Iterable[str]) -> None:
        """Raises UsageError when a broker is to assign queues and cannot."""
        if self._by_brokers is None:
            return
        for topic in topics:
            if topic != RETRY_PREFIX + self._group:
                with contextlib.suppress(BrokerError, UnreachableError):
                    await self._by_brokers.query(topic)

    async def kill(self) -> None:
        """End the strategy's process."""
        if self._strategy is not None:
            await self._strategy.kill()

    async def assignment(self, topic: str, *, ordered: bool = False) -> Assignment:
        """Failures are logged, and leave unknown what they concern. `ordered`: brokers are never asked to assign."""
        queues: list[MessageQueue] | None = None
        try:
            route = await self._cluster.route(topic)
            if self._is_static(topic, route):
                nobodys = queues_to_read(topic, replace(route, topic_queue_mapping_by_broker=None))
                return Assignment(nobodys, [self._client_id], [], None if self._by_brokers is None else [])
            queues = queues_to_read(topic, route)
            if self._alone:
                return Assignment(queues, [self._client_id])
            if self._by_brokers is not None and not ordered:
                found = await self._of_one_that_knows_us(partial(self._by_brokers.query, topic))
                if found is None:
                    return Assignment(queues, unlisted=self._heartbeats.known_to_all())
                return Assignment(queues, [self._client_id], found.pull, found.pop)
            members = await self._of_one_that_knows_us(partial(self._operations.consumer_ids, self._group, topic))
        except RocketcrewError as error:
            if not (topic == RETRY_PREFIX + self._group or self._never_was(topic, error)):
                asked = self._cluster.broker_at(getattr(error, "address", ""))
                log.warning("rebalance_look_up_failed", topic=topic, broker=asked, error=str(error))
            return Assignment(queues)
        unlisted = self._client_id not in members and self._heartbeats.known_to_all()
        if self._strategy is None or not queues or not members:
            return Assignment(queues, members, unlisted=unlisted)
        try:
            mine = await self._strategy.allocate(queues, members)
            return Assignment(queues, members, mine, unlisted=unlisted)
        except AllocationError as error:
            log.error("allocation_failed", topic=topic, error=str(error))
            return Assignment(queues)

    async def _of_one_that_knows_us(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of a broker: one that does not know us yet leaves us out of the list, and we would own nothing."""
        if not self._heartbeats.known_to_all():
            await self._heartbeats.send()
        away = self._heartbeats.away
        answer = await ask()
        if away <= self._heartbeats.away:
            return answer
        await self._heartbeats.send()  # one has come back, maybe with this very question
        return await ask()

    def _is_static(self, topic: str, route: TopicRouteData) -> bool:
        """Such a topic is given up, and reported once; the start refuses it."""
        try:
            refuse_static(topic, route)
        except UsageError as error:
            if topic not in self._static:
                self._static.add(topic)
                log.error("static_topic_refused", topic=topic, error=str(error))
            return True
        self._static.discard(topic)
        return False

    def _never_was(self, topic: str, error: RocketcrewError) -> bool:
        """A topic that is still to come: the start has said so, and looks for it."""
        return is_missing_topic(error) and topic not in self._cluster.known_routes().routes
