"""What a start finds of another cluster, whose brokers have the same names, is not taken for its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.asking import ask
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.route_cache import ROUTES_FILE, KnownRoutes, RouteCache
from rocketcrew.remoting.admin_bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketcrew.remoting.admin_headers import RegisterBroker
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.names import MASTER_ID
from rocketcrew.supervisor.member.route_keeper import RouteKeeper

TOPIC = TopicConfig("orders", read_queue_nums=1, write_queue_nums=1)


async def nothing() -> None:
    """Nobody waits for it here."""


async def start(
    file: Path, name_servers: str, place: str = "", then: Callable[[RouteKeeper], Awaitable[None]] | None = None,
    refused: Callable[[UsageError], None] = lambda _: None,
) -> None:  # fmt: skip
    """Begin as a member does whose routes are kept in `file`; its topic is there if it can be."""
    remoting = Remoting()
    cluster = Cluster(name_servers, client_id="c", remoting=remoting, place=place)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        keeper = RouteKeeper(
            cluster, lambda: [TOPIC.topic_name, "missing"], RouteCache(file), held=set, changed=lambda: None,
            new_brokers=lambda: None, renewed=nothing, run=lambda _: None, retry_topic="%RETRY%g", refused=refused,
        )  # fmt: skip
        await keeper.start()
        if then is not None:
            await then(keeper)
    finally:
        await cluster.close()
        await remoting.close()


async def with_topic(broker: EmbeddedBroker) -> None:
    remoting = Remoting()
    cluster = Cluster(broker.name_server, client_id="c", remoting=remoting)
    await Admin(cluster).create_topic(broker.address, TOPIC)
    await cluster.close()
    await remoting.close()


@contextlib.asynccontextmanager
async def registered(names: EmbeddedBroker, address: str) -> AsyncGenerator[None]:
    """A broker at this address, with the topic, is at the name server of another one."""
    remoting = Remoting()
    header = RegisterBroker("embedded", address, "DefaultCluster", "", MASTER_ID, heartbeat_timeout_millis=60_000)
    body = RegisterBrokerBody(TopicConfigTable({TOPIC.topic_name: TOPIC})).encode()
    await ask(remoting, names.name_server, RequestCode.REGISTER_BROKER, header, body=body, timeout_ms=9000)
    yield
    await remoting.close()


@pytest.mark.parametrize("slot", ["0", "1"], ids=["in its slot", "in one beside"])
@pytest.mark.parametrize("exists", [True, False], ids=["its topic exists", "its topic is to come"])
def test_a_start_on_what_another_cluster_has_left_is_refused(tmp_path: Path, slot: str, exists: bool) -> None:
    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            await with_topic(one)
            if exists:
                await with_topic(two)
            left = tmp_path / "0" / ROUTES_FILE
            await start(left, one.name_server)
            as_left = left.read_bytes()
            with pytest.raises(
                UsageError, match=f"{tmp_path} is of another cluster: the last run was at {one.name_server}"
            ):
                await start(tmp_path / slot / ROUTES_FILE, two.name_server)
            assert left.read_bytes() == as_left
            await start(left, one.name_server)

    asyncio.run(scene())


def test_name_servers_are_replaced_one_by_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            await with_topic(one)
            await with_topic(two)
            for name_servers in (one.name_server, f"{two.name_server};{one.name_server}", two.name_server):
                await start(tmp_path / "0" / ROUTES_FILE, name_servers)

    asyncio.run(scene())


def test_other_name_servers_that_know_the_same_broker_are_of_its_cluster(tmp_path: Path) -> None:
    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker(config=BrokerConfig(name="broker-b")) as two:
            await with_topic(one)
            await start(tmp_path / "0" / ROUTES_FILE, one.name_server)
            async with registered(two, one.address):
                await start(tmp_path / "0" / ROUTES_FILE, two.name_server)
            assert RouteCache(tmp_path / "0" / ROUTES_FILE).load().before == ()

    asyncio.run(scene())


def test_an_own_broker_is_known_by_its_folder(tmp_path: Path) -> None:
    """Its ports are free ones where somebody has those that are configured."""

    its, another = tmp_path / "its", tmp_path / "another"
    its.mkdir()

    async def scene() -> None:
        async with EmbeddedBroker() as before, EmbeddedBroker() as again:
            await with_topic(before)
            await with_topic(again)
            await start(tmp_path / "0" / ROUTES_FILE, before.name_server, str(its))
            await start(tmp_path / "0" / ROUTES_FILE, again.name_server, str(its))
            for name_server in (before.name_server, again.name_server):
                with pytest.raises(UsageError, match="is of another cluster"):
                    await start(tmp_path / "0" / ROUTES_FILE, name_server, str(another))
            its.rename(another)  # with the whole project: at the ports that it had it is known again
            with pytest.raises(UsageError, match="is of another cluster"):
                await start(tmp_path / "0" / ROUTES_FILE, before.name_server, str(another))
            await start(tmp_path / "0" / ROUTES_FILE, again.name_server, str(another))

    asyncio.run(scene())


def test_a_folder_of_an_own_broker_that_cannot_be_looked_at_is_taken_for_gone(tmp_path: Path) -> None:
    """As one of another user, or on a mount that is lost; of these here the name is too long."""

    async def scene() -> None:
        async with EmbeddedBroker() as broker:
            await with_topic(broker)
            await start(tmp_path / "0" / ROUTES_FILE, broker.name_server, str(tmp_path / ("x" * 300)))
            await start(tmp_path / "0" / ROUTES_FILE, broker.name_server, str(tmp_path))

    asyncio.run(scene())


def test_a_cluster_with_brokers_of_other_names_is_no_danger(tmp_path: Path) -> None:
    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker(config=BrokerConfig(name="broker-b")) as two:
            await with_topic(one)
            await with_topic(two)
            file = tmp_path / "0" / ROUTES_FILE
            await start(file, one.name_server)
            await start(file, two.name_server)
            assert [data.broker_name for data in RouteCache(file).load().brokers] == ["broker-b"]

    asyncio.run(scene())


def test_where_nobody_tells_of_brokers_a_start_goes_on(tmp_path: Path) -> None:
    """A proxy of 5.x, whose routes name itself in place of the brokers."""

    def refuse(command: Command) -> Command | None:
        is_asked = command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return command.response(3, remark="request type 106 not supported") if is_asked else None

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            await with_topic(one)
            await with_topic(two)
            two.name_server_intercepts.append(refuse)
            file = tmp_path / "0" / ROUTES_FILE
            await start(file, one.name_server)
            await start(file, two.name_server)

    asyncio.run(scene())


ELSEWHERE = "127.0.0.1:9"


def test_another_cluster_is_found_when_its_broker_registers_in_the_same_run(tmp_path: Path) -> None:
    """Nobody hears of its route: no queue of it is opened."""
    file, heard = tmp_path / "0" / ROUTES_FILE, list[UsageError]()

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker(config=BrokerConfig(name="broker-b")) as names:
            await with_topic(one)
            await start(file, one.name_server)

            async def later(keeper: RouteKeeper) -> None:
                assert heard == []
                async with registered(names, ELSEWHERE):
                    await keeper.refresh()
                assert keeper.missing() == [TOPIC.topic_name, "missing"]

            await start(file, names.name_server, then=later, refused=heard.append)
            assert f"the last run was at {one.name_server}" in str(heard[0])
            assert RouteCache(file).load().name_servers == (one.name_server,)

    asyncio.run(scene())


def test_another_cluster_is_found_when_its_broker_registers_for_a_later_start(tmp_path: Path) -> None:
    """Routes of its other brokers were saved meanwhile."""
    file = tmp_path / "0" / ROUTES_FILE

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker(config=BrokerConfig(name="broker-b")) as names:
            await with_topic(one)
            await start(file, one.name_server)
            await with_topic(names)
            for _ in range(2):
                await start(file, names.name_server)
                assert [data.broker_name for data in RouteCache(file).load().brokers] == ["broker-b"]
            async with registered(names, ELSEWHERE):
                with pytest.raises(UsageError, match=f"the last run was at {one.name_server}"):
                    await start(file, names.name_server)

    asyncio.run(scene())


def test_the_same_cluster_is_known_by_a_broker_that_registers_later(tmp_path: Path) -> None:
    file = tmp_path / "0" / ROUTES_FILE

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker(config=BrokerConfig(name="broker-b")) as names:
            await with_topic(one)
            await start(file, one.name_server)

            async def later(keeper: RouteKeeper) -> None:
                async with registered(names, one.address):
                    await keeper.refresh()
                assert keeper.missing() == ["missing"]

            await start(file, names.name_server, then=later)
            saved = RouteCache(file).load()
            assert (saved.name_servers, saved.before) == ((names.name_server,), ())

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("places", "cluster", "moved", "refused"),
    [
        (("/a", "/b"), "DefaultCluster", False, True),
        (("/a", "/a"), "DefaultCluster", True, False),
        (("/a", ""), "DefaultCluster", False, False),  # `rocketcrew broker` on the same folder
        (("/a", ""), "DefaultCluster", True, True),
        (("", "/a"), "other", False, True),
        (("", ""), "other", True, True),  # a tunnel that leads elsewhere
        (("", ""), "other", False, False),
        (("", ""), "DefaultCluster", True, False),  # a broker that moved
    ],
)
def test_at_the_same_name_server(
    tmp_path: Path, places: tuple[str, str], cluster: str, moved: bool, refused: bool
) -> None:
    file = tmp_path / "0" / ROUTES_FILE
    first, second = (f"{tmp_path}{place}" if place else "" for place in places)
    for place in filter(None, (first, second)):
        Path(place).mkdir(exist_ok=True)

    async def scene() -> None:
        async with EmbeddedBroker() as one:
            await with_topic(one)
            await start(file, one.name_server, first)
            at, port = (int(address.partition(":")[2]) for address in (one.name_server, one.address))
        config = BrokerConfig(cluster=cluster)
        async with EmbeddedBroker(config=config, name_server_port=at, port=0 if moved else port) as two:
            await with_topic(two)
            with pytest.raises(UsageError, match="is of another cluster") if refused else contextlib.nullcontext():
                await start(file, two.name_server, second)

    asyncio.run(scene())


def test_what_a_proxy_said_of_itself_is_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "0" / ROUTES_FILE

    async def scene() -> None:
        async with EmbeddedBroker() as one:
            await with_topic(one)
            await start(file, one.name_server)
            cache, proxy = RouteCache(file), "127.0.0.1:8080"
            routes = {
                topic: replace(
                    route, broker_datas=tuple(replace(data, broker_addrs={0: proxy}) for data in route.broker_datas)
                )
                for topic, route in cache.load().routes.items()
            }
            cache.save(KnownRoutes((proxy,), routes))
            await start(file, one.name_server)

    asyncio.run(scene())


def test_a_name_server_that_ends_the_connection_when_asked_for_brokers_keeps_no_start(tmp_path: Path) -> None:
    file = tmp_path / "0" / ROUTES_FILE

    def end(command: Command) -> None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            raise ConnectionError

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            await with_topic(one)
            await with_topic(two)
            two.name_server_intercepts.append(end)
            await start(file, one.name_server)
            await start(file, two.name_server)
            two.name_server_intercepts.clear()
            with pytest.raises(UsageError, match=f"the last run was at {one.name_server}"):  # it was not forgotten
                await start(file, two.name_server)

    asyncio.run(scene())
