"""Bytes of one connection in, commands out, bodies where their owner wants them. No I/O.

The receiver is made for `asyncio.BufferedProtocol`: it says where the next bytes shall go (`buffer`), is told how many
came (`received`), and hands over whole commands. Two steps per frame:

1. head and header are read into a small buffer of this connection;
2. the owner is asked by `place` where the body goes. What of it is already in the small buffer is copied, the rest is
   received straight into that place by the kernel, without a copy of ours.

`place` answers with a writable view of exactly the body's size, with OWN (the receiver makes `bytes`), or with DROP: the
body is read and thrown away. Reading never stops, whatever the owner does: a body nobody has room for is drained into
the small buffer, because answers that would free room may stand behind it on the same connection.

The small buffer is large enough that a few usual pull answers (32 messages of 1 KiB) arrive with one system call; their
copies cost less than further turns of the event loop would (measured at 39 KiB, many requests under way: 44 us of CPU per
answer with 2 KiB, 34 with 64 KiB, 25 with 128 KiB). Larger bodies pay the copy for their first part only.

Memory is bounded: small buffer (grows to one header, at most HEADER_MAX), plus one body of at most the frame limit.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from ..remoting.command import Command
from ..remoting.frame import HEAD_BYTES, FrameHead, decode_header, parse_head

BUFFER_BYTES = 128 * 1024


class Place(Enum):
    """Where a body goes when it does not go into a view."""

    OWN = "own"
    DROP = "drop"


OWN: Final = Place.OWN
DROP: Final = Place.DROP


class Owner(Protocol):
    """Who gets the commands."""

    def place(self, command: Command, body_bytes: int) -> memoryview | Place:
        """Where the body of this command goes; must not raise."""
        ...

    def deliver(self, command: Command) -> None:
        """A command is complete; must not raise."""
        ...


class Receiver:
    """The receiving half of a connection; see the module's text."""

    def __init__(self, owner: Owner, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._owner = owner
        self._buffer_bytes = max(buffer_bytes, HEAD_BYTES)
        self._view = memoryview(bytearray(self._buffer_bytes))
        self._start = 0
        self._end = 0
        self._head: FrameHead | None = None
        self._command: Command | None = None  # its body is on the way
        self._target: memoryview | None = None
        self._target_owned = False
        self._target_pos = 0
        self._skip_bytes = 0

    @property
    def mid_frame(self) -> bool:
        """Whether the bytes so far end inside a frame."""
        return self._command is not None or self._end > self._start

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._target is not None:
            return self._target[self._target_pos :]
        if self._command is not None:
            return self._view[: min(self._skip_bytes, len(self._view))]
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were put at the start of `buffer()`. Raises ProtocolError; good frames before it are delivered."""
        if self._target is not None:
            self._target_pos += count
            if self._target_pos == len(self._target):
                self._complete()
        elif self._command is not None:
            self._skip_bytes -= count
            if self._skip_bytes == 0:
                self._complete()
        else:
            self._end += count
            self._parse()

    def drop_body(self, opaque: int) -> None:
        """The owner gave up this response while its body is on the way: its view must not be written any more."""
        command = self._command
        if command is None or command.opaque != opaque or not command.is_response or self._target is None:
            return
        self._skip_bytes = len(self._target) - self._target_pos
        self._target = None
        self._mark_dropped(command)

    def _parse(self) -> None:
        while self._command is None:
            head = self._head
            if head is None:
                if self._end - self._start < HEAD_BYTES:
                    break
                head = self._head = parse_head(self._view, self._start)
            header_end = self._start + HEAD_BYTES + head.header_len
            if self._end < header_end:
                break
            command = decode_header(head.serialization, self._view[self._start + HEAD_BYTES : header_end])
            self._head = None
            self._start = header_end
            if head.body_len == 0:
                self._owner.deliver(command)
            else:
                self._begin_body(command, head.body_len)
        self._make_room()

    def _begin_body(self, command: Command, body_bytes: int) -> None:
        """Ask for the place and move there what has arrived already."""
        place = self._owner.place(command, body_bytes)
        here = min(self._end - self._start, body_bytes)
        source = self._view[self._start : self._start + here]
        self._start += here
        if place is DROP:
            self._mark_dropped(command)
            self._skip_bytes = body_bytes - here
            if self._skip_bytes:
                self._command = command
                return
        elif place is OWN and here == body_bytes:
            command.body = bytes(source)
        else:
            self._target_owned = not isinstance(place, memoryview)
            target = place if isinstance(place, memoryview) else memoryview(bytearray(body_bytes))
            assert len(target) == body_bytes
            target[:here] = source
            if here < body_bytes:
                self._command, self._target, self._target_pos = command, target, here
                return
            command.body = target
        self._owner.deliver(command)

    def _complete(self) -> None:
        command, target = self._command, self._target
        assert command is not None
        self._command = self._target = None
        if target is not None:
            command.body = bytes(target) if self._target_owned else target
        self._owner.deliver(command)

    def _make_room(self) -> None:
        """Bring the unread rest to the front, and let the buffer hold the header that is being waited for."""
        rest = self._end - self._start
        if rest == 0:
            self._start = self._end = 0
            if len(self._view) > self._buffer_bytes:
                self._view = memoryview(bytearray(self._buffer_bytes))
            return
        need = HEAD_BYTES + (self._head.header_len if self._head is not None else 0)
        if need > len(self._view):
            grown = memoryview(bytearray(need))
            grown[:rest] = self._view[self._start : self._end]
            self._view = grown
        elif self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    @staticmethod
    def _mark_dropped(command: Command) -> None:
        command.body = b""
        command.dropped = True
