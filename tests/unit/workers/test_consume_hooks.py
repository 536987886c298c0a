"""Hooks before and after each call, with Java's context; the time a call began; the delay level of a batch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import (
    BatchResult,
    Commit,
    Handler,
    Retry,
    Rollback,
    SoftTimeLimitExceeded,
    Suspend,
    handler,
)
from rocketcrew.workers.async_runner import limited, time_limit_of
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.consume_hooks import ConsumeHooks, ConsumeMessageContext
from rocketcrew.workers.failures import Cause
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.watching import watched_async

Make = Callable[..., Any]
TIMEOUT_MIN = 15


class Hook:
    """Keeps its arguments; `raises` in both methods."""

    def __init__(self, raises: bool = False) -> None:
        self.seen: list[tuple[str, bool, str, dict[str, str]]] = []
        self.contexts: list[ConsumeMessageContext] = []
        self._raises = raises

    def hook_name(self) -> str:
        return "test"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self._note("before", context)
        context.mq_trace_context = "mine"

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context.mq_trace_context == "mine" or self._raises
        self._note("after", context)

    def _note(self, when: str, context: ConsumeMessageContext) -> None:
        self.contexts.append(context)
        self.seen.append((when, context.success, context.status, dict(context.props)))
        if self._raises:
            raise ValueError("a hook's own trouble")


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **_: object) -> None:
        self.events.append(event)


def hooks_of(hook: Hook, *, clock: Clock | None = None, log: Log | None = None, ordered: bool = False) -> ConsumeHooks:
    return ConsumeHooks(
        [hook], clock=clock or Clock(), consume_timeout_min=TIMEOUT_MIN, namespace="ns", log=log or Log(),
        ordered=ordered,
    )  # fmt: skip


def watch(hook: Hook, function: Callable[[], object], **more: Any) -> object:
    messages = [make_message(b"x", topic="orders", queue_id=3)]
    with hooks_of(hook, **more).around("group", messages) as done:
        done.result = function()
        return done.result


def raises(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "success", "status", "ended"),
    [
        (lambda: None, True, "CONSUME_SUCCESS", "SUCCESS"),
        (lambda: {"n": 1}, True, "CONSUME_SUCCESS", "SUCCESS"),
        (Retry, False, "RECONSUME_LATER", "FAILED"),
        (raises(Retry()), False, "RECONSUME_LATER", "FAILED"),
        (raises(ValueError("no")), False, "RECONSUME_LATER", "EXCEPTION"),
        (lambda: ValueError("no"), False, "RECONSUME_LATER", "EXCEPTION"),
        (raises(SoftTimeLimitExceeded(1)), False, "RECONSUME_LATER", "TIME_OUT"),
        (raises(Suspend()), False, "RECONSUME_LATER", "FAILED"),
        (raises(Rollback()), False, "RECONSUME_LATER", "EXCEPTION"),
    ],
)
def test_a_hook_is_told_how_the_call_ended(
    function: Callable[[], object], success: bool, status: str, ended: str
) -> None:
    hook = Hook()
    try:
        watch(hook, function)
    except (ValueError, Retry, SoftTimeLimitExceeded, Suspend, Rollback):
        assert not success
    assert hook.seen == [("before", False, "", {}), ("after", success, status, {"ConsumeContextType": ended})]
    first, second = hook.contexts
    assert first is second
    assert (first.consumer_group, first.namespace, first.mq) == ("group", "ns", ("orders", "broker-a", 3))
    assert [message.body for message in first.msg_list] == [b"x"]
    assert first.access_channel == "LOCAL"


@pytest.mark.parametrize(
    ("function", "success", "status", "ended"),
    [
        (lambda: None, True, "SUCCESS", "SUCCESS"),
        (lambda: Commit({"n": 1}), True, "COMMIT", "SUCCESS"),
        (Rollback, False, "ROLLBACK", "SUCCESS"),
        (Suspend, False, "SUSPEND_CURRENT_QUEUE_A_MOMENT", "FAILED"),
        (lambda: ValueError("no"), False, "SUSPEND_CURRENT_QUEUE_A_MOMENT", "EXCEPTION"),
    ],
)
def test_in_order_the_words_are_those_of_java_s_orderly_service(
    function: Callable[[], object], success: bool, status: str, ended: str
) -> None:
    hook = Hook()
    watch(hook, function, ordered=True)
    assert hook.seen[1] == ("after", success, status, {"ConsumeContextType": ended})


class Late(Hook):
    """The soft limit comes in one of its methods."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when

    def _note(self, when: str, context: ConsumeMessageContext) -> None:
        super()._note(when, context)
        context.mq_trace_context = "mine"
        if when == self._when:
            raise SoftTimeLimitExceeded(1)


def test_a_soft_limit_in_a_hook_ends_the_call_before_it_and_not_after_it() -> None:
    """Over the limit before it has begun, the handler would run on without one; what it has done stays done."""
    before, after, called, log = Late("before"), Late("after"), list[int](), Log()
    with pytest.raises(SoftTimeLimitExceeded):
        watch(before, lambda: called.append(1), log=log)
    assert (called, log.events) == ([], [])
    assert before.seen[1] == ("after", False, "RECONSUME_LATER", {"ConsumeContextType": "TIME_OUT"})
    watch(after, lambda: called.append(2), log=log)
    assert (called, log.events) == ([2], ["consume_hook_failed"])


# --- coroutine handlers -------------------------------------------------------------------------------------------------


def call_async(hook: Hook, target: Handler, given: object, limit_ns: int = 0) -> object:
    watched = watched_async(limited(target, time_limit_of(limit_ns, 0)), "group", [hooks_of(hook)])
    assert watched.name == target.name

    async def call() -> object:
        results: list[object] = await asyncio.gather(watched.function(given), return_exceptions=True)
        return results[0]

    return asyncio.run(call())


def test_hooks_stand_around_the_whole_of_a_coroutine() -> None:
    hook = Hook()

    async def handle(message: Message) -> bytes:
        assert [when for when, *_ in hook.seen] == ["before"]
        await asyncio.sleep(0)
        assert [when for when, *_ in hook.seen] == ["before"]
        return message.body

    assert call_async(hook, Handler(handle), make_message(b"x", topic="orders", queue_id=3)) == b"x"
    assert hook.seen[1] == ("after", True, "CONSUME_SUCCESS", {"ConsumeContextType": "SUCCESS"})
    first, second = hook.contexts
    assert first is second
    assert (first.consumer_group, first.namespace, first.mq) == ("group", "ns", ("orders", "broker-a", 3))


def test_hooks_are_told_how_a_coroutine_ended() -> None:
    async def fails(_: object) -> None:
        raise Retry(3)

    async def hangs(_: object) -> None:
        await asyncio.Event().wait()

    for target, limit_ns, ended in ((fails, 0, "FAILED"), (hangs, 1_000_000, "TIME_OUT")):
        hook = Hook()
        call_async(hook, Handler(target), make_message(b"x"), limit_ns)
        assert hook.seen[1] == ("after", False, "RECONSUME_LATER", {"ConsumeContextType": ended})


def test_hooks_see_a_batch_of_a_coroutine_once() -> None:
    hook = Hook()

    @handler(batch=True)
    async def handle(messages: list[Message]) -> int:
        return len(messages)

    assert call_async(hook, handle, [make_message(b"x"), make_message(b"y")]) == 2
    assert [[message.body for message in context.msg_list] for context in hook.contexts] == [[b"x", b"y"]] * 2


def test_a_call_beyond_the_consume_timeout_is_a_time_out() -> None:
    hook, clock = Hook(), Clock()

    def slow() -> None:
        clock.now_ns += TIMEOUT_MIN * 60_000_000_000

    watch(hook, slow, clock=clock)
    assert hook.seen[1] == ("after", True, "CONSUME_SUCCESS", {"ConsumeContextType": "TIME_OUT"})


def test_what_a_hook_raises_is_logged_and_changes_nothing() -> None:
    hook, log = Hook(raises=True), Log()
    assert watch(hook, lambda: 7, log=log) == 7
    assert log.events == ["consume_hook_failed", "consume_hook_failed"]


class Leaves(Hook):
    def hook_name(self) -> str:
        sys.exit(3)

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        sys.exit(3)

    consume_message_after = consume_message_before


def test_a_hook_that_leaves_the_process_has_raised_as_any_other() -> None:
    """It failed each message, whose handler was never called."""
    log = Log()
    assert watch(Leaves(), lambda: 7, log=log) == 7
    assert log.events == ["consume_hook_failed", "consume_hook_failed"]


def test_hooks_are_given_to_the_decorator() -> None:
    hook = Hook()
    decorated = handler(hooks=[hook])(lambda _: None)
    assert decorated.hooks == (hook,)


class OnlyAfter:
    def hook_name(self) -> str:
        return "after"

    def consume_message_after(self, context: object) -> None:
        pass


class Flagged(Hook):
    consume_message_after = True  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (OnlyAfter(), r"hooks\[1\]=<.*OnlyAfter.* has no method consume_message_before\(context\)"),
        (object(), r"hooks\[1\]=<object .* has no method hook_name\(\)"),
        (Flagged(), r"has no method consume_message_after\(context\)"),
        (Hook, r"is a class: give an object of it, Hook\(...\)"),
        (None, r"hooks\[1\]=None has no method hook_name\(\)"),
    ],
)
def test_what_is_no_hook_is_refused_by_the_decorator(wrong: Any, text: str) -> None:
    """Else each call fails before the handler is reached, and every message becomes a dead letter."""
    with pytest.raises(UsageError, match=text):
        handler(hooks=[Hook(), wrong])(lambda _: None)


# --- a batch's delay level ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "cause", "told"), [(0, Cause.FAILED, 0), (7, Cause.FAILED, 7), (-1, Cause.GIVEN_UP, 0)]
)
def test_what_a_batch_does_not_acknowledge_has_its_delay_level(
    bench: Make, make_record: Make, level: int, cause: Cause, told: int
) -> None:
    bounds = WorkerBounds(batch_messages_max=4)
    b = bench(handler(batch=True)(lambda _: BatchResult(ack_index=1, delay_level=level)), bounds=bounds)
    b.chunk([make_record(offset=n) for n in range(4)])
    b.steps(3)
    _, failures = b.outcomes()
    assert [(at, f.cause, f.level) for at, f in failures] == [(2, cause, told), (3, cause, told)]
    assert all("ack_index is 1" in failure.error for _, failure in failures)


@pytest.mark.parametrize("level", [-2, 128])
def test_delay_levels_have_bounds(level: int) -> None:
    with pytest.raises(UsageError, match="delay_level"):
        BatchResult(delay_level=level)


# --- consume start time -------------------------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[None]:
    Message.call_clock.append(lambda: 1_700_000_000_123)
    yield
    Message.call_clock.clear()


@pytest.mark.usefixtures("started")
def test_a_message_says_when_its_call_began() -> None:
    old = make_message(b"x", properties={"CONSUME_START_TIME": "5", "a": "b"})
    assert old.properties == {"CONSUME_START_TIME": "1700000000123", "a": "b"}


def test_outside_of_a_worker_it_says_nothing() -> None:
    assert "CONSUME_START_TIME" not in make_message(b"x").properties
