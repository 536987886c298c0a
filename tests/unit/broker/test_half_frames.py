"""Frames that have not ended are bounded over all connections, and a slow producer is not who pays for it."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from rocketcrew.broker.peer_bytes import ALL_MAX_BYTES, PeerBytes
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FRAME_MAX, encode

from .wire_client import Client, send, until

MIB = 1 << 20
SLOW = 0  # its channel
MESSAGE_BYTES, STEP_BYTES, STEP_MS = 4 * MIB, 10_000, 100  # the largest message, at 100 KB a second


def note(halves, now_ms, channel, size_bytes):
    halves.note(now_ms, channel, size_bytes)
    return halves.take_largest(now_ms)


class Crowd:
    """Connections that send parts of frames, beside a producer that sends the largest message on a slow line."""

    def __init__(self):
        self.halves = PeerBytes()
        self.sizes = {}
        self.now_ms = 0
        self.ended = []
        self.most_bytes = 0

    def receive(self, channel, count):
        self.sizes[channel] = self.sizes.get(channel, 0) + count
        for ended in note(self.halves, self.now_ms, channel, self.sizes[channel]):
            self.ended.append(ended)
            del self.sizes[ended]
        self.most_bytes = max(self.most_bytes, self.halves.all_bytes)
        assert self.halves.all_bytes == sum(self.sizes.values())

    def send_slowly(self, meanwhile):
        while self.sizes.get(SLOW, 0) < MESSAGE_BYTES and SLOW not in self.ended:
            self.now_ms += STEP_MS
            self.receive(SLOW, STEP_BYTES)
            meanwhile()
        return SLOW not in self.ended


def test_peers_that_hold_memory_go_before_a_producer_on_a_slow_line():
    """They send most of the largest frame and stop; who is disconnected comes again at once."""
    crowd = Crowd()

    def meanwhile():
        for channel in range(1, 100):
            if channel not in crowd.sizes:
                crowd.receive(channel, FRAME_MAX - 1)

    assert crowd.send_slowly(meanwhile)
    assert len(crowd.ended) > 1_000
    assert crowd.most_bytes <= ALL_MAX_BYTES


@pytest.mark.parametrize(("peers", "step_bytes"), [(40, MIB), (50, 100_000)])
def test_peers_that_never_stop_to_send_go_before_it_too(peers, step_bytes):
    crowd = Crowd()

    def meanwhile():
        for channel in range(1, peers + 1):
            crowd.receive(channel, step_bytes)

    assert crowd.send_slowly(meanwhile)
    assert crowd.most_bytes <= ALL_MAX_BYTES


def test_many_small_ones_that_have_hung_go_before_it_too():
    crowd = Crowd()
    for channel in range(1, 6_000):
        crowd.receive(channel, 44_000)
    crowd.now_ms = 60_000

    def meanwhile():
        for channel in range(6_000, 6_300):
            if channel not in crowd.sizes:
                crowd.receive(channel, 100_000)

    assert crowd.send_slowly(meanwhile)
    assert crowd.ended
    assert crowd.most_bytes <= ALL_MAX_BYTES


def test_a_peer_that_has_as_much_as_before_has_sent_something():
    """Frames as long as what is read at once leave the same part of the next one each time."""
    halves = PeerBytes(5_000)
    note(halves, 59_000, 2, 3_000)
    for now_ms in range(0, 60_001, 100):
        note(halves, now_ms, 1, 1_000)
    assert list(note(halves, 60_000, 3, 1_500)) == [2]


def test_who_has_none_is_not_counted():
    halves = PeerBytes(1_000)
    assert note(halves, 0, 1, 0) == {}
    note(halves, 0, 1, 900)
    assert note(halves, 1, 1, 0) == {}
    note(halves, 2, 2, 900)
    halves.forget(2)
    halves.forget(2)
    assert (halves.all_bytes, note(halves, 3, 3, 1_000)) == (0, {})
    assert list(note(halves, 4, 3, 1_001)) == [3], "also whoever is alone"
    assert halves.all_bytes == 0


def test_connections_with_half_frames_are_ended_at_the_bound_and_others_served():
    async def story():
        async with EmbeddedBroker() as broker:
            edge = broker._edge
            edge.half_frames = PeerBytes(MIB)
            code, header, _ = send()
            frame = encode(Command(code, header.to_fields(), bytes(900_000), 7))
            honest = await Client.open(broker.address)
            with structlog.testing.capture_logs() as lines:
                holder = await Client.open(broker.name_server)
                holder.writer.write(frame[:800_000])
                await until(lambda: edge.half_frames.all_bytes == 800_000)
                honest.writer.write(frame[:400_000])
                assert await holder.read() is None
            honest.writer.write(frame[400_000:])
            assert (await honest.read()).code == 0
            assert edge.half_frames.all_bytes == 0
            honest.writer.write(frame[:100])
            await until(lambda: edge.half_frames.all_bytes == 100)
            await honest.close()
            await until(lambda: edge.half_frames.all_bytes == 0)
            (line,) = lines
            assert (line["event"], line["held_bytes"]) == ("connection.half_frame_ended", 800_000)

    asyncio.run(story())
