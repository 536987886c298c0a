"""Tools and brokers without a master."""

from __future__ import annotations

import pytest

from rocketcrew.client.admin import Admin
from rocketcrew.remoting.admin_bodies import ConsumeStats, OffsetWrapper, TopicOffset, TopicStats
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue

from .clusters import cluster_of

TOPIC, GROUP = "orders", "billing"


def broker(name):
    """Answers with what it has of its one queue."""
    mq = MessageQueue(TOPIC, name, 0)
    bodies = {
        RequestCode.GET_CONSUME_STATS: ConsumeStats({mq: OffsetWrapper(10, 4)}).encode(),
        RequestCode.GET_TOPIC_STATS_INFO: TopicStats({mq: TopicOffset(0, 10)}).encode(),
    }
    return lambda command: command.response(0, body=bodies[command.code])


async def test_statistics_of_a_broker_without_a_master_come_from_its_slave(make_peer):
    async with make_peer(broker("a")) as master, make_peer(broker("b")) as slave:
        route = TopicRouteData(
            (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)),
            (BrokerData("a", {0: master.address}), BrokerData("b", {1: slave.address})),
        )
        async with (
            make_peer(lambda command: command.response(0, body=route.encode())) as names,
            cluster_of(names.address) as cluster,
        ):
            admin = Admin(cluster)
            for table in (
                (await admin.consume_stats(GROUP, TOPIC)).offset_table,
                (await admin.topic_stats(TOPIC)).offset_table,
            ):
                assert {mq.broker_name for mq in table} == {"a", "b"}
            before = len(master.requests)
            with pytest.raises(UnreachableError, match=f"b: this broker of topic {TOPIC} has no master now"):
                await admin.reset_offsets(GROUP, TOPIC, 0)
            assert len(master.requests) == before
