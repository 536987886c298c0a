"""Where queues end that are not pulled.

A pull's answer says it, and one is out nearly always. But flow control, a pause, a disk without room, a queue that is not
locked or a broker that refuses stops the pulls, and messages that arrive then would be in nobody's lag, just when an alert
should ring.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from ...remoting.errors import RocketcrewError, UnreachableError
from ...remoting.log_keys import queue_keys
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.decisions import Core
from ..core.process_queue import ProcessQueue

LOOK_S: Final = 5.0
"""Between two looks, and how long nobody has said a queue's end before it is asked for."""
TOGETHER_MAX: Final = 32
"""Questions to a broker that are out at one time."""

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
        self._asked: set[str] = set()
        """Brokers, by name, whose answers are waited for."""

    def arm(self) -> None:
        """Look from now on."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def disarm(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.arm()
        by_broker: dict[str, list[ProcessQueue]] = defaultdict(list)
        for pq in self._core.pulling.end_unknown_since(self._now() - LOOK_S):
            by_broker[pq.mq.broker_name].append(pq)
        for broker in by_broker.keys() - self._asked:  # side by side: one that is dead holds up no other
            self._asked.add(broker)
            self._run(self._ask_all(broker, by_broker[broker]))

    async def _ask_all(self, broker: str, queues: Sequence[ProcessQueue]) -> None:
        """Ask where they end, and tell the core. One that does not answer is asked no more this time."""
        try:
            for at in range(0, len(queues), TOGETHER_MAX):
                answers = await asyncio.gather(*(self._answers(pq) for pq in queues[at : at + TOGETHER_MAX]))
                if not all(answers):
                    return
        finally:
            self._asked.discard(broker)

    async def _answers(self, pq: ProcessQueue) -> bool:
        try:
            end = await self._max_offset(pq.mq)
        except RocketcrewError as error:
            log.debug("queue_end_not_known", **queue_keys(pq.mq), error=str(error))
            return not isinstance(error, UnreachableError)
        self._core.handle(ev.EndSeen(pq.handle, end), self._now())
        return True
