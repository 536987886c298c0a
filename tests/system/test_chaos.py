"""`rocketcrew chaos` as a user runs it: faults in each order mode, a good verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, alive, wait_until

TIMEOUT_S = 900


def clean_environment(folder: Path) -> dict[str, str]:
    """Without settings of whoever runs the tests; temporary folders are made in `folder`."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))}
    return found | {"TMPDIR": str(folder)}


def command(order: str, *words: str) -> list[str]:
    return [sys.executable, "-Im", "rocketcrew", "chaos", "--order", order, *words]


def run(folder: Path, order: str, faults: list[str], *, seconds: float, messages: int) -> dict[str, Any]:
    """The verdict; fails with all that was said unless it is good."""
    words = [word for fault in faults for word in ("--fault", fault)]
    done = subprocess.run(
        command(order, *words, "--seconds", str(seconds), "--messages", str(messages), "--json"),
        cwd=folder, env=clean_environment(folder), capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["verdict"] == "good"
    print(f"VERDICT good: {order}, {', '.join(faults)}: {found['sent']} sent, {found['duplicated']} duplicated")  # noqa: T201
    assert {row["fault"] for row in found["faults"]} == set(faults)
    assert found["sent"] >= messages
    assert not list(folder.glob("rocketcrew-chaos-*")), "a good end leaves no folder"
    return found


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
def test_stops_reloads_and_recycling_under_load_repeat_nothing(tmp_path: Path, order: str, full_numbers: bool) -> None:
    seconds, messages = (60, 20_000) if full_numbers else (1, 500)
    found = run(tmp_path, order, ["term", "reload", "recycle"], seconds=seconds, messages=messages)
    assert found["duplicated"] == found["duplicates_explained"] == found["out_of_order"] == 0


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
def test_kills_of_workers_and_deadly_messages(tmp_path: Path, order: str, full_numbers: bool) -> None:
    seconds, messages = (30, 10_000) if full_numbers else (1, 500)
    found = run(tmp_path, order, ["kill-worker", "exit-message", "kill-supervisor"], seconds=seconds, messages=messages)
    assert found["dead_lettered"] == next(row["times"] for row in found["faults"] if row["fault"] == "exit-message")


def test_a_member_that_stood_still_and_was_forgotten(tmp_path: Path, full_numbers: bool) -> None:
    seconds, messages = (60, 10_000) if full_numbers else (1, 500)
    run(tmp_path, "concurrent", ["stop-worker", "expire", "kill-supervisor"], seconds=seconds, messages=messages)


@pytest.mark.slow
def test_kills_of_the_loader_while_it_loads(tmp_path: Path, full_numbers: bool) -> None:
    seconds, messages = (120, 20_000) if full_numbers else (1, 500)
    found = run(tmp_path, "concurrent", ["kill-loader"], seconds=seconds, messages=messages)
    assert found["duplicated"] == 0


def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("concurrent", "--fault", "stop-worker", "--seconds", "600"),
        cwd=tmp_path, env=clean_environment(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: (trace := next(tmp_path.glob("rocketcrew-chaos-*/trace"), None)) is not None
                   and trace.stat().st_size > 0, what="messages at work")  # fmt: skip
        below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(below) >= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 130
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    wait_until(lambda: not list(alive(below)), what="the end of all that it started")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fault", "expire", "-n", "127.0.0.1:1"], "not ours to end"),
        (["--fault", "flood"], "expire"),
        (["--dir", "."], "not empty"),
    ],
)
def test_what_it_refuses(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "something").touch()
    done = subprocess.run(command("concurrent", *words), cwd=tmp_path, env=clean_environment(tmp_path),
                          capture_output=True, text=True, check=False, timeout=TIMEOUT_S)  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
