"""Where the loop of a `SyncProducer` runs: in its caller's thread while a method runs, or all the time in one of its own.

The second is for those who must answer the broker (transactions) or get results later (`send_async`).
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

import uvloop

from ..remoting.errors import UsageError
from .logs import get_logger
from .own_process import OwnProcess, allocate_lock

T = TypeVar("T")

_log = get_logger("rocketcrew.client")


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
        self,
        name: str = "rocketcrew-producer",
        begin: Callable[[Callable[[], None]], Begun] | None = None,
        *,
        starts: bool = True,
    ) -> None:
        """`begin` begins a thread by other means than `threading`, without the name. Where it does not start here, nothing
        runs before `start`."""
        self._name = name
        self._begin = begin
        self.process = OwnProcess(f"thread ({name})")
        self.process.enter()
        self._loop = _Loop()
        self._claim = allocate_lock()
        """Whoever takes it has the loop: the thread runs it, or `close` ends it first, and a thread that comes later does
        nothing. Nobody else knows: an exception from a signal may come in the middle of a start."""
        self._thread: Begun | None = None
        self._calls: set[_Call[Any]] = set()
        """Those that somebody waits for: the loop may stop before it comes to one."""
        self._submitted: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}
        """Futures that are not done, for the same reason."""
        self.calls_ended = 0
        """Of both: it says that the loop gets on. How many there are does not, as others may begin meanwhile."""
        self._ended_by = ""
        """What was raised through it, in words."""
        if starts:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def start(self) -> None:
        """Once. What fails here or is interrupted leaves something to `close`."""
        if self._begin is not None:
            self._thread = self._begin(self._serve)
            return
        self._thread = thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        _start_elsewhere(thread)

    def _serve(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # a SystemExit of a callback, say: it ends the thread, in silence
            self._ended_by = f"{type(error).__name__}({error})"
            _log.warning("loop_ended", thread=self._name, error=self._ended_by, effect="what was under way is cut off")
            raise
        finally:
            try:
                self._end_tasks()
            finally:
                self._end_loop()

    def _end_tasks(self) -> None:
        """Those that are left, or have begun since: nobody would hear of their end. By no task, which a `close` of another
        thread would cancel; it may stop the loop too, which then runs on."""
        cancelled: set[asyncio.Task[Any]] = set()
        self._loop.call_soon(self._loop.stop)  # one turn at least: who waits for one that has ended is told
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task; whoever waits for it gets it
                self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            if not left:
                return
            for task in left - cancelled:
                task.add_done_callback(self._ended_late)
                task.cancel()
            cancelled |= left

    def _ended_late(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # is asked for here: asyncio would log it
        self._loop.stop()

    def _end_loop(self) -> None:
        self._loop.close()  # first: from now on no call begins
        for call in tuple(self._calls):
            call.give_up()
        for future in tuple(self._submitted):
            self._give_up(future)

    def _give_up(self, future: concurrent.futures.Future[Any]) -> None:
        """The loop has ended before it came to it."""
        coro = self._submitted.get(future)
        if future.cancel() and coro is not None:
            coro.close()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    @property
    def is_ending(self) -> bool:
        """Whether it is closed, or something was raised through it: known before any call hears that it is cut off."""
        return bool(self._ended_by) or self.is_closed

    @property
    def owes(self) -> int:
        """How many calls others wait for, or have the future of."""
        return len(self._calls) + len(self._submitted)

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this very thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def run(self, coro: Coroutine[Any, Any, T], /, *, context: contextvars.Context | None = None) -> T:
        """Wait for the result; an interrupt of the caller cancels the work. Without a context, it runs in the caller's.

        Raises UsageError in the thread itself, and where the loop has ended.
        """
        try:
            self.refuse_itself()
            self.process.enter()
        except UsageError:
            coro.close()
            raise
        call = _Call(coro)
        try:
            self._calls.add(call)
            self._soon(call.begin, context)
            call.ended.acquire()
        except BaseException:
            try:
                self._soon(call.cancel)
            except UsageError:
                call.give_up()
            raise
        finally:
            self._calls.discard(call)
            self.calls_ended += 1
        return call.result()

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
            sent = asyncio.run_coroutine_threadsafe(coro, self._loop)
        except UsageError:
            coro.close()
            raise
        except RuntimeError:
            coro.close()
            raise self._ended() from None
        self._submitted[sent] = coro
        sent.add_done_callback(self._submitted_ended)
        if self._loop.is_closed():  # since then: whoever has closed it may not have seen this one
            self._give_up(sent)
        return sent

    def _submitted_ended(self, future: concurrent.futures.Future[Any]) -> None:
        self._submitted.pop(future, None)
        self.calls_ended += 1

    def call(self, function: Callable[[], object]) -> None:
        """Have it called in the loop, soon. Raises UsageError where the loop has ended."""
        self.process.enter()
        self._soon(function)

    def _soon(self, function: Callable[[], object], context: contextvars.Context | None = None) -> None:
        try:
            self._loop.call_soon_threadsafe(function, context=context)
        except RuntimeError:
            raise self._ended() from None

    def _ended(self) -> UsageError:
        why = f"was ended by {self._ended_by}, raised in its thread" if self._ended_by else "is closed"
        return UsageError(f"this call comes too late: what it needs {why} ({self._name})")

    def close(self) -> None:
        """End the loop and its thread; what still ran is cancelled. In a fork, nothing. Raises UsageError in the thread."""
        if self._loop.is_closed() or self.process.is_elsewhere:
            return
        if self._claim.acquire(blocking=False):
            self._end_loop()
            return
        with contextlib.suppress(concurrent.futures.CancelledError):
            try:
                self.run(self._finish())
            except UsageError:
                if not self._loop.is_closed():  # else another thread has ended it just now
                    raise
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(threading.TIMEOUT_MAX)

    def end_after(self, last: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        """Have the loop do this, then end as by `close`. Waits for nothing: the thread ends a moment after the future."""

        async def ending() -> None:
            try:
                try:
                    await last
                finally:
                    await self._finish()
            finally:
                self._loop.call_soon(self._loop.stop)  # it runs what is due first, as the end of the future

        return self.submit(ending())

    async def _finish(self) -> None:
        await self._cancel_all()
        await self._loop.shutdown_default_executor()  # in its thread: the caller may be in a loop of its own

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Loop(uvloop.Loop):
    """An exception from a signal may come before anybody has it, or while it is made: then it closes what it has."""

    def __del__(self) -> None:
        if not self.is_closed():
            with contextlib.suppress(TypeError):  # half made, it has no queue to empty, and nothing open
                self.close()


def _start_elsewhere(thread: threading.Thread) -> None:
    """By a thread in which no handler of a signal runs: an exception in the middle of `Thread.start` would keep the new one
    from running, in silence or with a traceback on stderr."""
    failed: list[BaseException] = []
    ended = threading.Lock()
    ended.acquire()

    def start() -> None:
        try:
            thread.start()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            ended.release()

    _thread.start_new_thread(start, ())
    ended.acquire()
    if failed:
        raise failed[0]


class _Call(Generic[T]):
    """What one thread waits for and the loop's does. All that they share is a plain lock, which only the loop's releases. A
    future of `concurrent.futures` has a Condition: an exception that a signal raises in the middle of one leaves it locked,
    and the loop would wait for it, for ever."""

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        self._coro = coro
        self._task: asyncio.Task[T] | None = None
        self._failed: BaseException | None = None
        self.ended = allocate_lock()
        self.ended.acquire()

    def begin(self) -> None:
        try:
            self._task = asyncio.get_running_loop().create_task(self._coro)
            self._task.add_done_callback(self._end)
        except BaseException as error:  # noqa: BLE001 - whoever waits hears it: want of memory, say
            self._failed = error
            self.give_up()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # is asked for here: nobody does after an interrupt, and asyncio would log it
        self.ended.release()

    def cancel(self) -> None:
        if self._task is None:
            self._coro.close()
        else:
            self._task.cancel()

    def give_up(self) -> None:
        """The loop has ended, or did not take it."""
        if self._task is None:
            self._coro.close()
        if self.ended.locked():
            self.ended.release()

    def result(self) -> T:
        if self._failed is not None:
            raise self._failed
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise concurrent.futures.CancelledError
        return self._task.result()
