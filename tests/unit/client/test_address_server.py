"""The address server: its URL, its answers, and when it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from random import Random

import pytest

from rocketcrew.client.access import Access
from rocketcrew.client.address_server import ANSWER_BYTES_MAX, fetch, parse_answer, url_of
from rocketcrew.client.name_servers import ASK_AGAIN_MS, NameServers
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.remoting.errors import UnreachableError, UsageError


def http(body, status="200 OK", head=""):
    data = body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n{head}\r\n".encode() + data


@pytest.mark.parametrize(
    ("domain", "unit", "url"),
    [
        ("jmenv.tbsite.net", "", "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"),
        ("ns.example:80", "", "http://ns.example:80/rocketmq/nsaddr"),
        ("ns.example", "eu", "http://ns.example:8080/rocketmq/nsaddr-eu?nofix=1"),
    ],
)
def test_the_url_is_java_s(domain, unit, url):
    assert url_of(domain, "nsaddr", unit) == url


def test_the_first_line_counts():
    assert parse_answer(http(" a:9876;b:9876\r\nrest"), "u") == ["a:9876", "b:9876"]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na:1\r\n4\r\n;b:2\r\n0\r\n\r\n"
    assert parse_answer(chunked, "u") == ["a:1", "b:2"]
    assert parse_answer(b"HTTP/1.0 200 OK\r\n\r\na:1", "u") == ["a:1"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (http("gone", "404 Not Found"), "answers 404 Not Found"),
        (http(""), "knows no name servers"),
        (http("<html>login</html>"), "names no name servers"),
        (b"", "is no HTTP"),
        (b"\x16\x03\x01nonsense", "is no HTTP"),
        (http("\n")[:-1], "is no HTTP|knows no name servers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\xff\xfe\xff\xff\xff", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\na:1", "is no HTTP"),
    ],
)
def test_a_useless_answer_is_one_clear_line(data, says):
    with pytest.raises(UnreachableError, match=says) as caught:
        parse_answer(data, "http://h:1/rocketmq/nsaddr")
    assert "\n" not in str(caught.value)
    assert "http://h:1/rocketmq/nsaddr" in str(caught.value)


class AddressServer:
    """Answers every request with `answer`."""

    def __init__(self):
        self.answer = b""
        self.paths = []

    @contextlib.asynccontextmanager
    async def serving(self):
        async def serve(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split()[1].decode())
            writer.write(self.answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.domain = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def name_servers(domain, clock, remoting, **more):
    return NameServers(Access(namesrv_domain=domain, **more), remoting=remoting, random=Random(1), clock=clock)


async def test_fetch_asks_with_the_unit_s_name():
    async with AddressServer().serving() as server:
        server.answer = http("a:1")
        assert await fetch(url_of(server.domain, "sub", "eu")) == ["a:1"]
        assert server.paths == ["/rocketmq/sub-eu?nofix=1"]


async def test_an_endless_answer_is_cut():
    async with AddressServer().serving() as server:
        server.answer = b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 4 * ANSWER_BYTES_MAX
        with pytest.raises(UnreachableError, match=r"names no name servers|at most"):
            await fetch(url_of(server.domain, "nsaddr"))


async def test_a_closed_port_and_a_silent_server_are_told_apart(closed_port):
    with pytest.raises(UnreachableError, match=r"cannot be reached: Connection refused"):
        await fetch(url_of(closed_port, "nsaddr"))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # the kernel accepts for it, and nobody answers
        pytest.raises(UnreachableError, match=r"did not answer within 50 ms"),
    ):
        await fetch(url_of(f"127.0.0.1:{silent.getsockname()[1]}", "nsaddr"), timeout_ms=50)


@pytest.mark.parametrize(
    ("domain", "says"),
    [("a..b", "the host is no name"), ("a" * 64, "the host is no name"), ("ns.example", "can't start new thread")],
)
async def test_a_domain_that_cannot_be_looked_up_is_not_reached(no_threads, domain, says):
    asyncio.get_running_loop().set_default_executor(no_threads)
    with pytest.raises(UnreachableError, match=f"cannot be reached: {says}"):
        await fetch(url_of(domain, "nsaddr"))


async def test_a_path_that_is_not_ascii_cannot_be_asked_for():
    async with AddressServer().serving() as server:
        with pytest.raises(UnreachableError, match="cannot be asked: 'ascii' codec"):
            await fetch(url_of(server.domain, "gr\u00f6\u00dfe"))


async def test_asked_at_the_first_request_then_every_two_minutes(make_peer):
    clock, remoting = Clock(), Remoting()
    async with make_peer(lambda c: c.response(0)) as one, make_peer(lambda c: c.response(0)) as two:
        async with AddressServer().serving() as server:
            server.answer = http(one.address)
            found = name_servers(server.domain, clock, remoting)
            assert (found.addresses, found.url) == ([], f"http://{server.domain}/rocketmq/nsaddr")
            assert (await found.request(105, {})).code == 0
            assert len(one.requests) == len(server.paths) == 1
            server.answer = http(two.address)
            clock.now_s += 119
            await found.refresh()
            assert len(server.paths) == 1
            clock.now_s += 1
            await found.refresh()
            assert found.addresses == [two.address]
            await found.request(105, {})
            assert len(two.requests) == 1
        clock.now_s += 120
        await found.refresh()  # the address server is away: what is known stays
        assert found.addresses == [two.address]
    await remoting.close()


async def test_asked_at_once_when_no_name_server_answers_but_not_in_a_loop(make_peer, closed_port):
    clock, remoting = Clock(), Remoting()
    async with make_peer(lambda c: c.response(0)) as alive, AddressServer().serving() as server:
        server.answer = http(closed_port)
        found = name_servers(server.domain, clock, remoting)
        with pytest.raises(UnreachableError, match=r"no name server answered"):
            await found.request(105, {})
        with pytest.raises(UnreachableError):
            await found.request(105, {})
        assert len(server.paths) == 1
        server.answer = http(alive.address)
        clock.now_s += ASK_AGAIN_MS / 1000
        assert (await found.request(105, {})).code == 0
        assert len(server.paths) == 2
    await remoting.close()


async def test_without_the_address_server_addresses_of_the_last_run_are_used(make_peer, closed_port):
    remoting = Remoting()
    async with make_peer(lambda c: c.response(0)) as alive:
        found = name_servers(closed_port, Clock(), remoting)
        with pytest.raises(UnreachableError, match=r"the address server cannot be reached"):
            await found.request(105, {})
        found.offer([alive.address])
        assert (await found.request(105, {})).code == 0
    await remoting.close()


async def test_a_given_list_needs_no_address_server():
    found = name_servers("nowhere", Clock(), Remoting(), name_servers="a:1")
    found.offer(["b:2"])
    await found.refresh()
    assert (found.addresses, found.url) == (["a:1"], "")
    with pytest.raises(UsageError, match=r"no name server is configured"):
        name_servers("", Clock(), Remoting())
