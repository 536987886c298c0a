"""Genuine Java clients: beside our supervisor in one group, and against our embedded broker; and RocketMQ's own tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Broker, Cluster, Crew, patient_producer, send_numbers, wait_until
from servers import BINARY_HEADERS, VERSIONS, Member, Servers, Tools, answers, run_tools, send_by_java

from rocketcrew import OutgoingMessage
from rocketcrew.cli.watch import Watch
from rocketcrew.remoting.compression import Compression

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
QUEUES = 8
ALL_QUEUES = set(range(QUEUES))
LARGE_BYTES = 200_000
"""Several blocks of each kind of compression."""


def outcome(numbers: range) -> dict[int, int]:
    """Number and retries of each message that must be finished: the rule of both handlers."""
    return {number: 2 * (number % 50 == 7) for number in numbers if number % 1000 != 999}


def all_committed(cluster: Cluster, group: str, topic: str) -> bool:
    with Watch(cluster.name_server) as watch:
        return all(row.lag == 0 for row in watch.lag(group, [topic, f"%RETRY%{group}"]))


@contextmanager
def member_of(folder: Path, classes: str, crew: Crew) -> Iterator[Member]:
    """A Java member of the crew's group."""
    member = Member(folder, classes, crew.broker.name_server, crew.group, crew.topic)
    try:
        yield member
    finally:
        member.java.stop()


@ON_BOTH
def test_a_java_member_and_ours_share_the_queues(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    topic, group, numbers, later = "shared", "shared-group", range(2000), range(2000, 2200)
    servers.create_topic(topic, QUEUES)
    # Only a notice of the broker makes us look again in time.
    settings = {"consumer.max_reconsume_times": 3, "consumer.rebalance_interval_ms": 60_000}
    crew = Crew(tmp_path, servers, "numbers_handler:number", topic, load=False, group=group, **settings)
    crew.start()
    try:
        wait_until(lambda: crew.assigned() == ALL_QUEUES, what="all queues for the first member")
        with member_of(tmp_path, java_classes(servers.kind.version), crew) as member:
            wait_until(lambda: len(crew.assigned()) == len(member.queues()) == QUEUES // 2, what="an even split")
            assert crew.assigned() | member.queues() == ALL_QUEUES
            send_numbers(servers, topic, numbers)
            wait_until(
                lambda: crew.counter("done_messages") + len(member.done()) >= len(outcome(numbers)), what="all finished"
            )
            wait_until(lambda: answers(lambda: crew.dead_letters() == 2), what="the dead letters")
            member.leave()  # a Java member commits for the first time after ten seconds, or now
            by_java = member.done()
        wait_until(lambda: crew.assigned() == ALL_QUEUES, what="all queues for the member that stays")
        send_numbers(servers, topic, later)
        wanted = {**outcome(numbers), **outcome(later)}
        wait_until(
            lambda: crew.lag() == 0 and crew.counter("done_messages") == len(wanted) - len(by_java),
            what="the later messages finished",
        )
    finally:
        code = crew.stop()
    assert code == 0
    rows = crew.staged_rows()
    ours = list(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert sorted([*ours, *by_java]) == sorted(wanted.items())
    assert min(len(ours), len(by_java)) > len(numbers) // 4


@ON_BOTH
def test_mqadmin_shows_our_group(servers: Servers, tmp_path: Path) -> None:
    topic, group = "progress", "progress-group"
    servers.create_topic(topic, QUEUES)
    crew = Crew(tmp_path, servers, "numbers_handler:number", topic, load=False, group=group,
                **{"consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    try:
        send_numbers(servers, topic, range(100, 200))
        wait_until(lambda: crew.counter("done_messages") >= 100 and crew.lag() == 0, what="all messages finished")
        check_progress(servers.admin("consumerProgress", "-g", group), topic, group, QUEUES, 100)
        connections = servers.admin("consumerConnection", "-g", group)
    finally:
        crew.stop()
    text = "\n".join(connections)
    assert all(word in text for word in ("PYTHON", "CONSUME_PASSIVELY", "CLUSTERING", f"%RETRY%{group}")), text


def check_progress(lines: Sequence[str], topic: str, group: str, queues: int, messages: int) -> None:
    """What `mqadmin consumerProgress -g` prints: nothing is left, and every message was counted."""
    words = [line.split() for line in lines]
    rows = [line for line in words if line and line[0] in (topic, f"%RETRY%{group}")]
    ends = {(line[0], int(line[2])): (int(line[3]), int(line[4])) for line in rows}
    assert len(ends) == queues + 1, lines
    assert all(end == committed for end, committed in ends.values()), lines
    assert sum(end for (name, _), (end, _) in ends.items() if name == topic) == messages, lines
    assert any(line.endswith("Diff Total: 0") for line in lines), lines


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_java_member_reads_large_bodies_of_each_compression(
    version: str, tmp_path: Path, java_classes: JavaClasses
) -> None:
    """Java's client drops a whole pull with a body that it can't read, and takes its messages for consumed."""
    topic, group, large = "large", "large-group", dict(enumerate(Compression))
    broker = Broker(tmp_path)
    try:
        for number, kind in large.items():
            with patient_producer(broker, compression=kind) as producer:
                producer.send(OutgoingMessage(topic, str(number).encode().ljust(LARGE_BYTES)))
        member = Member(tmp_path, java_classes(version), broker.name_server, group, topic)
        try:
            wait_until(lambda: len(member.done()) >= len(large), WAIT_S, "all messages finished")
            member.leave()
        finally:
            member.java.stop()
        assert sorted(member.done()) == [(number, 0) for number in large]
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("version", "options"),
    [("5.5.0", ()), ("4.9.7", ()), ("4.9.7", (BINARY_HEADERS,))],
    ids=["5.5.0", "4.9.7", "4.9.7-binary-headers"],
)
def test_java_clients_and_our_broker(
    version: str, options: Sequence[str], tmp_path: Path, java_classes: JavaClasses
) -> None:
    topic, group, numbers = "numbers", "java-group", range(700, 1000)
    classes = java_classes(version)
    broker = Broker(tmp_path)
    try:
        send_by_java(tmp_path, classes, broker.name_server, topic, numbers, options)
        member = Member(tmp_path, classes, broker.name_server, group, topic, options)
        try:
            wait_until(lambda: len(member.done()) >= len(numbers) - 1, WAIT_S, "all messages finished")
            with Watch(broker.name_server) as watch:
                wait_until(lambda: answers(lambda: watch.stored(group, f"%DLQ%{group}") == 1), what="the dead letter")
            member.leave()
        finally:
            member.java.stop()
        assert sorted(member.done()) == sorted(outcome(numbers).items())
        wait_until(lambda: answers(lambda: all_committed(broker, group, topic)), what="the commits")
        if not options:
            with run_tools(tmp_path, version, broker.name_server) as admin:
                check_tools(admin, topic, group, numbers)
    finally:
        broker.stop()


def check_tools(admin: Tools, topic: str, group: str, numbers: range) -> None:
    """RocketMQ's tools read our broker as they read their own."""
    check_progress(admin("consumerProgress", "-g", group).splitlines(), topic, group, 4, len(numbers))
    cluster = admin("clusterList")
    assert "broker-a" in cluster, cluster
    assert "Exception" not in cluster, cluster
