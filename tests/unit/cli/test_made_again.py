"""When brokers stored the records that a table has, against the embedded broker."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.commands.reconcile import stored
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.queues import MessageQueue

TOPIC = "orders"
MQ = MessageQueue(TOPIC, "broker-a", 0)
KEY = QueueKey("g", TOPIC, "broker-a", 0)
TOPIC_CONFIG = TopicConfig(TOPIC, read_queue_nums=2, write_queue_nums=2)


def test_the_record_itself_is_asked_for_and_what_is_not_there_is_left_out() -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, producer = Admin(cluster), Producer(cluster, "senders")
            times: list[int] = []
            for _ in range(2):
                await admin.create_topic(broker.address, TOPIC_CONFIG)
                for _ in range(2):
                    await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(MQ))
                found = await stored(cluster, {KEY: 1, KEY._replace(queue_id=1): 0})
                assert found.keys() == {KEY}
                times.append(found[KEY])
                await admin.delete_topic(broker.address, TOPIC)
            assert times[0] < times[1]

    asyncio.run(run())


def test_a_queue_that_may_not_be_read_is_told_and_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Permissions are taken from one topic, or from a group, at the very time when somebody wants to know what is there."""

    async def run() -> dict[QueueKey, int]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, producer = Admin(cluster), Producer(cluster, "senders")
            for topic, perm in ((TOPIC, 6), ("written", 2)):
                await admin.create_topic(broker.address, TopicConfig(topic, perm=perm))
                await producer.send(OutgoingMessage(topic, b"x"), selector=to_queue(MQ._replace(topic=topic)))
            return await stored(cluster, {KEY._replace(topic="written"): 0, KEY: 0})

    assert asyncio.run(run()).keys() == {KEY}
    assert "whether topics were made again is not known of 1 queue of 2: " in capsys.readouterr().err
