"""A loop in a thread: what fails or is interrupted while it starts, waits or ends leaves nothing behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketcrew.client.loop_thread import LoopThread, _start_elsewhere  # pyright: ignore[reportPrivateUsage]
from rocketcrew.remoting.errors import UsageError

from .conftest import DEADLINE_S


class Interrupted(BaseException):
    """As the exception of a signal's handler."""


class Begins:
    """Begins a thread, and is interrupted when the loop in it runs, or before there is one."""

    def __init__(self, *, runs: bool) -> None:
        self._runs = runs
        self.loops: list[LoopThread] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, run: Callable[[], None]) -> threading.Thread:
        self.threads.append(threading.Thread(target=run, daemon=True))
        if self._runs:
            self.threads[0].start()
        raise Interrupted


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("runs", [True, False], ids=["the thread is there", "it comes later"])
def test_an_interrupted_start_raises_the_interrupt_and_leaves_no_thread_and_no_descriptor(runs: bool) -> None:
    LoopThread().close()  # what a first one opens for good
    before = descriptors()
    begins = Begins(runs=runs)
    with pytest.raises(Interrupted):
        LoopThread(begin=begins)
    (thread,) = begins.threads
    if not runs:
        thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert descriptors() == before


def test_one_that_has_not_started_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    LoopThread().close()
    before = descriptors()
    LoopThread(starts=False)
    LoopThread(starts=False).close()
    assert descriptors() == before
    assert caplog.records == []


def test_a_thread_that_cannot_start_is_the_callers_error() -> None:
    thread = threading.Thread(target=int)
    _start_elsewhere(thread)
    thread.join(DEADLINE_S)
    with pytest.raises(RuntimeError, match="only be started once"):
        _start_elsewhere(thread)


def test_what_is_cancelled_in_it_is_an_ordinary_error_of_the_caller() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    thread = LoopThread()
    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(cancelled())
    thread.close()
    assert thread.is_closed


def test_a_call_that_the_loop_does_not_come_back_to_ends_with_it() -> None:
    said: concurrent.futures.Future[BaseException] = concurrent.futures.Future()
    thread = LoopThread()

    async def stops() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.run(stops())
        except concurrent.futures.CancelledError as error:
            said.set_result(error)

    threading.Thread(target=call, daemon=True).start()
    assert isinstance(said.result(DEADLINE_S), concurrent.futures.CancelledError)
    thread.close()
    assert thread.is_closed


def test_a_call_of_which_the_loop_can_make_no_task_raises_why() -> None:
    def refuses(_loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **_: object) -> asyncio.Task[Any]:
        raise MemoryError(f"no room for {coro.__name__}")

    async def refuse() -> None:
        asyncio.get_running_loop().set_task_factory(refuses)

    async def work() -> None: ...

    thread = LoopThread()
    thread.run(refuse())
    with pytest.raises(MemoryError, match="no room for work"):
        thread.run(work())
    thread.call(lambda: asyncio.get_running_loop().set_task_factory(None))
    thread.close()


def test_what_comes_too_late_is_told_so() -> None:
    async def work() -> None: ...

    def end_of(submitted: concurrent.futures.Future[None]) -> None:
        with pytest.raises(concurrent.futures.CancelledError):
            submitted.result(DEADLINE_S)

    thread = LoopThread()
    thread.run(work())  # its loop runs by now
    submitted: list[concurrent.futures.Future[None]] = []
    thread.call(lambda: (asyncio.get_running_loop().stop(), submitted.append(thread.submit(work()))))
    thread.close()
    end_of(submitted[0])  # it came between the last turn of the loop and its end
    with pytest.raises(UsageError, match="too late"):
        thread.submit(work())
    with pytest.raises(UsageError, match="too late"):
        thread.run(work())
    with pytest.raises(UsageError, match="too late"):
        thread.call(int)


class Watched:
    """Begins a thread, and keeps what comes out of it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def __call__(self, run: Callable[[], None]) -> threading.Thread:
        def watched() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001
                self.errors.append(repr(error))

        self.threads.append(threading.Thread(target=watched, daemon=True))
        self.threads[0].start()
        return self.threads[0]


def test_an_end_that_others_interrupt_is_no_error_of_the_thread() -> None:
    watched = Watched()
    thread = LoopThread(begin=watched)
    waits = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            waits.set()
            await asyncio.Event().wait()  # until it is cancelled once more

    def stop() -> None:
        asyncio.get_running_loop().stop()

    submitted = thread.submit(slow())
    thread.call(stop)
    assert waits.wait(DEADLINE_S)  # the loop runs on for the end of this one
    thread.call(stop)  # as a second `close` does
    closers = [threading.Thread(target=thread.close, daemon=True) for _ in range(3)]
    for closer in closers:
        closer.start()
    for each in (*closers, *watched.threads):
        each.join(DEADLINE_S)
        assert not each.is_alive()
    with pytest.raises(concurrent.futures.CancelledError):
        submitted.result(DEADLINE_S)
    assert watched.errors == []


def test_a_loop_that_a_task_ends_by_system_exit_ends_the_others_too(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    thread = LoopThread(begin=watched)

    async def waits() -> None:
        await asyncio.Event().wait()

    async def exits() -> None:
        raise SystemExit(3)

    waiting = thread.submit(waits())
    with pytest.raises(SystemExit):
        thread.submit(exits()).result(DEADLINE_S)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(DEADLINE_S)
    watched.threads[0].join(DEADLINE_S)
    assert thread.is_closed
    assert watched.errors == ["SystemExit(3)"]
    gc.collect()
    assert caplog.records == []
