"""The asyncio edge over loopback sockets: both ports, pipelining, broken peers, restarts on a folder."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct

import pytest
import structlog
import trustme

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.edge import IDLE_MS, LAG_MS, SAY_AGAIN_MS, Edge, connections_max
from rocketcrew.broker.server import EmbeddedBroker, is_open_to_all, usable_address
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.remoting.admin_bodies import ClusterInfo
from rocketcrew.remoting.admin_headers import CreateTopic
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData, TopicRouteData
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.frame import encode
from rocketcrew.remoting.headers import GetRoute, MaxOffset, SendRequest
from rocketcrew.remoting.stored import decode_messages

from .wire_client import SECONDS, Client, pull, send, send_together, until


def run(story):
    asyncio.run(story())


def test_both_ports():
    async def story():
        async with EmbeddedBroker() as broker:
            server, client = await Client.open(broker.name_server), await Client.open(broker.address)
            assert (await client.call(*send())).code == 0
            answer = await server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T"))
            (data,) = TopicRouteData.decode(answer.body).broker_datas
            assert data.broker_addrs == {0: broker.address}
            assert decode_messages((await client.call(*pull(0))).body)[0].body == b"x"
            assert (await server.call(*send())).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            await server.close()
            await client.close()

    run(story)


def test_binary_headers_are_answered_in_kind():
    async def story():
        async with EmbeddedBroker() as broker:
            client = await Client.open(broker.address)
            answer = await client.call(
                RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0), serialization=Serialization.ROCKETMQ
            )
            assert (answer.serialization, answer.fields) == (Serialization.ROCKETMQ, {"offset": "0"})
            await client.close()

    run(story)


def test_many_requests_in_one_read_and_one_in_many():
    async def story():
        async with EmbeddedBroker() as broker:
            client = await Client.open(broker.address)
            for number in range(200):
                client.write(*send(b"%d" % number))
            answers = [await client.read() for _ in range(200)]
            assert [answer.fields["queueOffset"] for answer in answers] == [str(number) for number in range(200)]
            for byte in encode(Command(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0).to_fields(), opaque=7)):
                client.writer.write(bytes([byte]))
                await client.writer.drain()
            assert (await client.read()).fields["offset"] == "200"
            await client.close()

    run(story)


def test_a_held_pull_is_woken_by_another_connection():
    async def story():
        async with EmbeddedBroker() as broker:
            consumer, producer = await Client.open(broker.address), await Client.open(broker.address)
            await producer.call(*send())
            held = consumer.write(*pull(1, suspend=True))
            assert (await consumer.call(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0))).fields["offset"] == "1"
            await producer.call(*send(b"news"))
            answer = await consumer.read()
            assert (answer.opaque, decode_messages(answer.body)[0].body) == (held, b"news")
            await consumer.close()
            await producer.close()

    run(story)


def test_delayed_messages_come_by_the_timer():
    async def story():
        async with EmbeddedBroker(delay_levels="20ms 50ms") as broker:
            consumer = await Client.open(broker.address)
            await consumer.call(*send())
            consumer.write(*pull(1, suspend=True))
            delayed = SendRequest("pg", "T", "TBW102", 4, 0, 0, 1, 0, "DELAY\x012\x02")
            consumer.write(RequestCode.SEND_MESSAGE, delayed, b"late")
            codes = [await consumer.read(), await consumer.read()]
            assert decode_messages(codes[1].body)[0].body == b"late"
            await consumer.close()

    run(story)


def test_a_closed_connection_leaves_its_group_and_the_rest_hear_of_it():
    async def story():
        async with EmbeddedBroker() as broker:
            clients = [await Client.open(broker.address) for _ in range(2)]
            for number, client in enumerate(clients):
                consumer = ConsumerData("g", subscription_data_set=(SubscriptionData.of("T", "*", 1),))
                client.write(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{number}", (), (consumer,)).encode())
                assert (await client.read()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                assert (await client.read()).code == 0
            assert (await clients[0].read()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            await clients[1].close()
            notice = await clients[0].read()
            assert (notice.code, notice.flag) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, FLAG_ONEWAY)
            assert broker.core.state.clients.consumer_group("g").client_ids() == ["c0"]
            await clients[0].close()

    run(story)


def test_garbage_ends_only_its_own_connection():
    async def story():
        async with EmbeddedBroker() as broker:
            good, bad = await Client.open(broker.address), await Client.open(broker.address)
            bad.writer.write(struct.pack(">iI", 1 << 30, 4))
            assert await bad.read() is None
            http = await Client.open(broker.name_server)
            http.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await http.read() is None
            assert (await good.call(*send())).code == 0
            await good.close()

    run(story)


def test_a_bug_in_a_handler_answers_code_1_and_the_broker_lives():
    async def story():
        async with EmbeddedBroker() as broker:

            def buggy(command):
                raise KeyError("bug")

            broker.intercepts.append(buggy)
            client = await Client.open(broker.address)
            answer = await client.call(*send())
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError('bug')")
            broker.intercepts.clear()
            assert (await client.call(*send())).code == 0
            await client.close()

    run(story)


def test_a_peer_that_does_not_read_is_not_read_either():
    async def story():
        async with EmbeddedBroker() as broker:
            client = await Client.open(broker.address)
            for _ in range(8):
                await client.call(*send(b"x" * 1_000_000))
            client.writer.transport.pause_reading()
            wanted = 60  # of about a megabyte each
            for _ in range(wanted):
                client.write(*pull(0))
            await client.writer.drain()
            other = await Client.open(broker.address)
            for _ in range(20):
                assert (await other.call(*send(queue_id=1))).code == 0
            assert broker.core.state.get_count < 40, "not all were served"
            client.writer.transport.resume_reading()
            for _ in range(wanted):
                assert (await client.read()).code == 0
            await client.close()
            await other.close()

    run(story)


def test_peers_that_pipeline_leave_each_round_to_the_others():
    """Twenty of them made another one wait for 4 s: all that one read had brought was served in one go."""

    async def story():
        async with EmbeddedBroker() as broker:
            other = await Client.open(broker.address)
            await other.call(*send())
            greedy = [await Client.open(broker.address) for _ in range(5)]
            for client in greedy:
                for _ in range(1_000):
                    client.write(*send())
            await asyncio.sleep(0)
            before = broker.core.state.put_count
            assert (await other.call(*send(queue_id=1))).code == 0
            assert broker.core.state.put_count - before < 5 * 1_000, "it did not wait for all of them"
            for client in greedy:
                for _ in range(1_000):
                    assert (await client.read()).code == 0
                await client.close()
            await other.close()

    run(story)


def test_all_connections_read_into_one_buffer():
    async def story():
        async with EmbeddedBroker() as broker:
            clients = [await Client.open(broker.address) for _ in range(3)]
            for client in clients:
                await client.call(*send())
            connections = list(broker._edge._connections.values())
            assert len({id(connection.get_buffer(-1).obj) for connection in connections}) == 1
            for client in clients:
                await client.close()

    run(story)


def test_a_peer_that_reads_nothing_for_long_is_disconnected():
    async def story():
        times = [1_700_000_000_000]
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            client = await Client.open(broker.address)
            for _ in range(8):
                await client.call(*send(b"x" * 1_000_000))
            client.writer.transport.pause_reading()
            for _ in range(60):
                client.write(*pull(0))
            await client.writer.drain()
            (connection,) = broker._edge._connections.values()
            for _ in range(100_000):
                if connection.is_lagging:
                    break
                await asyncio.sleep(0)
            broker._edge._tick()
            times[0] += LAG_MS - 1_000
            broker._edge._tick()
            assert broker._edge._connections, "it has its time"
            times[0] += 12_000
            broker._edge._tick()
            await asyncio.sleep(0)
            assert not broker._edge._connections
            await client.close()

    run(story)


def test_refusals_of_a_kind_are_one_line_a_minute():
    async def story():
        times = [1_700_000_000_000]
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            with structlog.testing.capture_logs() as lines:
                for number in range(5):
                    broker._edge.say("connection.refused", peer=str(number))
                times[0] += SAY_AGAIN_MS
                broker._edge.say("connection.refused", peer="later")
            assert [(line["peer"], line.get("more_since_the_last_line")) for line in lines] == [
                ("0", None),
                ("later", 4),
            ]

    run(story)


def test_a_header_of_megabytes_is_refused_before_it_is_read():
    async def story():
        async with EmbeddedBroker() as broker:
            client = await Client.open(broker.address)
            size = 3 << 20
            client.writer.write(struct.pack(">iI", size + 4, size) + b"{")
            assert await client.read() is None
            await client.close()

    run(story)


@pytest.mark.parametrize(
    ("found", "usable"),
    [
        (["10.0.0.7", "127.0.1.1"], "10.0.0.7"),
        (["127.0.1.1", "10.0.0.7"], "10.0.0.7"),
        (["127.0.1.1"], None),
        (["0.0.0.0", "127.0.0.1"], None),
        ([], None),
    ],
)
def test_a_wildcard_announces_an_address_that_others_can_use(found, usable):
    """Debian gives a machine's name the address 127.0.1.1."""
    assert usable_address(found) == usable


def test_a_folder_keeps_everything_over_a_stop_and_a_crash(tmp_path):
    async def story():
        for end in ("crash", "stop", "crash"):
            broker = EmbeddedBroker(tmp_path)
            await broker.start()
            client = await Client.open(broker.address)
            before = int((await client.call(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0))).fields["offset"])
            for number in range(10):
                await client.call(*send(b"%d" % (before + number)))
            await client.close()
            await (broker.crash() if end == "crash" else broker.stop())
        async with EmbeddedBroker(tmp_path) as broker:
            client = await Client.open(broker.address)
            body = (await client.call(*pull(0))).body
            assert [message.body for message in decode_messages(body)] == [b"%d" % number for number in range(30)]
            await client.close()

    run(story)


def test_a_memory_broker_goes_on_after_a_crash():
    async def story():
        first = EmbeddedBroker()
        await first.start()
        client = await Client.open(first.address)
        await client.call(*send(b"kept"))
        await first.crash()
        assert await client.read() is None
        async with EmbeddedBroker(storage=first.storage) as second:
            client = await Client.open(second.address)
            assert decode_messages((await client.call(*pull(0))).body)[0].body == b"kept"
            await client.close()

    run(story)


def test_ports_and_folders_in_use_and_addresses_that_are_not_up_may_pass(tmp_path):
    async def story():
        async with EmbeddedBroker(tmp_path) as broker:
            port = int(broker.address.rpartition(":")[2])
            with pytest.raises(RocketcrewError, match=f"port {port} on 127.0.0.1 is in use") as taken:
                await EmbeddedBroker(port=port).start()
            with pytest.raises(RocketcrewError, match="in use by another broker") as held:
                await EmbeddedBroker(tmp_path).start()
        async with EmbeddedBroker(tmp_path, port=port):
            pass
        with pytest.raises(RocketcrewError, match="cannot be bound") as away:
            await EmbeddedBroker(config=BrokerConfig(host="192.0.2.1")).start()
        assert not any(isinstance(error.value, UsageError) for error in (taken, held, away))

    run(story)


@pytest.mark.parametrize("tls", [False, True])
def test_a_start_that_fails_when_its_ports_are_served_serves_them_no_more(tmp_path, tls):
    """Its ports' tasks went on, with sockets that were closed."""
    paths = {}
    if tls:
        issued = trustme.CA().issue_cert("127.0.0.1")
        paths = {"tls_cert_path": str(tmp_path / "cert.pem"), "tls_key_path": str(tmp_path / "key.pem")}
        issued.private_key_and_cert_chain_pem.write_to_path(paths["tls_cert_path"])
        issued.private_key_pem.write_to_path(paths["tls_key_path"])

    class Broken:
        """A clock that stops after its first looks."""

        looks = 1

        def __call__(self):
            self.looks -= 1
            if self.looks < 0:
                raise RuntimeError("no clock")
            return 1_700_000_000_000

    async def story():
        clock = Broken()
        broker = EmbeddedBroker(tmp_path / "data", clock_ms=clock, config=BrokerConfig(**paths))
        with pytest.raises(RuntimeError, match="no clock"):
            await broker.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not broker.is_running
        clock.looks = 1_000
        await broker.start()
        if not tls:
            client = await Client.open(broker.address)
            assert (await client.call(*send())).code == 0
            await client.close()
        await broker.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(story)


def test_one_flush_covers_what_several_connections_sent_together():
    """The first one's began at once, and the others waited for it and for the next one."""

    class Disk(MemoryStorage):
        has_disk = True
        begun = 0

        def sync(self, *names):
            self.begun += bool(names)
            return 0

    async def story():
        disk = Disk()
        async with EmbeddedBroker(storage=disk, config=BrokerConfig(flush="sync")) as broker:
            clients = [await Client.open(broker.address) for _ in range(4)]
            assert [(await client.call(*pull(0))).code for client in clients]  # all are served
            begun = disk.begun
            send_together(broker, clients)
            while broker.core.state.put_count < len(clients):  # noqa: ASYNC110  turns of the loop are what is counted
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert disk.begun == begun + 1
            broker._edge.flushed()
            assert [(await client.read()).code for client in clients] == [0] * len(clients)
            assert disk.begun == begun + 1
            for client in clients:
                await client.close()

    run(story)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("end", ["stop", "crash"])
def test_a_broker_that_ended_has_no_descriptor_left(tmp_path, end):
    async def story():
        broker = EmbeddedBroker(tmp_path / "data")
        left = []
        for _ in range(2):
            await broker.start()
            client = await Client.open(broker.address)
            assert (await client.call(*send())).code == 0
            await client.close()
            await getattr(broker, end)()
            left.append(os.listdir("/proc/self/fd"))
        assert left[0] == left[1]

    run(story)


def test_stop_closes_connections_and_twice_is_no_harm():
    async def story():
        broker = EmbeddedBroker()
        await broker.start()
        client = await Client.open(broker.address)
        await client.call(*send())
        await broker.stop()
        await broker.stop()
        assert await client.read() is None
        with pytest.raises(ConnectionRefusedError):
            await Client.open(broker.address)

    run(story)


def test_idle_connections_are_closed():
    class Moved:
        """A clock that the test moves; the timer's waits are real and short."""

        now_ms = 1_700_000_000_000

        def __call__(self):
            return self.now_ms

    async def story():
        clock = Moved()
        async with EmbeddedBroker(clock_ms=clock) as broker:
            client = await Client.open(broker.address)
            await client.call(*send())
            clock.now_ms += 121_000
            assert await client.read() is None

    run(story)


@pytest.mark.parametrize("is_closing", [False, True])
def test_an_idle_connection_is_closed_also_when_its_peer_leaves_answers_unread(is_closing):
    """Its close waited for them, for ever: the peer kept its place and a descriptor."""

    async def story():
        times = [1_700_000_000_000]
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            peer, connection = await _peer_that_has_not_read(broker)
            if is_closing:
                connection.close()
            for _ in range(1_000):  # its kernel may take some more at first
                if connection.channel is None:
                    break
                times[0] += 12_000
                broker._edge._tick()
                await asyncio.sleep(0)
            assert connection.channel is None
            peer.close()

    run(story)


def test_a_connection_whose_peer_reads_slowly_is_not_idle():
    async def story():
        times = [1_700_000_000_000]
        loop = asyncio.get_running_loop()
        async with EmbeddedBroker(clock_ms=lambda: times[0]) as broker:
            peer, connection = await _peer_that_has_not_read(broker)
            received = turns = 0
            while waiting := connection._transport.get_write_buffer_size():
                while connection._transport.get_write_buffer_size() == waiting:
                    received += len(await loop.sock_recv(peer, 4_096))
                    await asyncio.sleep(0)
                times[0] += IDLE_MS // 2
                broker._edge._tick()
                turns += 1
            assert turns > 2
            while received < ANSWER_BYTES:
                received += len(data := await loop.sock_recv(peer, 65_536))
                assert data
            peer.close()

    run(story)


ANSWER_BYTES = 900_000


async def _peer_that_has_not_read(broker):
    """A socket that asked for an answer, and the connection that has most of it in its write buffer."""
    loop = asyncio.get_running_loop()
    sender = await Client.open(broker.address)
    assert (await sender.call(*send(b"x" * ANSWER_BYTES))).code == 0
    await sender.close()
    await until(lambda: not broker._edge._connections)
    peer = socket.socket()
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    host, _, port = broker.address.rpartition(":")
    await loop.sock_connect(peer, (host, int(port)))
    await until(lambda: broker._edge._connections)
    (connection,) = broker._edge._connections.values()
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    code, header = pull(0)
    await loop.sock_sendall(peer, encode(Command(code, header.to_fields(), b"", 1)))
    await until(connection._transport.get_write_buffer_size)
    assert not connection.is_lagging
    return peer, connection


def test_too_many_connections():
    async def story():
        async with EmbeddedBroker() as broker:
            edge: Edge = broker._edge
            taken = [object() for _ in range(10_000)]
            edge._connections.update({-number - 1: item for number, item in enumerate(taken)})
            client = await Client.open(broker.address)
            assert await client.read() is None
            edge._connections.clear()

    run(story)


def test_connections_leave_files_for_the_store():
    """They were 10,000 whatever the process may open: the store had no descriptor left."""
    assert [connections_max(files) for files in (-1, 1 << 20, 1_024, 64)] == [10_000, 10_000, 704, 16]


def test_connections_that_cannot_be_taken_are_one_line():
    async def story():
        loop, heard = asyncio.get_running_loop(), []
        async with EmbeddedBroker() as broker:
            with structlog.testing.capture_logs() as lines:
                for number in (errno.EMFILE, errno.ENFILE):
                    error = OSError(number, "Too many open files")
                    broker.loop_failed(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert [(line["event"], "Too many" in line["reason"]) for line in lines] == [("connection.not_accepted", True)]
        broker.loop_failed(_Heard(heard), {"message": "something else"})
        assert heard == [{"message": "something else"}]

    run(story)


class _Heard:
    """Stands for a loop: what its own handler got."""

    def __init__(self, heard):
        self.default_exception_handler = heard.append


def test_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")

    async def story():
        try:
            broker = EmbeddedBroker(config=BrokerConfig(host="::1"))
            await broker.start()
        except UsageError:
            pytest.skip("no IPv6 loopback on this machine")
        client = await Client.open(broker.address)
        await client.call(*send())
        (message,) = decode_messages((await client.call(*pull(0))).body)
        assert (message.born_host, message.store_host) == ("::1", "::1")
        await client.close()
        await broker.stop()

    run(story)


@pytest.mark.parametrize("end", ["crash", "stop"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_same_broker_starts_again_on_its_ports(tmp_path, end, on_disk):
    async def story():
        broker = EmbeddedBroker(tmp_path if on_disk else None)
        await broker.start()
        addresses = broker.name_server, broker.address
        client = await Client.open(broker.address)
        await client.call(*send(b"kept"))
        await (broker.crash() if end == "crash" else broker.stop())
        await broker.start()
        assert (broker.name_server, broker.address) == addresses
        client = await Client.open(broker.address)
        assert decode_messages((await client.call(*pull(0))).body)[0].body == b"kept"
        await client.close()
        await broker.stop()

    run(story)


def test_the_name_server_can_be_intercepted_too():
    async def story():
        async with EmbeddedBroker() as broker:
            broker.name_server_intercepts.append(lambda command: command.response(ResponseCode.SYSTEM_BUSY))
            client = await Client.open(broker.name_server)
            assert (
                await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T"))
            ).code == ResponseCode.SYSTEM_BUSY
            await client.close()

    run(story)


def test_a_broker_registers_with_the_name_servers_of_others_and_leaves_them():
    """The other one is an embedded name server too; topics that come later are known there without a further word."""

    async def scenario():
        async with EmbeddedBroker(config=BrokerConfig(name="theirs")) as theirs:
            first, registered = asyncio.Event(), asyncio.Event()

            def seen(command):
                if command.code == RequestCode.REGISTER_BROKER:
                    first.set()
                    if b'"late"' in bytes(command.body):
                        registered.set()

            theirs.name_server_intercepts.append(seen)
            config = BrokerConfig(name="ours", register_with=(theirs.name_server,))
            asking = await Client.open(theirs.name_server)

            async def brokers():
                info = await asking.call(RequestCode.GET_BROKER_CLUSTER_INFO)
                return sorted(ClusterInfo.decode(info.body).broker_addr_table)

            async with EmbeddedBroker(config=config) as ours:
                await first.wait()
                assert await brokers() == ["ours", "theirs"]
                made = CreateTopic("late", "TBW102", 2, 2, 6, "SINGLE_TAG")
                assert (
                    await (await Client.open(ours.address)).call(RequestCode.UPDATE_AND_CREATE_TOPIC, made)
                ).code == 0
                await registered.wait()
                route = await asking.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("late", True))
                (data,) = TopicRouteData.decode(route.body).broker_datas
                assert data.broker_addrs == {0: ours.address}
            assert await brokers() == ["theirs"]

    asyncio.run(asyncio.wait_for(scenario(), 6 * SECONDS))


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("127.0.0.7", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("192.0.2.7", True)],
)
def test_ports_that_others_reach_are_open_to_all_unless_an_acl_says_who_may(host, is_open):
    assert is_open_to_all(BrokerConfig(host=host)) == is_open
    assert not is_open_to_all(BrokerConfig(host=host, acl_file="acl.yml"))
