"""results.commit_after = loaded: what is committed is in the table, at any moment, through a kill -9 and an orderly end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, wait_until

from rocketcrew.cli.watch import Watch

TOPIC = "numbers"
MESSAGES = 800
NEVER_MS = 3_600_000


@pytest.fixture
def crew(tmp_path: Path, broker: Broker) -> Iterator[Crew]:
    found = Crew(tmp_path, broker, "numbers_handler:slow_plain_number", TOPIC, load=True,
                 **{"results.commit_after": "loaded", "results.seal_idle_ms": 100, "spark.format": "pyarrow",
                    "spark.max_wait_ms": 200, "consumer.persist_consumer_offset_interval_ms": 1000})  # fmt: skip
    yield found
    found.child.stop(WAIT_S)


def committed(crew: Crew) -> int:
    """How many offsets are committed; every one of them was in the table a moment later."""
    with Watch(crew.broker.name_server) as watch:
        offsets = {(row.mq.broker_name, row.mq.queue_id): row.committed or 0 for row in watch.lag(crew.group, [TOPIC])}
    rows = crew.loaded_rows().select(["_broker", "_queue_id", "_offset"]).to_pylist()
    there = {(row["_broker"], row["_queue_id"], row["_offset"]) for row in rows}
    missing = [(*queue, at) for queue, offset in offsets.items() for at in range(offset) if (*queue, at) not in there]
    assert not missing, f"committed, and not in the table: {missing[:10]}"
    return sum(offsets.values())


def test_what_is_committed_is_in_the_table_through_kill_and_stop(crew: Crew, broker: Broker) -> None:
    send_numbers(broker, TOPIC, range(MESSAGES // 2))
    crew.start()
    wait_until(lambda: committed(crew) > 0, what="the first commit")
    crew.kill()
    send_numbers(broker, TOPIC, range(MESSAGES // 2, MESSAGES))
    assert committed(crew) < MESSAGES
    # Now nothing makes a batch due but the end itself.
    crew.settings["spark.max_wait_ms"] = NEVER_MS
    crew.start()
    wait_until(lambda: handled(crew), what="all messages to be handled")
    before = committed(crew)
    assert crew.stop() == 0
    assert committed(crew) == MESSAGES > before
    rows = crew.loaded_rows()
    assert sorted(rows.column("number").to_pylist()) == list(range(MESSAGES))
    assert duplicate_keys(rows) == 0


def handled(crew: Crew) -> bool:
    """Whether every message was pulled, and none waits or is under way."""
    status = crew.status()
    queues = [queue for queue in status["queues"] if queue["topic"] == TOPIC] if status else []
    return sum(queue["next_offset"] for queue in queues) == MESSAGES and not any(q["unfinished"] for q in queues)
