"""Tasks that last as long as the supervisor: one that fails is logged, counted and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

DELAY_MIN_S = 1.0
DELAY_MAX_S = 60.0

log = structlog.get_logger("rocketcrew.supervisor")


async def keep(
    name: str, work: Callable[[], Awaitable[None]], failed: Callable[[], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:  # fmt: skip
    """Run `work()` until it returns. When it raises, `failed()` counts it, and it runs again after 1 s, 2 s, 4 s ... 60 s."""
    delay_s = DELAY_MIN_S
    while True:
        try:
            await work()
        except Exception:
            log.exception("task_failed", task=name, again_in_s=delay_s)
            failed()
            await sleep(delay_s)
            delay_s = min(2 * delay_s, DELAY_MAX_S)
        else:
            return
