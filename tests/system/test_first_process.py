"""The supervisor as the first process of a container: PID 1 of a namespace of its own, where nobody else takes signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import HANDLERS, WAIT_S, Broker, Crew, send_numbers, wait_until

OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def in_a_namespace() -> list[str]:
    """The words with which a command is PID 1; skips where this machine does not allow it."""
    for words in ([*OWN_NAMESPACE], [*OWN_NAMESPACE, "--map-root-user"]):
        try:
            done = subprocess.run([*words, "sh", "-c", "echo $$"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            break
        if done.stdout.strip() == "1":
            return words
    pytest.skip("no process can be PID 1 here: unshare --pid, or user namespaces")


def test_it_consumes_and_stops_on_term_as_pid_1(broker: Broker, tmp_path: Path) -> None:
    namespace = in_a_namespace()
    crew = Crew(tmp_path, broker, "numbers_handler:number", "numbers", load=False)
    words = ["run", crew.handler, "-t", crew.topic, "-g", crew.group, "-n", broker.name_server]
    words += [word for key, value in crew.settings.items() for word in ("--set", f"{key}={value}")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*namespace, sys.executable, "-m", "rocketcrew", *words], cwd=HANDLERS, stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        wait_until(lambda: process.poll() is not None or crew.status() is not None, what="a supervisor that answers")
        assert process.poll() is None, (tmp_path / "log").read_text()
        status = crew.status()
        assert status is not None
        assert status["pid"] == 1
        send_numbers(broker, "numbers", range(50))
        wait_until(lambda: crew.counter("done_messages") == 50, what="50 numbers")
        (first,) = psutil.Process(process.pid).children()
        below = first.children(recursive=True)
        assert len(below) >= 3  # the forkserver and two workers
        first.terminate()
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
        assert not psutil.wait_procs(below, timeout=WAIT_S)[1]
    finally:
        process.kill()  # --kill-child: nothing of the namespace stays
        process.wait()
    wait_until(lambda: crew.lag() == 0, what="an answer of the broker that all is committed")
    assert sorted(crew.staged_rows().column("number").to_pylist()) == list(range(50))
