"""A client of the broker's and the name server's port that writes and reads frames, and nothing by itself."""

from __future__ import annotations

import asyncio
import select

from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.remoting.headers import PullRequest, SendRequest

SECONDS = 60


class Client:
    """One connection; reads whatever comes."""

    read_s = SECONDS
    """How long a frame may take; None = the test bounds it."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.opaque = 0

    @classmethod
    async def open(cls, address, context=None):
        """`context`: of TLS."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host.strip("[]"), int(port), ssl=context))

    def write(self, code, header=None, body=b"", flag=0, serialization=Serialization.JSON):
        self.opaque += 1
        fields = header.to_fields() if header else {}
        self.writer.write(encode(Command(code, fields, body, self.opaque, flag, serialization=serialization)))
        return self.opaque

    async def read(self):
        async with asyncio.timeout(self.read_s):
            while (command := self.frames.next()) is None:
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self.frames.feed(data)
            return command

    async def call(self, *request, **more):
        opaque = self.write(*request, **more)
        answer = await self.read()
        assert answer.opaque == opaque
        return answer

    async def close(self):
        self.writer.close()
        await self.writer.wait_closed()


async def until(true):
    """Let the loop turn until it is so."""
    while True:
        await asyncio.sleep(0)
        if true():
            return


def send(body=b"x", queue_id=0):
    return RequestCode.SEND_MESSAGE, SendRequest("pg", "T", "TBW102", 4, queue_id, 0, 1, 0, None), body


def send_together(broker, clients):
    """One message each, with no turn of the loop in between; when the next one comes, all have come to the broker,
    however long the kernel takes."""
    for client in clients:
        client.write(*send())
    waiting = {each._transport.get_extra_info("socket").fileno() for each in broker._edge._connections.values()}
    while waiting:
        came, _, _ = select.select(waiting, [], [], SECONDS)
        assert came
        waiting.difference_update(came)


def pull(offset, suspend=False, most=32):
    flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend else 0)
    return RequestCode.PULL_MESSAGE, PullRequest("g", "T", 0, offset, most, flag, 0, 15_000, 0, "*")
