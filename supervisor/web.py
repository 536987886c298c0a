"""What the supervisor serves by HTTP on `metrics.host:metrics.port`: metrics, probes, its status, and a page for people.

| request | |
|---|---|
| GET /metrics | Prometheus, or OpenMetrics where it is asked for |
| GET /livez, GET /readyz | 200, or 503 with the reason |
| GET /status | the picture of `rocketcrew status --json` |
| GET / | the page (`metrics.page`) |
| POST /pause, /resume, /scale?workers=N, /stacks | what the commands of these names do; with the header X-Rocketcrew-Token |

A form or a link on another site cannot send that header without asking first, and we never agree; and a name of another site
that leads to a loopback address is refused by its Host header where only such an address is listened on (a wildcard one is
reached by names that nobody here knows). Served by the supervisor's own loop, one request a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import inspect
import ipaddress
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from ..conf.limits import used_up
from ..conf.settings import MetricsSettings
from ..durable.files import try_lock, write_atomically
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.names import host_and_port
from .connected import in_tasks
from .control import Command
from .health import Health
from .metrics import MetricsPage
from .slot import forget_targets, other_targets, targets_file

REQUEST_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
"""For a client to take the answer."""
CONNECTIONS_MAX: Final = 256
"""More are closed: each has a descriptor, which workers and brokers need too. Silent ones count as well, so it is far more
than clients need that ask: probes want an answer beside them."""
HEAD_BYTES_MAX: Final = 8 * 1024
PORT_MAX: Final = 65_535
TOKEN_HEADER: Final = "x-rocketcrew-token"  # noqa: S105  its name
ACTIONS: Final = frozenset({"pause", "resume", "scale", "stacks"})
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
_REASONS: Final = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
                   503: "Service Unavailable"}  # fmt: skip
_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """`arguments` are those of the query, of a name given twice the last; header names are in lower case."""

    method: str
    path: str
    arguments: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = _TEXT


def read_request(head: bytes) -> Request:
    """The head of a request, up to its empty line. Raises ValueError for what is none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1: {version}")
    url = urlsplit(target)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    arguments = {name: values[-1] for name, values in parse_qs(url.query).items()}
    return Request(method, url.path, arguments, headers)


class Site:
    """Requests to answers. `commands` are those of the control socket; `clock` is monotonic, in seconds."""

    def __init__(
        self, settings: MetricsSettings, picture: Callable[[], dict[str, Any]], commands: Mapping[str, Command],
        health: Health, clock: Callable[[], float], faults: Callable[[], list[dict[str, object]]],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._picture = picture
        self._commands = commands
        self._health = health
        self._clock = clock
        self._faults = faults
        self._metrics = MetricsPage(picture)

    async def answer(self, request: Request) -> Response:
        """Never raises for what a client can send."""
        if not self._is_for_us(request.headers.get("host", "")):
            return _text(403, "this address is not served under that name")
        name = request.path.removeprefix("/")
        if name in ACTIONS:
            return await self._act(name, request)
        if request.method not in ("GET", "HEAD"):
            return _text(405, "only GET")
        match name:
            case "metrics":
                content_type, page = self._metrics.get(request.headers.get("accept", ""))
                return Response(200, page, content_type)
            case "livez":
                return _probe(self._health.not_alive(self._picture(), self._clock()))
            case "readyz":
                return _probe(self._health.not_ready(self._picture()))
            case "status":
                picture = {**self._picture(), "faults": self._faults()}
                return Response(200, json.dumps(picture, default=str).encode(), _JSON)
            case "" if self._settings.page:
                return Response(200, page_html(), "text/html; charset=utf-8")
            case "":
                return _text(200, "/metrics /livez /readyz /status; a page for people: metrics.page = true")
            case _:
                return _text(404, "there are /metrics, /livez, /readyz and /status")

    async def _act(self, name: str, request: Request) -> Response:
        if request.method != "POST":
            return _text(405, "only POST")
        token = self._settings.token
        if not token:
            return _text(403, "nothing can be done from here: metrics.token is not set")
        if not hmac.compare_digest(token.encode(), request.headers.get(TOKEN_HEADER, "").encode()):
            return _text(403, "the token is wrong: it is the value of metrics.token")
        wish: dict[str, Any] = dict(request.arguments)
        try:
            if name == "scale":
                wish["workers"] = int(wish.get("workers", ""))
            answer = self._commands[name](wish)
            done = await answer if inspect.isawaitable(answer) else answer
        except ValueError:
            return _text(400, "scale wants ?workers=N")
        except RocketcrewError as error:
            return _text(400, str(error))
        return Response(200, json.dumps(done, default=str).encode(), _JSON)

    def _is_for_us(self, host: str) -> bool:
        if not _is_loopback(self._settings.host):
            return True
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:  # no host at all
            return False
        return name is None or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    """However it is written: a socket also takes 127.1 and 2130706433."""
    bare = host.strip("[]").lower()
    try:
        address = ipaddress.ip_address(bare if ":" in bare else socket.inet_aton(bare))
    except (ValueError, OSError):  # another name
        return bare == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def page_html() -> bytes:
    """The page: one file, which asks for nothing from elsewhere."""
    return resources.files(__name__.rpartition(".")[0]).joinpath("page.html").read_bytes()


def _text(status: int, text: str) -> Response:
    return Response(status, (text + "\n").encode())


def _probe(wrong: str) -> Response:
    return _text(503, wrong) if wrong else _text(200, "ok")


def targets(host: str, port: int, labels: Mapping[str, str]) -> str:
    """Where the metrics are, as a file of Prometheus's file_sd_configs says it; a wildcard address is this machine."""
    name = "localhost" if host in _WILDCARDS else host
    return json.dumps([{"targets": [host_and_port(name, port)], "labels": dict(labels)}]) + "\n"


def _forget_same_port(port: int, others: Iterable[Path]) -> None:
    """Remove the files that name the port which is ours now, and whose slot nobody holds: who wrote them was killed, and
    Prometheus would have our metrics under the labels of another group, too. One that runs has that port of another address,
    or in a container of its own."""
    for path in others:
        with contextlib.suppress(
            OSError, ValueError, LookupError, TypeError, AttributeError
        ):  # another user's, or none of ours
            if json.loads(path.read_text())[0]["targets"][0].rpartition(":")[2] == str(port):
                _forget_left(path)


def _forget_left(path: Path) -> None:
    """Remove this file of targets unless its slot is held; with the slot locked, as a start in it writes the file anew."""
    try:
        lock = try_lock(path.with_name(path.stem.rpartition("-")[2]) / "lock")
    except FileNotFoundError:  # the slot has been removed
        path.unlink()
        return
    if lock is not None:
        with contextlib.closing(os.fdopen(lock)):
            path.unlink()


class PortsTakenError(RocketcrewError):
    """Somebody else has each port that `metrics.port` allows."""


async def listen(
    settings: MetricsSettings, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None], *,
    start_serving: bool = True,
) -> asyncio.Server:  # fmt: skip
    """A server on the first free port. Raises PortsTakenError where there is none; RocketcrewError for what else may pass,
    such as an address that is not up yet: service managers try again; UsageError for what does not pass, such as a port that
    only root may have."""
    first, last = _ports(settings)
    for port in range(first, last + 1):
        try:
            server = await asyncio.start_server(
                serve, settings.host, port, limit=HEAD_BYTES_MAX, start_serving=start_serving
            )
        except OSError as error:
            if port < last and error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise cannot_listen(settings, error) from error
        except UnicodeError as error:
            raise UsageError(f"metrics.host = {settings.host}: is no name of a host ({error})") from error
        if not server.sockets:  # of a socket that cannot be made, asyncio and uvloop do not say why
            raise RocketcrewError(
                f"metrics.host = {settings.host}: no socket can be made for it; are descriptors used up, or is IPv6 off?"
            )
        return server
    raise AssertionError("the last port returns or raises")


def _ports(settings: MetricsSettings) -> tuple[int, int]:
    """The first and the last that may be taken."""
    return settings.port, min(settings.port + settings.port_count - 1, PORT_MAX)


def cannot_listen(settings: MetricsSettings, error: OSError) -> RocketcrewError:
    """The error for a listen that has failed."""
    if isinstance(error, socket.gaierror):
        return RocketcrewError(f"metrics.host = {settings.host}: cannot be resolved ({error.strerror})")
    if error.errno in (None, errno.EADDRNOTAVAIL):  # None: asyncio has tried all addresses of that name
        return RocketcrewError(f"metrics.host = {settings.host}: this machine does not have that address, or not yet")
    first, last = _ports(settings)
    ports = f"port {first}" if last == first else f"ports {first} to {last}"
    said = os.strerror(error.errno)  # asyncio's own text has the address once more
    where = f"metrics.port = {first}: cannot listen on {settings.host}, {ports} ({said})"
    if error.errno in _USED_UP:
        return RocketcrewError(where + (f": {remedy}" if (remedy := used_up(error)) else ""))
    kind = PortsTakenError if error.errno == errno.EADDRINUSE else UsageError
    return kind(f"{where}; choose another port, a larger metrics.port_count, or 0 to serve no metrics")


class WebServer:
    """Listens on the first free of `metrics.port_count` ports from `metrics.port` on, and writes that into `targets_file`."""

    def __init__(
        self,
        settings: MetricsSettings,
        site: Site,
        slot: Path,
        group: str,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`group` and the slot's number are labels of the target."""
        self._settings = settings
        self._site = site
        self._slot = slot
        # Not `group`: of a series with a label of the target's name, Prometheus makes that one `exported_group`.
        self._labels = {"rocketcrew_group": group, "slot": slot.name}
        self._server: asyncio.Server | None = None
        self._answer_timeout_s = answer_timeout_s
        self._open = 0

    async def start(self) -> None:
        """Raises as `listen`, and OSError when the group's folder cannot be written."""
        self._server = await listen(self._settings, in_tasks(self._serve))
        said = targets(self._settings.host, self.port, self._labels)
        _forget_same_port(self.port, other_targets(self._slot))
        write_atomically(targets_file(self._slot), said, durable=False)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            forget_targets(self._slot)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                await self._answer(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.transport.abort()  # nothing is left to be sent, or nobody takes it

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            request = read_request(head)
        except ValueError:
            answer, method = _text(400, "this is not HTTP"), ""
        else:
            answer, method = await self._site.answer(request), request.method
        async with asyncio.timeout(self._answer_timeout_s):
            writer.write(
                f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
                f"Content-Length: {len(answer.body)}\r\nConnection: close\r\nCache-Control: no-store\r\n"
                "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
                "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
                " connect-src 'self'\r\n\r\n".encode()
            )
            if method != "HEAD":
                writer.write(answer.body)
            writer.close()
            await writer.wait_closed()  # until all of it is sent
