"""Hooks around each attempt to send (client/hook/SendMessageHook.java): message traces are one.

Hooks run in the producer's loop, so they must be quick. What one raises is logged and goes no further: a send does not
fail because somebody watched it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..remoting.queues import MessageQueue
from .logs import get_logger
from .outgoing import OutgoingMessage
from .send_result import SendResult

_log = get_logger("rocketcrew.client")


@dataclass(slots=True)
class SendContext:
    """One attempt. `result` is None before it, after a one-way send, and after a failure, which is `error`.

    `body_bytes` counts the body as it travels (compressed); `began_ms` is the wall clock.
    """

    group: str
    messages: Sequence[OutgoingMessage]
    message_id: str
    body_bytes: int
    mq: MessageQueue
    address: str
    began_ms: int
    oneway: bool = False
    result: SendResult | None = None
    error: Exception | None = None


class SendHook(Protocol):
    """What looks at sends."""

    def before_send(self, context: SendContext) -> None: ...

    def after_send(self, context: SendContext) -> None: ...


def run_before(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.before_send(context)
        except Exception:  # noqa: BLE001 - see the module's text
            _log.exception("send_hook_failed", hook=type(hook).__name__, topic=context.mq.topic)


def run_after(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.after_send(context)
        except Exception:  # noqa: BLE001 - see the module's text
            _log.exception("send_hook_failed", hook=type(hook).__name__, topic=context.mq.topic)
