"""Sends whose broker has another address by now, and name servers that say so late, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.selection import by_key
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.errors import BrokerError, UnreachableError

from .clusters import Moves
from .conftest import PATIENT_MS

TOPIC = "orders"
STORED = {"msgId": "x", "queueId": "0", "queueOffset": "1"}


@contextlib.asynccontextmanager
async def producing(name_server, clock):
    remoting = Remoting()
    cluster = Cluster(name_server.address, client_id="c", remoting=remoting, clock=clock)
    try:
        yield Producer(cluster, "senders")
    finally:
        await cluster.close()
        await remoting.close()


async def test_a_send_whose_only_broker_is_elsewhere_finds_it_there(make_peer, closed_port):
    times = itertools.count(1000)  # a second between any two looks at the clock
    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(Moves(closed_port, broker.address)) as name_server,
        producing(name_server, lambda: next(times)) as producer,
    ):
        result = await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert result.attempts == 2


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
async def test_a_send_that_a_master_of_before_refuses_finds_the_one_of_now(make_peer, code):
    """It was made a slave and stays there: each send was refused until the next poll, for half a minute."""
    busy = "[REJECTREQUEST]system busy, start flow control for a while"
    times = itertools.count(1000)
    async with (
        make_peer(lambda command: command.response(code, remark=busy)) as slave,
        make_peer(lambda command: command.response(0, STORED)) as master,
        make_peer(Moves(slave.address, master.address)) as name_server,
        producing(name_server, lambda: next(times)) as producer,
    ):
        result = await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert (result.attempts, len(slave.requests)) == (2, 1)


@contextlib.asynccontextmanager
async def with_a_busy_broker(make_peer, clock):
    """That broker, a name server that says where it is once, and a producer."""
    async with (
        make_peer(lambda command: command.response(ResponseCode.SYSTEM_BUSY)) as broker,
        make_peer(Moves(broker.address, None)) as name_server,
        producing(name_server, clock) as producer,
    ):
        yield broker, name_server, producer


async def test_a_send_to_a_busy_broker_that_was_just_asked_for_is_tried_again_at_once(make_peer):
    async with with_a_busy_broker(make_peer, lambda: 0.0) as (broker, name_server, producer):
        with pytest.raises(BrokerError, match="sent 3 times"):
            await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert (len(broker.requests), len(name_server.requests)) == (3, 1)


async def test_a_send_to_a_busy_broker_does_not_wait_for_a_name_server_that_is_silent(make_peer):
    """Each send took three quarters of its time, where it had failed at once."""
    now_s = [0.0]
    async with with_a_busy_broker(make_peer, lambda: now_s[0]) as (_, name_server, producer):
        await producer.cluster.route(TOPIC)
        now_s[0] = 2.0
        with pytest.raises(BrokerError, match="sent 3 times"):
            await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert len(name_server.requests) == 2
        assert not producer.cluster.is_settled, "it is still asked"


async def test_a_send_does_not_wait_to_its_end_for_a_name_server_that_is_away(make_peer, closed_port):
    times = itertools.count(1000)
    async with (
        make_peer(Moves(closed_port, None)) as name_server,
        producing(name_server, lambda: next(times)) as producer,
    ):
        with pytest.raises(UnreachableError, match="Connection refused"):
            await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=1_000)
        assert len(name_server.requests) == 2


async def test_a_send_by_a_known_route_does_not_wait_for_a_name_server_that_is_silent(make_peer):
    now_s = [0.0]
    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(Moves(broker.address, None)) as name_server,
        producing(name_server, lambda: now_s[0]) as producer,
    ):
        await producer.queues(TOPIC)
        now_s[0] += 30
        for _ in range(5):
            await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=1_000)
        assert len(broker.requests) == 5


async def test_a_send_that_lost_its_broker_after_the_last_question_waits_for_the_next_one(make_peer, closed_port):
    now_s = [0.0]

    def clock():
        now_s[0] += 1e-3
        return now_s[0]

    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(Moves(closed_port, broker.address)) as name_server,
        producing(name_server, clock) as producer,
    ):
        await producer.queues(TOPIC)
        now_s[0] += 0.98
        result = await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert (result.attempts, len(name_server.requests)) == (2, 2)


async def test_a_send_whose_topic_has_left_its_broker_goes_where_it_is_now(make_peer, closed_port):
    def answer(command):
        name, address = places.pop(0) if len(places) > 1 else places[0]
        route = TopicRouteData((QueueData(name, 1, 1, 6),), (BrokerData(name, {0: address}),))
        return command.response(0, body=route.encode())

    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(answer) as name_server,
        producing(name_server, itertools.count(1000).__next__) as producer,
    ):
        places = [("b", closed_port), ("c", broker.address)]
        result = await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
        assert (result.attempts, result.mq.broker_name) == (2, "c")


async def test_a_send_with_one_attempt_waits_for_a_route_that_nobody_has_renewed_for_long(make_peer, closed_port):
    now_s = [0.0]
    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(Moves(closed_port, broker.address)) as name_server,
        producing(name_server, lambda: now_s[0]) as producer,
    ):
        await producer.queues(TOPIC)
        now_s[0] += 60
        await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS, selector=by_key("k"))


async def test_where_no_master_is_named_the_next_sends_hear_of_one_before_the_next_poll(make_peer):
    def answer(command):
        replica = replicas.pop(0) if len(replicas) > 1 else replicas[0]
        route = TopicRouteData((QueueData("b", 1, 1, 6),), (BrokerData("b", {replica: broker.address}),))
        asked.put_nowait(command)
        return command.response(0, body=route.encode())

    replicas, asked = [1, 0], asyncio.Queue()
    async with (
        make_peer(lambda command: command.response(0, STORED)) as broker,
        make_peer(answer) as name_server,
        producing(name_server, itertools.count(1000).__next__) as producer,
    ):
        with pytest.raises(UnreachableError, match="on a broker with a master"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))
        for _ in range(2):
            await asked.get()
        await producer.cluster.route(TOPIC, refresh=True)
        await producer.send(OutgoingMessage(TOPIC, b"x"), timeout_ms=PATIENT_MS)
