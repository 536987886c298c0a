"""A member's log in a file that is rotated under it: supervisor, worker and loader go on in the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from terminal import Terminal, asked, run

SHOP = """
from rocketcrew import Retry, handler

@handler(schema="size int")
def count(message):
    if message.body == b"bad":
        raise Retry(reason="not yet")
    return {"size": len(message.body)}
"""
CREW = """
[consumer]
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[workers]
count = 1
[spark]
format = "pyarrow"
[log]
file = "crew.log"
[broker]
name_server_port = 0
port = 0
"""


def lines(file: Path) -> list[dict[str, Any]]:
    """Each whole line, which must be an object."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_all_processes_follow_a_renamed_log(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "crew.toml").write_text(CREW)
    log, old = tmp_path / "crew.log", tmp_path / "crew.log.1"

    def retries_in(file: Path) -> int:
        return sum(line["event"] == "message_retry" for line in lines(file)) if file.exists() else 0

    with Terminal(tmp_path, "run", "shop", "-t", "orders", "-g", "billing", "-c", "crew.toml", "--embedded") as ours:
        name_server = ours.until("embedded broker: ").split()[2]
        asked(lambda: log.exists() and lines(log), lambda found: "running" in map(event_of, found or ()), "the start")
        assert run(tmp_path, "send", "-n", name_server, "-t", "orders", "bad").returncode == 0
        asked(lambda: retries_in(log), bool, "the first retry in the log")
        log.rename(old)
        assert run(tmp_path, "send", "-n", name_server, "-t", "orders", "bad").returncode == 0
        asked(lambda: retries_in(log), bool, "a retry in the new file")
        assert ours.stop() == 0
        said = ours.text
    before, after = lines(old), lines(log)
    assert {"run", "worker"} <= {line["process"] for line in before}
    assert {"run", "worker"} <= {line["process"] for line in after}
    assert {line.get("group") for line in (*before, *after)} == {"billing"}, "of which crew each line is"
    assert event_of(after[-1]) == "stopped"
    assert not [line for line in said.splitlines() if line.startswith("{")], "nothing of the log is on stderr"


def event_of(line: dict[str, Any]) -> str:
    return str(line["event"])
