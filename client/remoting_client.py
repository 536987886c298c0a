"""Connections by address: made when first needed, shared by everybody, made anew after a loss.

Rules:

- One connection per address. Several callers that need it at once wait for one attempt to connect; each waits only as long as
  its own deadline allows, and one that gives up does not end the attempt for the others.
- An attempt takes at most `connect_timeout_ms` (3 s as in Java, remoting/netty/NettyClientConfig.java). Its failure is
  told to those who wait for it, and is not remembered: the next request tries again. Pauses between tries belong to the
  callers, who know what for.
- A request that is answered GO_AWAY by a server that shuts down (5.x, remoting/netty/NettyRemotingClient.java invokeImpl) is
  sent once more on a new connection; the old one ends when its other requests have their answers.
- A request whose connection is lost fails with UnreachableError. It is not sent again here, as only the caller knows
  whether it may be done twice.
- A peer that stands still is left in peace: each connection made to it waits in its accept queue, and when it goes on it
  takes all of them for members, for 120 s. So where a connection was cut for its silence without one byte having come,
  the next one is given twice as long for its first byte, `SILENT_MAX_MS` at most. The first byte ends that.
- Addresses that are no longer used cost nothing for long: idle connections close after 120 s.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from typing import Any

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import TimedOutError, UnreachableError, UsageError
from .access import Access
from .address import split_address
from .background import Shared
from .bounds import ConnectionBounds
from .connecting import connect, reason_of
from .connection import Connection, PeerHandler, name_of_request
from .logs import get_logger
from .own_process import OwnProcess
from .pending import BodySink, Waiter
from .request_rules import RequestRules
from .tls import HANDSHAKE_HINT, client_context, explain, server_name

CLOSE_TIMEOUT_MS = 1_000
CONNECTIONS_MAX = 4_096
SILENT_MAX_MS = 20_000
"""So a peer that stands still for 130 s has 9 connections of each client in its queue; cut after 3 s each, it had 42. As long
may it take at most until one is made anew that was lost between here and there (a load balancer's, say)."""

_log = get_logger("rocketcrew.client")


class Remoting:
    """See the module's text. Belongs to one event loop; all callbacks run in it.

    - `on_request(address, command)` serves requests of peers; its answer is sent, None is answered with code 3 (unless the
      request is one-way). At most `ConnectionBounds.peer_requests_max` run at once per connection.
    - `on_connect(address)` is called for each new connection (a consumer sends its heartbeat there before it pulls).
    - `on_close(address)` is called when a connection is gone, whoever closed it; `close()` included.
    """

    def __init__(
        self,
        *,
        on_request: PeerHandler | None = None,
        on_connect: Callable[[str], None] | None = None,
        on_close: Callable[[str], None] | None = None,
        access: Access | None = None,
        bounds: ConnectionBounds | None = None,
    ) -> None:
        """Connects nothing yet. Of `access` the credentials, TLS, namespace, vip channel and connect timeout are used.

        Raises UsageError when a file or the server name of its TLS options cannot be used.
        """
        access = access or Access()
        self._on_request = on_request
        self._served: dict[int, PeerHandler] = {}
        self._on_connect = [on_connect] if on_connect is not None else []
        self._on_close = [on_close] if on_close is not None else []
        self._rules = RequestRules(access)
        self._tls = access.tls
        self._context = client_context(access.tls) if access.tls is not None else None
        if self._context is not None and access.tls is not None:
            _check_name(self._context, access.tls.server_name)
        self._connect_timeout_ms = access.connect_timeout_ms
        self._bounds = bounds or ConnectionBounds()
        self._connections: dict[str, Connection] = {}
        self._replaced: set[Connection] = set()
        """Retired, and still with requests, when the next one to their address was made."""
        self._connecting: dict[str, Shared[Connection | UnreachableError]] = {}
        self._unheard_ms: dict[str, int] = {}
        """How long the next connection may wait for its first byte, by address, where the last one waited in vain."""
        self._process = OwnProcess("client")
        self._closed = False

    def serve(self, code: int, handler: PeerHandler) -> Callable[[], object]:
        """Let `handler` serve the peers' requests of one code, before `on_request`, until what is returned is called. Raises
        UsageError when it is served."""
        if code in self._served:
            raise UsageError(f"{name_of_request(code)} is served already: one transactional producer per cluster")
        self._served[code] = handler
        return lambda: self._served.pop(code, None)

    def on_connect(self, callback: Callable[[str], None]) -> Callable[[], object]:
        """Call this too for each new connection, until what is returned is called, once."""
        self._on_connect.append(callback)
        return lambda: self._on_connect.remove(callback)

    def on_close(self, callback: Callable[[str], None]) -> Callable[[], object]:
        """Call this too for each connection that is gone, until what is returned is called, once."""
        self._on_close.append(callback)
        return lambda: self._on_close.remove(callback)

    @property
    def addresses(self) -> list[str]:
        """Addresses with an open connection."""
        return [address for address, connection in self._connections.items() if connection.open]

    def connection_of(self, address: str) -> Connection | None:
        """The open connection to an address, if there is one."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.open else None

    async def request(
        self, address: str, command: Command, *, timeout_ms: float, body_sink: BodySink | None = None
    ) -> Command:
        """Send a request and wait for its answer, connecting first where needed, `timeout_ms` in all.

        The answer's code is the caller's to judge. With a `body_sink` the answer's body is received straight into the view
        that it returns (see connection.py). Raises UnreachableError (TimedOutError after the deadline, and where this is
        closed), or UsageError for what is no address, too large a command, or a client of the process that this is a fork of.
        """
        self._process.enter()
        address = self._rules.address_for(address, command)
        self._rules.finish(command)
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        connection = self.connection_of(address)
        if connection is None:
            connection, timeout_ms = await self._connect_for(address, command, deadline_s)
        answer = await connection.request(command, timeout_ms=timeout_ms, body_sink=body_sink)
        if answer.code != ResponseCode.GO_AWAY:
            return answer
        # Another connection to the same address may end at another machine behind it (a proxy's load balancer).
        connection.retire("the server is shutting down and sent us away")
        connection, timeout_ms = await self._connect_for(address, command, deadline_s)
        answer = await connection.request(command, timeout_ms=timeout_ms, body_sink=body_sink)
        if answer.code == ResponseCode.GO_AWAY:
            connection.retire("the server is shutting down and sent us away")
            raise UnreachableError(address, f"{name_of_request(command.code)}: the server is shutting down")
        return answer

    def start(
        self, address: str, command: Command, *, timeout_ms: float, body_sink: BodySink | None = None
    ) -> asyncio.Future[Command] | None:
        """Send a request at once, to have its answer later; None where there is no open connection with room.

        For what is asked ahead, by who asks by `request` where that fails. As there, but GO_AWAY is an answer too.
        """
        waiter: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        sent = self.ask(address, command, waiter, timeout_ms=timeout_ms, body_sink=body_sink)
        return waiter if sent else None

    def ask(
        self, address: str, command: Command, waiter: Waiter, *, timeout_ms: float, body_sink: BodySink | None = None
    ) -> bool:
        """As `start`, for a waiter of the caller's; False where there is no open connection with room."""
        self._process.enter()
        address = self._rules.address_for(address, command)
        self._rules.finish(command)
        connection = self._connections.get(address)
        if connection is None or connection.full:
            return False
        try:
            connection.ask(command, waiter, timeout_ms=timeout_ms, body_sink=body_sink)
        except UnreachableError:
            return False
        return True

    async def oneway(self, address: str, command: Command, *, timeout_ms: float = 3000) -> None:
        """Send a request that is not answered; returns when it is handed to the socket's buffer. Raises as `request`."""
        self._process.enter()
        address = self._rules.address_for(address, command)
        self._rules.finish(command)
        connection = self.connection_of(address)
        if connection is None:
            deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
            connection, timeout_ms = await self._connect_for(address, command, deadline_s)
        await connection.oneway(command, timeout_ms=timeout_ms)

    async def _connect_for(self, address: str, command: Command, deadline_s: float) -> tuple[Connection, float]:
        """A connection to send this on, and the milliseconds that are left then."""
        connection = self._connections.get(address)
        if connection is None or not connection.open:
            connection = await self._connect(address, deadline_s, command.code)
        return connection, (deadline_s - asyncio.get_running_loop().time()) * 1000

    def close_idle(self, idle_ms: float) -> int:
        """Close connections unused for that long; the number closed. For users that leave their loop for a while."""
        count = 0
        for connection in tuple(self._connections.values()):
            if connection.open and connection.pending_count == 0 and connection.idle_s * 1000 >= idle_ms:
                connection.close(f"unused for {idle_ms:.0f} ms")
                count += 1
        return count

    def retire_all_but(self, addresses: Collection[str]) -> None:
        """End connections to other addresses than these, each when its requests are answered. Not pulls: a peer that hangs
        would be waited for until their time is over, and what replaced it has the messages."""
        for connection in tuple(self._connections.values()):
            if connection.open and connection.address not in addresses:
                connection.retire("nobody names this address any more", held=RequestCode.PULL_MESSAGE)
        for address in self._unheard_ms.keys() - set(addresses):
            del self._unheard_ms[address]

    async def close(self) -> None:
        """Send what is buffered (at most a second), close all connections; pending requests fail. Idempotent; in a fork of
        the process that has connected, nothing."""
        self._closed = True
        if self._process.is_elsewhere:
            return
        attempts = [attempt.task for attempt in self._connecting.values()]
        for task in attempts:
            task.cancel()
        connections = [*self._connections.values(), *self._replaced]
        for connection in connections:
            connection.close()
        closings = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
        if closings:
            _, still_open = await asyncio.wait(closings, timeout=CLOSE_TIMEOUT_MS / 1000)
            for connection in connections if still_open else ():
                connection.abort("closed by this client")
            await asyncio.gather(*closings)
        for connection in connections:
            connection.cancel_peer_requests()
        await asyncio.gather(*attempts, return_exceptions=True)

    async def _connect(self, address: str, deadline_s: float, code: int) -> Connection:
        """The open connection to an address; waits for the attempt under way or starts one."""
        split_address(address)
        if self._closed:
            raise UnreachableError(address, f"{name_of_request(code)} not sent: closed by this client")
        attempt = self._connecting.get(address)
        if attempt is None:
            if len(self._connections) + len(self._connecting) >= CONNECTIONS_MAX:
                raise UnreachableError(address, f"{CONNECTIONS_MAX} connections are open already")
            attempt = self._connecting[address] = Shared(self._attempt(address))
            attempt.task.add_done_callback(lambda _: self._connecting.pop(address, None))
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        if not await attempt.ended(left_s):
            raise TimedOutError(
                address, f"{name_of_request(code)} not sent: not connected within {left_s * 1000:.0f} ms"
            )
        if attempt.task.cancelled():
            raise UnreachableError(address, f"{name_of_request(code)} not sent: closed by this client")
        result = attempt.task.result()
        if isinstance(result, Connection):
            return result
        raise type(result)(address, f"{name_of_request(code)} not sent: {result.reason}")

    async def _attempt(self, address: str) -> Connection | UnreachableError:
        """Connect once. A failure is a value, as several callers, or none, may look at it."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                connected = await connect(host, port)
                _, connection = await loop.create_connection(
                    lambda: self._new_connection(address), sock=connected, **self._tls_arguments(host)
                )
        except TimeoutError:
            return TimedOutError(address, f"not connected within {self._connect_timeout_ms} ms")
        except ssl.SSLError as error:
            return UnreachableError(address, f"cannot connect: {explain(error)}")
        except OSError as error:
            cause = reason_of(error)
            if self._tls is not None and isinstance(error, ConnectionResetError):
                cause = f"{cause} ({HANDSHAKE_HINT})" if cause else HANDSHAKE_HINT  # the end of a handshake has no text
            return UnreachableError(address, f"cannot connect: {cause}")
        retired = self._connections.get(address)
        if retired is not None:
            self._replaced.add(retired)
        self._connections[address] = connection
        for told in self._on_connect:
            told(address)
        return connection

    def _tls_arguments(self, host: str) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._context,
            "server_hostname": server_name(self._tls, host) or "",
            "ssl_handshake_timeout": self._connect_timeout_ms / 1000,
            "ssl_shutdown_timeout": CLOSE_TIMEOUT_MS / 1000,
        }

    def _new_connection(self, address: str) -> Connection:
        unheard_ms = self._unheard_ms.get(address)
        return Connection(
            address, on_request=self._serve, on_close=self._lost, bounds=self._bounds, unheard_ms=unheard_ms
        )

    async def _serve(self, address: str, command: Command) -> Command | None:
        handler = self._served.get(command.code, self._on_request)
        return await handler(address, command) if handler is not None else None

    def _lost(self, connection: Connection) -> None:
        self._replaced.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self._note_silence(connection)
        if not self._closed:
            _log.info("connection_closed", address=connection.address, reason=connection.why)
        for told in self._on_close:
            told(connection.address)

    def _note_silence(self, connection: Connection) -> None:
        address, first_ms = connection.address, self._bounds.silent_ms
        if connection.stats.read_bytes:
            self._unheard_ms.pop(address, None)
        elif connection.cut_unheard:
            doubled_ms = 2 * self._unheard_ms.get(address, first_ms)
            self._unheard_ms[address] = min(doubled_ms, max(first_ms, SILENT_MAX_MS))


def _check_name(context: ssl.SSLContext, name: str) -> None:
    """Raises UsageError for what can be no server's name: Python would say so at each connection, in errors of all kinds."""
    try:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name or None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"security.tls_server_name {name!r} can be no name of a server: {error}") from None
