"""POP on the embedded broker, which assigns the queues; the broker is killed on the way."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, send_numbers, wait_until

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.pop_headers import MODE_POP, SetMessageRequestMode

TOPIC, GROUP = "popped", "popped-group"
POP = {"consumer.client_rebalance": "false", "consumer.pop_invisible_time_ms": 5_000, "results.seal_idle_ms": 100}


def let_pop(broker: Broker) -> None:
    """As `mqadmin setConsumeMode` does."""

    async def ask(cluster: Cluster) -> int:
        body = SetMessageRequestMode(TOPIC, GROUP, MODE_POP).encode()
        command = Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)
        return (await cluster.remoting.request(f"127.0.0.1:{broker.port}", command, timeout_ms=WAIT_S * 1000)).code

    assert run_with_cluster(broker.name_server, ask) == 0


def test_popped_retried_and_acknowledged_through_a_kill_of_the_broker(tmp_path: Path) -> None:
    """607 and 657 fail once: they are shown again when their invisible time is over, ten seconds later."""
    broker = Broker(tmp_path)
    numbers = range(600, 700)
    send_numbers(broker, TOPIC, numbers[:50])
    let_pop(broker)
    crew = Crew(tmp_path, broker, "numbers_handler:number_retried_once", TOPIC, load=False, group=GROUP, **POP)
    try:
        crew.start()
        wait_until(lambda: crew.counter("pop_acks") >= 49, what="what does not fail acknowledged")
        broker.kill()
        broker.start()
        send_numbers(broker, TOPIC, numbers[50:])
        wait_until(lambda: numbers_of(crew).keys() == set(numbers), 2 * WAIT_S, "every number")
        wait_until(lambda: crew.counter("pop_acks") >= len(numbers), what="all messages acknowledged")
        status = crew.status()
        assert status is not None
        assert status["counters"]["sent_back_messages"] >= 2
        assert status["counters"]["invariant_violations"] == 0
        assert crew.stop() == 0
    finally:
        crew.child.stop(WAIT_S)
        broker.stop()
    rows = crew.staged_rows().to_pylist()
    first = {number: min(row["attempt"] for row in rows if row["number"] == number) for number in numbers}
    assert all(first[number] for number in numbers if number % 50 == 7)
    assert {row["_topic"] for row in rows if row["attempt"]} == {f"%RETRY%{GROUP}_{TOPIC}"}


def numbers_of(crew: Crew) -> Counter[int]:
    return Counter(crew.staged_rows().column("number").to_pylist())
