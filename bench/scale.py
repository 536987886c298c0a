"""(j) What grows with queues, workers, topics, sealed files and members: the supervisor's CPU, look-ups, memory.

The supervisor is the real one, fed by the replay source. Its workers are stood in for by one process that answers packets
(stand_ins.py), so that 256 of them need no cores; that process and the source are not counted. Every figure is CPU time of
the supervisor (schedstat). Sizes take turns in each run, and what is compared is the ratio to the smallest size of the same
run; of these the median is printed.

- queues, topics, workers: µs per message, at full rate, from the moment when all queues are opened, without the looks at
  the status; for workers once with cheap messages, which go to the few that are awake, and once with messages of 100 µs,
  which go to all in turn;
- idle: µs a second with nothing to do, 5 s long, begun when all messages are done;
- files: the same with sealed segments waiting in ready/, which nobody loads;
- start: CPU ms until every queue is opened, memory then; per queue and per worker;
- joins: look-ups of members per topic and joining member, with 10 topics and notices of 20 brokers.

To reach: at most 1.2 times per message and per idle second from the smallest to the largest; a join costs at most one look-up
a topic. Exceptions, by the operation: an idle queue costs one pull each `suspend_timeout_ms` and one commit each 30 s (both
by the protocol), so idle seconds are linear in queues; the folder of sealed files is listed for at most 0.5 % of the time.

    python bench/scale.py [--runs 3] [--messages 300000] [queues topics workers files joins ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measure import HERE, START_S, Crew, Source, cpu_us, interruptible, median, own_mib, report, wait_done

from rocketcrew.cli.children import free_ports
from rocketcrew.conf.segment_format import READY_DIR

Figures = dict[str, float]

PER_PULL = 32
BODY_BYTES = 200
IDLE_S = 5.0
SETTLE_S = 1.0
QUEUES = (8, 128, 1_024)
TOPICS = (1, 10, 100)
WORKERS = (2, 16, 64, 256)
LOOKS = 5
FILES = (10, 10_000, 100_000)
JOINS = (10, 100)
JOIN_TOPICS, JOIN_BROKERS, JOIN_EVERY_MS = 10, 20, 20
TOPIC_QUEUES = 200
"""Of all topics together, where topics are compared."""


class Stood(Crew):
    """A supervisor whose workers are stood in for."""

    def __init__(
        self, folder: Path, source: Source, *, workers: int, us: int, topics: int, settings: Mapping[str, object]
    ) -> None:
        self.looks = 0
        self.slot = folder / "state" / "bench" / "0"
        names = ["replay", *(f"replay-{number}" for number in range(1, topics))]
        words = ["run", "handlers:no_op", "--group", "bench", "-n", source.name_server]
        for name in names:
            words += ["--topic", name]
        merged = {
            "supervisor.data_dir": folder / "state",
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "spark.load": "false",
            "metrics.port": free_ports(1)[0],
            "workers.count": workers,
            "workers.stall_timeout_ms": 600_000,
            "memory.pulled_bytes_mib": 256,
            **settings,
        }
        for key, value in merged.items():
            words += ["--set", f"{key}={value}"]
        self.log = folder / "supervisor.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "stand_ins.py"), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=HERE,
                env={**os.environ, "STAND_IN_US": str(us)},
            )  # fmt: skip
        self.child = self  # type: ignore[assignment]
        self._wait(lambda: self.status() is not None, "start")

    def status(self) -> dict[str, Any] | None:
        """Each look costs what it shows, and is counted."""
        self.looks += 1
        return super().status()

    def look_us(self) -> float:
        """CPU of one look at the status, at rest."""
        before, cpu = self.looks, cpu_us(self.pid)
        while self.looks < before + LOOKS:
            self.status()
        return (cpu_us(self.pid) - cpu) / LOOKS

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raises when it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the supervisor ended:\n{self.log.read_text()[-4_000:]}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {what} within {START_S:.0f} s:\n{self.log.read_text()[-4_000:]}")
            time.sleep(0.1)

    def opened(self, queues: int) -> None:
        """Wait until so many queues are assigned."""

        def all_there() -> bool:
            status = self.status()
            return status is not None and len(status["queues"]) >= queues

        self._wait(all_there, f"{queues} queues")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(START_S)


def seal(folder: Path, files: int) -> None:
    """So many sealed segments wait, of a worker that is long gone."""
    ready = folder / "state" / "bench" / "0" / "segments" / READY_DIR
    ready.mkdir(parents=True)
    for number in range(files):
        (ready / f"gone-{number:08d}.arrows").touch()


def measure(
    messages: int, *, queues: int = 8, topics: int = 1, workers: int = 2, us: int = 0, files: int = 0,
    settings: Mapping[str, object] = {},
) -> Figures:  # fmt: skip
    """One supervisor from its start to an idle end."""
    source = Source(messages, queues=queues, topics=topics, body_bytes=BODY_BYTES, per_pull=PER_PULL, hold=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if files:
                seal(folder, files)
            crew = Stood(folder, source, workers=workers, us=us, topics=topics, settings=settings)
            try:
                crew.opened(queues)
                time.sleep(SETTLE_S)
                looks, cpu = crew.looks, cpu_us(crew.pid)
                source.ask("go")
                wait_done(crew, source.messages)
                taken, looks = cpu_us(crew.pid) - cpu, crew.looks - looks
                time.sleep(SETTLE_S)
                per_message = (taken - looks * crew.look_us()) / source.messages
                cpu = cpu_us(crew.pid)
                time.sleep(IDLE_S)
                idle = (cpu_us(crew.pid) - cpu) / IDLE_S
                return {"message_us": per_message, "idle_us_per_s": idle}
            finally:
                crew.stop()
    finally:
        source.stop()


def start(queues: int, workers: int) -> Figures:
    """CPU and memory at the moment when every queue is opened; there are no messages."""
    source = Source(0, queues=queues, body_bytes=BODY_BYTES)
    try:
        with tempfile.TemporaryDirectory() as name:
            crew = Stood(Path(name), source, workers=workers, us=0, topics=1, settings={})
            try:
                crew.opened(queues)
                found = {"start_ms": cpu_us(crew.pid) / 1000}
                time.sleep(SETTLE_S)
                return {**found, "own_mib": own_mib(crew.pid)}
            finally:
                crew.stop()
    finally:
        source.stop()


def joins(members: int) -> Figures:
    """Look-ups per topic and member that joins, and what they cost."""
    source = Source(0, queues=JOIN_TOPICS * 4, topics=JOIN_TOPICS, body_bytes=BODY_BYTES)
    try:
        with tempfile.TemporaryDirectory() as name:
            crew = Stood(Path(name), source, workers=2, us=0, topics=JOIN_TOPICS, settings={})
            try:
                crew.opened(JOIN_TOPICS * 4)
                time.sleep(SETTLE_S)
                cpu = cpu_us(crew.pid)
                said = source.ask(f"join {members} {JOIN_BROKERS} {JOIN_EVERY_MS}")
                return {
                    "look_ups": said["look_ups"] / members / JOIN_TOPICS,
                    "join_ms": (cpu_us(crew.pid) - cpu) / 1000 / members,
                }
            finally:
                crew.stop()
    finally:
        source.stop()


def paired(runs: int, sizes: tuple[int, ...], one: Callable[[int], Figures]) -> list[dict[str, Any]]:
    """Each size once a run, in turn from either end; medians of the figures and of their ratios to the smallest size."""
    found: dict[int, list[Figures]] = {size: [] for size in sizes}
    for run in range(runs):
        for size in sorted(sizes, reverse=bool(run % 2)):
            found[size].append(one(size))
            print(
                f"  {size}: {json.dumps({key: round(value, 2) for key, value in found[size][-1].items()})}", flush=True
            )
    rows: list[dict[str, Any]] = []
    for size, figures in found.items():
        row: dict[str, Any] = {"size": size, "runs": runs}
        for key in figures[0]:
            row[key] = median(each[key] for each in figures)
            row[f"{key} x"] = median(
                each[key] / small[key] for each, small in zip(figures, found[sizes[0]], strict=True)
            )
        rows.append(row)
    return rows


def starts(runs: int, sizes: tuple[int, ...], one: Callable[[int], Figures]) -> list[dict[str, Any]]:
    """As `paired`, and what one more costs: from the smallest size to each other one."""
    rows = paired(runs, sizes, one)
    least = rows[0]
    for row in rows:
        more = row["size"] - least["size"]
        row["ms each"] = (row["start_ms"] - least["start_ms"]) / more if more else 0.0
        row["KiB each"] = (row["own_mib"] - least["own_mib"]) * 1024 / more if more else 0.0
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="some of the measurements; all by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=300_000)
    options = parser.parse_args()
    interruptible()
    runs, messages = options.runs, options.messages
    limits = {"consumer.pull_threshold_for_topic": 1_000_000}
    measurements: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "queues": lambda: paired(runs, QUEUES, lambda size: measure(messages, queues=size)),
        "thresholds": lambda: paired(runs, QUEUES, lambda size: measure(messages, queues=size, settings=limits)),
        "topics": lambda: paired(runs, TOPICS, lambda size: measure(messages, queues=TOPIC_QUEUES, topics=size)),
        "workers": lambda: paired(runs, WORKERS, lambda size: measure(messages, workers=size)),
        "workers-all": lambda: paired(runs, WORKERS, lambda size: measure(messages, workers=size, us=100)),
        "files": lambda: paired(runs, FILES, lambda size: measure(messages, files=size)),
        "start-queues": lambda: starts(runs, QUEUES, lambda size: start(size, 2)),
        "start-workers": lambda: starts(runs, WORKERS, lambda size: start(8, size)),
        "joins": lambda: paired(runs, JOINS, joins),
    }
    unknown = set(options.what) - measurements.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose of {', '.join(measurements)}")
    for name in options.what or measurements:
        print(f"== {name}", flush=True)
        report(f"scale-{name}", [{"of": name, **row} for row in measurements[name]()])
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
