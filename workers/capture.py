"""What Python code prints in a worker, as events of the log with the message's keys (`workers.capture_output`).

One event a line, so that the lines of several workers do not run into each other, nor those of a worker's threads: each
has its own unfinished line. What C code and started programs write goes where the supervisor's own output goes, as without
this.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from .context import keys_in_hand

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINE_MAX: Final = 10_000
"""Bytes. Longer lines come in pieces."""


class _Thread(threading.local):
    """Tells a thread from one before it that had the same number."""

    def __init__(self) -> None:
        self.mark = object()


class _Lines(io.RawIOBase):
    """The bytes below a text stream, whose lines become log events."""

    def __init__(self, name: str, fd: int, log: Any) -> None:
        self.name = f"<{name}>"
        self.mode = "wb"
        self._stream = name
        self._fd = fd
        self._log = log
        self._thread = _Thread()
        self._parts: dict[int, tuple[object, bytes]] = {}
        """Unfinished lines with the mark of their thread, by its number."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor below, for what is handed to started programs."""
        return self._fd

    def write(self, data: ReadableBuffer, /) -> int:
        thread, taken = threading.get_ident(), memoryview(data).tobytes()
        *lines, part = (self._unfinished() + taken).split(b"\n")
        pieces = list(_pieces(part))
        if pieces:
            self._parts[thread] = self._thread.mark, pieces.pop()
        for line in lines:
            for piece in _pieces(line):
                self._event(piece)
        for piece in pieces:
            self._event(piece)
        return len(taken)

    def flush(self) -> None:
        """A line that was not ended is an event too."""
        self._event(self._unfinished())

    def _unfinished(self) -> bytes:
        """This thread's line so far. That of a thread which has ended, and had the same number, is an event of its own."""
        mark, part = self._parts.pop(threading.get_ident(), (self._thread.mark, b""))
        if mark is self._thread.mark:
            return part
        self._event(part)
        return b""

    def close(self) -> None:
        """It stays open: another text stream that somebody has made of it closes it with itself."""
        self.flush()

    def _event(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace")
        if text.strip():
            self._log.info("handler_output", stream=self._stream, text=text, **keys_in_hand())


def _pieces(line: bytes) -> Iterator[bytes]:
    """Of LINE_MAX bytes at most, and of whole characters."""
    start = 0
    while len(line) - start > LINE_MAX:
        end = start + LINE_MAX
        while end > start + LINE_MAX - 3 and line[end] & 0xC0 == 0x80:  # in the middle of a character of UTF-8
            end -= 1
        yield line[start:end]
        start = end
    if start < len(line):
        yield line[start:]


class Captured(io.TextIOWrapper):
    """A text stream whose lines become log events."""

    def __init__(self, name: str, fd: int, log: Any) -> None:
        lines: Any = _Lines(name, fd, log)
        super().__init__(lines, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        vars(self)["mode"] = "w"  # as `open` gives it


def capture_output(log: Any) -> None:
    """From now on, what is printed in this process goes to the log. The log itself keeps the stream it was set up with."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, Captured(name, fd, log))
    os.register_at_fork(after_in_child=_give_back)


def _give_back() -> None:
    """A child that the handler forks prints as usual: it is no worker."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
