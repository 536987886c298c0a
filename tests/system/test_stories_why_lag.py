"""A queue that does not move: why-lag names the message, the process and the place in the code, while it runs."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from terminal import Terminal, asked, run

SHOP = """
import fcntl, os

def slow(message):
    file = os.open("held", os.O_RDWR)
    print("begun", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.close(file)
"""
"""It waits in one place, until the test gives up its lock or ends."""
FIRST = ("--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET", "--set", "workers.count=1")
RUN = ("run", "shop:slow", "-t", "orders", "-g", "billing", "--no-load", "--log-format", "json", *FIRST)


def why(folder: Path, *words: str) -> str:
    done = run(folder, "why-lag", "-g", "billing", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def held_queues(folder: Path) -> list[dict[str, Any]]:
    """Queues whose offset is held by what a worker runs."""
    told = json.loads(why(folder, "--json"))
    return [queue for queue in told["queues"] if queue["top"] and queue["running"]["offset"] == queue["offset"]
            and queue["running"]["queue_id"] == queue["queue_id"]]  # fmt: skip


def in_the_wait(held: list[dict[str, Any]]) -> bool:
    return [queue["top"] for queue in held] == ["slow at shop.py:7"]


def test_what_holds_the_offset_of_a_queue(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with (
        (tmp_path / "held").open("w") as lock,
        Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        name_server = json.loads(broker.until("name_server"))["name_server"]
        assert run(tmp_path, "send", "-n", name_server, "-t", "orders", "x", "--count", "4").returncode == 0
        with Terminal(tmp_path, *RUN, "-n", name_server) as member:
            member.until("begun")
            # What it has printed it has printed before it waits.
            (held,) = asked(lambda: held_queues(tmp_path), in_the_wait, "a worker that waits")
            assert (held["topic"], held["holds"], held["offset"], held["committed"]) == ("orders", "worker", 0, 0)
            assert held["top"] == "slow at shop.py:7"
            # A worker that does not answer within a second is shown without its place.
            said = asked(lambda: why(tmp_path), lambda text: ", in slow at shop.py:" in text, "the place in the code")
            assert f"orders {held['broker']} {held['queue_id']}: lag " in said
            assert f"offset 0 runs in worker {held['worker']} (pid {held['pid']}) for " in said
            assert run(tmp_path, "pause").returncode == 0
            assert "  not pulled: paused by operator" in why(tmp_path)
            assert run(tmp_path, "resume").returncode == 0
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert member.stop() == 0
        assert broker.stop() == 0
    done = run(tmp_path, "why-lag", "-g", "billing")
    assert done.returncode == 2
    assert "no supervisor runs under" in done.stderr
