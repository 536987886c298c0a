"""Nothing outlives a supervisor that was killed, whatever its workers are doing."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from ports import free_ports

from rocketcrew.cli.children import Child
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.control import ask

sys.path.insert(0, str(Path(__file__).parent))

from harness import HANDLERS, WAIT_S, send_numbers, wait_until

PARENT = Path(__file__).parent / "orphan_parent.py"
TOPIC = "numbers"


def gone(process: psutil.Process) -> bool:
    try:
        # A zombie is dead; who reaps it depends on the machine's first process.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(processes: list[psutil.Process]) -> None:
    """They end after what was just killed."""
    killed = time.monotonic()
    while left := [process for process in processes if not gone(process)]:
        assert time.monotonic() - killed < WAIT_S, f"still there after {WAIT_S} s: {left}"
        select.select([], [], [], 0.01)


def test_kill_9_of_the_parent_leaves_no_process_though_every_worker_is_in_an_endless_c_loop(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(PARENT), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        try:
            readable, _, _ = select.select([parent.stdout], [], [], WAIT_S)
            assert readable, "the parent did not get its workers to run"
            processes = [psutil.Process(pid) for pid in json.loads(parent.stdout.readline())]
            # Two workers, their forkserver, and multiprocess' resource tracker.
            assert len(processes) >= 4
        finally:
            parent.kill()
    all_gone(processes)


class Embedded:
    """`rocketcrew run --embedded` as a user starts it; the same folder and ports at each start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.slot = folder, folder / "state" / "crew" / "0"
        self.name_server_port, self.port = free_ports(2)
        self.starts = 0

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.name_server_port}"

    def start(self, handler: str) -> Child:
        self.starts += 1
        words = ["run", handler, "--topic", TOPIC, "--group", "crew", "--embedded"]
        for setting in (
            f"broker.name_server_port={self.name_server_port}", f"broker.port={self.port}",
            f"broker.dir={self.folder / 'broker'}", f"supervisor.data_dir={self.folder / 'state'}", "spark.load=false",
            "workers.count=2", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET", "consumer.rebalance_interval_ms=1000",
        ):  # fmt: skip
            words += ["--set", setting]
        child = Child("run", words, log=self.folder / f"run-{self.starts}.log", cwd=HANDLERS)
        child.wait_for(lambda: bool(self.status()), WAIT_S, "start")
        return child

    def status(self) -> dict[str, Any]:
        try:
            return asyncio.run(ask(self.slot, "status"))
        except UsageError:
            return {}

    def running(self) -> list[bool]:
        """Of each worker: whether it has a message in hand."""
        return [bool(worker["running"]) for worker in self.status().get("workers", ())]


def everything_below(child: Child) -> list[psutil.Process]:
    """Workers, forkserver and broker are children of the one process that the user started."""
    below = psutil.Process(child.pid).children(recursive=True)
    assert sum("broker" in process.cmdline() for process in below) == 1
    assert len(below) >= 4
    return below


def test_an_embedded_broker_ends_with_the_run_that_started_it(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path)
    child = embedded.start("numbers_handler:endless_c_loop")
    try:
        send_numbers(embedded, TOPIC, range(16))
        wait_until(lambda: embedded.running() == [True, True], what="C loops in both workers")
        below = everything_below(child)
        os.kill(child.pid, signal.SIGKILL)
        all_gone(below)
    finally:
        child.stop(WAIT_S)
    child = embedded.start("numbers_handler:slow_plain_number")
    try:
        wait_until(lambda: embedded.status()["counters"]["done_messages"] == 16, what="the same messages again")
        below = everything_below(child)
    finally:
        code = child.stop(WAIT_S)
    assert code == 0, child.tail()
    all_gone(below)
    assert (tmp_path / "state" / "broker.log").read_text().count("broker.stopped") == 1, "TERM ends it in order"
