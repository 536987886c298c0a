"""Where queues end that are not pulled.

A pull's answer says it, and one is out nearly always. But flow control, a pause, a disk without room or a queue that is not
locked stops the pulls, and messages that arrive then would be in nobody's lag, just when an alert should ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from ...remoting.errors import RocketcrewError
from ...remoting.log_keys import queue_keys
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.decisions import Core
from ..core.process_queue import ProcessQueue

LOOK_S: Final = 5.0
"""Between two looks, and how long a queue goes without a pull before it is asked for."""
TOGETHER_MAX: Final = 32
"""Questions that are out at one time."""

log = structlog.get_logger("rocketcrew.member")


class QueueEnds:
    """`max_offset` asks a queue's broker, `now` is the loop's clock, `run` starts a task."""

    def __init__(
        self, core: Core, max_offset: Callable[[MessageQueue], Awaitable[int]], now: Callable[[], float],
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._max_offset = max_offset
        self._now = now
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._asks = False

    def arm(self) -> None:
        """Look from now on."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def disarm(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.arm()
        quiet = self._core.pulling.not_pulled_since(self._now() - LOOK_S)
        if quiet and not self._asks:
            self._asks = True
            self._run(self._ask_all(quiet))

    async def _ask_all(self, queues: Sequence[ProcessQueue]) -> None:
        """Ask where they end, and tell the core. Of a broker that does not answer no more is asked this time."""
        silent: set[str] = set()
        try:
            for at in range(0, len(queues), TOGETHER_MAX):
                several = queues[at : at + TOGETHER_MAX]
                await asyncio.gather(*(self._ask(pq, silent) for pq in several if pq.mq.broker_name not in silent))
        finally:
            self._asks = False

    async def _ask(self, pq: ProcessQueue, silent: set[str]) -> None:
        try:
            end = await self._max_offset(pq.mq)
        except RocketcrewError as error:
            silent.add(pq.mq.broker_name)
            log.debug("queue_end_not_known", **queue_keys(pq.mq), error=str(error))
        else:
            self._core.handle(ev.EndSeen(pq.handle, end), self._now())
