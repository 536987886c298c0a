"""A rate limit: a topic is held at its rate while another passes, the commands say why, and a reload lifts it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rocketcrew.supervisor.control import ask

sys.path.insert(0, str(Path(__file__).parent))

from harness import wait_until
from terminal import Terminal, run

SHOP = """
def count(message):
    print(message.topic, flush=True)
"""
SLOW = '[workers]\ncount = 1\ntopic_rate_limit = ["orders=3/h"]\n'
FAST = '[workers]\ncount = 1\ntopic_rate_limit = ["orders=1000/s"]\n'
FIRST = ("--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET")
RUN = ("run", "shop:count", "-t", "orders", "-t", "mails", "-g", "billing", "--no-load", "-c", "crew.toml", *FIRST)


def told(folder: Path, command: str, *words: str) -> str:
    done = run(folder, command, "-g", "billing", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_topic_at_its_rate_waits_and_a_reload_lifts_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "crew.toml").write_text(SLOW)

    def asked(command: str) -> Any:
        return asyncio.run(ask(tmp_path / ".rocketcrew" / "billing" / "0", command))

    def done() -> int:
        return int(asked("status")["counters"]["done_messages"])

    def held() -> bool:
        return any(queue["holds"] == "rate" for queue in asked("holding")["queues"])

    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        for topic in ("orders", "mails"):
            assert run(tmp_path, "send", "-n", name_server, "-t", topic, "x", "--count", "6").returncode == 0
        with Terminal(tmp_path, *RUN, "-n", name_server) as member:
            member.until("orders")
            wait_until(lambda: done() == 7, what="all mails, and the one order that may run")
            wait_until(held, what="the orders that wait")
            assert "rate limits orders 3/h (holds messages back now)" in told(tmp_path, "status")
            why = told(tmp_path, "why-lag")
            assert " waits for the rate limit of its topic or of the member" in why
            assert "  not pulled: workers.topic_rate_limit: 3/h, messages of orders" in why
            (tmp_path / "crew.toml").write_text(FAST)
            assert run(tmp_path, "reload", "-g", "billing").returncode == 0
            wait_until(lambda: done() == 12, what="all orders")
            assert "rate limits orders 1000/s\n" in told(tmp_path, "status")
            assert member.stop() == 0
        assert broker.stop() == 0
