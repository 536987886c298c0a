"""What a stream finds out before its first batch, at embedded brokers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.route_cache import ROUTES_FILE, RouteCache
from rocketcrew.client.selection import to_queue
from rocketcrew.conf.settings import load
from rocketcrew.engine.beginning import Beginning
from rocketcrew.engine.home import Home
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.offsets import to_json

HERE = "embedded"


def write_checkpoint(home: Home) -> None:
    """A batch was planned: the stream is at 3 in the first queue."""
    (home.checkpoint / "offsets").mkdir(parents=True)
    (home.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"orders":{"embedded":{"0":3}}}')


def test_a_checkpoint_of_another_cluster_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its offsets are of queues that have the same names there."""
    cache = RouteCache(tmp_path / "engine" / ROUTES_FILE)
    cache.path.parent.mkdir()

    async def begin(broker: EmbeddedBroker) -> list[MessageQueue]:
        async with open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(
                broker.address, TopicConfig("orders", read_queue_nums=1, write_queue_nums=1)
            )
            return await Beginning(cluster, Operations(cluster), lambda: False).all_queues(["orders"], "billing", cache)

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            queues = await begin(one)
            with pytest.raises(
                UsageError, match=f"{tmp_path} is of another cluster: the last run was at {one.name_server}"
            ):
                await begin(two)
            assert await begin(one) == queues
            assert "%RETRY%billing" in cache.load().routes

    asyncio.run(scene())


def test_a_topic_that_is_new_to_the_checkpoint_begins_where_the_group_is_and_stays_there(tmp_path: Path) -> None:
    consumer = load({"consumer.group": "billing", "consumer.topics": "orders,extra"}, {}, None).consumer
    home = Home(tmp_path, "billing")
    orders, extra = (MessageQueue(topic, "embedded", 0) for topic in ("orders", "extra"))

    async def scene() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, operations = Admin(cluster), Operations(cluster)
            for topic in ("orders", "extra"):
                await admin.create_topic(broker.address, TopicConfig(topic, 1, 1))
                await cluster.route(topic)
            async with Producer(cluster) as producer:
                for _ in range(9):
                    await producer.send(OutgoingMessage("extra", b"1"))
            await admin.create_group(broker.address, SubscriptionGroupConfig("billing"))
            beginning = Beginning(cluster, operations, lambda: False)

            async def begins(*queues: MessageQueue) -> Any:
                return json.loads(await beginning.starting(home, consumer, queues))

            await operations.update_consumer_offset("billing", extra, 4)
            assert await begins(orders) == to_json({orders: 0})
            write_checkpoint(home)
            assert await begins(orders) == to_json({orders: 0}), "the checkpoint has it"
            assert await begins(orders, extra) == to_json({orders: 0, extra: 4})
            await operations.update_consumer_offset("billing", extra, 6)
            assert await begins(orders, extra) == to_json({orders: 0, extra: 4}), "until the checkpoint has it"

    asyncio.run(scene())


def test_queues_that_a_consumed_topic_got_meanwhile_begin_at_their_first_message(tmp_path: Path) -> None:
    """Only in a topic that is new does consumeFromWhere say where, here its default: the end."""
    consumer = load({"consumer.group": "billing", "consumer.topics": "orders,extra"}, {}, None).consumer
    home = Home(tmp_path, "billing")
    one, two, extra = (MessageQueue(*place) for place in (("orders", HERE, 0), ("orders", HERE, 1), ("extra", HERE, 0)))

    async def scene() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin = Admin(cluster)
            for topic in ("orders", "extra"):
                await admin.create_topic(broker.address, TopicConfig(topic, 2, 2))
                await cluster.route(topic)
            async with Producer(cluster) as producer:
                for queue in [two, extra] * 9:
                    await producer.send(OutgoingMessage(queue.topic, b"1"), selector=to_queue(queue))
            has_no_offset = ResponseCode.QUERY_NOT_FOUND
            broker.intercepts.append(
                lambda one: one.response(has_no_offset) if one.code == RequestCode.QUERY_CONSUMER_OFFSET else None
            )
            write_checkpoint(home)
            home.write_starting({one: 0})
            starting = await Beginning(cluster, Operations(cluster), lambda: False).starting(
                home, consumer, [one, two, extra]
            )
            assert json.loads(starting) == to_json({one: 0, two: 0, extra: 9})

    asyncio.run(scene())


@pytest.mark.parametrize(("group", "begins"), [(99, 0), (10, 9)])
def test_a_group_offset_beyond_the_end_is_not_where_a_stream_begins(tmp_path: Path, group: int, begins: int) -> None:
    """Another topic of that name has left it, or a broker has lost the end."""
    consumer = load({"consumer.group": "billing", "consumer.topics": "orders"}, {}, None).consumer
    queue = MessageQueue("orders", HERE, 0)

    async def scene() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(broker.address, TopicConfig("orders", 1, 1))
            operations = Operations(cluster)
            async with Producer(cluster) as producer:
                for _ in range(9):
                    await producer.send(OutgoingMessage("orders", b"1"))
            await Admin(cluster).create_group(broker.address, SubscriptionGroupConfig("billing"))
            await operations.update_consumer_offset("billing", queue, group)
            with structlog.testing.capture_logs() as lines:
                await Beginning(cluster, operations, lambda: False).starting(
                    Home(tmp_path, "billing"), consumer, [queue]
                )
            told = [(line["offset"], line["to"]) for line in lines if line["event"] == "goes_back"]
            assert (Home(tmp_path, "billing").starting_offsets(), told) == ({queue: begins}, [(group, begins)])

    asyncio.run(scene())
