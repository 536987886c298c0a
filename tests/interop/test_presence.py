"""Who of genuine brokers hears from us: masters, slaves and brokers that come back; and to whom we say that we leave."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import Site, run_site
from harness import WAIT_S, Crew, patient_producer, send_numbers, stored_messages, wait_until
from needs import need_jars
from servers import wait_until_answered

from rocketcrew import CheckedMessage, LocalTransactionState
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_headers import ConsumerConnectionRequest
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import RocketcrewError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue

TOPIC, GROUP, QUEUES = "present", "present-group", 2
GRACEFUL = {"enableShutdownGracefully": "true", "shutdownWaitTimeSeconds": 120}
"""5.x answers GO_AWAY for so long, or until it is killed, which tests do; 4.9 does not know these settings, and cuts."""


@pytest.fixture(params=["5.5.0", "4.9.7"], scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two masters and a slave of the first."""
    need_jars(request.param)
    with run_site(request.param, tmp_path_factory.mktemp(f"presence-{request.param}")) as found:
        found.make_whole("broker-a", "broker-b", settings=GRACEFUL)
        found.create_topic(TOPIC, QUEUES)
        slave = found.broker("slave")
        slave.start({"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE"})
        wait_until_answered(lambda: slave.address in addresses_of(found), "the slave's registration")
        yield found


def addresses_of(site: Site) -> list[str]:
    """Every broker that the topic's route names."""
    route = run_with_cluster(site.name_server, lambda cluster: cluster.route(TOPIC))
    return [address for broker in route.broker_datas for address in broker.broker_addrs.values()]


def clients_at(site: Site, name: str) -> list[str]:
    """Client ids of the group that this one broker knows; none when it knows no such group, or is away."""

    async def ask() -> list[str]:
        async with open_cluster(site.name_server) as cluster:
            fields = ConsumerConnectionRequest(GROUP).to_fields()
            command = Command(int(RequestCode.GET_CONSUMER_CONNECTION_LIST), fields)
            answer = await cluster.remoting.request(site.broker(name).address, command, timeout_ms=3000)
            if answer.code != 0:
                return []
            return [found["clientId"] for found in json.loads(bytes(answer.body))["connectionSet"]]

    try:
        return asyncio.run(ask())
    except RocketcrewError:
        return []


def brokers_told_of(crew: Crew, how: str) -> list[str]:
    """Addresses that the supervisor's log calls new or gone."""
    return [address for each in crew.logged("brokers_changed") for address in each[how]]


def test_masters_slaves_and_brokers_that_come_back_know_us_until_we_leave(site: Site, tmp_path: Path) -> None:
    crew = Crew(tmp_path, site, "numbers_handler:number", TOPIC, load=False, group=GROUP, **{"log.format": "json"})
    crew.start()
    names = ("broker-a", "slave", "broker-b")
    slave, b = site.broker("slave"), site.broker("broker-b")
    try:
        for name in names:
            wait_until(lambda at=name: len(clients_at(site, at)) == 1, WAIT_S, f"a heartbeat to {name}")
        b.stop()
        wait_until(lambda: b.address in brokers_told_of(crew, "gone"), WAIT_S, "the end of the broker to be noticed")
        b.start(GRACEFUL)
        wait_until(lambda: clients_at(site, "broker-b") == clients_at(site, "slave") != [], WAIT_S, "a new heartbeat")
        wait_until(lambda: b.address in brokers_told_of(crew, "new"), WAIT_S, "the broker to be noticed again")
        send_numbers(site, TOPIC, range(100, 150))
        wait_until(lambda: crew.counter("done_messages") >= 50, WAIT_S, "all messages finished")
    finally:
        code = crew.stop()
    assert code == 0
    assert [clients_at(site, name) for name in names] == [[], [], []]
    assert slave.address not in brokers_told_of(crew, "gone")


def test_a_producer_that_sends_nothing_more_is_asked_by_a_broker_that_was_killed(site: Site) -> None:
    asked: list[str] = []
    was_killed = threading.Event()

    def check(message: CheckedMessage) -> LocalTransactionState:
        asked.append(message.transaction_id)
        return LocalTransactionState.COMMIT_MESSAGE if was_killed.is_set() else LocalTransactionState.UNKNOW

    with patient_producer(site, "present-tx-group", check=check) as producer:
        half = OutgoingMessage(TOPIC, b"half", keys="half")
        sent = producer.send_in_transaction(half, lambda *_: LocalTransactionState.UNKNOW).send
        wait_until(lambda: bool(asked), WAIT_S, "the broker to ask")
        broker = site.broker(sent.mq.broker_name)
        broker.kill()
        was_killed.set()
        before = len(asked)
        broker.start(GRACEFUL)
        wait_until(lambda: len(asked) > before, WAIT_S, "the broker to ask again")
        wait_until(
            lambda: b"half" in [message.body for message in stored_messages(site.name_server, TOPIC)],
            WAIT_S, "the message of the transaction",
        )  # fmt: skip
    assert set(asked) == {sent.message_id}


def test_a_broker_that_shuts_down_sends_us_away(site: Site) -> None:
    """The last test of a site. 5.x says GO_AWAY, 4.9 closes; either way the next attempt goes to the other broker."""
    b = site.broker("broker-b")
    with patient_producer(site) as producer:
        mq = MessageQueue(TOPIC, "broker-b", 0)
        producer.send(OutgoingMessage(TOPIC, b"1"), selector=to_queue(mq))
        b.terminate()

        def refused() -> bool:
            try:
                producer.send(OutgoingMessage(TOPIC, b"2"), selector=to_queue(mq))
            except UnreachableError as error:
                said.append(str(error))
            return bool(said)

        said: list[str] = []
        wait_until(refused, WAIT_S, "a refusal")
        if site.version.startswith("5"):
            assert "the server is shutting down" in said[0]
        results = [producer.send(OutgoingMessage(TOPIC, b"3")) for _ in range(2 * QUEUES)]
        assert {result.mq.broker_name for result in results} == {"broker-a"}
    b.stop()
    assert run_with_cluster(site.name_server, lambda cluster: cluster.route(TOPIC)) is not None
