"""A task for each connection that a stream server takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def in_tasks(serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """What asyncio's stream servers are to call: `serve` in a task of its own.

    Given the coroutine function itself, the servers of Python 3.11 report a failed callback, with its traceback, for each
    connection that is still open when the loop cancels its tasks (Lib/asyncio/streams.py, StreamReaderProtocol).
    """
    tasks: set[asyncio.Future[None]] = set()  # the loop keeps none alive

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return connected
