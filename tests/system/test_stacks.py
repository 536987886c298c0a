"""Stacks of every process with the message in hand: also of a worker in a C loop, of one that is stopped, and of a
forkserver whose import hangs."""

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
ROLES = ["supervisor", "worker", "worker", "forkserver", "spare", "loader"]
PLACES = ["own_stack", "workers/worker.py", "workers/worker.py", "multiprocess/forkserver.py", "", "/spark/"]
ENDLESS = "import re\n\ndef endless():\n    re.match('(a+)+$', 'a' * 64 + 'b')\n\n"


def processes(crew: Crew) -> list[dict[str, Any]]:
    answer = asyncio.run(ask(crew.slot, "stacks"))
    found: list[dict[str, Any]] = answer["processes"]
    return found


def answers(found: list[dict[str, Any]]) -> bool:
    """Of each process at rest what is to be seen of it. On a busy machine one may answer too late for a look, or be looked at
    in the middle of its answer."""
    seen = [place in each["stack"] for place, each in zip(PLACES, found, strict=False)]
    return [each["process"] for each in found] == ROLES and all(seen)


def uses_arrow(each: dict[str, Any]) -> bool:
    return "libarrow" in Path(f"/proc/{each['pid']}/maps").read_text()


def of(crew: Crew, role: str) -> list[dict[str, Any]]:
    return [each for each in processes(crew) if each["process"] == role]


def test_stacks_come_from_a_c_loop_and_a_stopped_worker_is_told(tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "stuck.py").write_text(ENDLESS + "def handle(message):\n    endless()\n")
    crew = Crew(
        tmp_path, broker, "stuck:handle", TOPIC, load=True, **{"spark.format": "pyarrow", "results.schema": "a int"}
    )
    crew.cwd = tmp_path
    crew.start()
    try:
        idle: list[dict[str, Any]] = []

        def all_answer() -> bool:
            idle[:] = processes(crew)
            return answers(idle)

        wait_until(all_answer, what="the loader at work, the spare, and all others at rest")
        assert all(each["running"] is None for each in idle)
        assert idle[3]["pid"] == crew.forkserver()
        assert (idle[4]["stack"], idle[4]["note"].split(",")[0]) == ("", "waits until a worker is needed")
        assert idle[5]["pid"] == crew.loader()
        send_numbers(broker, TOPIC, range(16))
        wait_until(
            lambda: all(each["running"] and "in endless" in each["stack"] for each in of(crew, "worker")),
            what="two messages in hand",
        )
        for each in of(crew, "worker"):
            assert each["running"]["topic"] == TOPIC
            assert each["running"]["seconds"] > 0
        os.kill(crew.child.pid, signal.SIGUSR1)
        wait_until(lambda: {line["of"] for line in crew.logged("stack")} == set(ROLES), what="the stacks in the log")
        assert sum(line["running"] is not None and f"{TOPIC}/" in line["running"] for line in crew.logged("stack")) == 2
        wait_until(lambda: uses_arrow(idle[5]), what="the loader's imports")
        assert [each["process"] for each in idle if uses_arrow(each)] == ROLES[1:], "a supervisor handles no rows"
        stopped = crew.workers()[0]
        os.kill(stopped, signal.SIGSTOP)
        told = {each["pid"]: each for each in processes(crew)}[stopped]
        assert told["stack"] == ""
        assert "T (stopped)" in told["note"]
        os.kill(stopped, signal.SIGCONT)
        (tmp_path / "stuck.py").write_text(ENDLESS + "endless()\n")
        os.kill(crew.child.pid, signal.SIGHUP)
        wait_until(
            lambda: any("in endless" in each["stack"] for each in of(crew, "forkserver")), what="a hanging import"
        )
        assert [each["name"] for each in of(crew, "forkserver")] == ["generation-0", "generation-1"]
    finally:
        crew.kill()
