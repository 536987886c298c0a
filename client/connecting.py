"""A TCP connection to a name or an address, by whichever of its addresses answers first.

A name with several addresses may have one that is dead: packets to it get lost, and connecting takes as long as it may. So
the next address is tried beside it after a moment (RFC 8305). Neither loop's own `create_connection` does for us: uvloop's
tries one after the other, each to its end.

Nothing here is done by libuv's threads, as uvloop's `getaddrinfo` and `sock_connect` are (that looks an address up, too): a
child of a fork has none of them, and dies of SIGSEGV when it ends in the usual way, as libuv then waits for them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from .background import background

NEXT_AFTER_S = 0.25
"""Connection Attempt Delay of RFC 8305."""

Resolved = tuple[int, int, int, str, Any]
"""What getaddrinfo gives: family, type, protocol, a name, the socket's address."""


async def connect(host: str, port: int) -> socket.socket:
    """A connected socket. Raises OSError."""
    try:
        resolved = await _resolved(host, port)
    except UnicodeError as error:  # a name with an empty label, or one of more than 63 characters
        raise OSError(f"the host is no name ({error})") from None
    except RuntimeError as error:  # a name is looked up in a thread, and the system may have none left
        raise OSError(str(error)) from None
    return await first_of(resolved)


async def _resolved(host: str, port: int) -> Sequence[Resolved]:
    kind = socket.SOCK_STREAM
    try:  # an address needs no thread
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        look_up = partial(socket.getaddrinfo, host, port, type=kind)
        return await asyncio.get_running_loop().run_in_executor(None, look_up)


async def first_of(resolved: Sequence[Resolved], next_after_s: float = NEXT_AFTER_S) -> socket.socket:
    """A socket connected to the first of them that can be; the next one is tried when one fails, or takes so long.

    (asyncio's `staggered_race` loses the socket of one that connects at the moment in which it is ended.)
    """
    if len(resolved) == 1:
        return await _connect(resolved[0])
    attempts: list[asyncio.Task[socket.socket]] = []
    running: set[asyncio.Task[socket.socket]] = set()
    failed: list[OSError] = []
    winner = None
    try:
        while len(failed) < len(resolved):
            if len(attempts) < len(resolved):
                attempts.append(background(_connect(resolved[len(attempts)])))
                running.add(attempts[-1])
            pause_s = next_after_s if len(attempts) < len(resolved) else None
            done, running = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for attempt in filter(done.__contains__, attempts):
                try:
                    connected = attempt.result()
                except OSError as error:
                    failed.append(error)
                else:
                    winner = attempt
                    return connected
    finally:
        for attempt in attempts:
            if attempt is not winner:
                attempt.cancel()
                attempt.add_done_callback(_close)
    reasons = dict.fromkeys(map(reason_of, failed))
    raise failed[0] if len(reasons) == 1 else OSError("; ".join(reasons))


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """One that did not win: it may have connected at the same moment."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connect(resolved: Resolved) -> socket.socket:
    family, kind, protocol, _, address = resolved
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop does not for a socket that it is given
        failed = made.connect_ex(address)
        if failed in (errno.EINPROGRESS, errno.EINTR):
            await _writable(made)
            failed = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
    except BaseException:
        made.close()
        raise
    return made


async def _writable(made: socket.socket) -> None:
    """It is connected then, or has failed."""
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(made, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(made)


def reason_of(error: OSError) -> str:
    """What the system says, without its number; a name that does not resolve has texts of its own."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error)
    return os.strerror(error.errno)
