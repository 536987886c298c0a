"""Stores of several segments, opened by the other broker: a genuine one's by ours, ours by a genuine one, whole."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import run_site
from harness import SEND_TIMEOUT_MS, WAIT_S, patient_producer, wait_until
from needs import need_jars
from servers import VERSIONS, Kind, Member, answers, run_servers

from rocketcrew.broker.checking import check
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.converting import convert
from rocketcrew.broker.core import BrokerCore
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.effects import Reply
from rocketcrew.broker.offset_table import OffsetTable
from rocketcrew.broker.transactions import OP_TOPIC
from rocketcrew.cli.children import Child, listens
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations, parse_pull
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.client.transactions import CheckedMessage, LocalTransactionState
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, SYSFLAG_TRANSACTION_COMMIT, RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import EndTransaction, PullRequest
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_messages

NAME = "broker-a"
"""The tests' genuine broker has it, and a folder keeps the name that it was made with."""
TOPIC, GROUP = "from-a-genuine-broker", "its-group"
MESSAGES = 3_000
SEGMENT_BYTES = 1 << 20
BATCH = 50


def body_of(number: int) -> bytes:
    return b"%06d" % number + b"x" * (number % 1_500)


async def ends_of(cluster: Cluster) -> list[int]:
    return [await Operations(cluster).max_offset(MessageQueue(TOPIC, NAME, queue_id)) for queue_id in range(4)]


def read(core: BrokerCore, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while (fetched := core.state.store.get(topic, queue_id, len(found), 32)).count:
        found += decode_messages(fetched.body)
        assert [message.queue_offset for message in found[-fetched.count :]] == list(
            range(len(found) - fetched.count, len(found))
        )
    return found


@pytest.mark.parametrize("kind", VERSIONS, ids=str)
def test_a_killed_genuine_store_is_read_whole(kind: Kind, tmp_path: Path) -> None:
    delayed = range(MESSAGES, MESSAGES + 10)
    with run_servers(kind, tmp_path, settings=f"mappedFileSizeCommitLog={SEGMENT_BYTES}\n") as servers:
        servers.create_topic(TOPIC, 4)
        with patient_producer(servers) as producer:
            for first in range(0, MESSAGES, BATCH):
                batch = [OutgoingMessage(TOPIC, body_of(number)) for number in range(first, first + BATCH)]
                producer.send_batch(batch)
            for number in delayed:
                producer.send(OutgoingMessage(TOPIC, body_of(number), delay_level=18))
        ends = run_with_cluster(servers.target, ends_of)
    store = tmp_path / "store"
    assert len(list((store / "commitlog").iterdir())) >= 3, "several segments, and BLANKs between them"
    for _ in range(2):  # as it was left, and after our own kill
        storage = DiskStorage(store)
        core = BrokerCore(BrokerConfig(name=NAME, message_delay_level=" ".join(["1s"] * 18)), storage)
        found = [read(core, TOPIC, queue_id) for queue_id in range(4)]
        numbers = sorted(int(message.body[:6]) for messages in found for message in messages)
        assert all(len(messages) >= end for messages, end in zip(found, ends, strict=True))
        assert set(range(MESSAGES)) <= set(numbers)
        assert len(numbers) == len(set(numbers)), "nothing twice"
        assert all(message.body == body_of(int(message.body[:6])) for messages in found for message in messages)
        assert core.state.store.found.damaged_ranges == 0
        assert storage.aside() == []
        storage.abandon()
    storage = DiskStorage(store)
    report = check(storage)
    assert (report.damaged, report.torn_bytes, report.tables) == ([], 0, {})
    storage.abandon()
    converted = BrokerConfig(name=NAME, mapped_file_size_commit_log=2 * SEGMENT_BYTES)
    assert convert(store, converted, time.time_ns() // 1_000_000).records >= MESSAGES
    storage = DiskStorage(store)
    core = BrokerCore(replace(converted, message_delay_level=" ".join(["1s"] * 18)), storage)
    again = [read(core, TOPIC, queue_id) for queue_id in range(4)]
    assert [[message.body for message in messages] for messages in again] == [
        [message.body for message in messages] for messages in found
    ]
    storage.abandon()


COMMITTED, ROLLED_BACK, UNDECIDED, DELAYED, FRESH = b"committed", b"rolled back", b"undecided", b"delayed", b"fresh"
STATES = {
    COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
    UNDECIDED: LocalTransactionState.UNKNOW,
}
HOUR_MS = 3_600_000
WAITING = {"transactionTimeOut": HOUR_MS, "transactionCheckInterval": HOUR_MS, "messageDelayLevel": "1h 2h"}


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_what_a_genuine_broker_had_to_do_yet_is_done_by_ours(version: str, how: str, tmp_path: Path) -> None:
    """An open transaction is asked for and can be committed, those that ended are over, a delayed message is delivered."""
    need_jars(version)
    with run_site(version, tmp_path) as site:
        site.make_whole(NAME, settings=WAITING)
        site.create_topic(TOPIC, 1)

        async def end_of_ops(cluster: Cluster) -> int:  # asked for directly: of 4.9 brokers this topic has no route
            command = Command(RequestCode.GET_MAX_OFFSET, {"topic": OP_TOPIC, "queueId": "0"})
            answer = await cluster.remoting.request(site.broker().address, command, timeout_ms=5_000)
            return int(answer.fields["offset"])

        def ended() -> int:
            return run_with_cluster(site.name_server, end_of_ops)

        with SyncProducer(
            site.name_server, GROUP, send_timeout_ms=SEND_TIMEOUT_MS, check=lambda _: LocalTransactionState.UNKNOW
        ) as producer:
            for number, (body, state) in enumerate(STATES.items(), 1):
                producer.send_in_transaction(OutgoingMessage(TOPIC, body), lambda _message, _result, end=state: end)
                if state is not LocalTransactionState.UNKNOW:  # the end is written later, several at once
                    wait_until(lambda least=number: answers(lambda: ended() >= least), WAIT_S, "the end on the disk")
            producer.send(OutgoingMessage(TOPIC, DELAYED, delay_level=1))
        if how == "killed":
            site.broker().kill()
        else:
            site.broker().stop(WAIT_S)
    storage = DiskStorage(tmp_path / NAME / "store")
    now_ms = time.time_ns() // 1_000_000
    config = BrokerConfig(name=NAME, message_delay_level="1h 2h", flush="async")
    core = BrokerCore(config, storage, now_ms=now_ms)
    assert [message.body for message in read(core, TOPIC, 0)] == [COMMITTED]
    (question,) = list(core.state.transactions.due(now_ms + HOUR_MS, core.state.store))
    assert (question.group, question.half.body) == (GROUP, UNDECIDED)
    half = question.half
    end = EndTransaction(
        GROUP, half.queue_offset, half.physical_offset, SYSFLAG_TRANSACTION_COMMIT, half.message_id,
        from_transaction_check=True, topic=TOPIC,
    )  # fmt: skip
    command = Command(RequestCode.END_TRANSACTION, end.to_fields())
    (reply,) = core.handle(now_ms, 1, "127.0.0.1:1", command)
    assert isinstance(reply, Reply)
    assert reply.command.code == 0, reply.command.remark
    assert [message.body for message in read(core, TOPIC, 0)] == [COMMITTED, UNDECIDED]
    core.tick(now_ms + HOUR_MS + 60_000)
    assert [message.body for message in read(core, TOPIC, 0)] == [COMMITTED, UNDECIDED, DELAYED]
    assert core.state.store.found.damaged_ranges == 0
    storage.abandon()


OURS, KEPT_GROUP, KEPT = "from-our-broker", "kept-group", [10, 11, 12, 13]
NUMBERS = range(1_000, 4_000)
# Of our files, as far as a genuine broker has another default or the tests' servers have.
OUR_FILES = "mappedFileSizeConsumeQueue=6000000\nmaxIndexNum=20000000\nmaxHashSlotNum=5000000\n"


@contextmanager
def run_ours(folder: Path, end: signal.Signals, topic: str) -> Iterator[tuple[str, str]]:
    """Our broker on this store: the addresses of name server and broker. In the end the table on the disk has the topic, as a
    genuine broker reads no journal of ours, and the broker is ended by the signal."""
    name_server_port, port = free_ports(2)
    settings = {"name": NAME, "name_server_port": name_server_port, "port": port, "dir": folder,
                "mapped_file_size_commit_log": SEGMENT_BYTES}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"broker.{name}={value}")]
    child = Child("broker", ["broker", *words], log=folder.parent / "ours.log")
    try:
        child.wait_for(lambda: listens(name_server_port) and listens(port), WAIT_S, "start")
        yield f"127.0.0.1:{name_server_port}", f"127.0.0.1:{port}"
        topics = folder / "config" / "topics.json"
        wait_until(lambda: f'"{topic}"' in topics.read_text(), what="the topic on the disk")
        os.kill(child.pid, end)
    finally:
        child.stop(WAIT_S)


def make_our_store(folder: Path, end: signal.Signals) -> None:
    """Several segments of numbers, and a group's offsets; the broker is ended by the signal."""
    with run_ours(folder, end, OURS) as (name_server, address):

        async def prepare(cluster: Cluster) -> None:
            admin = Admin(cluster)
            await admin.create_topic_everywhere(TopicConfig(OURS, 4, 4))
            await admin.create_group(address, SubscriptionGroupConfig(KEPT_GROUP))

        async def commit(cluster: Cluster) -> None:
            for queue_id, offset in enumerate(KEPT):
                mq = MessageQueue(OURS, NAME, queue_id)
                await Operations(cluster).update_consumer_offset(KEPT_GROUP, mq, offset)

        run_with_cluster(name_server, prepare)
        with SyncProducer(name_server, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            for first in range(NUMBERS.start, NUMBERS.stop, BATCH):
                numbers = range(first, first + BATCH)
                producer.send_batch(
                    [OutgoingMessage(OURS, b"%-1000d" % number, keys=[f"k{number}"]) for number in numbers]
                )
        run_with_cluster(name_server, commit)
        saved = folder / "config" / "consumerOffset.json"
        wait_until(lambda: saved.exists() and offsets_in(saved) == KEPT, what="all offsets on the disk")


def offsets_in(saved: Path) -> list[int | None]:
    """Those of the group; it may have been saved between two of its commits."""
    table = OffsetTable()
    table.load(saved.read_bytes())
    return [table.query(OURS, KEPT_GROUP, queue_id) for queue_id in range(4)]


@pytest.mark.parametrize(
    ("version", "how"),
    [("5.5.0", "stopped"), ("5.5.0", "killed"), ("5.5.0", "converted"), ("4.9.7", "stopped"), ("4.9.7", "killed")],
)
def test_our_store_is_read_whole_by_a_genuine_broker(
    version: str, how: str, tmp_path: Path, java_classes: Callable[[str], str]
) -> None:
    store, segment_bytes = tmp_path / "store", SEGMENT_BYTES
    make_our_store(store, signal.SIGKILL if how == "killed" else signal.SIGTERM)
    assert len(list((store / "commitlog").iterdir())) >= 3
    if how == "converted":
        segment_bytes = 2 * SEGMENT_BYTES
        config = BrokerConfig(name=NAME, mapped_file_size_commit_log=segment_bytes)
        assert convert(store, config, time.time_ns() // 1_000_000).records == len(NUMBERS)
    settings = f"mappedFileSizeCommitLog={segment_bytes}\n{OUR_FILES}"

    async def kept(cluster: Cluster) -> list[int | None]:
        queues = [MessageQueue(OURS, NAME, queue_id) for queue_id in range(4)]
        return [await Operations(cluster).query_consumer_offset(KEPT_GROUP, mq) for mq in queues]

    wanted = {number: 2 * (number % 50 == 7) for number in NUMBERS if number % 1000 != 999}
    with run_servers(Kind(version), tmp_path, settings=settings) as servers:
        assert run_with_cluster(servers.target, kept) == KEPT
        member = Member(tmp_path, java_classes(version), servers.name_server, "java-reader", OURS)
        try:
            wait_until(lambda: len(member.done()) >= len(wanted), 2 * WAIT_S, "all messages read")
            assert sorted(member.done()) == sorted(wanted.items())
            member.leave()
        finally:
            member.java.stop()
        found = servers.admin("queryMsgByKey", "-t", OURS, "-k", "k1234")
        assert [line for line in found if line.strip() and not line.startswith("#")], found


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_what_our_broker_had_to_do_yet_is_done_by_a_genuine_one(version: str, how: str, tmp_path: Path) -> None:
    """Of three transactions the open one is asked for, and committed then; a delayed message is delivered."""
    store = tmp_path / "store"
    with run_ours(store, signal.SIGKILL if how == "killed" else signal.SIGTERM, TOPIC) as (name_server, _):
        run_with_cluster(name_server, lambda cluster: Admin(cluster).create_topic_everywhere(TopicConfig(TOPIC, 1, 1)))
        with SyncProducer(
            name_server, GROUP, send_timeout_ms=SEND_TIMEOUT_MS, check=lambda _: LocalTransactionState.UNKNOW
        ) as producer:
            for body, state in STATES.items():
                producer.send_in_transaction(OutgoingMessage(TOPIC, body), lambda _message, _result, end=state: end)
            producer.send(OutgoingMessage(TOPIC, DELAYED, delay_level=5))
    settings = (
        f"mappedFileSizeCommitLog={SEGMENT_BYTES}\n{OUR_FILES}transactionTimeOut=1000\ntransactionCheckInterval=1000\n"
    )
    asked: list[bytes] = []

    def decide(message: CheckedMessage) -> LocalTransactionState:
        asked.append(message.body)
        return LocalTransactionState.COMMIT_MESSAGE

    async def bodies(cluster: Cluster) -> list[bytes]:
        operations, mq = Operations(cluster), MessageQueue(TOPIC, NAME, 0)
        address, found = await cluster.address_of(mq), list[bytes]()
        while len(found) < await operations.max_offset(mq):
            header = PullRequest(
                "reader", TOPIC, 0, len(found), 32, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG", broker_name=NAME
            )
            result = parse_pull(await operations.pull(address, header), address)
            found += [message.body for message in decode_messages(bytes(result.body))]
        return found

    with run_servers(Kind(version), tmp_path, settings=settings) as servers:
        with SyncProducer(servers.target, GROUP, send_timeout_ms=SEND_TIMEOUT_MS, check=decide) as producer:
            producer.send(OutgoingMessage(TOPIC, FRESH))  # else the broker does not know whom to ask
            found = list[bytes]()

            def is_done() -> bool:
                found[:] = run_with_cluster(servers.target, bodies)
                return set(found) == {COMMITTED, FRESH, UNDECIDED, DELAYED}

            wait_until(lambda: answers(is_done), WAIT_S, "the open transaction and the delayed message")
        assert found[0] == COMMITTED
        assert set(asked) == {UNDECIDED}
        # A genuine broker asks again when the answer takes a second, and puts the message into its topic with each.
        assert found.count(UNDECIDED) <= len(asked)
        assert len(found) == 3 + found.count(UNDECIDED), "the others once"
