"""Messages of a topic as they come, from all its brokers, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.errors import UnreachableError
from ..remoting.queues import MessageQueue
from .messages import Filter, Show, Silent, Stored, messages, of_each_queue

SILENT_S: Final = 30.0
"""A broker that hangs costs the time of a question, which the messages of others wait for: it is asked this often."""


class Following:
    """Reads each queue on from its end; one that is added, from its start.

    A broker that does not answer is named, and the others go on. Of one that was so from the begin on, that comes which is
    sent after its first answer.
    """

    def __init__(
        self, cluster: Cluster, topic: str, wanted: Filter, say: Callable[[str], None], silent_s: float = SILENT_S
    ) -> None:
        self._cluster = cluster
        self._operations = Operations(cluster)
        self._topic = topic
        self._wanted = wanted
        self._say = say
        self._silent_s = silent_s
        self._queues: Sequence[MessageQueue] = ()
        self._at: dict[MessageQueue, int | None] = {}
        """What comes next; None = nobody has said yet where the queue ends."""
        self._silent: Silent = {}
        self._ask_again_at = 0.0

    async def begin(self) -> None:
        """Find the ends: what is sent after that is shown. Raises UnreachableError where no broker answers."""
        self._queues = await self._cluster.queues_to_read(self._topic, refresh=True)
        self._at = dict.fromkeys(self._queues)
        await self._come()

    async def show(self, interval_s: float, count: int, show: Show) -> None:
        """Show what comes, `count` messages (0 = for ever), looking every `interval_s`."""
        shown = 0
        while True:
            with contextlib.suppress(UnreachableError):  # without a name server the queues are those of before
                self._queues = await self._cluster.queues_to_read(self._topic, refresh=True)
            with contextlib.suppress(UnreachableError):
                for broker, message in await self._come():
                    show(broker, message)
                    shown += 1
                    if shown == count:
                        return
            await asyncio.sleep(interval_s)

    async def _come(self) -> list[Stored]:
        now = asyncio.get_running_loop().time()
        asked_again = now >= self._ask_again_at
        silent: Silent = {} if asked_again else self._silent.copy()
        try:
            return await of_each_queue(self._queues, self._look, silent)
        finally:
            for name in self._silent.keys() - silent.keys():
                self._say(f"{name} answers again")
            for name in silent.keys() - self._silent.keys():
                self._say(f"{name} does not answer, the others are shown: {silent[name]}")
            if asked_again or silent.keys() - self._silent.keys():
                self._ask_again_at = asyncio.get_running_loop().time() + self._silent_s
            self._silent = silent

    async def _look(self, mq: MessageQueue) -> list[Stored]:
        start, end = self._at.get(mq, 0), await self._operations.max_offset(mq)
        if start is None:
            self._at[mq] = end
            return []
        coming = messages(self._cluster, mq, start, end)
        found = [(mq.broker_name, one) async for one in coming if self._wanted.takes(one)]
        self._at[mq] = max(start, end)
        return found
