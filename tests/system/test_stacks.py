"""Stacks of every process with the message in hand: also of a worker in a C loop, and of one that is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rocketcrew.supervisor.control import ask

sys.path.insert(0, str(Path(__file__).parent))

from harness import Broker, Crew, send_numbers, wait_until

TOPIC = "numbers"


def processes(crew: Crew) -> list[dict[str, Any]]:
    answer = asyncio.run(ask(crew.slot, "stacks"))
    found: list[dict[str, Any]] = answer["processes"]
    return found


def test_stacks_come_from_a_c_loop_and_a_stopped_worker_is_told(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:endless_c_loop", TOPIC, load=False)
    crew.start()
    try:
        idle = processes(crew)
        assert [each["process"] for each in idle] == ["supervisor", "worker", "worker"]
        assert "own_stack" in idle[0]["stack"]
        assert all("workers/worker.py" in each["stack"] and each["running"] is None for each in idle[1:])
        send_numbers(broker, TOPIC, range(16))
        wait_until(lambda: all(each["running"] for each in processes(crew)[1:]), what="two messages in hand")
        for each in processes(crew)[1:]:
            assert "endless_c_loop" in each["stack"], each
            assert each["running"]["topic"] == TOPIC
            assert each["running"]["seconds"] > 0
        stopped = crew.workers()[0]
        os.kill(stopped, signal.SIGSTOP)
        told = {each["pid"]: each for each in processes(crew)}[stopped]
        assert told["stack"] == ""
        assert "T (stopped)" in told["note"]
        os.kill(stopped, signal.SIGCONT)
    finally:
        crew.kill()
