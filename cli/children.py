"""Child processes of a command: started apart from the terminal's signals, stopped in order, never left behind.

Each child is in a session of its own, so that Ctrl-C reaches the command alone and it decides the order of the stop; and
each has a parent-death signal, so that a killed command leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..conf.own_command import own_command
from ..remoting.errors import RocketcrewError
from ..workers.parent_death import die_with_parent

POLL_S = 0.05
LOG_TAIL_BYTES = 4000
ANNOUNCEMENT_BYTES_MAX = 4096


class ChildError(RocketcrewError):
    """A child process failed; the text holds the end of its log."""


class Child:
    """One `rocketcrew` process with its output in a file."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, cwd: Path | None = None,
        out: Path | None = None, announces: bool = False, own_log: bool = False, env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Start it. Its standard error goes to `log`, its standard output too, unless `out` names a file of its own. With
        `own_log` to the first of log, log-2, log-3 ... that no other such child writes: what `tail` gives is this one's.

        With `announces` its standard output is a pipe, on which it says that it is ready: see `announcement`. `env` None =
        the environment as it is.
        """
        self.name = name
        self.stopping = False
        """We have asked it to end."""
        parent = os.getpid()
        with free_log(log) if own_log else log.open("ab") as errors, (out or Path(errors.name)).open("ab") as output:
            self.log = Path(errors.name)
            self._log_start = errors.tell()
            self._process = subprocess.Popen(
                own_command("rocketcrew", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if announces else output,
                stderr=errors,
                cwd=cwd,
                env=env,
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
                raise ChildError(f"the {self.name} {self.how_it_ended()}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ChildError(f"the {self.name} did not {what} within {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def announcement(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The JSON object that it prints when it is ready. Raises ChildError when it ends or the time is over first, or
        when the object is not this child's by its `pid`; and what `check` raises, which is called while it waits."""
        pipe = self._process.stdout
        assert pipe is not None, "made without announces"
        line = b""

        def whole_line() -> bool:
            nonlocal line
            check()
            if select.select([pipe], [], [], POLL_S)[0]:
                part = os.read(pipe.fileno(), ANNOUNCEMENT_BYTES_MAX)
                line += part
                if not part:
                    self._process.wait()
            return line.endswith(b"\n")

        with pipe:  # it has nothing more to say
            self.wait_for(whole_line, timeout_s, "start")
        found: dict[str, Any] = json.loads(line)
        if found["pid"] != self.pid:
            raise ChildError(f"process {found['pid']} says that it is the {self.name}, which is process {self.pid}")
        return found

    def how_it_ended(self) -> str:
        """As a clause: `ended with exit code 1`, `was killed by SIGKILL`."""
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def wait(self, timeout_s: float) -> None:
        """Wait for its good end. Raises ChildError when it fails or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise ChildError(f"the {self.name} did not end within {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)
        if self._process.returncode:
            raise ChildError(f"the {self.name} {self.how_it_ended()}:\n{self.tail()}")

    def check(self) -> None:
        """Raise ChildError when the child has ended."""
        self.wait_for(lambda: self._process.poll() is None, 0.0, "stay alive")

    def stop(self, timeout_s: float) -> int:
        """TERM, then KILL after `timeout_s`; the exit code."""
        self.stopping = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def tail(self) -> str:
        """The end of its log, of what this process has written."""
        data = self.log.read_bytes()[self._log_start :]
        return data[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


def free_log(log: Path) -> BinaryIO:
    """`log`, or log-2, log-3 ..., opened for appending: the first that nobody has locked. It is locked until the last process
    that has it from here has closed it, or ended."""
    for number in itertools.count(1):
        file = (log if number == 1 else log.with_stem(f"{log.stem}-{number}")).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    raise AssertionError("there is no last number")


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
