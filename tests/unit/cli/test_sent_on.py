"""Where failed messages went, asked of an embedded broker: records by unique key, dead letters by origin."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.requests.query_message import BODY_MAX_BYTES, UNIQUE_ANSWERS_MAX
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import sent_on
from rocketcrew.cli.sent_on import in_question, is_full, next_fate, told, whom_to_ask
from rocketcrew.client.access import Access, Credentials
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.admin_bodies import ClusterInfo, SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import BrokerData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import SendBack
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage
from rocketcrew.spark.reconciling import Fate, QueueReport, Report

KEY = QueueKey("g", "orders", "embedded", 0)
QUEUE = MessageQueue("orders", "embedded", 0)


def pieces(*offsets: int) -> IntervalSet:
    return IntervalSet.from_offsets(offsets)


def report(fates: Mapping[Fate, IntervalSet], key: QueueKey = KEY) -> Report:
    return Report((QueueReport(key, None, fates),), None)


def copy(topic: str, times: int, physical_offset: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic, b"", encode_properties({"UNIQ_KEY": "u", **properties}).encode(), reconsume_times=times,
        physical_offset=physical_offset,
    )  # fmt: skip


FIRST = copy("orders", 0, 7)
ORIGIN = {"ORIGIN_MESSAGE_ID": FIRST.offset_message_id}
RETRY = copy("%RETRY%g", 1, 8, **ORIGIN)
DELAYED = copy("SCHEDULE_TOPIC_XXXX", 1, 8, REAL_TOPIC="%RETRY%g", **ORIGIN)
LETTER = copy("%DLQ%g", 2, 9, **ORIGIN)
OF_ANOTHER = copy("%RETRY%g", 1, 10, ORIGIN_MESSAGE_ID=copy("orders", 0, 3).offset_message_id)


@pytest.mark.parametrize(
    ("record", "others", "fate"),
    [
        (FIRST, [FIRST], Fate.NO_ROWS),
        (FIRST, [FIRST, RETRY], Fate.SENT_BACK),
        (FIRST, [FIRST, DELAYED], Fate.SENT_BACK),
        (FIRST, [FIRST, RETRY, LETTER], Fate.SENT_BACK),
        (RETRY, [FIRST, RETRY, LETTER], Fate.DEAD_LETTER),
        (RETRY, [FIRST, RETRY], Fate.NO_ROWS),
        (FIRST, [FIRST, OF_ANOTHER], Fate.NO_ROWS),
        (FIRST, [], None),
        (FIRST, [LETTER], None),
    ],
    ids=str,
)
def test_what_the_records_of_one_unique_key_say(
    record: StoredMessage, others: list[StoredMessage], fate: Fate | None
) -> None:
    assert next_fate(record, others, "g") is fate


@pytest.mark.parametrize(
    ("others", "fate"),
    [
        ([FIRST], None),
        ([FIRST, LETTER], None),
        ([FIRST, RETRY], Fate.SENT_BACK),
        ([FIRST, RETRY, LETTER], Fate.SENT_BACK),
    ],
    ids=str,
)
def test_where_not_all_is_known_only_what_was_found_counts(others: list[StoredMessage], fate: Fate | None) -> None:
    assert next_fate(FIRST, others, "g", whole=False) is fate


def test_a_full_answer_is_not_a_whole_one() -> None:
    assert is_full(bytes(100), UNIQUE_ANSWERS_MAX)
    assert not is_full(bytes(100), UNIQUE_ANSWERS_MAX - 1)
    assert is_full(bytes(BODY_MAX_BYTES), 2)
    assert not is_full(bytes(BODY_MAX_BYTES - 1), 2)


def test_brokers_without_a_master_are_asked_by_their_slave_and_named() -> None:
    info = ClusterInfo(
        {
            "a": BrokerData("a", {0: "a:1", 1: "a:2"}, "c"), "b": BrokerData("b", {2: "b:2", 1: "b:1"}, "c"),
            "d": BrokerData("d", {}, "c"),
        }
    )  # fmt: skip
    assert whom_to_ask(info) == ({"a": "a:1", "b": "b:1"}, {"b", "d"})


def test_so_many_records_are_asked_for_and_of_first_epochs_alone() -> None:
    before = report({Fate.RECOVERED: IntervalSet.of([(0, 2), (5, 9)]), Fate.LOADED: pieces(2)})
    assert in_question(before, 3) == OffsetSet({KEY: IntervalSet.of([(0, 2), (5, 6)])})
    again = QueueReport(KEY.in_epoch(1), None, {Fate.RECOVERED: pieces(1)})
    assert not in_question(replace(before, queues=(*before.queues, again)))


def test_brokers_say_how_messages_ended() -> None:
    """0 had no rows, 1 goes back, 2 is a dead letter by its broker's word alone, and so is 3, which nobody noted."""

    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        await fill(broker, cluster, [OutgoingMessage("orders", b"%d" % number) for number in range(5)])
        for offset, limit in ((1, 16), (2, 0), (3, 0)):
            await send_back(broker, cluster, offset, limit)
        before = report({Fate.RECOVERED: pieces(0, 1, 3), Fate.SENT_BACK: pieces(2), Fate.LOADED: pieces(4)})
        found = before.as_told(await told(cluster, before)).queues[0].fates
        assert found == {
            Fate.LOADED: pieces(4), Fate.SENT_BACK: pieces(1), Fate.DEAD_LETTER: pieces(2, 3), Fate.NO_ROWS: pieces(0),
        }  # fmt: skip

    play(scene)


ACCOUNTS = """
[[accounts]]
accessKey = "operator"
secretKey = "operator-secret"
admin = true

[[accounts]]
accessKey = "crewmember"
secretKey = "crewmember-secret"
topicPerms = ["orders=SUB", "%DLQ%g=SUB"]
groupPerms = ["g=SUB", "TOOLS_CONSUMER=SUB"]
"""


def refuse_delayed(command: Command) -> Command | None:
    if command.code == RequestCode.QUERY_MESSAGE and command.fields["topic"] == SCHEDULE_TOPIC:
        return command.response(ResponseCode.NO_PERMISSION, remark="No default permission for SCHEDULE_TOPIC_XXXX")
    return None


@pytest.mark.parametrize("genuine", [False, True])
def test_the_account_of_the_members_is_enough(tmp_path: Path, genuine: bool) -> None:
    """Of all delayed messages ours shows it those of its topics and groups; a genuine broker shows it none."""
    file = tmp_path / "acl.toml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)

    async def played() -> None:
        async with EmbeddedBroker(config=BrokerConfig(acl_file=str(file))) as broker:
            root, crew = (
                Access(broker.name_server, credentials=Credentials(name, f"{name}-secret"))
                for name in ("operator", "crewmember")
            )
            async with open_cluster(root) as operator, open_cluster(crew) as cluster:
                await fill(broker, operator, [OutgoingMessage("orders", b"x")] * 4, root)
                for offset, limit in ((1, 16), (2, 0), (3, 0)):
                    await send_back(broker, cluster, offset, limit)
                if genuine:
                    broker.intercepts.append(refuse_delayed)
                before = report({Fate.RECOVERED: pieces(0, 1, 3), Fate.SENT_BACK: pieces(2)})
                found = before.as_told(await told(cluster, before)).queues[0].fates
        if genuine:
            assert found == {Fate.RECOVERED: pieces(0, 1, 3), Fate.DEAD_LETTER: pieces(2)}
        else:
            assert found == {Fate.NO_ROWS: pieces(0), Fate.SENT_BACK: pieces(1), Fate.DEAD_LETTER: pieces(2, 3)}

    asyncio.run(played())


def test_what_is_missing_among_many_of_one_key_or_on_a_broker_that_is_gone_is_left_open() -> None:
    """The broker shows the newest records of a key alone: 39's copy is older than they are."""

    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        await fill(
            broker,
            cluster,
            [OutgoingMessage("orders", b"x", system_properties={"UNIQ_KEY": "same"}) for _ in range(40)],
        )
        for offset in (39, *range(39)):
            await send_back(broker, cluster, offset, 16)
        assert not await told(cluster, report({Fate.RECOVERED: pieces(39)}))

        await fill(broker, cluster, [OutgoingMessage("orders", b"x")] * 2)
        await send_back(broker, cluster, 41, 16)
        elsewhere = QueueReport(QueueKey("g", "orders", "gone", 0), None, {})
        alone = report({Fate.RECOVERED: pieces(40, 41)})
        assert await told(cluster, alone) == {
            Fate.NO_ROWS: OffsetSet({KEY: pieces(40)}), Fate.SENT_BACK: OffsetSet({KEY: pieces(41)}),
        }  # fmt: skip
        both = replace(alone, queues=(*alone.queues, elsewhere))
        assert await told(cluster, both) == {Fate.SENT_BACK: OffsetSet({KEY: pieces(41)})}

    play(scene)


def test_a_dead_letter_says_nothing_of_a_queue_that_was_run_again() -> None:
    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        await fill(broker, cluster, [OutgoingMessage("orders", b"x")])
        await send_back(broker, cluster, 0, 0)
        once = report({Fate.SENT_BACK: pieces(0)})
        assert await told(cluster, once) == {Fate.DEAD_LETTER: OffsetSet({KEY: pieces(0)})}
        again = QueueReport(KEY.in_epoch(1), None, {Fate.SENT_BACK: pieces(0)})
        assert not await told(cluster, replace(once, queues=(*once.queues, again)))

    play(scene)


def test_bodies_are_not_kept() -> None:
    """Of what is read and of what is found: as many records as are asked about may be in memory at once."""

    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        await fill(broker, cluster, [OutgoingMessage("orders", Random(0).randbytes(1 << 20)) for _ in range(40)])
        for offset in range(40):
            await send_back(broker, cluster, offset, 16 if offset % 2 else 0)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            found = await told(cluster, report({Fate.RECOVERED: IntervalSet.of([(0, 40)])}))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sum(each.count() for each in found.values()) == 40
        assert (peak - before) >> 20 < 20

    play(scene)


async def fill(
    broker: EmbeddedBroker, cluster: Cluster, messages: Sequence[OutgoingMessage], access: Access | None = None
) -> None:
    admin = Admin(cluster)
    await admin.create_topic(broker.address, TopicConfig("orders", 1, 1))
    await admin.create_group(broker.address, SubscriptionGroupConfig("g"))
    async with Producer(access or broker.name_server) as producer:
        for message in messages:
            await producer.send(message)


async def send_back(broker: EmbeddedBroker, cluster: Cluster, offset: int, limit: int) -> None:
    """As a member does; above `limit` attempts it is a dead letter."""
    (record,) = [one async for one in sent_on.messages(cluster, QUEUE, offset, offset + 1)]
    header = SendBack(record.physical_offset, "g", 0, None, "orders", False, limit)
    await Operations(cluster).send_back(broker.address, header, timeout_ms=60_000)


def play(scene: Callable[[EmbeddedBroker, Cluster], Awaitable[None]]) -> None:
    async def played() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await scene(broker, cluster)

    asyncio.run(played())
