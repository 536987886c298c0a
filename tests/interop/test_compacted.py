"""What genuine brokers say of a topic that they compact, which explains offsets that they passed over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from servers import VERSIONS, Servers, wait_until_answered

from rocketcrew.cli.commands.reconcile import compacted
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.spark.reconciling import Fate, QueueReport, Report

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
TOPICS = {"compacted": {"cleanup.policy": "COMPACTION"}, "uncompacted": {"cleanup.policy": "DELETE"}, "as-ever": {}}


@ON_BOTH
def test_which_topics_are_compacted(servers: Servers) -> None:
    """4.9 has no such topics, and does not know the question."""

    async def create(cluster: Cluster) -> bool:
        for topic, attributes in TOPICS.items():
            await Admin(cluster).create_topic(servers.address, TopicConfig(topic, attributes=attributes))
            await cluster.route(topic)
        return True

    wait_until_answered(lambda: run_with_cluster(servers.name_server, create), "the topics")
    gap = IntervalSet.of([(3, 9)])
    keys = {topic: QueueKey("g", topic, "broker-a", 0) for topic in TOPICS}
    report = Report(tuple(QueueReport(key, None, {Fate.UNDELIVERED: gap}) for key in keys.values()), None)
    found = run_with_cluster(servers.name_server, lambda cluster: compacted(cluster, report))
    explained = {} if servers.kind.version.startswith("4") else {keys["compacted"]: gap}
    assert found == {Fate.COMPACTED: OffsetSet(explained)}
