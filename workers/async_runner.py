"""Handlers that are coroutine functions: many messages in hand at one time, bounded, on one event loop.

Each record of a chunk becomes a task when it has its turn; at most `concurrency` of them are in the handler. Several chunks
are in hand at once (the supervisor gets the number), so that a slow message holds up nothing but the reports after it in its
own chunk: a chunk is reported in order. While enough calls wait for their turn, reports wait for others, up to the flush
interval: each would cost both processes more than a call. The cell names the call whose step runs, which is what kills a
worker or blocks its loop (steps.py). The loop's heart beats into the cell as the start of a step: a handler that blocks the
loop is over its time limit as one of a plain function is.

The hard time limit of a handler call is kept by cancelling it (`limited`): the message failed, as Java's consume time-out
has it. The soft one would be an exception in the middle of an `await`; it cancels too, so that the earlier of the two
holds. A call that goes on all the same, CLEAN_UP_S after it was cancelled and at its hard limit, costs the worker (steps.py),
as that of a plain function does. Whatever else a call raises is its message's failure too, also the cancellation of something
that it awaited, or of its own task, be that before its first step. Only what a call makes of the end of its worker is none:
it is not reported, and its messages come again. What is raised beside the handler's code is an error of ours: it ends the
worker, as in the synchronous runner, and the call is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from ..conf.units import NS_PER_S
from ..remoting.errors import ProtocolError
from .api import Handler
from .calls import batch_results, chooser, raise_if_ours
from .cells import BEATS
from .descriptors import HOLD_S
from .direct import DirectRunner
from .forks import end_if_forked
from .link import WorkerLink
from .message import Message
from .own_thread import OwnThread
from .packets import Buffer, QueueInfo
from .rows import Prepared
from .run import Run, records_of
from .runner import Runner
from .steps import CallUnderWay, Steps, call_under_way
from .user_errors import CallTimedOutError
from .worker import WorkerLoop

HEART_S: Final = 0.05
"""Between two beats; far below any sensible time limit."""
CLEAN_UP_S: Final = 5.0
"""For what a call does about its cancellation."""
CLOSING_S: Final = 5.0
"""For calls that are cancelled at the end."""

call_began_ns: ContextVar[int] = ContextVar("call_began_ns", default=0)
"""When the call in hand began, on the worker's clock; 0 outside of one."""


class Ended:
    """What the messages of a record came to."""

    __slots__ = ("failures", "rows")

    def __init__(self) -> None:
        self.failures: list[tuple[Message, BaseException]] = []
        self.rows: list[Prepared] = []


class AsyncChunk:
    """One chunk in hand: a result a record, reported as far as they are there without a gap."""

    def __init__(self, chunk_id: int, queue: QueueInfo, offsets: Sequence[int]) -> None:
        self.chunk_id = chunk_id
        self.queue = queue
        self.offsets = offsets
        self.run = Run(chunk_id, queue, offsets, 0)
        """Collects what is not reported yet."""
        self.done: dict[int, tuple[Ended | None, int]] = {}
        """By record: what its messages came to (None: there was none), duration of the call in ns."""
        self.upto = 0

    def ran(self, index: int) -> bool:
        """The call of that record is over."""
        return index < self.upto or index in self.done

    def take_over(self) -> Run:
        """What is finished without a gap, to be reported; what is known of later records waits in the next run."""
        run, upto = self.run, self.upto
        later = self.run = Run(self.chunk_id, self.queue, self.offsets, upto)
        later.failures = {index: run.failures.pop(index) for index in list(run.failures) if index >= upto}
        later.spans = {index: run.spans.pop(index) for index in list(run.spans) if index >= upto}
        return run


class AsyncRunner(Runner):
    """Runs a coroutine handler. `chunk` returns at once; `wake` is called when something can be reported."""

    time_limit: TimeLimit | None = None

    def begin(self, concurrency: int, wake: Callable[[], None]) -> None:
        """Before the first chunk, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._waiting: deque[Callable[[], None]] = deque()
        """Calls in hand that have no turn yet, each to be begun by calling it."""
        self._wake = wake
        self._chunks: dict[int, AsyncChunk] = {}
        self._moved: dict[int, AsyncChunk] = {}
        """Chunks of which something is to be reported."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_until_s = 0.0
        self._broken: tuple[Exception, CallUnderWay] | None = None
        """An error of our own, and the call that it came with."""
        self.steps = Steps(self._cell, self._clock, self.naming.queue)
        self.steps.name_tasks_of(self._loop)
        self._beat()

    @property
    def slowest_ns(self) -> int:
        """No call holds up the loop, be it as long as it likes."""
        return 0

    def forked(self) -> None:
        super().forked()
        self.steps.forked = True

    def _beat(self) -> None:
        self.end_if_forked()
        self.steps.beat(None if self.time_limit is None else self.time_limit.stuck(self._loop.time()))
        self._cell[BEATS] += 1
        self.naming.memory()
        self._loop.call_later(HEART_S, self._beat)

    @property
    def pending(self) -> bool:
        return bool(self._runs or self._moved) or self.look_due

    @property
    def due(self) -> bool:
        """What is pending has waited for the flush interval."""
        return self.pending and self._clock() >= self._due_ns

    @property
    def busy(self) -> bool:
        """Half as many calls again as can run are in hand: a report makes room for none that could begin now."""
        return 2 * len(self._waiting) >= self._concurrency

    def _flush_soon(self) -> None:
        super()._flush_soon()
        self._wake()

    def _lack(self) -> None:
        if not self.lacks:
            self._held_until_s = self._loop.time() + HOLD_S
            self._loop.call_later(HOLD_S, self._wake)
        super()._lack()

    @property
    def look_due(self) -> bool:
        return self.lacks and (not self._tasks or self._loop.time() >= self._held_until_s)

    @property
    def under_way(self) -> bool:
        return bool(self._tasks)

    def looked(self) -> None:
        super().looked()
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """As many calls as may be under way. While descriptors lack none begins, so that they can be counted."""
        while self._waiting and not self.lacks and len(self._tasks) < self._concurrency:
            self._waiting.popleft()()

    def take(self) -> list[Run]:
        for chunk in self._moved.values():
            run = chunk.take_over()
            self._close(run, chunk.upto, run.busy_ns, run.slowest_ns)
        self._moved.clear()
        return super().take()

    def run_chunk(self, chunk_id: int, queue: QueueInfo, data: bytes, records: int) -> None:
        try:
            positions, offsets = records_of(data, records, chunk_id)
        except ProtocolError as error:
            self._fail_chunk(chunk_id, queue, records, error)
            return
        chunk = self._chunks[chunk_id] = AsyncChunk(chunk_id, queue, offsets)
        size = self._bounds.batch_messages_max if self._batch else 1
        for first in range(0, records, size):
            self._start(chunk, data, positions, first, min(first + size, records))

    def _start(
        self, chunk: AsyncChunk, data: bytes, positions: list[int], first: int, end: int,
        instead: BaseException | None = None,
    ) -> None:  # fmt: skip
        """Records [first, end) in one call of the handler, at once or when one of those under way is over; with `instead`
        they fail by that error, and it is not called."""
        if self.lacks or len(self._tasks) >= self._concurrency:
            self._waiting.append(partial(self._start, chunk, data, positions, first, end, instead))
            return
        task = self._loop.create_task(self._call(chunk, data, positions, first, end, instead))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, chunk, data, positions, first, end))

    def _ended(
        self, chunk: AsyncChunk, data: bytes, positions: list[int], first: int, end: int, task: asyncio.Task[None]
    ) -> None:
        """The next call has its turn. Its own records have failed, too, where the call has ended by what the calls around it
        let through (the handler raised GeneratorExit), or before its first step: another call, say, has cancelled it."""
        self._tasks.discard(task)
        if self.steps.ending:
            return
        if not chunk.ran(first):
            before = asyncio.CancelledError("the task of the call was cancelled before its first step")
            error = before if task.cancelled() else task.exception()
            if error is not None:
                self._start(chunk, data, positions, first, end, error)
        self._begin_waiting()
        if self.look_due:
            self._wake()

    async def _call(
        self, chunk: AsyncChunk, data: bytes, positions: list[int], first: int, end: int, instead: BaseException | None
    ) -> None:
        """Records [first, end) in one call of the handler (a message each, unless it takes batches)."""
        offsets = chunk.offsets
        call = CallUnderWay(chunk.chunk_id, chunk.queue, offsets[first], offsets[end - 1], end - first)
        try:
            call_under_way.set(call)
            self.steps.begin(call)
            try:
                await self.steps.named(call, self._run_call(chunk, data, positions, first, end, instead))
            finally:
                self.steps.end(call)
            if not call.ending:
                self._advance(chunk)
        except Exception as error:  # noqa: BLE001  the loop raises it: nobody waits for a task
            self._broken = self._broken or (error, call)
            self._wake()

    def raise_broken(self) -> None:
        """Raise what went wrong in a task, if it was an error of our own."""
        if self._broken is not None:
            raise self._broken[0]

    def name_broken(self) -> None:
        """The worker ends: have the cell name the call that broke it, if one did."""
        if self._broken is not None:
            self.steps.name_last(self._broken[1])

    async def _run_call(
        self, chunk: AsyncChunk, data: bytes, positions: list[int], first: int, end: int, instead: BaseException | None
    ) -> None:
        """All of the user's code that is run for these records."""
        wants = chooser(chunk.queue, self._filter, self._log)
        started = self._clock()
        call_began_ns.set(started)
        scratch = Run(chunk.chunk_id, chunk.queue, chunk.offsets, first)
        places: list[int] = []
        messages: list[Message] = []
        for index in range(first, end):
            found = self._messages_of(scratch, index, data, positions, wants)
            messages += found
            places += [index] * len(found)
        chunk.run.spans |= scratch.spans
        results: list[object] = [instead] * len(messages)
        try:
            if instead is None:
                results = await self._results(messages)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the handler's
            self.end_if_forked(error)
            raise_if_ours(error)
            results = [error] * len(messages)
        ended = {index: Ended() for index in places}
        for index, message, result in zip(places, messages, results, strict=True):
            try:
                if (prepared := self._prepare(message, result)) is not None:
                    ended[index].rows.append(prepared)
            except BaseException as error:  # noqa: BLE001  a generator runs the handler's code
                ended[index].failures.append((message, error))
        took = self._clock() - started
        chunk.run.failures |= scratch.failures  # what could not be decoded
        for index in range(first, end):
            chunk.done[index] = ended.get(index), took

    async def _results(self, messages: list[Message]) -> list[object]:
        """One result a message; exceptions are results. Raises what a batch handler raises."""
        if not messages:
            return []
        if self._batch:
            call = self._function(list(messages))
            return list(batch_results(messages, await call if inspect.isawaitable(call) else call))
        results: list[object] = []
        for message in messages:  # several only of an inner batch
            raise_if_ours()  # the one before may have gone on to its end all the same
            try:
                call = self._function(message)
                results.append(await call if inspect.isawaitable(call) else call)
            except BaseException as error:  # noqa: BLE001
                raise_if_ours(error)
                results.append(error)
            self.end_if_forked(results[-1])
        return results

    def _advance(self, chunk: AsyncChunk) -> None:
        """Take over what is finished without a gap; the flush reports it."""
        run, before = chunk.run, chunk.upto
        first = not self.pending
        if first:
            self._due_ns = self._clock() + self._interval_ns
        while chunk.upto in chunk.done:
            ended, took = chunk.done.pop(chunk.upto)
            run.busy_ns += took
            run.slowest_ns = max(run.slowest_ns, took)
            if ended is None:
                run.filtered += chunk.upto not in run.failures
            else:
                for message, error in ended.failures:
                    self._fail(run, chunk.upto, message, error, took)
                if ended.rows and chunk.upto not in run.failures:
                    self._keep(run, chunk.upto, ended.rows)
            chunk.upto += 1
        if chunk.upto == before:
            return
        self._moved[chunk.chunk_id] = chunk
        if chunk.upto == len(chunk.offsets):
            del self._chunks[chunk.chunk_id]
        if first or not self.busy:
            self._wake()

    async def close(self) -> None:
        """Cancel what is still under way; it is not reported, and comes again."""
        self.steps.end_all()
        for task in self._tasks:
            task.cancel()
        end_s = self._loop.time() + CLOSING_S
        while self._tasks and (left_s := end_s - self._loop.time()) > 0:
            try:
                await asyncio.wait(self._tasks, timeout=left_s)
            except asyncio.CancelledError:
                go_on()


class AsyncWorkerLoop(WorkerLoop):
    """A worker whose handler is a coroutine function. `loop` is the one that its set-up hook ran on, too."""

    def __init__(
        self, link: WorkerLink, handler: Handler, *, loop: asyncio.AbstractEventLoop, concurrency: int,
        rows: Any, clock: Callable[[], int], log: Any, time_limit: TimeLimit | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """`concurrency` calls at one time; `time_limit`: that of `handler`; the rest as for WorkerLoop."""
        super().__init__(link, handler, rows=rows, clock=clock, log=log, runner=AsyncRunner, **more)
        self._direct = DirectRunner(blocking(handler, time_limit), rows, clock, self._log)
        assert isinstance(self._runner, AsyncRunner)
        self._async_runner = self._runner
        self._async_runner.time_limit = time_limit
        self._loop = loop
        self._concurrency = concurrency

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())

    def step(self) -> bool:
        self._async_runner.raise_broken()
        self._async_runner.steps.aside()
        try:
            return super().step()
        finally:
            self._async_runner.steps.rest()

    def tell_left(self) -> None:
        """After the tear-down hook, which may have awaited them: tasks of calls that the end of this process cuts off."""
        left = sum(not task.done() for task in self._async_runner.steps.started)
        if left:
            effect = "they are cut off: a message is done when its call returns, so await what it starts"
            self._log.warning("tasks_left", tasks=left, effect=effect)

    def _on_direct(self, packet: Buffer) -> None:
        super()._on_direct(packet)
        self._async_runner.steps.forget()

    def accuse(self, error: Exception) -> None:
        if not self._runner.is_fork:
            self._async_runner.name_broken()
        super().accuse(error)

    def _holds(self) -> bool:
        """Reports and rows wait for those of others, up to the flush interval, while calls enough are in hand."""
        return self._async_runner.busy and not self._async_runner.due

    def flush(self) -> None:
        self._async_runner.steps.aside()
        super().flush()

    async def _serve(self) -> None:
        something = asyncio.Event()
        runner = self._async_runner
        runner.begin(self._concurrency, something.set)
        self._loop.add_reader(self._link.fileno(), something.set)
        try:
            while self.step():
                if runner.due:
                    self.flush()
                try:
                    await self._rest(something)
                except asyncio.CancelledError:
                    go_on()
        finally:
            self._loop.remove_reader(self._link.fileno())
            await runner.close()

    async def _rest(self, something: asyncio.Event) -> None:
        """Let the calls go on, and until there is something to do where nothing is."""
        if not self._idle:
            await asyncio.sleep(0)
            return
        something.clear()
        if self._async_runner.pending and not self._holds():
            return
        sleep_ms = self._sleep_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if sleep_ms is None else sleep_ms / 1000):
                await something.wait()


def go_on() -> None:
    """The task in hand, which is ours, has been cancelled, and goes on: a call of the handler that cancels all tasks of the
    loop means those of its program."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


class _InTime:
    """A call, as far as its time goes."""

    __slots__ = ("call", "due", "over", "task")

    def __init__(self, task: asyncio.Task[Any], call: CallUnderWay | None, due: float) -> None:
        self.task = task
        self.call = call
        self.due = due
        self.over = False


class TimeLimit:
    """Cancels what takes longer. As asyncio.timeout, which makes a timer for each call: this has one for the call that began
    first, as all have the same limit."""

    def __init__(self, limit_s: float, hard_s: float = 0) -> None:
        """`hard_s`: what goes on so long after its begin is stuck; 0 = nothing is."""
        self.limit_s = limit_s
        self._hard_s = hard_s
        self._open: dict[_InTime, None] = {}
        """Calls in time, the first to be due first."""
        self._over: dict[_InTime, float] = {}
        """Those that were cancelled and have not ended: when they are stuck."""
        self._is_set = False

    def stuck(self, now_s: float) -> CallUnderWay | None:
        """A call that neither its cancellation nor the time for its clean-up has ended."""
        return next((each.call for each, since_s in self._over.items() if now_s >= since_s), None)

    async def keep(self, call: Awaitable[object]) -> object:
        """Its result. Raises CallTimedOutError when it was cancelled for its time."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        own = _InTime(task, call_under_way.get(), loop.time() + self.limit_s)
        self._open[own] = None
        if not self._is_set:
            self._is_set = True
            loop.call_at(own.due, self._look, loop)
        try:
            return await call
        except asyncio.CancelledError:
            if own.over and task.cancelling() <= before + 1:
                raise CallTimedOutError(f"the call took more than {self.limit_s:g} s") from None
            raise
        finally:
            if own.over:
                task.uncancel()
                self._over.pop(own, None)
            else:
                del self._open[own]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is over its time, and look again when the next one is due."""
        now = loop.time()
        for each in list(self._open):
            if each.due > now:
                break
            each.over = True
            del self._open[each]
            if self._hard_s:
                self._over[each] = max(each.due - self.limit_s + self._hard_s, now + CLEAN_UP_S)
            each.task.cancel()
        first = next(iter(self._open), None)
        self._is_set = first is not None
        if first is not None:
            loop.call_at(first.due, self._look, loop)


def time_limit_of(soft_ns: int, hard_ns: int) -> TimeLimit | None:
    """The earlier of the two for coroutines, 0 = none: a signal would leave the loop, and not the call."""
    first_ns = min(filter(None, (soft_ns, hard_ns)), default=0)
    return TimeLimit(first_ns / NS_PER_S, hard_ns / NS_PER_S) if first_ns else None


def limited(handler: Handler, limit: TimeLimit | None) -> Handler:
    """The same coroutine handler, each call cancelled at the limit, if there is one: it raises CallTimedOutError then."""
    if limit is None:
        return handler
    function = handler.function

    async def call(messages: Any) -> object:
        return await limit.keep(function(messages))

    wrapped = copy.copy(handler)
    wrapped.function = call
    call.__module__, call.__qualname__ = handler.name.split(":", 1)
    return wrapped


def one_call_at_a_time(handler: Handler, loop: asyncio.AbstractEventLoop) -> Handler:
    """The same handler as a plain function on that loop: in order, there is nothing to do beside a call."""
    wrapped, function, pid = copy.copy(handler), handler.function, os.getpid()

    def call(messages: Any) -> Any:
        task = loop.create_task(function(messages))
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if (
                os.getpid() == pid and not task.done()
            ):  # something else on the loop has ended it, a task that exits, say
                task.cancel()
                while not task.done():  # its clean-up may cancel who waits for it
                    with contextlib.suppress(asyncio.CancelledError):
                        loop.run_until_complete(asyncio.wait([task]))
            raise

    wrapped.function = wrapped.plain = call
    return wrapped


def blocking(
    handler: Handler, limit: TimeLimit | None = None, begin: Callable[[Callable[[], None]], OwnThread] = OwnThread
) -> Handler:
    """The same handler as a plain function, each call on a loop of its own in a thread: for the rare single call, which
    fails by a NoThreadError where there is no thread. It is cancelled at the same limit as others."""
    wrapped = copy.copy(handler)

    def call(messages: Any) -> Any:
        answer: list[Any] = []
        pid = os.getpid()

        async def once() -> Any:
            try:
                own = handler.plain(messages)
                result = await (own if limit is None else TimeLimit(limit.limit_s).keep(own))  # of this call's loop
            except BaseException as error:
                end_if_forked(pid, error)
                raise
            end_if_forked(pid)  # before the loop is closed, whose descriptors are its parent's
            return result

        def run() -> None:
            try:
                answer.append(asyncio.run(once()))
            except BaseException as error:  # noqa: BLE001  it is the handler's, and raised by the caller
                answer.append(error)

        begin(run).join(threading.TIMEOUT_MAX)
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return answer[0]

    wrapped.function = wrapped.plain = call
    return wrapped
