"""(i) Rows per second of `spark.read.format("rocketmq")` over those of canned Arrow batches and of `spark.read.parquet`.

A replay source answers the pulls, so that no broker is measured; it is a process of its own and takes its share of the
cores. It gives 32 messages a pull, as brokers do by default, and 256, as those do whose maxTransferCountOnMessageInMemory
was raised. All columns are read and thrown away (`noop`). *Canned*: a data source in Python of as many partitions, rows and
columns, which gives Spark batches of our reader that were made beforehand and lie in a mapped file: what the way from
Python to Spark lets through, whoever uses it. Turns alternate in one session; the first of each only warms up. CPU is that of
this process and all below it (the JVM, the Python workers), without the replay source's.
With `--name-server` and `--topic` the same on a broker of yours.

    python bench/source.py [--messages 1000000] [--runs 5] [--body-bytes 1024] [--name-server HOST:PORT --topic NAME]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from measure import Source, cpu_us, interruptible, median, report
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketcrew.source.batch_reader import part_of
from rocketcrew.source.default_source import DefaultSource
from rocketcrew.spark.session import SessionSettings, open_session

PER_PULL = (32, 256)
CANNED_BATCHES = 8
TO_REACH = {"replay 32": ("of parquet", 0.45), "replay 256": ("of canned", 0.9)}


class Canned(DataSource):
    """Option `file` is an Arrow file of batches, `rows` how many rows each partition has (with commas), `schema` as JSON.

    Spark takes classes of the main program to its Python processes by value."""

    @classmethod
    def name(cls) -> str:
        return "canned"

    def schema(self) -> StructType:
        import json

        return StructType.fromJson(json.loads(self.options["schema"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return CannedReader(self.options["file"], [int(rows) for rows in self.options["rows"].split(",")])


class CannedReader(DataSourceReader):
    """Gives the file's batches again and again."""

    def __init__(self, file: str, rows: Sequence[int]) -> None:
        self._file = file
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(rows) for rows in self._rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from itertools import cycle

        import pyarrow as pa

        batches = pa.ipc.open_file(pa.memory_map(self._file))
        left = partition.value
        for number in cycle(range(batches.num_record_batches)):
            if not left:
                return
            batch = batches.get_batch(number).slice(0, left)
            left -= batch.num_rows
            yield batch


def can(options: dict[str, str], ddl: StructType, file: Path) -> dict[str, str]:
    """Write what our reader gives first into `file`; the options of `Canned` for as much as there is."""
    reader = DefaultSource(options).reader(ddl)
    parts = reader.partitions()
    first: list[Any] = list(islice((batch for part in parts for batch in reader.read(part)), CANNED_BATCHES))
    with pa.ipc.new_file(str(file), first[0].schema) as out:
        for batch in first:
            out.write_batch(batch)
    rows = ",".join(str(part_of(part).size) for part in parts)
    return {"file": str(file), "rows": rows, "schema": ddl.json()}


def discard(frame: Any) -> float:
    """Seconds of reading every row and column."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def cpu_s() -> float:
    """On-CPU seconds so far of this process, Spark's JVM and its Python processes."""
    below = [
        child for child in psutil.Process().children(recursive=True) if "replay.py" not in " ".join(child.cmdline())
    ]
    return sum(cpu_us(pid) for pid in (os.getpid(), *(child.pid for child in below))) / 1e6


def compare(spark: Any, folder: Path, name_server: str, topic: str, runs: int, what: str) -> dict[str, object]:
    """Alternate all sides, medians, and the medians of the turns' ratios."""
    options = {"nameServer": name_server, "subscribe": topic, "pullBatchSize": "1024"}
    files = f"file://{folder / what.replace(' ', '-')}"

    def source() -> Any:
        return spark.read.format("rocketmq").options(**options).load()

    source().write.mode("overwrite").parquet(files)
    count = spark.read.parquet(files).count()
    canned = can(options, source().schema, folder / f"{what}.arrow")
    sides: dict[str, Callable[[], Any]] = {
        "source": source,
        "canned": lambda: spark.read.format("canned").options(**canned).load(),
        "parquet": lambda: spark.read.parquet(files),
    }
    assert sides["canned"]().count() == count
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name in sorted(sides, reverse=bool(number % 2)):
            before = cpu_s()
            seconds[name].append(discard(sides[name]()))
            cpu[name].append(cpu_s() - before)

    def ratio(name: str) -> float:
        return median(other / ours for ours, other in zip(seconds["source"][1:], seconds[name][1:], strict=True))

    row: dict[str, object] = {"fed by": what, "rows": count}
    row |= {f"{name} rows/s": count / median(seconds[name][1:]) for name in sides}
    row |= {f"{name} CPU µs/row": 1e6 * median(cpu[name][1:]) / count for name in sides}
    return row | {"of canned": ratio("canned"), "of parquet": ratio("parquet"), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5, help="alternations that count")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--name-server", default="", help="of a cluster of yours; read only")
    parser.add_argument("--topic", default="", help="a topic there that holds messages")
    options = parser.parse_args()
    interruptible()
    folder = Path(tempfile.mkdtemp(prefix="rocketcrew-bench-"))
    rows: list[dict[str, object]] = []
    session = open_session(SessionSettings(folder / "spark", env=os.environ))
    try:
        session.spark.dataSource.register(Canned)
        for per_pull in PER_PULL:
            source = Source(options.messages, body_bytes=options.body_bytes, per_pull=per_pull)
            try:
                what = f"replay {per_pull}"
                rows.append(compare(session.spark, folder, source.name_server, "replay", options.runs, what))
            finally:
                source.stop()
        if options.name_server:
            rows.append(compare(session.spark, folder, options.name_server, options.topic, options.runs, "broker"))
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)
    report("source", rows)
    for row in rows:
        if row["fed by"] in TO_REACH:
            name, least = TO_REACH[str(row["fed by"])]
            print(f"{row['fed by']} a pull, rate {name}: {row[name]:.2f}, to reach {least}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
