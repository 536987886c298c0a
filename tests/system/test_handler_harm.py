"""Handlers that fork, print, close descriptors: only what they do to themselves is their own loss."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, wait_until

TOPIC = "numbers"
MESSAGES = 600
CLOSES = 350


def run(crew: Crew, messages: int, dead_letters: int) -> list[int]:
    """Send, wait for everything, stop; the numbers of the rows."""
    crew.start()
    send_numbers(crew.broker, TOPIC, range(messages))
    wait_until(lambda: crew.lag() == 0 and crew.dead_letters() == dead_letters, 2 * WAIT_S, "all messages")
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert duplicate_keys(rows) == 0
    found: list[int] = rows.column("number").to_pylist()
    return sorted(found)


def test_forks_prints_and_closed_descriptors_do_no_harm_to_others(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "harmful:harmful", TOPIC, load=False, **{"workers.capture_output": True})
    assert run(crew, MESSAGES, 1) == [number for number in range(MESSAGES) if number != CLOSES]
    events = [json.loads(line) for line in crew.child.log.read_text().splitlines() if line.startswith("{")]
    printed = {event["text"] for event in events if event["event"] == "handler_output"}
    assert {f"number {number}" for number in range(7, MESSAGES, 100)} <= printed
    assert all("offset" in event for event in events if event["event"] == "handler_output")
    logged = [event for event in events if event["event"] == "looked_at"]
    assert all(event["keys"] == f"n{event['number']}" and event["process"] == "worker" for event in logged)
    assert len(logged) >= MESSAGES // 100


def test_a_coroutine_handler_has_many_messages_in_hand(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "harmful:waits", TOPIC, load=False, **{"workers.async_concurrency": 50})
    assert run(crew, 1000, 1) == [number for number in range(1000) if number != 999]
    wide = [line for line in crew.child.log.read_text().splitlines() if '"at_once"' in line]
    assert max(json.loads(line)["at_once"] for line in wide) > 10
