"""Queues that the table's ledger knows and brokers name no more, asked of an embedded broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.commands.reconcile import ends_by_name
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.reconciling import QueueEnds

TOPIC = "orders"
QUEUES = [QueueKey("g", TOPIC, "embedded", number) for number in range(4)]


async def cut_to_two(broker: EmbeddedBroker, cluster: Cluster) -> None:
    """Four queues of five messages, the group at the third of each; then the topic has two queues."""
    admin, producer, operations = Admin(cluster), Producer(cluster, "senders"), Operations(cluster)
    await admin.create_group(broker.address, SubscriptionGroupConfig("g"))
    await admin.create_topic(broker.address, TopicConfig(TOPIC, read_queue_nums=4, write_queue_nums=4))
    for key in QUEUES:
        mq = MessageQueue(key.topic, key.broker, key.queue_id)
        for _ in range(5):
            await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(mq))
        await operations.update_consumer_offset("g", mq, 3)
    await admin.create_topic(broker.address, TopicConfig(TOPIC, read_queue_nums=2, write_queue_nums=2))


def asked(*keys: QueueKey, route: TopicRouteData | None = None) -> dict[QueueKey, QueueEnds | None]:
    """`route`: what the name server says of every topic after the cut, None = what is so."""

    def said(command: Command) -> Command | None:
        if route is None or command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return None
        return command.response(ResponseCode.SUCCESS, body=route.encode())

    async def run() -> dict[QueueKey, QueueEnds | None]:
        async with EmbeddedBroker() as broker:
            async with open_cluster(broker.name_server) as cluster:
                await cut_to_two(broker, cluster)
            broker.name_server_intercepts.append(said)
            async with open_cluster(broker.name_server) as cluster:
                return await ends_by_name(cluster, keys)

    return asyncio.run(run())


def test_of_a_topic_with_fewer_queues_a_broker_tells_of_those_that_it_has() -> None:
    there = QueueEnds(0, 5, 3)
    assert asked(*QUEUES) == dict.fromkeys(QUEUES[:2], there) | dict.fromkeys(QUEUES[2:], replace(there, read=False))


def test_a_queue_a_topic_and_a_broker_that_are_not_there_are_not_known() -> None:
    gone = [QUEUES[0]._replace(queue_id=7), QUEUES[0]._replace(topic="gone"), QUEUES[0]._replace(broker="broker-b")]
    assert asked(*gone) == dict.fromkeys(gone)


def test_a_broker_that_does_not_answer_is_not_taken_for_one_that_is_gone() -> None:
    nowhere = BrokerData("embedded", {0: "127.0.0.1:1"})
    with pytest.raises(UnreachableError):
        asked(QUEUES[0], route=TopicRouteData((QueueData("embedded", 4, 4, 6),), (nowhere,)))
