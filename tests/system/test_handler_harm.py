"""Handlers that claim signals, fork, print, close descriptors: only what they do to themselves is their own loss."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harmful import LOOPS
from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, stored_messages, wait_until

from rocketcrew.supervisor.control import ask

TOPIC = "numbers"
MESSAGES = 600
CLOSES = 350


def run(crew: Crew, messages: int, dead_letters: int, then: Callable[[], None] = lambda: None) -> list[int]:
    """Send, wait for everything, do what comes then, stop; the numbers of the rows."""
    crew.start()
    send_numbers(crew.broker, TOPIC, range(messages))
    wait_until(lambda: crew.sent_back_lag() == 0 and crew.dead_letters() == dead_letters, 2 * WAIT_S, "all messages")
    then()
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert duplicate_keys(rows) == 0
    found: list[int] = rows.column("number").to_pylist()
    return sorted(found)


def stacks(crew: Crew) -> list[str]:
    """Of the workers, also of one that starts; empty where one did not answer within a second."""
    answer = asyncio.run(ask(crew.slot, "stacks"))
    return [each["stack"] for each in answer["processes"] if each["process"] == "worker"]


def look_and_reload(crew: Crew) -> None:
    """What workers are asked for by signals of ours, whoever has claimed the others. The last death may have been just now:
    its worker's successor starts."""
    wait_until(lambda: ["in run" in stack for stack in stacks(crew)] == [True, True], what="the stacks of both workers")
    os.kill(crew.child.pid, signal.SIGHUP)
    wait_until(lambda: crew.staff()["counts"].get("reloaded") == 1, what="the reload")


def test_forks_prints_and_closed_descriptors_do_no_harm_to_others(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "harmful:harmful", TOPIC, load=False, **{"workers.capture_output": True})
    assert run(crew, MESSAGES, 1, lambda: look_and_reload(crew)) == [n for n in range(MESSAGES) if n != CLOSES]
    printed = crew.logged("handler_output")
    assert {f"number {number}" for number in range(7, MESSAGES, 100)} <= {event["text"] for event in printed}
    assert all("offset" in event for event in printed)
    # On a machine that stands still for so long others are over their limit too.
    [place] = [
        f"{TOPIC}/{broker.name}/{message.queue_id}@{message.queue_offset}"
        for message in stored_messages(broker.name_server, TOPIC)
        if int(message.body) == LOOPS
    ]
    # Also where it came to that message without descriptors: whoever has none names all that it has not reported.
    [late] = [death for death in crew.logged("worker_died") if death.get("running") == place]
    assert late["end"] == "hard time limit"
    assert late["verdict"] == "timed out", "one failed attempt, though ABRT is ignored and nobody writes a stack"
    assert late["cause"] == "SIGKILL"
    assert "charged_to" not in late
    logged = crew.logged("looked_at")
    assert all(event["keys"] == f"n{event['number']}" and event["process"] == "worker" for event in logged)
    assert len(logged) >= MESSAGES // 100


def test_a_coroutine_handler_has_many_messages_in_hand(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "harmful:waits", TOPIC, load=False, **{"workers.async_concurrency": 50})
    assert run(crew, 1000, 1) == [number for number in range(1000) if number != 999]
    wide = [line for line in crew.child.log.read_text().splitlines() if '"at_once"' in line]
    assert max(json.loads(line)["at_once"] for line in wide) > 10
