"""Whose queues are whose by the brokers' word (QUERY_ASSIGNMENT, 5.x), and how each is read: pulled, or popped.

Asked instead of allocating here when `consumer.client_rebalance` is false, as in Java (CL/impl/consumer/RebalanceImpl.java,
queryAssignment). `mqadmin setConsumeMode` says which groups pop.
"""

from __future__ import annotations

from typing import NamedTuple

from ...client.asking import ask
from ...client.cluster import Cluster
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.errors import BrokerError, UnreachableError, UsageError
from ...remoting.names import MASTER_ID
from ...remoting.pop_headers import MODE_POP, QueryAssignment, QueryAssignmentResponse
from ...remoting.queues import MessageQueue

QUERY_TIMEOUT_MS = 3_000
STRATEGIES = ("AVG", "AVG_BY_CIRCLE")
"""Those that brokers know (BR/processor/QueryAssignmentProcessor.java)."""


class BrokerAssignment(NamedTuple):
    """Our queues of one topic; one to pop with the id -1 stands for all of its broker."""

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
