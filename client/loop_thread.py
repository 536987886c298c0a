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
        self._name = name
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
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this very thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def run(self, coro: Coroutine[Any, Any, T], /, *, context: contextvars.Context | None = None) -> T:
        """Wait for the result; an interrupt of the caller cancels the work. Without a context, it runs in the caller's.

        Raises UsageError in the thread itself.
        """
        try:
            self.refuse_itself()
        except UsageError:
            coro.close()
            raise
        future = self.submit(coro) if context is None else context.run(self.submit, coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def refuse_itself(self) -> None:
        """Raise UsageError in this thread: what waits here for the loop waits for itself, for ever."""
        if self.is_here:
            raise UsageError(
                f"this call would wait for itself: it is made in the thread that has to do it ({self._name}), where callbacks"
                " of futures, selectors, hooks and generators run; use send_async there, or call in another thread"
            )

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
        """End the loop and its thread; what still ran is cancelled. In a fork, nothing. Raises UsageError in the thread."""
        if self._loop.is_closed() or self.process.is_elsewhere:
            return
        with contextlib.suppress(asyncio.CancelledError):
            self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(threading.TIMEOUT_MAX)

    def end_after(self, last: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        """Have the loop do this, then end as by `close`. Waits for nothing: the thread ends a moment after the future."""

        async def ending() -> None:
            try:
                await last
            finally:
                await self._finish()

        future = self.submit(ending())
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        return future

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()  # in its thread: the caller may be in a loop of its own


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
