"""What Python code prints in a worker, as events of the log with the message's keys (`workers.capture_output`).

One event a line, so that the lines of several workers do not run into each other. What C code and started programs
write goes where the supervisor's own output goes, as without this.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

from .context import keys_in_hand

LINE_MAX: Final = 10_000
"""Longer lines come in pieces."""


class Captured(io.TextIOBase):
    """A text stream whose lines become log events."""

    def __init__(self, name: str, fd: int, log: Any) -> None:
        self._name = name
        self._fd = fd
        self._log = log
        self._part = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor below, for what is handed to started programs."""
        return self._fd

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        *lines, self._part = (self._part + text).split("\n")
        while len(self._part) > LINE_MAX:
            lines.append(self._part[:LINE_MAX])
            self._part = self._part[LINE_MAX:]
        for line in lines:
            self._event(line)
        return len(text)

    def flush(self) -> None:
        """A line that was not ended is an event too."""
        if self._part:
            line, self._part = self._part, ""
            self._event(line)

    def _event(self, line: str) -> None:
        if line.strip():
            self._log.info("handler_output", stream=self._name, text=line, **keys_in_hand())


def capture_output(log: Any) -> None:
    """From now on, what is printed in this process goes to the log. The log itself keeps the stream it was set up with."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, Captured(name, fd, log))
    os.register_at_fork(after_in_child=_give_back)


def _give_back() -> None:
    """A child that the handler forks prints as usual: it is no worker."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
