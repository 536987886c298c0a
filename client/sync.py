"""For code without an event loop: scripts, Spark executors.

A `SyncProducer` owns a loop that runs only while one of its methods does. So nothing keeps its connections alive in
between: brokers close them after 120 s, firewalls in silence. Hence before each call connections unused for 30 s are
closed, and the loop is given a moment to notice those that the peer has closed, so that the call begins on a sound one.
And after each call it goes on for what was asked of name servers meanwhile, half a second at most: for later calls.

With `background=True`, or a `check` for transactions, the loop has a thread of its own: heartbeats go out, the broker's
questions after transactions are answered (`check` is called in a thread too), and `send_async` is possible. Where nobody
closes such a producer, what it has begun is sent all the same: when nobody has it any more its loop closes it, and the end of
the program waits for what is under way.

Inside a running loop (a notebook's, an async program's) it needs such a thread, and raises a UsageError without. A call
blocks that loop; `Producer` does not.

Any number of threads may use a producer with `background=True`. Without, one at a time: a call beside that of another thread
is a UsageError. One process: see own_process.py. Until its first call a producer is nobody's, so one that is made where a
module is imported may be used in each process that is forked afterwards.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import selectors
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, Unpack

from ..remoting.arguments import FLAG, number
from ..remoting.arguments import check as check_arguments
from ..remoting.compression import Compression
from ..remoting.errors import RocketcrewError, UsageError
from .access import Access, NameServerList, access_to
from .cluster import Cluster
from .logs import get_logger
from .loop_thread import LoopThread, Runner
from .opening import open_cluster
from .outgoing import COMPRESS_FROM_BYTES, Body, MessageFields, OutgoingMessage, as_message
from .producer import DEFAULT_GROUP, IN_FLIGHT_MAX, Producer
from .selection import QueueSelector
from .send_hooks import SendHook
from .send_result import SendResult
from .sending import RETRIES, SEND_TIMEOUT_MS, SendRules
from .transactions import (
    Check,
    LocalTransactionState,
    TransactionSendResult,
    as_state,
    check_transaction,
    state_without_execution,
)

IDLE_MS = 30_000
BUSY_S = 1.0
"""At the end of a program, beyond the time of a send: for a loop that is kept busy."""
LAST_TURNS = 20
"""A cancelled send needs five: its request, lane, gathering, task and its own end."""
_RULES: Final = {"idle_ms": number(), "background": FLAG}

T = TypeVar("T")

_log = get_logger("rocketcrew.client")


def run_with_cluster(target: NameServerList | Access, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Open a cluster, await `work(cluster)`, close it: for commands that ask something and end. Returns what it returns."""
    _refuse_running_loop("run_with_cluster")

    async def run() -> T:
        async with open_cluster(target) as cluster:
            return await work(cluster)

    return asyncio.run(run())


class SyncProducer:
    """`Producer` with blocking methods: `with SyncProducer("127.0.0.1:9876") as producer:`.

    With `background=True` any number of threads may use it, its connections stay open between calls, and `send_async` is
    possible. Without, one thread at a time uses it: a call beside that of another thread is a UsageError.

    The process that made its first call uses it: in the child of a fork, which shares its sockets, calls are a UsageError,
    and `close` does nothing.
    """

    def __init__(
        self,
        target: NameServerList | Access,
        group: str = DEFAULT_GROUP,
        *,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        rules: SendRules | None = None,
        check: Check | None = None,
        hooks: Sequence[SendHook] = (),
        trace: bool | str = False,
        spans: bool = True,
        compression: Compression = Compression.ZLIB,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        idle_ms: int = IDLE_MS,
        background: bool = False,
    ) -> None:
        """Connects nothing yet. Raises UsageError for bad addresses or group, or without a thread inside a running loop."""
        taken = check_arguments("SyncProducer", {"idle_ms": idle_ms, "background": background}, _RULES)
        idle_ms, background = taken["idle_ms"], taken["background"]
        if not background and check is None:
            _refuse_running_loop("SyncProducer", ", or background=True")
        self._idle_ms = idle_ms
        self._background = background or check is not None
        self._make = partial(
            Producer,
            access_to(target),
            group,
            send_timeout_ms=send_timeout_ms,
            retries=retries,
            rules=rules,
            check=check,
            hooks=hooks,
            trace=trace,
            spans=spans,
            compression=compression,
            compress_from_bytes=compress_from_bytes,
        )
        self._producer = self._make()
        self._is_new = True
        """No loop has begun that producer."""
        self._works: _Works | None = None  # made by the first call: before it the producer may cross a fork
        self._lock = threading.RLock()  # a signal's handler may call, too
        """Held for the moment in which a call begins, or `close`."""
        self._user: int | None = None
        """The thread inside a call; without a thread of its own."""
        self._closed = False
        self._unclosed: weakref.finalize[..., Any] | None = None
        """What a thread of its own does when nobody has this any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """As `Producer.send`."""
        return self._call(
            lambda producer: producer.send(message, body, timeout_ms=timeout_ms, selector=selector, **fields)
        )

    def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
    ) -> SendResult:
        """As `Producer.send_batch`."""
        return self._call(lambda producer: producer.send_batch(messages, timeout_ms=timeout_ms, selector=selector))

    def send_oneway(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> str:
        """As `Producer.send_oneway`; what the socket does not take at once goes out with the next call or `close`."""
        return self._call(
            lambda producer: producer.send_oneway(message, body, timeout_ms=timeout_ms, selector=selector, **fields)
        )

    def send_many(
        self, messages: Iterable[OutgoingMessage], *, in_flight_max: int = IN_FLIGHT_MAX, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """As `Producer.send_many`."""
        return self._call(
            lambda producer: producer.send_many(messages, in_flight_max=in_flight_max, timeout_ms=timeout_ms)
        )

    def send_async(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> concurrent.futures.Future[SendResult]:
        """As `send`, without waiting: the future has the result or the error. IN_FLIGHT_MAX are under way at once; the others
        are kept until it is their turn, and their time begins then. Other methods wait for no turn: where the order counts,
        wait for the futures before. Needs `background=True`."""
        if not self._background or self._closed:
            raise UsageError("send_async needs a producer made with background=True that is not closed")
        producer, runner = self._enter()
        assert isinstance(runner, _ProducerThread)
        with contextlib.suppress(UsageError, TypeError):  # else the future has it
            # Here and now: the body may be a bytearray, with which the caller goes on.
            message, body, fields = as_message(message, body, fields), None, {}
        sent = runner.submit(producer.send_in_turn(message, body, timeout_ms=timeout_ms, selector=selector, **fields))
        if _waited_at_exit.is_set() and not runner.is_here:  # nobody else waits for it any more
            _wait_for({sent: runner}, timeout_ms or producer.send_timeout_ms)
        return sent

    def send_in_transaction(
        self,
        message: OutgoingMessage,
        execute: Callable[[OutgoingMessage, SendResult], LocalTransactionState],
        *,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """As `Producer.send_in_transaction`; `execute` is called in this thread, `check` later in another."""
        check_transaction(message, execute)
        self._producer.refuse_without_check()
        token = object()
        try:
            result = self._call(lambda producer: producer.begin_transaction(message, token, timeout_ms=timeout_ms))
            assert self._works is not None
            producer, runner = self._works  # whoever has a check has a thread: it keeps them
            state, error = state_without_execution(result.status), None
            if state is None:
                try:
                    state = as_state(execute(message, result))
                except Exception as raised:  # noqa: BLE001 - the user's code; the broker asks for the state later
                    state, error = LocalTransactionState.UNKNOW, raised
                    _log.exception("local_transaction_failed", topic=message.topic, msg_id=result.message_id)
            try:
                runner.run(producer.end_transaction(result, state, error, message))
            except (UsageError, concurrent.futures.CancelledError) as lost:  # `close` of another thread has given up
                _log.warning("transaction_end_not_sent", topic=message.topic, state=state.name, error=str(lost))
        finally:
            self._transaction_over(token)
        return TransactionSendResult(result, state, error)

    def _transaction_over(self, token: object) -> None:
        works = self._works
        if works is not None:
            assert isinstance(works.runner, LoopThread)
            with contextlib.suppress(UsageError):  # closed
                works.runner.call(lambda: works.producer.transaction_over(token))

    def recall(self, topic: str, recall_handle: str) -> str:
        """As `Producer.recall`."""
        return self._call(lambda producer: producer.recall(topic, recall_handle))

    def close(self) -> None:
        """Wait for what `send_async` has begun and other threads send, until none has ended well for `send_timeout_ms`; what
        is not sent by then is cancelled, and a warning says how many. Send what is buffered, leave the group, close the
        connections. Idempotent; in a fork of the process that has used it, nothing.
        """
        if self._producer.process.is_elsewhere:
            return
        works = self._works
        if works is not None and isinstance(works.runner, LoopThread):
            works.runner.refuse_itself()
        elif works is not None:
            _refuse_running_loop("SyncProducer", ", or background=True")
        with self._lock:
            self._refuse_another_thread()
            was_closed, self._closed = self._closed, True
        works = self._works
        if was_closed or works is None:
            return
        if self._unclosed is not None:
            self._unclosed.detach()
        try:
            works.runner.run(works.producer.close())
        except (UsageError, concurrent.futures.CancelledError):
            if not (isinstance(works.runner, LoopThread) and works.runner.is_ending):
                raise  # else a callback's SystemExit, say, has ended it: there is nothing to close any more
        finally:
            _cut(works)

    def _call(self, call: Callable[[Producer], Coroutine[Any, Any, T]]) -> T:
        works = self._enter()
        context = contextvars.copy_context()  # the caller's span is the parent of what is sent
        try:
            if self._background:
                return works.runner.run(call(works.producer), context=context)
            return self._run_here(works, call(works.producer), context)
        finally:
            self._user = None

    def _run_here(self, works: _Works, work: Coroutine[Any, Any, T], context: contextvars.Context) -> T:
        """In the caller's thread. What is none of our errors was maybe raised by a signal (a handler's time limit, say), in
        the middle of anything: a wake-up may be lost that a later call would wait for, or half of a frame. So nothing of the
        loop, its tasks and connections is left for the next call."""
        try:
            works.runner.run(self._notice_lost_connections(works.producer))
            try:
                result = works.runner.run(work, context=context)
            except RocketcrewError:
                self._settle(works)
                raise
            self._settle(works)
            return result
        except RocketcrewError:
            raise
        except BaseException:
            self._drop(works)
            raise
        finally:
            work.close()

    def _settle(self, works: _Works) -> None:
        """The name server is silent for a question whose loop stands still, and a route would never be renewed."""
        if not works.producer.cluster.is_settled:
            works.runner.run(works.producer.cluster.settled())

    def _enter(self) -> _Works:
        """What runs one call. Raises UsageError where no call is possible."""
        if not self._background:
            _refuse_running_loop("SyncProducer", ", or background=True")
        self._producer.process.enter()
        with self._lock:
            self._refuse_another_thread()
            if self._closed:
                raise UsageError("this producer is closed: make a new one")
            works = self._works or self._begun()
            self._user = threading.get_ident()
        return works

    def _refuse_another_thread(self) -> None:
        """Without a thread of its own. A mark that is left of this one, by an exception from a signal, is of no call: no loop
        runs here."""
        if not self._background and self._user not in (None, threading.get_ident()):
            raise UsageError(
                "another thread is inside a call of this producer: make one for each thread, or one with background=True,"
                " which any number of threads may use"
            )

    def _begun(self) -> _Works:
        if not self._is_new:
            self._producer = self._make()
        producer, self._is_new = self._producer, False
        runner = _ProducerThread(producer) if self._background else _CallRunner()
        works = _Works(producer, runner)

        async def start() -> None:
            producer.start()

        try:
            if isinstance(runner, _ProducerThread):
                runner.start()
            if self._works is not None:  # a signal's handler has called meanwhile
                runner.close()
                return self._works
            self._works = works
            runner.run(start())
            if isinstance(runner, _ProducerThread):
                self._unclosed = weakref.finalize(self, runner.leave)
                self._unclosed.atexit = False  # atexit functions of the user's may still send
        except BaseException:
            self._drop(works)
            raise
        return works

    def _drop(self, works: _Works) -> None:
        """The next call begins with a loop and a producer that are new; it makes them, as a second signal may come here."""
        if self._works is works:
            self._works = None
        _cut(works)

    async def _notice_lost_connections(self, producer: Producer) -> None:
        producer.cluster.remoting.close_idle(self._idle_ms)
        # One turn polls the sockets, the next reads the end of those that the peer has closed, the third tells of it.
        for _ in range(3):
            await asyncio.sleep(0)


class _Works(NamedTuple):
    """A producer and where its loop runs. They come and go in one assignment: a signal's exception that came between two
    would leave a producer with the loop of another, for which it raises UsageError for ever."""

    producer: Producer
    runner: Runner


def _cut(works: _Works) -> None:
    """End its connections, if there are any left, then its loop."""
    if isinstance(works.runner, LoopThread) and not works.runner.is_closed:
        with contextlib.suppress(UsageError):  # it has ended just now
            works.runner.call(works.producer.abandon)
    else:
        works.producer.abandon()
    works.runner.close()


_threads: weakref.WeakSet[_ProducerThread] = weakref.WeakSet()
"""Those that run, and maybe some that have ended."""
_waited_at_exit: Final = threading.Event()
"""What begins from now on `wait_at_exit` does not see."""


class _ProducerThread(LoopThread):
    """The thread of one producer's loop. It knows the producer that works in it and not the one that users have, which may be
    collected: then it closes the first, and ends. It does not start when it is made: an exception from a signal, between that
    and the assignment, would leave a thread that nobody knows."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(starts=False)
        self.producer = producer
        self._last: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        super().start()
        _threads.add(self)

    def leave(self) -> None:
        """Called by the collector, in any thread and the middle of anything: it waits for nothing."""
        if self.is_closed or self.process.is_elsewhere:
            return
        self._last = self.end_after(self.producer.close())
        self.producer.warn_unclosed()

    async def _finish(self) -> None:
        """Without a wait for the thread of a `check` that runs: nobody waits for its answer, and it has no time limit."""
        await self._cancel_all()

    def under_way(self) -> concurrent.futures.Future[None]:
        """Ends with what is under way, or with the time for it."""
        return self._last or self.submit(self.producer.wait_for_sends(closing=False))


@atexit.register
def wait_at_exit() -> None:
    """For what is under way; where somebody's hook keeps a loop busy, not for ever. Nothing is closed: functions that
    `atexit` calls after this one may still send, and `send_async` waits there. In a fork there is nothing to wait for.
    Ctrl-C ends it."""
    _waited_at_exit.set()
    running = [thread for thread in _threads if not (thread.is_closed or thread.process.is_elsewhere)]
    try:
        timeout_ms = max((thread.producer.send_timeout_ms for thread in running), default=0)
        _wait_for({thread.under_way(): thread for thread in running}, timeout_ms, own=1)
    except KeyboardInterrupt:
        _log.warning("interrupted_at_exit", effect="what is under way is cut off and may not be sent")


def _wait_for(
    waited: dict[concurrent.futures.Future[Any], _ProducerThread], timeout_ms: float, *, own: int = 0
) -> None:
    """Until these have ended. A loop gives up by itself what does not get on, but it may stand still: those that have brought
    nothing to an end in this time are given up, with a warning each. `own`: how many calls of each are not the user's."""
    patience_s = timeout_ms / 1000 + BUSY_S
    began_s = time.monotonic()
    while waited:
        ended = sum(thread.calls_ended for thread in waited.values())
        _, left = concurrent.futures.wait(waited, patience_s)
        if left and sum(thread.calls_ended for thread in waited.values()) == ended:
            waited_ms = round((time.monotonic() - began_s) * 1000)
            for thread in map(waited.__getitem__, left):
                if sends := thread.owes - own:
                    thread.producer.warn_of_sends(sends=sends, failed=0, waited_ms=waited_ms)
            return
        waited = {future: waited[future] for future in left}


class _CallRunner:
    """A loop that runs in its caller's thread while `run` does."""

    def __init__(self) -> None:
        self._loop = _CallLoop()
        self._runner = asyncio.Runner(loop_factory=lambda: self._loop)  # for Ctrl-C: see `close`

    def run(self, coro: Coroutine[Any, Any, T], /, *, context: contextvars.Context | None = None) -> T:
        try:
            return self._runner.run(coro, context=context)
        finally:
            if self._loop.interrupted_by is not None:
                raise self._loop.interrupted_by from None

    def close(self) -> None:
        """Cancel what still runs, and give it some turns to end in: what has lost its wake-up never does."""
        loop = self._loop
        if loop.is_closed():
            return
        for task in asyncio.all_tasks(loop):
            task.cancel()
        for _ in range(LAST_TURNS):
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()


class _CallLoop(asyncio.SelectorEventLoop):
    """The loop without a thread. It polls: what a loop has in epoll it shares with the children of a fork, and what such a
    child's loop takes out when its interpreter ends, the parent waits for in vain."""

    _is_made = False

    def __init__(self) -> None:
        super().__init__(selectors.PollSelector())
        self.interrupted_by: BaseException | None = None
        self._is_made = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a signal raises inside a callback of the loop or of a transport, asyncio would log and forget, with what the
        callback was to wake. So the loop stops, and its runner raises it. Errors of tasks are their own; those that a closed
        loop has left are nobody's."""
        if self.is_closed():
            return
        error = context.get("exception")
        if error is None or isinstance(error, RocketcrewError) or not ("handle" in context or "transport" in context):
            super().call_exception_handler(context)
        else:
            self._interrupt(error)

    async def create_connection(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> Any:
        """A transport forgets each OSError without a word. One that a signal has raised (TimeoutError, say) was raised and
        has no number; the system's have one, and asyncio's own are not raised."""

        def watched() -> Any:
            protocol = protocol_factory()
            lost = protocol.connection_lost

            def connection_lost(error: Exception | None) -> None:
                if isinstance(error, OSError) and error.errno is None and error.__traceback__ is not None:
                    self._interrupt(error)
                lost(error)

            protocol.connection_lost = connection_lost
            return protocol

        return await super().create_connection(watched, *args, **options)

    def _interrupt(self, error: BaseException) -> None:
        self.interrupted_by = self.interrupted_by or error
        self.stop()

    def __del__(self) -> None:
        if self._is_made and not self.is_closed():  # a signal may have come while it was made
            with contextlib.suppress(ValueError):  # at the end of Python its sockets may be gone before it
                self.close()  # without a warning: the producer's own has said it


def _refuse_running_loop(what: str, otherwise: str = "") -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{what} cannot be used inside a running event loop: use Producer with await there{otherwise}")
