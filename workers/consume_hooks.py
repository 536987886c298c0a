"""Hooks before and after every call of a handler (ConsumeMessageHook.java, ConsumeMessageContext.java).

    class Audit:
        def hook_name(self): return "audit"
        def consume_message_before(self, context): ...
        def consume_message_after(self, context): print(context.status, context.props["ConsumeContextType"])

    @handler(hooks=[Audit()])

They run in the worker, around one call: one message, or one batch. As in Java what a hook raises is logged and changes
nothing, the same context goes to both methods of all hooks, and a message that is consumed directly is not shown to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from ..remoting.queues import MessageQueue
from .api import Retry, SoftTimeLimitExceeded
from .loading import describe_error
from .message import Message

CONSUME_SUCCESS: Final = "CONSUME_SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"
CONTEXT_TYPE: Final = "ConsumeContextType"
"""The property of the context that says how the call ended (MixAll.CONSUME_CONTEXT_TYPE)."""
_NS_PER_MINUTE: Final = 60_000_000_000


class ReturnType(Enum):
    """How a call ended (ConsumeReturnType.java); a handler that returns None has succeeded here, so RETURNNULL never is."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """It took longer than `consumer.consume_timeout_min`, whatever it returned, or was stopped at its soft time limit."""
    EXCEPTION = "EXCEPTION"
    FAILED = "FAILED"
    """It asked for a retry."""


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of the handler; `success`, `status` and `props` are there in the second method."""

    consumer_group: str
    msg_list: list[Message]
    mq: MessageQueue
    """The queue they were pulled from."""
    success: bool = False
    status: str = ""
    mq_trace_context: object = None
    """For hooks to pass something from before to after."""
    props: dict[str, str] = field(default_factory=dict[str, str])
    namespace: str = ""
    access_channel: str | None = None


class ConsumeMessageHook(Protocol):
    """What a hook has to have."""

    def hook_name(self) -> str: ...
    def consume_message_before(self, context: ConsumeMessageContext) -> object: ...
    def consume_message_after(self, context: ConsumeMessageContext) -> object: ...


class ConsumeHooks:
    """All hooks of a handler, around its calls; see watching.py."""

    def __init__(
        self, hooks: Sequence[ConsumeMessageHook], *, clock: Callable[[], int], consume_timeout_min: int,
        namespace: str, log: Any,
    ) -> None:  # fmt: skip
        """`clock` is monotonic, in ns."""
        self._hooks = hooks
        self._clock = clock
        self._timeout_ns = consume_timeout_min * _NS_PER_MINUTE
        self._namespace = namespace
        self._log = log

    def watch(self, call: Callable[[Any], object], group: str, messages: Sequence[Message]) -> object:
        """Call the handler between the hooks."""
        queue = messages[0].queue
        mq = MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
        context = ConsumeMessageContext(group, list(messages), mq, namespace=self._namespace)
        for hook in self._hooks:
            self._run(hook, hook.consume_message_before, context)
        began_ns = self._clock()
        ended = ReturnType.EXCEPTION
        try:
            result = call(None)
            ended = _of_result(result)
            return result
        except BaseException as error:
            ended = _of_error(error)
            raise
        finally:
            context.success = ended is ReturnType.SUCCESS
            context.status = CONSUME_SUCCESS if context.success else RECONSUME_LATER
            if self._clock() - began_ns >= self._timeout_ns:
                ended = ReturnType.TIME_OUT
            context.props[CONTEXT_TYPE] = ended.value
            for hook in self._hooks:
                self._run(hook, hook.consume_message_after, context)

    def _run(
        self,
        hook: ConsumeMessageHook,
        method: Callable[[ConsumeMessageContext], object],
        context: ConsumeMessageContext,
    ) -> None:
        try:
            method(context)
        except Exception as error:  # noqa: BLE001  a hook's failure is its own
            self._log.warning("consume_hook_failed", hook=_name(hook), error=describe_error(error))


def _name(hook: ConsumeMessageHook) -> str:
    try:
        return str(hook.hook_name())
    except Exception:  # noqa: BLE001
        return type(hook).__name__


def _of_result(result: object) -> ReturnType:
    return _of_error(result) if isinstance(result, BaseException) else ReturnType.SUCCESS


def _of_error(error: BaseException) -> ReturnType:
    if isinstance(error, Retry):
        return ReturnType.FAILED
    return ReturnType.TIME_OUT if isinstance(error, SoftTimeLimitExceeded) else ReturnType.EXCEPTION
