"""Tasks of a client that go on beside its calls; nobody is told of those that are left when their loop ends. And the end of
what has several parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .logs import get_logger

T = TypeVar("T")

_log = get_logger("rocketcrew.client")


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


async def take_each(*steps: Callable[[], Awaitable[None]]) -> None:
    """Take each step, in this order, whatever an earlier one raises. Raises at the end: a cancellation (or what else is no
    Exception) where there was one, as who has asked for it waits for it, else the first error; the others are logged."""
    raised: list[BaseException] = []
    for step in steps:
        try:
            await step()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)
    if not raised:
        return
    first = next((one for one in raised if not isinstance(one, Exception)), raised[0])
    for other in raised:
        if other is not first and isinstance(other, Exception):
            _log.warning("step_of_the_end_failed", exc_info=other)
    raise first
