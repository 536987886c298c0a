"""A user's own allocation strategy, asked in its process (workers/strategy.py): started when needed, bounded in time.

One that fails, hangs or dies changes nothing in that round, as in Java where it throws (RebalanceImpl.rebalanceByTopic),
and is asked again, in a new process if need be, at the next. Whether it can be had at all is found out at the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...remoting.errors import UsageError
from ...remoting.queues import MessageQueue
from ..core.machine_rooms import AllocationError
from .user_process import UserProcess, UserProcessError

ANSWER_TIMEOUT_S = 10.0


class UserStrategy:
    """The function at `import_path`, called in its own process with (group, client id, queues, client ids)."""

    def __init__(
        self, import_path: str, group: str, client_id: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._path = import_path
        self._group = group
        self._client_id = client_id
        self.process = UserProcess(import_path, "rocketcrew.workers.strategy", [import_path])
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process. Raises UsageError when the function cannot be had."""
        try:
            await self.process.start()
        except UserProcessError as error:
            raise UsageError(f"consumer.allocate_strategy = {self._path!r}: {error}") from error

    async def allocate(self, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        """The own queues. Raises AllocationError when the function fails, gives nonsense or takes too long."""
        if self._client_id not in members:
            return []
        async with self._turn:
            ordered = sorted(queues)
            question = {
                "group": self._group,
                "client_id": self._client_id,
                "queues": ordered,
                "client_ids": sorted(members),
            }
            try:
                reply = await self.process.ask(question, self._answer_timeout_s)
            except UserProcessError as error:
                raise AllocationError(str(error)) from error
            if "error" in reply:
                raise AllocationError(f"{self._path}: {reply['error']}")
            return [ordered[position] for position in reply["queues"]]

    async def kill(self) -> None:
        """End the process."""
        await self.process.kill()
