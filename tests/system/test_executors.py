"""Executors that are killed under the loader, on a local cluster: Spark repeats their tasks, and the table is exact."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import WAIT_S, Loaders, say, wait_until
from segment_helpers import Record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
EXECUTOR = "CoarseGrainedExecutorBackend"
MASTER = "local-cluster[2,1,1024]"


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "spark")
    yield made
    made.end()


def executors(pid: int) -> list[psutil.Process]:
    """The executors' JVMs below the loader."""
    found: list[psutil.Process] = []
    for one in psutil.Process(pid).children(recursive=True):
        try:
            if any(EXECUTOR in word for word in one.cmdline()):
                found.append(one)
        except psutil.NoSuchProcess:
            continue
    return found


def test_executors_are_killed_while_they_write(loaders: Loaders, full_numbers: bool) -> None:
    """At random moments of batches; half of the times both at once."""
    if not full_numbers:
        pytest.skip("three JVMs more: with --full-numbers, as bench/soak.py runs it")
    dice = random.Random(1)
    sealed = 0
    beside = Loaders(loaders.staging.parent / "beside", "spark")
    (loaders.staging / "ready").mkdir(parents=True)

    def seal() -> None:
        nonlocal sealed
        for _ in range(4):
            again = dice.sample(range(sealed), 20) if sealed else []
            fresh = [Record(sealed + at, [dice.randbytes(500).hex()]) for at in range(2000)]
            beside.seal(*fresh, *(Record(offset, ["again"]) for offset in again))
            sealed += 2000
        for path in sorted((beside.staging / "ready").iterdir()):
            path.rename(loaders.staging / "ready" / path.name)
        loaders.records = beside.records

    # Executors that die often are not Spark's fault: it gives up on a cluster after ten in a row otherwise.
    conf = {
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "64",
        "spark.executor.maxNumFailures": "1000",
    }
    seal()
    process = loaders.start(master=MASTER, follow=True, conf=conf, max_wait_ms=3_600_000, jvm_timeout_ms=0)
    say(process, "load")
    loaders.wait_for_batch(1, process)
    kills = 0
    for batch in range(2, 14):
        wait_until(lambda: len(executors(process.pid)) == 2, WAIT_S, "two executors")
        seal()
        say(process, "load")
        wait_until(lambda: loaders.status()["state"] == "loading", WAIT_S, "the batch's begin")
        time.sleep(dice.uniform(0, 0.6))
        victims = executors(process.pid)
        for victim in victims if dice.random() < 0.5 else victims[:1]:
            os.kill(victim.pid, signal.SIGKILL)
            kills += 1
        wait_until(lambda: not list((loaders.staging / "ready").iterdir()), WAIT_S, f"batch {batch}")
        assert process.poll() is None, loaders.log.read_text()
    process.terminate()
    assert process.wait(WAIT_S) == 0, loaders.log.read_text()
    assert kills >= 12
    loaders.assert_exact()
    loaders.assert_clean()
