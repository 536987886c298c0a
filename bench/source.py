"""(i) Rows per second of `spark.read.format("rocketmq")` over `spark.read.parquet` of the same rows.

A replay source answers the pulls, so that no broker is measured; it is a process of its own and takes its share of the
cores. It gives 32 messages a pull, as brokers do by default, and 256, as those do whose maxTransferCountOnMessageInMemory
was raised. All columns are read and thrown away (`noop`). Turns alternate in one session; the first of each only warms up.
With `--name-server` and `--topic` the same on a broker of yours.

    python bench/source.py [--messages 1000000] [--runs 5] [--body-bytes 1024] [--name-server HOST:PORT --topic NAME]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Source, interruptible, median, report

from rocketcrew.spark.session import SessionSettings, open_session

PER_PULL = (32, 256)
TO_REACH = 0.4


def discard(frame: Any) -> float:
    """Seconds of reading every row and column."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def compare(spark: Any, folder: Path, name_server: str, topic: str, runs: int, what: str) -> dict[str, object]:
    """Alternate both, medians, and the median of the pairs' ratios."""
    options = {"nameServer": name_server, "subscribe": topic, "pullBatchSize": "1024"}
    files = f"file://{folder / what.replace(' ', '-')}"

    def source() -> Any:
        return spark.read.format("rocketmq").options(**options).load()

    source().write.mode("overwrite").parquet(files)
    count = spark.read.parquet(files).count()
    sides: dict[str, Callable[[], Any]] = {"source": source, "parquet": lambda: spark.read.parquet(files)}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name in sorted(sides, reverse=bool(number % 2)):
            found[name].append(discard(sides[name]()))
    pairs = [parquet / read for read, parquet in zip(found["source"][1:], found["parquet"][1:], strict=True)]
    return {
        "fed by": what,
        "rows": count,
        "source rows/s": count / median(found["source"][1:]),
        "parquet rows/s": count / median(found["parquet"][1:]),
        "ratio": median(pairs),
        "runs": runs,
    }


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
    print(f"to reach with a replay source: {TO_REACH}; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
