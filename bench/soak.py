"""The full numbers for kills, messages, seeds and steps; CI runs each fault once and small.

    python bench/soak.py [--rounds 10] [--kills 1000] [--loader-kills 40] [--seeds 2000] [--steps 5000] [--messages 50000]

Each round runs every system fault test anew; then come the pool's faults in each order mode at length (`rocketcrew chaos`),
power cuts of the embedded broker, of sealed facts and segments, of the loader's commits and of journals, a million hostile
frames at the broker, and as many beside Java clients, kills of random workers (kills.py) and of the loader on every kind of
table (loader_kills.py), the faults on genuine servers of both versions (where java and mvn are), the differential test, and
the simulation with many seeds. A stage that fails does not keep the next ones from running. Ends with one line for each fault
and stage.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = (
    "tests/system/test_faults.py",
    "tests/system/test_blame.py",
    "tests/system/test_stop.py",
    "tests/system/test_loader.py",
    "tests/system/test_journal.py",
    "tests/system/test_pressure.py",
    "tests/system/test_stand_still.py",
    "tests/system/test_uneven.py",
)
FULL = (
    "tests/system/test_chaos.py",
    "tests/system/test_pressure.py",
    "tests/system/test_blame.py::test_a_message_that_takes_more_than_its_control_group_has",
    "tests/system/test_stand_still.py",
    "tests/system/test_connect.py",
    "tests/system/test_executors.py",
    "tests/system/test_delta_merging.py",
)
"""Faults of the worker pool, 30 to 60 s each: in each order mode, and all of them in one run; 200 bodies of 4 MiB, a stop of
over two minutes; executors and a Spark Connect server that die; merges beside a stream of a table of either writer."""
GENUINE = (
    "tests/interop/test_faults.py",
    "tests/interop/test_first_commit.py",
    "tests/interop/test_differential.py",
    "tests/interop/test_hdfs.py",
    "tests/interop/test_iceberg_rest.py",
    "tests/interop/test_iceberg_spark.py",
)


class Ended(NamedTuple):
    """How one stage ended. `lines`: what it printed of faults and failures; `summary`: its last line without the time."""

    good: bool
    lines: list[str]
    summary: str
    seconds: float


def run_stage(name: str, command: Sequence[str], limit_s: float | None = None) -> Ended:
    """Run a command, show its output and keep its verdicts. After `limit_s` it gets INT, by which
    pytest and benchmarks end what they started, and a minute later KILL."""
    print(f"== {name}", flush=True)
    begin = time.monotonic()
    kept: list[str] = []
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        timers: list[threading.Timer] = []
        if limit_s is not None:
            timers = [
                threading.Timer(limit_s, run.send_signal, [signal.SIGINT]),
                threading.Timer(limit_s + 60, run.kill),
            ]
        for timer in timers:
            timer.start()
        try:
            for line in run.stdout:
                print(line, end="", flush=True)
                line = re.sub(r"^[.sxXRFE]+(?=VERDICT )", "", line)  # after pytest's dots
                if line.startswith(("VERDICT ", "FAILED ", "ERROR ")):
                    kept.append(line.strip())
                if line.strip():
                    last = line.strip()
            run.wait()
        finally:
            for timer in timers:
                timer.cancel()
    return Ended(run.returncode == 0, kept, re.sub(r" in [\d.]+s.*", "", last), time.monotonic() - begin)


class Soak:
    """Runs stages and keeps their lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = False

    def stage(self, name: str, *arguments: str) -> None:
        """One run of pytest: its output is ours; what it says of single faults, and how it ended, is kept."""
        self.run(name, [sys.executable, "-Im", "pytest", "-q", *arguments])

    def run(self, name: str, command: list[str]) -> None:
        """The same with any command that prints such lines."""
        ended = run_stage(name, command)
        self.failed |= not ended.good
        self.lines += [
            *ended.lines,
            f"{'ok' if ended.good else 'FAILED'} {name}: {ended.summary} in {ended.seconds:.0f} s",
        ]

    def close(self) -> int:
        """Print what was kept; the exit code."""
        print("\n== verdicts")
        for line in self.lines:
            print(line)
        print(f"load average {os.getloadavg()[0]:.1f}")
        return int(self.failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=1000, help="of random workers under load")
    parser.add_argument(
        "--loader-kills", type=int, default=40, help="of the loader and its JVM, for each kind of table"
    )
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument(
        "--messages", type=int, default=50_000, help="of each fault on genuine servers; 0 leaves them out"
    )
    options = parser.parse_args()
    soak = Soak()
    for number in range(options.rounds):
        soak.stage(f"faults, round {number + 1} of {options.rounds}", *SYSTEM, "-s")
    soak.stage("the worker pool, full numbers", *FULL, "--full-numbers", "-s", "--timeout=1200")
    soak.stage(
        "power cuts of the broker", "tests/unit/broker/test_power_loss.py", "--full-numbers", "-n", "2", "--timeout=0"
    )  # fmt: skip
    soak.stage(
        "power cuts of facts", "tests/unit/supervisor/test_sealing.py", "--full-numbers", "-n", "2", "--timeout=0"
    )  # fmt: skip
    soak.stage(
        "power cuts of segments, commits and journals", "tests/unit/durable/test_power_cuts.py", "--full-numbers",
        "-n", "2", "--timeout=0",
    )  # fmt: skip
    soak.stage(
        "races of loaders at an Iceberg table", "tests/unit/spark/test_iceberg.py", "--full-numbers", "--timeout=3600"
    )  # fmt: skip
    soak.stage(
        "hostile frames at the broker", "tests/system/test_hostile_frames.py", "--full-numbers", "-s", "--timeout=7200"
    )  # fmt: skip
    soak.run("kills of workers", [sys.executable, "bench/kills.py", f"--kills={options.kills}"])
    soak.run("uneven handlers", [sys.executable, "bench/uneven.py"])
    soak.run("kills of the loader", [sys.executable, "bench/loader_kills.py", f"--kills={options.loader_kills}"])
    if shutil.which("javac") and shutil.which("mvn"):
        soak.stage(
            "hostile frames beside Java clients", "tests/interop/test_hostile.py", "--full-numbers", "-s", "--timeout=7200"
        )  # fmt: skip
    if options.messages and shutil.which("java") and shutil.which("mvn"):
        soak.stage(
            f"genuine servers, {options.messages} messages", *GENUINE, f"--fault-messages={options.messages}",
            "--timeout=3600",
        )  # fmt: skip
    soak.stage(
        f"simulation, {options.seeds} seeds of {options.steps} steps",
        "tests/simulation", f"--sim-seeds={options.seeds}", f"--sim-steps={options.steps}", "-n", "2", "--timeout=0",
    )  # fmt: skip
    return soak.close()


if __name__ == "__main__":
    sys.exit(main())
