"""Where the loop of a `SyncProducer` runs: in its caller's thread while a method runs, or all the time in one of its own.

The second is for those who must answer the broker (transactions) or get results later (`send_async`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from ..remoting.errors import UsageError
from .own_process import OwnProcess

T = TypeVar("T")


class Runner(Protocol):
    """Runs coroutines for somebody without a loop; `asyncio.Runner` is one."""

    def run(self, coro: Coroutine[Any, Any, T], /, *, context: contextvars.Context | None = None) -> T: ...

    def close(self) -> None: ...


class Begun(Protocol):
    """A thread that runs; `threading.Thread` is one."""

    def join(self, timeout_s: float, /) -> None: ...


class LoopThread:
    """A loop in a daemon thread, from now until `close`. Any other thread of its process may call `run` and `submit`.

    A fork of it has no such thread: there they raise UsageError.
    """

    def __init__(
        self, name: str = "rocketcrew-producer", begin: Callable[[Callable[[], None]], Begun] | None = None
    ) -> None:
        """`begin` begins a thread by other means than `threading`, without the name."""
        self.process = OwnProcess(f"thread ({name})")
        self.process.enter()
        self._loop = uvloop.new_event_loop()
        try:
            self._thread = begin(self._serve) if begin is not None else _begin(self._serve, name)
        except BaseException:
            self._loop.close()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coro: Coroutine[Any, Any, T], /, *, context: contextvars.Context | None = None) -> T:
        """Wait for the result; an interrupt of the caller cancels the work. Without a context, it runs in the caller's."""
        future = self.submit(coro) if context is None else context.run(self.submit, coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            self.process.enter()
        except UsageError:
            coro.close()
            raise
        return asyncio.run_coroutine_threadsafe(coro, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Have it called in the loop, soon."""
        self.process.enter()
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop and its thread; what still ran is cancelled. In a fork, nothing."""
        if self._loop.is_closed() or self.process.is_elsewhere:
            return
        with contextlib.suppress(asyncio.CancelledError):
            self.run(_cancel_the_others())
        self.run(self._loop.shutdown_default_executor())  # in its thread: the caller may be in a loop of its own
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(threading.TIMEOUT_MAX)
        self._loop.close()


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
