"""What genuine clients and mqadmin can do with our embedded broker beyond sending and consuming."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Broker, send_numbers, wait_until
from servers import (
    CLIENT_OPTIONS,
    JAVA_OPTIONS,
    VERSIONS,
    Java,
    Tools,
    broker_ports,
    broker_settings,
    class_path,
    resolved,
    run_tools,
    write_logging,
)

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.cli.children import Child, listens
from rocketcrew.cli.watch import Watch
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.testing.broker import LocalBroker

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


KINDS = [
    "ORDERLY {0=[0, 4, 8, 12, 16], 1=[1, 5, 9, 13, 17], 2=[2, 6, 10, 14, 18], 3=[3, 7, 11, 15, 19]}",
    "BROADCASTING 20 20",
    "SQL [11, 16, 3, 5, 7, 9]",
    "LITE 20 20 [12, 16, 4, 8] 0",
    "BATCH [one, three, two] 3 ids",
    "DELAYED [late] in time",
    "TRANSACTION [ask and commit, commit] asked [ask and commit, ask and roll back]",
    "READY",
]
"""What Clients.java says of a genuine 5.5.0 broker."""


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_each_kind_of_java_client_and_the_tools_that_look_at_it(
    version: str, tmp_path: Path, java_classes: JavaClasses
) -> None:
    """The transactions that are in doubt are asked for soon."""
    classes = java_classes(version)
    config = BrokerConfig(transaction_timeout_ms=500, transaction_check_interval_ms=500)
    with LocalBroker(delay_levels="100ms 200ms", config=config) as broker:
        java = Java("clients", tmp_path, classes, ["Clients", broker.name_server, TOPIC], CLIENT_OPTIONS)
        try:
            with run_tools(tmp_path, version, broker.name_server) as tools:
                java.wait_for(lambda: "READY" in java.lines(), "see everything", 3 * WAIT_S)
                kinds = {kind.partition(" ")[0] for kind in KINDS}
                assert [line for line in java.lines() if line.partition(" ")[0] in kinds] == KINDS
                sent = next(line for line in java.lines() if line.startswith("SENT 5 "))
                _, _, unique, offset_id = sent.split()
                look_at_messages(tools, unique, offset_id, () if version.startswith("4") else ("-t", TOPIC))
                look_at_groups(tools, broker.address)
                change_topics_and_groups(tools, broker.address)
        finally:
            java.stop()


def look_at_messages(tools: Tools, unique: str, offset_id: str, topic: Sequence[str]) -> None:
    """Number 5 lies in queue 1 at offset 1."""
    by_offset = ("queryMsgByOffset", "-t", TOPIC, "-b", "embedded", "-i", "1", "-o", "1")
    for words in (
        ("queryMsgById", *topic, "-i", offset_id), ("queryMsgByUniqueKey", "-t", TOPIC, "-i", unique), by_offset,
    ):  # fmt: skip
        text = tools(*words)
        found = dict(re.findall(r"^([A-Z][\w ]+): +(.*?) *$", text, re.MULTILINE))
        assert (found["Topic"], found["Keys"], found["Queue ID"], found["Queue Offset"]) == (TOPIC, "[key-5]", "1", "1")
        assert f"UNIQ_KEY={unique}" in found["Properties"], text
        if words != by_offset or topic:
            assert "clients_sql" in text, text
    text = tools("queryMsgByKey", "-t", TOPIC, "-k", "key-5")
    assert re.findall(rf"^{unique} +(\d+) +(\d+)", text, re.MULTILINE) == [("1", "1")], text
    text = tools("printMsg", "-t", TOPIC, "-d", "true")
    assert len(set(re.findall(r"^MSGID: (\w+) ", text, re.MULTILINE))) == 20, text
    text = tools("printMsgByQueue", "-t", TOPIC, "-a", "embedded", "-i", "1", "-p", "true", "-d", "true")
    assert len(set(re.findall(r"^MSGID: (\w+) ", text, re.MULTILINE))) == 5, text
    text = tools("sendMessage", "-t", TOPIC, "-p", "by hand", "-b", "embedded", "-i", "1")
    assert re.search(r"^embedded +1 +SEND_OK +\w+", text, re.MULTILINE), text
    text = tools("consumeMessage", "-t", TOPIC, "-c", "3")
    assert text.count("MSGID: ") == 3, text


def look_at_groups(tools: Tools, address: str) -> None:
    """All its twenty and the one by hand, in the topic's four queues."""
    text = tools("producerConnection", "-g", "clients_producer", "-t", TOPIC)
    assert re.search(r"^0001 +\S+ +127\.0\.0\.1:\d+ +JAVA +V\d", text, re.MULTILINE), text
    assert "not online" in tools("consumerConnection", "-g", "clients_orderly")
    text = tools("consumerProgress", "-g", "clients_orderly")
    rows = re.findall(rf"^{TOPIC} +embedded +(\d) +(\d+) +(\d+) +(\d+)", text, re.MULTILINE)
    assert rows == [("0", "5", "5", "0"), ("1", "6", "5", "1"), ("2", "5", "5", "0"), ("3", "5", "5", "0")], text
    text = tools("topicStatus", "-t", TOPIC)
    rows = re.findall(r"^embedded +(\d) +0 +(\d+) +\d{4}-", text, re.MULTILINE)
    assert rows == [("0", "5"), ("1", "6"), ("2", "5"), ("3", "5")], text
    text = tools("resetOffsetByTime", "-g", "clients_orderly", "-t", TOPIC, "-s", "0")
    rows = re.findall(r"^embedded +(\d) +(\d+) *$", text, re.MULTILINE)
    assert sorted(rows) == [(str(queue), "0") for queue in range(4)], text
    text = tools("brokerStatus", "-b", address)
    found = dict(re.findall(r"^(\w+) *: (.*?) *$", text, re.MULTILINE))
    assert int(found["msgPutTotalTodayNow"]) >= 21 + 3 + 1 + 2, text
    assert found["brokerVersionDesc"].startswith("V"), text
    text = tools("statsAll")
    assert re.search(rf"^{TOPIC} +clients_orderly +21 ", text, re.MULTILINE), text
    text = tools("clusterList")
    assert re.search(rf"^DefaultCluster +embedded +0 +{address} +V", text, re.MULTILINE), text


def change_topics_and_groups(tools: Tools, address: str) -> None:
    """A topic comes, can only be read, and goes; so does a group."""
    text = tools("updateTopic", "-b", address, "-t", "made", "-r", "3", "-w", "3")
    assert f"create topic to {address} success" in text, text
    text = tools("updateTopicPerm", "-b", address, "-t", "made", "-p", "4")
    assert f"update topic perm from 6 to 4 in {address} success" in text, text
    text = tools("topicRoute", "-t", "made")
    assert re.search(r'"perm": *4\b', text), text
    assert re.search(r'"readQueueNums": *3\b', text), text
    assert "made" in tools("topicList").splitlines()
    text = tools("deleteTopic", "-c", "DefaultCluster", "-t", "made")
    assert "delete topic [made] from cluster [DefaultCluster] success" in text, text
    assert "made" not in tools("topicList").splitlines()
    assert "CODE: 17" in tools("topicRoute", "-t", "made")
    text = tools("updateSubGroup", "-c", "DefaultCluster", "-g", "made-group", "-r", "5")
    assert re.search(r"retryMaxTimes=5\b", text), text
    text = tools("deleteSubGroup", "-c", "DefaultCluster", "-g", "made-group")
    assert "delete subscription group [made-group] from broker" in text, text


def test_the_benchmark_of_rocketmq_sends_and_consumes(broker: Broker, tmp_path: Path) -> None:
    """Of 5.5.0, whose examples are at Maven Central."""
    classes, count = resolved("example-5.5.0", ["org.apache.rocketmq:rocketmq-example:5.5.0"]), 2000
    benchmark, where = "org.apache.rocketmq.example.benchmark", ("-n", broker.name_server, "-t", TOPIC)
    sending = [f"{benchmark}.Producer", *where, "-w", "8", "-s", "1024", "-q", str(count)]
    producer = Java("benchmark-producer", tmp_path, classes, sending)
    try:
        text = "\n".join(producer.finish())
    finally:
        producer.stop()
    complete = re.search(r"\[Complete\] Send Total: (\d+) .*Send Failed: (\d+) .*Response Failed: (\d+)", text)
    assert complete is not None, text
    total, *failed = map(int, complete.groups())
    stored = total - sum(failed)  # at least: a machine may be too slow for an answer in time
    assert (total, stored > count // 2) == (count, True), text
    consumer = Java("benchmark-consumer", tmp_path, classes, [f"{benchmark}.Consumer", *where])

    def committed() -> int:
        return sum(queue.committed or 0 for queue in watch.lag("benchmark_consumer", [TOPIC]))

    try:
        with Watch(broker.name_server) as watch:
            consumer.wait_for(lambda: committed() >= stored, "commit what was sent")
    finally:
        consumer.stop()


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_mqadmin_looks_cleans_and_changes(
    version: str, broker: Broker, tmp_path: Path, java_classes: JavaClasses
) -> None:
    java_classes(version)  # are there, or it is skipped
    send_numbers(broker, TOPIC, range(100, 130))

    async def commit(cluster: Cluster) -> None:
        await Operations(cluster).update_consumer_offset(GROUP, MessageQueue(TOPIC, broker.name, 0), 2)

    address = f"127.0.0.1:{broker.port}"
    with run_tools(tmp_path, version, broker.name_server) as admin:
        look_clean_and_change(admin, address, lambda: run_with_cluster(broker.name_server, commit), tmp_path / "export")


def look_clean_and_change(admin: Tools, address: str, commit: Callable[[], None], export: Path) -> None:
    text = admin("updateSubGroup", "-b", address, "-g", GROUP)
    assert "success" in text, text
    commit()
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
    with run_tools(tmp_path, "5.5.0", broker.name_server) as admin:
        said = admin(*words)
    assert "success" in said, said
    java = Java("popping", tmp_path, classes, ["Member", broker.name_server, GROUP, TOPIC, "popping"], CLIENT_OPTIONS)

    def done() -> dict[int, int]:
        words = [line.split() for line in java.lines() if line.startswith("DONE")]
        return {int(number): int(times) for _, number, times, _ in words}

    try:
        java.wait_for(lambda: pop_lines(broker, "a") >= 9, "acknowledge what does not fail", WAIT_S)
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
        wanted = {broker.name: 1024, "genuine": 1024}
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
