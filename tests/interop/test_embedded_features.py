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

from harness import WAIT_S, Broker, send_numbers, wait_until
from servers import (
    CLIENT_OPTIONS,
    JAVA_OPTIONS,
    VERSIONS,
    Java,
    broker_ports,
    broker_settings,
    class_path,
    mqadmin,
    write_logging,
)

from rocketcrew.cli.children import Child, free_ports, listens
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.errors import RocketcrewError
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
        lines = java.finish()
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


def test_java_pops_through_a_kill_of_the_broker(broker: Broker, tmp_path: Path, java_classes: JavaClasses) -> None:
    """Retried by its invisible time: after ten seconds, then after thirty."""
    classes, numbers = java_classes("5.5.0"), range(600, 660)
    send_numbers(broker, TOPIC, numbers[:10])
    address = f"127.0.0.1:{broker.port}"
    words = ["setConsumeMode", "-b", address, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "0"]
    said = mqadmin(tmp_path, classes, broker.name_server, *words)
    assert any("success" in line for line in said), said
    java = Java("popping", tmp_path, classes, ["Member", broker.name_server, GROUP, TOPIC, "popping"], CLIENT_OPTIONS)

    def done() -> dict[int, int]:
        words = [line.split() for line in java.lines() if line.startswith("DONE")]
        return {int(number): int(times) for _, number, times, _ in words}

    try:
        java.wait_for(lambda: pop_lines(broker, "a") == 9, "acknowledge what does not fail", WAIT_S)
        broker.kill()
        broker.start()
        send_numbers(broker, TOPIC, numbers[10:])
        java.wait_for(lambda: set(done()) == set(numbers), "consume all", 2 * WAIT_S)
        assert done() == {number: 2 * (number % 50 == 7) for number in numbers}
        assert pop_lines(broker, "t"), "pulled"
    finally:
        java.stop()


def pop_lines(broker: Broker, kind: str) -> int:
    """How often the broker has noted something of POP since its start: "t" that it popped, "a" an acknowledgement."""
    files = (broker.folder / "broker" / "config" / "pops.journal").glob("*")
    return sum(file.read_bytes().count(f"{kind} {TOPIC}@{GROUP}@".encode()) for file in files)


def brokers_of(name_server: str) -> dict[str, int]:
    """The brokers that a name server knows, and how many queues of BenchmarkTest each has."""

    async def ask(cluster: Cluster) -> dict[str, int]:
        route = await cluster.route("BenchmarkTest")
        return {data.broker_name: data.read_queue_nums for data in route.queue_datas}

    try:
        return run_with_cluster(name_server, ask)
    except RocketcrewError:
        return {}


def test_a_genuine_broker_is_a_member_of_our_cluster_and_ours_of_a_genuine_one(broker: Broker, tmp_path: Path) -> None:
    """Its registrations come compressed."""
    classes, home = class_path("5.5.0"), tmp_path / "genuine"
    home.mkdir()
    write_logging(home)
    (name_server_port,) = free_ports(1)
    (home / "namesrv.conf").write_text(f"listenPort={name_server_port}\nbindAddress=127.0.0.1\n")
    settings = broker_settings(home, broker.name_server_port, *broker_ports())
    (home / "broker.conf").write_text(f"{settings}brokerName=genuine\ncompressedRegister=true\n")
    startup = "org.apache.rocketmq"
    name_server = Java(
        "namesrv", home, classes, [f"{startup}.namesrv.NamesrvStartup", "-c", "namesrv.conf"], JAVA_OPTIONS
    )
    theirs = Java("broker", home, classes, [f"{startup}.broker.BrokerStartup", "-c", "broker.conf"], JAVA_OPTIONS)
    other = f"127.0.0.1:{name_server_port}"
    ours = None
    try:
        wanted = {"broker-a": 1024, "genuine": 1024}
        wait_until(lambda: brokers_of(broker.name_server) == wanted, 2 * WAIT_S, "the genuine broker in our cluster")
        name_server.wait_for(lambda: listens(name_server_port), "listen")
        words = ["broker", "--set", f"broker.dir={tmp_path / 'second'}", "--set", "broker.name=ours",
                 "--set", "broker.name_server_port=0", "--set", "broker.port=0",
                 "--set", f"broker.register_with={other}"]  # fmt: skip
        ours = Child("ours", words, log=tmp_path / "ours.log")
        wait_until(lambda: brokers_of(other) == {"ours": 1024}, 2 * WAIT_S, "our broker in the genuine cluster")
        ours.stop(WAIT_S)
        wait_until(lambda: brokers_of(other) == {}, WAIT_S, "our broker out of it")
    finally:
        if ours is not None:
            ours.stop(WAIT_S)
        theirs.stop(0)
        name_server.stop(0)
