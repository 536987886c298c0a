"""At the edge, over a real connection: a pull's answer that finds no room does not hold up a send-back's answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.remoting.headers import PullResponse
from rocketcrew.remoting.stored import decode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.slab import UNIT_BYTES
from rocketcrew.supervisor.member.pulls import Pulls
from rocketcrew.supervisor.member.recreated import LastBodies
from rocketcrew.supervisor.member.send_back import SendBacks
from rocketcrew.supervisor.member.tails import Tails

from .conftest import TOPIC, record

if TYPE_CHECKING:
    from .conftest import Bench

UNITS = 8
FIRST_BYTES, SECOND_BYTES = 3 * UNIT_BYTES - 1_000, 6 * UNIT_BYTES - 1_000


class OneBroker:
    """As much of a cluster as pulls and send-backs look at."""

    def __init__(self, remoting: Remoting, address: str) -> None:
        self.remoting = remoting
        self._address = address

    def broker_address(self, *_: object, **__: object) -> str:
        return self._address

    async def address_of(self, *_: object, **__: object) -> str:
        return self._address


class Peer:
    """A broker that answers when it has all that it waits for, in its own order."""

    def __init__(self) -> None:
        self.answered = 0
        self.requests: list[Command] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            frames.feed(data)
            while (command := frames.next()) is not None:
                self.requests.append(command)
            self._answer(writer)
            await writer.drain()
        writer.close()

    def _answer(self, writer: asyncio.StreamWriter) -> None:
        codes = {request.code: request for request in self.requests}
        pull, back = codes.get(RequestCode.PULL_MESSAGE), codes.get(RequestCode.CONSUMER_SEND_MSG_BACK)
        if self.answered == 0 and pull is not None:
            self._send(writer, self._pulled(pull, 0))
        elif self.answered == 1 and pull is not None and back is not None and len(self.requests) == 2:
            # The head is a pull's answer for which there is no room; what would make room stands behind it.
            self._send(writer, self._pulled(pull, 1), back.response(ResponseCode.SUCCESS))
        elif self.answered == 2 and pull is not None:
            self._send(writer, self._pulled(pull, 1))

    def _pulled(self, request: Command, offset: int) -> Command:
        header = PullResponse(0, offset + 1, 0, 9)
        return request.response(
            ResponseCode.SUCCESS, header.to_fields(), record(offset, SECOND_BYTES if offset else FIRST_BYTES)
        )

    def _send(self, writer: asyncio.StreamWriter, *answers: Command) -> None:
        self.answered += 1
        self.requests.clear()
        writer.write(b"".join(encode(answer) for answer in answers))


async def play(bench: Bench) -> None:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    remoting = Remoting()
    try:
        port = server.sockets[0].getsockname()[1]
        cluster = cast("Cluster", OneBroker(remoting, f"127.0.0.1:{port}"))
        operations = Operations(cluster)
        settings = load({"consumer.group": "g", "consumer.topics": TOPIC}, {}, None).consumer
        answered: asyncio.Queue[None] = asyncio.Queue()
        running: set[asyncio.Task[None]] = set()
        pulls = Pulls(
            cluster, LastBodies(operations), Tails(operations, "g"), bench.core, memoryview(bench.view), settings,
            {TOPIC: SubscriptionData.of(TOPIC, "*", 1)}, lambda _: False, lambda: bench.now, lambda _code: None,
            lambda work, _action: running.add(asyncio.ensure_future(work)), lambda error, _action: pytest.fail(str(error)),
            lambda: answered.put_nowait(None),
        )  # fmt: skip

        async def pull() -> None:
            pulls.pull(bench.one(act.Pull))
            await answered.get()

        backs = SendBacks(cluster, operations, "g", -1)

        async def send_back(action: act.SendBack) -> None:
            bytes_of_it = bytes(bench.view[action.start : action.end])
            accepted = await backs.send(action, bytes_of_it, decode_message(bytes_of_it))
            bench.core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, accepted), bench.now)

        bench.worker("w1")
        bench.open(0)
        await pull()
        (chunk,) = bench.dispatched()
        # There is little room, and yet a small answer was hoped for: the next pull is on its way.
        second = asyncio.ensure_future(pull())
        bench.done(chunk, failures=[(0, 0, "no")])
        await asyncio.gather(second, send_back(bench.one(act.SendBack)))
        assert bench.counters.pull_bodies_dropped == 1
        assert bench.counters.sent_back_messages == 1
        await pull()
        (chunk,) = bench.dispatched()
        bench.done(chunk)
        assert bench.counters.done_messages == 1
        assert bench.persist() == [2]
        assert bench.slab.used_units == 0
    finally:
        await remoting.close()
        server.close()


def test_a_full_slab_does_not_stall_the_connection(make: type[Bench]) -> None:
    bench = make(units=UNITS)
    asyncio.run(asyncio.wait_for(play(bench), 30))
