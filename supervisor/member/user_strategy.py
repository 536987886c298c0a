"""A user's own allocation strategy, asked in its process (workers/strategy.py): started when needed, bounded in time.

One that fails, hangs or dies changes nothing in that round, as in Java where it throws (RebalanceImpl.rebalanceByTopic),
and is asked again, in a new process if need be, at the next. Whether it can be had at all is found out at the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from ...remoting.errors import UsageError
from ...remoting.queues import MessageQueue
from ..core.machine_rooms import AllocationError
from .user_process import UserProcess, UserProcessError

ANSWER_TIMEOUT_S = 10.0


class _Known(NamedTuple):
    number: int
    queues: Sequence[MessageQueue]
    members: Sequence[str]


class _Answer(NamedTuple):
    """To what was known as `number`; no own queues, not even an empty list, where it failed."""

    number: int
    own: list[MessageQueue] | None
    error: str = ""


def strategy_process(import_path: str, log: Mapping[str, str]) -> UserProcess:
    """The process that imports the function and calls it; `log` is how it logs."""
    return UserProcess(import_path, "rocketcrew.workers.strategy", [import_path], log=log)


class UserStrategy:
    """The function at `import_path`, called in its own process with (group, client id, queues, client ids)."""

    def __init__(
        self,
        import_path: str,
        group: str,
        client_id: str,
        process: UserProcess,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`process` is what calls the function (strategy_process)."""
        self._answer_timeout_s = answer_timeout_s
        self._path = import_path
        self._group = group
        self._client_id = client_id
        self.process = process
        self._turn = asyncio.Lock()
        self._numbers = count()
        self._known: dict[str, _Known] = {}
        """What is known last of each topic."""
        self._answers: dict[str, _Answer] = {}
        """The last answer of each."""

    async def start(self) -> None:
        """Start the process. Raises UsageError when the function cannot be had."""
        try:
            await self.process.start()
        except UserProcessError as error:
            raise UsageError(f"consumer.allocate_strategy = {self._path!r}: {error}") from error

    async def allocate(self, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        """The own ones of a topic's queues, of which there is at least one. Raises AllocationError when the function fails,
        gives nonsense or takes too long.

        Its process answers one question at a time. What is asked of a topic meanwhile is one question, of what is known last:
        or the line would grow, and its answers get older, as soon as all topics together take longer than look-ups come.
        """
        if self._client_id not in members:
            return []
        topic, number = queues[0].topic, next(self._numbers)
        self._known[topic] = _Known(number, queues, members)
        async with self._turn:
            answer = self._answers.get(topic)
            if answer is None or answer.number < number:
                answer = self._answers[topic] = await self._ask(self._known[topic])
        if answer.own is None:
            raise AllocationError(answer.error)
        return answer.own

    async def _ask(self, known: _Known) -> _Answer:
        ordered = sorted(known.queues)
        question = {
            "group": self._group,
            "client_id": self._client_id,
            "queues": ordered,
            "client_ids": sorted(known.members),
        }
        try:
            reply = await self.process.ask(question, self._answer_timeout_s)
        except UserProcessError as error:
            return _Answer(known.number, None, str(error))
        if "error" in reply:
            return _Answer(known.number, None, f"{self._path}: {reply['error']}")
        return _Answer(known.number, [ordered[position] for position in reply["queues"]])

    async def kill(self) -> None:
        """End the process."""
        await self.process.kill()
