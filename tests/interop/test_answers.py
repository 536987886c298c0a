"""What genuine brokers answer to pulls and send-backs, and what their consumers see of it: nothing lost, nothing passed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import Crew, patient_producer, send_numbers, stored_messages, wait_until
from servers import VERSIONS, Kind, Servers, answers, send_by_java, wait_until_answered

from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import SendBack
from rocketcrew.supervisor.member.send_back import SendBacks
from rocketcrew.workers.failures import Mode

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
ON_5 = pytest.mark.parametrize("servers", [Kind("5.5.0")], ids=str, indirect=True, scope="session")
READ_ONLY, READ_WRITE = 4, 6
BEYOND = 5_000

NewCrew = Callable[..., Crew]


@pytest.fixture
def new_crew(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[NewCrew]:
    """A crew of this test's own topic (which the test makes) and group; it is stopped at the end."""
    name = request.node.name.partition("[")[0]
    made: list[Crew] = []

    def make(handler: str = "numbers_handler:number", **settings: object) -> Crew:
        made.append(Crew(tmp_path, servers, handler, name, load=False, group=f"{name}-group", **settings))
        return made[-1]

    yield make
    for crew in made:
        crew.stop()


def numbers(crew: Crew) -> list[tuple[int, int]]:
    rows = crew.staged_rows()
    if not rows.num_rows:
        return []
    return sorted(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))


def allow(servers: Servers, group: str, consume: bool) -> None:
    config = SubscriptionGroupConfig(group, consume_enable=consume)
    run_with_cluster(servers.name_server, lambda cluster: Admin(cluster).create_group(servers.address, config))


@ON_BOTH
def test_a_forbidden_group_and_an_offset_beyond_the_end(servers: Servers, new_crew: NewCrew) -> None:
    """NO_PERMISSION is asked again; OFFSET_ILLEGAL goes on where the broker says; thresholds per topic hold nothing up."""
    crew = new_crew(**{"consumer.pull_threshold_for_topic": 4, "consumer.pull_threshold_size_for_topic_mib": 1})
    servers.create_topic(crew.topic, 1)
    allow(servers, crew.group, consume=False)
    send_numbers(servers, crew.topic, range(100, 120))
    mq = MessageQueue(crew.topic, "broker-a", 0)

    async def commit_beyond(cluster: Cluster) -> None:
        await Operations(cluster).update_consumer_offset(crew.group, mq, BEYOND)

    run_with_cluster(servers.name_server, commit_beyond)
    crew.start()
    wait_until(lambda: crew.counter("pull_errors") > 0, what="a refused pull")
    allow(servers, crew.group, consume=True)
    wait_until(lambda: "pull_offset_illegal" in (crew.child.log.read_text()), what="the illegal offset")
    # Nothing lags behind the offset beyond the end either.
    wait_until(
        lambda: committed(servers, crew.group, mq) < BEYOND and crew.lag() == 0, what="the corrected offset committed"
    )
    later = set(range(200, 240))
    send_numbers(servers, crew.topic, range(200, 240))
    # Not by their count: where a broker goes back to the first offset, the earlier ones count too.
    wait_until(
        lambda: later <= {number for number, _ in numbers(crew)} and crew.lag() == 0,
        what="what came later, with its rows",
    )
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0


@ON_BOTH
def test_offsets_are_committed_inside_pulls(servers: Servers, new_crew: NewCrew) -> None:
    """No UPDATE_CONSUMER_OFFSET after the first one of a topic, which may not be inside a pull (see commits.py)."""
    crew = new_crew(
        "numbers_handler:slow_plain_number",
        **{"consumer.persist_consumer_offset_interval_ms": 600_000, "results.enabled": False},
    )
    servers.create_topic(crew.topic, 2)
    crew.start()
    first, second = (MessageQueue(crew.topic, "broker-a", queue_id) for queue_id in (0, 1))
    with patient_producer(servers) as producer:

        def send_one(mq: MessageQueue) -> None:
            producer.send(OutgoingMessage(crew.topic, b"1"), selector=to_queue(mq))

        send_one(first)
        send_one(second)
        wait_until(lambda: crew.counter("done_messages") >= 2, what="both messages")
        # One queue is taken away, and its offset committed on its own.
        servers.create_topic(crew.topic, 1)
        # The broker has the commit before the crew has counted it; a queue that has left is counted.
        wait_until(lambda: queues_of(crew) == {first.queue_id}, what="the end of the queue that leaves")
        assert committed(servers, crew.group, second) == 1
        commits = crew.counter("commits")
        send_one(first)
        wait_until(lambda: crew.counter("done_messages") >= 3, what="another message")
        send_one(first)
        wait_until(lambda: committed(servers, crew.group, first) >= 2, what="a commit inside a pull")
        assert crew.counter("commits") == commits
    assert crew.stop() == 0
    assert committed(servers, crew.group, first) == 3


def queues_of(crew: Crew) -> set[int]:
    """Queues of the topic that the crew has in any state, also while they leave."""
    status = crew.status()
    return {queue["queue_id"] for queue in status["queues"] if queue["topic"] == crew.topic} if status else set()


def committed(servers: Servers, group: str, mq: MessageQueue) -> int:
    """Asked until the broker answers."""
    found: list[int] = []

    async def query(cluster: Cluster) -> int | None:
        return await Operations(cluster).query_consumer_offset(group, mq)

    def asked() -> bool:
        found.append(run_with_cluster(servers.name_server, query) or 0)
        return True

    wait_until_answered(asked, f"the offset of {group}")
    return found[0]


@ON_BOTH
def test_messages_of_old_and_new_java_producers(
    servers: Servers, new_crew: NewCrew, tmp_path: Path, java_classes: Callable[[str], str]
) -> None:
    """Plain, compressed and in batches, from 4.x and 5.x; with thresholds and a span so narrow that each holds pulls up."""
    crew = new_crew(**{
        "consumer.pull_threshold_for_queue": 4, "consumer.pull_threshold_size_for_queue_mib": 1,
        "consumer.consume_concurrently_max_span": 8, "workers.chunk_messages_max": 8, "consumer.max_reconsume_times": 3,
    })  # fmt: skip
    servers.create_topic(crew.topic, 2)
    for index, kind in enumerate(VERSIONS):
        start = 100 + 60 * index
        send_by_java(tmp_path, java_classes(kind.version), servers.name_server, crew.topic, range(start, start + 60))
    crew.start()
    wait_until(lambda: crew.counter("done_messages") >= 120 and crew.lag() == 0, what="all messages finished")
    assert crew.stop() == 0
    assert numbers(crew) == [(number, 2 * (number % 50 == 7)) for number in range(100, 220)]


@ON_5
def test_inner_batches(servers: Servers, new_crew: NewCrew) -> None:
    """A topic with a batch consume queue: one record holds a whole batch, and has as many offsets."""
    crew = new_crew()
    config = TopicConfig(crew.topic, read_queue_nums=1, write_queue_nums=1, attributes={"queue.type": "BatchCQ"})
    run_with_cluster(servers.name_server, lambda cluster: Admin(cluster).create_topic(servers.address, config))
    crew.start()
    with patient_producer(servers) as producer:
        for start in range(100, 130, 10):
            producer.send_batch([OutgoingMessage(crew.topic, b"%d" % n) for n in range(start, start + 10)])
    # What a failed message of a batch shares with its neighbours is the record: all of it is sent back.
    wait_until(lambda: {n for n, _ in numbers(crew)} == set(range(100, 130)), what="all numbers")
    wait_until(lambda: crew.lag() == 0, what="all committed")
    assert crew.stop() == 0


@ON_BOTH
def test_a_message_that_no_broker_takes_back_runs_again_here(servers: Servers, new_crew: NewCrew) -> None:
    """Until it succeeds, or its attempts are used up: then it waits, and its broker, which knows of one, is told that it is a
    dead letter."""
    crew = new_crew(**{"consumer.max_reconsume_times": 2})
    servers.create_topic(crew.topic, 1)
    retry = TopicConfig(f"%RETRY%{crew.group}", read_queue_nums=1, write_queue_nums=1, perm=READ_ONLY)
    run_with_cluster(servers.name_server, lambda cluster: Admin(cluster).create_topic(servers.address, retry))
    # The crew must not learn a route by which it can be written: brokers look at this permission for send-backs only, and by
    # an older route ordinary sends get through, perhaps with every attempt.
    wait_until(lambda: answers(lambda: is_closed(servers, retry.topic_name)), what="the route of the retry topic")
    crew.start()
    send_numbers(servers, crew.topic, range(107, 112))
    wait_until(lambda: crew.counter("local_retries") >= 1, what="an attempt here")
    wait_until(lambda: crew.counter("done_messages") >= 5 and crew.lag() == 0, what="the message finished here")
    assert crew.counter("send_back_refused") >= 1
    assert crew.dead_letters() == 0
    attempts, refused = crew.counter("local_retries"), crew.counter("send_back_refused")
    send_numbers(servers, crew.topic, range(999, 1000))
    wait_until(lambda: crew.counter("send_back_refused") >= refused + 4, what="refusals after the last attempt")
    run_with_cluster(
        servers.name_server,
        lambda cluster: Admin(cluster).create_topic(servers.address, replace(retry, perm=READ_WRITE)),
    )
    wait_until(lambda: crew.counter("dead_letter_messages") >= 1 and crew.lag() == 0, what="the dead letter")
    assert crew.counter("local_retries") == attempts + 2
    assert (crew.counter("dead_letter_messages"), crew.dead_letters()) == (1, 1)
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0
    assert numbers(crew) == [(107, 2), (108, 0), (109, 0), (110, 0), (111, 0)]


@ON_BOTH
def test_an_ordinary_send_is_a_retry_up_to_the_last_attempt(servers: Servers) -> None:
    """As many attempts as the limit are a dead letter for 4.9, and one more for 5.x."""
    group, mq = "resent-group", MessageQueue("resent", "broker-a", 0)
    servers.create_topic(mq.topic, 1)
    servers.create_topic(f"%RETRY%{group}", 1)
    allow(servers, group, consume=True)
    send_numbers(servers, mq.topic, range(1))
    (message,) = stored_messages(servers.name_server, mq.topic)

    async def send(cluster: Cluster) -> None:
        backs = SendBacks(cluster, Operations(cluster), group, 1, own_sends=True)
        retry = SendBack(0, 0, 0, mq, 0, 0, Mode.SEND_BACK, delay_level=1)
        assert await backs.send(retry, b"", message)
        assert await backs.send(replace(retry, last=True), b"", replace(message, reconsume_times=1))

    run_with_cluster(servers.name_server, send)
    for topic, times in ((f"%RETRY%{group}", 1), (f"%DLQ%{group}", 2)):
        wait_until(lambda at=topic: answers(lambda: stored_messages(servers.name_server, at)), what=topic)
        assert [one.reconsume_times for one in stored_messages(servers.name_server, topic)] == [times]


def is_closed(servers: Servers, topic: str) -> bool:
    """The topic has a route, and no queue that can be written."""
    return not run_with_cluster(servers.name_server, lambda cluster: cluster.queues_to_write(topic))


@ON_BOTH
def test_hooks_acknowledged_parts_and_levels(servers: Servers, new_crew: NewCrew) -> None:
    before_ms = int(time.time() * 1000)
    crew = new_crew("hooked_handler:halves", **{"workers.count": 1, "consumer.consume_message_batch_max_size": 16})
    servers.create_topic(crew.topic, 1)
    with patient_producer(servers) as producer:
        producer.send_batch([OutgoingMessage(crew.topic, b"%d" % n) for n in range(12)])
    crew.start()
    wait_until(lambda: crew.counter("done_messages") >= 12 and crew.lag() == 0, what="all messages finished")
    sent_back = crew.counter("sent_back_messages")
    assert crew.stop() == 0
    rows = crew.staged_rows().to_pylist()
    assert sorted(row["number"] for row in rows) == list(range(12))
    retried = [row for row in rows if row["attempt"] == 1]
    assert len(retried) == sent_back > 0
    assert {row["delay"] for row in retried} == {"2"}
    assert all(before_ms <= row["started"] <= time.time() * 1000 for row in rows)
    assert all(1 <= row["shown"] <= 16 for row in rows)
    assert f"CONSUME_SUCCESS SUCCESS {crew.group}" in {row["ended"] for row in rows}
