"""Frames on their way out of a connection: who waits for room goes on in its turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from rocketcrew.client.outbox import Outbox
from rocketcrew.remoting.command import Command

from .conftest import PATIENT_MS

HIGH_BYTES = 1000


class Takes(asyncio.Transport):
    """Takes everything at once."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


class Writers:
    """Each puts one frame, with what it finds of room."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.outbox = Outbox(self.loop, HIGH_BYTES)
        self.outbox.open(Takes())
        self.order: list[int] = []
        self.late: list[int] = []
        self.most_bytes = 0

    async def write(self, number: int, *, left_s: float = PATIENT_MS / 1000, fails: bool = False) -> None:
        body = b"x" * 400
        if self.outbox.full and not await self.outbox.wait_for_room(self.loop.time() + left_s, len(body)):
            self.late.append(number)
            return
        self.order.append(number)
        if not fails:
            self.outbox.put(Command(310, {}, body=body))
        self.most_bytes = max(self.most_bytes, self.outbox.unsent_bytes)

    def begin(self, number: int, *, left_s: float = PATIENT_MS / 1000, fails: bool = False) -> asyncio.Task[None]:
        return self.loop.create_task(self.write(number, left_s=left_s, fails=fails))


async def test_who_waits_for_room_keeps_its_place_before_those_that_come_later() -> None:
    writers = Writers()
    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        tasks.append(writers.begin(number))
        if number % 5 == 4:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert writers.order == list(range(60))
    assert writers.most_bytes < HIGH_BYTES + 700
    assert writers.outbox.writes < 60, "several leave in one turn"
    assert not writers.outbox.full


async def test_those_that_wait_longest_go_on_when_the_transport_does() -> None:
    writers = Writers()
    writers.outbox.pause()
    tasks = [writers.begin(0), writers.begin(1, left_s=0), writers.begin(2)]
    await asyncio.wait([tasks[1]])
    tasks[0].cancel()
    writers.outbox.resume()
    tasks.append(writers.begin(3))
    await asyncio.wait(tasks)
    assert (writers.late, writers.order) == ([1], [2, 3])


async def test_where_the_connection_ends_all_go_on() -> None:
    writers = Writers()
    writers.outbox.pause()
    tasks = [writers.begin(number, fails=True) for number in range(20)]
    await asyncio.sleep(0)
    writers.outbox.close()
    await asyncio.gather(*tasks)
    assert writers.order == list(range(20))


@pytest.mark.parametrize("seed", range(50))
async def test_nobody_waits_for_ever_whatever_others_do_with_their_turn(seed: int) -> None:
    """They are cancelled, fail, or their time is over."""
    chance, writers = random.Random(seed), Writers()
    tasks: list[asyncio.Task[None]] = []
    for number in range(100):
        left_s = chance.choice((0, PATIENT_MS / 1000, PATIENT_MS / 1000))
        tasks.append(writers.begin(number, left_s=left_s, fails=chance.random() < 0.3))
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        if chance.random() < 0.1:
            writers.outbox.pause()
        if chance.random() < 0.2:
            writers.outbox.resume()
    writers.outbox.resume()
    await asyncio.wait(tasks)
    assert writers.order == sorted(writers.order)
    assert not writers.outbox.full
