"""RocketMQ's own tools show and steer our member as they do a Java one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import SEND_TIMEOUT_MS, Crew, patient_producer, send_numbers, wait_until
from pressure_handlers import RELEASE, is_in_hand
from running_info import client_id, running_info
from servers import VERSIONS, Kind, Servers

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.bodies import ConsumerStatus
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import ConsumerStatusRequest

BINARY = Kind("4.9.7", binary_headers=True)
ON_ALL = pytest.mark.parametrize("servers", [*VERSIONS, BINARY], ids=str, indirect=True, scope="session")
QUEUES = 4
MESSAGES = 100

NewCrew = Callable[[str], Crew]


@pytest.fixture
def crew(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """A member that has consumed its topic to the end."""
    topic = request.node.name.partition("[")[0]
    servers.create_topic(topic, QUEUES)
    servers.admin("topicList")  # the tools are there when they are needed: rates are of the last minute
    crew = Crew(tmp_path, servers, "numbers_handler:number", topic, load=False, group=f"{topic}-group",
                **{"consumer.max_reconsume_times": 3, "consumer.pull_interval_ms": 1})  # fmt: skip
    crew.start()
    try:
        send_numbers(servers, topic, range(100, 100 + MESSAGES))
        wait_until(lambda: crew.counter("done_messages") >= MESSAGES and crew.lag() == 0, what="all messages finished")
        yield crew
    finally:
        crew.stop()


RATES = ("pull_rt", "pull_tps", "consume_rt", "consume_ok_tps", "consume_failed_tps")


def has_rates(crew: Crew) -> bool:
    """Whether the member reports all five rates of the topic. Java's first window is over after ten seconds; it may end when
    some messages were handled, and none had failed yet."""
    status = crew.status()
    stats = status["stats"].get(crew.topic, {}) if status else {}
    return all(stats.get(name, 0) > 0 for name in RATES)


@ON_ALL
def test_tools_show_our_member(servers: Servers, crew: Crew) -> None:
    me = client_id(crew)
    wait_until(lambda: has_rates(crew), what="the first rates")
    text = running_info(servers, crew)
    properties = dict(re.findall(r"^(\w+) +: (.*)$", text, re.MULTILINE))
    wanted = {
        "PROP_NAMESERVER_ADDR": f"{servers.name_server};",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "false",
        "consumerGroup": crew.group,
        "pullInterval": "1",
        "maxReconsumeTimes": "3",
        "language": "PYTHON",
    }
    assert {name: properties.get(name) for name in wanted} == wanted, text
    offsets = re.findall(rf"^{crew.topic} +\S+ +(\d+) +(\d+) *$", text, re.MULTILINE)
    assert sorted(int(queue) for queue, _ in offsets) == list(range(QUEUES)), text
    assert sum(int(offset) for _, offset in offsets) == MESSAGES, text
    assert re.search(rf"Topic: {crew.topic} .*SubExpression: \*", text), text
    assert re.search(rf"^{re.escape('%RETRY%' + crew.group)} ", text, re.MULTILINE), text
    shown = re.search(rf"^{crew.topic} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)$", text, re.MULTILINE)
    assert shown is not None, text
    # Failures of the hour are told after ten minutes, as in Java.
    pull_rt, pull_tps, consume_rt, ok_tps, failed_tps, _failed_of_hour = map(float, shown.groups())
    assert min(pull_rt, pull_tps, consume_rt, ok_tps, failed_tps) > 0, text
    assert f"supervisor {me}" in text, text
    assert text.count("=== worker") == 2, text
    assert "workers/worker.py" in text, text
    offsets_told = told_offsets(servers, crew, me)
    assert sorted(offsets_told) == list(range(QUEUES))
    assert sum(offsets_told.values()) == MESSAGES
    # Without -i: every member, and whether their subscriptions agree.
    everybody = "\n".join(servers.admin("consumerStatus", "-g", crew.group))
    assert me in everybody, everybody
    assert "Same subscription in the same group of consumer" in everybody, everybody


@ON_ALL
def test_stacks_name_the_message_in_every_hand(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker runs a message and the other is idle: both, the supervisor and the forkserver show their Python stacks."""
    release = tmp_path / "release"
    monkeypatch.setenv(RELEASE, str(release))
    servers.create_topic("in-hand", 1)
    crew = Crew(tmp_path, servers, "pressure_handlers:stuck_or_done", "in-hand", load=False, group="in-hand-group")
    crew.start()
    try:
        with patient_producer(servers) as producer:
            producer.send(OutgoingMessage(crew.topic, b"0 stuck"))
        wait_until(lambda: is_in_hand(crew), what="the message in hand")
        text = running_info(servers, crew)
    finally:
        release.touch()
        crew.stop()
    heads = re.findall(r"^=== .*$", text, re.MULTILINE)
    running = [head for head in heads if "running in-hand/broker-a/0@0 for " in head]
    roles = [head.split()[1] for head in heads if " spare " not in head]  # which comes a moment after the workers
    assert (roles, len(running)) == (["supervisor", "worker", "worker", "forkserver"], 1), text
    stack = text.partition(running[0])[2].partition("=== ")[0]
    assert "pressure_handlers.py" in stack, text
    assert "in stuck_or_done" in stack, text
    assert re.search(r"^in-hand +broker-a +0 +0 *$", text, re.MULTILINE), text
    assert re.search(r"ProcessQueueInfo \[commitOffset=0, .*cachedMsgCount=1,", text), text


@ON_ALL
def test_a_message_is_consumed_directly_and_leaves_no_row(servers: Servers, crew: Crew) -> None:
    me = client_id(crew)
    with patient_producer(servers) as producer:
        ids = {n: producer.send(OutgoingMessage(crew.topic, b"%d" % n)).offset_message_id for n in (320, 307)}
    wait_until(lambda: crew.counter("done_messages") >= MESSAGES + 2 and crew.lag() == 0, what="two more")
    topic = () if servers.kind.version.startswith("4") else ("-t", crew.topic)
    for number, wanted in ((320, "CR_SUCCESS"), (307, "CR_THROW_EXCEPTION")):
        answer = servers.admin("queryMsgById", *topic, "-i", ids[number], "-g", crew.group, "-d", me)
        text = "\n".join(answer)
        assert wanted in text, text
        assert ("307 fails at first" in text) == (number == 307), text
    assert crew.stop() == 0
    assert crew.staged_rows().num_rows == MESSAGES + 2


def told_offsets(servers: Servers, crew: Crew, client: str) -> dict[int, int]:
    """Offset by queue as the client reports it to the broker, which an administrator asks (223, 221)."""

    async def ask(cluster: Cluster) -> ConsumerStatus:
        header = ConsumerStatusRequest(crew.topic, crew.group, "")
        command = Command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header.to_fields())
        answer = await cluster.remoting.request(servers.address, command, timeout_ms=SEND_TIMEOUT_MS)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return ConsumerStatus.decode(answer.body)

    found = run_with_cluster(servers.name_server, ask).consumer_table[client]
    return {mq.queue_id: offset for mq, offset in found.items()}


@ON_ALL
def test_an_online_reset_is_followed(servers: Servers, crew: Crew) -> None:
    done = crew.counter("done_messages")
    answer = servers.admin("resetOffsetByTime", "-g", crew.group, "-t", crew.topic, "-s", "0")
    wait_until(lambda: crew.counter("done_messages") >= done + MESSAGES, what="everything again")
    wait_until(lambda: crew.lag() == 0, what="all committed")
    status = crew.status()
    assert status is not None
    assert status["counters"]["invariant_violations"] == 0, answer


@ON_ALL
def test_a_reset_to_the_end_skips_what_is_pulled_and_has_not_run(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers from 5.2 on answer a pull with it, as they answer one of an offset that is not there."""
    release = tmp_path / "release"
    monkeypatch.setenv(RELEASE, str(release))
    topic = "reset-to-the-end"
    servers.create_topic(topic, 1)
    crew = Crew(tmp_path, servers, "pressure_handlers:stuck_or_done", topic, load=False, group=f"{topic}-group",
                **{"consumer.suspend_timeout_ms": 1000, "workers.count": 1,
                   "supervisor.stop_deadline_ms": 150_000,
                   "supervisor.drain_deadline_ms": 150_000})  # fmt: skip  # longer than the tool takes on a busy machine
    crew.start()
    try:
        with patient_producer(servers) as producer:
            producer.send(OutgoingMessage(topic, b"0 done"))
            wait_until(lambda: crew.counter("done_messages") == 1 and crew.lag() == 0,
                       what="a commit, without which brokers of 4.9 know no group to reset")  # fmt: skip
            for number in range(1, MESSAGES):
                producer.send(OutgoingMessage(topic, b"%d %s" % (number, b"done" if number > 1 else b"stuck")))
            wait_until(lambda: crew.counter("pulled_messages") >= MESSAGES, what="all pulled")
            answer = servers.admin("resetOffsetByTime", "-g", crew.group, "-t", topic, "-s", "-1")
            wait_until(lambda: is_leaving(crew), what="the queue is to begin elsewhere")
            release.touch()
            wait_until(lambda: crew.lag() == 0, what="nothing before the end is left")
            producer.send(OutgoingMessage(topic, b"%d done" % MESSAGES))
        wait_until(lambda: crew.lag() == 0 and crew.counter("done_messages") >= 3, what="the one after the end")
        assert crew.counter("done_messages") < MESSAGES // 2, answer
    finally:
        release.touch()
        crew.stop()


def is_leaving(crew: Crew) -> bool:
    """Whether a queue finishes what it has in hand."""
    status = crew.status()
    return status is not None and any(queue["state"] == "draining" for queue in status["queues"])
