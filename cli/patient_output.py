"""What a running supervisor writes to its terminal or log, without ever waiting for it.

A terminal takes no output after a Ctrl-S, behind a stalled ssh, or when nobody reads it, and a pipe none when its reader
hangs: a write then blocks, and with it the loop that sends the heartbeats. So while the loop runs a thread writes, from a
bounded queue whose oldest part is dropped. Not by O_NONBLOCK: that would hold for everybody who has the terminal open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from ..conf.held_signals import held

CLEAR: Final = "\r\x1b[2K"
"""Takes away the line that the cursor is in."""
KEPT_CHARACTERS_MAX: Final = 256 * 1024
FLUSH_S: Final = 1.0
"""At the end the output may take nothing for so long before what is left is dropped, ..."""
FILE_FLUSH_S: Final = 10.0
"""... a file for so long: there is no reader that hangs, only a disk that is busy."""
FLUSHES_MAX: Final = 10
"""Who takes something now and then gets so many times as long, in all."""
LOOKS: Final = 10
"""In so many parts is that counted: a machine that stood still for a second has then used up only one."""
PIECE_BYTES: Final = 4096
"""Written at once, in whole lines: of more, what is taken would not be known before all of it is."""


def not_shown(lines: int) -> str:
    """For people."""
    return f"{lines} lines were not shown\n"


class Unwritten:
    """What is to be written, in order; when it gets too much the oldest goes, and its lines are counted. Pure."""

    def __init__(self, note: Callable[[int], str] = not_shown, characters_max: int = KEPT_CHARACTERS_MAX) -> None:
        """`note` says in a line of its own how many lines are missing."""
        self._note = note
        self._max = characters_max
        self._texts: deque[str] = deque()
        self._characters = 0
        self._lines_dropped = 0
        self._cleared = False  # what was dropped would have taken a live line away

    def put(self, text: str) -> None:
        """More to be written: whole lines, or a live line, which begins with CLEAR and has no end of line."""
        if text.startswith(CLEAR) and self._texts and _is_live(self._texts[-1]):
            self._characters -= len(self._texts.pop())
        self._texts.append(text)
        self._characters += len(text)
        while self._characters > self._max and len(self._texts) > 1:
            oldest = self._texts.popleft()
            self._characters -= len(oldest)
            self._lines_dropped += oldest.count("\n")
            self._cleared |= oldest.startswith(CLEAR)

    def take(self) -> str:
        """All of it, which is then no longer here; first how many lines are missing, where some are."""
        first = (CLEAR if self._cleared else "") + (self._note(self._lines_dropped) if self._lines_dropped else "")
        text = first + "".join(self._texts)
        self._texts.clear()
        self._characters = self._lines_dropped = 0
        self._cleared = False
        return text

    def __bool__(self) -> bool:
        return bool(self._texts)


def _is_live(text: str) -> bool:
    return text.startswith(CLEAR) and "\n" not in text


class Patience:
    """How long an output is waited for, by looks at what it has taken so far: `seconds` while it takes nothing. Pure."""

    def __init__(self, seconds: float, written: int) -> None:
        self._seconds = seconds
        self.look_s = seconds / LOOKS
        """Between two looks, and the most that one counts."""
        self._written = written
        self._all_s = self._in_vain_s = 0.0

    def is_over(self, written: int, waited_s: float) -> bool:
        """A look after such a wait: whether it is the last one."""
        waited_s = min(waited_s, self.look_s)
        self._in_vain_s = self._in_vain_s + waited_s if written == self._written else 0.0
        self._all_s += waited_s
        self._written = written
        return self._in_vain_s >= self._seconds or self._all_s >= self._seconds * FLUSHES_MAX


class PatientOutput:
    """Text to a descriptor. Before `with` writes are direct, within it none waits, after it each waits to be written, but not
    for an output that takes nothing.

    What cannot be written any more is dropped, as by the log: nobody's work ends because his terminal has gone.
    """

    def __init__(self, number: int, note: Callable[[int], str] = not_shown) -> None:
        self._number = number
        self._unwritten = Unwritten(note)
        self._changed = threading.Condition()
        self._queues = self._waits = False
        self._writes = False  # the thread is in a write
        self.written = 0
        """Bytes so far."""
        self._patience_s = FILE_FLUSH_S if stat.S_ISREG(os.fstat(number).st_mode) else FLUSH_S
        self.stalled = False
        """Since the end of the block the output took nothing for so long: from then on all is dropped."""

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, text: str) -> int:
        if not self._queues:
            self._write_now(text)
        elif not self.stalled:
            with self._changed:
                self._unwritten.put(text)
                self._changed.notify_all()
            if self._waits:
                self._wait()
        return len(text)

    def flush(self) -> None:
        """Nothing waits here: the end of the block does."""

    def __enter__(self) -> Self:
        self._queues = True
        # A daemon: one that hangs in a write must not keep the process from ending.
        threading.Thread(target=self._run, name="output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waits = True
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            patience = Patience(self._patience_s, self.written)
            while (self._unwritten or self._writes) and not self.stalled:
                begun = time.monotonic()
                self._changed.wait(patience.look_s)
                self.stalled = patience.is_over(self.written, time.monotonic() - begun)
            self.stalled &= bool(self._unwritten) or self._writes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writes = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._unwritten)
                text = self._unwritten.take()
                self._writes = True
            self._write_now(text)

    def _write_now(self, text: str) -> None:
        data, at = text.encode("utf-8", "backslashreplace"), 0
        # A terminal that wants nothing of a job in the background (`stty tostop`) asks who has a handler for ever, and that
        # takes it for an operator's wish.
        with contextlib.suppress(OSError), held({signal.SIGTTOU}):
            while at < len(data):
                try:
                    written = os.write(self._number, data[at : _end_of_piece(data, at)])
                    self.written += written
                    at += written
                except BlockingIOError:  # somebody else's O_NONBLOCK
                    ready = select.poll()
                    ready.register(self._number, select.POLLOUT)
                    ready.poll()


def _end_of_piece(data: bytes, at: int) -> int:
    """Where what begins there ends: with the last line that fits, or the one that does not. Workers write lines of their own
    to the same output, which must not get into the middle of one of ours."""
    if len(data) - at <= PIECE_BYTES:
        return len(data)
    return data.rfind(b"\n", at, at + PIECE_BYTES) + 1 or data.find(b"\n", at) + 1 or len(data)


def drop_rest(numbers: tuple[int, ...]) -> None:
    """What is written to these descriptors from now on goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)
