"""(j) Results on their way to the table: seconds from the handler to the commit, and what the loader costs the supervisor.

- *Delay*: messages at a steady rate; the row has the time of the handler's first act, the commit's time is when the batch
  is there to be read (its folder, or its entry in the Delta log). For `parquet` by Spark, and `pyarrow` and `deltalake`
  without a JVM, with spark.max_wait_ms as it is by default, and with --wait-ms. The first batch, before which Spark starts,
  is not counted.
- *On/off*: a handler of 0.1 ms that returns a row, one worker less than cores; messages per second with the loader (after
  its first batch, so that the JVM's start is no part of it) over those without, and CPU µs per message of supervisor and
  workers, which the loader's own share of the cores changes least. A core to spare is needed for 0.95.

    python bench/table.py [--rate 1000] [--seconds 60] [--wait-ms 2000] [--runs 3] [--window 15]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import latency
import pyarrow.dataset as ds
from measure import Crew, EmbeddedBroker, Source, interruptible, median, report, wait_done

from rocketcrew.spark.delta_log import LOG_DIR, is_delta

FORMATS = ("parquet", "pyarrow", "deltalake")
DEFAULT_WAIT_MS = 30_000
LOOK_S = 0.02
WAIT_S = 240.0
TO_REACH = 0.95
P50_S_MAX = 3.0
"""To reach at 1,000 messages a second with default settings."""
MESSAGES_A_SECOND_MAX = 12_000
"""Of one worker at 0.1 ms; the replay source must not run dry."""


class Commits:
    """When each batch of a table could be read, in ns since 1970."""

    def __init__(self, table: Path) -> None:
        self.seen: dict[int, int] = {}
        self._table = table
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        now = time.time_ns()
        for path in self._table.glob("batch_id=*"):
            self.seen.setdefault(int(path.name.partition("=")[2]), now)
        for path in self._table.glob(f"{LOG_DIR}/*.json"):
            batch = batch_of(path)
            if batch:
                self.seen.setdefault(batch, now)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self.look()


def batch_of(entry: Path) -> int:
    """The batch that an entry of the Delta log has committed; 0: none."""
    for line in entry.read_text().splitlines():
        action = json.loads(line)
        if "txn" in action:
            return int(action["txn"]["version"])
    return 0


def rows_of(table: Path) -> list[tuple[int, int]]:
    """(batch, when it was handled in ns) of every row."""
    if is_delta(table):
        from deltalake import DeltaTable

        found: Any = DeltaTable(str(table)).to_pyarrow_table(columns=["batch_id", "handled_ns"])
    else:
        found = ds.dataset(table, partitioning="hive").to_table(columns=["batch_id", "handled_ns"])
    return list(zip(found.column("batch_id").to_pylist(), found.column("handled_ns").to_pylist(), strict=True))


def delays(format_: str, wait_ms: int, rate: int, seconds: int) -> list[float]:
    """Seconds from handler to table of every row behind the first batch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table"
        broker = EmbeddedBroker(folder)
        commits = Commits(table)
        try:
            asyncio.run(latency.send(broker.name_server, rate, 1))  # makes the topic
            settings = {
                "spark.load": "true",
                "spark.format": format_,
                "spark.target": table,
                "spark.max_wait_ms": wait_ms,
            }
            crew = Crew(folder, broker.name_server, "latency", latency.TOPIC, settings)
            try:
                wait_for(lambda: 1 in commits.seen, "the first batch")
                asyncio.run(latency.send(broker.name_server, rate, rate * seconds))
                wait_done(crew, rate * seconds + 1)
                wait_for(lambda: len(rows_of(table)) >= rate * seconds + 1, "the last rows")
            finally:
                crew.stop()
        finally:
            commits.stop()
            broker.stop()
        return [(commits.seen[batch] - handled) / 1e9 for batch, handled in rows_of(table) if batch > 1]


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S} s"
        time.sleep(LOOK_S)


def throughput(on: bool, window_s: float, workers: int) -> tuple[float, float]:
    """Messages a second while the window lasts, and CPU µs per message of supervisor and workers."""
    source = Source(int((window_s + 60) * workers * MESSAGES_A_SECOND_MAX))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table"
        settings: dict[str, object] = {"workers.count": workers, "memory.pulled_bytes_mib": 64}
        if on:
            settings |= {"spark.load": "true", "spark.target": table, "spark.master": "local[1]"}
        try:
            crew = Crew(folder, source.name_server, "row_100us", "replay", settings)
            try:
                wait_done(crew, 1)
                if on:
                    wait_for(lambda: any(table.glob("batch_id=*")), "the first batch")
                time.sleep(1.0)
                first, used, begin = crew.done(), sum(crew.cpu()), time.perf_counter()
                time.sleep(window_s)
                last, end = crew.done(), time.perf_counter()
                return (last - first) / (end - begin), (sum(crew.cpu()) - used) / (last - first)
            finally:
                crew.stop()
        finally:
            source.stop()


def measure_delays(rate: int, seconds: int, waits_ms: tuple[int, ...]) -> None:
    rows: list[dict[str, object]] = []
    for format_, wait_ms in itertools.product(FORMATS, waits_ms):
        found = delays(format_, wait_ms, rate, seconds)
        cuts = statistics.quantiles(found, n=100)
        rows.append({
            "format": format_, "max_wait_ms": wait_ms, "rate": rate, "rows": len(found), "p50_s": cuts[49],
            "p99_s": cuts[98], "max_s": max(found), "load": os.getloadavg()[0],
        })  # fmt: skip
    report("table-delay", rows)
    by_default = [f"{row['format']} {row['p50_s']:.2f} s" for row in rows if row["max_wait_ms"] == DEFAULT_WAIT_MS]
    print(f"p50 from handler to table by default: {', '.join(by_default)}; to reach at 1,000/s: {P50_S_MAX:g} s")


def measure_on_off(runs: int, window_s: float) -> None:
    workers = max(1, (os.cpu_count() or 1) - 1)
    on: list[tuple[float, float]] = []
    off: list[tuple[float, float]] = []
    for number in range(runs):
        for turns in (on, off) if number % 2 else (off, on):
            turns.append(throughput(turns is on, window_s, workers))
    report("table-on-off", [{
        "workers": workers, "runs": runs, "on_per_s": median(rate for rate, _ in on),
        "off_per_s": median(rate for rate, _ in off),
        "ratio": median(one / two for (one, _), (two, _) in zip(on, off, strict=True)),
        "on_cpu_us": median(cpu for _, cpu in on), "off_cpu_us": median(cpu for _, cpu in off),
    }])  # fmt: skip
    print(f"to reach with a core to spare: {TO_REACH}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60, help="of messages at that rate")
    parser.add_argument("--wait-ms", type=int, default=2000, help="spark.max_wait_ms beside the default; 0: none")
    parser.add_argument("--runs", type=int, default=3, help="pairs of on and off; 0: delays alone")
    parser.add_argument("--window", type=float, default=15.0, help="seconds of each of them")
    options = parser.parse_args()
    interruptible()
    measure_delays(options.rate, options.seconds, tuple(filter(None, (DEFAULT_WAIT_MS, options.wait_ms))))
    if options.runs:
        measure_on_off(options.runs, options.window)
    print(f"cores {os.cpu_count()}, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
