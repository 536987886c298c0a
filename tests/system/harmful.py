"""Handlers of test_handler_harm.py, imported by worker processes from this folder."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import signal
import sys

from rocketcrew import Message, Retry, handler, logger

CLAIMED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGABRT)
LOOPS = 250


def claim_signals(number: int) -> None:
    """As libraries do that think the process is theirs; by turns they ignore them."""
    faulthandler.disable()  # first: it puts back what ABRT did before
    for each in CLAIMED:
        signal.signal(each, signal.SIG_IGN if number % 2 == 0 else lambda _number, _frame: None)


@handler(schema="number bigint", hard_time_limit_s=4)
def harmful(message: Message) -> dict[str, int] | None:
    """Claims signals, forks that exit, forks that come back, prints, logs, once loops in C and once closes every
    descriptor."""
    number = int(message.body)
    claim_signals(number)
    if number == LOOPS and not message.reconsume_times:
        sum(itertools.repeat(0))
    if number % 100 in (3, 5, 9):
        pid = os.fork()
        if pid == 0:
            if number % 100 == 3:
                sys.exit(4)
            if number % 100 == 9:
                raise ValueError("in the child")
            return None
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {3: 4, 5: 0, 9: 1}[number % 100]
    if number % 100 == 7:
        print("number", number)  # noqa: T201  that is the test
    if number % 100 == 11:
        logger(message).info("looked_at", number=number)
    if number == 350:
        os.closerange(3, 1024)
    return {"number": number}


calls = {"at once": 0, "most": 0}


async def setup() -> None:
    """On the same loop as the calls."""
    asyncio.get_running_loop()


@handler(schema="number bigint", setup=setup)
async def waits(message: Message) -> dict[str, int]:
    """Fifty milliseconds of waiting; the last one goes to the dead letters."""
    calls["at once"] += 1
    if calls["at once"] > calls["most"]:
        calls["most"] = calls["at once"]
        logger().info("more", at_once=calls["most"])
    await asyncio.sleep(0.05)
    calls["at once"] -= 1
    number = int(message.body)
    if number == 999:
        raise Retry(-1)
    return {"number": number}
