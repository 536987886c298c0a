"""Who of the brokers hears from a producer while it sends nothing: those that may ask after its transactions."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace

import pytest
import structlog

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.presence import HEARTBEAT_INTERVAL_MS, Presence
from rocketcrew.client.producer import Producer
from rocketcrew.client.transactions import LocalTransactionState
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError

from .conftest import PATIENT_MS

TOPIC = "orders"
STORED = {"msgId": "x", "queueId": "0", "queueOffset": "1"}
QUICK = BrokerConfig(transaction_timeout_ms=20, transaction_check_interval_ms=50)


def committed(message):
    return LocalTransactionState.COMMIT_MESSAGE


def unknown(*_):
    return LocalTransactionState.UNKNOW


class Broker:
    """A peer's handler: stores whatever is sent, and keeps who sent a heartbeat."""

    def __init__(self):
        self.heard = asyncio.Queue()

    def __call__(self, command):
        if command.code == RequestCode.HEART_BEAT:
            self.heard.put_nowait(bytes(command.body))
        return command.response(0, STORED)

    async def hears(self, group, times=1):
        """Wait for heartbeats of the group; the number of others before them."""
        others = 0
        while times:
            found = f'"{group}"'.encode() in await self.heard.get()
            times, others = times - found, others + (not found)
        return others


class Names:
    """A name server's handler: every topic is at the broker; `away`: it is at none, and each question takes 20 s."""

    def __init__(self, address):
        self._route = TopicRouteData((QueueData("a", 1, 1, 6),), (BrokerData("a", {0: address}),)).encode()
        self.away = False
        self.now_s = 0.0
        self.refused = asyncio.Queue()

    def __call__(self, command):
        if not self.away or command.fields["topic"] != TOPIC:
            return command.response(0 if command.fields["topic"] == TOPIC else 17, body=self._route)
        self.now_s += 20
        self.refused.put_nowait(None)
        return command.response(17)


@pytest.mark.parametrize(
    ("interval_ms", "times"), [(20, 2), (PATIENT_MS, 1)], ids=["with the next heartbeat", "before it"]
)
async def test_a_lost_connection_is_made_anew_for_the_broker_that_asks(make_peer, interval_ms, times):
    broker = Broker()
    async with make_peer(broker) as peer, make_peer(Names(peer.address)) as names:
        options = {"send_timeout_ms": PATIENT_MS, "heartbeat_interval_ms": interval_ms}
        async with (
            Producer(names.address, "asked", check=committed, **options) as asked,
            Producer(names.address, "not_asked", **options) as not_asked,
        ):
            await asked.send_in_transaction(OutgoingMessage(TOPIC, b"half"), unknown)
            await not_asked.send(OutgoingMessage(TOPIC, b"x"))
            await broker.hears("asked")
            lost = asyncio.Queue()
            for producer in (asked, not_asked):
                producer.cluster.remoting.on_close(lost.put_nowait)
            for wire in peer.wires:
                wire.cut()
            assert {await lost.get(), await lost.get()} == {peer.address}
            broker.heard = asyncio.Queue()
            assert await broker.hears("asked", times=times) == 0, "nobody is connected who is not asked"


async def test_the_route_of_a_transaction_stays_while_its_broker_is_away_for_long(make_peer):
    broker = Broker()
    async with make_peer(broker) as peer, make_peer(names := Names(peer.address)) as server:
        producer = Producer(
            server.address, "asked", check=committed, send_timeout_ms=PATIENT_MS, heartbeat_interval_ms=5
        )
        producer.cluster.clock = lambda: names.now_s
        async with producer:
            await producer.send_in_transaction(OutgoingMessage(TOPIC, b"half"), unknown)
            names.away = True
            for _ in range(60):
                await names.refused.get()
            broker.heard = asyncio.Queue()
            await broker.hears("asked")


async def test_a_member_that_has_sent_nothing_is_asked():
    ended = asyncio.Event()

    def watch(command):
        if command.code == RequestCode.END_TRANSACTION and command.fields["commitOrRollback"] == "8":
            ended.set()

    async with EmbeddedBroker(config=QUICK) as broker:
        broker.intercepts.append(watch)
        async with Producer(broker.name_server, "senders", check=unknown) as sender:
            await sender.send_half(OutgoingMessage(TOPIC, b"half"))
        async with Producer(broker.name_server, "senders", check=committed, heartbeat_interval_ms=20):
            await ended.wait()


def failures(lines):
    return [line["log_level"] for line in lines if line["event"] == "heartbeat_failed"]


async def test_a_broker_that_is_away_is_a_warning_once_until_it_answers(make_peer):
    away = True
    broker = Broker()

    def serve(command):
        answer = broker(command)
        return command.response(1) if away and command.code == RequestCode.HEART_BEAT else answer

    async with make_peer(serve) as peer, make_peer(Names(peer.address)) as names:
        with structlog.testing.capture_logs() as lines:
            async with Producer(names.address, "asked", check=committed, heartbeat_interval_ms=5) as asked:
                await asked.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
                for away in (True, False, True):  # noqa: B007 - `serve` reads it
                    broker.heard = asyncio.Queue()
                    await broker.hears("asked", times=4)
        levels = failures(lines)
        assert levels.count("warning") == 2
        assert levels.count("debug") >= 2
        assert len([line for line in lines if line["event"] == "heartbeat_answered_again"]) == 1


@pytest.mark.parametrize("end", ["abandoned", "its shared cluster closed"])
async def test_a_producer_that_ended_without_a_close_talks_to_nobody_any_more(make_peer, end):
    broker = Broker()
    async with make_peer(broker) as peer, make_peer(Names(peer.address)) as names:
        with structlog.testing.capture_logs() as lines:
            async with open_cluster(names.address) as cluster:
                before = asyncio.all_tasks()
                target = names.address if end == "abandoned" else cluster
                producer = Producer(target, "asked", check=committed, heartbeat_interval_ms=20)
                producer.start()
                await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
                work = asyncio.all_tasks() - before
                await broker.hears("asked")
                if end == "abandoned":
                    producer.abandon()
            await asyncio.wait(work)
        assert failures(lines) == []
        assert producer.cluster.remoting.addresses == []
        await producer.close()


class Hasty(selectors.DefaultSelector):
    """Sleeps in no time, and adds up how long that would have been."""

    slept_s = 0.0

    def select(self, timeout=None):
        self.slept_s += timeout or 0.0
        return super().select(None if timeout is None else 0)


class Leaping(asyncio.SelectorEventLoop):
    """Its clock leaps to the next timer."""

    def __init__(self):
        self._hasty = Hasty()
        super().__init__(self._hasty)

    def time(self):
        return self._hasty.slept_s


class Cutting:
    """A cluster of one broker, and its connections: from `bad_s` to `good_s` each one is cut as soon as it is made."""

    def __init__(self, bad_s, good_s):
        self.bad_s, self.good_s = bad_s, good_s
        self.access = SimpleNamespace(heartbeat_timeout_ms=lambda _: 3000)
        self.client_id, self.is_closed, self.remoting, self.addresses = "c", False, self, []
        self.heard = []
        """Seconds of each heartbeat."""
        self._made, self._lost = [], []

    def on_connect(self, told):
        self._made.append(told)
        return self._made.clear

    def on_close(self, told):
        self._lost.append(told)
        return self._lost.clear

    def all_broker_addresses(self, masters_only):
        return ["a:1"]

    def broker_at(self, address):
        return "a"

    def connection_of(self, address):
        return address if address in self.addresses else None

    async def route(self, topic):
        """Known."""

    def cut(self):
        for address in self.addresses:
            self.addresses = []
            for told in self._lost:
                told(address)

    async def request(self, address, command, *, timeout_ms, body_sink=None):
        now_s = asyncio.get_running_loop().time()
        if command.code == RequestCode.HEART_BEAT:
            self.heard.append(round(now_s))
        if address not in self.addresses:
            self.addresses = [address]
            for told in self._made:
                told(address)
        await asyncio.sleep(0)  # others send there meanwhile
        if self.bad_s <= now_s < self.good_s:
            self.cut()
            raise UnreachableError(address, "closed by the peer")
        return Command(code=0)


def test_a_broker_that_cuts_each_connection_has_one_series_of_tries_and_another_after_it_was_well():
    cluster = Cutting(10, 605)

    async def run():
        presence = Presence(cluster, "asked", HEARTBEAT_INTERVAL_MS, refresh=False)
        presence.start("TBW102")
        loop = asyncio.get_running_loop()
        for when in (10, 640):
            loop.call_at(when, cluster.cut)
        done = asyncio.Event()
        loop.call_at(650, done.set)
        await done.wait()
        await presence.leave()

    with structlog.testing.capture_logs() as lines, asyncio.Runner(loop_factory=Leaping) as runner:
        runner.run(run())
    regular = range(1, 650, 30)
    assert cluster.heard == sorted([*regular, 11, 13, 17, 25, 41, 641])
    assert failures(lines).count("warning") == 1
