"""One connection over loopback sockets against a peer driven by the test. Nothing sleeps: every wait is for an event."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rocketcrew.client.bounds import ConnectionBounds
from rocketcrew.client.connection import Connection
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import TimedOutError, UnreachableError, UsageError
from rocketcrew.remoting.frame import encode

LONG_MS = 60_000
FOR_EVER_MS = 3_600_000
NO_SILENCE = ConnectionBounds(silent_ms=FOR_EVER_MS)
"""Where a request times out that is no test of silence: the machine may stand still until it does."""


@contextlib.asynccontextmanager
async def connected(make_peer, bounds=NO_SILENCE, **options):
    async with make_peer() as peer:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(peer.address, bounds=bounds, **options), "127.0.0.1", peer.port
        )
        try:
            yield connection, await peer.accept()
        finally:
            connection.abort("test is over")
            await connection.wait_closed()


def pattern(size):
    return bytes(i * 31 % 256 for i in range(size))


async def test_a_round(make_peer):
    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(105, {"topic": "t"}), timeout_ms=LONG_MS)
        command = await wire.next()
        assert (command.code, command.fields) == (105, {"topic": "t"})
        wire.answer(command, 17, {"k": "v"}, b"body", "no such topic")
        answer = await waiter
        assert (answer.code, answer.fields, answer.body, answer.remark) == (17, {"k": "v"}, b"body", "no such topic")
        assert type(answer.body) is bytes
        assert connection.pending_count == 0


@pytest.mark.parametrize("size", [1, 5000, 70_000, 1_500_000])
async def test_a_body_goes_straight_into_the_sinks_view(make_peer, size):
    slab = memoryview(bytearray(size + 10))
    asked = []

    def sink(head, body_bytes):
        asked.append((head.code, dict(head.fields), body_bytes))
        return slab[5 : 5 + body_bytes]

    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=sink)
        wire.answer(await wire.next(), 0, {"nextBeginOffset": "5"}, pattern(size))
        answer = await waiter
        assert asked == [(0, {"nextBeginOffset": "5"}, size)]
        assert isinstance(answer.body, memoryview) and answer.body.obj is slab.obj
        assert bytes(slab) == bytes(5) + pattern(size) + bytes(5)


async def test_a_sink_is_not_asked_when_there_is_no_body(make_peer):
    def sink(head, body_bytes):
        raise AssertionError("no body, no question")

    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=sink)
        wire.answer(await wire.next(), 19)
        answer = await waiter
        assert (answer.code, answer.body, answer.dropped) == (19, b"", False)


@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_sink_without_room_drops_the_body_and_reading_goes_on(make_peer, size):
    async with connected(make_peer) as (connection, wire):
        full = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=lambda head, n: None)
        behind = connection.start(Command(36), timeout_ms=LONG_MS)
        wire.answer(await wire.next(), 0, {"nextBeginOffset": "9"}, pattern(size))
        wire.answer(await wire.next(), 0)
        dropped = await full
        assert (dropped.dropped, dropped.body, dropped.fields) == (True, b"", {"nextBeginOffset": "9"})
        assert (await behind).code == 0
        assert connection.stats.dropped_bodies == 1


@pytest.mark.parametrize(
    "bad", [lambda n: memoryview(bytes(n)), lambda n: memoryview(bytearray(n + 1)), lambda n: memoryview(bytearray(0))]
)
async def test_a_view_that_does_not_fit_fails_that_request_alone(make_peer, bad):
    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=lambda head, n: bad(n))
        other = connection.start(Command(12), timeout_ms=LONG_MS)
        wire.answer(await wire.next(), 0, {}, b"12345")
        wire.answer(await wire.next(), 0, {}, b"fine")
        with pytest.raises(UsageError, match="view of 5 bytes"):
            await waiter
        assert (await other).body == b"fine"


async def test_what_a_sink_raises_reaches_its_caller(make_peer):
    def sink(head, body_bytes):
        raise KeyError("slot")

    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=sink)
        wire.answer(await wire.next(), 0, {}, b"12345")
        with pytest.raises(KeyError):
            await waiter
        again = connection.start(Command(11), timeout_ms=LONG_MS)
        wire.answer(await wire.next(), 0, {}, b"67")
        assert (await again).body == b"67"


async def test_deadlines_differ_and_late_answers_are_dropped(make_peer):
    async with connected(make_peer) as (connection, wire):
        slow = connection.start(Command(11), timeout_ms=LONG_MS)
        with pytest.raises(TimedOutError, match=r"no answer to HEART_BEAT \(34\) within 20 ms"):
            await connection.request(Command(34), timeout_ms=20)
        first, second = await wire.next(), await wire.next()
        wire.answer(second, 0, {}, b"too late")
        wire.answer(first, 0, {}, b"in time")
        assert (await slow).body == b"in time"
        assert (connection.stats.late_answers, connection.stats.timeouts) == (1, 1)
        assert connection.open


async def test_a_timed_out_request_frees_its_view_in_the_middle_of_the_body(make_peer):
    slab = memoryview(bytearray(300_000))
    asked = asyncio.Event()

    def sink(head, body_bytes):
        asked.set()
        return slab

    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=sink)
        frame = encode((await wire.next()).response(0, {}, b"\xaa" * 300_000))
        wire.raw(frame[:150_000])
        await asked.wait()
        asyncio.get_running_loop().skip_ms(LONG_MS)
        with pytest.raises(TimedOutError):
            await waiter
        slab[:] = bytes(300_000)  # the caller reuses the memory
        behind = connection.start(Command(12), timeout_ms=LONG_MS)
        wire.raw(frame[150_000:])
        wire.answer(await wire.next(), 0, {}, b"next")
        assert (await behind).body == b"next"
        assert bytes(slab) == bytes(300_000)


async def test_a_cancelled_request_frees_its_view_too(make_peer):
    slab = memoryview(bytearray(300_000))
    asked = asyncio.Event()

    def sink(head, body_bytes):
        asked.set()
        return slab

    async with connected(make_peer) as (connection, wire):
        task = asyncio.create_task(connection.request(Command(11), timeout_ms=LONG_MS, body_sink=sink))
        frame = encode((await wire.next()).response(0, {}, b"\xaa" * 300_000))
        wire.raw(frame[:150_000])
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slab[:] = bytes(300_000)
        behind = connection.start(Command(12), timeout_ms=LONG_MS)
        wire.raw(frame[150_000:])
        wire.answer(await wire.next(), 0)
        await behind
        assert bytes(slab) == bytes(300_000)
        assert connection.pending_count == 0


async def test_byte_by_byte_delivery(make_peer):
    async with connected(make_peer) as (connection, wire):
        slab = memoryview(bytearray(40))
        waiter = connection.start(Command(11), timeout_ms=LONG_MS, body_sink=lambda head, n: slab)
        for byte in encode((await wire.next()).response(0, {"a": "b"}, pattern(40))):
            wire.raw(bytes([byte]))
            await wire.writer.drain()
            await asyncio.wait([waiter], timeout=0)  # one turn of the loop each
        assert bytes((await waiter).body) == pattern(40)


async def test_many_concurrent_requests_answered_in_reverse(make_peer):
    async with connected(make_peer) as (connection, wire):
        tasks = [
            asyncio.create_task(connection.request(Command(10, {"n": str(n)}), timeout_ms=LONG_MS)) for n in range(2000)
        ]
        for command in reversed([await wire.next() for _ in tasks]):
            wire.answer(command, 0, {"n": command.fields["n"]})
        answers = await asyncio.gather(*tasks)
        assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(2000)]


async def test_a_connection_cut_in_the_middle_of_a_frame_fails_all_that_wait(make_peer):
    closed = []
    async with connected(make_peer, on_close=closed.append) as (connection, wire):
        waiters = [connection.start(Command(11), timeout_ms=LONG_MS) for _ in range(3)]
        frame = encode((await wire.next()).response(0, {}, b"x" * 1000))
        wire.raw(frame[:-1])
        wire.close()
        for waiter in waiters:
            with pytest.raises(
                UnreachableError, match=r"PULL_MESSAGE .11. sent, no answer: closed by the peer in the mid"
            ):
                await waiter
        await connection.wait_closed()
        assert closed == [connection] and not connection.open
        with pytest.raises(UnreachableError, match="not sent: closed by the peer"):
            await connection.request(Command(11), timeout_ms=LONG_MS)


async def test_a_reset_fails_what_waits(make_peer):
    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS)
        await wire.next()
        wire.cut()
        with pytest.raises(UnreachableError):
            await waiter


@pytest.mark.parametrize("junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x02{]"])
async def test_garbage_from_the_peer_ends_the_connection_with_the_reason(make_peer, junk):
    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(105), timeout_ms=LONG_MS)
        await wire.next()
        wire.raw(junk)
        with pytest.raises(UnreachableError, match="malformed frame received"):
            await waiter
        await wire.closed_by_client()


async def test_requests_of_the_peer_are_answered(make_peer):
    async def serve(address, command):
        if command.code == 307:
            raise RuntimeError("cannot say")
        return command.response(0, {"heard": command.fields["x"]}) if command.code == 221 else None

    async with connected(make_peer, on_request=serve) as (connection, wire):
        # The peer counts its opaques from 0 as well: this one must not be taken for our request's answer.
        waiter = connection.start(Command(11), timeout_ms=LONG_MS)
        pull = await wire.next()
        wire.send(Command(221, {"x": "y"}, opaque=pull.opaque))
        heard = await wire.next()
        assert (heard.is_response, heard.opaque, heard.fields) == (True, pull.opaque, {"heard": "y"})
        wire.send(Command(307, opaque=1))
        assert ((await wire.next()).code, connection.pending_count) == (1, 1)
        wire.send(Command(999, opaque=2))
        unsupported = await wire.next()
        assert (unsupported.code, unsupported.remark) == (3, "request type 999 not supported")
        wire.answer(pull)
        await waiter


async def test_oneway_requests_of_the_peer_get_no_answer(make_peer):
    heard = asyncio.Queue()

    async def serve(address, command):
        heard.put_nowait((address, command.fields))

    async with connected(make_peer, on_request=serve) as (connection, wire):
        wire.send(Command(40, {"consumerGroup": "g"}, flag=2))
        assert await heard.get() == (connection.address, {"consumerGroup": "g"})
        await connection.oneway(Command(15))
        ours = await wire.next()
        assert (ours.code, ours.is_oneway, ours.is_response) == (15, True, False)


async def test_too_many_requests_of_the_peer_are_told_busy(make_peer):
    go_on = asyncio.Event()

    async def serve(address, command):
        await go_on.wait()
        return command.response(0)

    bounds = ConnectionBounds(peer_requests_max=2)
    async with connected(make_peer, on_request=serve, bounds=bounds) as (connection, wire):
        for opaque in range(3):
            wire.send(Command(221, opaque=opaque))
        refused = await wire.next()
        assert (refused.opaque, refused.code) == (2, 2)
        go_on.set()
        assert {(await wire.next()).opaque for _ in range(2)} == {0, 1}
        assert connection.stats.peer_requests_refused == 1


async def test_pending_requests_are_bounded(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(pending_max=2)) as (connection, wire):
        connection.start(Command(11), timeout_ms=LONG_MS).cancel()
        waiter = connection.start(Command(11), timeout_ms=LONG_MS)
        with pytest.raises(UnreachableError, match="2 requests wait"):
            connection.start(Command(11), timeout_ms=LONG_MS)
        for _ in range(2):
            wire.answer(await wire.next())
        await waiter
        assert not connection.start(Command(11), timeout_ms=LONG_MS).done()


async def test_frames_of_one_turn_leave_in_one_write(make_peer):
    async with connected(make_peer) as (connection, wire):
        writes = connection.stats.writes
        waiters = [connection.start(Command(11), timeout_ms=LONG_MS) for _ in range(50)]
        for _ in waiters:
            wire.answer(await wire.next())
        await asyncio.gather(*waiters)
        assert connection.stats.writes == writes + 1


async def test_writers_wait_for_a_peer_that_does_not_read_and_give_up_in_time(make_peer):
    bounds = ConnectionBounds(write_high_bytes=1000, silent_ms=FOR_EVER_MS)
    async with connected(make_peer, bounds=bounds) as (connection, wire):
        big = b"x" * 4_000_000
        for _ in range(8):  # more than the kernel takes, whatever it has made of its buffers
            with contextlib.suppress(TimedOutError):
                await connection.request(Command(10, body=big), timeout_ms=30)
        with pytest.raises(TimedOutError, match="not sent in time: the peer does not read"):
            await connection.oneway(Command(15), timeout_ms=30)
        waiting = asyncio.create_task(connection.request(Command(34), timeout_ms=LONG_MS))
        while (command := await wire.next()).code != 34:
            assert len(command.body) == len(big)
        wire.answer(command, 0)
        assert (await waiting).code == 0


async def test_unsent_bytes_stay_bounded_while_many_wait_to_write(make_peer):
    bounds = ConnectionBounds(write_high_bytes=1_000_000)
    async with connected(make_peer, bounds=bounds) as (connection, wire):
        body = b"x" * 1_000_000
        tasks = [asyncio.create_task(connection.request(Command(10, body=body), timeout_ms=LONG_MS)) for _ in range(30)]
        for _ in tasks:
            wire.answer(await wire.next())
            assert connection._outbox.unsent_bytes <= 3_100_000
        await asyncio.gather(*tasks)


async def test_a_peer_that_never_reads_is_given_up_at_the_bound(make_peer):
    bounds = ConnectionBounds(write_high_bytes=1000, write_bytes_max=8_000_000)
    async with connected(make_peer, bounds=bounds) as (connection, _wire):
        waiters = []
        with pytest.raises(UnreachableError, match="peer does not read"):
            while True:
                waiters.append(connection.start(Command(10, body=b"x" * 2_000_000), timeout_ms=LONG_MS))
                await asyncio.wait([waiters[-1]], timeout=0)  # one turn of the loop
        for waiter in waiters:
            with pytest.raises(UnreachableError):
                await waiter


async def test_silence_after_a_timeout_cuts_the_connection_but_a_living_one_stays(make_peer):
    heard = asyncio.Event()

    async def serve(address, command):
        heard.set()

    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=0), on_request=serve) as (connection, wire):
        living = connection.start(Command(34), timeout_ms=LONG_MS)
        await wire.next()
        wire.send(Command(40, flag=2))  # any byte from the peer is a sign of life
        await heard.wait()
        asyncio.get_running_loop().skip_ms(LONG_MS)
        with pytest.raises(TimedOutError):
            await living
        assert connection.open
        held = connection.start(Command(11), timeout_ms=LONG_MS)
        with pytest.raises(TimedOutError):
            await connection.request(Command(34), timeout_ms=30)
        with pytest.raises(UnreachableError, match="nothing had been received"):
            await held
        assert not connection.open


async def expired(connection, wire, timeout_ms=30_000):
    """A request that the peer has, and does not answer in time."""
    asked = connection.start(Command(34), timeout_ms=timeout_ms)
    command = await wire.next()
    asyncio.get_running_loop().skip_ms(timeout_ms)
    with pytest.raises(TimedOutError):
        await asked
    return command


async def test_silence_is_found_too_where_no_request_has_so_much_time(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=45_000)) as (connection, wire):
        held = connection.start(Command(11), timeout_ms=FOR_EVER_MS)
        await wire.next()
        await expired(connection, wire)
        assert connection.open
        await expired(connection, wire)
        with pytest.raises(UnreachableError, match="nothing had been received"):
            await held


@pytest.mark.parametrize(("between_ms", "cut"), [(29_000, True), (31_000, False)])
async def test_requests_with_long_pauses_between_them_are_no_silence_together(make_peer, between_ms, cut):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=30_000)) as (connection, wire):
        asked = connection.start(Command(36), timeout_ms=LONG_MS)
        wire.answer(await wire.next())
        await asked
        for _ in range(2):
            assert connection.open
            await expired(connection, wire, 10_000)
            asyncio.get_running_loop().skip_ms(between_ms)
        assert connection.open is not cut


async def test_before_the_first_byte_pauses_count_too(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=3_000), unheard_ms=20_000) as (connection, wire):
        await expired(connection, wire, 10_000)
        asyncio.get_running_loop().skip_ms(60_000)
        assert connection.open
        await expired(connection, wire, 10_000)
        assert connection.cut_unheard


async def test_the_time_of_requests_that_wait_at_once_is_silence_once(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=45_000)) as (connection, wire):
        others = [connection.start(Command(36), timeout_ms=30_000 - n) for n in range(5)]
        await expired(connection, wire)
        assert all(other.done() for other in others)
        assert connection.open
        for other in others:
            other.exception()


async def test_until_the_first_byte_another_silence_is_allowed(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=30_000), unheard_ms=60_000) as (connection, wire):
        await expired(connection, wire)
        assert connection.open
        asked = connection.start(Command(36), timeout_ms=LONG_MS)
        wire.answer(await wire.next())
        await asked
        await expired(connection, wire)
        assert not connection.open
        assert not connection.cut_unheard


async def test_an_answer_that_is_late_is_a_sign_of_life(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(silent_ms=45_000)) as (connection, wire):
        wire.answer(await expired(connection, wire))
        next_one = connection.start(Command(36), timeout_ms=LONG_MS)
        wire.answer(await wire.next())
        await next_one
        assert connection.stats.late_answers == 1
        await expired(connection, wire)
        assert connection.open


@pytest.mark.parametrize("left_ms", [0, -21])
async def test_what_has_no_time_left_is_not_sent(make_peer, left_ms):
    async with connected(make_peer) as (connection, wire):
        with pytest.raises(TimedOutError, match=r"HEART_BEAT \(34\) not sent: its time ran out"):
            connection.start(Command(34), timeout_ms=left_ms)
        with pytest.raises(TimedOutError, match="not sent: its time ran out"):
            await connection.oneway(Command(15), timeout_ms=left_ms)
        asked = connection.start(Command(36), timeout_ms=LONG_MS)
        command = await wire.next()
        assert command.code == 36, "the first that it has"
        wire.answer(command)
        await asked


async def test_idle_connections_close(make_peer):
    async with connected(make_peer, bounds=ConnectionBounds(idle_ms=30)) as (connection, wire):
        await wire.closed_by_client()
        await connection.wait_closed()
        with pytest.raises(UnreachableError, match="idle for 30 ms"):
            connection.start(Command(11), timeout_ms=LONG_MS)


async def test_close_sends_what_is_buffered_and_fails_what_waits(make_peer):
    async with connected(make_peer) as (connection, wire):
        waiter = connection.start(Command(11), timeout_ms=LONG_MS)
        await connection.oneway(Command(15, {"commitOffset": "7"}))
        connection.close()
        with pytest.raises(UnreachableError, match="closed by this client"):
            await waiter
        assert [(await wire.next()).code for _ in range(2)] == [11, 15]
        assert await wire.next() is None


async def test_a_command_too_large_for_a_frame_is_refused_and_the_connection_lives(make_peer):
    async with connected(make_peer) as (connection, wire):
        with pytest.raises(UsageError, match="a frame has at most"):
            await connection.request(Command(10, body=bytes(17 << 20)), timeout_ms=LONG_MS)
        waiter = connection.start(Command(11), timeout_ms=LONG_MS)
        wire.answer(await wire.next())
        await waiter
