"""A master that reads slowly from memory sends its consumers to its slave; and the slave alone keeps them going."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import Site
from harness import SEND_TIMEOUT_MS, WAIT_S, Crew, duplicate_keys, patient_producer, wait_until
from load import Verdict, judged
from servers import answers, wait_until_answered

from rocketcrew.client.asking import ask
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations, PullStatus, parse_pull
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import MaxOffset, OffsetResponse, PullRequest, QueryOffset
from rocketcrew.supervisor.control import ask as tell

ON_BOTH = pytest.mark.parametrize("site", ["5.5.0", "4.9.7"], indirect=True, scope="session")
A, SLAVE = "broker-a", "slave-a"
TOPIC, GROUP, QUEUES = "replicated", "replicated-group", 2
FAR_S = 2 * WAIT_S
# Nothing counts as being in memory, so that whoever is not at the very end is better served by the slave.
MASTER = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": 0}
SLAVE_OF_A = {**MASTER, "brokerName": A, "brokerId": 1, "brokerRole": "SLAVE"}
FIRST, WITHOUT_MASTER, AFTERWARDS = range(100, 400), range(400, 600), range(600, 650)

T = TypeVar("T")


def on(site: Site, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_cluster(site.name_server) as cluster:
            return await work(cluster)

    return asyncio.run(run())


def sum_at(site: Site, name: str, code: RequestCode, header: Callable[[int], MaxOffset | QueryOffset]) -> int:
    """A question about each queue, put to this one broker; the offsets' sum."""

    async def work(cluster: Cluster) -> int:
        found = [
            await ask(cluster.remoting, site.broker(name).address, code, header(queue), timeout_ms=SEND_TIMEOUT_MS)
            for queue in range(QUEUES)
        ]
        return sum(OffsetResponse.from_fields(answer.fields).offset for answer in found)

    return on(site, work)


def stored_at(site: Site, name: str) -> int:
    return sum_at(site, name, RequestCode.GET_MAX_OFFSET, lambda queue: MaxOffset(TOPIC, queue))


def committed_at(site: Site, name: str) -> int:
    return sum_at(site, name, RequestCode.QUERY_CONSUMER_OFFSET, lambda queue: QueryOffset(GROUP, TOPIC, queue))


def messages_given(site: Site, name: str) -> int:
    """How many messages this broker has given to consumers."""

    async def work(cluster: Cluster) -> int:
        command = Command(int(RequestCode.GET_BROKER_RUNTIME_INFO))
        answer = await cluster.remoting.request(site.broker(name).address, command, timeout_ms=SEND_TIMEOUT_MS)
        return int(json.loads(bytes(answer.body))["table"]["msgGetTotalTodayNow"])

    return on(site, work)


def suggested(site: Site) -> int:
    """Which replica the master sends somebody to who reads at the beginning."""

    async def work(cluster: Cluster) -> int:
        header = PullRequest(GROUP, TOPIC, 0, 0, 1, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG", broker_name=A)
        address = site.broker(A).address
        result = parse_pull(await Operations(cluster).pull(address, header), address)
        assert result.status is PullStatus.FOUND
        return result.header.suggest_which_broker_id

    return on(site, work)


@pytest.fixture
def pair(site: Site) -> Iterator[Site]:
    """A master and its slave, both in the topic's route; nothing of them is left for others."""
    site.make_whole(A, settings=MASTER)
    site.create_topic(TOPIC, QUEUES)
    slave = site.broker(SLAVE)
    slave.start(SLAVE_OF_A)
    try:
        wait_until_answered(lambda: slave.address in addresses(site), "the slave's registration")
        yield site
    finally:
        slave.stop()


def addresses(site: Site) -> list[str]:
    async def work(cluster: Cluster) -> list[str]:
        route = await cluster.route(TOPIC)
        return [address for broker in route.broker_datas for address in broker.broker_addrs.values()]

    return on(site, work)


def send(site: Site, numbers: range, total: int) -> None:
    """Both replicas have them when this returns. Those that fail at first come last: a held pull would bring the first ones
    to a member that is paused, and what it sends back just before the master's end waits there for the master's return."""
    with patient_producer(site) as producer:
        for fails in (False, True):
            part = [number for number in numbers if (number % 50 == 7) is fails]
            producer.send_many(OutgoingMessage(TOPIC, str(number).encode(), keys=f"n{number}") for number in part)
    wait_until_answered(lambda: stored_at(site, SLAVE) == total, "the messages at the slave", FAR_S)


def judgement(crew: Crew) -> Verdict:
    return judged(range(FIRST.start, AFTERWARDS.stop), crew.staged_rows(), Counter())


@ON_BOTH
def test_the_slave_is_read_when_the_master_says_so_and_when_it_is_gone(pair: Site, tmp_path: Path) -> None:
    send(pair, FIRST, len(FIRST))
    assert suggested(pair) == 1
    crew = Crew(tmp_path, pair, "numbers_handler:number", TOPIC, load=False, group=GROUP,
                **{"consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    try:
        wait_until(lambda: crew.counter("done_messages") >= len(FIRST) and crew.lag() == 0, FAR_S, "the first part")
        assert messages_given(pair, SLAVE) > 0
        # While it pulls nothing, messages come in that only the slave can give.
        asyncio.run(tell(crew.slot, "pause"))
        send(pair, WITHOUT_MASTER, len(FIRST) + len(WITHOUT_MASTER))
        given = messages_given(pair, SLAVE)
        pair.broker(A).stop()
        only = [pair.broker(SLAVE).address]
        wait_until(lambda: answers(lambda: addresses(pair) == only), FAR_S, "the master's end")
        asyncio.run(tell(crew.slot, "resume"))
        done = len(FIRST) + len(WITHOUT_MASTER)
        wait_until(lambda: crew.counter("done_messages") >= done, FAR_S, "all from the slave")
        assert messages_given(pair, SLAVE) >= given + len(WITHOUT_MASTER) / 2  # held pulls may have brought the rest
        assert crew.counter("local_retries") > 0, "no broker takes a message back without a master"
        wait_until(lambda: answers(lambda: committed_at(pair, SLAVE) >= done), FAR_S, "the commits at the slave")
        pair.broker(A).start(MASTER)
        pair.wait_until_known(A)
        send(pair, AFTERWARDS, done + len(AFTERWARDS))
        done += len(AFTERWARDS)
        wait_until(lambda: not judgement(crew).lost, FAR_S, "what came afterwards")
        wait_until(lambda: answers(lambda: committed_at(pair, A) == done), FAR_S, "the commits at the master")
        status = crew.status()
        assert status is not None
        assert status["counters"]["invariant_violations"] == 0
    finally:
        code = crew.stop()
    assert code == 0
    found = judgement(crew)
    assert (found.lost, found.sent_twice) == ((), 0), found.line("slave")
    # The slave may lag behind in the group's commits, and the dead master took answers to send-backs along: what runs again
    # for the one stands in the table once, for the other under a key of its own.
    assert duplicate_keys(crew.load()) == 0
