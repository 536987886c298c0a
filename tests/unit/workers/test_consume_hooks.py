"""Hooks before and after each call, with Java's context; the time a call began; the delay level of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import BatchResult, Retry, SoftTimeLimitExceeded, handler
from rocketcrew.workers.boot import WorkerLimits
from rocketcrew.workers.consume_hooks import ConsumeHooks, ConsumeMessageContext
from rocketcrew.workers.message import Message, make_message

Make = Callable[..., Any]
TIMEOUT_MIN = 15


class Hook:
    """Keeps what it is told; `raises` in both methods."""

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


def watch(hook: Hook, function: Callable[[], object], *, clock: Clock | None = None, log: Log | None = None) -> object:
    hooks = ConsumeHooks(
        [hook], clock=clock or Clock(), consume_timeout_min=TIMEOUT_MIN, namespace="ns", log=log or Log()
    )
    return hooks.watch(lambda _: function(), "group", [make_message(b"x", topic="orders", queue_id=3)])


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
    ],
)
def test_a_hook_is_told_how_the_call_ended(
    function: Callable[[], object], success: bool, status: str, ended: str
) -> None:
    hook = Hook()
    try:
        watch(hook, function)
    except (ValueError, Retry, SoftTimeLimitExceeded):
        assert not success
    assert hook.seen == [("before", False, "", {}), ("after", success, status, {"ConsumeContextType": ended})]
    first, second = hook.contexts
    assert first is second
    assert (first.consumer_group, first.namespace, first.mq) == ("group", "ns", ("orders", "broker-a", 3))
    assert [message.body for message in first.msg_list] == [b"x"]


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


def test_hooks_are_given_to_the_decorator() -> None:
    hook = Hook()
    decorated = handler(hooks=[hook])(lambda _: None)
    assert decorated.hooks == (hook,)


# --- a batch's delay level ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "told"), [(0, 4), (7, 7), (-1, -1)])
def test_what_a_batch_does_not_acknowledge_has_its_delay_level(
    bench: Make, make_record: Make, level: int, told: int
) -> None:
    limits = WorkerLimits(batch_messages_max=4, delay_level=4)
    b = bench(handler(batch=True)(lambda _: BatchResult(ack_index=1, delay_level=level)), limits=limits)
    b.chunk([make_record(offset=n) for n in range(4)])
    b.steps(3)
    _, failures = b.outcomes()
    assert [(failure.position, failure.delay_level) for failure in failures] == [(2, told), (3, told)]
    assert all("ack_index is 1" in failure.error for failure in failures)


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
