"""Programs of dead workers, where the supervisor is their parent: in a container it is PID 1."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rocketcrew.supervisor.pool.programs import Programs
from rocketcrew.workers.spawn import WorkerProcess


@dataclass
class Reaped:
    """A worker as multiprocess' Popen names it."""

    pid: int
    pidfd: int = -1
    unattended: bool = False

    def poll(self) -> int:
        """Its exit code."""
        return -9

    def close(self) -> None:
        """There are no descriptors."""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as process:
        yield process


@pytest.mark.parametrize("trap", ["-", "''"], ids=["obeys", "ignores TERM"])
def test_they_are_reaped(leader: subprocess.Popen[bytes], trap: str) -> None:
    words = f"trap {trap} TERM; echo begun; read line"
    with subprocess.Popen(
        ["sh", "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=leader.pid
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        leader.kill()
        leader.wait()

        async def end() -> None:
            worker: Any = Reaped(leader.pid)
            programs = Programs(grace_s=0.1 if trap == "''" else 60.0)
            programs.end(WorkerProcess(worker, "w.1"))
            await programs.ended()

        asyncio.run(end())
        with pytest.raises(ChildProcessError):
            os.waitpid(program.pid, os.WNOHANG)
