"""Heartbeats and the sign-off against a broker of our own: who gets them, when, and what is asked before."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from rocketcrew.client.access import Access
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.remoting.bodies import (
    BrokerData,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    QueueData,
    SubscriptionData,
    TopicRouteData,
)
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UnreachableError
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.supervisor.member.heartbeats import Heartbeats

LONG_MS = 9_000


class Peer:
    """Answers every frame by `answers[code]` (a response code and remark), else with success; keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = {}
        self.route = b""
        self.writers = []

    async def serve(self, reader, writer):
        self.writers.append(writer)
        frames = FrameReader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                frames.feed(data)
                while (command := frames.next()) is not None:
                    self.asked.append(command)
                    code, remark = self.answers.get(command.code, (0, None))
                    body = self.route if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC else b""
                    writer.write(encode(command.response(code, body=body, remark=remark)))

    def of(self, code):
        return [command for command in self.asked if command.code == code]


def data(*subscriptions):
    subscriptions = subscriptions or (SubscriptionData("t"), SubscriptionData("%RETRY%g"))
    consumer = ConsumerData("g", subscription_data_set=subscriptions, unit_mode=True)
    return HeartbeatData("me", (ProducerData("CLIENT_INNER_PRODUCER"),), (consumer,))


def beats_of(found):
    return found[0]


@contextlib.asynccontextmanager
async def site(subscriptions=(), slave_at=""):
    """A name server, a master and a slave, or one at another address; heartbeats that start their tasks in `tasks`."""
    async with contextlib.AsyncExitStack() as stack:
        peers, addresses, tasks = [Peer(), Peer(), Peer()], [], []
        for peer in peers:
            server = await stack.enter_async_context(await asyncio.start_server(peer.serve, "127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        names, master, slave = peers
        brokers = (BrokerData("a", {0: addresses[1], 1: slave_at or addresses[2]}),)
        names.route = TopicRouteData((QueueData("a", 1, 1, 6),), brokers).encode()
        found = []
        remoting = Remoting(
            on_connect=lambda address: beats_of(found).connected(address),
            on_close=lambda address: beats_of(found).forget(address),
        )
        cluster = Cluster(addresses[0], client_id="me", remoting=remoting)
        run = lambda work: tasks.append(asyncio.ensure_future(work))  # noqa: E731
        beats = Heartbeats(cluster, Operations(cluster), lambda: data(*subscriptions), LONG_MS, run)
        found.append(beats)
        await cluster.route("t")
        try:
            yield beats, master, slave, remoting, addresses[1:], tasks
        finally:
            beats.disarm()
            await cluster.close()
            await remoting.close()
            for peer in peers:
                for writer in peer.writers:
                    writer.close()


def run(work):
    async def bounded():
        async with asyncio.timeout(10):
            await work()

    asyncio.run(bounded())


def test_masters_and_slaves_get_them_with_all_fields():
    async def work():
        async with site() as (beats, master, slave, _, _, tasks):
            assert not beats.known_to_all()
            await beats.send()
            assert beats.known_to_all()
            for broker in (master, slave):
                (beat,) = broker.of(RequestCode.HEART_BEAT)
                body = json.loads(bytes(beat.body))
                assert set(body) == {
                    "clientID", "consumerDataSet", "producerDataSet", "heartbeatFingerprint", "withoutSub"
                }  # fmt: skip
                (consumer,) = body["consumerDataSet"]
                assert set(consumer) == {
                    "consumeFromWhere", "consumeType", "groupName", "messageModel", "subscriptionDataSet", "unitMode"
                }  # fmt: skip
                assert consumer["unitMode"] is True
            assert not tasks

    run(work)


class Silent:
    """A Remoting whose brokers answer nothing; keeps how long they would have been waited for."""

    def __init__(self):
        self.waits_ms = []

    def connection_of(self, address):
        return None

    async def request(self, address, command, *, timeout_ms, body_sink=None):
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            brokers = (BrokerData("a", {0: "127.0.0.1:2"}),)
            return command.response(0, body=TopicRouteData((QueueData("a", 1, 1, 6),), brokers).encode())
        self.waits_ms.append(timeout_ms)
        raise UnreachableError(address, "is silent")


@pytest.mark.parametrize(
    ("request_ms", "interval_ms", "waited_ms"),
    [(3_000, 30_000, 3_000), (600_000, 30_000, 30_000), (600_000, 100, 3_000), (1_000, 100, 1_000)],
)
def test_a_silent_broker_keeps_none_that_answers_from_the_next_round(request_ms, interval_ms, waited_ms):
    async def work():
        silent = Silent()
        cluster = Cluster(Access("127.0.0.1:1", request_timeout_ms=request_ms), client_id="me", remoting=silent)
        await cluster.route("t")
        beats = Heartbeats(cluster, Operations(cluster), data, interval_ms, asyncio.ensure_future)
        with pytest.raises(UnreachableError):
            await beats.send()
        assert silent.waits_ms == [waited_ms]

    run(work)


def test_a_new_connection_gets_one_at_once_and_only_one():
    async def work():
        async with site() as (beats, master, _, remoting, (address, _), tasks):
            await beats.send()
            beats.arm()
            remoting.connection_of(address).close()
            while not beats.known_to_all() or not tasks:
                with contextlib.suppress(UnreachableError):
                    await remoting.request(address, Command(RequestCode.PULL_MESSAGE), timeout_ms=LONG_MS)
            await asyncio.gather(*tasks)
            assert len(master.of(RequestCode.HEART_BEAT)) == 2

    run(work)


def test_a_broker_that_is_away_is_not_waited_for_until_it_is_back():
    """As a slave that has died is in the routes for two minutes; each look-up of each topic made a round to all brokers."""

    async def work():
        nobody = "127.0.0.1:1"
        async with site(slave_at=nobody) as (beats, master, _, _, (address, _), _):
            await beats.send()
            assert beats.known_to_all()
            assert beats.away == {nobody}
            beats.forget(address)
            assert not beats.known_to_all(), "that one can be asked"
            await beats.send()
            assert beats.known_to_all()
            beats.connected(nobody)
            assert (beats.away, beats.known_to_all()) == (frozenset(), False)
            assert len(master.of(RequestCode.HEART_BEAT)) == 2

    run(work)


def test_wishes_during_a_round_make_one_more():
    async def work():
        async with site() as (beats, master, _, _, _, tasks):
            for _ in range(5):
                beats.now()
            await asyncio.sleep(0)
            for _ in range(5):
                beats.now()
            await asyncio.gather(*tasks)
            assert len(master.of(RequestCode.HEART_BEAT)) == 2

    run(work)


def test_sql_filters_are_checked_with_a_master_and_tags_are_not():
    sql = SubscriptionData.of("t", "n > 10", 7, "SQL92")

    async def work():
        async with site((sql, SubscriptionData("%RETRY%g"))) as (beats, master, slave, _, _, _):
            await beats.check_filters()
            (asked,) = master.of(RequestCode.CHECK_CLIENT_CONFIG)
            body = json.loads(bytes(asked.body))
            assert (body["clientId"], body["group"]) == ("me", "g")
            assert body["subscriptionData"]["subString"] == "n > 10"
            assert not slave.asked
            master.answers[RequestCode.CHECK_CLIENT_CONFIG] = (1, "The broker does not support SQL92")
            with pytest.raises(
                RocketcrewError, match=r"topic t \(n > 10\): The broker does not support SQL92 .enableProp"
            ):
                await beats.check_filters()

    run(work)


def test_leaving_is_told_to_every_broker():
    async def work():
        async with site() as (beats, master, slave, _, _, _):
            await beats.sign_off("me", "g", "CLIENT_INNER_PRODUCER")
            for broker in (master, slave):
                (asked,) = broker.of(RequestCode.UNREGISTER_CLIENT)
                assert asked.fields == {
                    "clientID": "me",
                    "consumerGroup": "g",
                    "producerGroup": "CLIENT_INNER_PRODUCER",
                }

    run(work)


def test_nothing_joins_the_group_again_after_the_sign_off():
    """Workers may take seconds to end, with open connections: a look-up that was under way sends heartbeats by itself."""

    async def work():
        async with site() as (beats, master, slave, _, _, tasks):
            beats.arm()
            await beats.sign_off("me", "g", "CLIENT_INNER_PRODUCER")
            beats.now()
            await beats.send()
            await asyncio.gather(*tasks)
            for broker in (master, slave):
                assert not broker.of(RequestCode.HEART_BEAT)

    run(work)


def test_a_member_that_every_broker_refuses_is_told():
    async def work():
        async with site() as (beats, master, slave, _, _, _):
            slave.answers[RequestCode.HEART_BEAT] = (16, "check signature failed")
            await beats.send()  # one of two: logged
            assert not beats.known_to_all()
            master.answers[RequestCode.HEART_BEAT] = (16, "check signature failed")
            with pytest.raises(BrokerError, match="check signature failed"):
                await beats.send()

    run(work)
