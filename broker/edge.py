"""The asyncio edge: bytes of both ports in, effects out.

One loop does everything. Of each read, up to ROUND_FRAMES_MAX frames are served one after the other, and what they cause is
written after the last: one write per connection and round, and nothing is written before the storage took it. Then the other
connections have their turn.

- All connections read into one buffer: what is read is taken out of it before the next one reads.
- After a turn of the loop in which something was written a flush begins, unless one is under way: so it covers what all
  connections sent that were ready together. Who waits for the disk wakes the loop when it is done; what was written meanwhile
  is begun at once, before the answers of what is done.
- A peer that does not read its answers is not served until it does: no further frame of it, not even one that was received
  already, and no held pull, so what is queued for it stays bounded. Pulls that it left parked are given one turn of the loop
  after another, those of all connections in turn. One that reads nothing for LAG_MS is disconnected, or for UNREAD_IDLE_MS
  when all together leave too much unread; then who has more than its even share unread is not served until it has read.
- A frame that cannot be right ends its connection, as there is no way to find the next one's start.
- A handler that fails by a bug of ours answers code 1 and is logged; the broker lives.
- With TLS (tls.py) a connection has its place from its first byte on: the one that has been at its handshake for longest is
  disconnected as soon as there is no room, or more than HANDSHAKES_MAX of them.
- A connection with neither read nor write for `IDLE_MS` is closed, as the genuine server does (IdleStateHandler), also when
  its peer leaves answers unread.
- Time comes from one timer, set to the earliest deadline of both cores.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from ..client.logs import get_logger
from ..remoting.codes import ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, RocketcrewError
from ..remoting.frame import FrameReader, encode_head
from ..remoting.names import host_and_port
from .core import BrokerCore
from .disk import OPEN_FILES_MAX
from .effects import CloseChannel, Effect, Reply
from .name_server import NameServerCore
from .peer_bytes import PeerBytes, Share
from .tls import CIPHERED_BYTES, TlsConnection

CONNECTIONS_MAX = 10_000
FILES_RESERVED = OPEN_FILES_MAX + 64  # of this process: the store's, the log's, both ports, what Python needs
CONNECTIONS_MIN = 16
READ_BYTES = 262_144
WRITE_HIGH_BYTES = 1 << 20
HANDSHAKES_MAX = 4_096  # that have not ended; more honest clients than this do not connect at once
IDLE_MS = 120_000
IDLE_SCAN_MS = 10_000
ROUND_FRAMES_MAX = 32  # about 2 ms of sends
JOIN_MAX_BYTES = 64 << 10  # pieces up to here are copied together for one write
LAG_MS = 30_000  # a peer that reads nothing for so long has hung
UNREAD_IDLE_MS = 10_000  # kernels hold megabytes: from a slow reader's, a part is free every few seconds only
UNREAD_LOOK_MS = 1_000  # a look at all connections costs some 10 ms with thousands of them
SAY_AGAIN_MS = 60_000  # one line for each kind of refusal in that time, with their number
TICK_MIN_MS = 1  # a deadline in the past is served on the next turn of the loop, not in this one for ever
TICK_MAX_MS = 1_000

_log = get_logger("rocketcrew.broker")

Clock = Callable[[], int]


def connections_max(files_max: int) -> int:
    """How many connections fit beside the store's files, when the process may have so many files (-1: no bound) open."""
    return CONNECTIONS_MAX if files_max < 0 else min(CONNECTIONS_MAX, max(files_max - FILES_RESERVED, CONNECTIONS_MIN))


class WallClock:
    """Milliseconds since 1970 that never go back: deadlines must pass even when somebody sets the clock back.

    Runs with the monotonic clock from the wall time of its making, and follows the wall clock when that jumps ahead, as it
    does when the machine slept. So a clock that was wrong for a moment leaves it ahead: `ahead_ms` says how far.
    """

    JUMP_NS = 1_000_000_000

    def __init__(self) -> None:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self.ahead_ms = 0
        """How far this was ahead of the machine's clock, as that was set back, at the last call."""

    def __call__(self) -> int:
        ahead_ns = time.time_ns() - time.monotonic_ns()
        if ahead_ns - self._ahead_ns > self.JUMP_NS:
            self._ahead_ns = ahead_ns
        self.ahead_ms = max(self._ahead_ns - ahead_ns, 0) // 1_000_000
        return (time.monotonic_ns() + self._ahead_ns) // 1_000_000


class Core(Protocol):
    """What both cores have."""

    def handle(self, now_ms: int, channel: int, address: str, command: Command) -> list[Effect]: ...

    def channel_closed(self, now_ms: int, channel: int) -> list[Effect]: ...

    def channel_full(self, channel: int, *, is_full: bool) -> list[Effect]: ...


class Edge:
    """All connections of one process, and the timer."""

    def __init__(
        self, broker: BrokerCore, name_server: NameServerCore, clock_ms: Clock, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self.connections_max = connections_max
        self.broker = broker
        self.name_server = name_server
        self.clock_ms = clock_ms
        self._connections: dict[int, Connection] = {}
        self.handshakes: dict[TlsConnection, Callable[[], object]] = {}  # oldest first; what ends it
        self.half_frames = PeerBytes()
        self.unread = PeerBytes()
        self._next_unread_ms = 0
        self._written: set[Connection] = set()
        self._next_channel = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._next_idle_scan_ms = 0
        self._trouble: str | None = None
        self.failed = asyncio.Event()  # the broker's disk did not keep what it had taken
        self.now_ms = clock_ms()
        """When the loop was woken last; who needs no more than that is spared a look at the clock."""
        self._flush_planned = False
        self._turn_planned = False
        self._with_room: OrderedDict[int, None] = OrderedDict()
        """Channels whose peers read, and for which pulls are parked; the one that got something last is the last."""
        self._stopped = False
        self._said: dict[str, tuple[int, int]] = {}  # kind of refusal -> when it was logged last, how many since
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.ciphered_buffer = memoryview(bytearray(CIPHERED_BYTES))  # the same for what TLS is yet to decrypt

    def say(self, kind: str, **fields: object) -> None:
        """Log one refusal of a kind; further ones within a minute are counted, and the next line says how many."""
        now_ms = self.clock_ms()
        last_ms, count = self._said.get(kind, (now_ms - SAY_AGAIN_MS, 0))
        if now_ms - last_ms < SAY_AGAIN_MS:
            self._said[kind] = last_ms, count + 1
            return
        self._said[kind] = now_ms, 0
        _log.warning(kind, **fields, **({"more_since_the_last_line": count} if count else {}))

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler. Connections that cannot be taken are one line a minute, not a traceback each: as
        long as there are no descriptors, the loop tries again every second, and after any other error at once."""
        message = str(context.get("message", ""))
        if message.startswith("socket.accept()") or "_accept_connection" in message:
            self.not_accepted(context.get("exception"))
        else:
            loop.default_exception_handler(context)

    def not_accepted(self, error: BaseException | None) -> None:
        self.say("connection.not_accepted", reason=str(error))

    # Connections

    def begin_handshake(self, connection: TlsConnection, end: Callable[[], object]) -> bool:
        """Give a connection its place before its handshake; `end` ends that. False when there is no room."""
        if self._stopped:
            return False
        full = len(self._connections) + len(self.handshakes) >= self.connections_max
        if full or len(self.handshakes) >= HANDSHAKES_MAX:
            if not self.handshakes:
                return False
            self.handshakes.pop(next(iter(self.handshakes)))()
            self.say("handshake.ended", reason="it had not ended when others needed its place")
        self.handshakes[connection] = end
        return True

    def end_handshake(self, connection: TlsConnection) -> None:
        """It ended somehow, or will."""
        self.handshakes.pop(connection, None)

    def broker_connection(self) -> Connection:
        """Protocol factory of the broker's port."""
        return Connection(self, self.broker)

    def name_server_connection(self) -> Connection:
        """Protocol factory of the name server's port."""
        return Connection(self, self.name_server)

    def over_tls(self, made: Callable[[], Connection], context: ssl.SSLContext) -> Callable[[], TlsConnection]:
        """Protocol factory of a port that speaks TLS before `made` connections."""
        return lambda: TlsConnection(self, made(), context)

    def opened(self, connection: Connection) -> int | None:
        """The channel of a new connection, None when there are too many."""
        if self._stopped or len(self._connections) >= self.connections_max:
            return None
        self._next_channel += 1
        self._connections[self._next_channel] = connection
        return self._next_channel

    def closed(self, connection: Connection, channel: int) -> None:
        del self._connections[channel]
        self.half_frames.forget(channel)
        self.unread.forget(channel)
        self._written.discard(connection)
        if not self._stopped:
            self.perform(connection.core.channel_closed(self.look_at_clock(), channel))

    def received(self, channel: int, unserved_bytes: int) -> None:
        """What a connection has received and not served; others, or itself, may have to go for that."""
        self.half_frames.note(self.now_ms, channel, unserved_bytes)
        self._end(self.half_frames.take_largest(self.now_ms), "connection.half_frame_ended")

    def bound_unread(self) -> None:
        """Disconnect some of those that do not read, when all answers that wait for that have too many bytes."""
        if self.unread.are_too_many and (self.now_ms >= self._next_unread_ms or self.unread.are_twice_too_many):
            self._next_unread_ms = self.now_ms + UNREAD_LOOK_MS
            for channel in [*self.unread.channels]:  # what was read meanwhile, nobody has said
                self._connections[channel].look_at_unread(self.now_ms)
            self._end(self.unread.take_largest(self.now_ms, UNREAD_IDLE_MS), "connection.unread_ended")

    @property
    def write_high_bytes(self) -> int:
        """How much a peer may leave unread and be served."""
        return min(WRITE_HIGH_BYTES, self.unread.even_share_bytes) if self.unread.are_too_many else WRITE_HIGH_BYTES

    def _end(self, shares: dict[int, Share], why: str) -> None:
        for channel, share in shares.items():
            connection = self._connections[channel]
            idle_ms = share.idle_ms(self.now_ms)
            self.say(why, peer=connection.address, held_bytes=share.size_bytes, idle_ms=idle_ms)
            connection.abort()

    # Effects

    def perform(self, effects: Iterable[Effect]) -> None:
        """Queue what is to be written and write it, one write per connection."""
        self.queue(effects)
        self.write()

    def queue(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            connection = self._connections.get(effect.channel)
            if connection is None:
                continue  # it closed meanwhile; whatever was for it is for nobody
            if isinstance(effect, CloseChannel):
                connection.close()
                continue
            try:
                connection.queue(effect.command)
            except RocketcrewError as error:
                self.say("answer.unsendable", code=effect.command.code, error=str(error))
                connection.close()
            self._written.add(connection)

    def write(self) -> None:
        for connection in self._written:
            connection.flush()
            self.note_room(connection)
        self._written.clear()
        if not self._turn_planned and (self._with_room or self.broker.turn_is_spent):
            self._turn_planned = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        if not self._flush_planned and self.broker.wants_flush:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._begin_flush)
        self._arm()

    def note_room(self, connection: Connection) -> None:
        """Give a connection what is parked for it in the next turn of the loop, if its peer reads."""
        channel = connection.channel
        if channel is not None and channel in self.broker.state.held.parked and not connection.is_lagging:
            self._with_room[channel] = None

    def _begin_turn(self) -> None:
        """Those with room have their turn, one after the other, as far as the broker goes at a time."""
        self._turn_planned = False
        if self._stopped:
            return
        self.look_at_clock()
        self.broker.begin_turn()
        while self._with_room and not self.broker.turn_is_spent:
            channel, _ = self._with_room.popitem(last=False)
            self.queue(self.broker.channel_room(channel))
        self.write()

    def _begin_flush(self) -> None:
        self._flush_planned = False
        if not self._stopped:
            self.broker.begin_flush()

    def look_at_clock(self) -> int:
        self.now_ms = self.clock_ms()
        if isinstance(self.clock_ms, WallClock):
            self.broker.state.clock_ahead_ms = self.clock_ms.ahead_ms
        return self.now_ms

    def flushed(self) -> None:
        """The disk may have what senders wait for."""
        if not self._stopped:
            effects = self.broker.flushed(self.look_at_clock())
            self.broker.begin_flush()  # the disk need not wait for the answers of the flush before
            self.perform(effects)
            self._say_failure()

    def _say_failure(self) -> None:
        if self.broker.failed is not None and not self.failed.is_set():
            self.failed.set()
            _log.error("storage.failed", reason=self.broker.failed)

    # Time

    def start(self) -> None:
        self._timer_ms = 0
        self._tick()

    def _tick(self) -> None:
        now_ms = self.look_at_clock()
        self._timer = None
        for due in (self.broker.due, self.name_server.tick):
            try:
                self.queue(due(now_ms))
            except Exception:  # noqa: BLE001  a bug in one duty must not stop time for all others
                _log.exception("tick.failed")
        if now_ms >= self._next_idle_scan_ms:
            self._next_idle_scan_ms = now_ms + IDLE_SCAN_MS
            for connection in list(self._connections.values()):
                if connection.reads_nothing(now_ms):
                    self.say("connection.reads_nothing", peer=connection.address, waited_ms=LAG_MS)
                    connection.abort()
                elif now_ms - connection.active_ms > IDLE_MS:
                    connection.end_idle()
        while self.broker.state.store.events:
            event, fields = self.broker.state.store.events.popleft()
            _log.warning(event, **fields)
        while self.broker.state.faults:
            self.say("held_pull.failed", reason=self.broker.state.faults.popleft())
        self._say_failure()
        if self.broker.trouble != self._trouble:
            self._trouble = self.broker.trouble
            if self._trouble is not None:
                _log.warning("storage.trouble", reason=self._trouble)
            else:
                _log.info("storage.works_again")
        self.write()

    def _arm(self) -> None:
        """Set the timer to the earliest deadline, unless it is set earlier already."""
        if self._stopped:
            return
        now_ms = self.now_ms
        due_ms = min(max(self.broker.next_deadline_ms(), now_ms + TICK_MIN_MS), now_ms + TICK_MAX_MS)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self._tick)

    def stop(self) -> None:
        """Close all connections and serve nothing any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        for end in list(self.handshakes.values()):
            end()


class Connection(asyncio.BufferedProtocol):
    """One connection to either port."""

    def __init__(self, edge: Edge, core: Core) -> None:
        self.core = core
        self.active_ms = edge.clock_ms()
        self._edge = edge
        self._reader = FrameReader()
        self._out: list[bytes | bytearray | memoryview] = []
        self._out_bytes = 0  # of bodies; heads are small
        self.is_lagging = False  # the peer has not read what it asked for: nothing more is served
        self._unread_bytes = 0  # when it was looked at last
        self._read_ms = 0  # when the peer was seen to have read something, or to have nothing to read
        self._round_planned = False  # more of what was received is served after the other connections
        self._transport: asyncio.Transport | None = None
        self.channel: int | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.address = host_and_port(*cast("tuple[str, int]", transport.get_extra_info("peername"))[:2])
        self.channel = self._edge.opened(self)
        if self.channel is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._edge.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.channel is None:
            return
        self.active_ms = now_ms = self._edge.look_at_clock()
        self._reader.feed(self._edge.read_buffer[:nbytes])
        if not self._round_planned:
            self._serve_frames(now_ms)

    def _serve_frames(self, now_ms: int) -> None:
        """Serve frames that are whole: one round of them, while the peer reads.

        The rest waits for the next turn of the loop, or for `resume_writing`; nothing more is read meanwhile.
        """
        edge = self._edge
        self._round_planned = False
        served = 0
        try:
            while self.channel is not None and not self.is_lagging and (command := self._reader.next()) is not None:
                edge.queue(self._serve(now_ms, self.channel, command))
                if self._out_bytes > edge.write_high_bytes:
                    self.flush()
                served += 1
                if served == ROUND_FRAMES_MAX and self._reader.buffered_bytes:
                    self._round_planned = True
                    break
        except ProtocolError as error:
            edge.say("connection.refused", peer=self.address, error=str(error))
            self.close()
        edge.write()
        if self.channel is not None:
            edge.received(self.channel, self._reader.buffered_bytes)
        if self._transport is not None and not self._transport.is_closing():
            if self._round_planned:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._next_round)
            elif not self.is_lagging:
                self._transport.resume_reading()

    def _next_round(self) -> None:
        if self.channel is not None:
            self._serve_frames(self._edge.look_at_clock())

    def _serve(self, now_ms: int, channel: int, command: Command) -> list[Effect]:
        try:
            return self.core.handle(now_ms, channel, self.address, command)
        except Exception as error:  # noqa: BLE001  a bug in one handler must not take the others' broker away
            _log.exception("handler.failed", code=command.code, peer=self.address)
            if command.is_oneway or command.is_response:
                return []
            return [Reply(channel, command.response(ResponseCode.SYSTEM_ERROR, remark=f"{error!r:.500}"))]

    def queue(self, command: Command) -> None:
        """Put a frame after those that wait for `flush`. Raises UsageError when it cannot be written."""
        self._out.append(encode_head(command, len(command.body)))
        if command.body:
            self._out.append(command.body)
            self._out_bytes += len(command.body)

    def flush(self) -> None:
        if self._out and self._transport is not None:
            written_bytes = sum(map(len, self._out))
            # Not `writelines`: up to Python 3.12.8 and 3.13.1 it never tells the protocol to pause (gh-127655).
            small: list[bytes | bytearray | memoryview] = []
            for piece in self._out:
                if len(piece) <= JOIN_MAX_BYTES:
                    small.append(piece)
                    continue
                if small:
                    self._transport.write(b"".join(small))
                    small = []
                self._transport.write(piece)
            if small:
                self._transport.write(b"".join(small))
            self._out = []
            self._out_bytes = 0
            self.active_ms = self._edge.now_ms
            self.look_at_unread(self.active_ms, written_bytes)
            self._edge.bound_unread()
            high_bytes = self._edge.write_high_bytes
            if not self.is_lagging and self._unread_bytes > high_bytes:
                self._transport.set_write_buffer_limits(high=high_bytes)  # it lags from now on, until it has read

    def pause_writing(self) -> None:
        self.is_lagging = True
        if self._transport is not None:
            self._transport.pause_reading()
        if self.channel is not None:
            self.core.channel_full(self.channel, is_full=True)

    def resume_writing(self) -> None:
        self.is_lagging = False
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        now_ms = self._edge.look_at_clock()
        if self.channel is not None:
            self._edge.queue(self.core.channel_full(self.channel, is_full=False))
            self._edge.note_room(self)
        if not self._round_planned:
            self._serve_frames(now_ms)

    def reads_nothing(self, now_ms: int) -> bool:
        """Whether the peer has taken none of what is there for it, for too long."""
        self.look_at_unread(now_ms)
        return self.is_lagging and now_ms - self._read_ms > LAG_MS

    def look_at_unread(self, now_ms: int, written_bytes: int = 0) -> None:
        """Note what the peer has not taken, of which so much is new. What it did take counts as a write."""
        if self._transport is None or self.channel is None:
            return
        unread_bytes = self._transport.get_write_buffer_size()
        if unread_bytes < self._unread_bytes + written_bytes:
            self._read_ms = self.active_ms = now_ms
        elif not self._unread_bytes:
            self._read_ms = now_ms
        self._unread_bytes = unread_bytes
        self._edge.unread.note(self._read_ms, self.channel, unread_bytes)

    def end_idle(self) -> None:
        """Close; one whose peer leaves its answers unread at once, as `close` would wait for them for ever."""
        if self._transport is not None and (self._transport.is_closing() or self._transport.get_write_buffer_size()):
            self.abort()
        else:
            self.close()

    def close(self) -> None:
        """Close after what is queued was written."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.channel is not None:
            channel, self.channel = self.channel, None
            self._edge.closed(self, channel)
