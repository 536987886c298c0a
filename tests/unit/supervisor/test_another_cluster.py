"""What a start finds of another cluster, whose brokers have the same names, is not taken for its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.route_cache import ROUTES_FILE, RouteCache
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.member.route_keeper import RouteKeeper

TOPIC = TopicConfig("orders", read_queue_nums=1, write_queue_nums=1)


async def nothing() -> None:
    """Nobody waits for it here."""


async def start(file: Path, name_servers: str, place: str = "") -> None:
    """Begin as a member does whose routes are kept in `file`; its topic is there if it can be."""
    remoting = Remoting()
    cluster = Cluster(name_servers, client_id="c", remoting=remoting, place=place)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        await RouteKeeper(
            cluster, lambda: [TOPIC.topic_name, "missing"], RouteCache(file), held=set, changed=lambda: None,
            new_brokers=lambda: None, renewed=nothing, run=lambda _: None,
        ).start()  # fmt: skip
    finally:
        await cluster.close()
        await remoting.close()


async def with_topic(broker: EmbeddedBroker) -> None:
    remoting = Remoting()
    cluster = Cluster(broker.name_server, client_id="c", remoting=remoting)
    await Admin(cluster).create_topic(broker.address, TOPIC)
    await cluster.close()
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
        async with (
            EmbeddedBroker(config=BrokerConfig(name="broker-b")) as two,
            EmbeddedBroker(config=BrokerConfig(register_with=(two.name_server,))) as one,
        ):
            await with_topic(one)
            await start(tmp_path / "0" / ROUTES_FILE, one.name_server)
            await start(tmp_path / "0" / ROUTES_FILE, two.name_server)

    asyncio.run(scene())


def test_an_own_broker_is_known_by_its_folder(tmp_path: Path) -> None:
    """Its ports are free ones where somebody has those that are configured."""

    async def scene() -> None:
        async with EmbeddedBroker() as before, EmbeddedBroker() as again:
            await with_topic(before)
            await with_topic(again)
            await start(tmp_path / "0" / ROUTES_FILE, before.name_server, "/its/folder")
            await start(tmp_path / "0" / ROUTES_FILE, again.name_server, "/its/folder")
            with pytest.raises(UsageError, match="is of another cluster"):
                await start(tmp_path / "0" / ROUTES_FILE, before.name_server, "/another/folder")

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
