"""Tasks of a client that go on beside its calls; nobody is told of those that are left when their loop ends. And the end of
what has several parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run it as a task of the running loop.

    asyncio logs an error with the inner parts of each task that was pending when its loop ended. Who did not close a client
    is told so once, by a warning that names what was not closed: see `Producer`. asyncio has no other switch than this one,
    which it uses for tasks of its own; tasks of somebody else's factory may have none.
    """
    task = asyncio.get_running_loop().create_task(work)
    switch: Any = task
    with contextlib.suppress(AttributeError):
        switch._log_destroy_pending = False
    return task


async def to_the_end(*steps: Callable[[], Awaitable[None]]) -> None:
    """Take each step, in this order, whatever an earlier one raises, a cancellation too; that comes out at the end."""
    async with contextlib.AsyncExitStack() as stack:
        for step in reversed(steps):
            stack.push_async_callback(step)
