"""Hooks before and after every call of a handler (ConsumeMessageHook.java, ConsumeMessageContext.java).

    class Audit:
        def hook_name(self): return "audit"
        def consume_message_before(self, context): ...
        def consume_message_after(self, context): print(context.status, context.props["ConsumeContextType"])

    @handler(hooks=[Audit()])

They run in the worker, around one call: one message, or one batch; around a coroutine from its first step to its end. As
in Java what a hook raises is logged and changes nothing, the same context goes to both methods of all hooks, and a message
that is consumed directly is not shown to them. In order, `status` has the words of ConsumeOrderlyStatus.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..conf.units import MINUTE_MS, NS_PER_MS
from ..remoting.queues import MessageQueue
from .api import (
    Commit,
    ConsumeMessageContext,
    ConsumeMessageHook,
    Retry,
    Rollback,
    SoftTimeLimitExceeded,
    Suspend,
)
from .message import Message
from .user_errors import describe_error, is_time_out

CONSUME_SUCCESS: Final = "CONSUME_SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"
ORDERLY_SUCCESS: Final = "SUCCESS"
SUSPEND: Final = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
CONTEXT_TYPE: Final = "ConsumeContextType"
"""The property of the context that names how the call ended (MixAll.CONSUME_CONTEXT_TYPE)."""


class ReturnType(Enum):
    """How a call ended (ConsumeReturnType.java); a handler that returns None has succeeded here, so RETURNNULL never is."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """It took longer than `consumer.consume_timeout_min`, whatever it returned, or was stopped at a time limit."""
    EXCEPTION = "EXCEPTION"
    FAILED = "FAILED"
    """It asked for a retry, or in order for a pause."""


@dataclass(slots=True)
class CallResult:
    """What the handler returned, once it has."""

    result: object = None


class ConsumeHooks:
    """All hooks of a handler, around its calls; see watching.py."""

    def __init__(
        self, hooks: Sequence[ConsumeMessageHook], *, clock: Callable[[], int], consume_timeout_min: int,
        namespace: str, log: Any, ordered: bool = False,
    ) -> None:  # fmt: skip
        """`clock` is monotonic, in ns."""
        self._ordered = ordered
        self._hooks = hooks
        self._clock = clock
        self._timeout_ns = consume_timeout_min * MINUTE_MS * NS_PER_MS
        self._namespace = namespace
        self._log = log

    @contextlib.contextmanager
    def around(self, group: str, messages: Sequence[Message]) -> Generator[CallResult]:
        """The handler's call, between the hooks."""
        done = CallResult()
        if not messages:
            yield done
            return
        queue = messages[0].queue
        mq = MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
        context = ConsumeMessageContext(group, list(messages), mq, namespace=self._namespace)
        began_ns = self._clock()
        ended, said = ReturnType.EXCEPTION, object()
        try:
            for hook in self._hooks:
                self._run(hook, hook.consume_message_before, context)
            began_ns = self._clock()
            yield done
            said = done.result
            ended = return_type(said, ordered=self._ordered)
        except BaseException as error:
            ended, said = return_type(error, ordered=self._ordered), error
            raise
        finally:
            context.status = self._status(ended, said)
            context.success = context.status in (CONSUME_SUCCESS, ORDERLY_SUCCESS, COMMIT)
            if self._clock() - began_ns >= self._timeout_ns:
                ended = ReturnType.TIME_OUT
            context.props[CONTEXT_TYPE] = ended.value
            for hook in self._hooks:
                self._run(hook, hook.consume_message_after, context, late=SoftTimeLimitExceeded)

    def _status(self, ended: ReturnType, said: object) -> str:
        if not self._ordered:
            return CONSUME_SUCCESS if ended is ReturnType.SUCCESS else RECONSUME_LATER
        if isinstance(said, Rollback):
            return ROLLBACK
        if isinstance(said, Commit):
            return COMMIT
        return ORDERLY_SUCCESS if ended is ReturnType.SUCCESS else SUSPEND

    def _run(
        self,
        hook: ConsumeMessageHook,
        method: Callable[[ConsumeMessageContext], object],
        context: ConsumeMessageContext,
        late: type[BaseException] = Exception,
    ) -> None:
        """`late` is its own failure too. The soft limit is the whole call's; after it, the hook alone is late."""
        try:
            method(context)
        except (Exception, SystemExit, late) as error:  # noqa: BLE001  a hook's failure is its own
            self._log.warning("consume_hook_failed", hook=_name(hook), error=describe_error(error))


def _name(hook: ConsumeMessageHook) -> str:
    try:
        return str(hook.hook_name())
    except (Exception, SystemExit):  # noqa: BLE001
        return type(hook).__name__


def return_type(said: object, *, ordered: bool) -> ReturnType:
    """How a call ended that returned or raised this. As in Java a rollback in order is a success of the call
    (ConsumeMessageOrderlyService.ConsumeRequest.run)."""
    if not isinstance(said, BaseException) or (ordered and isinstance(said, Rollback)):
        return ReturnType.SUCCESS
    if isinstance(said, (Retry, Suspend)):
        return ReturnType.FAILED
    return ReturnType.TIME_OUT if is_time_out(said) else ReturnType.EXCEPTION
