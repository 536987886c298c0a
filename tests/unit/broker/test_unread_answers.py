"""Answers that peers do not read are bounded over all connections, and whoever reads is served."""

from __future__ import annotations

import asyncio

import structlog

from rocketcrew.broker.edge import IDLE_SCAN_MS
from rocketcrew.broker.peer_bytes import PeerBytes
from rocketcrew.broker.server import EmbeddedBroker

from .wire_client import Client, pull, send, until

MIB = 1 << 20
WANTED = 60  # answers of a megabyte: more than kernels take


async def ask_and_not_read(broker):
    client = await Client.open(broker.address)
    client.writer.transport.pause_reading()
    for _ in range(WANTED):
        client.write(*pull(0, most=1))
    return client


def test_who_does_not_read_is_disconnected_when_all_answers_are_too_many():
    """Eighty such connections held 107 MB, and ten thousand would hold as much more."""

    async def story():
        async with EmbeddedBroker() as broker:
            edge = broker._edge
            edge.unread = PeerBytes(5 * MIB)
            honest = await Client.open(broker.address)
            await honest.call(*send(b"x" * MIB))
            with structlog.testing.capture_logs() as lines:
                deaf = [await ask_and_not_read(broker) for _ in range(8)]
                await until(lambda: len(edge._connections) < 1 + len(deaf))
                for _ in range(WANTED):
                    assert (await honest.call(*pull(0, most=1))).code == 0
                await until(lambda: all(each.is_lagging for each in edge._connections.values() if each.channel != 1))
            unread = [each._transport.get_write_buffer_size() for each in edge._connections.values()]
            assert sum(unread) <= edge.unread.all_bytes <= 5 * MIB
            assert {line["event"] for line in lines} == {"connection.unread_ended"}
            assert 1 in edge._connections
            for client in deaf:
                client.writer.transport.abort()
            await until(lambda: list(edge._connections) == [1])
            assert edge.unread.all_bytes == 0
            await honest.close()

    asyncio.run(story())


def test_what_a_peer_has_read_since_is_not_counted():
    async def story():
        times = [1_700_000_000_000]
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            edge = broker._edge
            client = await Client.open(broker.address)
            await client.call(*send(b"x" * MIB))
            late = await ask_and_not_read(broker)
            await until(lambda: edge.unread.all_bytes > MIB)
            late.writer.transport.resume_reading()
            for _ in range(WANTED):
                assert (await late.read()).code == 0
            times[0] += IDLE_SCAN_MS
            edge._tick()
            assert edge.unread.all_bytes == 0
            await late.close()
            await client.close()

    asyncio.run(story())
