"""Who of the brokers hears from a producer while it sends nothing: those that may ask after its transactions."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.transactions import LocalTransactionState
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode

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


@pytest.mark.parametrize("interval_ms", [20, PATIENT_MS], ids=["with the next heartbeat", "before it"])
async def test_a_lost_connection_is_made_anew_for_the_broker_that_asks(make_peer, interval_ms):
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
            assert await broker.hears("asked", times=2) == 0, "nobody is connected who is not asked"


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
