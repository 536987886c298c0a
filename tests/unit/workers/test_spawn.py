"""The forkserver's session; its end, beside a thread that is just connecting to it; the group of a worker that is dead."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import select
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from rocketcrew.workers.parent_death import CONTROL_SIGNALS
from rocketcrew.workers.spawn import Forkserver, WorkerProcess, path_of_forkserver

DEADLINE_S = 60.0
PR_SET_CHILD_SUBREAPER = 36


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


def test_the_session_of_the_workers_is_the_supervisor_s() -> None:
    """Among sessions the kernel may share the cores first."""
    forkserver = Forkserver()
    forkserver.start()
    try:
        forkserver.make_spare()
        assert forkserver.spare_pid is not None
        assert os.getsid(forkserver.spare_pid) == os.getsid(0)
        assert os.getpgid(forkserver.spare_pid) != os.getpgid(0)
    finally:
        forkserver.stop()


def test_what_a_terminal_sends_does_not_reach_the_tracker_nor_a_forkserver_that_is_starting() -> None:
    """Stopped by Ctrl-Z the one would be full some day, and the other waited for. Nobody continues them."""
    forkserver = Forkserver()
    forkserver.start()
    try:
        trackers = [
            one.pid for one in psutil.Process().children() if any("resource_tracker" in word for word in one.cmdline())
        ]
        assert trackers
        for pid in trackers:
            assert blocked(pid) >= set(CONTROL_SIGNALS) - {signal.SIGINT, signal.SIGTERM}, "those two it ignores"
        forkserver.make_spare()
        assert forkserver.pid is not None
        assert not blocked(forkserver.pid) & set(CONTROL_SIGNALS), "it has handlers now"
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(CONTROL_SIGNALS)
    finally:
        forkserver.stop()


def blocked(pid: int) -> set[int]:
    """Signals that the process's main thread holds back."""
    return signals(pid, "SigBlk")


def signals(pid: int, kind: str) -> set[int]:
    """Those that the process has in this line of its status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [mask] = [int(line.split()[1], 16) for line in lines if line.startswith(f"{kind}:")]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_forkserver_that_leads_a_session_goes_on_with_it() -> None:
    """After an execv: it had to make one, and now there is no terminal to be seen."""
    program = "from rocketcrew.workers.parent_death import be_forkserver; be_forkserver()"
    subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True, timeout=DEADLINE_S)


def test_term_for_all_processes_does_not_end_a_forkserver_that_begins_anew(tmp_path: Path) -> None:
    """As it does where the user's module has started a thread."""
    asks = """
import os, subprocess, threading
subprocess.Popen(["sh", "-c", "while kill -TERM $0; do :; done", str(os.getpid())], stderr=subprocess.DEVNULL)
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    with supervisor(tmp_path, asks) as (_, _, output):
        assert psutil.pid_exists(int(output.readline())), "no other was started in its place"


def test_a_spare_that_is_not_needed_is_reaped_by_its_forkserver() -> None:
    """A supervisor that is PID 1 becomes the parent of what that leaves, as we do here."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        forkserver = Forkserver()
        forkserver.start()
        forkserver.make_spare()
        spare = forkserver.spare_pid
        forkserver.stop()
        assert spare is not None
        with pytest.raises(ChildProcessError):
            os.waitpid(spare, 0)
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


SUPERVISOR = """
import os
import sys
from rocketcrew.workers.spawn import Forkserver

if len(sys.argv) > 1:  # we lead a session: the first terminal that is opened becomes its own
    os.dup2(os.open(sys.argv[1], os.O_RDWR), 0)
    assert os.get_terminal_size(os.open("/dev/tty", os.O_RDWR))
forkserver = Forkserver(["asks"], log={"format": "json", "level": "info", "file": "crew.log", "group": "g"})
forkserver.start()
forkserver.make_spare()
print(forkserver.pid, flush=True)
os.waitpid(forkserver.pid, 0)
"""


@contextmanager
def supervisor(folder: Path, module: str, *arguments: str) -> Generator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """One whose forkserver imports this module, with its input and output, which all that it starts have too."""
    (folder / "asks.py").write_text(module)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()


def test_what_the_module_logs_while_it_is_imported_is_in_the_log(tmp_path: Path) -> None:
    says = """
import logging, structlog
logging.getLogger("shop").setLevel(logging.INFO)
logging.getLogger("shop").info("by logging")
structlog.get_logger().info("by structlog", a=1)
"""
    with supervisor(tmp_path, says) as (_, _, output):
        output.readline()
        lines = [json.loads(line) for line in (tmp_path / "crew.log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["by logging", "by structlog"]
    assert {(line["process"], line["group"], line["level"]) for line in lines} == {("forkserver", "g", "info")}


@pytest.mark.parametrize(
    ("module", "begins"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='looker', daemon=True).start()",
            "looker",
        ),
        ("from rocketcrew.workers.preload import run_loop\nrun_loop({gomp!r})", "OpenMP"),
        (
            "from rocketcrew.workers.preload import *\nfrom signal import *\nsignal(SIGCHLD, SIG_IGN)\nrun_loop({gomp!r})",
            "OpenMP",
        ),
        ("import ctypes\nctypes.CDLL({gomp!r})", ""),
    ],
    ids=["a thread", "OpenMP", "OpenMP where children are ignored", "OpenMP that was not used"],
)
def test_a_module_that_each_worker_imports_anew_is_in_the_log(tmp_path: Path, module: str, begins: str) -> None:
    gomp = ctypes.util.find_library("gomp")
    if "gomp" in module and gomp is None:
        pytest.skip("this machine has no OpenMP of GNU's")
    configures = "import structlog\nstructlog.configure(logger_factory=structlog.ReturnLoggerFactory())\n"
    with supervisor(tmp_path, configures + module.format(gomp=gomp)) as (_, _, output):
        output.readline()
        log = tmp_path / "crew.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert [(line["event"], line["begins"]) for line in lines] == [("module_not_shared", [begins])] * bool(begins)


def test_the_supervisors_terminal_is_nothing_to_read_for_workers(tmp_path: Path) -> None:
    """Who has no terminal is not kept from reading one, by a descriptor."""
    asks = """
import subprocess
subprocess.run("read typed; echo read: $typed; exec 2>&1; exec 3</dev/tty", shell=True)
"""
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"typed\n")
        with supervisor(tmp_path, asks, os.ttyname(theirs)) as (_, _, output):
            assert output.readline() == "read:\n"
            error = output.readline()
            assert "/dev/tty: No such device or address" in error
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_the_module_has_put_into_a_session_of_its_own_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    asks = """
import subprocess
subprocess.Popen(["cat"], start_new_session=True)
subprocess.Popen(["sleep", "1000"])
"""
    with supervisor(tmp_path, asks) as (process, words, output):
        forkserver = os.pidfd_open(int(output.readline()))
        process.kill()
        select.select([forkserver], [], [], DEADLINE_S)
        os.close(forkserver)
        words.write("after\n")
        words.close()
        assert output.read() == "after\n", "and the end of the output: the other program has ended"


def test_what_the_module_forks_at_its_import_obeys_term(tmp_path: Path) -> None:
    """A manager or a pool of multiprocessing, which would stay when all others have ended."""
    asks = """
import os
if not (child := os.fork()):
    os.kill(os.getpid(), 15)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    with supervisor(tmp_path, asks) as (_, _, output):
        assert output.readline() == "-15\n"
        [spare] = psutil.Process(int(output.readline())).children()
        assert signal.SIGTERM in signals(spare.pid, "SigCgt"), "a worker is told by its supervisor alone"


STARTS = """
import json
import sys
from rocketcrew.workers.spawn import Forkserver

forkserver = Forkserver(["ends"])
forkserver.start()
try:
    forkserver.make_spare()
except (OSError, EOFError) as error:
    failed = forkserver._failed("w.1", error)
    print(json.dumps([failed.by_handler, str(failed)]))
"""
CHANGED = (
    "it ended with exit code 4. The handler's module may have ended it (os._exit), or changed what others use too"
    " (socket, os, builtins)"
)
BUSY = "import os\ndef none(): raise BlockingIOError(11, 'no processes')\nos.fork = none"


@pytest.mark.parametrize(
    ("module", "by_handler", "words"),
    [
        ("import os\nos.fork = None", True, CHANGED),
        ("import socket\ndef none(*a, **k): raise OSError('no network in tests')\nsocket.socket = none", True, CHANGED),
        (BUSY, False, "exit code 1; what it"),
        ("import os\ndef none(): raise MemoryError\nos.fork = none", False, "exit code 1; what it"),
        ("import os\nos._exit(7)", False, "exit code 7. The handler's module may have ended it (os._exit), or a"),
        ("import os\nos.kill(os.getpid(), 9)", False, "signal 9 (Killed). Lack of memory may do that; what it"),
        ("import os\nos.kill(os.getpid(), 11)", True, "signal 11 (Segmentation fault). The handler's module may have"),
    ],
)
def test_how_a_forkserver_ended_is_told(tmp_path: Path, module: str, *, by_handler: bool, words: str) -> None:
    (tmp_path / "ends.py").write_text(module)
    starts = [sys.executable, "-c", STARTS]
    done = subprocess.run(starts, stdout=subprocess.PIPE, cwd=tmp_path, text=True, timeout=DEADLINE_S, check=True)
    found, text = json.loads(done.stdout)
    assert words in text
    assert found is by_handler


@dataclass
class Started:
    """A process as multiprocess' Popen names it; -1 where the system has no such descriptors."""

    pid: int
    pidfd: int
    code: int | None = None
    unattended: bool = False

    def poll(self) -> int | None:
        """Its exit code, once it was reaped."""
        return self.code


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


def test_a_process_that_has_the_number_of_a_reaped_worker_proves_that_its_group_has_ended() -> None:
    """Where the system does not name groups by descriptor."""
    with subprocess.Popen(["sleep", "1000"], process_group=0) as other:
        living: Any = Started(other.pid, -1)
        assert WorkerProcess(living, "w.1").signal_group(0)
        unknown: Any = Started(other.pid, -1, 255, unattended=True)
        assert WorkerProcess(unknown, "w.1").signal_group(0)
        reaped: Any = Started(other.pid, -1, -9)
        assert not WorkerProcess(reaped, "w.1").signal_group(signal.SIGKILL)
        assert other.poll() is None
        other.kill()


def test_a_forkserver_finds_what_its_supervisor_has_found_elsewhere() -> None:
    near, far = site.getsitepackages()[0], "/far"
    assert path_of_forkserver({"PYTHONPATH": "/a"}, [near]) == {"path": "/a", "own_path": "/a"}
    assert path_of_forkserver({}, [near]) == {"path": None, "own_path": None}
    library = os.path.dirname(os.__file__)
    assert path_of_forkserver({}, [far, near])["path"] == f"{library}:{library}/lib-dynload:/far"
    assert path_of_forkserver({"PYTHONPATH": "/a"}, [far, near])["path"] == f"{library}:{library}/lib-dynload:/far:/a"
    assert path_of_forkserver({"PYTHONPATH": "/a:/far"}, [far])["path"] == "/a:/far"
