"""Frames on their way out of one connection.

Frames written in one turn of the loop are handed to the transport together: one system call for many. What the peer does not
take is bounded twice: from `high_bytes` on, those who can wait are made to (`full`, `wait_for_room`); beyond `bytes_max`
the peer is given up by the connection.

Who waits goes on in its turn, as the order of messages may hang on it: with what room there is those go on that came first,
and who comes before they do waits after them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ..remoting.command import Command
from ..remoting.frame import encode, encode_head

_INLINE_BODY_BYTES = 16 * 1024
"""Bodies up to this size are joined with their head at once; larger ones go out as a piece of their own."""

_HEAD_BYTES = 256
"""About what the head of a frame takes."""

_JOINED_PIECE_BYTES = 2 * _INLINE_BODY_BYTES
"""Pieces up to this size are copied together for one write; copying them costs less than a system call for each."""


class Outbox:
    """See the module's text. Created without a transport; `open` gives it one, `close` takes it away."""

    def __init__(self, loop: asyncio.AbstractEventLoop, high_bytes: int) -> None:
        self.writes = 0
        self.written_bytes = 0
        self.last_write_s = loop.time()
        self._loop = loop
        self._high_bytes = high_bytes
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._bytes = 0
        self._planned = False
        self._paused = False
        self._line: OrderedDict[asyncio.Future[bool], int] = OrderedDict()
        """Those that wait for room, each with its bytes."""
        self._coming = self._coming_bytes = 0
        """Of those that may go on, and do in the loop's next turn."""

    @property
    def full(self) -> bool:
        """Whether those who can wait should."""
        return bool(self._line or self._coming) or not self._has_room

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        return self._bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def open(self, transport: asyncio.Transport) -> None:
        """The connection is made."""
        transport.set_write_buffer_limits(high=self._high_bytes)
        self._transport = transport

    def close(self) -> None:
        """The connection is gone; who waits for room finds it closed."""
        self._transport = None
        self._pieces.clear()
        self._bytes = 0
        self._paused = False
        self._let_in()

    def pause(self) -> None:
        """The transport holds `high_bytes`."""
        self._paused = True

    def resume(self) -> None:
        """The transport has room again."""
        self._paused = False
        self.flush()

    def put(self, command: Command) -> None:
        """Add a frame; it leaves at the end of this turn of the loop. Raises UsageError when it is too large for one."""
        body = command.body
        if len(body) <= _INLINE_BODY_BYTES:
            frame = encode(command)
            self._pieces.append(frame)
            self._bytes += len(frame)
        else:
            head = encode_head(command, len(body))
            self._pieces += (head, body)
            self._bytes += len(head) + len(body)
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self.flush)

    def flush(self, *, force: bool = False) -> None:
        """Hand over what is there; while the transport is paused only if `force`."""
        self._planned = False
        transport = self._transport
        if transport is not None and self._pieces and (force or not self._paused):
            pieces, self._pieces = self._pieces, []
            self.writes += 1
            self.written_bytes += self._bytes
            self._bytes = 0
            self.last_write_s = self._loop.time()
            _write_all(transport, pieces)
        self._let_in()

    async def wait_for_room(self, deadline_s: float, body_bytes: int) -> bool:
        """Where it is `full`: wait for one's turn to put a frame with such a body, at once, or for the end of the connection;
        False when the deadline (loop time) came first."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        size = self._line[waiter] = _HEAD_BYTES + body_bytes
        timer = self._loop.call_at(deadline_s, _tell, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._line.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self._coming -= 1
                self._coming_bytes -= size
                if self._line and not self._coming and not self._loop.is_closed():
                    self._loop.call_soon(self._let_in)  # after it has put its frame, if it does

    @property
    def _has_room(self) -> bool:
        return not self._paused and self._bytes + self._coming_bytes < self._high_bytes

    def _let_in(self) -> None:
        """Those that wait, as far as there is room; all of them where the connection is gone."""
        while self._line and (self._has_room or self._transport is None):
            waiter, size = self._line.popitem(last=False)
            if not waiter.done():
                self._coming += 1
                self._coming_bytes += size
                waiter.set_result(True)


def _tell(waiter: asyncio.Future[bool], answer: bool) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _write_all(transport: asyncio.Transport, pieces: list[bytes | bytearray | memoryview]) -> None:
    """Small pieces joined, large ones as they are.

    Not `transport.writelines`: up to Python 3.12.8 and 3.13.1 it never tells the protocol to pause (gh-127655).
    """
    if len(pieces) == 1:
        transport.write(pieces[0])
        return
    small: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if len(piece) <= _JOINED_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            transport.write(b"".join(small))
            small = []
        transport.write(piece)
    if small:
        transport.write(b"".join(small))
