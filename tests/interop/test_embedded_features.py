"""What genuine clients and mqadmin can do with our embedded broker beyond sending and consuming."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import Broker, send_numbers
from servers import CLIENT_OPTIONS, VERSIONS, Java, mqadmin

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.queues import MessageQueue

TOPIC, GROUP = "features", "features-group"
JavaClasses = Callable[[str], str]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path)
    yield started
    started.stop()


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_java_asks_and_is_answered_and_5_has_its_timers(
    version: str, broker: Broker, tmp_path: Path, java_classes: JavaClasses
) -> None:
    has_timers = ["timers"] if version.startswith("5") else []
    words = ["Features", broker.name_server, TOPIC, *has_timers]
    java = Java("features", tmp_path, java_classes(version), words, CLIENT_OPTIONS)
    try:
        lines = java.finish(120.0)
    finally:
        java.stop()
    assert "REPLY answer" in lines, lines
    if has_timers:
        assert "TIMER in time" in lines, lines
        assert "RECALLED true" in lines, lines
        assert "CONSUMED deliver,first,later,question" in lines, lines


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_mqadmin_looks_cleans_and_changes(
    version: str, broker: Broker, tmp_path: Path, java_classes: JavaClasses
) -> None:
    classes = java_classes(version)
    send_numbers(broker, TOPIC, range(100, 130))

    async def commit(cluster: Cluster) -> None:
        await Operations(cluster).update_consumer_offset(GROUP, MessageQueue(TOPIC, "broker-a", 0), 2)

    def admin(*words: str) -> str:
        return "\n".join(mqadmin(tmp_path, classes, broker.name_server, *words))

    address = f"127.0.0.1:{broker.port}"
    text = admin("updateSubGroup", "-b", address, "-g", GROUP)
    assert "success" in text, text
    run_with_cluster(broker.name_server, commit)
    text = admin("brokerConsumeStats", "-b", address)
    assert re.search(rf"{TOPIC} +{GROUP} ", text), text
    text = admin("updateBrokerConfig", "-b", address, "-k", "fileReservedTime", "-v", "48")
    assert "success" in text, text
    text = admin("getBrokerConfig", "-b", address)
    assert re.search(r"fileReservedTime += +48", text), text
    assert re.search(r"flushDiskType += +A?SYNC_FLUSH", text), text
    text = admin("getNamesrvConfig")
    assert re.search(r"listenPort += +\d+", text), text
    for command in ("cleanExpiredCQ", "cleanUnusedTopic"):
        text = admin(command, "-b", address)
        assert "success" in text, text
    text = admin("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "5", "-b", address)
    assert re.search(r"max: \d+", text), text
    text = admin("statsAll", "-t", TOPIC)
    rows = [line.split() for line in text.splitlines() if line.startswith(TOPIC)]
    assert any("30" in row for row in rows), text
    text = admin("updateKvConfig", "-s", "namespace", "-k", "key", "-v", "value")
    assert "success" in text, text
    export = tmp_path / "export"
    text = admin("exportMetadata", "-c", "DefaultCluster", "-f", str(export))
    assert "success" in text, text
    found = json.loads((export / "metadata.json").read_text())
    assert TOPIC in found["topicConfigTable"], text
    assert GROUP in found["subscriptionGroupTable"], text
