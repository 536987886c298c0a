"""When brokers stored the records that a table has, against the embedded broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.commands.reconcile import first_others, stored
from rocketcrew.cli.rerunning import fetch
from rocketcrew.client.admin import Admin
from rocketcrew.client.asking import ask
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.headers import ResetOffset
from rocketcrew.remoting.names import TOOLS_GROUP
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.searching import store_times
from rocketcrew.spark.reconciling import Search

TOPIC = "orders"
MQ = MessageQueue(TOPIC, "embedded", 0)
KEY = QueueKey("g", TOPIC, "embedded", 0)
EMPTY = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "4"}
TOPIC_CONFIG = TopicConfig(TOPIC, read_queue_nums=2, write_queue_nums=2)


async def four_sent(broker: EmbeddedBroker, cluster: Cluster) -> None:
    producer = Producer(cluster, "senders")
    await Admin(cluster).create_topic(broker.address, TOPIC_CONFIG)
    for _ in range(4):
        await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(MQ))


def test_the_record_itself_is_asked_for_and_what_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, producer = Admin(cluster), Producer(cluster, "senders")
            times: list[int] = []
            for _ in range(2):
                await admin.create_topic(broker.address, TOPIC_CONFIG)
                for _ in range(2):
                    await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(MQ))
                found, _ = await stored(cluster, {KEY: (1,), KEY._replace(queue_id=1): (0, 1)}, {})
                assert {key: list(some) for key, some in found.items()} == {KEY: [1]}
                times.append(found[KEY][1])
                await admin.delete_topic(broker.address, TOPIC)
            assert times[0] < times[1]

    asyncio.run(run())
    why = "whether topics were made again is not known of 1 queue of 2: brokers do not give the records that the table has\n"
    assert capsys.readouterr().err.count(why) == 2


@pytest.mark.parametrize(
    ("own_us", "asked"),
    [
        (lambda at, time_us: time_us, [0, 1]),
        (lambda at, time_us: 0, [0, 1, 2, 3]),
        (lambda at, time_us: 0 if at < 2 else time_us, [0, 1, 2]),
    ],
    ids=["the table's own", "all are others", "others below"],
)
def test_it_looks_on_until_a_broker_gives_a_record_that_is_the_table_s(
    own_us: Callable[[int, int], int], asked: list[int]
) -> None:
    """The first one is not given, as one on a bad page."""
    pulled: list[int] = []

    def without_the_first(command: Command) -> Command | None:
        if command.code != RequestCode.PULL_MESSAGE:
            return None
        pulled.append(int(command.fields["queueOffset"]))
        return command.response(ResponseCode.PULL_RETRY_IMMEDIATELY, EMPTY) if pulled == [0] else None

    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await four_sent(broker, cluster)
            times = await store_times(cluster, Operations(cluster), ["g"], MQ, 0, 4)
            broker.intercepts.append(without_the_first)
            table = {KEY: {at: own_us(at, time_ms * 1000) for at, time_ms in times.items()}}
            found, refused = await stored(cluster, {KEY: range(4)}, table)
            assert (len(found), refused) == (1, {})

    asyncio.run(run())
    assert pulled == asked


def test_all_that_is_asked_for_is_looked_at_where_it_is_wanted_and_the_first_other_one_is_found() -> None:
    clock_ms = count(time.time_ns() // 1_000_000)

    async def run() -> None:
        embedded = EmbeddedBroker(clock_ms=lambda: next(clock_ms))
        async with embedded as broker, open_cluster(broker.name_server) as cluster:
            await four_sent(broker, cluster)
            times = await store_times(cluster, Operations(cluster), ["g"], MQ, 0, 4)
            table = {KEY: {at: time_ms * 1000 for at, time_ms in times.items()}}
            found = await stored(cluster, {KEY: (0, 2, 3, 7)}, table, each=True)
            assert found == ({KEY: {n: times[n] for n in (0, 2, 3)}}, {})
            searches = {KEY: [Search(1, 3, times[1] + 1)], KEY._replace(topic="gone"): [Search(0, 3, 1)]}
            assert await first_others(cluster, searches) == {KEY: {3: 2}}

    asyncio.run(run())


@pytest.mark.parametrize("each", [False, True])
def test_a_queue_that_may_not_be_read_is_told_and_leaves_the_others(
    capsys: pytest.CaptureFixture[str], each: bool
) -> None:
    """Permissions are taken from one topic, or from a group, at the very time when somebody wants to know what is there."""

    async def run() -> tuple[dict[QueueKey, dict[int, int]], dict[QueueKey, str]]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, producer = Admin(cluster), Producer(cluster, "senders")
            for topic, perm in ((TOPIC, 6), ("written", 2)):
                await admin.create_topic(broker.address, TopicConfig(topic, perm=perm))
                await producer.send(OutgoingMessage(topic, b"x"), selector=to_queue(MQ._replace(topic=topic)))
            return await stored(cluster, {KEY._replace(topic="written"): (0, 1), KEY: (0,)}, {}, each=each)

    found, refused = asyncio.run(run())
    assert (found.keys(), refused.keys()) == ({KEY}, {KEY._replace(topic="written")})
    assert "is not known of" not in capsys.readouterr().err, "the report says it"


@pytest.mark.parametrize(
    ("code", "remark", "asked"),
    [
        (ResponseCode.SUCCESS, "", {TOOLS_GROUP}),
        (ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy", {TOOLS_GROUP}),
        (ResponseCode.NO_PERMISSION, "the group may not", {TOOLS_GROUP, "g"}),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No permission", {TOOLS_GROUP, "g"}),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "it was deleted", {TOOLS_GROUP, "g"}),
    ],
)
def test_brokers_are_asked_in_the_group_s_name_only_where_nobody_else_may_read(
    code: int, remark: str, asked: set[str]
) -> None:
    """The first pull of the group takes a reset along, of which its members learn no more (5.2 and later)."""
    names: set[str] = set()

    def refuse_tools(command: Command) -> Command | None:
        if command.code != RequestCode.PULL_MESSAGE:
            return None
        name = command.fields["consumerGroup"]
        names.add(name)
        return command.response(code, remark=remark) if code and name == TOOLS_GROUP else None

    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await four_sent(broker, cluster)
            broker.intercepts.append(refuse_tools)
            wanted = OffsetSet({KEY: IntervalSet.of([(1, 4)])})

            found, refused = await stored(cluster, {KEY: (0, 3)}, {}, each=True)
            begins = await first_others(cluster, {KEY: [Search(1, 3, 1)]})
            if code == ResponseCode.SYSTEM_BUSY:
                assert (list(found), list(refused), begins) == ([], [KEY], {})
                with pytest.raises(RocketcrewError, match="broker busy"):
                    await fetch(cluster, wanted)
            else:
                assert (list(found[KEY]), refused, begins) == ([0, 3], {}, {KEY: {3: 1}})
                records, gone, rest = await fetch(cluster, wanted)
                assert (len(records), gone, rest) == (3, OffsetSet(), OffsetSet())
            assert names == asked
            reset = ResetOffset(TOPIC, "g", 0, is_force=True, queue_id=0, offset=2)
            await ask(
                cluster.remoting, broker.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, timeout_ms=5_000
            )
            if "g" in asked:
                _, refused = await stored(cluster, {KEY: (0, 3)}, {})
                assert "g was just reset to 2 in queue 0 of orders at embedded" in refused[KEY]

    asyncio.run(run())
