"""What a rebalance is answered for one topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from structlog.testing import capture_logs

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.supervisor.member.heartbeats import Heartbeats
from rocketcrew.supervisor.member.look_ups import Assignment, LookUps

from .conftest import TOPIC

if TYPE_CHECKING:
    from .conftest import Bench

ORDINARY = TopicRouteData((QueueData("b", 2, 2, 6),))
STATIC = TopicRouteData(ORDINARY.queue_datas, topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo(4)})


class Routes:
    """A cluster that has one route for all topics."""

    def __init__(self) -> None:
        self.known = ORDINARY

    async def route(self, _topic: str) -> TopicRouteData:
        return self.known


def test_a_topic_that_becomes_static_is_given_up_and_reported_once(bench: Bench) -> None:
    settings = load(
        {"consumer.group": "g", "consumer.topics": TOPIC, "consumer.message_model": "BROADCASTING"}, {}, None
    )
    routes = Routes()
    cluster = cast("Cluster", routes)
    look_ups = LookUps(cluster, cast("Operations", None), cast("Heartbeats", None), settings.consumer, "me")

    def rebalance() -> Assignment:
        found = asyncio.run(look_ups.assignment(TOPIC))
        bench.core.handle(ev.Members(TOPIC, found.queues, found.members, found.mine), bench.now)
        return found

    assert rebalance() == Assignment([MessageQueue(TOPIC, "b", 0), MessageQueue(TOPIC, "b", 1)], ["me"])
    bench.open(0)
    bench.one(act.Pull)
    routes.known = STATIC
    with capture_logs() as logs:
        rebalance()
        rebalance()
    assert [(log["event"], log["log_level"]) for log in logs] == [("static_topic_refused", "error")]
    assert not {pq.state for pq in bench.core.state.queues.values()} & {QueueState.OPENING, QueueState.ASSIGNED}
    bench.none(act.Pull)
