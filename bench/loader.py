"""(c) The loader's rows per second over bare Spark reading and writing the same rows.

Bare: `spark.read.parquet(files).write.parquet(out)`, the files being the segments' rows as Parquet, made beforehand. The
loader: sealed segments to a committed batch, with everything that belongs to it (reading and checking the segments,
planning, converting, the Spark job, fsync, renames, deleting), in the same JVM and without one (spark.format = pyarrow), in
turns. Small flushes (--flush-rows) as workers write them; bodies half incompressible. JVM start is not counted; the first
turn of each size only warms up.

Beside it, at the largest number of rows: plain pyarrow (the same segments read and written as Parquet, snappy, one thread),
and what is written without a loader: `createDataFrame(list of Row)` appended (--objects rows of them; the lists are made
beforehand).

    python bench/loader.py [--rows 100000,1000000] [--runs 5] [--row-bytes 1024] [--memory 1g]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from measure import cpu_us, interruptible, report, write_segment

from rocketcrew.client.clock import wall_ms
from rocketcrew.conf.segment_format import FORMAT_VERSION, META_VERSION, key_fields, segment_name
from rocketcrew.durable.files import remove_tree
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.convert import stage
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.plan import Plan, Take
from rocketcrew.spark.reports import BatchReport
from rocketcrew.spark.segments import read_facts
from rocketcrew.spark.spark_writer import SparkWriter
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.making import make_writer
from rocketcrew.spark.targets.parquet import ParquetTarget
from rocketcrew.spark.targets.target import Writer

KEY_BYTES = 120
"""About what the key columns of one row take."""
SEGMENT_BYTES = 16 << 20
POOL_BODIES = 4096


class Bodies:
    """A pool of message bodies: half random, half the same byte, as real payloads compress by about two."""

    def __init__(self, size: int) -> None:
        rng = random.Random(1)
        self._data = pa.py_buffer(
            b"".join(rng.randbytes(size // 2) + b"a" * (size - size // 2) for _ in range(POOL_BODIES))
        )
        self._size = size

    def take(self, count: int, first: int) -> Any:
        """`count` bodies, as a view of the pool."""
        start = first % (POOL_BODIES - count)
        ends = pa.array([(start + n) * self._size for n in range(count + 1)], pa.int32())
        return pa.Array.from_buffers(pa.binary(), count, [None, ends.buffers()[1], self._data])


def write_segments(folder: Path, rows: int, row_bytes: int, flush_rows: int) -> None:
    """Seal `rows` rows into segments of about 16 MiB, as two workers would."""
    folder.mkdir(parents=True)
    fields = [*key_fields(), pa.field("body", pa.binary())]
    schema = pa.schema(fields).with_metadata({META_VERSION: str(FORMAT_VERSION).encode()})
    bodies = Bodies(row_bytes - KEY_BYTES)
    segment_rows = max(flush_rows, SEGMENT_BYTES // row_bytes)
    for number, first in enumerate(range(0, rows, segment_rows)):
        path = folder / segment_name(f"w{number % 2}", number)
        starts = range(first, min(rows, first + segment_rows), flush_rows)
        write_segment(path, schema, (_flush(schema, bodies, at, min(flush_rows, starts.stop - at)) for at in starts))
        os.utime(path, (number, number))


def _flush(schema: Any, bodies: Bodies, start: int, count: int) -> Any:
    offsets = list(range(start, start + count))
    ids = pa.array([f"7F0000010B2418B4AAC2{offset:012X}" for offset in offsets])
    zeros = pa.array([0] * count, pa.int32())
    queue = pa.array([start // count % 8] * count, pa.int32())
    same = [pa.array([text] * count) for text in ("group", "orders", "broker-a")]
    stored = pa.array(offsets, pa.timestamp("us", tz="UTC"))
    columns = [*same, queue, pa.array(offsets), zeros, same[1], ids, ids, zeros, stored, bodies.take(count, start)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass
class Turn:
    """One run of one side."""

    seconds: float
    python_s: float
    jvm_s: float
    batches: list[BatchReport]

    @property
    def cpu_s(self) -> float:
        return self.python_s + self.jvm_s


class Bench:
    """The folders and the one Spark session of a benchmark."""

    def __init__(self, folder: Path, memory: str) -> None:
        self.folder = folder
        self.config = LoaderConfig(folder / "staging", folder / "table", driver_memory=memory, env=dict(os.environ))
        self.writer = make_writer(self.config)
        assert isinstance(self.writer, SparkWriter)
        self.writer.start()
        session = self.writer.session
        assert session is not None
        self.spark: Any = session.spark
        self.jvm_pid = session.jvm_pid
        self.threads = ThreadPoolExecutor(2)

    def prepare(self, rows: int, row_bytes: int, flush_rows: int) -> None:
        """Segments, and the same rows as Parquet files for the bare side."""
        for name in ("segments", "files"):
            remove_tree(self.folder / name)
        write_segments(self.folder / "segments", rows, row_bytes, flush_rows)
        facts = {path.name: read_facts(path) for path in sorted((self.folder / "segments").iterdir())}
        takes = tuple(Take(name, None) for name in facts)
        plan = Plan("bench", 1, takes, OffsetSet(), ())
        stage(plan, facts, self.folder / "segments", self.folder / "files", self.threads, self.config.cores)

    def bare(self) -> Turn:
        """Spark alone."""
        remove_tree(self.folder / "bare")
        return self._turn(self._run_bare)

    def _run_bare(self) -> list[BatchReport]:
        self.spark.read.parquet(str(self.folder / "files")).write.parquet(str(self.folder / "bare"))
        return []

    def _turn(self, run: Callable[[], list[BatchReport]]) -> Turn:
        os.sync()  # what the turn before wrote is not to be waited for in this one's fsyncs
        begun, python_us, jvm_us = time.monotonic(), cpu_us(os.getpid()), cpu_us(self.jvm_pid)
        batches = run()
        seconds = time.monotonic() - begun
        python_s, jvm_s = ((cpu_us(os.getpid()) - python_us) / 1e6, (cpu_us(self.jvm_pid) - jvm_us) / 1e6)
        return Turn(seconds, python_s, jvm_s, batches)

    def loader(self) -> Turn:
        """The loader, from sealed segments to an empty staging folder."""
        return self._load(self.writer)

    def without_spark(self) -> Turn:
        """The same with spark.format = pyarrow."""
        return self._load(ArrowWriter())

    def _load(self, writer: Writer) -> Turn:
        remove_tree(self.config.folder)
        for name in ("ready", "plan"):  # beside them lies Spark's own folder
            remove_tree(self.config.staging / name)
        (self.config.staging / "ready").mkdir(parents=True)
        for path in (self.folder / "segments").iterdir():
            os.link(path, self.config.staging / "ready" / path.name)
        return self._turn(partial(self._run_loader, writer))

    def _run_loader(self, writer: Writer) -> list[BatchReport]:
        loader = Loader(
            Staging(self.config.staging),
            ParquetTarget(LocalFolder(self.config.folder, self.threads), writer),
            self.config.trigger,
            self.config.bounds,
            threads=self.threads,
            cores=self.config.cores,
            new_id=lambda batch: f"bench-{batch}",
        )
        loader.recover()
        return list(loader.drain(wall_ms, lambda: False))

    def pyarrow(self) -> float:
        """Seconds of plain pyarrow over the same segments."""
        begin = time.monotonic()
        for path in sorted((self.folder / "segments").iterdir()):
            rows: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
            pq.write_table(rows, str(self.folder / "plain.parquet"), compression="snappy")
        return time.monotonic() - begin

    def objects(self, count: int) -> float:
        """Seconds of appending a list of Row objects."""
        from pyspark.sql import Row

        path = min((self.folder / "segments").iterdir())
        reading: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
        schema = self.spark.read.parquet(str(self.folder / "files")).schema
        some = [Row(**row) for row in reading.to_pylist()]
        rows = (some * (count // len(some) + 1))[:count]
        remove_tree(self.folder / "objects")
        begin = time.monotonic()
        self.spark.createDataFrame(rows, schema).write.mode("append").parquet(str(self.folder / "objects"))
        return time.monotonic() - begin

    def close(self) -> None:
        self.writer.close()
        self.threads.shutdown()


def measure(bench: Bench, rows: int, runs: int) -> dict[str, object]:
    """Alternate all sides, the order changing each time; medians, and the medians of the turns' ratios."""
    bare: list[Turn] = []
    loaded: list[Turn] = []
    arrow: list[Turn] = []
    for number in range(runs + 1):
        sides = [(bench.bare, bare), (bench.loader, loaded), (bench.without_spark, arrow)]
        for run, turns in sides if number % 2 else sides[::-1]:
            turns.append(run())
    bare, loaded, arrow = bare[1:], loaded[1:], arrow[1:]
    assert all(sum(batch.rows for batch in turn.batches) == rows for turn in [*loaded, *arrow])
    last = [turn.batches for turn in loaded]

    def part(name: str) -> float:
        return float(statistics.median(sum(getattr(batch, name) for batch in batches) for batches in last))

    def over_bare(turns: list[Turn]) -> float:
        return statistics.median(one.seconds / two.seconds for one, two in zip(bare, turns, strict=True))

    def cpu_over_bare(turns: list[Turn]) -> float:
        return statistics.median(one.cpu_s / two.cpu_s for one, two in zip(bare, turns, strict=True))

    bare_s, loader_s, arrow_s = (statistics.median(turn.seconds for turn in turns) for turns in (bare, loaded, arrow))
    return {
        "rows": rows,
        "bare rows/s": rows / bare_s,
        "loader rows/s": rows / loader_s,
        "pyarrow rows/s": rows / arrow_s,
        "ratio": over_bare(loaded),
        "pyarrow ratio": over_bare(arrow),
        "cpu ratio": cpu_over_bare(loaded),
        "pyarrow cpu ratio": cpu_over_bare(arrow),
        "bare cpu s": statistics.median(turn.cpu_s for turn in bare),
        "pyarrow cpu s": statistics.median(turn.cpu_s for turn in arrow),
        "jvm cpu s": statistics.median(turn.jvm_s for turn in loaded),
        "python cpu s": statistics.median(turn.python_s for turn in loaded),
        "bare s": bare_s,
        "loader s": loader_s,
        "stage s": part("stage_s"),
        "job s": part("job_s"),
        "commit s": part("commit_s"),
        "batches": len(last[-1]),
        "runs": runs,
    }


def others(
    bench: Bench, rows: int, loader_rate: float, arrow_rate: float, objects: int, runs: int
) -> list[dict[str, object]]:
    """What the loader is compared with beside bare Spark; the first run of each only warms up."""
    ways: dict[str, tuple[int, Callable[[], float]]] = {
        "pyarrow": (rows, bench.pyarrow),
        "createDataFrame": (objects, lambda: bench.objects(objects)),
    }
    found: list[dict[str, object]] = []
    for name, (count, run) in ways.items():
        seconds = statistics.median([run() for _ in range(runs + 1)][1:])
        found.append(
            {
                "over": name,
                "rows": count,
                "rows/s": count / seconds,
                "loader is times": loader_rate * seconds / count,
                "without Spark": arrow_rate * seconds / count,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="100000,1000000", help="numbers of rows, with commas")
    parser.add_argument("--runs", type=int, default=5, help="alternations that count")
    parser.add_argument("--row-bytes", type=int, default=1024)
    parser.add_argument("--flush-rows", type=int, default=100, help="rows of one record batch")
    parser.add_argument("--objects", type=int, default=20_000, help="rows as Python objects")
    parser.add_argument("--memory", default="1g", help="of the JVM")
    parser.add_argument("--dir", type=Path, default=None, help="where the data goes (about 4 KiB a row)")
    options = parser.parse_args()
    interruptible()
    folder = Path(tempfile.mkdtemp(prefix="rocketcrew-bench-", dir=options.dir))
    try:
        bench = Bench(folder, options.memory)
        try:
            rows: list[dict[str, object]] = []
            beside: list[dict[str, object]] = []
            counts = [int(text) for text in options.rows.split(",")]
            for count in counts:
                bench.prepare(count, options.row_bytes, options.flush_rows)
                rows.append(measure(bench, count, options.runs))
                if count == max(counts):
                    rates = [float(str(rows[-1][name])) for name in ("loader rows/s", "pyarrow rows/s")]
                    beside = others(bench, count, rates[0], rates[1], options.objects, options.runs)
        finally:
            bench.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report("loader", rows)
    report("loader-beside", beside)
    print(
        f"over bare Spark: {rows[-1]['ratio']:.2f} by Spark, {rows[-1]['pyarrow ratio']:.2f} by pyarrow; to reach at"
        f" 1,000,000 rows: 0.8, 2.0, and 10 times createDataFrame; load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
