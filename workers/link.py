"""The one way between the supervisor and one worker: a socket pair of its own, in two forms.

- `slab` (default): an AF_UNIX SEQPACKET pair. The kernel keeps packets apart; messages stay in the shared slab and only
  descriptors travel.
- `stream`: an AF_UNIX STREAM pair for platforms without SEQPACKET or memfd (and by setting). Every packet is framed by
  a u32 length, and the payload of a chunk follows its descriptor inline.

Nothing is shared by two workers, neither a queue nor a lock: a worker may be killed at any instant and stops nobody. The
supervisor's end never blocks: what the kernel does not take waits in a bounded backlog. The worker's end blocks on send,
for a worker that cannot report has nothing better to do.

A peer that died while bytes lay unread at its end makes the first receive fail with ECONNRESET although packets that it
sent before may still be there, so the supervisor's end reads once more before it believes the end.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
from _socket import socket as PlainSocket
from _thread import allocate_lock  # as it was before the handler's module: see own_thread.py
from collections import deque
from select import POLLERR, POLLHUP, POLLIN, poll  # so is this
from struct import Struct
from typing import Final

from ..remoting.errors import ProtocolError, RocketcrewError, UsageError
from .packets import PACKET_MAX_BYTES, Buffer
from .slab_memory import slab_supported

RECEIVE_BYTES: Final = 65_536
"""One receive buffer: above PACKET_MAX_BYTES."""
STREAM_FRAME_MAX_BYTES: Final = 64 * 1024 * 1024
"""Longest frame on a stream pair: a pull body is at most 16 MiB, the rest is slack."""
BACKLOG_PACKETS_MAX: Final = 10_000
"""Packets that may wait in a supervisor's end. Two chunks in flight and one QUEUE per queue never come near."""

_LENGTH = Struct("<I")


class Transport(enum.StrEnum):
    """How messages reach a worker."""

    SLAB = "slab"
    STREAM = "stream"


_SLAB: Final = Transport.SLAB
"""Asked for with each packet: a member read off its class takes twice as long as a call (Python 3.11)."""


class LinkClosedError(RocketcrewError):
    """The other end is gone."""


class DescriptorsClosedError(RocketcrewError):
    """The worker's descriptors were closed under it, by code that closes all, as daemons do, or one of its own twice; or none
    is left."""


def check_own(fd: int, own: tuple[int, int], what: str) -> os.stat_result | None:
    """What a descriptor of ours is at now; None where its file system does not answer. `own` is the device and the number of
    its file. Raises DescriptorsClosedError when the descriptor is closed, or somebody else's by now: the handler's code may
    have closed one of its own twice."""
    try:
        found = os.fstat(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise DescriptorsClosedError(f"{what}: {error}") from error
        return None
    if (found.st_dev, found.st_ino) != own:
        raise DescriptorsClosedError(f"{what}: its descriptor is another file now")
    return found


def identity(fd: int) -> tuple[int, int]:
    """Device and number of the file that a descriptor is at."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def choose_transport(setting: str) -> Transport:
    """Transport for `workers.transport` = auto, slab or stream. Raises UsageError for a slab this platform lacks."""
    if setting == "auto":
        return Transport.SLAB if slab_supported() else Transport.STREAM
    if setting == Transport.SLAB and not slab_supported():
        raise UsageError('workers.transport = "slab" needs memfd and SEQPACKET sockets (Linux); use "auto" or "stream"')
    try:
        return Transport(setting)
    except ValueError:
        raise UsageError(f'workers.transport = "{setting}": use one of auto, slab, stream') from None


def link_pair(transport: Transport) -> tuple[SupervisorLink, socket.socket]:
    """A new pair: the supervisor's end, and the worker's socket to be put into its WorkerBoot."""
    kind = socket.SOCK_SEQPACKET if transport is Transport.SLAB else socket.SOCK_STREAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return SupervisorLink(ours, transport), theirs


class StreamFramer:
    """Cuts a byte stream into packets (sans-I/O). A frame above `frame_max_bytes` raises ProtocolError."""

    __slots__ = ("_data", "_frame_max_bytes")

    def __init__(self, frame_max_bytes: int = STREAM_FRAME_MAX_BYTES) -> None:
        self._data = bytearray()
        self._frame_max_bytes = frame_max_bytes

    def feed(self, data: Buffer) -> None:
        """Add received bytes."""
        self._data += data

    def next(self) -> bytes | None:
        """The next whole packet, None when bytes are missing."""
        data = self._data
        if len(data) < _LENGTH.size:
            return None
        length: int = _LENGTH.unpack_from(data)[0]
        if not 1 <= length <= self._frame_max_bytes:
            raise ProtocolError(f"frame of {length} bytes, legal are 1 to {self._frame_max_bytes}", "worker link")
        end = _LENGTH.size + length
        if len(data) < end:
            return None
        packet = bytes(data[_LENGTH.size : end])
        del data[:end]
        return packet


class SupervisorLink:
    """The supervisor's end: never blocks; register `fileno()` for reading, and for writing while `send` returns False."""

    def __init__(self, sock: socket.socket, transport: Transport) -> None:
        sock.setblocking(False)
        self.transport = transport
        self.closed = False
        """True once the worker's end is gone and everything that it had sent was received."""
        self._socket = sock
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._framer = StreamFramer()
        self._backlog: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Descriptor for the event loop; -1 after close()."""
        return self._socket.fileno()

    @property
    def backlog(self) -> int:
        """Pieces that wait for the socket to become writable."""
        return len(self._backlog)

    def send(self, packet: Buffer, payload: Buffer | None = None) -> bool:
        """Send one packet, on a stream followed by `payload`. True = the kernel has it all.

        False = a part waits: call `flush()` when the socket becomes writable; `payload` must stay unchanged until
        then. Raises LinkClosedError when the worker is gone, OverflowError above BACKLOG_PACKETS_MAX.
        """
        if self.transport is _SLAB:
            if not self._backlog:
                try:
                    self._socket.send(packet)
                    return True
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise LinkClosedError(f"worker link: {error}") from error
            self._queue(memoryview(packet))
            return False
        length = len(packet) + (0 if payload is None else len(payload))
        self._queue(memoryview(_LENGTH.pack(length) + packet))
        if payload:  # an empty piece would never be gone
            self._queue(memoryview(payload))
        return self.flush()

    def _queue(self, piece: memoryview) -> None:
        if len(self._backlog) >= BACKLOG_PACKETS_MAX:
            raise OverflowError(f"worker link: more than {BACKLOG_PACKETS_MAX} packets wait to be sent")
        self._backlog.append(piece)

    def flush(self) -> bool:
        """Send what waits. True = nothing is left. Raises LinkClosedError."""
        backlog = self._backlog
        try:
            while backlog:
                if self.transport is _SLAB:
                    self._socket.send(backlog[0])
                    backlog.popleft()
                else:
                    self._flush_stream(backlog)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkClosedError(f"worker link: {error}") from error
        return True

    def _flush_stream(self, backlog: deque[memoryview]) -> None:
        sent = self._socket.sendmsg([backlog[index] for index in range(min(len(backlog), 64))])
        while sent:
            piece = backlog[0]
            if sent < len(piece):
                backlog[0] = piece[sent:]
                return
            sent -= len(piece)
            backlog.popleft()

    def receive(self, packets_max: int = 64) -> list[bytes]:
        """Packets that lie there now, at most `packets_max` (a stream may give more). Sets `closed` at the end.

        With packets_max=1 a level-triggered loop is served by one system call per packet.
        """
        packets: list[bytes] = []
        resets = 0
        while len(packets) < packets_max and not self.closed:
            try:
                count = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                break
            except ConnectionResetError:
                resets += 1
                self.closed = resets > 1
                continue
            except OSError:
                self.closed = True
                break
            if not count:
                self.closed = True
            elif self.transport is _SLAB:
                packets.append(bytes(self._buffer[:count]))
            else:
                self._framer.feed(self._buffer[:count])
                while (packet := self._framer.next()) is not None:
                    packets.append(packet)
        return packets

    def close(self) -> None:
        """Close this end; the worker sees EOF and exits."""
        self.closed = True
        self._backlog.clear()
        self._socket.close()


class WorkerLink:
    """The worker's end: receive without blocking, wait with a time limit, send blocking."""

    def __init__(self, sock: socket.socket, transport: Transport) -> None:
        self.transport = transport
        self._socket = PlainSocket(fileno=sock.detach())  # gevent's waits in ways of its own: see own_thread.py
        self._socket.setblocking(True)
        self.stop_by_ns = 0
        """When the supervisor kills this process, as STOP has said; 0 = it has not."""
        self._own = identity(self._socket.fileno())
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._framer = StreamFramer()
        self._sending = allocate_lock()
        """On a stream: a frame is sent whole. The handler may report progress while the reporter's thread sends."""
        self._poll = poll()
        self._poll.register(self._socket.fileno(), POLLIN)

    def fileno(self) -> int:
        """Descriptor that is readable when a packet waits."""
        return self._socket.fileno()

    def receive(self) -> Buffer | None:
        """The next packet, None when none lies there; valid until the next call. Raises LinkClosedError at EOF."""
        if self.transport is _SLAB:
            count = self._receive_some()
            return self._view[:count] if count else None
        while (packet := self._framer.next()) is None:
            count = self._receive_some()
            if not count:
                return None
            self._framer.feed(self._view[:count])
        return packet

    def check(self) -> None:
        """Raises DescriptorsClosedError when the descriptor is closed, or somebody else's by now."""
        check_own(self._socket.fileno(), self._own, "supervisor link")

    def _receive_some(self) -> int:
        try:
            count = self._socket.recv_into(self._view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.check()
            raise LinkClosedError(f"supervisor link: {error}") from error
        if not count:
            raise LinkClosedError("supervisor link: closed by the supervisor")
        return count

    def wait(self, timeout_ms: int | None) -> bool:
        """Wait until something can be received (or the end was reached); None = without limit. False = timed out."""
        return bool(self._poll.poll(timeout_ms))

    def gone(self) -> bool:
        """True when the supervisor's end is closed, even with packets still unread. By any thread: one poll object serves no
        two at a time, and the loop may be in `wait`."""
        ended = poll()
        ended.register(self._socket.fileno(), 0)  # its end is reported all the same
        return any(event & (POLLHUP | POLLERR) for _, event in ended.poll(0))

    def send(self, packet: bytes) -> None:
        """Send one packet; blocks while the supervisor is slow. Raises LinkClosedError, ValueError when too long."""
        if len(packet) > PACKET_MAX_BYTES + 1_000:
            raise ValueError(f"packet of {len(packet)} bytes, at most {PACKET_MAX_BYTES} are allowed")
        try:
            if self.transport is _SLAB:
                self._socket.send(packet)
            else:
                with self._sending:
                    self._socket.sendall(_LENGTH.pack(len(packet)) + packet)
        except OSError as error:
            self.check()
            raise LinkClosedError(f"supervisor link: {error}") from error

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
