"""Commands as somebody at a shell runs them in a folder: what they say is read line by line, as it comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import pytest

from rocketcrew.workers.parent_death import die_with_parent

Answer = TypeVar("Answer")
LIMIT_S = 240
"""A command that says nothing more for so long is killed, and the story fails."""
PAUSE_S = 0.5
"""Between two commands that ask the same: each starts an interpreter."""
PATIENT = {"ROCKETCREW_CLUSTER_REQUEST_TIMEOUT_MS": str(LIMIT_S * 1_000)}
"""Of commands that end by themselves: what a busy broker does not answer within the usual 3 s fails, or is sent twice."""


def environment(**more: str) -> dict[str, str]:
    """This one's, without what belongs to another rocketcrew."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))}
    return own | more


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-Im", "rocketcrew", *arguments]


def ends_with_us() -> Callable[[], None]:
    """What a child calls before it becomes the command: a test that is killed leaves no command behind, and Ctrl-C is not
    ignored, as it is by what a shell has started by `&`, these tests perhaps."""
    parent = os.getpid()

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(parent)

    return begin


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command to its end, nobody at the keyboard."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(**PATIENT | env), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=LIMIT_S, preexec_fn=ends_with_us(),
    )  # fmt: skip


def why_failed(text: str) -> str:
    """What a command has ended for whose log is JSON, in its words. Its lines are all objects but those before the log."""
    (failed,) = [line for line in text.splitlines() if '"event": "command_failed"' in line]
    return str(json.loads(failed)["error"])


def asked(ask: Callable[[], Answer], holds: Callable[[Answer], bool], what: str) -> Answer:
    """The first answer that holds. Fails with `what` was waited for, and the last answer."""
    deadline = time.monotonic() + LIMIT_S
    while not holds(answer := ask()):
        assert time.monotonic() < deadline, f"{what} did not come true within {LIMIT_S} s; the last answer: {answer}"
        time.sleep(PAUSE_S)
    return answer


@dataclass
class Shell:
    """Commands in one folder, with the name server in the environment."""

    folder: Path
    name_server: str

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        done = run(self.folder, *arguments, NAMESRV_ADDR=self.name_server)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr


class Terminal:
    """A command that runs on, with what it has said so far (both streams); a context manager, at whose end it is dead."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            command(*arguments), cwd=folder, env=environment(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
            preexec_fn=ends_with_us(),  # noqa: PLW1509  two system calls
        )  # fmt: skip

    def until(self, text: str) -> str:
        """The next line that has `text` in it. Fails when the command ends without it."""
        assert self.process.stdout is not None
        killer = threading.Timer(LIMIT_S, self.process.kill)
        killer.start()
        try:
            for line in self.process.stdout:
                self.said.append(line)
                if text in line:
                    return line
        finally:
            killer.cancel()
        pytest.fail(f"it ended with {self.process.wait()} and never said {text!r}:\n{''.join(self.said)}")

    def to_its_end(self) -> int:
        """Wait for its end; the exit code. What it says on the way is in `said`."""
        assert self.process.stdout is not None
        killer = threading.Timer(LIMIT_S, self.process.kill)
        killer.start()
        try:
            self.said += self.process.stdout
            return self.process.wait()
        finally:
            killer.cancel()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.to_its_end()

    @property
    def text(self) -> str:
        return "".join(self.said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        code = self.process.poll()
        rest = ""
        if code is None:
            self.process.terminate()
        try:
            rest, _ = self.process.communicate(timeout=LIMIT_S)
        finally:
            self.process.kill()
            if failed is not None:  # pytest shows what is written beside the failure
                sys.stdout.write(f"{self.process.args}\nhad ended with {code}; it said:\n{self.text}{rest}\n")
