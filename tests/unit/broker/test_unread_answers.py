"""Answers that peers do not read are bounded over all connections, and whoever reads is served."""

from __future__ import annotations

import asyncio

import structlog

from rocketcrew.broker.edge import IDLE_SCAN_MS, UNREAD_IDLE_MS
from rocketcrew.broker.peer_bytes import PeerBytes
from rocketcrew.broker.server import EmbeddedBroker

from .wire_client import Client, pull, send, until

MIB = 1 << 20
SMALL_WANTED = 400  # answers of a sixteenth of that
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
        times = [1_700_000_000_000]
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            edge = broker._edge
            edge.unread = PeerBytes(5 * MIB)
            honest = await Client.open(broker.address)
            await honest.call(*send(b"x" * MIB))
            with structlog.testing.capture_logs() as lines:
                deaf = [await ask_and_not_read(broker) for _ in range(8)]
                await until(lambda: all(each.is_lagging for each in edge._connections.values() if each.channel != 1))
                times[0] += UNREAD_IDLE_MS
                for _ in range(WANTED):
                    assert (await honest.call(*pull(0, most=1))).code == 0
                await until(lambda: len(edge._connections) < 1 + len(deaf))
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


def test_of_those_that_are_too_many_only_who_reads_nothing_is_disconnected():
    """Steady readers were, every few seconds."""
    unread = PeerBytes(1_000)
    for channel in range(9):
        unread.note(10_000 if channel else 1, channel, 200)
    assert list(unread.take_largest(10_001, 10_000)) == [0]
    assert unread.even_share_bytes == 125
    unread.note(10_000, 9, 500)
    assert next(iter(unread.take_largest(10_002, 10_000))) == 9, "memory comes first where they are twice too many"
    assert unread.all_bytes <= 1_000


def test_above_the_bound_nobody_is_served_beyond_its_even_share_before_it_reads():
    async def story():
        async with EmbeddedBroker() as broker:
            edge = broker._edge
            edge.unread = PeerBytes(4 * MIB)
            honest = await Client.open(broker.address)
            await honest.call(*send(bytes(MIB // 16)))
            with structlog.testing.capture_logs() as lines:
                slow = [await Client.open(broker.address) for _ in range(8)]
                for client in slow:
                    client.writer.transport.pause_reading()
                    for _ in range(SMALL_WANTED):
                        client.write(*pull(0, most=1))
                await until(lambda: sum(each.is_lagging for each in edge._connections.values()) == len(slow))
                assert 4 * MIB < edge.unread.all_bytes <= 8 * MIB
                slow[0].writer.transport.resume_reading()
                for _ in range(SMALL_WANTED):
                    assert (await slow[0].read()).code == 0
                assert lines == []
            for client in slow:
                client.writer.transport.abort()
            await until(lambda: list(edge._connections) == [1])
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
