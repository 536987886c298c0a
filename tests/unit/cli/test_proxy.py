"""Commands through RocketMQ 5's proxy, which passes on what clients need, and knows nothing of statistics or of all topics.

The codes that it serves stand in RemotingProtocolServer.java (registerRequestProcessor); all others are refused with 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.cli.commands.reconcile import cluster_ends
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import CONSUME_PASSIVELY, ConsumerData, HeartbeatData, SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.batch_reader import BatchReader
from rocketcrew.source.connections import shared
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options
from rocketcrew.spark.reconciling import QueueEnds

TOPIC, GROUP = "orders", "billing"
QUEUES = [MessageQueue(TOPIC, "embedded", number) for number in range(4)]
SERVED = {
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
}  # fmt: skip


class Proxied:
    """An embedded broker as it looks through a proxy."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.refused: list[int] = []
        self.name_server = broker.name_server
        broker.intercepts.append(lambda command: self._refuse(command, SERVED))
        broker.name_server_intercepts.append(
            lambda command: self._refuse(command, {RequestCode.GET_ROUTEINFO_BY_TOPIC})
        )

    def _refuse(self, command: Command, served: set[RequestCode]) -> Command | None:
        if command.code in served or command.code == RequestCode.REGISTER_BROKER:
            return None
        self.refused.append(command.code)
        remark = f"request type {command.code} not supported"
        return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(proxy: Proxied, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A command against the proxy: its exit code, and what it printed."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main.run([*words, "-n", proxy.name_server], {}, tmp_path)
        printed = capsys.readouterr()
        return code, printed.out or printed.err

    return call


@pytest.fixture
def proxy() -> Iterator[Proxied]:
    """Five messages in each queue; the group has committed 3 of the first one."""
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())
    with SyncProducer(broker.name_server) as producer:
        for number in range(20):
            producer.send(OutgoingMessage(TOPIC, b"%d" % number), selector=to_queue(QUEUES[number % 4]))
    run_with_cluster(broker.name_server, lambda cluster: commit(cluster, 3))
    yield Proxied(broker)
    shared.close()
    thread.run(broker.stop())
    thread.close()


async def commit(cluster: Cluster, offset: int) -> None:
    """As a member that was there and is gone."""
    operations = Operations(cluster)
    address = await cluster.address_of(QUEUES[0])
    hello = HeartbeatData(cluster.client_id, (), (ConsumerData(GROUP, CONSUME_PASSIVELY),))
    await operations.heartbeat(address, hello)
    await operations.update_consumer_offset(GROUP, QUEUES[0], offset)
    await operations.unregister(address, cluster.client_id, GROUP)


def test_lag_asks_queue_by_queue(proxy: Proxied, run: Run) -> None:
    code, output = run("lag", "-g", GROUP, "-t", TOPIC, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert found["total"] == 17
    assert [(queue["max"], queue["committed"], queue["lag"]) for queue in found["queues"]] == [
        (5, 3, 2), (5, None, 5), (5, None, 5), (5, None, 5)
    ]  # fmt: skip
    assert RequestCode.GET_CONSUME_STATS in proxy.refused


def test_which_topics_a_group_consumes_is_told_by_its_members_or_by_the_settings(proxy: Proxied, run: Run) -> None:
    code, output = run("lag", "-g", GROUP, "--json")
    assert code == 2
    assert "name them (-t TOPIC, or consumer.topics)" in output
    code, output = run("lag", "-g", GROUP, "--json", "--set", f"consumer.topics={TOPIC}:a || b,gone")
    assert code == 0, output
    assert {queue["topic"] for queue in json.loads(output)["queues"]} == {TOPIC, f"%RETRY%{GROUP}"}

    async def as_member(cluster: Cluster) -> Any:
        address = await cluster.address_of(QUEUES[0])
        data = ConsumerData(GROUP, CONSUME_PASSIVELY, subscription_data_set=(SubscriptionData(TOPIC, "*"),))
        await Operations(cluster).heartbeat(address, HeartbeatData(cluster.client_id, (), (data,)))
        return (await Admin(cluster).consume_stats(GROUP)).offset_table

    table = run_with_cluster(proxy.name_server, as_member)
    assert {mq.topic for mq in table} == {TOPIC, f"%RETRY%{GROUP}"}
    assert (table[QUEUES[0]].broker_offset, table[QUEUES[0]].consumer_offset) == (5, 3)
    assert table[QUEUES[1]].consumer_offset == -1


def test_the_ends_of_a_topic_are_asked_queue_by_queue(proxy: Proxied) -> None:
    stats = run_with_cluster(proxy.name_server, lambda cluster: Admin(cluster).topic_stats(TOPIC))
    assert {mq: (end.min_offset, end.max_offset) for mq, end in stats.offset_table.items()} == dict.fromkeys(
        QUEUES, (0, 5)
    )
    assert RequestCode.GET_TOPIC_STATS_INFO in proxy.refused


def test_reset_needs_nothing_else(run: Run, tmp_path: Path) -> None:
    code, output = run("reset", "-g", GROUP, "-t", TOPIC, "--to", "latest", "--set", f"supervisor.data_dir={tmp_path}")
    assert code == 0, output
    code, output = run("lag", "-g", GROUP, "-t", TOPIC, "--json")
    assert json.loads(output)["total"] == 0
    code, output = run(
        "reset",
        "-g",
        GROUP,
        "-t",
        TOPIC,
        "--to",
        "2020-01-01T00:00:00+00:00",
        "--set",
        f"supervisor.data_dir={tmp_path}",
    )
    assert code == 0, output


def test_reconcile_asks_queue_by_queue(proxy: Proxied) -> None:
    told = {"cluster.name_servers": proxy.name_server, "consumer.group": GROUP, "consumer.topics": TOPIC}
    ends = cluster_ends(load(told, {}, None))
    of_topic = {key.queue_id: ends[key] for key in ends if key.topic == TOPIC}
    assert of_topic == {0: QueueEnds(0, 5, 3)} | dict.fromkeys((1, 2, 3), QueueEnds(0, 5, None))


def test_the_source_plans_and_reads(proxy: Proxied) -> None:
    access = Access(proxy.name_server, request_timeout_ms=60_000, connect_timeout_ms=60_000)
    options = {"subscribe": TOPIC, "startingTimestamp": "100000000000", "numRetries": "0"}
    reader = BatchReader(Reading(access, read_options(options, streaming=False), ("body",)))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(rows) == 20
    patterned = {"subscribePattern": "or.*", "numRetries": "0"}
    reader = BatchReader(Reading(access, read_options(patterned, streaming=False), ("body",)))
    with pytest.raises(UsageError, match=r"subscribePattern.*cannot list topics.*option subscribe"):
        reader.partitions()
