"""Tasks that last as long as the supervisor: one that fails is logged, counted and started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

DELAY_MIN_S = 1.0
DELAY_MAX_S = 60.0

log = structlog.get_logger("rocketcrew.supervisor")


async def keep(
    name: str, work: Callable[[], Awaitable[None]], failed: Callable[[], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Run `work()` until it returns. When it raises, `failed()` counts it, and it runs again after 1 s, 2 s, 4 s ... 60 s;
    after 1 s where it had run for longer than these."""
    delay_s = DELAY_MIN_S
    while True:
        begun_s = clock()
        try:
            await work()
        except Exception:
            if clock() - begun_s > DELAY_MAX_S:
                delay_s = DELAY_MIN_S
            log.exception("task_failed", task=name, again_in_s=delay_s)
            failed()
            await sleep(delay_s)
            delay_s = min(2 * delay_s, DELAY_MAX_S)
        else:
            return
