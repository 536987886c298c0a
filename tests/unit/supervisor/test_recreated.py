"""Deleted topics and offsets that go backwards, against the embedded broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.supervisor.member.recreated import CLOCKS_APART_MS, LastBodies, deleted_queues

from .conftest import Bench

TOPIC = "orders"
MQ = MessageQueue(TOPIC, "embedded", 0)
TOPIC_CONFIG = TopicConfig(TOPIC, read_queue_nums=1, write_queue_nums=1)


def read_to(offset: int) -> Mapping[MessageQueue, ProcessQueue]:
    """Our one queue, read so far."""
    pq = ProcessQueue(1, MQ, Bench().core.assigning)
    pq.state, pq.next_offset = QueueState.ASSIGNED, offset
    return {MQ: pq}


async def send(cluster: Cluster, count: int) -> None:
    producer = Producer(cluster, "senders")
    for _ in range(count):
        await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(MQ))


def test_a_queue_of_a_deleted_topic_is_found_once_and_an_unread_one_never() -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin = Admin(cluster)
            await admin.create_topic(broker.address, TOPIC_CONFIG)
            await cluster.route(TOPIC)
            await cluster.refresh()
            assert await deleted_queues(cluster, read_to(5)) == []
            await admin.delete_topic(broker.address, TOPIC)
            await cluster.refresh()
            assert cluster.without_route == {TOPIC}
            assert await deleted_queues(cluster, read_to(5)) == [MQ]
            assert await deleted_queues(cluster, read_to(0)) == []
            await admin.create_topic(broker.address, TOPIC_CONFIG)
            await cluster.refresh()
            assert cluster.without_route == set()

    asyncio.run(run())


def test_a_route_that_is_missing_while_the_broker_has_the_topic_means_nothing() -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin = Admin(cluster)
            await admin.create_topic(broker.address, TOPIC_CONFIG)
            await cluster.route(TOPIC)
            await admin.delete_route(TOPIC)
            await cluster.refresh()
            assert cluster.without_route == {TOPIC}
            assert await deleted_queues(cluster, read_to(5)) == []

    asyncio.run(run())


def test_an_offset_that_is_corrected_backwards_goes_on_at_the_first_message_since_our_last_body() -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(broker.address, TOPIC_CONFIG)
            await send(cluster, 3)
            last = LastBodies(Operations(cluster))
            assert await last.corrected(MQ, 9, 3, end=3) == 3  # nothing known
            last.note(MQ, encode_message(StoredMessage(TOPIC, b"x", store_timestamp_ms=1000)))
            assert await last.corrected(MQ, 9, 3, end=3) == 0  # all three are newer
            assert await last.corrected(MQ, 9, 3, end=-1) == 0  # it does not say where it ends
            last.keep([MQ])
            assert await last.corrected(MQ, 9, 3, end=3) == 0
            last.keep([])
            assert await last.corrected(MQ, 9, 3, end=3) == 3

    asyncio.run(run())


@pytest.mark.parametrize("told", ["deleted", "reset forwards", "reset backwards", "by an administrator"])
def test_what_was_passed_over_on_purpose_does_not_come_again_where_the_broker_loses_its_end(told: str) -> None:
    """The newest body is older than what was passed over."""
    clock_ms = time.time_ns() // 1_000_000 + 2 * CLOCKS_APART_MS

    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(broker.address, TOPIC_CONFIG)
            await send(cluster, 3)
            last = LastBodies(Operations(cluster), lambda: clock_ms)
            last.note(MQ, encode_message(StoredMessage(TOPIC, b"x", store_timestamp_ms=1000)))
            if told == "deleted":
                assert await last.corrected(MQ, 1, 3, end=9) == 3
            elif told == "reset forwards":
                assert await last.corrected(MQ, 4, 9, end=9) == 9
                assert await last.corrected(MQ, 9, 9, end=3) == 9
            elif told == "reset backwards":
                assert await last.corrected(MQ, 4, 3, end=4) == 3
            else:
                last.passed(MQ)
            assert await last.corrected(MQ, 4, 3, end=3) == 3

    asyncio.run(run())


def test_a_queue_that_was_made_again_before_anything_came_of_it_goes_on_at_what_is_new() -> None:
    """An idle member: its offset is far above what the new queue has, and it has seen no body in this life."""
    clock_ms = [time.time_ns() // 1_000_000 - 3_600_000]

    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(broker.address, TOPIC_CONFIG)
            last = LastBodies(Operations(cluster), lambda: clock_ms[0])
            last.begin(MQ)
            clock_ms[0] += 7_200_000
            last.begin(MQ)
            await send(cluster, 3)
            assert await last.corrected(MQ, 300, 3, end=3) == 0
            last.keep([])
            clock_ms[0] += CLOCKS_APART_MS
            last.begin(MQ)
            assert await last.corrected(MQ, 300, 3, end=3) == 3, "it has lost its end: what was there is older"

    asyncio.run(run())
