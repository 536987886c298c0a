"""Where failed messages went, asked of an embedded broker: records by unique key, dead letters by origin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import sent_on
from rocketcrew.cli.sent_on import in_question, next_fate, told
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.headers import SendBack
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage
from rocketcrew.spark.reconciling import Fate, QueueReport, Report

KEY = QueueKey("g", "orders", "broker-a", 0)
QUEUE = MessageQueue("orders", "broker-a", 0)


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


def test_so_many_records_are_asked_for_and_of_first_epochs_alone() -> None:
    before = report({Fate.RECOVERED: IntervalSet.of([(0, 2), (5, 9)]), Fate.LOADED: pieces(2)})
    assert in_question(before, 3) == OffsetSet({KEY: IntervalSet.of([(0, 2), (5, 6)])})
    again = QueueReport(KEY.in_epoch(1), None, {Fate.RECOVERED: pieces(1)})
    assert not in_question(replace(before, queues=(*before.queues, again)))


def test_brokers_say_how_messages_ended() -> None:
    """0 had no rows, 1 goes back, 2 is a dead letter by its broker's word alone, and so is 3, which nobody noted."""

    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.create_topic(broker.address, TopicConfig("orders", 1, 1))
        await admin.create_group(broker.address, SubscriptionGroupConfig("g"))
        async with Producer(broker.name_server) as producer:
            for number in range(5):
                await producer.send(OutgoingMessage("orders", b"%d" % number))
        records = [one async for one in sent_on.messages(cluster, QUEUE, 0, 4)]
        for offset, limit in ((1, 16), (2, 0), (3, 0)):
            header = SendBack(records[offset].physical_offset, "g", 0, None, "orders", False, limit)
            await Operations(cluster).send_back(broker.address, header, timeout_ms=60_000)
        before = report({Fate.RECOVERED: pieces(0, 1, 3), Fate.SENT_BACK: pieces(2), Fate.LOADED: pieces(4)})
        found = before.as_told(await told(cluster, before)).queues[0].fates
        assert found == {
            Fate.LOADED: pieces(4), Fate.SENT_BACK: pieces(1), Fate.DEAD_LETTER: pieces(2, 3), Fate.NO_ROWS: pieces(0),
        }  # fmt: skip

    async def play() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await scene(broker, cluster)

    asyncio.run(play())
