"""TLS of one connection, between the socket's transport and the edge's connection, which serves its frames.

asyncio's own TLS keeps a buffer of 256 KiB for each connection, so 2,000 idle ones cost 500 MB. Here they share two: one that
sockets are read into, and the edge's, which plain text is read into. OpenSSL's own buffers of a connection never shrink, so
they get little at once: one read of CIPHERED_BYTES, and what OpenSSL makes is written after each piece of PIECE_BYTES.

- The handshake has a place at the edge from the first byte on, and HANDSHAKE_S; who needs longer is disconnected.
- The connection sees the interface of a transport. While it does not read, nothing is taken from the socket either, and what
  was decrypted by OpenSSL already waits there.
- The end of the stream without TLS's own goodbye ends the connection as that one does: frames say their length themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

HANDSHAKE_S = 10  # who needs longer is disconnected
CIPHERED_BYTES = 16_384  # of one read of a socket
PIECE_BYTES = 16_384  # one record of TLS has at most so much text


class Places(Protocol):
    """What the edge knows of handshakes, and the buffer that the sockets of all connections are read into."""

    ciphered_buffer: memoryview

    def begin_handshake(self, connection: TlsConnection, end: Callable[[], object]) -> bool: ...

    def end_handshake(self, connection: TlsConnection) -> None: ...


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of a connection."""

    def __init__(self, edge: Places, connection: asyncio.BufferedProtocol, context: ssl.SSLContext) -> None:
        asyncio.Transport.__init__(self)
        self._edge = edge
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False  # the handshake is done, and the connection knows of it
        self._is_paused = False  # the connection does not read now
        self._is_planned = False  # `_read` comes in the next turn of the loop

    # What the socket's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        if not self._edge.begin_handshake(self, self.abort):
            self._socket.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._edge.ciphered_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._edge.ciphered_buffer[:nbytes])
        if not self._is_open:
            self._shake()
        if self._is_open:
            self._read()

    def pause_writing(self) -> None:
        if self._is_open:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._socket = None
        if self._is_open:
            self._is_open = False
            self._connection.connection_lost(exc)

    # The handshake

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError:  # the peer's affair: no TLS, or none of this kind; it is told why, if it listens
            self._send()
            self._end()
            return
        self._end_handshake()
        self._send()
        self._is_open = True
        self._connection.connection_made(self)

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._edge.end_handshake(self)

    # Text in, text out

    def _read(self) -> None:
        """Give the connection what can be decrypted, for as long as it reads."""
        self._is_planned = False
        while self._is_open and not self._is_paused and not self.is_closing():
            buffer = memoryview(self._connection.get_buffer(-1))
            count, end = self._decrypt(buffer)
            if count:
                self._connection.buffer_updated(count)
            if end is not None:
                # Frames that came before a goodbye are served first; OpenSSL reports it again when the connection reads on.
                if self.is_reading() or end != self.close:
                    end()
                break
            if count < len(buffer):
                break
        self._send()

    def _decrypt(self, buffer: memoryview[int]) -> tuple[int, Callable[[], None] | None]:
        """Fill the buffer as far as there is text; returns how much there was, and what ends the connection after it."""
        count = 0
        try:
            while count < len(buffer):
                more = cast("int", self._tls.read(len(buffer) - count, buffer[count:]))  # with a buffer, their number
                if not more:
                    return count, self.close  # the peer's goodbye
                count += more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # forged, or cut
            return count, self.abort
        return count, None

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._is_open or self.is_closing():
            return
        text, made = memoryview(data), list[bytes]()
        try:
            for at in range(0, len(text), PIECE_BYTES):
                self._tls.write(text[at : at + PIECE_BYTES])
                made.append(self._outgoing.read())
        except ssl.SSLError:
            self.abort()
        else:
            if self._socket is not None:
                self._socket.write(b"".join(made))

    def _send(self) -> None:
        """What OpenSSL has to say by itself."""
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    # What the connection asks of its transport

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        if not self._is_paused and self._socket is not None:
            self._is_paused = True
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and self._socket is not None:
            self._is_paused = False
            self._socket.resume_reading()
            if not self._is_planned:  # what was taken from the socket before
                self._is_planned = True
                asyncio.get_running_loop().call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size() if self._socket is not None else 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default) if self._socket is not None else default

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def close(self) -> None:
        """After what was written; with TLS's goodbye, whose answer nobody waits for."""
        if self._is_open and not self.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the peer's goodbye is not there yet
                self._tls.unwrap()
            self._send()
        self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()
