"""How sends end that their producer's end, or their time limit, cuts short; and what a send keeps and makes once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import TimedOutError, UnreachableError

from .conftest import PATIENT_MS

TOPIC = "orders"
DEADLINE_MS = 200


def route_to(broker):
    return TopicRouteData((QueueData("a", 4, 4, 6),), (BrokerData("a", {0: broker.address}),))


@contextlib.asynccontextmanager
async def with_silence(make_peer, **options):
    """A producer whose broker answers no send, and what the broker was asked."""
    got = asyncio.Queue()

    def hears(command):
        got.put_nowait(command.code)
        return None if command.code == RequestCode.SEND_MESSAGE_V2 else command.response(0)

    async with (
        make_peer(hears) as broker,
        make_peer(lambda command: command.response(0, body=route_to(broker).encode())) as names,
        Producer(names.address, "senders", send_timeout_ms=DEADLINE_MS, **options) as producer,
    ):
        yield producer, got


async def test_a_send_that_close_does_not_wait_for_is_no_error_of_its_caller(make_peer):
    async with with_silence(make_peer) as (producer, got):
        sent = asyncio.create_task(producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS))
        assert await got.get() == RequestCode.SEND_MESSAGE_V2
        await producer.close()
        with pytest.raises(UnreachableError, match=r"sent, no answer: closed by this client"):
            await sent
        assert RequestCode.SEND_MESSAGE_V2 not in got._queue, "it was not sent again"


async def test_a_send_whose_route_is_asked_for_when_its_producer_closes_was_not_cancelled(make_peer):
    async with make_peer() as name_server:
        producer = Producer(name_server.address, send_timeout_ms=0)
        sent = asyncio.create_task(producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS))
        await (await name_server.accept()).next()
        await producer.close()
        with pytest.raises(UnreachableError, match=f"{TOPIC}: no name server has said where it is: closed"):
            await sent


async def test_an_end_that_is_cut_short_leaves_no_connection(make_peer):
    async with with_silence(make_peer) as (producer, got):
        sent = asyncio.create_task(producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS))
        await got.get()
        closing = asyncio.create_task(producer.close())
        while await got.get() != RequestCode.UNREGISTER_CLIENT:
            pass  # a heartbeat
        closing.cancel()
        await asyncio.wait((closing, sent))
        assert closing.cancelled()
        assert producer.cluster.remoting.addresses == []


@pytest.mark.parametrize("send", [Producer.send, Producer.send_oneway])
async def test_a_first_send_waits_for_silent_name_servers_no_longer_than_it_may(make_peer, send):
    access = Access("127.0.0.1:1", request_timeout_ms=PATIENT_MS)
    async with make_peer(lambda _: None) as silent, Producer(access) as producer:
        producer.cluster.name_servers.update(silent.address)
        with pytest.raises(TimedOutError, match=f"{TOPIC}: no name server has said in time where it is"):
            await send(producer, OutgoingMessage(TOPIC, b"x"), timeout_ms=DEADLINE_MS)


async def test_the_queues_of_a_route_are_made_once():
    given = []

    def last(queues):
        given.append(queues)
        return queues[-1]

    async with EmbeddedBroker() as broker, Producer(broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        await producer.send(OutgoingMessage(TOPIC, b"x"))
        for _ in range(3):
            await producer.send(OutgoingMessage(TOPIC, b"x"), selector=last)
        assert given[0][0] is given[1][0] is given[2][0]
        await producer.cluster.route(TOPIC, refresh=True)
        await producer.send(OutgoingMessage(TOPIC, b"x"), selector=last)
    assert given[3][0] is not given[0][0]
    assert given[3] == given[0]


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
def test_a_message_keeps_the_body_that_it_was_given(kind):
    body = kind(b"one")
    message = OutgoingMessage(TOPIC, body)
    body[:] = b"two"
    assert message.body == b"one"


class Counted(asyncio.Task):
    """`looks`: at how many callbacks of their tasks those have looked that took one out."""

    looks = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._callbacks_count = 0

    def add_done_callback(self, *args, **options):
        self._callbacks_count += 1
        super().add_done_callback(*args, **options)

    def remove_done_callback(self, callback):
        Counted.looks += self._callbacks_count
        self._callbacks_count -= 1
        return super().remove_done_callback(callback)


def first_sends(producer, _):
    return lambda: producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=DEADLINE_MS)


def routes_that_are_old(producer, address):
    know(producer.cluster, address, age_s=1e6)
    return lambda: producer.cluster.publish_route(TOPIC, wait_s=DEADLINE_MS / 1000)


def connections(producer, address):
    know(producer.cluster, address, age_s=0)
    return first_sends(producer, address)


def know(cluster, address, age_s):
    route = TopicRouteData((QueueData("a", 4, 4, 6),), (BrokerData("a", {0: address}),))
    cluster._keep(cluster._routes, (TOPIC,), route, learnt=0, checked_s=cluster.clock() - age_s)


@pytest.mark.parametrize("waits", [first_sends, routes_that_are_old, connections])
async def test_whoever_of_many_gives_up_a_wait_does_not_look_at_all_the_others(make_peer, silent_port, waits):
    asyncio.get_running_loop().set_task_factory(lambda loop, coro, **options: Counted(coro, loop=loop, **options))

    async def looks(count):
        async with make_peer() as silent, Producer(silent.address, send_timeout_ms=0) as producer:
            before, wait = Counted.looks, waits(producer, silent_port)
            await asyncio.gather(*(wait() for _ in range(count)), return_exceptions=True)
            return Counted.looks - before

    few, many = await looks(50), await looks(200)
    assert many <= 4 * few
