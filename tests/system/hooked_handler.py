"""Handlers with a hook, imported by worker processes from this folder: a batch that acknowledges a part, and a coroutine."""

from __future__ import annotations

import asyncio

from rocketcrew import BatchResult, Message, Retry, handler
from rocketcrew.workers.consume_hooks import ConsumeMessageContext


class Hook:
    """Keeps what the calls before this one came to."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.shown = 0

    def hook_name(self) -> str:
        return "system test"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.shown = len(context.msg_list)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.ended.append(f"{context.status} {context.props['ConsumeContextType']} {context.consumer_group}")


HOOK = Hook()


@handler(schema="number bigint, attempt int, started bigint, shown int, ended string, delay string",
         batch=True, hooks=[HOOK])  # fmt: skip
def halves(messages: list[Message]) -> BatchResult:
    """Acknowledged is what comes before the first multiple of four that is tried for the first time; the others come back
    by level 2."""
    stops = [n for n, message in enumerate(messages) if not message.reconsume_times and int(message.body) % 4 == 0]
    rows = [
        (
            message,
            {
                "number": int(message.body),
                "attempt": message.reconsume_times,
                "started": int(message.properties["CONSUME_START_TIME"]),
                "shown": HOOK.shown,
                "ended": ",".join(sorted(set(HOOK.ended))),
                "delay": message.properties.get("DELAY", ""),
            },
        )
        for message in messages
    ]
    return BatchResult(rows, ack_index=stops[0] - 1 if stops else None, delay_level=2)


@handler(schema="number bigint, attempt int, started bigint, ended string", hooks=[HOOK])
async def later(message: Message) -> dict[str, object]:
    """A coroutine: the numbers that end in 7 ask for a retry at first, 8 raises."""
    await asyncio.sleep(0.01)
    number = int(message.body)
    if number % 10 == 7 and not message.reconsume_times:
        raise Retry(1)
    if number % 10 == 8 and not message.reconsume_times:
        raise ValueError("at first")
    return {
        "number": number,
        "attempt": message.reconsume_times,
        "started": int(message.properties["CONSUME_START_TIME"]),
        "ended": ",".join(sorted(set(HOOK.ended))),
    }
