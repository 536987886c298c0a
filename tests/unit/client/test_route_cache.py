"""Routes on disk: there and back, whole or not at all, and a start without name servers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rocketcrew.client.access import Access
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.route_cache import FILE_BYTES_MAX, KnownRoutes, RouteCache, decode_routes, encode_routes
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue


def route_of(*names):
    return TopicRouteData(
        queue_datas=tuple(QueueData(name, 2, 2, 6) for name in names),
        broker_datas=tuple(BrokerData(name, {0: f"{name}:10911", 1: f"{name}:20911"}, "c") for name in names),
    )


KNOWN = KnownRoutes(
    ("ns:9876",), {"t": route_of("a", "b"), "%RETRY%g": route_of("a")}, "http://ns:8080/rocketmq/nsaddr"
)


def test_there_and_back(tmp_path):
    RouteCache(tmp_path / "routes.json").save(KNOWN)
    found = RouteCache(tmp_path / "routes.json").load()
    assert found == KNOWN
    assert [file.name for file in tmp_path.iterdir()] == ["routes.json"]


def test_no_file_is_nothing_known(tmp_path):
    assert RouteCache(tmp_path / "none").load() == KnownRoutes()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"{}", b'{"version":1,"name_servers":[],"routes":{}}', b"\xff", b'{"version":2,"routes":3}',
     b'{"version":2,"name_servers":[],"routes":{"t":7},"place":""}', b"[" * 100_000, encode_routes(KNOWN)[:-20]],
)  # fmt: skip
def test_a_damaged_file_is_not_used_and_then_replaced(tmp_path, data):
    file = tmp_path / "routes.json"
    file.write_bytes(data)
    cache = RouteCache(file)
    assert cache.load() == KnownRoutes()
    cache.save(KNOWN)
    assert cache.load().routes == KNOWN.routes


def test_a_file_that_cannot_be_used_is_named_once_and_those_beside_it_are_read(tmp_path):
    cache = RouteCache(tmp_path / "0" / "routes.json")
    for slot in ("0", "1"):
        (tmp_path / slot).mkdir()
    cache.path.write_bytes(b'{"version":1,"name_servers":[],"routes":{}}')
    RouteCache(tmp_path / "1" / "routes.json").save(KNOWN)
    with capture_logs() as lines:
        cache.load()
        assert list(cache.load_all()) == [KnownRoutes(), KNOWN]
    assert [line["event"] for line in lines] == ["saved_routes_not_used"]


def test_the_file_is_bounded(tmp_path):
    many = {f"topic-{number:06}": route_of(*(f"broker-{name}" * 20 for name in range(100))) for number in range(700)}
    data = encode_routes(KnownRoutes((), many))
    assert FILE_BYTES_MAX * 0.9 < len(data) <= FILE_BYTES_MAX
    assert "topic-000000" in decode_routes(data).routes
    (tmp_path / "large").write_bytes(b" " * (FILE_BYTES_MAX + 1))
    assert RouteCache(tmp_path / "large").load() == KnownRoutes()


def test_what_did_not_change_is_not_written_again(tmp_path):
    cache = RouteCache(tmp_path / "routes.json")
    cache.save(KNOWN)
    (tmp_path / "routes.json").unlink()
    cache.save(KNOWN)
    assert not (tmp_path / "routes.json").exists()
    cache.save(KnownRoutes((), {}))
    assert json.loads((tmp_path / "routes.json").read_text())["routes"] == {}


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    RouteCache(tmp_path / "gone" / "routes.json").save(KNOWN)


async def test_a_start_without_name_servers_goes_by_the_last_run(closed_port):
    cluster = Cluster(closed_port, client_id="c", remoting=Remoting())
    with pytest.raises(UnreachableError, match="no name server answered"):
        await cluster.queues_to_read("t")
    cluster.offer(replace(KNOWN, name_servers=("moved:9876", closed_port)))
    assert MessageQueue("t", "b", 1) in await cluster.queues_to_read("t")
    assert cluster.all_broker_addresses() == ["a:10911", "a:20911", "b:10911", "b:20911"]
    assert cluster.known_routes().routes == {"t": KNOWN.routes["t"]}
    with pytest.raises(UnreachableError):
        await cluster.route("t", refresh=True)  # who must know is not told old news
    await cluster.close()


async def test_the_routes_of_another_cluster_are_not_used(closed_port):
    """Its brokers may have the names of ours: our group's offsets would move there."""
    cluster = Cluster(closed_port, client_id="c", remoting=Remoting())
    cluster.offer(replace(KNOWN, place=""))
    with pytest.raises(UnreachableError, match=r"refused\. The last run was at ns:9876: its routes are not used here"):
        await cluster.route("t")
    assert (cluster.all_broker_addresses(), cluster.known_routes().routes) == ([], {})
    await cluster.close()


@pytest.mark.parametrize("code", [3, 17], ids=["a broker's port was given", "no such topic"])
async def test_a_refusal_is_an_answer(make_peer, code):
    remoting = Remoting()
    async with make_peer(lambda command: command.response(code, remark="request type 105 not supported")) as server:
        cluster = Cluster(server.address, client_id="c", remoting=remoting)
        cluster.offer(replace(KNOWN, name_servers=(server.address,)))
        with pytest.raises(BrokerError, match="request type 105 not supported"):
            await cluster.route("t")
        await cluster.close()
    await remoting.close()


async def test_name_servers_that_were_told_are_kept_for_the_next_start(make_peer, closed_port):
    remoting = Remoting()
    async with make_peer(lambda command: command.response(0, body=route_of("a").encode())) as server:
        cluster = Cluster(Access(namesrv_domain=closed_port), client_id="c", remoting=remoting)
        cluster.offer(KnownRoutes((server.address,), {}, "http://other/rocketmq/nsaddr"))
        with pytest.raises(UnreachableError, match="the address server cannot be reached"):
            await cluster.route("t")
        place = f"http://{closed_port}/rocketmq/nsaddr"
        cluster.offer(KnownRoutes((server.address,), {}, place))
        assert await cluster.route("t") == route_of("a")
        assert cluster.known_routes() == KnownRoutes([server.address], {"t": route_of("a")}, place)
        await cluster.close()
    await remoting.close()


async def test_routes_of_the_same_address_server_are_used_wherever_its_name_servers_are(closed_port):
    """And a name server that an address server told of may be configured later, or the other way round."""
    cluster = Cluster(Access(namesrv_domain=closed_port), client_id="c", remoting=Remoting())
    cluster.offer(replace(KNOWN, name_servers=(closed_port,), place=f"http://{closed_port}/rocketmq/nsaddr"))
    assert await cluster.route("t") == KNOWN.routes["t"]
    assert cluster.is_of(KnownRoutes((closed_port,)))
    assert not cluster.is_of(KnownRoutes(("moved:9876",), place="http://other/rocketmq/nsaddr"))
    await cluster.close()


async def test_connections_to_brokers_that_vanished_end_when_they_are_answered(make_peer):
    remoting = Remoting()
    async with make_peer() as gone, make_peer(lambda command: command.response(0)) as stays:
        there = {"gone": gone, "stays": stays}

        def answer(command):
            brokers = tuple(BrokerData(name, {0: peer.address}) for name, peer in there.items())
            queues = tuple(QueueData(name, 1, 1, 6) for name in there)
            return command.response(0, body=TopicRouteData(queues, brokers).encode())

        async with make_peer(answer) as names:
            cluster = Cluster(names.address, client_id="c", remoting=remoting)
            await cluster.route("t")
            sent = asyncio.create_task(remoting.request(gone.address, Command(310), timeout_ms=9000))
            pulled = asyncio.create_task(remoting.request(gone.address, Command(11), timeout_ms=9000))
            wire = await gone.accept()
            send = {each.code: each for each in (await wire.next(), await wire.next())}[310]
            await remoting.request(stays.address, Command(34), timeout_ms=9000)
            del there["gone"]
            await cluster.refresh()
            assert cluster.all_broker_addresses() == [stays.address]
            assert sorted(remoting.addresses) == sorted([stays.address, names.address])
            with pytest.raises(UnreachableError, match="nobody names this address any more"):
                await pulled  # which whoever replaced it answers
            wire.answer(send, 19)
            assert (await sent).code == 19
            await wire.closed_by_client()
            await cluster.close()
    await remoting.close()
