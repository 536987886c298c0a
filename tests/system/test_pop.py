"""POP on the embedded broker, which assigns the queues; the broker is killed on the way."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, stored_messages, wait_until
from test_reconcile import reconcile

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.durable.facts import facts_from_bytes
from rocketcrew.durable.outcomes import ELSEWHERE, Outcomes
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


def test_of_two_members_that_share_queues_each_table_knows_what_the_other_had(tmp_path: Path) -> None:
    """Two supervisors fill two tables; one is killed with messages in hand. By the sender's list each message is in one of
    the tables, and of the living one's table each offset of the topic is loaded or elsewhere, none of them wrongly."""
    broker = Broker(tmp_path)
    sent = 600
    send_numbers(broker, TOPIC, range(8))
    let_pop(broker)
    crews = [
        Crew(tmp_path / name, broker, "numbers_handler:slow_plain_number", TOPIC, load=False, group=GROUP, **POP)
        for name in ("one", "two")
    ]
    one, two = crews

    def both_acknowledge() -> bool:
        """As long as one has had too little, there is more for both: a slow member has its queues late."""
        nonlocal sent
        acks = [crew.counter("pop_acks") for crew in crews]
        if min(acks) > 20:
            return True
        if sum(acks) >= sent:
            send_numbers(broker, TOPIC, range(sent, sent + 200))
            sent += 200
        return False

    try:
        for crew in crews:
            crew.folder.mkdir()
            crew.start()
        send_numbers(broker, TOPIC, range(8, sent))
        wait_until(both_acknowledge, what="both to acknowledge")
        two.kill()
        send_numbers(broker, TOPIC, range(sent, sent + 400))
        everything = set(range(sent + 400))
        wait_until(lambda: numbers_of(one).keys() | numbers_of(two).keys() == everything, 2 * WAIT_S, "every number")
        offsets = {(m.queue_id, m.queue_offset): int(m.body) for m in stored_messages(broker.name_server, TOPIC)}
        wait_until(lambda: elsewhere_is_said(one, offsets), what="what the other had to be said")
        assert one.stop() == 0
        table = one.load()
        report = reconcile(one, code=0)
    finally:
        for crew in crews:
            crew.child.stop(WAIT_S)
        broker.stop()
    assert sorted(offsets.values()) == sorted(everything)
    mine = {
        (row["_queue_id"], row["_offset"]) for row in table.to_pylist() if row["_topic"] == TOPIC
    }  # not what came again from the retry topic
    told = {fate: counted(report, fate, TOPIC) for fate in ("loaded", "elsewhere", "before", "unknown", "waiting")}
    assert told["loaded"] == len(mine)
    assert told["elsewhere"] + told["before"] == len(offsets) - len(mine), told
    assert told["elsewhere"] > 0, told
    assert numbers_of_table(table) | numbers_of(two).keys() == everything
    assert duplicate_keys(table) == 0


def elsewhere_is_said(crew: Crew, offsets: Mapping[tuple[int, int], int]) -> bool:
    """Up to the last message of each queue."""
    said = Outcomes.union(
        facts_from_bytes(path.read_bytes()) for path in (crew.slot / "segments/outcomes").glob("[!.]*.facts")
    ).of_kind(ELSEWHERE)
    last = {queue_id: max(at for queue, at in offsets if queue == queue_id) for queue_id, _ in offsets}
    ends = {key.queue_id: pieces.pieces[-1][1] for key, pieces in said.queues.items() if key.topic == TOPIC}
    return all(ends.get(queue_id, 0) > at for queue_id, at in last.items())


def counted(report: dict[str, Any], fate: str, topic: str) -> int:
    return sum(queue["counts"].get(fate, 0) for queue in report["queues"] if queue["topic"] == topic)


def numbers_of_table(table: pa.Table) -> set[int]:
    return set(table.column("number").to_pylist())


def numbers_of(crew: Crew) -> Counter[int]:
    return Counter(crew.staged_rows().column("number").to_pylist())
