"""Every operation against the embedded broker, over loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import BOUND_TIMEOUT_MS, Operations, PullStatus, parse_pull
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.selection import to_queue
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import (
    BrokerData,
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    QueueData,
    SubscriptionData,
    TopicRouteData,
)
from rocketcrew.remoting.codes import PULL_SUSPEND, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, ProtocolError, UnreachableError, UsageError
from rocketcrew.remoting.headers import PullRequest, PullResponse, SendBack
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages, walk

from .conftest import PATIENT_MS

TOPIC, GROUP = "orders", "workers"
MQ = MessageQueue(TOPIC, "embedded", 1)


@contextlib.asynccontextmanager
async def running():
    """A broker with the topic, its cluster, and the operations."""
    async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
        await Admin(cluster).create_topic(broker.address, TopicConfig(TOPIC, 2, 2))
        yield broker, cluster, Operations(cluster)


async def send(cluster, *bodies, mq=MQ):
    producer = Producer(cluster, "senders", send_timeout_ms=PATIENT_MS)
    return [await producer.send(OutgoingMessage(mq.topic, body), selector=to_queue(mq)) for body in bodies]


def heartbeat_of(client_id, topic=TOPIC):
    subscriptions = (SubscriptionData.of(topic, "*", 1), SubscriptionData.of(f"%RETRY%{GROUP}", "*", 1))
    return HeartbeatData(client_id, consumer_data_set=(ConsumerData(GROUP, subscription_data_set=subscriptions),))


def pull_of(offset, mq=MQ, sysflag=0, suspend_ms=0):
    return PullRequest(GROUP, mq.topic, mq.queue_id, offset, 32, sysflag, 0, suspend_ms, 1, expression_type="TAG")


async def test_offsets_are_stored_and_found():
    async with running() as (broker, cluster, operations):
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        assert await operations.query_consumer_offset(GROUP, MQ, set_zero_if_not_found=False) is None
        await send(cluster, b"a", b"b", b"c")
        await operations.update_consumer_offset(GROUP, MQ, 2)
        assert await operations.query_consumer_offset(GROUP, MQ) == 2
        assert (await operations.min_offset(MQ), await operations.max_offset(MQ)) == (0, 3)


async def test_delay_levels_say_how_far_they_are():
    async with EmbeddedBroker(delay_levels="1ms 1h") as broker, open_cluster(broker.name_server) as cluster:
        await Admin(cluster).create_topic(broker.address, TopicConfig(TOPIC, 2, 2))
        operations, producer = Operations(cluster), Producer(cluster, "senders")
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        assert await operations.delay_offsets(broker.address) == {}
        for level in (1, 2):
            await producer.send(OutgoingMessage(TOPIC, b"later", delay_level=level), selector=to_queue(MQ))
        pulled = await operations.pull(broker.address, pull_of(0, sysflag=PULL_SUSPEND, suspend_ms=60_000))
        assert parse_pull(pulled, broker.address).status is PullStatus.FOUND  # the first one, when it was due
        ends = [await operations.max_offset(MessageQueue("SCHEDULE_TOPIC_XXXX", "embedded", level)) for level in (0, 1)]
        assert ends == [1, 1]
        assert await operations.delay_offsets(broker.address) == {1: 1}


async def test_search_by_time():
    async with running() as (_, cluster, operations):
        await send(cluster, b"a", b"b")
        assert await operations.search_offset(MQ, 0) == 0
        assert await operations.search_offset(MQ, 1 << 42) == 2


async def test_members_come_and_go():
    async with running() as (broker, cluster, operations):
        assert await operations.consumer_ids(GROUP, TOPIC) == []
        version = await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        assert version >= 400
        assert await operations.consumer_ids(GROUP, TOPIC) == [cluster.client_id]
        await operations.unregister(broker.address, cluster.client_id, GROUP)
        assert await operations.consumer_ids(GROUP, TOPIC) == []


class Asked:
    """A Remoting that answers nothing, and keeps how long it would have waited."""

    def __init__(self):
        self.waits_ms = {}

    async def request(self, address, command, *, timeout_ms, body_sink=None):
        self.waits_ms[RequestCode(command.code).name] = timeout_ms
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            broker = BrokerData("embedded", {0: "127.0.0.1:1"}, "c")
            return command.response(0, body=TopicRouteData((QueueData("embedded", 1, 1, 6, 0),), (broker,)).encode())
        raise UnreachableError(address, "is silent")


async def test_the_access_says_how_long_answers_about_routes_and_the_group_may_take():
    asked = Asked()
    operations = Operations(Cluster(Access("127.0.0.1:2", request_timeout_ms=150), client_id="me", remoting=asked))
    for asks in (
        operations.consumer_ids(GROUP, TOPIC),
        operations.heartbeat("127.0.0.1:1", heartbeat_of("me")),
        operations.check_client_config(
            "127.0.0.1:1", CheckClientConfig("me", GROUP, SubscriptionData.of(TOPIC, "*", 1))
        ),
        operations.group_on("127.0.0.1:1", GROUP),
        operations.unregister("127.0.0.1:1", "me", GROUP),
        operations.max_offset(MQ),
    ):
        with pytest.raises(UnreachableError):
            await asks
    assert asked.waits_ms.pop("GET_MAX_OFFSET") == BOUND_TIMEOUT_MS
    assert len(asked.waits_ms) == 6
    assert set(asked.waits_ms.values()) == {150}


async def test_a_member_hears_of_another_one():
    heard = asyncio.Queue()

    async def serve(address, command):
        heard.put_nowait((command.code, command.fields["consumerGroup"]))

    async with running() as (broker, _, operations):
        remoting = Remoting(on_request=serve)
        cluster = Cluster(broker.name_server, client_id="127.0.0.1@first", remoting=remoting)
        await Operations(cluster).heartbeat(broker.address, heartbeat_of("127.0.0.1@first"))
        assert await heard.get() == (40, GROUP)
        await operations.heartbeat(broker.address, heartbeat_of("127.0.0.1@second"))
        assert await heard.get() == (40, GROUP)
        await remoting.close()


async def test_pull_into_a_sink():
    slab = memoryview(bytearray(100_000))
    async with running() as (broker, cluster, operations):
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        await send(cluster, b"first", b"second")
        answer = await operations.pull(broker.address, pull_of(0), body_sink=lambda head, n: slab[:n])
        result = parse_pull(answer, broker.address)
        assert result.status is PullStatus.FOUND
        assert (result.header.next_begin_offset, result.header.max_offset, result.dropped) == (2, 2, False)
        assert walk(slab, 0, len(result.body))[1] == [0, 1]
        assert [message.body for message in decode_messages(result.body)] == [b"first", b"second"]
        answer = await operations.pull(broker.address, pull_of(0), body_sink=lambda head, n: None)
        assert parse_pull(answer, broker.address).dropped


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_a_pull_is_not_taken_whose_records_bear_other_offsets_than_the_queue(code):
    fields = PullResponse(0, 1010, 0, 1010, offset_delta=1000).to_fields()
    with pytest.raises(ProtocolError, match="pull's answer from b:1: its records are 1000 offsets away"):
        parse_pull(Command(code, fields), "b:1")
    fields = PullResponse(0, 10, 0, 10, offset_delta=0).to_fields()
    assert parse_pull(Command(code, fields), "b:1").header.next_begin_offset == 10


async def test_pull_results_that_are_no_messages():
    async with running() as (broker, cluster, operations):
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        await send(cluster, b"first")

        async def status(offset):
            return parse_pull(await operations.pull(broker.address, pull_of(offset)), broker.address).status

        assert await status(1) is PullStatus.NO_NEW_MSG
        assert await status(9) is PullStatus.OFFSET_ILLEGAL
        unknown = await operations.pull(broker.address, pull_of(0, MessageQueue("nothing", "embedded", 0)))
        with pytest.raises(BrokerError, match=r"PULL_MESSAGE \(11\) at .* was refused: 17 TOPIC_NOT_EXIST"):
            parse_pull(unknown, broker.address)


async def test_a_held_pull_is_answered_by_an_arrival():
    async with running() as (broker, cluster, operations):
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        await send(cluster, b"first")
        held = asyncio.create_task(operations.pull(broker.address, pull_of(1, sysflag=PULL_SUSPEND, suspend_ms=15_000)))
        await send(cluster, b"second")
        result = parse_pull(await held, broker.address)
        assert [message.body for message in decode_messages(result.body)] == [b"second"]


async def test_send_back_lands_in_the_retry_topic():
    async with EmbeddedBroker(delay_levels="1ms 2ms") as broker, open_cluster(broker.name_server) as cluster:
        operations = Operations(cluster)
        retry = MessageQueue(f"%RETRY%{GROUP}", "embedded", 0)
        await Admin(cluster).create_topic(broker.address, TopicConfig(TOPIC, 2, 2))
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        (sent,) = await send(cluster, b"again")
        record = await Admin(cluster).view_message(sent.offset_message_id)
        back = SendBack(record.physical_offset, GROUP, 1, sent.message_id, TOPIC, max_reconsume_times=16)
        await operations.send_back(broker.address, back)
        answer = await operations.pull(broker.address, pull_of(0, retry, PULL_SUSPEND, 15_000))
        (message,) = decode_messages(parse_pull(answer, broker.address).body)
        assert (message.body, message.reconsume_times) == (b"again", 1)
        with pytest.raises(BrokerError):
            await operations.send_back(broker.address, SendBack(1 << 40, GROUP, 1))


async def test_locks():
    async with running() as (broker, cluster, operations):
        queues = [MessageQueue(TOPIC, "embedded", number) for number in range(2)]
        assert await operations.lock_batch(broker.address, GROUP, queues) == set(queues)
        rival = Operations(Cluster(broker.name_server, client_id="rival", remoting=cluster.remoting))
        assert await rival.lock_batch(broker.address, GROUP, queues) == set()
        await operations.unlock_batch(broker.address, GROUP, queues[:1])
        await operations.unlock_batch(broker.address, GROUP, queues[1:], oneway=True)
        assert await rival.lock_batch(broker.address, GROUP, queues) == set(queues)


async def test_topics_and_statistics():
    async with running() as (broker, cluster, operations):
        admin = Admin(cluster)
        assert TOPIC in await admin.topic_list()
        assert (await admin.cluster_info()).cluster_addr_table == {"DefaultCluster": ("embedded",)}
        assert await admin.create_topic_everywhere(TopicConfig("more", 3, 3)) == [broker.address]
        assert len(await cluster.queues_to_read("more")) == 3
        await send(cluster, b"a", b"b")
        await operations.heartbeat(broker.address, heartbeat_of(cluster.client_id))
        await operations.update_consumer_offset(GROUP, MQ, 1)
        assert (await admin.topic_stats(TOPIC)).offset_table[MQ].max_offset == 2
        behind = (await admin.consume_stats(GROUP, TOPIC)).offset_table[MQ]
        assert (behind.broker_offset, behind.consumer_offset) == (2, 1)
        members = await admin.consumer_connections(GROUP)
        assert [member.client_id for member in members.connection_set] == [cluster.client_id]
        assert await admin.consumer_connections("nobody", TOPIC) is None
        await admin.create_group(broker.address, SubscriptionGroupConfig("other", retry_max_times=2))
        await admin.delete_topic(broker.address, "more")
        with pytest.raises(BrokerError):
            await cluster.route("more", refresh=True)


async def test_single_messages():
    async with running() as (broker, cluster, _):
        admin = Admin(cluster)
        (sent,) = await send(cluster, b"look at me")
        assert (await admin.view_message(sent.offset_message_id, TOPIC)).body == b"look at me"
        with pytest.raises(ProtocolError, match="offset message id"):
            await admin.view_message("nonsense")
        with pytest.raises(BrokerError):
            await admin.view_record(broker.address, 1 << 40)


@pytest.mark.parametrize("name", ["", "TBW102", "rmq_sys_x", "ü", "a b", "x" * 128])
async def test_topics_that_cannot_be_created(name):
    async with open_cluster("127.0.0.1:1") as cluster:
        with pytest.raises(UsageError, match="topic"):
            await Admin(cluster).create_topic("127.0.0.1:1", TopicConfig(name))


async def test_a_refusal_is_an_error_with_its_code():
    async with running() as (broker, _, operations):
        broker.intercepts.append(lambda command: command.response(16, remark="not you") if command.code == 30 else None)
        with pytest.raises(BrokerError) as caught:
            await operations.max_offset(MQ)
        assert (caught.value.code, caught.value.remark) == (16, "not you")
        assert "GET_MAX_OFFSET (30) at 127.0.0.1:" in str(caught.value)


@pytest.mark.parametrize(
    "refusal", [ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED], ids=lambda code: code.name
)
async def test_a_broker_that_does_not_say_may_have_offsets(refusal):
    async with running() as (broker, _, operations):
        assert not await operations.has_offsets(GROUP, MQ)
        code = RequestCode.GET_CONSUME_STATS
        broker.intercepts.append(lambda command: command.response(refusal) if command.code == code else None)
        assert await operations.has_offsets(GROUP, MQ)


async def test_an_answer_without_its_fields_is_a_protocol_error():
    async with running() as (broker, _, operations):
        broker.intercepts.append(lambda command: command.response(0) if command.code == 30 else None)
        with pytest.raises(ProtocolError, match="offset is missing"):
            await operations.max_offset(MQ)


async def test_a_queue_of_an_unknown_broker():
    async with running() as (_, _, operations):
        with pytest.raises(UnreachableError, match="broker-z: the route of topic orders names no address of a master"):
            await operations.max_offset(MessageQueue(TOPIC, "broker-z", 0))


async def test_the_raw_pull_answer_is_a_command():
    async with running() as (broker, _, operations):
        answer = await operations.pull(broker.address, pull_of(0))
        assert isinstance(answer, Command)
        assert answer.code == 24  # no heartbeat told the broker of this group
