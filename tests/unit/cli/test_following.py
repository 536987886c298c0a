"""`tail`: what comes of a topic, for as long as somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.following import Following
from rocketcrew.cli.messages import Filter, Silent, Stored, of_each_queue
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage

NOBODY = "127.0.0.1:1"
READ_AND_WRITE = 6
FEW_S = 0.01


class Site:
    """A name server, and two brokers with a queue of the topic each; either may be away."""

    def __init__(self, *brokers: EmbeddedBroker) -> None:
        self.brokers: dict[str, EmbeddedBroker] = dict(zip(("broker-a", "broker-b"), brokers, strict=True))
        self.addresses: dict[str, str] = {name: broker.address for name, broker in self.brokers.items()}
        self.said: list[str] = []
        self.shown: list[bytes] = []
        self.came = asyncio.Event()

    def route(self, command: Command) -> Command | None:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return None
        queues = tuple(QueueData(name, 1, 1, READ_AND_WRITE) for name in self.addresses)
        brokers = tuple(BrokerData(name, {0: address}) for name, address in self.addresses.items())
        return command.response(ResponseCode.SUCCESS, body=TopicRouteData(queues, brokers).encode())

    def leaves(self, name: str) -> None:
        self.addresses[name] = NOBODY

    def returns(self, name: str) -> None:
        self.addresses[name] = self.brokers[name].address

    async def send(self, name: str, body: bytes) -> None:
        async with Producer(self.brokers[name].name_server, "senders") as producer:
            await producer.send(OutgoingMessage("orders", body))

    def say(self, text: str) -> None:
        self.said.append(text.partition(":")[0])
        self.came.set()

    def show(self, _broker: str, message: StoredMessage) -> None:
        self.shown.append(message.body)
        self.came.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.came.clear()
            await self.came.wait()


def play(scene: Callable[[Site, Following], Awaitable[None]]) -> None:
    async def run() -> None:
        async with EmbeddedBroker() as names, EmbeddedBroker() as first, EmbeddedBroker() as second:
            site = Site(first, second)
            names.name_server_intercepts.append(site.route)
            for broker in (first, second):
                async with open_cluster(broker.name_server) as own:
                    await Admin(own).create_topic(broker.address, TopicConfig("orders", 1, 1))
            async with open_cluster(names.name_server) as cluster:
                await scene(site, Following(cluster, "orders", Filter(), site.say, silent_s=FEW_S))

    asyncio.run(run())


def test_what_comes_is_shown_from_the_end_on() -> None:
    async def scene(site: Site, following: Following) -> None:
        await site.send("broker-a", b"before")
        await following.begin()
        await site.send("broker-a", b"one")
        await site.send("broker-b", b"two")
        await following.show(FEW_S, 2, site.show)
        assert (site.shown, site.said) == ([b"one", b"two"], [])

    play(scene)


def test_a_broker_that_goes_away_is_named_and_read_on_where_it_was_when_it_is_back() -> None:
    async def scene(site: Site, following: Following) -> None:
        await following.begin()
        site.leaves("broker-b")
        showing = asyncio.ensure_future(following.show(FEW_S, 2, site.show))
        await site.until(lambda: bool(site.said))
        await site.send("broker-b", b"meanwhile")
        await site.send("broker-a", b"other")
        await site.until(lambda: bool(site.shown))
        site.returns("broker-b")
        await showing
        assert site.shown == [b"other", b"meanwhile"]
        assert site.said == ["broker-b does not answer, the others are shown", "broker-b answers again"]

    play(scene)


def test_what_was_read_before_its_broker_went_away_is_kept() -> None:
    """It is not read again: the queue was passed."""
    read, away = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
    message = StoredMessage("orders", b"x", b"")

    async def look(mq: MessageQueue) -> list[Stored]:
        if mq == away:
            raise UnreachableError(NOBODY)
        return [("broker-a", message)]

    silent: Silent = {}
    assert asyncio.run(of_each_queue([read, away], look, silent)) == [("broker-a", message)]
    assert list(silent) == ["broker-a"]
    with pytest.raises(UnreachableError):
        asyncio.run(of_each_queue([away], look, {}))


def test_of_one_that_is_away_at_the_begin_nothing_old_is_shown() -> None:
    async def scene(site: Site, following: Following) -> None:
        await site.send("broker-b", b"old")
        site.leaves("broker-b")
        await following.begin()
        showing = asyncio.ensure_future(following.show(FEW_S, 1, site.show))
        site.returns("broker-b")
        await site.until(lambda: "broker-b answers again" in site.said)
        await site.send("broker-b", b"new")
        await showing
        assert site.shown == [b"new"]

    play(scene)


def test_it_does_not_begin_where_no_broker_answers() -> None:
    async def scene(site: Site, following: Following) -> None:
        for name in site.brokers:
            site.leaves(name)
        with pytest.raises(UnreachableError):
            await following.begin()

    play(scene)


def test_it_goes_on_where_all_go_away_and_come_back() -> None:
    async def scene(site: Site, following: Following) -> None:
        await following.begin()
        for name in site.brokers:
            site.leaves(name)
        showing = asyncio.ensure_future(following.show(FEW_S, 1, site.show))
        await site.until(lambda: len(site.said) == 2)
        await site.send("broker-a", b"meanwhile")
        site.returns("broker-a")
        await showing
        assert site.shown == [b"meanwhile"]

    play(scene)
