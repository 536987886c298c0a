"""The forkserver's end, beside a thread that is just connecting to it; the process group of a worker that is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from rocketcrew.workers.spawn import Forkserver, WorkerProcess

DEADLINE_S = 60.0


class Descriptors:
    """Those to be sent along: once they are asked for the forkserver is ended, and they are there when it is dead."""

    def __init__(self, forkserver: Forkserver) -> None:
        assert forkserver.pid is not None
        self._pid = forkserver.pid
        self._server = forkserver._server
        self.asked = threading.Event()
        self.still_open = False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[int]:
        alive_fd = self._server._forkserver_alive_fd
        self.asked.set()
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        self.still_open = self._server._forkserver_alive_fd == alive_fd
        os.fstat(alive_fd)
        return iter(())


def test_its_descriptors_are_closed_when_who_connects_is_done_with_them() -> None:
    """Their numbers are soon those of other files."""
    forkserver = Forkserver()
    forkserver.start()
    descriptors: Any = Descriptors(forkserver)
    with ThreadPoolExecutor(1) as thread:
        connecting = thread.submit(forkserver._server.connect_to_new_process, descriptors)
        assert descriptors.asked.wait(DEADLINE_S)
        forkserver.stop()
        assert isinstance(connecting.exception(DEADLINE_S), ConnectionError)
        assert descriptors.still_open
        with pytest.raises(OSError, match="the forkserver is gone"):
            thread.submit(forkserver.make_spare).result(DEADLINE_S)


@dataclass
class Started:
    """A process as multiprocess' Popen names it; -1 where the system has no such descriptors."""

    pid: int
    pidfd: int


@pytest.mark.parametrize("by_descriptor", [True, False])
def test_what_a_dead_worker_has_started_is_reached_until_nobody_is_left(*, by_descriptor: bool) -> None:
    def started(leader: subprocess.Popen[bytes]) -> WorkerProcess:
        popen: Any = Started(leader.pid, os.pidfd_open(leader.pid) if by_descriptor else -1)
        return WorkerProcess(popen, "w.1")

    def close(worker: WorkerProcess) -> None:
        if by_descriptor:
            os.close(worker._popen.pidfd)

    words = ["sh", "-c", "sleep 1000 & echo begun; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as leader:
        worker = started(leader)
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"begun\n"
        leader.kill()
        leader.wait()
        assert worker.signal_group(0)
        assert worker.signal_group(signal.SIGKILL)
        assert leader.stdout.read() == b"", "who is left has the other end"
        close(worker)
    with subprocess.Popen(["true"], process_group=0) as leader:
        worker = started(leader)
        leader.wait()
        assert not worker.signal_group(signal.SIGKILL)
        close(worker)
