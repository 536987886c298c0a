"""A process that runs a user's code for the supervisor: one JSON line in, one out, each answer bounded in time.

The other end is in workers/line_process.py. It is started when it is needed, dies with the supervisor, and is killed when it
does not answer: what a user's code does gets no further than an error here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from ...conf.limits import check_start, with_remedy
from ...conf.own_command import own_command
from ...workers.parent_death import die_with_parent

START_TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 1 << 20


class UserProcessError(Exception):
    """It did not start, did not answer in time, or has ended; the text says which."""


class UserProcess:
    """`python -m MODULE ARGUMENTS`, one question at a time."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], *,
        log: Mapping[str, str], start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:  # fmt: skip
        """`name` is how its user knows it, for messages; `arguments` are what it imports; `log` is how it logs (logs_as)."""
        self._name = name
        self._late = (
            f"{name}: not imported within {start_timeout_s:g} s ({', '.join(arguments)}): do the long work later"
        )
        self._start_timeout_s = start_timeout_s
        self._command = own_command(module, json.dumps(log), *arguments)
        self.child: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.returncode is None

    async def start(self) -> None:
        """Raises UserProcessError when the process cannot be started or the code cannot be had; nothing runs then."""
        parent = os.getpid()
        try:
            check_start()
            self.child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=ANSWER_BYTES_MAX,
                start_new_session=True, preexec_fn=lambda: die_with_parent(parent),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise UserProcessError(f"{self._name}: its process cannot be started ({with_remedy(error)})") from error
        try:
            reply = await self._reply(self._start_timeout_s, self._late)
            if "error" in reply:
                raise UserProcessError(str(reply["error"]))
        except BaseException:
            await self.kill()
            raise

    async def ask(self, question: object, timeout_s: float) -> dict[str, Any]:
        """Its answer; starts it where it does not run. Raises UserProcessError, and has ended the process then."""
        if not self.runs:
            await self.start()
        assert self.child is not None
        assert self.child.stdin is not None
        late = f"{self._name}: no answer within {timeout_s:g} s"
        try:
            self.child.stdin.write(json.dumps(question, default=str).encode() + b"\n")
            async with asyncio.timeout(timeout_s):
                await self.child.stdin.drain()
            return await self._reply(timeout_s, late)
        except TimeoutError:
            await self.kill()
            raise UserProcessError(late) from None
        except OSError as error:
            await self.kill()
            raise UserProcessError(f"{self._name}: its process has ended ({error})") from error
        except BaseException:
            await self.kill()
            raise

    async def _reply(self, timeout_s: float, late: str) -> dict[str, Any]:
        assert self.child is not None
        assert self.child.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.child.stdout.readline()
        except TimeoutError:
            raise UserProcessError(late) from None
        except ValueError as error:
            raise UserProcessError(f"{self._name}: its answer is too long ({error})") from error
        if not line.endswith(b"\n"):
            raise UserProcessError(f"{self._name}: its process has ended without an answer")
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def stop(self, timeout_s: float) -> None:
        """End its input, so that it ends by itself as Python does (atexit); kill it when it has not ended in time."""
        child = self.child
        if child is not None and child.stdin is not None:
            child.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """End the process and what it has started (it leads a session of its own), and see that it has ended."""
        child, self.child = self.child, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
