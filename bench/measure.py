"""What the benchmarks share: processes, CPU by schedstat, medians, the printed table and the JSON file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from rocketcrew.cli.children import Child, free_ports, listens
from rocketcrew.conf.segment_format import CHECK_BLANK, META_BATCH_CHECK, with_check
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.control import ask

HERE = Path(__file__).parent
RESULTS = HERE / "results"
START_S = 60.0
LOOK_MIN_S = 0.02
LOOK_MAX_S = 0.5


def cpu_us(pid: int) -> float:
    """On-CPU time of all threads of a process so far, in µs (robust against other load on the machine)."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        # A thread may end between the listing and its turn.
        with (
            contextlib.suppress(FileNotFoundError),
            open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file,
        ):
            total += int(file.read().split()[0])
    return total / 1000


def own_mib(pid: int) -> float:
    """Memory that is this process's alone, at this moment: without the shared pages of the slab, and of what was forked."""
    info = psutil.Process(pid).memory_full_info()
    return info.uss / (1 << 20)


def peak_mib(pid: int) -> float:
    """The most that was ever resident (VmHWM), shared pages too: the slab's, as far as the process has touched them."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0  # a zombie has no memory


def peaks_mib(crew: Crew) -> dict[str, float]:
    """Peaks of a crew so far: of the slab, and of the resident memory of its processes (of workers the largest)."""
    status = crew.status()
    assert status is not None
    workers = [int(worker["pid"]) for worker in status["workers"]]
    others = {child.pid for child in psutil.Process(crew.child.pid).children(recursive=True)} - {*workers}
    return {
        "slab_peak_mib": int(status["memory"]["slab_peak_bytes"]) / (1 << 20),
        "supervisor_peak_mib": peak_mib(crew.child.pid),
        "worker_peak_mib": max(map(peak_mib, workers)),
        "helper_peak_mib": max(map(peak_mib, others), default=0.0),
    }


class Source:
    """The replay source as a process."""

    def __init__(
        self, messages: int, *, queues: int = 8, topics: int = 1, body_bytes: int = 1024, per_pull: int = 32,
        hold: bool = False,
    ) -> None:  # fmt: skip
        (self.port,) = free_ports(1)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "replay.py"), "--port", str(self.port), "--queues", str(queues),
             "--messages", str(messages), "--body-bytes", str(body_bytes), "--per-pull", str(per_pull),
             "--topics", str(topics), *(["--hold"] if hold else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.messages: int = json.loads(self._process.stdout.readline())["messages"]
        self.name_server = f"127.0.0.1:{self.port}"
        self.pid = self._process.pid

    def ask(self, line: str) -> dict[str, Any]:
        """Say it on its standard input (replay.py); the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class EmbeddedBroker:
    """The embedded broker as a process; its files are in `folder`/broker."""

    def __init__(self, folder: Path, settings: Mapping[str, object] = {}) -> None:
        port, name_server_port = free_ports(2)
        self.name_server = f"127.0.0.1:{name_server_port}"
        self.address = f"127.0.0.1:{port}"
        words = ["broker"]
        for key, value in {
            "broker.name_server_port": name_server_port, "broker.port": port, "broker.dir": folder / "broker", **settings,
        }.items():  # fmt: skip
            words += ["--set", f"{key}={value}"]
        self.child = Child("broker", words, log=folder / "broker.log")
        self.child.wait_for(lambda: listens(name_server_port) and listens(port), START_S, "start")

    def stop(self) -> None:
        self.child.stop(START_S)


class Crew:
    """One supervisor with its workers, measured from outside."""

    def __init__(
        self, folder: Path, name_server: str, handler: str, topic: str, settings: Mapping[str, object] = {},
        group: str = "bench", module: str = "handlers",
    ) -> None:  # fmt: skip
        self.slot = folder / "state" / group / "0"
        words = ["run", f"{module}:{handler}", "--topic", topic, "--group", group, "-n", name_server]
        merged = {
            "supervisor.data_dir": folder / "state",
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "spark.load": "false",
            "metrics.port": free_ports(1)[0],
            **settings,
        }
        for key, value in merged.items():
            words += ["--set", f"{key}={value}"]
        self.child = Child("supervisor", words, log=folder / "supervisor.log", cwd=HERE)
        self.child.wait_for(lambda: self.status() is not None, START_S, "start")

    def status(self) -> dict[str, Any] | None:
        try:
            return asyncio.run(ask(self.slot, "status"))
        except UsageError:
            return None

    def done(self) -> int:
        status = self.status()
        return int(status["counters"]["done_messages"]) if status else 0

    def workers(self) -> list[int]:
        status = self.status()
        return [worker["pid"] for worker in status["workers"]] if status else []

    def cpu(self) -> tuple[float, float]:
        """(supervisor, workers together) in µs."""
        return cpu_us(self.child.pid), sum(cpu_us(pid) for pid in self.workers())

    def stop(self) -> None:
        self.child.stop(START_S)


def wait_done(crew: Crew, count: int, timeout_s: float = 300.0) -> float:
    """Wait until `count` messages are done; the moment (perf_counter) it was seen.

    A look costs the supervisor some milliseconds, so there are few: each comes when most of what is left should be done at
    the present rate. The last ones are LOOK_MIN_S apart, by which the moment may be late.
    """
    deadline = time.monotonic() + timeout_s
    before, done, pause_s = 0, crew.done(), LOOK_MIN_S
    while done < count:
        crew.child.check()
        assert time.monotonic() < deadline, f"only {done} of {count} messages after {timeout_s} s"
        per_s = (done - before) / pause_s if before else 0.0
        pause_s = min(max(LOOK_MIN_S, 0.7 * (count - done) / per_s), LOOK_MAX_S) if per_s else LOOK_MIN_S
        time.sleep(pause_s)
        before, done = done, crew.done()
    return time.perf_counter()


def figures(crew: Crew, messages: int) -> dict[str, float]:
    """Messages a second of a crew that is at work on so many, and CPU µs a message of its processes; the first tenth warms up
    and is not counted."""
    wait_done(crew, messages // 10)
    first, (supervisor, workers) = crew.done(), crew.cpu()
    begin = time.perf_counter()
    end = wait_done(crew, messages)
    counted = messages - first
    supervisor_end, workers_end = crew.cpu()
    return {
        "rate": counted / (end - begin),
        "supervisor_us": (supervisor_end - supervisor) / counted,
        "workers_us": (workers_end - workers) / counted,
    }


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def report(name: str, rows: list[dict[str, object]]) -> None:
    """Print a table and write results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[k]) for line in cells)) for k, name in enumerate(names)]
    print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)))
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def write_segment(path: Path, schema: Any, batches: Iterable[Any]) -> None:
    """A sealed segment of these batches, with their checksums as a worker writes them."""
    import pyarrow

    pa: Any = pyarrow
    sink = pa.BufferOutputStream()
    ends = [schema.serialize().size]
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch, custom_metadata={META_BATCH_CHECK: CHECK_BLANK})
            ends.append(sink.tell())
    whole = bytearray(sink.getvalue())
    for start, end in pairwise(ends):
        with_check(whole, start, end)
    path.write_bytes(whole)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}" if isinstance(
        value, float) else str(value)  # fmt: skip


def interruptible() -> None:
    """TERM stops a benchmark as Ctrl-C does, so that its children are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
