"""(k) What a small commit costs when many were made before, and how large the table's state is then.

POP as two members see it: two staging folders with a loader each take turns on one table, of 64 queues; a tag matches one
record in ten, so that no two records touch; one record of queue 0 is stuck; and every queue has begun anew 30 times. The
first of these commits opens the epochs, each after it brings a few records of some queues. For `pyarrow` and `deltalake`,
which have no JVM whose moods hide the cost.

CPU and wall time of the loader's step, medians of --window commits; how often one opens, lists, renames or removes something,
and how many bytes it reads and writes, means of the same commits, merges of outcomes among them. Times go by the machine, the
counts and the state's size do not. Each ratio to the 100th commit should be at most 1.2, and the state 64 KiB.

With --merge small files of the Delta table are merged (spark.merge_files); the last columns say how many there are, and what
reading all rows by delta-rs costs.

    python bench/commits.py [--commits 20000] [--formats pyarrow,deltalake] [--window 100] [--merge]
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from measure import interruptible, report, write_segment

from rocketcrew.client.clock import wall_ms
from rocketcrew.conf.segment_format import FORMAT_VERSION, META_VERSION, key_fields, segment_name
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.convert import FILE_BYTES
from rocketcrew.spark.delta_log import is_delta
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.merging import MergeBounds
from rocketcrew.spark.plan import PlanBounds, Trigger
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget

QUEUES = 64
EPOCHS = 30
MEMBERS = 2
QUEUES_A_COMMIT = 8
MATCHES = 10
"""One record in so many is asked for."""
STUCK = 50
"""An offset of queue 0 that never comes."""
RATIO_TO_REACH, STATE_TO_REACH = 1.2, 64 * 1024
AT_100 = " / at 100"


FILE_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir"})


class Cost(NamedTuple):
    """Of one commit: seconds, and what it asked of the file system."""

    wall_s: float
    cpu_s: float
    calls: int
    """By Python's own calls: delta-rs makes others."""
    read_bytes: int
    written_bytes: int

    def since(self, before: Cost) -> Cost:
        """What was used after `before`."""
        return Cost(
            self.wall_s - before.wall_s, self.cpu_s - before.cpu_s, self.calls - before.calls,
            self.read_bytes - before.read_bytes, self.written_bytes - before.written_bytes,
        )  # fmt: skip


class Meter:
    """What this process has used so far."""

    def __init__(self) -> None:
        self._calls = 0
        sys.addaudithook(self._count)

    def _count(self, event: str, _: object) -> None:
        self._calls += event in FILE_EVENTS

    def now(self) -> Cost:
        """Since some moment in the past."""
        calls = self._calls
        told = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
        self._calls = calls
        return Cost(time.perf_counter(), time.process_time(), calls, int(told["rchar"]), int(told["wchar"]))


class Bench:
    """One table, and the loaders of two members."""

    def __init__(self, folder: Path, format_: str, threads: ThreadPoolExecutor, meter: Meter, *, merge: bool) -> None:
        self._meter = meter
        self._merge = MergeBounds(FILE_BYTES) if merge else None
        self.table = folder / "table"
        self.stagings = [Staging(folder / f"member-{number}") for number in range(MEMBERS)]
        self.loaders = [self._loader(staging, format_, threads) for staging in self.stagings]
        self._sealed = 0
        self._next = [0] * QUEUES
        fields: Any = pa.schema([*key_fields(), pa.field("value", pa.string())])
        self._schema: Any = fields.with_metadata({META_VERSION: str(FORMAT_VERSION).encode()})

    def _loader(self, staging: Staging, format_: str, threads: ThreadPoolExecutor) -> Loader:
        target: Any = (
            DeltaTarget(self.table, append_by_delta_rs, lambda: None, merge=self._merge)
            if format_ == "deltalake"
            else ParquetTarget(LocalFolder(self.table, threads), ArrowWriter(()))
        )
        loader = Loader(
            staging, target, Trigger(1, 1, 0), PlanBounds(10**6, 10**9), threads=threads, cores=1,
            new_id=lambda batch: f"{batch:08d}-{time.time_ns():x}",
        )  # fmt: skip
        loader.recover()
        return loader

    def seal(self, member: int, queues: list[int]) -> None:
        """A segment with one record of each of these queues."""
        self._sealed += 1
        rows: list[dict[str, object]] = []
        for queue in queues:
            offset = self._next[queue]
            self._next[queue] += MATCHES
            if queue == 0 and offset == STUCK:
                continue
            keys = [
                "group",
                "orders",
                f"broker-{queue // 8}",
                queue % 8,
                offset,
                0,
                "orders",
                None,
                None,
                0,
                offset * 1000,
            ]
            rows.append(dict(zip(self._schema.names, [*keys, "row"], strict=True)))
        path = self.stagings[member].ready / segment_name("w", self._sealed)
        write_segment(path, self._schema, [pa.RecordBatch.from_pylist(rows, schema=self._schema)])

    def step(self, member: int) -> Cost:
        """One commit."""
        before = self._meter.now()
        assert self.loaders[member].step(wall_ms(), at_once=True) is not None
        return self._meter.now().since(before)

    def begin_anew(self) -> None:
        """Every queue is run again from the start, EPOCHS - 1 times."""
        for epoch in range(EPOCHS):
            keys = [QueueKey("group", "orders", f"broker-{n // 8}", n % 8, epoch) for n in range(QUEUES)]
            for staging in self.stagings:
                (staging.root / "epochs.json").write_text(EpochRequest(tuple(keys), frozenset()).to_json())
            self._next = [0] * QUEUES
            for turn in range(2):
                self.seal(turn % MEMBERS, list(range(QUEUES)))
                self.step(turn % MEMBERS)

    def state_bytes(self) -> int:
        """The size of the newest state file."""
        paths = [*self.table.glob("_rocketcrew/*.json"), *self.table.glob("batch_id=*/_loaded.json")]
        return max(paths, key=lambda path: path.stat().st_mtime_ns).stat().st_size

    def reading(self) -> dict[str, object]:
        """What a reader of a Delta table meets: its files, and the CPU time of reading the newest version's rows."""
        if not is_delta(self.table):
            return {}
        before = time.process_time()
        table = DeltaTable(str(self.table))
        rows: Any = table.to_pyarrow_table()
        cpu_ms = 1000 * (time.process_time() - before)
        return {"data files": len(table.file_uris()), "rows": rows.num_rows, "read cpu ms": round(cpu_ms, 1)}

    def outcome_files(self) -> int:
        """How many files have outcomes."""
        found = [*self.table.glob("_rocketcrew/outcomes/*"), *self.table.glob("batch_id=*/_outcomes.json.gz")]
        return len(found) + len(list(self.table.glob("_outcomes/*")))


def run(folder: Path, format_: str, commits: int, window: int, meter: Meter, *, merge: bool) -> list[dict[str, object]]:
    """The figures at each power of ten, and at the end."""
    rows: list[dict[str, object]] = []
    with ThreadPoolExecutor(2) as threads:
        bench = Bench(folder, format_, threads, meter, merge=merge)
        bench.begin_anew()
        costs: list[Cost] = []
        marks = {100, 1000, 2000, 5000, 10_000, commits}
        for commit in range(1, commits + window // 2 + 1):
            first = commit * QUEUES_A_COMMIT
            bench.seal(commit % MEMBERS, [(first + n) % QUEUES for n in range(QUEUES_A_COMMIT)])
            costs.append(bench.step(commit % MEMBERS))
            if commit - window // 2 in marks:
                rows.append(_row(format_, commit - window // 2, costs[-window:], bench, rows))
                print(rows[-1], flush=True)
    return rows


def _row(
    format_: str, commit: int, costs: list[Cost], bench: Bench, before: list[dict[str, object]]
) -> dict[str, object]:
    figures = {
        "cpu": 1000 * statistics.median(cost.cpu_s for cost in costs),
        "calls": statistics.mean(cost.calls for cost in costs),
        "read": statistics.mean(cost.read_bytes for cost in costs),
        "written": statistics.mean(cost.written_bytes for cost in costs),
    }
    return {
        "format": format_, "commit": commit, "wall ms": round(1000 * statistics.median(cost.wall_s for cost in costs), 1),
        **{name: round(value, 1) for name, value in figures.items()},
        **{
            f"{name}{AT_100}": round(value / float(str(before[0][name])), 2) if before else 1.0
            for name, value in figures.items()
        },
        "state bytes": bench.state_bytes(), "outcome files": bench.outcome_files(), **bench.reading(),
    }  # fmt: skip


def main() -> None:
    """See the top of this file."""
    interruptible()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--formats", default="pyarrow,deltalake")
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--merge", action="store_true")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rows: list[dict[str, object]] = []
    meter = Meter()
    for format_ in asked.formats.split(","):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
            rows += run(Path(folder), format_, asked.commits, asked.window, meter, merge=asked.merge)
    report("commits", rows)
    late = [
        row
        for row in rows
        if any(float(str(value)) > RATIO_TO_REACH for name, value in row.items() if name.endswith(AT_100))
        or int(str(row["state bytes"])) > STATE_TO_REACH
    ]
    print(f"to reach: {RATIO_TO_REACH} and {STATE_TO_REACH} bytes;", "missed by" if late else "reached", *late)


if __name__ == "__main__":
    main()
