from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.workers.link import (
    BACKLOG_PACKETS_MAX,
    LinkClosedError,
    StreamFramer,
    SupervisorLink,
    Transport,
    WorkerLink,
    choose_transport,
    link_pair,
)
from rocketcrew.workers.packets import PACKET_MAX_BYTES

Pair = tuple[SupervisorLink, WorkerLink]


@pytest.fixture(params=list(Transport))
def transport(request: pytest.FixtureRequest) -> Transport:
    kind: Transport = request.param
    return kind


@pytest.fixture
def pair(transport: Transport) -> Iterator[Pair]:
    with Connected(transport) as (ours, theirs):
        yield ours, theirs


class Connected:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        ours, sock = link_pair(self._transport)
        theirs = WorkerLink(sock, self._transport)
        self._stack.callback(ours.close)
        self._stack.callback(theirs.close)
        return ours, theirs

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def drain(link: WorkerLink) -> list[bytes]:
    found: list[bytes] = []
    while (packet := link.receive()) is not None:
        found.append(bytes(packet))
    return found


def test_packets_stay_apart_in_both_directions(pair: Pair) -> None:
    ours, theirs = pair
    for packet in (b"a", b"bc", b"def"):
        assert ours.send(packet)
        theirs.send(packet * 2)
    assert drain(theirs) == [b"a", b"bc", b"def"]
    assert ours.receive() == [b"aa", b"bcbc", b"defdef"]
    assert ours.receive() == []


def test_a_single_receive_is_enough_for_one_packet(pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(b"one")
    assert ours.receive(1) == [b"one"]


def test_the_largest_packet_passes(pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(b"x" * PACKET_MAX_BYTES)
    assert ours.receive() == [b"x" * PACKET_MAX_BYTES]
    assert ours.send(b"y" * PACKET_MAX_BYTES)
    assert drain(theirs) == [b"y" * PACKET_MAX_BYTES]


def test_a_packet_above_the_bound_is_a_bug_of_ours(pair: Pair) -> None:
    with pytest.raises(ValueError, match="at most"):
        pair[1].send(b"x" * (PACKET_MAX_BYTES + 2_000))


def test_the_worker_sees_the_end_after_what_was_sent(pair: Pair) -> None:
    ours, theirs = pair
    ours.send(b"last")
    ours.close()
    assert theirs.wait(None)
    assert theirs.gone()
    assert bytes(theirs.receive() or b"") == b"last"
    with pytest.raises(LinkClosedError):
        theirs.receive()
    with pytest.raises(LinkClosedError):
        theirs.send(b"x")


def test_the_supervisor_gets_what_a_dead_worker_had_sent(pair: Pair) -> None:
    ours, theirs = pair
    ours.send(b"never read")
    theirs.send(b"outcome")
    theirs.close()
    got: list[bytes] = []
    while not ours.closed:
        got += ours.receive()
    assert got == [b"outcome"]
    with pytest.raises(LinkClosedError):
        ours.send(b"x")


def test_a_living_link_is_not_gone(pair: Pair) -> None:
    ours, theirs = pair
    assert not theirs.gone()
    assert not theirs.wait(0)
    ours.send(b"x")
    assert theirs.wait(0)
    assert not theirs.gone()


def test_another_thread_may_ask_for_the_end_while_the_loop_waits(pair: Pair) -> None:
    """The one that reports beside a call, while it waits for a disk. With one poll object Python raises RuntimeError."""
    ours, theirs = pair
    begun = threading.Event()

    def loop() -> None:
        begun.set()
        theirs.wait(None)

    thread = threading.Thread(target=loop)
    thread.start()
    begun.wait()
    try:
        for _ in range(10_000):
            assert not theirs.gone()
            os.sched_yield()
    finally:
        ours.send(b"x")
        thread.join()


def test_what_the_kernel_does_not_take_waits_in_order(pair: Pair) -> None:
    ours, theirs = pair
    sent = 0
    while ours.send(b"%06d" % sent + b"x" * 50_000):
        sent += 1
    assert ours.backlog
    for extra in range(3):
        assert not ours.send(b"%06d" % (sent + 1 + extra))
    got: list[bytes] = []
    while not ours.flush():
        got += drain(theirs)
    got += drain(theirs)
    assert [int(packet[:6]) for packet in got] == list(range(sent + 4))
    assert ours.backlog == 0


def test_the_backlog_has_a_bound(pair: Pair) -> None:
    ours, _ = pair
    while ours.send(b"x" * 50_000):
        pass

    def overflow() -> None:
        for _ in range(BACKLOG_PACKETS_MAX + 1):
            ours.send(b"x")

    with pytest.raises(OverflowError):
        overflow()


def test_a_stream_carries_the_payload_inline() -> None:
    with Connected(Transport.STREAM) as (ours, theirs):
        payload = bytearray(b"p" * 1_000_000)
        done = ours.send(b"head", memoryview(payload))
        got = drain(theirs)
        while not done:
            done = ours.flush()
            got += drain(theirs)
        assert got == [b"head" + payload]


def test_the_slab_transport_leaves_the_payload_where_it_is() -> None:
    with Connected(Transport.SLAB) as (ours, theirs):
        ours.send(b"head", b"payload")
        assert drain(theirs) == [b"head"]


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.data())
def test_the_framer_does_not_care_how_bytes_arrive(many: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(packet).to_bytes(4, "little") + packet for packet in many)
    framer = StreamFramer()
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        framer.feed(stream[:size])
        stream = stream[size:]
        while (packet := framer.next()) is not None:
            found.append(packet)
    assert found == many


@pytest.mark.parametrize("length", [0, 101, 2**32 - 1])
def test_the_framer_refuses_lengths_that_cannot_be(length: int) -> None:
    framer = StreamFramer(frame_max_bytes=100)
    framer.feed(length.to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="worker link"):
        framer.next()


def test_transport_by_setting() -> None:
    assert choose_transport("stream") is Transport.STREAM
    assert choose_transport("slab") is Transport.SLAB
    assert choose_transport("auto") in Transport
    with pytest.raises(UsageError, match="auto, slab, stream"):
        choose_transport("pigeon")


def test_closing_twice_does_no_harm() -> None:
    makers: list[Callable[[], Pair]] = [Connected(kind).__enter__ for kind in Transport]
    for make in makers:
        ours, theirs = make()
        for link in (ours, theirs):
            link.close()
            link.close()
        assert ours.fileno() == -1


AFTER_ANOTHER_LIBRARY = """
import asyncio
import socket
import select
import threading
import _thread

import uvloop

from rocketcrew.workers import descriptors, link, own_thread

class Cooperative(socket.socket):
    def recv_into(self, *_args):
        raise AssertionError("it would wait for other greenlets")
    send = sendall = recv_into

def refuses(*_args):
    raise AssertionError("this is another library's")

ours, sock = link.link_pair(link.Transport.STREAM)
sock = Cooperative(fileno=sock.detach())
real_lock = _thread.allocate_lock
select.poll = socket.socket = _thread.allocate_lock = _thread.start_new_thread = refuses
theirs = link.WorkerLink(sock, link.Transport.STREAM)
assert theirs.receive() is None
assert not theirs.wait(0)
assert not theirs.gone()
theirs.send(b"1")
assert ours.receive(1) == [b"1"]
ran = []
thread = own_thread.OwnThread(lambda: ran.append(1))
thread.join(10)
assert ran == [1]
assert descriptors.SpareDescriptor().give_up()

class CooperativeLock:
    def __init__(self):
        self.real = real_lock()
        self.release = self.real.release
        self.locked = self.real.locked
    def acquire(self, *_args, **_options):
        return self.real.acquire(blocking=False) or refuses()
    def __enter__(self):
        return self.acquire()
    def __exit__(self, *_error):
        self.release()

threading.Lock = _thread.allocate_lock = CooperativeLock
from rocketcrew.client.loop_thread import LoopThread  # when the first message is sent

loop = LoopThread(begin=own_thread.OwnThread)
assert loop.run(asyncio.sleep(0, 1)) == 1
loop.close()
"""


def test_what_a_handlers_library_puts_in_the_place_of_sockets_and_locks_is_not_used() -> None:
    """As `gevent.monkey.patch_all()` at the import of the handler's module: nobody runs the loop that its own wait for."""
    subprocess.run([sys.executable, "-c", AFTER_ANOTHER_LIBRARY], check=True, timeout=60)
