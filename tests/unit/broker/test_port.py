"""Ports that speak TLS: places of handshakes, and what goes wrong before a connection is there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import ssl

import pytest
import structlog

from rocketcrew.broker.edge import HANDSHAKES_MAX, Edge, Port
from rocketcrew.broker.server import EmbeddedBroker


def test_handshakes_have_places_and_the_oldest_gives_way():
    """A peer that never ended its handshake had no place, so that any number of them could take all descriptors."""

    async def story():
        ended = []

        def begin(name):
            return edge.begin_handshake(name, lambda: ended.append(name))

        async with EmbeddedBroker() as broker:
            edge: Edge = broker._edge
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

    asyncio.run(story())


@contextlib.asynccontextmanager
async def port_of(edge, bound):
    """A port that takes connections of `bound`, and speaks TLS."""
    bound.setblocking(False)
    port = Port(edge, bound, edge.broker_connection, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    try:
        yield port
    finally:
        await port.close()


class Odd(socket.socket):
    """Accepts what is no stream: its handshake cannot even begin."""

    taken = None

    def accept(self):
        if self.taken is not None:
            raise BlockingIOError
        self.taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return self.taken, ("127.0.0.1", 1)


def test_a_handshake_that_fails_for_a_reason_of_ours_gives_its_place_back():
    async def story():
        heard, odd = [], Odd()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context["exception"]))
        async with EmbeddedBroker() as broker, port_of(broker._edge, odd) as port:
            for _ in range(10):
                await asyncio.sleep(0)
            assert odd.taken.fileno() >= 0
            assert not broker._edge.handshakes
            assert not port._shaking
        odd.taken.close()
        del port
        gc.collect()
        assert [type(error) for error in heard] == [ValueError], "and it is no secret"

    asyncio.run(story())


class Refusing(socket.socket):
    """Refuses each connection with one error; after some of them the test has failed."""

    number = errno.EPROTO
    refused = 0

    def accept(self):
        self.refused += 1
        assert self.refused < 100, "nobody else had a turn"
        raise OSError(self.number, "refused")


@pytest.mark.parametrize("number", [errno.EPROTO, errno.EMFILE, errno.EBADF, errno.ECONNABORTED])
def test_an_error_of_accept_that_comes_again_leaves_the_others_their_turn(number):
    """Only those of missing descriptors made a pause: any other one took the loop for ever."""

    async def story():
        bound = Refusing()
        bound.number = number
        with structlog.testing.capture_logs() as lines:
            async with EmbeddedBroker() as broker, port_of(broker._edge, bound) as port:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not port._task.done()
        peer_is_gone = number == errno.ECONNABORTED
        assert bound.refused > 1 if peer_is_gone else bound.refused == 1
        said = [line for line in lines if line["event"] == "connection.not_accepted"]
        assert len(said) == (0 if peer_is_gone else 1)

    asyncio.run(story())
