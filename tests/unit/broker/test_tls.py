"""TLS at both ports: one buffer for all connections, places of handshakes, slow, rude and silent peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl

import pytest
import trustme

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.edge import CONNECTIONS_MAX, HANDSHAKES_MAX, LAG_MS, Edge
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.broker.tls import PIECE_BYTES
from rocketcrew.remoting.codes import FLAG_ONEWAY
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import encode

from . import wire_client
from .wire_client import pull, send, until

SECONDS = 300


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """The broker's file, and a context of clients that trust it."""
    folder = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return str(folder / "server.pem"), context


class Client(wire_client.Client):
    """One connection by TLS. A story has its time as a whole."""

    read_s = None


def run(story):
    asyncio.run(asyncio.wait_for(story(), SECONDS))


def broker_with(papers, **more):
    return EmbeddedBroker(config=BrokerConfig(tls_cert_path=papers[0]), **more)


def test_connections_share_their_buffers(papers):
    """Each had 256 KiB of its own: 2,000 idle ones took 500 MB."""

    async def story():
        async with broker_with(papers) as broker:
            clients = [await Client.open(broker.address, papers[1]) for _ in range(3)]
            for client in clients:
                await client.call(*send())
            edge: Edge = broker._edge
            outer = [connection._transport for connection in edge._connections.values()]
            assert {id(one.get_buffer(-1).obj) for one in outer} == {id(edge.ciphered_buffer.obj)}
            assert {id(one._connection.get_buffer(-1).obj) for one in outer} == {id(edge.read_buffer.obj)}
            for client in clients:
                await client.close()

    run(story)


def test_openssl_gets_little_at_once(papers):
    """Its buffer never shrinks: with reads of 64 KiB each connection that had been used kept 69 KiB for ever."""

    async def story():
        async with broker_with(papers) as broker:
            client = await Client.open(broker.address, papers[1])
            assert (await client.call(*send(b"x" * 1_000_000))).code == 0
            (connection,) = broker._edge._connections.values()
            assert len(connection._transport.get_buffer(-1)) <= PIECE_BYTES
            assert connection._transport._incoming.pending == 0, "all of it was taken out again"
            await client.close()

    run(story)


def test_requests_of_any_size_and_many_at_once(papers):
    """Larger than every buffer, and cut anywhere; answers too."""

    async def story():
        async with broker_with(papers) as broker:
            client = await Client.open(broker.address, papers[1])
            sizes = [1, 2, 16_383, 16_384, 65_536, 300_000, 1_000_000]
            for size in sizes:
                client.write(*send(b"x" * size))
            for _ in range(500):
                client.write(*send(b"y", queue_id=1))
            for _ in range(len(sizes) + 500):
                assert (await client.read()).code == 0
            for offset, size in enumerate(sizes):
                answer = await client.call(*pull(offset, most=1))
                assert answer.code == 0
                assert bytes(answer.body).count(b"x") >= size
            assert broker.core.state.store.max_offset("T", 1) == 500
            await client.close()
            await until(lambda: not broker._edge._connections)

    run(story)


def test_one_byte_at_a_time(papers):
    async def story():
        async with broker_with(papers) as broker:
            client = await Client.open(broker.address, papers[1])
            code, header, body = send(b"slow")
            for byte in encode(Command(code, header.to_fields(), body, 7)):
                client.writer.write(bytes((byte,)))
                await client.writer.drain()
            assert (await client.read()).opaque == 7
            await client.close()

    run(story)


def test_a_peer_that_does_not_read_is_not_read_either_and_is_disconnected_in_the_end(papers):
    async def story():
        times = [1_700_000_000_000]
        async with broker_with(papers, clock_ms=lambda: times[0]) as broker:
            client, other = [await Client.open(broker.address, papers[1]) for _ in range(2)]
            for _ in range(2):
                await client.call(*send(b"x" * 1_000_000))
            client.writer.transport.pause_reading()
            for _ in range(60):
                client.write(*pull(0, most=1))
            lagging = broker._edge._connections[1]
            await until(lambda: lagging.is_lagging)
            for _ in range(20):
                assert (await other.call(*send(queue_id=1))).code == 0
            served = broker.core.state.get_count
            assert served < 40, "not all were served"
            client.writer.transport.resume_reading()
            for _ in range(60):
                assert (await client.read()).code == 0
            client.writer.transport.pause_reading()
            for _ in range(60):
                client.write(*pull(0, most=1))
            await until(lambda: lagging.is_lagging)
            began_ms = times[0]
            while 1 in broker._edge._connections:  # its kernel may take some more at first
                times[0] += 12_000
                assert (await other.call(*send(queue_id=1))).code == 0
                broker._edge._tick()
                await asyncio.sleep(0)
            assert times[0] - began_ms > LAG_MS
            client.writer.transport.abort()
            await other.close()

    run(story)


def test_a_goodbye_ends_a_connection_and_so_does_a_cut_or_garbage(papers):
    """Only that one."""

    async def story():
        async with broker_with(papers) as broker:
            edge = broker._edge
            polite, rude, forging = [await Client.open(broker.address, papers[1]) for _ in range(3)]
            for client in (polite, rude, forging):
                assert (await client.call(*send())).code == 0
            await polite.close()
            rude.write(*send())
            rude.writer.transport.abort()
            os.write(forging.writer.transport.get_extra_info("socket").fileno(), b"no record of TLS" * 10)
            with contextlib.suppress(OSError):
                assert await forging.read() is None
            forging.writer.transport.abort()
            await until(lambda: not edge._connections)
            assert broker.core.state.store.max_offset("T", 0) >= 3
            late = await Client.open(broker.address, papers[1])
            assert (await late.call(*send())).code == 0
        assert await late.read() is None, "a stop ends connections"
        await late.close()

    run(story)


def test_clients_that_connect_at_once_are_not_taken_for_peers_that_hang():
    """Of more than 256 of them the oldest were disconnected."""

    async def story():
        ended = []
        async with EmbeddedBroker() as broker:
            broker._edge.connections_max = CONNECTIONS_MAX
            assert all(broker._edge.begin_handshake(number, lambda: ended.append(1)) for number in range(2_000))
            assert not ended

    run(story)


def test_requests_before_a_goodbye_are_all_served(papers):
    """Of 1,000 that nobody waits for, those after the first round were dropped, as the goodbye came with the same read."""

    async def story():
        async with broker_with(papers) as broker:
            client = await Client.open(broker.address, papers[1])
            assert (await client.call(*send())).code == 0
            code, header, body = send()
            frame = encode(Command(code, header.to_fields(), body, 7, FLAG_ONEWAY))
            client.writer.write(frame * 1_000)
            await client.close()
            await until(lambda: not broker._edge._connections)
            assert broker.core.state.store.max_offset("T", 0) == 1_001

    run(story)


def test_a_connection_beyond_all_places_is_closed(papers):
    async def story():
        async with broker_with(papers) as broker:
            edge = broker._edge
            client = await Client.open(broker.address, papers[1])
            assert (await client.call(*send())).code == 0
            edge.connections_max = 1
            with pytest.raises(OSError):  # noqa: PT011  which one depends on how far the handshake came
                await Client.open(broker.address, papers[1])
            assert (await client.call(*send())).code == 0
            assert not edge.handshakes
            await client.close()

    run(story)


def test_handshakes_have_places_and_the_oldest_gives_way():
    """A peer that never ended its handshake had no place, so that any number of them could take all descriptors."""

    async def story():
        ended = []

        def begin(name):
            return edge.begin_handshake(name, lambda: ended.append(name))

        async with EmbeddedBroker() as broker:
            edge: Edge = broker._edge
            edge.connections_max = CONNECTIONS_MAX  # this process may open fewer files
            assert all(begin(number) for number in range(HANDSHAKES_MAX))
            assert begin("one more")
            assert ended == [0]
            assert list(edge.handshakes) == [*range(1, HANDSHAKES_MAX), "one more"]
            edge.end_handshake(7)
            edge.connections_max = HANDSHAKES_MAX - 1
            assert begin("beyond all places")
            assert ended == [0, 1]
            edge.handshakes.clear()
            edge._connections.update({-number: number for number in range(edge.connections_max)})
            assert not begin("no room")
            edge._connections.clear()
            assert begin("room again")
        assert not begin("after the stop")
        assert ended == [0, 1, "room again"], "a stop ends handshakes"

    run(story)
