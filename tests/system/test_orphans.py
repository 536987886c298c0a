"""Nothing outlives a supervisor that was killed, whatever its workers are doing."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path

import psutil

PARENT = Path(__file__).parent / "orphan_parent.py"
GONE_WITHIN_S = 2.0


def gone(process: psutil.Process) -> bool:
    try:
        # A zombie is dead; who reaps it depends on the machine's first process.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_kill_9_of_the_parent_leaves_no_process_though_every_worker_is_in_an_endless_c_loop(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(PARENT), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        try:
            readable, _, _ = select.select([parent.stdout], [], [], 60)
            assert readable, "the parent did not get its workers to run"
            processes = [psutil.Process(pid) for pid in json.loads(parent.stdout.readline())]
            # Two workers, their forkserver, and multiprocess' resource tracker.
            assert len(processes) >= 4
        finally:
            parent.kill()
    killed = time.monotonic()
    while left := [process for process in processes if not gone(process)]:
        assert time.monotonic() - killed < GONE_WITHIN_S, f"still there after {GONE_WITHIN_S} s: {left}"
        select.select([], [], [], 0.01)
