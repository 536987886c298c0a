"""Frames that no honest peer sends, made of recorded genuine ones; and the connections that carry them to a broker.

From one seed always the same frames. What cannot be read as a frame ends its connection, so it is the last of its burst: all
frames before it are served.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
from harness import Broker

from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.frame import FrameReader, decode, encode

WIRE = Path(__file__).parent.parent / "unit" / "remoting" / "wire"
CODES = sorted(int(code) for code in RequestCode)
WORDS = ("", "0", "-1", "1", "2147483647", "-2147483648", "9223372036854775807", "1e9", "true", "null", "é", "\x00",
         "\x01\x02", "%RETRY%g", "a" * 300, "a" * 40_000, "T", "*", "a > 1", "(" * 500, "[]", "{}")  # fmt: skip
BODIES = (b"", b"{}", b"[" * 5000, b'{"a":' * 3000, b"\xff" * 100, b"\x00" * 5000, b'{"mqSet":[{"queueId":1e99}]}')
BURST = 16
SENTINEL = 1 << 30
ANSWER_S = 120.0
SLOW_S = 0.05
CONNECTIONS = 4
SLOW = 20
"""Connections that stay half-open or send a byte at a time, at each port."""
MIB = 1 << 20


def recorded() -> list[bytes]:
    """Whole frames of genuine clients and servers, requests and answers."""
    lines = [line for file in sorted(WIRE.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [base64.b64decode(json.loads(line)["frame"]) for line in lines]


def is_frame(data: bytes) -> bool:
    """Whether a reader takes exactly one frame out of it."""
    reader = FrameReader()
    try:
        reader.feed(data)
        return reader.next() is not None and reader.buffered_bytes == 0
    except RocketcrewError:
        return False


class Mutations:
    """An endless source of frames."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._genuine = [frame for frame in recorded() if len(frame) < 20_000]
        self._commands = [decode(frame) for frame in self._genuine]

    def frame(self) -> bytes:
        random = self._random
        if random.random() < 0.9:
            return self._other_words()
        data = bytearray(random.choice(self._genuine))
        for _ in range(random.randint(1, 4)):
            self._scramble(data)
        if random.random() < 0.9:
            data[:4] = (len(data) - 4).to_bytes(4, "big")
        return bytes(data)

    def burst(self) -> list[bytes]:
        """Some frames for one connection."""
        frames: list[bytes] = []
        while len(frames) < BURST:
            frames.append(self.frame())
            if not is_frame(frames[-1]):
                break
        return frames

    def _other_words(self) -> bytes:
        """A frame in good order with a header or a body that is not."""
        random = self._random
        command = random.choice(self._commands)
        fields = dict(command.fields)
        for _ in range(random.randint(0, 3)):
            name = random.choice([*fields, "topic", "queueId", "bname"])
            fields[name] = random.choice(WORDS)
            if random.random() < 0.2:
                del fields[name]
        code = random.choice(CODES) if random.random() < 0.5 else command.code
        body = command.body if random.random() < 0.6 else random.choice(BODIES)
        if random.random() < 0.2:
            body = random.choice(self._commands).body
        flag = random.choice((0, 0, 0, 1, 2, 3, -1))
        made = Command(code, fields, body, random.randrange(SENTINEL), flag, serialization=command.serialization)
        try:
            return encode(made)
        except RocketcrewError:  # too long for a binary header
            return random.choice(self._genuine)

    def _scramble(self, data: bytearray) -> None:
        """One change of bytes, of the lengths too."""
        random = self._random
        at = random.randrange(len(data))
        match random.randrange(6):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                data[at : at + random.randint(1, 8)] = random.randbytes(random.randint(0, 8))
            case 2:
                del data[max(9, at) :]
            case 3:
                data += random.choice(self._genuine)[: random.randint(1, 5000)]
            case 4:  # the header's length, and how it is written
                data[4:8] = random.randbytes(4) if random.random() < 0.5 else (len(data) + at).to_bytes(4, "big")
            case _:  # what follows it
                data[:4] = random.choice((0, 4, 5, 1 << 24, (1 << 31) - 1, 1 << 31, at)).to_bytes(4, "big")
        data += bytes(max(0, 9 - len(data)))


@dataclass
class Attack:
    """What was sent: `frames` in all; of `bursts` of readable frames alone so many were `answered` to their end."""

    frames: int = 0
    bursts: int = 0
    answered: int = 0


async def attack(port: int, mutations: Mutations, most: int, sent: Attack) -> None:
    """Send frames until there are so many, a connection for each burst. Raises TimeoutError when a burst gets no end."""
    while sent.frames < most:
        frames = mutations.burst()
        sent.frames += len(frames)
        sent.bursts += is_frame(frames[-1])
        async with asyncio.timeout(ANSWER_S):
            good = await send_burst(port, frames)
        sent.answered += good


async def send_burst(port: int, frames: list[bytes]) -> bool:
    """Whether the connection was still good for a question after them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        question = encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}, opaque=SENTINEL))
        ends_well = is_frame(frames[-1])
        writer.write(b"".join(frames) + (question if ends_well else b""))
        if not ends_well:
            with contextlib.suppress(OSError):  # the broker has closed it already
                writer.write_eof()
        answers = FrameReader()
        while data := await reader.read(1 << 16):
            answers.feed(data)
            while (answer := answers.next()) is not None:
                if answer.is_response and answer.opaque == SENTINEL:
                    return True
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return False


async def linger(port: int, frame: bytes, done: asyncio.Event) -> None:
    """A peer that sends half a frame, then a byte in a while, until `done`."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    half = len(frame) // 2
    writer.write(frame[:half])
    for byte in frame[half:-1]:
        writer.write(bytes((byte,)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), SLOW_S)
            break
    await done.wait()
    writer.transport.abort()


async def hostile_rounds(
    broker: Broker, seed: int, most: int, rounds: int, send: Callable[[int], None]
) -> tuple[Attack, int]:
    """All frames, and in each of the rounds of them `send`; and the most memory after a round, in MiB."""
    found, done, peak = Attack(), asyncio.Event(), 0
    process = psutil.Process(broker.child.pid)
    frames = Random(seed).choices(recorded(), k=SLOW)
    ports = broker.port, broker.name_server_port
    async with asyncio.TaskGroup() as tasks:
        for port in ports:
            for frame in frames:
                tasks.create_task(linger(port, frame, done))
        mutations = [Mutations(seed + number) for number in range(CONNECTIONS)]
        for number in range(1, rounds + 1):
            # Three of four connections go to the broker's port.
            async with asyncio.TaskGroup() as round_tasks:
                for index, source in enumerate(mutations):
                    round_tasks.create_task(attack(ports[index == 0], source, most * number // rounds, found))
                round_tasks.create_task(asyncio.to_thread(send, number))
            peak = max(peak, process.memory_info().rss // MIB)
        done.set()
    return found, peak
