"""Which groups there are, asked of an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.queues import MessageQueue

TOPICS = ("orders", "tags", "%RETRY%billing", "%RETRY%billing_orders", "%RETRY%billing_tags")


async def fill(cluster: Cluster) -> None:
    """The retry topic of a popped topic, and a group of its own that is called as another would be."""
    for topic in TOPICS:
        await Admin(cluster).create_topic_everywhere(TopicConfig(topic, read_queue_nums=1, write_queue_nums=1))
    await Operations(cluster).update_consumer_offset("billing_tags", MessageQueue("tags", "broker-a", 0), 0)


@pytest.fixture
def name_server() -> Iterator[str]:
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())
    run_with_cluster(broker.name_server, fill)
    yield broker.name_server
    thread.run(broker.stop())
    thread.close()


def test_the_retry_topics_of_popped_topics_are_no_groups(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run(["groups", "-n", name_server, "--json"], {}, tmp_path) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["groups"]] == ["billing", "billing_tags"]
