"""Order on genuine servers: with a Java orderly member that comes and goes, through kills of workers, with commits by the
handler, and at the limit of attempts. Through a restart of the broker: test_away.py."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import Crew, duplicate_keys, patient_producer, send_numbers, stored_messages, wait_until
from ordered_trace import Lane, by_key, by_queue, check_order, lines_of, traced
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers

from rocketcrew.client import selection
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
QUEUES = 4
LOCK_S = 30.0
"""A broker keeps a lock that nobody renews for 60 s (RebalanceLockManager.java); ours are a few seconds old at the kill."""
FAST = "-Drocketmq.client.rebalance.waitInterval=1000"


def ended(trace: Path, pid: int | None = None) -> set[int]:
    """Numbers that were handled, by that process or by anybody."""
    return {line.number for line in lines_of(trace) if line.what == "END" and pid in (None, line.pid)}


@ON_BOTH
def test_a_java_orderly_member_comes_and_goes(
    servers: Servers, tmp_path: Path, java_classes: Callable[[str], str]
) -> None:
    topic, group, numbers, parts = "in-order", "in-order-group", range(1200), 3
    servers.create_topic(topic, QUEUES)
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:by_queue", topic, load=False, group=group)
        crew.start()
        java: Java | None = None
        try:
            send_numbers(servers, topic, range(numbers.stop // parts))
            wait_until(lambda: len(ended(trace)) > 50, what="ours began")
            words = ["OrderedMember", servers.name_server, group, topic, str(trace)]
            java = Java("ordered-member", tmp_path, java_classes(servers.kind.version), words, (*CLIENT_OPTIONS, FAST))
            member = java
            member.wait_for(lambda: "STARTED" in member.lines(), "start")
            wait_until(lambda: crew.lag() == 0, what="the first part")
            # Else ours may have handled the second part before Java's member has a queue.
            wait_until(lambda: len(crew.assigned()) == QUEUES // 2, what="an even split")
            send_numbers(servers, topic, range(numbers.stop // parts, 2 * numbers.stop // parts))
            wait_until(lambda: len(ended(trace, member.pid)) > 50, what="Java's part")
            send_numbers(servers, topic, range(2 * numbers.stop // parts, numbers.stop))
            member.finish()
            wait_until(lambda: ended(trace) == set(numbers) and crew.lag() == 0, what="all numbers")
            check_order(lines_of(trace), by_queue)
            assert crew.stop() == 0
        finally:
            if java is not None:
                java.stop()
            if crew.status() is not None:
                crew.kill()


LANES: dict[str, Lane] = {"by_queue": by_queue, "by_key": by_key, "by_function": by_key}


@ON_BOTH
@pytest.mark.parametrize("handler", LANES)
def test_order_through_kills_of_workers(servers: Servers, tmp_path: Path, handler: str) -> None:
    """By queue and by key, kill -9 of a worker with messages in hand: order holds, nothing is lost or twice in the rows."""
    topic, numbers = f"killed-{handler}", range(600)
    servers.create_topic(topic, QUEUES)
    send_keyed(servers, topic, numbers)
    killed: set[int] = set()

    def living() -> list[int]:
        """A worker that was just killed may still be named as ready."""
        return [pid for pid in crew.workers() if pid not in killed]

    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, f"ordered_handlers:{handler}", topic, load=False, group=f"{topic}-group")
        crew.start()
        try:
            for kill in (1, 2):
                due = kill * len(numbers) // 3
                wait_until(lambda due=due: crew.counter("done_messages") >= due, what="messages done")
                wait_until(lambda: len(living()) == 2, what="both workers")
                victim = living()[0]
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
            wait_until(lambda: crew.counter("done_messages") >= len(numbers) and crew.lag() == 0, what="all committed")
            assert crew.counter("invariant_violations") == 0
            assert crew.stop() == 0
        finally:
            if crew.status() is not None:
                crew.kill()
    check_order(lines_of(trace), LANES[handler], killed)
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(numbers)
    assert duplicate_keys(rows) == 0


@ON_BOTH
def test_a_killed_supervisors_locks_are_given_up_by_the_next_start(servers: Servers, tmp_path: Path) -> None:
    """The next start is another client id, for which the broker would keep them until they expire."""
    topic, numbers = "left-locks", range(600)
    servers.create_topic(topic, QUEUES)
    send_keyed(servers, topic, numbers)
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:by_queue", topic, load=False, group=f"{topic}-group")
        crew.start()
        try:
            wait_until(lambda: crew.counter("done_messages") >= len(numbers) // 3, what="messages done")
            killed = set(crew.workers())
            crew.kill()
            crew.start()
            wait_until(lambda: bool(crew.logged("left_locks_given_up")), what="the dead one's locks given up")
            wait_until(lambda: bool({line.pid for line in lines_of(trace)} - killed), LOCK_S, "an ordered message")
            wait_until(lambda: crew.lag() == 0, what="all committed")
            assert crew.counter("invariant_violations") == 0
            assert crew.stop() == 0
        finally:
            if crew.status() is not None:
                crew.kill()
    check_order(lines_of(trace), by_queue, killed)
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(numbers)
    assert duplicate_keys(rows) == 0


def send_keyed(servers: Servers, topic: str, numbers: range) -> None:
    """Numbered messages of ten keys, each key in one queue."""
    with patient_producer(servers) as producer:
        for number in numbers:
            key = f"k{number % 10}"
            producer.send(OutgoingMessage(topic, str(number).encode(), keys=key), selector=selection.by_key(key))


@ON_BOTH
def test_commit_rollback_and_suspend(servers: Servers, tmp_path: Path) -> None:
    """autoCommit = false: the broker's offset is below the last commit, and what is not committed comes again."""
    topic, group, sent = "committed", "committed-group", range(45)
    servers.create_topic(topic, 1)
    send_numbers_in_order(servers, topic, sent)
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:by_commit_of_ten", topic, load=False, group=group)
        crew.start()
        try:
            wait_until(lambda: ended(trace) == set(sent), what="all handled")
            wait_until(lambda: crew.lag() == 5, what="the commit of the first forty")
            assert crew.stop() == 0
            assert sorted(crew.staged_rows().column("number").to_pylist()) == list(range(40))
            assert crew.lag() == 5
            first = len(lines_of(trace))
            crew.start()
            send_numbers_in_order(servers, topic, range(45, 50))
            wait_until(lambda: crew.lag() == 0, what="the last commit")
            assert crew.stop() == 0
        finally:
            if crew.status() is not None:
                crew.kill()
    lines = lines_of(trace)
    check_order(lines[:first], by_queue)
    check_order(lines[first:], by_queue)
    assert sorted(crew.staged_rows().column("number").to_pylist()) == list(range(50))
    times = {number: sum(line.what == "END" and line.number == number for line in lines) for number in range(50)}
    # A rollback runs all since the last commit again, a suspended one itself; the uncommitted ran before the stop too.
    before, after = {n: 2 for n in range(40) if n % 10 < 7}, {n: 1 for n in range(40) if n % 10 >= 7}
    last = dict.fromkeys(range(40, 45), 3) | {45: 2, 46: 2} | dict.fromkeys(range(47, 50), 1)
    assert times == before | after | last


def send_numbers_in_order(servers: Servers, topic: str, numbers: range) -> None:
    with patient_producer(servers) as producer:
        for number in numbers:
            producer.send(OutgoingMessage(topic, str(number).encode()))


@ON_BOTH
def test_a_message_at_its_limit_goes_to_the_dead_letters_and_the_queue_goes_on(
    servers: Servers, tmp_path: Path
) -> None:
    topic, group, numbers = "stubborn", "stubborn-group", range(60)
    servers.create_topic(topic, QUEUES)
    poor = {number for number in numbers if number % 10 == 3}
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:stubborn", topic, load=False, group=group,
                    **{"consumer.max_reconsume_times": 2})  # fmt: skip
        crew.start()
        try:
            send_numbers(servers, topic, numbers)
            wait_until(lambda: crew.dead_letters() >= len(poor), what="the dead letters")
            wait_until(lambda: crew.lag() == 0, what="all committed")
            assert crew.stop() == 0
        finally:
            if crew.status() is not None:
                crew.kill()
    lines = lines_of(trace)
    check_order(lines, by_queue, given_up=poor)
    assert ended(trace) == set(numbers) - poor
    assert {
        number: sum(line.what == "FAIL" and line.number == number for line in lines) for number in poor
    } == dict.fromkeys(poor, 3)
    dead = stored_messages(servers.name_server, f"%DLQ%{group}")
    assert {int(message.body) for message in dead} == poor


@ON_BOTH
def test_a_message_at_its_limit_is_a_dead_letter_though_no_topic_may_be_written(
    servers: Servers, tmp_path: Path
) -> None:
    """`mqadmin wipeWritePerm`, as before a broker is taken out: its retry topic has no queue for an ordinary send."""
    topic, group, poor = "wiped", "wiped-group", 3
    servers.create_topic(topic, 1)
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:stubborn", topic, load=False, group=group,
                    **{"consumer.max_reconsume_times": 300, "cluster.poll_name_server_interval_ms": 200})  # fmt: skip
        crew.start()
        try:
            send_numbers_in_order(servers, topic, range(poor + 2))
            permit_writing(servers, RequestCode.WIPE_WRITE_PERM_OF_BROKER)  # three seconds of attempts are to come
            wait_until(lambda: ended(trace) == set(range(poor + 2)) - {poor} and crew.lag() == 0, what="the next one")
            assert crew.logged("resend_failed"), "the ordinary send found no queue"
            assert (crew.counter("dead_letter_messages"), crew.dead_letters()) == (1, 1)
            assert crew.stop() == 0
        finally:
            permit_writing(servers, RequestCode.ADD_WRITE_PERM_OF_BROKER)
            if crew.status() is not None:
                crew.kill()


def permit_writing(servers: Servers, code: RequestCode) -> None:
    command = Command(int(code), {"brokerName": "broker-a"})

    async def ask(cluster: Cluster) -> int:
        return (await cluster.remoting.request(servers.name_server, command, timeout_ms=10_000)).code

    assert run_with_cluster(servers.target, ask) == 0
