"""Where workers come from: handlers of every origin, signals, generations, forkservers that die, hang or leak."""

from __future__ import annotations

import ctypes.util
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from rocketcrew.conf.exit_codes import EXIT_FINE
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.link import Transport
from rocketcrew.workers.spawn import Forkserver, WorkerStartError

sys.path.insert(0, str(Path(__file__).parent))

from worker_crew import WAIT_S, WorkerCrew, both, crew, make_crew, wait_gone

__all__ = ["both", "crew", "make_crew"]


def test_lambdas_and_closures_reach_the_worker(make_crew: Callable[[Transport], WorkerCrew], both: Transport) -> None:
    crew = make_crew(both)
    factor = 7
    decorated = handler(schema="a int", batch=True)(lambda messages: [{"a": len(m.body) * factor} for m in messages])
    worker = crew.start(decorated, schema="", bounds=WorkerBounds(batch_messages_max=2))
    assert worker.ready()[2:4] == ("a int", True)
    crew.chunk(worker, 1, [b"1", b"22", b"333"])
    assert worker.stop() == EXIT_FINE
    assert crew.table() == {0: 7, 1: 14, 2: 21}


MAIN_SCRIPT = """
import socket, sys
from dataclasses import dataclass
from rocketcrew.workers import packets
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.link import Transport, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.message import make_message
from rocketcrew.workers.spawn import Forkserver

LIMIT = 5

@dataclass
class Row:
    a: int

def measure(body):
    return min(len(body), LIMIT)

def handle(message):
    return Row(measure(message.body))

# No `if __name__ == "__main__"` guard: the worker must not run this script again.
print("started", flush=True)
link, sock = link_pair(Transport.STREAM)
server = Forkserver()
boot = WorkerBoot(worker_id="w", index=0, handler=describe(handle), link=sock, transport=Transport.STREAM, slab=None,
                  group="g", segments_dir=__import__("pathlib").Path(sys.argv[1]), schema="a int")
worker = server.start_worker(boot)
record, _, queue = make_message(b"0123456789").__reduce__()[1]
link.send(packets.encode_queue(1, queue))
link.send(packets.encode_chunk(1, 1, 0, len(record), 1), record)
link.send(packets.encode_stop())
print("exit code", worker.wait(120_000), flush=True)
server.stop()
"""


def test_functions_of_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN_SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert run.stdout.split("\n")[:2] == ["started", "exit code 0"], run.stderr
    (path,) = (tmp_path / "ready").iterdir()
    assert pa.ipc.open_stream(path.read_bytes()).read_all().column("a").to_pylist() == [5]


def test_stop_signals_of_the_terminal_reach_the_supervisor_only(crew: WorkerCrew) -> None:
    worker = crew.start("system_handlers:rows")
    worker.ready()
    server = crew.servers[0]
    assert server.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.process.kill(number)
        os.kill(server.pid, number)
    crew.chunk(worker, 1, [b"x"])
    assert worker.outcome().failed == 0
    crew.start("system_handlers:rows").ready()


def test_what_a_handler_starts_has_ordinary_signals(crew: WorkerCrew) -> None:
    worker = crew.start("system_handlers:environment")
    worker.ready()
    crew.chunk(worker, 1, [b"x"])
    assert worker.stop() == EXIT_FINE
    (path,) = (crew.folder / "segments" / "ready").iterdir()
    assert pa.ipc.open_stream(path.read_bytes()).read_all().column("b").to_pylist() == ["False,clean,True"]
    forks = crew.start("system_handlers:forked")
    forks.ready()
    crew.chunk(forks, 1, [b"x"], first_offset=5)
    assert forks.stop() == EXIT_FINE
    assert crew.table()[5] == 0


DRAWS = """
import random
import numpy as np
from rocketcrew.workers.api import handler

random.seed(1)
np.random.seed(1)

@handler(schema="a bigint, b string")
def own(message):
    return {"a": message.queue_offset, "b": f"{random.random()} {np.random.random()}"}

@handler(schema="a bigint, b string", setup=lambda: np.random.seed(1))
def fixed(message):
    return {"a": message.queue_offset, "b": str(np.random.random())}
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_each_worker_draws_its_own_random_numbers_unless_its_set_up_seeds_them(
    crew: WorkerCrew, tmp_path: Path, *, preloaded: bool
) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    server = crew.server(*["draws"] * preloaded)
    for number, name in enumerate(("own", "own", "fixed", "fixed")):
        worker = crew.start(f"draws:{name}", server=server)
        worker.ready()
        crew.chunk(worker, 1, [b"x"], first_offset=number)
        assert worker.stop() == EXIT_FINE
    drawn: dict[int, str] = {}
    for path in (crew.folder / "segments" / "ready").iterdir():
        rows = pa.ipc.open_stream(path.read_bytes()).read_all().select(["a", "b"]).to_pylist()
        drawn |= {row["a"]: row["b"] for row in rows}
    assert len({*drawn[0].split(), *drawn[1].split()}) == 4
    assert drawn[2] == drawn[3]


def test_a_program_that_the_module_starts_at_its_import_ends_with_the_forkserver(
    crew: WorkerCrew, tmp_path: Path
) -> None:
    (tmp_path / "serves.py").write_text("import subprocess\n\nserver = subprocess.Popen(['sleep', '1000'])\n")
    server = crew.server("serves", "system_handlers")
    crew.start("system_handlers:silent", server=server).ready()
    children = psutil.Process(server.pid).children()
    [program] = [child for child in children if child.pid != crew.running[0].process.pid]
    assert os.getpgid(program.pid) == server.pid != os.getpgid(crew.running[0].process.pid) != os.getpgid(0)
    server.stop()
    wait_gone([program])


def test_a_killed_forkserver_takes_its_workers_along_and_is_started_again(crew: WorkerCrew) -> None:
    workers = [crew.start("system_handlers:spin") for _ in range(2)]
    for worker in workers:
        worker.ready()
        crew.chunk(worker, 1, [b"spin"])
    crew.until_running(0)
    crew.until_running(1)
    server = crew.servers[0]
    assert server.pid is not None
    first = server.pid
    os.kill(first, signal.SIGKILL)
    for worker in workers:
        worker.until_closed()
        assert worker.process.wait(int(WAIT_S * 1_000)) is not None
    again = crew.start("system_handlers:silent")
    again.ready()
    assert server.pid not in (None, first)


def test_the_folder_of_temporary_files_may_be_cleared_up_and_nothing_is_left_there(
    crew: WorkerCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By systemd-tmpfiles, an image's start script, the start of a copied data_dir."""
    temp = tmp_path / ("long" * 30)
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    crew.start("system_handlers:silent").ready()
    server = crew.servers[0]
    assert list(temp.iterdir()) == []
    temp.rmdir()
    crew.start("system_handlers:silent").ready()
    server.make_spare()
    crew.start("system_handlers:silent").ready()
    first = server.pid
    server.stop()
    with pytest.raises(WorkerStartError, match="No such file or directory"):
        crew.start("system_handlers:silent")
    temp.mkdir()
    crew.start("system_handlers:silent").ready()
    assert server.pid not in (None, first)


def test_a_forkserver_that_cannot_live_is_named_with_its_end(crew: WorkerCrew, tmp_path: Path) -> None:
    """A library that gets no memory may end the process, and who connects is refused."""
    (tmp_path / "starved.py").write_text("import os\nos._exit(7)\n")
    server = Forkserver(["starved"])
    crew.servers.append(server)
    with pytest.raises(
        WorkerStartError, match=r"the forkserver.*is gone: it ended with exit code 7\. The handler's module"
    ):
        crew.start("starved:f", server=server)


def test_two_generations_side_by_side(crew: WorkerCrew) -> None:
    old, new = crew.server("system_handlers"), crew.server("system_handlers")
    first = crew.start("system_handlers:silent", server=old)
    second = crew.start("system_handlers:silent", server=new)
    assert first.ready().pid != second.ready().pid
    assert old.pid != new.pid
    old.stop()
    first.until_closed()
    assert old.pid is None
    crew.chunk(second, 1, [b"x"])
    assert second.outcome().chunk_id == 1


def test_stopping_a_forkserver_ends_everything_it_started(crew: WorkerCrew) -> None:
    worker = crew.start("system_handlers:spin")
    worker.ready()
    crew.chunk(worker, 1, [b"spin"])
    crew.until_running(0)
    assert crew.servers[0].pid is not None
    processes = [psutil.Process(crew.servers[0].pid), psutil.Process(worker.process.pid)]
    crew.servers[0].stop()
    wait_gone(processes)
    crew.servers[0].stop()  # twice does no harm


def test_a_module_that_hangs_at_import_is_a_clear_error(
    make_crew: Callable[[Transport], WorkerCrew], tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    crew = make_crew(Transport.STREAM)
    server = Forkserver(["hangs"], start_timeout_ms=500)
    crew.servers.append(server)
    with pytest.raises(WorkerStartError, match="did not answer within 500 ms"):
        crew.start("hangs:f", server=server)


THREADED = """
import queue, threading
asked, answers = queue.Queue(), queue.Queue()

def answer():
    while True:
        answers.put(asked.get() + 1)

threading.Thread(target=answer, daemon=True).start()

def handle(message):
    asked.put(message.queue_offset)
    return {"a": answers.get(timeout=120)}
"""


def test_a_module_that_starts_threads_when_imported_has_them_in_each_worker(crew: WorkerCrew, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(THREADED)
    server = crew.server("threaded")
    server.start()
    pid = server.pid
    for number in range(2):
        worker = crew.start("threaded:handle", server=server)
        worker.ready()
        crew.chunk(worker, 1, [b"x"], first_offset=number)
        assert worker.stop() == EXIT_FINE
    assert crew.table() == {0: 1, 1: 2}
    assert server.pid == pid


LOOPS = """
import ctypes.util
from rocketcrew.workers.preload import run_loop
gomp = ctypes.util.find_library("gomp")
run_loop(gomp)  # as a model does that is trained or called while its module is imported

def handle(message):
    run_loop(gomp)
    return {"a": message.queue_offset}
"""


@pytest.mark.skipif(ctypes.util.find_library("gomp") is None, reason="this machine has no OpenMP of GNU's")
def test_a_module_that_runs_openmp_when_imported_does_not_hang_its_workers(crew: WorkerCrew, tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    server = crew.server("loops")
    for number in range(2):
        worker = crew.start("loops:handle", server=server)
        worker.ready()
        crew.chunk(worker, 1, [b"x"], first_offset=number)
        assert worker.stop() == EXIT_FINE
    assert crew.table() == {0: 0, 1: 1}


def test_a_spare_becomes_the_next_worker_and_a_dead_one_harms_nobody(
    make_crew: Callable[[Transport], WorkerCrew], both: Transport
) -> None:
    crew = make_crew(both)
    server = crew.server("system_handlers")
    crew.start("system_handlers:rows").ready()
    server.make_spare()
    server.make_spare()  # one is enough
    assert server.pid is not None
    (spare,) = {child.pid for child in psutil.Process(server.pid).children()} - {crew.running[0].process.pid}
    worker = crew.start("system_handlers:rows")
    assert worker.ready().pid == worker.process.pid == spare
    crew.chunk(worker, 1, [b"x"])
    assert worker.stop() == EXIT_FINE
    server.make_spare()
    children = psutil.Process(server.pid).children()
    (second,) = [child for child in children if child.pid != crew.running[0].process.pid]
    second.kill()
    wait_gone([second])
    worker = crew.start("system_handlers:rows")
    assert worker.ready().pid not in (spare, second.pid)
    server.make_spare()
    processes = psutil.Process(server.pid).children()
    assert len(processes) == 3
    server.stop()
    wait_gone(processes)


def test_descriptors_are_given_back(crew: WorkerCrew) -> None:
    crew.start("system_handlers:silent").ready()

    def one() -> None:
        worker = crew.start("system_handlers:silent", cell_slot=0)
        worker.ready()
        assert worker.stop() == EXIT_FINE
        worker.link.close()
        worker.process.close()

    one()
    gc.collect()  # or a collection in between would close what tests before this one have left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        one()
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(3):
        crew.servers[0].make_spare()
        one()
    assert len(os.listdir("/proc/self/fd")) == before
