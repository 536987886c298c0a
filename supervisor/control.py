"""The control socket: a Unix socket in the slot (mode 0600), one JSON object a line in, one out.

The commands are a table; each gets the request and gives plain data, at once or as an
awaitable. An unknown one is answered with the known ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from ..remoting.errors import RocketcrewError, UsageError
from .connected import in_tasks

SOCKET_NAME = "control.sock"
LINE_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 10.0
_SUN_PATH_MAX = 100
"""A Unix socket's path holds 108 bytes on Linux, 104 on macOS."""

Command = Callable[[Mapping[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


class ControlServer:
    """Answers on `<slot>/control.sock` as long as the supervisor's loop runs."""

    def __init__(self, slot: Path, commands: Mapping[str, Command]) -> None:
        self._slot = slot
        self._commands = commands
        self._server: asyncio.Server | None = None

    async def bind(self) -> None:
        """Make the socket; nobody is answered before `serve`."""
        path = self._slot / SOCKET_NAME
        path.unlink(missing_ok=True)  # the slot is locked: a socket that lies here is of a dead run
        with _short_path(self._slot) as folder:
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(
                    in_tasks(self._serve), folder + "/" + SOCKET_NAME, limit=LINE_BYTES_MAX, start_serving=False
                )
            finally:
                os.umask(before)

    async def serve(self) -> None:
        """Answer from now on."""
        assert self._server is not None
        await self._server.start_serving()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            (self._slot / SOCKET_NAME).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await _line(reader):
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request: Any = json.loads(line)
            name = request["command"]
            command = self._commands[name]
        except (ValueError, KeyError, TypeError, RecursionError):  # the last: json, of what is nested too deeply
            known = ", ".join(sorted(self._commands))
            return {"error": f'not understood: send {{"command": NAME}} with NAME one of {known}'}
        try:
            answer = command(request)
            return await answer if inspect.isawaitable(answer) else answer
        except RocketcrewError as error:
            return {"error": str(error)}


async def ask(slot: Path, command: str, *, timeout_s: float = REQUEST_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
    """Send one command to the supervisor that holds the slot. Raises UsageError when none answers."""
    try:
        with _short_path(slot) as folder:
            reader, writer = await asyncio.open_unix_connection(folder + "/" + SOCKET_NAME, limit=1 << 24)
    except OSError as error:
        raise UsageError(f"no supervisor answers in {slot}: {error.strerror or error}. Is it running?") from error
    try:
        writer.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
        try:
            line = await _line(reader, timeout_s)
        except ConnectionError:
            line = b""  # killed, with our question unread
        if not line:
            raise UsageError(f"the supervisor in {slot} closed the connection: it may just have ended; see its log")
        answer: dict[str, Any] = json.loads(line)
        return answer
    except TimeoutError as error:
        raise UsageError(
            f"the supervisor in {slot} did not answer within {timeout_s:.0f} s: it may be busy or stopped; try"
            " again, or see its log"
        ) from error
    finally:
        writer.close()


async def _line(reader: asyncio.StreamReader, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
    """The next line, empty at the end. Not by `asyncio.wait_for`: up to Python 3.11 that loses a cancellation, and with it a
    Ctrl-C, that comes together with the line."""
    async with asyncio.timeout(timeout_s):
        return await reader.readline()


@contextlib.contextmanager
def _short_path(folder: Path) -> Generator[str]:
    """The folder's path, through /proc/self/fd where it is too long for a socket's address."""
    text = str(folder)
    if len(os.fsencode(text)) + len(SOCKET_NAME) + 1 <= _SUN_PATH_MAX or not os.path.isdir("/proc/self/fd"):
        yield text
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
