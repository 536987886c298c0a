"""A user's own allocation strategy, asked in its process (workers/strategy.py): started when needed, bounded in time.

One that fails, hangs or dies changes nothing in that round, as in Java where it throws (RebalanceImpl.rebalanceByTopic),
and is asked again, in a new process if need be, at the next. Whether it can be had at all is found out at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import structlog

from ...remoting.errors import UsageError
from ...remoting.queues import MessageQueue
from ...workers.parent_death import die_with_parent
from ..core.machine_rooms import AllocationError

START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1 << 20

log = structlog.get_logger("rocketcrew.strategy")


class UserStrategy:
    """The function at `import_path`, called in its own process with (group, client id, queues, client ids)."""

    def __init__(
        self, import_path: str, group: str, client_id: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._path = import_path
        self._group = group
        self._client_id = client_id
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process. Raises UsageError when the function cannot be had."""
        parent = os.getpid()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rocketcrew.workers.strategy", self._path,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=ANSWER_BYTES_MAX,
            start_new_session=True, preexec_fn=lambda: die_with_parent(parent),
        )  # fmt: skip
        try:
            reply = await self._reply(START_TIMEOUT_S)
        except AllocationError as error:
            await self.kill()
            raise UsageError(f"consumer.allocate_strategy = {self._path!r}: {error}") from error
        if "error" in reply:
            await self.kill()
            raise UsageError(f"consumer.allocate_strategy = {self._path!r}: {reply['error']}")

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
                if self._process is None or self._process.returncode is not None:
                    await self.start()
                reply = await self._ask(json.dumps(question))
            except (AllocationError, UsageError) as error:
                await self.kill()
                raise AllocationError(str(error)) from error
            if "error" in reply:
                raise AllocationError(f"{self._path}: {reply['error']}")
            return [ordered[position] for position in reply["queues"]]

    async def _ask(self, question: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(question.encode() + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            raise AllocationError(f"{self._path}: its process has ended ({error})") from error
        return await self._reply(self._answer_timeout_s)

    async def _reply(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AllocationError(f"{self._path}: no answer within {timeout_s:.0f} s") from None
        except ValueError as error:
            raise AllocationError(f"{self._path}: its answer is too long ({error})") from error
        if not line.endswith(b"\n"):
            raise AllocationError(f"{self._path}: its process has ended without an answer")
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def kill(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
