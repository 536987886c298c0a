"""Tools and brokers without a master."""

from __future__ import annotations

import pytest

from rocketcrew.client.admin import Admin
from rocketcrew.remoting.admin_bodies import ConsumeStats, OffsetWrapper, TopicOffset, TopicStats
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue

from .clusters import cluster_of

TOPIC, GROUP = "orders", "billing"


def broker(name):
    """Answers with what it has of its one queue."""
    mq = MessageQueue(TOPIC, name, 0)
    bodies = {  # without one: nobody is online
        RequestCode.GET_CONSUMER_CONNECTION_LIST: None,
        RequestCode.GET_CONSUME_STATS: ConsumeStats({mq: OffsetWrapper(10, 4)}).encode(),
        RequestCode.GET_TOPIC_STATS_INFO: TopicStats({mq: TopicOffset(0, 10)}).encode(),
    }

    def answer(command):
        body = bodies[command.code]
        return command.response(ResponseCode.CONSUMER_NOT_ONLINE) if body is None else command.response(0, body=body)

    return answer


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


async def test_statistics_of_a_broker_without_a_master_come_from_the_first_slave_that_answers(make_peer, closed_port):
    async with make_peer(broker("a")) as master, make_peer(broker("b")) as slave:
        addresses = {2: slave.address, 1: closed_port}
        route = TopicRouteData(
            (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)),
            (BrokerData("a", {0: master.address}), BrokerData("b", addresses)),
        )
        async with (
            make_peer(lambda command: command.response(0, body=route.encode())) as names,
            cluster_of(names.address) as cluster,
        ):
            admin = Admin(cluster)
            silent: dict[str, UnreachableError] = {}
            for table in (
                (await admin.consume_stats(GROUP, TOPIC)).offset_table,
                (await admin.topic_stats(TOPIC, silent)).offset_table,
            ):
                assert {mq.broker_name for mq in table} == {"a", "b"}
            assert silent == {}
            assert await admin.consumer_connections(GROUP, TOPIC) is None
            assert [command.code for command in slave.requests].count(RequestCode.GET_CONSUMER_CONNECTION_LIST) == 1


async def test_where_none_of_its_slaves_answers_the_broker_is_silent(make_peer, closed_port):
    async with make_peer(broker("a")) as master:
        route = TopicRouteData(
            (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)),
            (BrokerData("a", {0: master.address}), BrokerData("b", {1: closed_port})),
        )
        async with (
            make_peer(lambda command: command.response(0, body=route.encode())) as names,
            cluster_of(names.address) as cluster,
        ):
            admin = Admin(cluster)
            with pytest.raises(UnreachableError, match=closed_port):
                await admin.topic_stats(TOPIC)
            silent: dict[str, UnreachableError] = {}
            assert {mq.broker_name for mq in (await admin.topic_stats(TOPIC, silent)).offset_table} == {"a"}
            assert list(silent) == [closed_port]
