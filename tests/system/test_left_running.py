"""Threads, pools and children that a handler has left running when its worker ends: as Python ends them, but in time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rocketcrew.conf.exit_codes import EXIT_FINE, EXIT_HANDLER

sys.path.insert(0, str(Path(__file__).parent))

from worker_crew import WAIT_S, WorkerCrew, crew, make_crew, wait_gone

__all__ = ["crew", "make_crew"]

HANDLERS = """
import multiprocessing.util, signal, threading, time
from pathlib import Path
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from rocketcrew.workers.api import handler

FOREVER = 1_000
kept = []
fork = multiprocessing.get_context("fork")
at_import = fork.Process(target=time.sleep, args=(FOREVER,), daemon=True)
at_import.start()

def daemon(target):
    child = fork.Process(target=target, daemon=True)
    child.start()
    return child.pid

def thread(message):
    threading.Thread(target=time.sleep, args=(FOREVER,), name="shop").start()
    pool = ThreadPoolExecutor(1, thread_name_prefix="pool")
    pool.submit(time.sleep, FOREVER)
    kept.append(pool)
    return {"a": at_import.pid}

def busy_processes(message):
    pool = ProcessPoolExecutor(1, fork)
    pool.submit(time.sleep, FOREVER)
    kept.append(pool)
    return {"a": next(iter(pool._processes))}

def idle(message):
    kept.append(ThreadPoolExecutor(1))
    kept[-1].submit(int).result()
    kept.append(ProcessPoolExecutor(1, fork))
    kept[-1].submit(int).result()
    kept.append(fork.Pool(1))
    return {"a": daemon(ends_by_term)}

def ends_by_term():
    time.sleep(FOREVER)

def ignores_term(message):
    return {"a": daemon(deaf)}

def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    time.sleep(FOREVER)

def some_seconds(message):
    threading.Thread(target=works).start()
    return {"a": 1}

def works():
    time.sleep(3)  # longer than daemonic children have
    Path("worked").touch()

def unread_queue(message):
    kept.append(multiprocessing.Queue())
    kept[-1].put(bytes(1 << 20))
    return {"a": 1}

def unending_finalizer(message):
    multiprocessing.util.Finalize(None, time.sleep, (FOREVER,), exitpriority=1)
    return {"a": 1}

def fails():
    threading.Thread(target=time.sleep, args=(FOREVER,), name="set-up").start()
    raise ValueError

@handler(setup=fails)
def never(message):
    pass
"""


Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def run(crew: WorkerCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Has a worker handle a message by a handler and stop: what it says of what is left, and its row's number."""
    (tmp_path / "lingering.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)

    def handled(name: str, stop_s: float = 1.0) -> tuple[int, list[dict[str, Any]]]:
        log_file = tmp_path / f"{name}.log"
        worker = crew.start(f"lingering:{name}", log_file=str(log_file), log_format="json", log_level="info")
        worker.ready()
        crew.chunk(worker, 1, [b"x"])
        worker.until_done(1)
        assert worker.stop(stop_s) == EXIT_FINE
        lines = [json.loads(line) for line in log_file.read_text().splitlines()]
        return crew.table()[0], [line for line in lines if line["event"] == "threads_left"]

    return handled


def test_threads_that_never_end_are_cut_off_and_named(run: Run) -> None:
    pid, [line] = run("thread")
    assert (line["threads"], line["processes"]) == (["shop", "pool_0"], [])
    assert psutil.pid_exists(pid), "the child of the forkserver is not the worker's to end"


def test_threads_may_go_on_for_nearly_as_long_as_the_supervisor_waits(run: Run, tmp_path: Path) -> None:
    _, lines = run("some_seconds", WAIT_S)
    assert not lines
    assert (tmp_path / "worked").exists()


def test_a_queue_that_nobody_reads_is_named_by_its_thread_and_does_not_take_all_of_the_time(run: Run) -> None:
    begun = time.monotonic()
    _, [line] = run("unread_queue", WAIT_S)
    assert (line["threads"], line["processes"]) == (["QueueFeederThread"], [])
    assert "waits_in" not in line
    assert time.monotonic() - begun < WAIT_S / 2


def test_where_neither_a_thread_nor_a_child_is_left_it_is_said_what_is_waited_for(run: Run) -> None:
    _, [line] = run("unending_finalizer")
    assert (line["threads"], line["processes"]) == ([], [])
    assert any(place.endswith(" in _exit_function") for place in line["waits_in"])


def test_processes_of_an_executor_at_work_end_with_the_worker(
    run: Run,
) -> None:
    pid, [line] = run("busy_processes")
    assert len(line["threads"]) == 1
    wait_gone_if_there(pid)


def test_idle_pools_and_daemonic_children_end_without_a_word(
    run: Run,
) -> None:
    pid, lines = run("idle")
    assert not lines
    wait_gone_if_there(pid)


def test_a_daemonic_child_that_ignores_term_is_killed(
    run: Run,
) -> None:
    pid, [line] = run("ignores_term")
    assert (line["threads"], len(line["processes"])) == ([], 1)
    wait_gone_if_there(pid)


def test_a_boot_that_has_failed_ends_too(crew: WorkerCrew, tmp_path: Path) -> None:
    (tmp_path / "lingering.py").write_text(HANDLERS)
    assert crew.start("lingering:never").process.wait(20_000) == EXIT_HANDLER


def wait_gone_if_there(pid: int) -> None:
    if psutil.pid_exists(pid):
        wait_gone([psutil.Process(pid)])
