"""The terminal that the supervisor was started at, if it was.

HUP asks a service for a reload, and it is also what a terminal sends to what runs in its foreground when its window or its
connection is closed. Who started a program there and closes that does not expect it to go on unseen.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable


class Terminal:
    """Made before HUP is listened to, and early: one that is gone already is not found. Nothing is closed where there is no
    terminal, or where HUP was ignored (`nohup`)."""

    def __init__(self) -> None:
        self._has_ended = False
        self._file = None
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            with contextlib.suppress(OSError):
                # Not the standard streams: they may be anything, and be exchanged. No terminal is waited for.
                self._file = open("/dev/tty", "rb", buffering=0, opener=_opener)  # noqa: SIM115  for the process's life

    @property
    def closed(self) -> bool:
        """It has been hung up: nobody can read it or type any more."""
        return self._file is not None and not os.isatty(self._file.fileno())

    def hung_up(self, stop: Callable[[], None]) -> bool:
        """HUP has come: whether from a terminal that was closed. The first time that it was, `stop` is called.

        Not asked without HUP: the shell spares jobs that it was told to (`disown`).
        """
        if not self.closed:
            return False
        if not self._has_ended:
            self._has_ended = True
            stop()
        return True


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
