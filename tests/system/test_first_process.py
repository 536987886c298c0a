"""The supervisor as the first process of a container: PID 1 of a namespace of its own, where nobody else takes signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [mask] = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(mask >> (number - 1) & 1)


def ended_on_term(words: list[str], reached: Callable[[int], bool]) -> int:
    """The exit code of a command that is PID 1 and gets TERM when it has `reached` a place, asked without a pause."""
    process = subprocess.Popen(
        [*in_a_namespace(), sys.executable, "-m", "rocketcrew", *words], cwd=HANDLERS, stdin=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: bool(psutil.Process(process.pid).children()), what="the first process")
        (first,) = psutil.Process(process.pid).children()
        until = time.monotonic() + WAIT_S
        while not reached(first.pid):
            assert time.monotonic() < until
        first.send_signal(signal.SIGTERM)
        return process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A name server that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


def run_at(silent: socket.socket, data_dir: Path) -> list[str]:
    name_server = f"127.0.0.1:{silent.getsockname()[1]}"
    words = ["run", "numbers_handler:number", "-t", "numbers", "-g", "crew", "-n", name_server]
    return [*words, "--set", f"supervisor.data_dir={data_dir}"]


def test_term_before_a_command_ends_pid_1(silent: socket.socket, tmp_path: Path) -> None:
    """HUP is the first signal that it takes over in any case; the imports come after that. On a busy machine the supervisor
    runs by then, and ends in order."""
    code = ended_on_term(run_at(silent, tmp_path), lambda pid: catches(pid, signal.SIGHUP))
    assert code in (128 + signal.SIGTERM, 0)


@pytest.mark.parametrize("command", ["run --check", "tail"])
def test_term_ends_a_command_that_waits_for_a_server_as_pid_1(
    silent: socket.socket, tmp_path: Path, command: str
) -> None:
    """In the look before a start, and in the commands that leave TERM to the kernel when they are not PID 1."""
    words = run_at(silent, tmp_path)
    words = [*words, "--check"] if command == "run --check" else ["tail", *words[2:4], *words[6:8]]

    def asked(_pid: int) -> bool:
        try:
            silent.accept()[0].detach()  # open, and unanswered, until the test's process ends
        except BlockingIOError:
            return False
        return True

    assert ended_on_term(words, asked) == 128 + signal.SIGTERM
