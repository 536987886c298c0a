"""One connection to a name server or broker: requests out, answers matched, the peer's own requests served.

Rules:

- **Never left unread.** Reading is never paused. A body nobody has room for is read and dropped (receiver.py), a peer that
  sends more requests than may run at once is told SYSTEM_BUSY. Otherwise answers that would free room could stand
  behind one that waits for room, for ever.
- **An answer finds its request by opaque**, and only a frame with the response bit is an answer: both sides count their
  opaques from 0. An answer whose request has expired or was cancelled is dropped and counted as late.
- **A caller's view is written only while its request waits.** Whoever cancels a request, or sees it time out, may reuse the
  memory at once: before every read the request is looked at again, and if it is over, the rest of the body is drained.
  (A read is one synchronous step of the loop: choose the place, receive, account. Nothing can come in between.)
- **One timer for all deadlines**, set to the earliest (pending.py).
- **Frames written in one turn of the loop leave in one system call.**
- **A silent connection is a dead one.** When a request expires `silent_ms` after it was sent, or after an earlier one that
  expired was, and not one byte has come since then, the connection is cut, so that the next request makes a new one: also
  where each has less time than that. Requests with `QUIET_S` between them are no silence together: a peer that was asked
  nothing says nothing. (Java closes the channel of every synchronous request that times out, remoting/netty/
  NettyRemotingClient.java invokeSync; here other requests, such as held pulls, share it, so a timeout alone does not cut.)
  Until the first byte has come it is `unheard_ms`, which grows from one connection to the next (remoting_client.py). 120 s
  without reading or writing also end it, as in Java.
- When it is lost, every pending request fails with UnreachableError.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from ..remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, TimedOutError, UnreachableError
from .background import background
from .bounds import ConnectionBounds, ConnectionStats
from .logs import get_logger
from .outbox import Outbox
from .pending import BodySink, Pending, PendingTable, Waiter, checked_view
from .receiver import DROP, OWN, Place, Receiver
from .tls import NO_ANSWER_HINT, NO_TLS_HINT, explain

PeerHandler = Callable[[str, Command], Awaitable[Command | None]]
"""Serves a request of the peer (address, command); the answer, or None for a request that wants none."""

QUIET_S = 30.0
"""So often at least a member's heartbeats ask something of each of its brokers."""

_log = get_logger("rocketcrew.client")


def name_of_request(code: int) -> str:
    """`PULL_MESSAGE (11)`, for messages."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request code {code}"


class Connection(asyncio.BufferedProtocol):
    """See the module's text. Made by `loop.create_connection(lambda: Connection(address, ...), host, port)`."""

    def __init__(
        self,
        address: str,
        *,
        on_request: PeerHandler | None = None,
        on_close: Callable[[Connection], None] | None = None,
        bounds: ConnectionBounds | None = None,
        unheard_ms: int | None = None,
    ) -> None:
        """`unheard_ms` is the silence that cuts before the peer's first byte, `bounds.silent_ms` unless given."""
        self.address = address
        self._stats = ConnectionStats()
        self._bounds = bounds or ConnectionBounds()
        self._unheard_ms = self._bounds.silent_ms if unheard_ms is None else unheard_ms
        self._on_request = on_request
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._why: str = ""
        self._retired: str = ""
        self._receiver = Receiver(self, buffer_bytes=self._bounds.read_buffer_bytes)
        self._table = PendingTable(self._bounds.pending_max)
        self._receiving: Pending | None = None  # whose view is being filled
        self._peer_tasks: set[asyncio.Task[None]] = set()
        self._outbox = Outbox(self._loop, self._bounds.write_high_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_read_s = self._loop.time()
        self._asked_s: float | None = None
        """When the first of the requests was sent that have expired since the last byte came."""
        self._expired_s = 0.0
        """When the last of them expired."""
        self._silent = False

    # What callers use.

    @property
    def stats(self) -> ConnectionStats:
        """The counters so far; the object lives as long as the connection."""
        self._stats.writes = self._outbox.writes
        self._stats.written_bytes = self._outbox.written_bytes
        return self._stats

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not (self._why or self._retired)

    @property
    def full(self) -> bool:
        """Whether those who can wait to write should."""
        return self._outbox.full

    @property
    def why(self) -> str:
        """Why the connection is closed; empty while it is open."""
        return self._why

    @property
    def cut_unheard(self) -> bool:
        """Whether it was cut for its silence without one byte having come."""
        return self._silent and not self._stats.read_bytes

    @property
    def pending_count(self) -> int:
        """Requests that wait for their answer."""
        return len(self._table)

    @property
    def idle_s(self) -> float:
        """Seconds since the last byte in either direction."""
        return self._loop.time() - max(self._last_read_s, self._outbox.last_write_s)

    def start(
        self, command: Command, *, timeout_ms: float, body_sink: BodySink | None = None
    ) -> asyncio.Future[Command]:
        """Send a request without waiting for room to write; the future gets its answer.

        Sets the command's opaque. The body must not change until it is sent. The future fails with TimedOutError or
        UnreachableError, or with what `body_sink` raised; cancelling it frees the sink's view at once. Raises
        UnreachableError when the connection is closed or its bounds are reached.
        """
        waiter: asyncio.Future[Command] = self._loop.create_future()
        self.ask(command, waiter, timeout_ms=timeout_ms, body_sink=body_sink)
        return waiter

    def ask(self, command: Command, waiter: Waiter, *, timeout_ms: float, body_sink: BodySink | None = None) -> None:
        """As `start`, for a waiter of the caller's."""
        if not self.open:
            raise self._not_open(command.code)
        table = self._table
        if table.full:
            raise UnreachableError(
                self.address,
                f"{len(table)} requests wait for an answer already; {name_of_request(command.code)} not sent",
            )
        if timeout_ms <= 0:
            raise self._too_late(command.code)
        now_s = self._loop.time()
        deadline_s = now_s + timeout_ms / 1000
        command.opaque = table.next_opaque()
        self._put(command)
        table.add(command.opaque, command.code, waiter, now_s=now_s, deadline_s=deadline_s, sink=body_sink)
        if self._timer is None or deadline_s < self._timer_s:
            self._set_timer(deadline_s)
        self._stats.requests += 1

    async def request(self, command: Command, *, timeout_ms: float, body_sink: BodySink | None = None) -> Command:
        """Send a request and wait for its answer at most `timeout_ms`, the waiting for room to write included.

        The answer's code is for the caller to judge. Raises as `start` says.
        """
        if self._outbox.full:
            deadline_s = self._loop.time() + timeout_ms / 1000
            await self._wait_for_room(deadline_s, command)
            timeout_ms = (deadline_s - self._loop.time()) * 1000
        return await self.start(command, timeout_ms=timeout_ms, body_sink=body_sink)

    async def oneway(self, command: Command, *, timeout_ms: float = 3000) -> None:
        """Send a request that is never answered; returns when it is handed to the transport. Raises as `start` does."""
        if self._outbox.full:
            await self._wait_for_room(self._loop.time() + timeout_ms / 1000, command)
        if not self.open:
            raise self._not_open(command.code)
        if timeout_ms <= 0:
            raise self._too_late(command.code)
        command.opaque = self._table.next_opaque()
        command.flag |= FLAG_ONEWAY
        self._put(command)
        self._stats.requests += 1

    def close(self, why: str = "closed by this client") -> None:
        """Send what is buffered, then close; pending requests fail at once."""
        if self._why or self._transport is None:
            return
        self._outbox.flush(force=True)  # asyncio sends what the transport holds before it closes
        self._why = why
        self._fail_pending()
        self._transport.close()

    def retire(self, why: str, *, held: int | None = None) -> None:
        """Take no new requests; close when those that wait have their answers. Requests of the code `held`, which a peer
        answers when it likes, end at once, but for one whose answer is being read."""
        self._retired = why
        for pending in self._table.of_code(held) if held is not None else ():
            if pending is not self._receiving:
                self._table.take(pending.opaque)
                self._fail(pending, why)
        self._close_retired()

    def abort(self, why: str) -> None:
        """Close without sending what is buffered."""
        if not self._why:
            self._why = why
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when the socket is closed."""
        await asyncio.shield(self._lost)

    def cancel_peer_requests(self) -> None:
        """Stop serving what the peer asked; a lost connection alone does not, as a notice must not get lost with it."""
        for task in tuple(self._peer_tasks):
            task.cancel()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._tls = transport.get_extra_info("ssl_object") is not None
        self._outbox.open(self._transport)
        self._idle_timer = self._loop.call_later(self._bounds.idle_ms / 1000, self._check_idle)

    def get_buffer(self, sizehint: int) -> memoryview:
        receiving = self._receiving
        if receiving is not None and receiving.waiter.done():
            self._receiving = None
            self._stats.dropped_bodies += 1
            self._receiver.drop_body(receiving.opaque)
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._last_read_s = self._loop.time()
        self._asked_s = None
        self._stats.read_bytes += nbytes
        try:
            self._receiver.received(nbytes)
        except ProtocolError as error:
            _log.warning("malformed_frame", address=self.address, error=str(error))
            self.abort(f"malformed frame received: {error}")

    def eof_received(self) -> bool:
        cut = " in the middle of a frame" if self._receiver.mid_frame else ""
        self.abort(self._never_answered() or f"closed by the peer{cut}")  # nobody reads what we might still send
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._why = self._why or explain(exc)
        lost = f"connection lost ({exc})" if exc is not None else "connection closed"
        self._why = self._why or self._never_answered() or lost
        self._transport = None
        self._outbox.close()
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle_timer = None
        self._fail_pending()
        if not self._lost.done():
            self._lost.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    def _never_answered(self) -> str:
        """A hint for a connection that was cut at its first request: so does a server that insists on TLS or certificates."""
        if not self._stats.requests or self._stats.read_bytes:
            return ""
        return NO_ANSWER_HINT if self._tls else NO_TLS_HINT

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    # What the receiver calls.

    def place(self, command: Command, body_bytes: int) -> memoryview | Place:
        """Where a body goes; see receiver.Owner."""
        if not command.flag & FLAG_RESPONSE:
            return OWN
        pending = self._table.get(command.opaque)
        if pending is None or pending.waiter.done():
            return DROP
        if pending.sink is None:
            return OWN
        try:
            view = pending.sink(command, body_bytes)
            if view is not None:
                view = checked_view(view, body_bytes)
        except Exception as error:  # noqa: BLE001 - whatever the caller's sink raises belongs to that caller
            pending.waiter.set_exception(error)
            return DROP
        if view is None:
            self._stats.dropped_bodies += 1
            return DROP
        self._receiving = pending
        return view

    def deliver(self, command: Command) -> None:
        """A whole command has come; see receiver.Owner."""
        if not command.flag & FLAG_RESPONSE:
            self._serve(command)
            return
        self._receiving = None
        pending = self._table.take(command.opaque)
        if pending is None or pending.waiter.done():
            self._stats.late_answers += 1
            return
        self._stats.answers += 1
        pending.waiter.set_result(command)
        if self._retired:
            self._close_retired()

    # Requests of the peer.

    def _serve(self, command: Command) -> None:
        self._stats.peer_requests += 1
        if len(self._peer_tasks) >= self._bounds.peer_requests_max:
            self._stats.peer_requests_refused += 1
            self._reply(
                command, command.response(ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD] too many requests at once")
            )
            return
        task = background(self._answer(command))
        self._peer_tasks.add(task)
        task.add_done_callback(self._peer_tasks.discard)

    async def _answer(self, command: Command) -> None:
        try:
            answer = await self._on_request(self.address, command) if self._on_request is not None else None
            if answer is None:
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                answer = command.response(code, remark=f"request type {command.code} not supported")
            self._reply(command, answer)
        except Exception as error:  # noqa: BLE001 - the peer gets an answer, the connection lives
            _log.exception("peer_request_failed", address=self.address, request=name_of_request(command.code))
            remark = f"{type(error).__name__}: {error}"[:500]
            self._reply(command, command.response(ResponseCode.SYSTEM_ERROR, remark=remark))

    def _reply(self, command: Command, answer: Command) -> None:
        if not command.is_oneway and self.open:
            answer.opaque = command.opaque
            self._put(answer)

    # Writing.

    def _put(self, command: Command) -> None:
        self._outbox.put(command)
        if self._outbox.full and self._outbox.unsent_bytes > self._bounds.write_bytes_max:
            self.abort(f"the peer does not read: {self._outbox.unsent_bytes} bytes are unsent")

    async def _wait_for_room(self, deadline_s: float, command: Command) -> None:
        if not await self._outbox.wait_for_room(deadline_s, len(command.body)):
            text = f"{name_of_request(command.code)} not sent in time: the peer does not read"
            raise TimedOutError(self.address, text)

    # Deadlines and failure.

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._expire)

    def _expire(self) -> None:
        """The timer fired: fail what is over, and set the timer for the next deadline."""
        self._timer = None
        # A timer may fire a clock tick early (the loop rounds up by its clock's resolution), so its own time counts too.
        for pending in self._table.expire(max(self._loop.time(), self._timer_s)):
            self._stats.timeouts += 1
            if self._last_read_s <= pending.sent_s:
                self._count_silence(pending)
            if not pending.waiter.done():
                text = f"no answer to {name_of_request(pending.code)} within {pending.timeout_ms} ms"
                pending.waiter.set_exception(TimedOutError(self.address, text))
        next_s = self._table.next_deadline_s()
        if next_s is not None:
            self._set_timer(next_s)
        if self._retired:
            self._close_retired()
        if self._silent:
            _log.warning("silent_connection_cut", address=self.address)
            self.abort("cut after a request timed out and nothing had been received since it was sent")

    def _count_silence(self, expired: Pending) -> None:
        heard = self._stats.read_bytes > 0
        if self._asked_s is None or (heard and expired.sent_s - self._expired_s >= QUIET_S):
            self._asked_s = expired.sent_s
        self._asked_s = min(self._asked_s, expired.sent_s)
        self._expired_s = expired.deadline_s
        cut_ms = self._bounds.silent_ms if heard else self._unheard_ms
        self._silent = round((expired.deadline_s - self._asked_s) * 1000) >= cut_ms

    def _close_retired(self) -> None:
        if not len(self._table):
            self.close(self._retired)

    def _check_idle(self) -> None:
        left_s = self._bounds.idle_ms / 1000 - self.idle_s
        if left_s <= 0:
            self.close(f"idle for {self._bounds.idle_ms} ms")
        else:
            self._idle_timer = self._loop.call_later(left_s, self._check_idle)

    def _too_late(self, code: int) -> TimedOutError:
        """Nobody waits for the answer to a request whose time has run out before it is sent."""
        return TimedOutError(self.address, f"{name_of_request(code)} not sent: its time ran out before it could be")

    def _not_open(self, code: int) -> UnreachableError:
        why = self._why or self._retired or "not connected"
        return UnreachableError(self.address, f"{name_of_request(code)} not sent: {why}")

    def _fail_pending(self) -> None:
        for pending in self._table.take_all():
            self._fail(pending, self._why)

    def _fail(self, pending: Pending, why: str) -> None:
        if not pending.waiter.done():
            text = f"{name_of_request(pending.code)} sent, no answer: {why}"
            pending.waiter.set_exception(UnreachableError(self.address, text))
