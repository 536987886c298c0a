"""POP on a genuine 5.5.0 broker, which assigns the queues; and what is sent to a 4.9.7 broker."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import HANDLERS, WAIT_S, Crew, patient_producer, send_numbers, wait_for_end, wait_until
from needs import need_jars
from pressure_handlers import RELEASE, is_in_hand
from running_info import running_info
from servers import Kind, Servers, run_servers

from rocketcrew.cli.children import Child, ChildError
from rocketcrew.client.outgoing import OutgoingMessage

ON_5 = pytest.mark.parametrize("servers", [Kind("5.5.0")], ids=str, indirect=True, scope="session")
ON_4 = pytest.mark.parametrize("servers", [Kind("4.9.7")], ids=str, indirect=True, scope="session")
QUEUES = 4
RETRY_WAIT_S = 180.0
"""The first retry of POP comes after ten seconds, and a killed member's messages after their invisible time."""
POP = {"consumer.client_rebalance": "false", "results.seal_idle_ms": 100}
RETRIED_ONCE = "numbers_handler:number_retried_once"
INVISIBLE = "consumer.pop_invisible_time_ms"
SOON_MS, HALF_MINUTE_MS = 5_000, 30_000
"""Until the messages of a killed member come again; and where nothing must, though all processes stand still for a while."""
RENEWED_MS = 15_000
"""A renewal is due at half of it, and may be so much late."""


def popping_crew(servers: Servers, folder: Path, topic: str, handler: str, **settings: object) -> Crew:
    """A member of a group that pops, by the broker's word."""
    servers.create_topic(topic, QUEUES)
    group = f"{topic}-group"
    said = servers.admin("setConsumeMode", "-b", servers.address, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    assert any("success" in line for line in said), said
    return Crew(folder, servers, handler, topic, load=False, group=group, **{**POP, **settings})


def numbers_of(crew: Crew) -> Counter[int]:
    return Counter(crew.staged_rows().column("number").to_pylist())


@ON_5
def test_popped_acknowledged_and_retried(servers: Servers, tmp_path: Path) -> None:
    numbers = range(
        600, 760
    )  # 607, 657, 707, 757 fail twice: ten seconds, then thirty; so they are given one retry here
    settings = {INVISIBLE: HALF_MINUTE_MS}
    popped_and_retried(servers, popping_crew(servers, tmp_path, "popped", RETRIED_ONCE, **settings), numbers)


def test_retries_that_come_as_they_are_stored_are_acknowledged(tmp_path: Path) -> None:
    """The pop service with a store of keys: retries come under their retry topic, without a check point. One that is
    acknowledged under another topic comes again after its invisible time."""
    need_jars("5.5.0")
    keys = "popConsumerKVServiceInit=true\npopConsumerKVServiceEnable=true\n"
    (tmp_path / "servers").mkdir()
    with run_servers(Kind("5.5.0"), tmp_path / "servers", settings=keys) as servers:
        crew = popping_crew(servers, tmp_path, "stored", RETRIED_ONCE, **{INVISIBLE: 2 * SOON_MS})
        popped_and_retried(servers, crew, range(600, 660), quiet_s=2.5 * SOON_MS / 1000)


def popped_and_retried(servers: Servers, crew: Crew, numbers: range, quiet_s: float = 0.0) -> None:
    """Each has its row, those that failed once by their first retry; all are acknowledged, and none comes again."""
    failing = [number for number in numbers if number % 50 == 7]
    crew.start()
    try:
        send_numbers(servers, crew.topic, numbers)
        wait_until(lambda: set(numbers_of(crew)) == set(numbers), RETRY_WAIT_S, "every number")
        wait_until(lambda: crew.counter("pop_acks") >= len(numbers), RETRY_WAIT_S, "all messages acknowledged")
        before = crew.counter("pulled_messages")
        time.sleep(quiet_s)
        assert crew.counter("pulled_messages") == before >= len(numbers) + len(failing)
        status = crew.status()
        assert status is not None
        assert status["counters"]["sent_back_messages"] == len(failing)
        assert status["counters"]["pop_acks_refused"] == 0
        assert status["counters"]["invariant_violations"] == 0
    finally:
        assert crew.stop() == 0
    rows = crew.staged_rows()
    attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert attempts == {number: int(number % 50 == 7) for number in numbers}
    assert rows.num_rows == len(numbers)
    retried = [row for row in rows.to_pylist() if row["attempt"]]
    assert {row["_topic"].rpartition(crew.topic)[0][:-1] for row in retried} == {f"%RETRY%{crew.group}"}


@ON_5
def test_what_takes_longer_than_its_time_is_renewed(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"
    monkeypatch.setenv(RELEASE, str(release))
    crew = popping_crew(servers, tmp_path, "renewed", "pressure_handlers:stuck_or_done", **{INVISIBLE: RENEWED_MS})
    crew.start()
    try:
        with patient_producer(servers) as producer:
            producer.send(OutgoingMessage(crew.topic, b"0 stuck"))
        wait_until(lambda: is_in_hand(crew), RETRY_WAIT_S, "the message in hand")
        check_running_info(servers, crew)
        wait_until(lambda: crew.counter("pop_renewals") >= 2, RETRY_WAIT_S, "two renewals of its time")
        release.touch()
        wait_until(lambda: crew.counter("pop_acks") == 1, RETRY_WAIT_S, "the message acknowledged")
        assert crew.counter("pulled_messages") == 1, "nobody saw it twice"
    finally:
        release.touch()
        assert crew.stop() == 0


def check_running_info(servers: Servers, crew: Crew) -> None:
    """What is popped is in a table of its own, with what waits for its acknowledgement; nothing has an offset."""
    text = running_info(servers, crew)
    popped = re.findall(rf"^{crew.topic} +broker-a +(-?\d+) +PopProcessQueueInfo (\[.*\])$", text, re.MULTILINE)
    assert sum(int(re.findall(r"waitAckCount:(\d+)", info)[0]) for _, info in popped) == 1, text
    assert all("droped:false" in info and "lastPopTimestamp:0" not in info for _, info in popped), text
    assert not re.search(rf"^{crew.topic} .* ProcessQueueInfo \[commitOffset", text, re.MULTILINE), text
    assert re.search(rf"^=== worker .* running {crew.topic}/broker-a/\d@\d+ for ", text, re.MULTILINE), text
    assert "pressure_handlers.py" in text, text


def is_acknowledged(crew: Crew) -> bool:
    """All that was done. What was in hand for too long is refused; it is shown again, and done once more."""
    status = crew.status()
    if status is None:
        return False
    counters = status["counters"]
    acked: int = counters["pop_acks"]
    return acked + int(counters["pop_acks_refused"]) == counters["done_messages"]


@ON_5
def test_kills_lose_nothing(servers: Servers, tmp_path: Path) -> None:
    """A worker, then the supervisor. Repeated is only what was in hand: popped, and not acknowledged."""
    numbers = range(1_000_000, 1_001_500)
    crew = popping_crew(servers, tmp_path, "killed", "numbers_handler:slow_plain_number", **{INVISIBLE: SOON_MS})
    crew.start()
    try:
        send_numbers(servers, crew.topic, numbers)
        wait_until(lambda: crew.counter("done_messages") > 200, what="the first messages")
        os.kill(crew.workers()[0], signal.SIGKILL)
        wait_until(lambda: crew.counter("done_messages") > 500 and len(crew.workers()) == 2, what="a new worker")
        wait_until(lambda: crew.counter("pop_acks") > 0, what="the first acknowledgements")
        workers = crew.workers()
        crew.kill()
        wait_for_end(workers, "the workers' end")
        crew.start()
        wait_until(lambda: set(numbers_of(crew)) == set(numbers), RETRY_WAIT_S, "every number")
        wait_until(lambda: is_acknowledged(crew), WAIT_S, "all acknowledged")
    finally:
        assert crew.stop() == 0
    repeated = sum(numbers_of(crew).values()) - len(numbers)
    assert repeated <= 2 * (96 + 32) * QUEUES, f"{repeated} repeated, more than can have been in hand"


@ON_4
def test_a_4_9_broker_cannot_and_is_named(servers: Servers, tmp_path: Path) -> None:
    servers.create_topic("unpopped", 1)
    words = ["run", "numbers_handler:number", "--topic", "unpopped", "--group", "unpopped-group", "-n", servers.name_server,
             "--set", "consumer.client_rebalance=false", "--set", f"supervisor.data_dir={tmp_path}"]  # fmt: skip
    child = Child("supervisor", words, log=tmp_path / "log", cwd=HANDLERS)
    with pytest.raises(ChildError, match="client_rebalance = false needs RocketMQ 5"):
        child.wait(WAIT_S)
