"""`rocketcrew chaos` as a user runs it: faults in each order mode, a good verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rocketcrew.cli.chaos.faults import FAULTS

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, wait_for_end, wait_until

TIMEOUT_S = 900
ENDS_TWICE = 20
"""Of several sends in a row: a message whose send was answered late is not judged."""


def clean_environment(folder: Path) -> dict[str, str]:
    """Without settings of whoever runs the tests; temporary folders are made in `folder`."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))}
    return found | {"TMPDIR": str(folder)}


def command(order: str, *words: str) -> list[str]:
    return [sys.executable, "-Im", "rocketcrew", "chaos", "--order", order, *words]


def run(
    folder: Path, order: str, faults: list[str], *, seconds: float, messages: int, done: set[str] | None = None
) -> dict[str, Any]:
    """The verdict; fails with all that was said unless it is good, and unless all of `faults` (or `done`) were done."""
    words = [word for fault in faults for word in ("--fault", fault)]
    ended = subprocess.run(
        command(order, *words, "--seconds", str(seconds), "--messages", str(messages), "--json"),
        cwd=folder, env=clean_environment(folder), capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["verdict"] == "good"
    done = done or set(faults)
    print(f"VERDICT good: {order}, {', '.join(sorted(done))}: {found['sent']} sent, {found['duplicated']} duplicated")  # noqa: T201
    assert {row["fault"] for row in found["faults"]} == done
    # On a busy machine a send may be answered too late to count as sent.
    assert found["sent"] + found["uncertain_sends"] >= messages
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
    times = next(row["times"] for row in found["faults"] if row["fault"] == "exit-message")
    # One that was answered too late is sent again, and may be there too.
    assert times <= found["dead_lettered"] <= times + found["uncertain_sends"]


def test_who_stood_still_was_forgotten_or_killed(tmp_path: Path, full_numbers: bool) -> None:
    seconds, messages = (60, 10_000) if full_numbers else (1, 500)
    faults = ["stop-worker", "stop-supervisor", "expire", "kill-supervisor", "kill-forkserver", "kill-broker"]
    if full_numbers:
        faults.append("hang-message")  # which ends at a hard limit of 5 s
    run(tmp_path, "concurrent", faults, seconds=seconds, messages=messages)


@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
def test_a_random_worker_is_killed_again_and_again(tmp_path: Path, order: str, full_numbers: bool) -> None:
    if not full_numbers:
        pytest.skip("half a minute each: in full numbers only")
    found = run(tmp_path, order, ["kill-worker"], seconds=30, messages=10_000)
    assert found["faults"][0]["times"] >= 25


def test_all_that_is_done_when_none_is_named(tmp_path: Path, full_numbers: bool) -> None:
    if not full_numbers:
        pytest.skip("all faults, one after another: in full numbers only")
    asked_for = {name for name, fault in FAULTS.items() if not fault.asked_only}
    run(tmp_path, "concurrent", [], seconds=30, messages=10_000, done=asked_for)


def test_a_bad_verdict_is_exit_code_1_and_leaves_everything(tmp_path: Path) -> None:
    """A handler that logs an end twice: a repeat that no fault explains."""
    process = subprocess.Popen(
        command("concurrent", "--fault", "stop-worker", "--seconds", "1", "--messages", "200"),
        cwd=tmp_path, env=clean_environment(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def ends() -> list[tuple[Path, str]]:
        traces = list(tmp_path.glob("rocketcrew-chaos-*/trace"))
        lines = [(path, line) for path in traces for line in path.read_text().splitlines(True)]
        return [(path, line) for path, line in lines if line.startswith("END ") and line.endswith("\n")]

    try:
        wait_until(lambda: len(ends()) >= ENDS_TWICE, what="messages at work")
        found = ends()[:ENDS_TWICE]
        trace, _ = found[0]
        with trace.open("a") as file:
            file.write("".join(line for _, line in found))
        said, told = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, said + told
    assert "VERDICT BAD: " in said
    assert re.search(r" 0 lost, [1-9]\d* duplicated \(0 explained by the faults\)", said), said
    assert f"logs and state are in {trace.parent}; --seed " in told
    assert {path.name for path in trace.parent.iterdir()} >= {"trace", "state"}


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
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 130
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    wait_for_end(below, "the end of all that it started")


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
