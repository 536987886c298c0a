"""Tasks of a client that go on beside its calls; nobody is told of those that are left when their loop ends. One that many
wait for. And the end of what has several parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

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


class Waiters:
    """Many that wait for one thing, each as long as it likes. Those that `wake` finds go on in the order in which they came,
    a turn of the loop later: whoever comes in between, and does not wait, is before them.

    With one future for all of them, by `asyncio.wait` or `shield`, whoever gives up looks at the callbacks of all: a few
    thousand sends whose time is over would keep the loop busy for seconds.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Whether `wake` was called, within so long."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = None
        timer = loop.call_later(timeout_s, _tell, waiter, False) if timeout_s is not None else None
        try:
            return await waiter
        finally:
            self._waiting.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """All that wait now."""
        for waiter in self._waiting:
            _tell(waiter, True)


def _tell(waiter: asyncio.Future[bool], woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(woken)


class Shared(Generic[T]):
    """A `background` task that many wait for; whoever gives up does not end it."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task = background(work)
        self._waiters = Waiters()
        self.task.add_done_callback(lambda _: self._waiters.wake())

    async def ended(self, timeout_s: float | None = None) -> bool:
        """Wait for it, so long at most; whether it has ended."""
        return self.task.done() or await self._waiters.wait(timeout_s)


async def take_each(*steps: Callable[[], Awaitable[None]]) -> None:
    """Take each step, in this order, whatever an earlier one raises. Raises at the end: a cancellation (or what else is no
    Exception) where there was one, as who has asked for it waits for it, else the first error; the others are logged.

    Where its loop is dropped in the middle of one, the others are not taken: there is nothing that they could wait in."""
    raised: list[BaseException] = []
    for step in steps:
        try:
            await step()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)
    if not raised:
        return
    first = next((one for one in raised if not isinstance(one, Exception)), raised[0])
    for other in raised:
        if other is not first and isinstance(other, Exception):
            _log.warning("step_of_the_end_failed", exc_info=other)
    raise first
