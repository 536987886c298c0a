"""The commands as a user's shell sees them: real processes, real sockets, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from terminal import PATIENT

TIMEOUT_S = 240


@dataclass
class Shell:
    folder: Path
    name_server: str

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-Im", "rocketcrew", *arguments],
            cwd=self.folder,
            env=clean_environment() | {"NAMESRV_ADDR": self.name_server} | PATIENT,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))}


def start_broker(folder: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """A broker, and what it said when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-Im", "rocketcrew", "broker", "--name-server-port", "0", "--port", "0", "--json", *arguments],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()  # the end of the file, were it to die
    if not ready:
        process.wait(TIMEOUT_S)
        pytest.fail(f"the broker ended with {process.returncode}")
    return process, json.loads(ready)


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    process.send_signal(number)
    try:
        return process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("commands")
    process, ready = start_broker(folder)
    try:
        yield Shell(folder, ready["name_server"])
    finally:
        assert stop(process, signal.SIGTERM) == 0


def test_what_is_sent_is_lag(shell: Shell) -> None:
    done = shell("send", "-t", "orders", "hello {n}", "--count", "25", "--tag", "paid", "--key", "k{n}", "-p", "a=b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(b"... 25 messages")
    found = shell("lag", "-g", "somebody", "-t", "orders", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["total"] == 25
    assert sum(queue["max"] for queue in answer["queues"]) == 25
    assert b"total" in shell("lag", "-g", "somebody", "-t", "orders").stdout


def test_bodies_from_stdin(shell: Shell) -> None:
    done = shell("send", "-t", "lines", "--lines", "--json", stdin=b"one\ntwo\n\nthree")
    assert done.returncode == 0, done.stderr
    sent = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["message_id"] for line in sent}) == 3
    assert {line["status"] for line in sent} == {"SEND_OK"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("send", "-t", "x"), 2, b"empty body"),
        (("send", "-t", "a topic", "y"), 2, b"illegal characters"),
        (("send", "-t", "x", "y", "--delay-level", "128"), 2, b"0<=x<=127"),
        (("send", "-t", "x", "-f", "none"), 1, b"No such file"),
        (("send", "-t", "x", "y", "-n", "127.0.0.1:1"), 3, b"127.0.0.1:1"),
        (("lag", "-g", "g", "-n", "127.0.0.1:1"), 3, b"127.0.0.1:1"),
        (("lag",), 2, b"-g GROUP"),
        (("lag", "-g", "nobody"), 1, b"does not know the group nobody"),
        (("lag", "-g", "nobody", "-t", "nothing"), 1, b"does not know the topic nothing"),
        (
            ("broker", "--port", "70000"),
            2,
            b"broker.port = 70000 (from flag --port) is out of range; legal: 0 to 65535",
        ),
    ],
)
def test_exit_codes_and_messages(shell: Shell, arguments: tuple[str, ...], code: int, says: bytes) -> None:
    done = shell(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_second_broker_on_the_same_folder_says_who_has_it(shell: Shell) -> None:
    done = shell("broker", "--name-server-port", "0", "--port", "0")
    assert done.returncode == 1  # it may pass: a service manager tries again
    assert b"is in use by another broker" in done.stderr


def test_messages_outlive_a_kill_of_the_broker_and_ctrl_c_is_clean(tmp_path: Path) -> None:
    process, ready = start_broker(tmp_path)
    shell = Shell(tmp_path, ready["name_server"])
    assert shell("send", "-t", "kept", "x", "--count", "10").returncode == 0
    assert stop(process, signal.SIGKILL) == -signal.SIGKILL
    process, ready = start_broker(tmp_path)
    shell = Shell(tmp_path, ready["name_server"])
    try:
        assert json.loads(shell("lag", "-g", "g", "-t", "kept", "--json").stdout)["total"] == 10
    finally:
        assert stop(process, signal.SIGINT) == 0
