"""Child processes of a command: started apart from the terminal's signals, stopped in order, never left behind.

Each child is in a session of its own, so that Ctrl-C reaches the command alone and it decides the order of the stop; and
each has a parent-death signal, so that a killed command leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..remoting.errors import RocketcrewError
from ..workers.parent_death import die_with_parent

POLL_S = 0.05
LOG_TAIL_BYTES = 4000


class ChildError(RocketcrewError):
    """A child process failed; the text holds the end of its log."""


class Child:
    """One `rocketcrew` process with its output in a file."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, cwd: Path | None = None,
        out: Path | None = None,
    ) -> None:  # fmt: skip
        """Start it. Its standard error goes to `log`, its standard output too, unless `out` names a file of its own."""
        self.name = name
        self.log = log
        parent = os.getpid()
        with log.open("ab") as errors, (out or log).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rocketcrew", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=cwd,
                start_new_session=True,
                # Commands start their children before any thread exists, and the function only makes two system calls.
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `condition()` is true. Raises ChildError when the child ends or the time is over first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None:
                raise ChildError(f"the {self.name} ended with exit code {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ChildError(f"the {self.name} did not {what} within {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def wait(self, timeout_s: float) -> None:
        """Wait for its good end. Raises ChildError when it fails or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise ChildError(f"the {self.name} did not end within {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)
        if self._process.returncode:
            raise ChildError(f"the {self.name} ended with exit code {self._process.returncode}:\n{self.tail()}")

    def check(self) -> None:
        """Raise ChildError when the child has ended."""
        self.wait_for(lambda: self._process.poll() is None, 0.0, "stay alive")

    def stop(self, timeout_s: float) -> int:
        """TERM, then KILL after `timeout_s`; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def tail(self) -> str:
        """The end of its log."""
        data = self.log.read_bytes()
        return data[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on at this moment: asked for one by one, two might be the same."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
