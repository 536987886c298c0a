"""Connections by address: shared, bounded in time, made anew after a loss."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import warnings

import pytest

from rocketcrew.client.access import Access, TlsOptions
from rocketcrew.client.bounds import ConnectionBounds
from rocketcrew.client.connecting import first_of
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import TimedOutError, UnreachableError, UsageError, retriable
from rocketcrew.remoting.frame import encode

LONG_MS = 60_000
GO_AWAY = 1500


@contextlib.asynccontextmanager
async def client(**options):
    remoting = Remoting(**options)
    try:
        yield remoting
    finally:
        await remoting.close()


def echo(command):
    return None if command.is_oneway else command.response(0, command.fields, bytes(command.body))


async def test_many_callers_share_one_connection(make_peer):
    connected = []
    async with make_peer(echo) as peer, client(on_connect=connected.append) as remoting:
        calls = [remoting.request(peer.address, Command(1, {"n": str(n)}), timeout_ms=LONG_MS) for n in range(50)]
        answers = await asyncio.gather(*calls)
        assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(50)]
        assert len(peer.wires) == 1
        assert connected == [peer.address] == remoting.addresses


async def test_a_lost_connection_is_told_and_made_anew(make_peer):
    lost = asyncio.Queue()
    async with make_peer() as peer, client(on_close=lost.put_nowait) as remoting:
        first = asyncio.create_task(remoting.request(peer.address, Command(11), timeout_ms=LONG_MS))
        wire = await peer.accept()
        await wire.next()
        wire.cut()
        with pytest.raises(UnreachableError):
            await first
        assert await lost.get() == peer.address
        assert remoting.addresses == []
        second = asyncio.create_task(remoting.request(peer.address, Command(11), timeout_ms=LONG_MS))
        wire = await peer.accept()
        wire.answer(await wire.next(), 19)
        assert (await second).code == 19


async def test_nobody_listens(closed_port):
    async with client() as remoting:
        with pytest.raises(UnreachableError, match=rf"{closed_port}: HEART_BEAT \(34\) not sent: cannot connect"):
            await remoting.request(closed_port, Command(34), timeout_ms=LONG_MS)
        with pytest.raises(UnreachableError, match="cannot connect"):
            await remoting.oneway(closed_port, Command(34))


async def test_a_name_that_no_thread_can_look_up(no_threads):
    asyncio.get_running_loop().set_default_executor(no_threads)
    async with client() as remoting:
        with pytest.raises(UnreachableError, match="cannot connect: can't start new thread"):
            await remoting.request("broker.example:1", Command(34), timeout_ms=LONG_MS)


@contextlib.contextmanager
def deaf_address():
    """A port whose backlog is full: connecting to it never finishes."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64, "\uff41\uff0e\uff0e\uff42"])
async def test_a_host_that_is_no_name_is_not_reached(host):
    async with client() as remoting:
        with pytest.raises(UnreachableError, match="cannot connect"):
            await remoting.request(f"{host}:10911", Command(34), timeout_ms=LONG_MS)


async def test_connecting_is_bounded_by_its_own_timeout():
    with deaf_address() as address:
        async with client(access=Access(connect_timeout_ms=50)) as remoting:
            with pytest.raises(TimedOutError, match="not connected within 50 ms"):
                await remoting.request(address, Command(34), timeout_ms=LONG_MS)


async def test_a_request_whose_time_ran_out_while_connecting_is_not_sent(make_peer):
    loop = asyncio.get_running_loop()
    async with make_peer(echo) as peer, client(on_connect=lambda _: loop.skip_ms(LONG_MS)) as remoting:
        with pytest.raises(TimedOutError, match=r"HEART_BEAT \(34\) not sent: its time ran out"):
            await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)
        await remoting.request(peer.address, Command(36), timeout_ms=LONG_MS)
        assert [command.code for command in peer.requests] == [36]


def resolved(address):
    host, port = address.split(":")
    return socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, int(port))


async def test_of_a_name_with_several_addresses_one_that_is_alive_is_found(make_peer, closed_port):
    async with make_peer(echo) as peer:
        with deaf_address() as deaf:
            for addresses in ((deaf, peer.address), (closed_port, peer.address), (peer.address, deaf)):
                with await first_of([resolved(address) for address in addresses], next_after_s=0.0) as found:
                    assert found.getpeername()[1] == peer.port
        with pytest.raises(ConnectionRefusedError):
            await first_of([resolved(closed_port)] * 2)


async def test_whenever_a_race_is_ended_none_of_its_sockets_is_left(make_peer, closed_port):
    with warnings.catch_warnings(record=True) as lost:
        warnings.simplefilter("always")
        async with make_peer() as peer:
            with deaf_address() as deaf:
                ways = [(peer.address,) * 3, (deaf, peer.address), (closed_port, peer.address, peer.address)]
                for ticks, addresses in itertools.product(range(16), ways):
                    race = asyncio.create_task(first_of([resolved(address) for address in addresses], 0.0))
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    race.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        (await race).close()
            await asyncio.gather(*(wire.closed_by_client() for wire in peer.wires), return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "_connect" in repr(task)]
        gc.collect()
    assert lost == []


async def test_a_name_is_looked_up_and_an_address_is_not(make_peer, no_threads):
    async with make_peer(echo) as peer, client() as remoting:
        answer = await remoting.request(f"localhost:{peer.port}", Command(36), timeout_ms=LONG_MS)
        assert answer.code == 0
    asyncio.get_running_loop().set_default_executor(no_threads)
    async with make_peer(echo) as peer, client() as remoting:
        assert (await remoting.request(peer.address, Command(36), timeout_ms=LONG_MS)).code == 0


async def test_a_caller_with_less_time_gives_up_alone():
    with deaf_address() as address:
        async with client(access=Access(connect_timeout_ms=LONG_MS)) as remoting:
            patient = asyncio.create_task(remoting.request(address, Command(34), timeout_ms=LONG_MS))
            with pytest.raises(TimedOutError, match="not connected within"):
                await remoting.request(address, Command(34), timeout_ms=30)
            assert not patient.done()
            await remoting.close()
            with pytest.raises(UnreachableError, match="closed by this client"):
                await patient


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:port", "host:0", "host:65536", ":9876", "a b:1", "h:-1"]
)
async def test_what_is_no_address(address):
    async with client() as remoting:
        with pytest.raises(UsageError, match="address"):
            await remoting.request(address, Command(34), timeout_ms=LONG_MS)


async def test_a_closed_client_says_so(make_peer):
    async with make_peer(echo) as peer, client() as remoting:
        await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)
        await remoting.close()
        await remoting.close()
        with pytest.raises(UnreachableError, match="not sent: closed by this client"):
            await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)


async def test_close_delivers_oneway_requests_sent_just_before(make_peer):
    async with make_peer() as peer:
        async with client() as remoting:
            await remoting.oneway(peer.address, Command(15, {"commitOffset": "3"}))
        wire = await peer.accept()
        assert (await wire.next()).fields == {"commitOffset": "3"}
        assert await wire.next() is None


async def test_close_does_not_wait_for_a_peer_that_never_reads(make_peer):
    async with make_peer() as peer, client(bounds=ConnectionBounds(write_high_bytes=1 << 30)) as remoting:
        await remoting.oneway(peer.address, Command(10, body=bytes(15 << 20)))
        wire = await peer.accept()
        wire.writer.transport.pause_reading()
        await remoting.close()
        assert remoting.addresses == []


async def answered(peer, remoting):
    """The wire of a new connection that has had an answer."""
    asked = asyncio.create_task(remoting.request(peer.address, Command(36), timeout_ms=LONG_MS))
    wire = await peer.accept()
    wire.answer(await wire.next())
    await asked
    return wire


async def asked_until_cut(peer, remoting, wire=None):
    """How many requests of 3.5 s (connecting has a part of the first) a silent connection takes: this one, or a new one."""
    count, is_cut = 0, False
    while not is_cut:
        asked = asyncio.create_task(remoting.request(peer.address, Command(36), timeout_ms=3_500))
        wire = wire or await peer.accept()
        await wire.next()
        connection = remoting.connection_of(peer.address)
        asyncio.get_running_loop().skip_ms(3_500)
        with pytest.raises(TimedOutError):
            await asked
        count, is_cut = count + 1, not connection.open
    await connection.wait_closed()
    return count


async def test_a_peer_that_stands_still_is_sent_few_connections(make_peer):
    async with make_peer() as peer, client() as remoting:
        first = await answered(peer, remoting)
        cuts = [await asked_until_cut(peer, remoting, first)]
        cuts += [await asked_until_cut(peer, remoting) for _ in range(5)]
        assert cuts == [1, 1, 2, 4, 6, 6]  # at 3.5, 7, 14, 28, 49 and 70 s, then every 21 s


@pytest.mark.parametrize("again", ["answered", "named no more"])
async def test_after_an_answer_or_where_nobody_names_it_a_silent_peer_is_left_at_once_again(make_peer, again):
    async with make_peer() as peer, client() as remoting:
        assert [await asked_until_cut(peer, remoting) for _ in range(3)] == [1, 2, 4]
        if again == "answered":
            wire = await answered(peer, remoting)
            assert await asked_until_cut(peer, remoting, wire) == 1
        else:
            remoting.retire_all_but([])
        assert await asked_until_cut(peer, remoting) == 1


async def test_of_a_peer_that_nobody_names_pulls_end_at_once_and_other_answers_are_waited_for(make_peer):
    """Of a hung master they waited out their 30 s, though its slave was there to serve."""
    async with make_peer() as peer, client() as remoting:
        pull, commit = (
            asyncio.create_task(remoting.request(peer.address, Command(code), timeout_ms=LONG_MS)) for code in (11, 15)
        )
        wire = await peer.accept()
        asked, committed = await wire.next(), await wire.next()
        remoting.retire_all_but([peer.address])
        assert not pull.done()
        remoting.retire_all_but([])
        with pytest.raises(
            UnreachableError, match=r"PULL_MESSAGE \(11\) sent, no answer: nobody names this address any more"
        ):
            await pull
        wire.answer(asked, 0, body=b"late")
        wire.answer(committed, 0)
        assert (await commit).code == 0
        await wire.closed_by_client()


async def test_a_pull_whose_answer_is_being_read_is_read_to_its_end(make_peer):
    came, room = asyncio.Event(), bytearray(8)

    def sink(_command, _size):
        came.set()
        return memoryview(room)

    async with make_peer() as peer, client() as remoting:
        pull = asyncio.create_task(remoting.request(peer.address, Command(11), timeout_ms=LONG_MS, body_sink=sink))
        wire = await peer.accept()
        whole = encode((await wire.next()).response(0, {}, b"eight by"))
        wire.raw(whole[:-4])
        await came.wait()
        remoting.retire_all_but([])
        wire.raw(whole[-4:])
        assert ((await pull).code, bytes(room)) == (0, b"eight by")
        await wire.closed_by_client()


async def test_requests_of_the_peer_name_the_address(make_peer):
    heard = asyncio.Queue()

    async def serve(address, command):
        heard.put_nowait((address, command.code))

    async with make_peer(echo) as peer, client(on_request=serve) as remoting:
        await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)
        peer.wires[0].send(Command(40, {"consumerGroup": "g"}, flag=2))
        assert await heard.get() == (peer.address, 40)


async def test_unused_connections_can_be_closed_before_they_rot(make_peer):
    async with make_peer(echo) as peer, client() as remoting:
        await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)
        assert remoting.close_idle(60_000) == 0
        assert remoting.close_idle(0) == 1
        assert (await remoting.request(peer.address, Command(34), timeout_ms=LONG_MS)).code == 0
        assert len(peer.wires) == 2


async def test_sent_away_the_request_goes_out_once_more_on_a_new_connection(make_peer):
    async with make_peer() as server, client() as remoting:
        held = asyncio.create_task(remoting.request(server.address, Command(11), timeout_ms=LONG_MS))
        first = await server.accept()
        pull = await first.next()
        asked = asyncio.create_task(remoting.request(server.address, Command(10, {"a": "1"}), timeout_ms=LONG_MS))
        first.answer(await first.next(), GO_AWAY, remark="please go away")
        second = await server.accept()
        again = await second.next()
        assert (again.code, again.fields) == (10, {"a": "1"})
        second.answer(again)
        assert (await asked).code == 0
        assert not held.done()  # what waits on the old connection gets its answer there
        first.answer(pull, 19)
        assert (await held).code == 19
        await first.closed_by_client()


async def test_sent_away_twice_is_a_failure_that_may_be_retried(make_peer):
    async with make_peer(lambda command: command.response(GO_AWAY)) as server, client() as remoting:
        with pytest.raises(UnreachableError, match="the server is shutting down") as caught:
            await remoting.request(server.address, Command(10), timeout_ms=LONG_MS)
        assert retriable(caught.value)
        assert len(server.requests) == 2
        assert remoting.addresses == []


async def test_close_ends_the_connection_that_was_sent_away_too(make_peer):
    async with make_peer() as server, client() as remoting:
        held = asyncio.create_task(remoting.request(server.address, Command(11), timeout_ms=LONG_MS))
        first = await server.accept()
        await first.next()
        asked = asyncio.create_task(remoting.request(server.address, Command(10), timeout_ms=LONG_MS))
        first.answer(await first.next(), GO_AWAY)
        second = await server.accept()
        second.answer(await second.next())
        await asked
        await remoting.close()
        with pytest.raises(UnreachableError, match="sent, no answer: closed by this client"):
            await held
        await first.closed_by_client()


@pytest.mark.parametrize("name", [".x", "a..b", "x" * 70, "a\0b", "é" * 64])
def test_what_can_be_no_servers_name_is_said_at_once(name):
    with pytest.raises(UsageError, match="tls_server_name"):
        Remoting(access=Access(tls=TlsOptions(auth_server=False, server_name=name)))
