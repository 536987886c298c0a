"""Which undelivered records were compacted, asked of an embedded broker."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.commands.reconcile import compacted
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.spark.reconciling import Fate, QueueReport, Report

GAP = IntervalSet.of([(3, 9)])


def key(topic: str) -> QueueKey:
    return QueueKey("g", topic, "broker-a", 0)


def test_only_what_was_not_delivered_of_a_compacted_topic() -> None:
    async def asked() -> dict[Fate, OffsetSet]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin = Admin(cluster)
            await admin.create_topic(broker.address, TopicConfig("prices", attributes={"cleanup.policy": "COMPACTION"}))
            await admin.create_topic(broker.address, TopicConfig("orders", attributes={"cleanup.policy": "DELETE"}))
            await admin.create_topic(broker.address, TopicConfig("plain"))
            queues = [
                QueueReport(key("prices"), None, {Fate.UNDELIVERED: GAP, Fate.UNKNOWN: IntervalSet.of([(20, 21)])}),
                *(QueueReport(key(topic), None, {Fate.UNDELIVERED: GAP}) for topic in ("orders", "plain", "gone")),
            ]
            return await compacted(cluster, Report(tuple(queues), None))

    assert asyncio.run(asked()) == {Fate.COMPACTED: OffsetSet({key("prices"): GAP})}


def test_no_broker_is_asked_of_what_was_delivered() -> None:
    async def asked() -> tuple[dict[Fate, OffsetSet], int]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            report = Report((QueueReport(key("prices"), None, {Fate.UNKNOWN: GAP}),), None)
            return await compacted(cluster, report), len(broker.name_server)

    assert asyncio.run(asked())[0] == {Fate.COMPACTED: OffsetSet()}


def test_a_broker_that_does_not_say_leaves_what_was_not_delivered_unexplained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def asked() -> dict[Fate, OffsetSet]:
        async with EmbeddedBroker() as broker:
            name_server = broker.name_server
        async with open_cluster(name_server) as cluster:
            return await compacted(cluster, Report((QueueReport(key("prices"), None, {Fate.UNDELIVERED: GAP}),), None))

    assert asyncio.run(asked()) == {Fate.COMPACTED: OffsetSet()}
    assert "whether topic prices is a compacted one could not be asked: no name server" in capsys.readouterr().err
