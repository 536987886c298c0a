"""A group's retry topic with fewer queues than brokers put failed messages into: nobody reads the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.cli.checkup_facts import Looking
from rocketcrew.cli.checkups import Facts, Level, findings
from rocketcrew.cli.commands.reconcile import cluster_ends
from rocketcrew.cli.unread_queues import unread_retries
from rocketcrew.cli.watch import QueueLag
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.conf.settings import Settings, load
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.reconciling import QueueEnds
from rocketcrew.supervisor.member.access import access_of

RETRY = [MessageQueue("%RETRY%g", "embedded", number) for number in range(8)]
WAITING = (0, 2, 0, 3, 4, 0, 0, 0)
"""By queue. Of the fifth all were read, when the topic had it."""
CURE = (
    "`mqadmin updateTopic -t %RETRY%g -r 4 -w 4` at each of its brokers (with the group's retryQueueNums, where that is"
    " more)"
)
WORDS = (
    "5 messages of %RETRY%g in queues that nobody can read now (embedded 1, embedded 3): brokers put what fails there (the"
    " group's retryQueueNums), and the topic has fewer queues"
)


async def fill(cluster: Cluster, address: str) -> None:
    admin, operations = Admin(cluster), Operations(cluster)
    producer = Producer(cluster, "senders")
    await admin.create_group(address, SubscriptionGroupConfig("g"))
    await admin.create_topic(address, TopicConfig("%RETRY%g", read_queue_nums=8, write_queue_nums=8))
    await admin.create_topic(address, TopicConfig("orders", read_queue_nums=1, write_queue_nums=2))
    for mq, number in zip(RETRY, WAITING, strict=True):
        for _ in range(number):
            await producer.send(OutgoingMessage(mq.topic, b"x"), selector=to_queue(mq))
    for mq, committed in ((RETRY[0], 0), (RETRY[4], 4), (MessageQueue("orders", "embedded", 0), 0)):
        await operations.update_consumer_offset("g", mq, committed)
    await producer.send(OutgoingMessage("orders", b"x"), selector=to_queue(MessageQueue("orders", "embedded", 1)))
    await admin.create_topic(address, TopicConfig("%RETRY%g", read_queue_nums=1, write_queue_nums=1))


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())
    run_with_cluster(broker.name_server, lambda cluster: fill(cluster, broker.address))
    yield broker
    thread.run(broker.stop())
    thread.close()


def unread(broker: EmbeddedBroker, group: str) -> list[QueueLag]:
    return run_with_cluster(broker.name_server, lambda cluster: unread_retries(cluster, group))


def settings_of(broker: EmbeddedBroker) -> Settings:
    told = {"cluster.name_servers": broker.name_server, "consumer.group": "g", "consumer.topics": "orders"}
    return load(told, {}, None)


def refuse(broker: EmbeddedBroker, code: RequestCode, answer: int) -> None:
    """From now on, what a client asks with that code."""
    broker.intercepts.append(lambda command: command.response(answer, remark="no") if command.code == code else None)


def test_queues_above_those_of_the_route_are_found_where_messages_wait(broker: EmbeddedBroker) -> None:
    """Brokers take the queue at random: one of the first may have none."""
    there = [QueueLag(RETRY[1], 2, None, unread=True), QueueLag(RETRY[3], 3, None, unread=True)]
    assert unread(broker, "g") == there
    assert unread(broker, "another") == []


async def fail_into(cluster: Cluster, address: str, nums: int, queues: Iterable[int]) -> None:
    """One message each in these queues of a group whose retryQueueNums was raised when its retry topic was there."""
    admin, producer = Admin(cluster), Producer(cluster, "senders")
    await admin.create_group(address, SubscriptionGroupConfig("raised", retry_queue_nums=nums))
    await admin.create_topic(address, TopicConfig("%RETRY%raised", read_queue_nums=nums, write_queue_nums=nums))
    for number in queues:
        mq = MessageQueue("%RETRY%raised", "embedded", number)
        await producer.send(OutgoingMessage(mq.topic, b"x"), selector=to_queue(mq))
    await admin.create_topic(address, TopicConfig("%RETRY%raised", read_queue_nums=1, write_queue_nums=1))


@pytest.mark.parametrize(
    ("nums", "queues", "says"), [(64, [63], True), (64, [20, 60], True), (8, [7], False), (40, [16, 32], False)]
)
def test_few_messages_in_many_queues_are_found_all(
    broker: EmbeddedBroker, nums: int, queues: list[int], *, says: bool
) -> None:
    """The gaps between them are wide: what the broker says of the group tells how far to look."""
    run_with_cluster(broker.name_server, lambda cluster: fail_into(cluster, broker.address, nums, queues))
    if not says:
        refuse(broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert [one.mq.queue_id for one in unread(broker, "raised")] == queues


def test_no_more_queues_are_asked_for_than_it_takes(broker: EmbeddedBroker) -> None:
    run_with_cluster(broker.name_server, lambda cluster: fail_into(cluster, broker.address, 20, []))
    asked: list[int] = []

    def note(command: Command) -> None:
        if command.code == RequestCode.GET_MAX_OFFSET:
            asked.append(int(command.fields["queueId"]))

    broker.intercepts.append(note)
    assert unread(broker, "raised") == []
    assert sorted(asked) == list(range(1, 33))


def test_a_broker_that_tells_nothing_of_other_queues_is_no_error(broker: EmbeddedBroker) -> None:
    refuse(broker, RequestCode.GET_MAX_OFFSET, ResponseCode.NO_PERMISSION)
    assert unread(broker, "g") == []


def test_lag_counts_and_names_them(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.run(["lag", "-n", broker.name_server, "-g", "g", "--json"], {}, tmp_path) == 0
    printed = capsys.readouterr()
    queues = json.loads(printed.out)["queues"]
    lags = {queue["queue_id"]: queue["lag"] for queue in queues if queue["topic"] == "%RETRY%g"}
    assert lags == {0: 0, 1: 2, 3: 3}
    assert printed.err.splitlines() == [f"{WORDS}. {CURE} gives them readers"]
    assert main.run(["lag", "-n", broker.name_server, "-g", "g", "-t", "orders"], {}, tmp_path) == 0
    assert capsys.readouterr().err == ""
    assert main.run(["lag", "-n", broker.name_server, "-g", "g", "--watch", "--count", "1"], {}, tmp_path) == 0
    assert CURE in capsys.readouterr().out


def test_reconcile_has_their_ends_and_knows_which_queues_nobody_reads(broker: EmbeddedBroker) -> None:
    ends = cluster_ends(settings_of(broker))
    assert ends == {
        QueueKey("g", *RETRY[0]): QueueEnds(0, 0, 0),
        QueueKey("g", *RETRY[1]): QueueEnds(0, 2, None, read=False),
        QueueKey("g", *RETRY[3]): QueueEnds(0, 3, None, read=False),
        QueueKey("g", "orders", "embedded", 0): QueueEnds(0, 0, 0),
        QueueKey("g", "orders", "embedded", 1): QueueEnds(0, 1, None, read=False),
    }


def test_doctor_warns_of_them(broker: EmbeddedBroker) -> None:
    settings = settings_of(broker)
    access = access_of(settings)
    facts = run_with_cluster(access, lambda cluster: Looking(cluster, access, settings).into(Facts()))
    assert facts.group is not None
    found = [one for one in findings(facts) if one.check == "retries"]
    assert [(one.level, one.found, one.todo) for one in found] == [(Level.WARNING, WORDS, CURE)]
