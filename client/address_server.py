"""The HTTP server that names the name servers (common/namesrv/DefaultTopAddressing.java).

`http://<domain>/rocketmq/<subgroup>`, port 8080 where the domain has none; with a unit's name `-<unit>?nofix=1` behind it.
The answer is one line, addresses separated by `;`. What the URL is and what an answer says is decided here without
I/O; `fetch` is the one step that has any: one connection, one request, everything until the server closes.
"""

from __future__ import annotations

import asyncio
import io
from typing import Any, cast

from ..remoting.errors import UnreachableError, UsageError
from .address import split_address, split_name_servers
from .connecting import connect, reason_of

PORT = 8080
TIMEOUT_MS = 3_000
REFRESH_INTERVAL_MS = 120_000
"""MQClientInstance.java startScheduledTask."""
ANSWER_BYTES_MAX = 64 * 1024


def url_of(domain: str, subgroup: str, unit_name: str = "") -> str:
    """Where the name servers are asked for (common/MixAll.java getWSAddr)."""
    host = domain if ":" in domain else f"{domain}:{PORT}"
    unit = f"-{unit_name.strip()}?nofix=1" if unit_name.strip() else ""
    return f"http://{host}/rocketmq/{subgroup}{unit}"


def parse_answer(data: bytes, url: str) -> list[str]:
    """The name servers in a whole HTTP answer. Raises UnreachableError saying what is wrong with it."""
    import http.client  # with all of email: every process of ours would import it for the few that ask such a server

    try:
        response = http.client.HTTPResponse(cast("Any", _Received(data)))
        response.begin()
        text = response.read().decode("utf-8")
    except (http.client.HTTPException, UnicodeDecodeError) as error:
        raise UnreachableError(url, f"the address server's answer is no HTTP: {type(error).__name__}") from None
    if response.status != 200:
        raise UnreachableError(url, f"the address server answers {response.status} {response.reason}".rstrip())
    line = text.strip().partition("\n")[0].strip()
    try:
        found = split_name_servers(line)
    except UsageError as error:
        raise UnreachableError(url, f"the address server's answer names no name servers: {error}") from None
    if not found:
        raise UnreachableError(url, "the address server knows no name servers: its answer is empty")
    return found


class _Received:
    """What HTTPResponse wants of a socket: the bytes that have come."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        del mode
        return io.BytesIO(self._data)


async def fetch(url: str, *, timeout_ms: int = TIMEOUT_MS) -> list[str]:
    """Ask the address server. Raises UnreachableError saying what is wrong, in one line."""
    host_port, _, path = url.removeprefix("http://").partition("/")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            data = await _get(host_port, f"/{path}")
    except TimeoutError:
        raise UnreachableError(url, f"the address server did not answer within {timeout_ms} ms") from None
    except OSError as error:
        raise UnreachableError(url, f"the address server cannot be reached: {reason_of(error)}") from None
    except UnicodeError as error:  # what is to be sent is not ASCII
        raise UnreachableError(url, f"the address server cannot be asked: {error}") from None
    return parse_answer(data, url)


async def _get(host_port: str, path: str) -> bytes:
    host, port = split_address(host_port)
    reader, writer = await asyncio.open_connection(sock=await connect(host, port))
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {host_port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        data = bytearray()
        while len(data) < ANSWER_BYTES_MAX and (piece := await reader.read(ANSWER_BYTES_MAX)):
            data += piece
        return bytes(data)
    finally:
        writer.close()
