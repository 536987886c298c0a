"""What rows cost: messages that return rows against the same worker, source and moment without.

- *worker*: one worker with a fake link in this process. CPU µs per message of its loop at a given number of chunks a flush;
  beside it the ratio to a handler that returns nothing, and the µs of a row beyond a handler that makes the same rows and
  drops them. The collector looks at nothing that was there before, as in workers (workers/preload.py).
- *replay*: a crew on the replay source, two workers, as they are by default, sealing on, no loader: messages a second, CPU µs
  per message of supervisor and workers by schedstat, rows a block, segments.
- *latency*: messages at a steady rate through the embedded broker; milliseconds from the end of a call to the block with its
  row being in the segment's file, after which its outcome is sent; looked at every millisecond.
- *kills*: the replay source again, while workers are killed (-9); the rows (each message's first, as the loader takes them)
  are compared with those of a run without kills.
- *table*: from broker to table with the loader on: messages a second between the first commit and the last, by each writer.

Each figure is a median over alternations; each ratio the median of paired ratios, with the smallest and the largest. The
first line is a calibration: seconds that 10^7 turns of an empty loop take at that moment, and the µs a row in which Arrow
converts 1,000 dicts of five columns. Cases whose names end with `_dropped` make rows and return nothing.

    python bench/rows.py worker [--chunks 1 8 16] [--cases none dict5 ...] [--runs 7] [--uneven]
    python bench/rows.py replay [--messages 300000] [--cases none dict5 ...] [--runs 5]
    python bench/rows.py latency [--rates 100 1000 10000] [--seconds 10]
    python bench/rows.py kills [--messages 300000] [--kills 10] [--cases dict5]
    python bench/rows.py table [--messages 300000] [--cases dict5] [--formats parquet pyarrow]

`--cases matrix` stands for 1, 10 and 100 rows of 5 and 30 columns (numbers, strings, binary, lists, structs), given as dicts,
dataclasses and Arrow batches.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import mmap
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import latency
import pyarrow
import pyarrow.dataset
from measure import Crew, EmbeddedBroker, Source, figures, interruptible, median, report, wait_done
from row_handlers import CASES, FIVE, MATRIX, USUAL, five, made_only
from table import Commits, wait_for

from rocketcrew.conf.segment_format import OFFSET, OPEN_DIR, QUEUE_ID, READY_DIR, SEQ
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.api import as_handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.ddl import as_schema
from rocketcrew.workers.link import Transport, WorkerLink, link_pair
from rocketcrew.workers.packets import QueueInfo, encode_chunk, encode_queue
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sealing import Sealer
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.worker import WorkerLoop

pa: Any = pyarrow
ds: Any = pyarrow.dataset

CHUNK = 32
"""Records of a chunk: one pull."""
MESSAGES_A_PAIR = 8_192
TOPIC = "replay"


def calibrate() -> float:
    """Seconds of 10^7 empty turns."""
    begin = time.thread_time()
    for _ in range(10_000_000):
        pass
    return time.thread_time() - begin


def calibrate_arrow() -> float:
    """µs a row in which Arrow converts 1,000 rows of five columns."""
    made, schema = [five(number) for number in range(1_000)], as_schema(FIVE)
    begin = time.thread_time()
    for _ in range(50):
        pa.RecordBatch.from_pylist(made, schema=schema)
    return (time.thread_time() - begin) / 50 / 1_000 * 1e6


class FakeLink:
    """A worker with its link, in this process: chunks are handed over, and run until it finds no packet."""

    def __init__(self, handler: object, schema: object, batch: int, folder: Path, *, uneven: bool) -> None:
        self.link, sock = link_pair(Transport.SLAB)
        bounds = WorkerBounds(batch_messages_max=batch, flush_interval_us=1_000_000)
        rows: RowBuffer[Any] = RowBuffer(as_schema(schema), "group")
        (folder / READY_DIR).mkdir(parents=True)
        segments = SegmentWriter(
            folder, "w", rows.schema, seal_rows=bounds.seal_rows, seal_bytes=bounds.seal_bytes,
            seal_idle_ms=bounds.seal_idle_ms, pause=_give_up,
        )  # fmt: skip
        self.sealer = Sealer(folder / READY_DIR, pause=_give_up, waits=lambda: None)
        records = b"".join(_record(number, uneven=uneven) for number in range(CHUNK))
        self.length = len(records)
        slab = mmap.mmap(-1, self.length)
        slab[:] = records
        self.worker_link = WorkerLink(sock, Transport.SLAB)
        self.worker = WorkerLoop(
            self.worker_link, as_handler(handler), bounds=bounds, slab=slab, rows=rows, segments=segments,
            sealer=self.sealer, clock=time.monotonic_ns,
        )  # fmt: skip
        self.link.send(encode_queue(1, QueueInfo("group", TOPIC, "replay", 0)))
        self.worker.step()
        self.chunk_id = 0

    def run(self, chunks: int) -> int:
        """CPU ns of a flush of so many chunks."""
        for _ in range(chunks):
            self.chunk_id += 1
            self.link.send(encode_chunk(self.chunk_id, 1, 0, self.length, CHUNK))
        begin = time.thread_time_ns()
        for _ in range(chunks):
            self.worker.step()
        self.worker.flush()
        took = time.thread_time_ns() - begin
        self.link.receive()
        return took

    def close(self) -> None:
        self.sealer.finish()
        self.link.close()
        self.worker_link.close()


def _give_up(what: str, error: OSError) -> None:
    raise RuntimeError(what) from error


def _record(index: int, *, uneven: bool) -> bytes:
    key = f"key-{index}" if uneven else f"key-{index:04d}"
    properties = {"KEYS": key, "UNIQ_KEY": f"{index:032X}", "WAIT": "true", "TAGS": "tag",
                  "CLUSTER": "c", "MSG_REGION": "DefaultRegion"}  # fmt: skip
    body = bytes(1024 + (index % 7 if uneven else 0))
    return encode_message(StoredMessage(TOPIC, body, encode_properties(properties).encode(), queue_offset=index))


def in_worker(cases: Iterable[str], chunks: int, runs: int, *, uneven: bool) -> list[dict[str, object]]:
    """One line a case, at `chunks` chunks of 32 messages a flush."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        benches: dict[tuple[str, bool], FakeLink] = {}
        for case in cases:
            given = CASES[case]
            schema, batch = given.handler.schema, given.batch
            benches[case, False] = FakeLink(given.handler, schema, batch, folder / case, uneven=uneven)
            if given.rows:
                benches[case, True] = FakeLink(
                    _dropping(case), schema, batch, folder / f"{case}-dropped", uneven=uneven
                )
        found: dict[tuple[str, bool], list[float]] = {key: [] for key in benches}
        for bench in benches.values():
            bench.run(chunks)
        gc.collect()
        gc.freeze()
        for _ in range(runs):
            for key, bench in benches.items():
                flushes = max(1, MESSAGES_A_PAIR // chunks // CHUNK)
                total = sum(bench.run(chunks) for _ in range(flushes))
                found[key].append(total / flushes / chunks / CHUNK / 1000)
        for bench in benches.values():
            bench.close()
    lines: list[dict[str, object]] = []
    for case in cases:
        given = CASES[case]
        line: dict[str, object] = {"case": case, "batch": given.batch, "rows_a_block": chunks * CHUNK * given.rows,
                                   "cpu_us": median(found[case, False])}  # fmt: skip
        if given.rows:
            own = [a - b for a, b in zip(found[case, False], found[case, True], strict=True)]
            line["ours_us_a_row"] = median(own) / given.rows
        line |= _ratios(found[case, False], found["batch_none" if given.batch > 1 else "none", False])
        lines.append(line)
    return lines


def _ratios(values: list[float], base: list[float]) -> dict[str, object]:
    ratios = sorted(value / other for value, other in zip(values, base, strict=True))
    return {"times_none": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}


def _dropping(case: str) -> Any:
    handler = copy.copy(CASES[case].handler)
    handler.function = made_only(case)
    return handler


def blocks_of(folder: Path) -> tuple[int, int, int]:
    """(segments, record batches, rows) in a slot's segments."""
    paths = [path for each in (OPEN_DIR, READY_DIR) for path in (folder / each).glob("*.arrows")]
    blocks = rows = 0
    for path in paths:
        reader: Any = pa.ipc.open_stream(path.read_bytes())
        for batch in reader:
            blocks += 1
            rows += batch.num_rows
    return len(paths), blocks, rows


def on_replay(case: str, messages: int, per_pull: int) -> dict[str, float]:
    """One run over `messages`; the first tenth warms up and is not counted."""
    source = Source(messages, per_pull=per_pull)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            settings = {"workers.count": 2, "consumer.consume_message_batch_max_size": CASES[case].batch}
            crew = Crew(folder, source.name_server, case, TOPIC, settings, module="row_handlers")
            try:
                found = figures(crew, source.messages)
            finally:
                crew.stop()
            segments, blocks, rows = blocks_of(crew.slot / "segments")
            return {**found, "segments": segments, "rows_a_block": rows / blocks if blocks else 0}
    finally:
        source.stop()


def replays(cases: Iterable[str], messages: int, runs: int, per_pull: int) -> list[dict[str, object]]:
    """One line a case, with paired ratios to `none`, or to `batch_none`."""
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(runs):
        for case, those in found.items():
            count = messages // max(1, CASES[case].rows // 3)
            those.append(on_replay(case, count, per_pull))
    lines: list[dict[str, object]] = []
    for case, those in found.items():
        base = found.get("batch_none" if CASES[case].batch > 1 else "none", those)
        line: dict[str, object] = {"case": case, "batch": CASES[case].batch, "runs": runs}
        line |= {key: median(one[key] for one in those) for key in those[0]}
        for key in ("rate", "supervisor_us", "workers_us"):
            line[f"{key}_times"] = median(one[key] / other[key] for one, other in zip(those, base, strict=True))
        lines.append(line)
    return lines


# --- from the end of a call to its row in the file ------------------------------------------------------------------------


class Sizes:
    """How long each segment's file was when, looked at every millisecond by a thread."""

    def __init__(self, folder: Path) -> None:
        self.grown: dict[str, list[tuple[int, int]]] = {}
        """By file: (bytes, ns since 1970), where it had grown."""
        self._folder = folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.001):
            try:
                found = [(entry.name, entry.stat().st_size) for entry in os.scandir(self._folder)]
            except FileNotFoundError:
                continue  # no segment yet, or one was sealed meanwhile
            now = time.time_ns()
            for name, size in found:
                seen = self.grown.setdefault(name, [])
                if not seen or seen[-1][0] < size:
                    seen.append((size, now))

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def when(self, name: str, size: int) -> int | None:
        """When the file was seen to have so many bytes; None: it was sealed before the next look."""
        return next((now for bytes_, now in self.grown.get(name, []) if bytes_ >= size), None)


def _send(name_server: str, rate: int, count: int) -> None:
    asyncio.run(latency.send(name_server, rate, count))


def to_file_ms(rate: int, seconds: int) -> tuple[list[float], int, int]:
    """Milliseconds of each row, segments and blocks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = EmbeddedBroker(folder)
        try:
            _send(broker.name_server, rate, 1)  # makes the topic
            crew = Crew(folder, broker.name_server, "ended", latency.TOPIC, {"workers.count": 2}, module="row_handlers")
            sizes = Sizes(crew.slot / "segments" / OPEN_DIR)
            try:
                wait_done(crew, 1)
                sender = multiprocessing.get_context("spawn").Process(
                    target=_send, args=(broker.name_server, rate, rate * seconds)
                )
                sender.start()
                sender.join()
                wait_done(crew, rate * seconds + 1)
            finally:
                sizes.stop()
                crew.stop()
        finally:
            broker.stop()
        found: list[float] = []
        segments = blocks = 0
        for path in (crew.slot / "segments" / READY_DIR).glob("*.arrows"):
            segments += 1
            with pa.OSFile(str(path)) as file:
                schema: Any = pa.ipc.read_schema(file)
                while (message := _next_message(file)) is not None:
                    blocks += 1
                    written = sizes.when(path.name, file.tell())
                    rows: Any = pa.ipc.read_record_batch(message, schema).column("ended_ns").to_pylist()
                    found += [(written - ended) / 1e6 for ended in rows if written is not None]
        return found, segments, blocks


def _next_message(file: Any) -> Any:
    try:
        return pa.ipc.read_message(file)
    except EOFError:
        return None


def latencies(rates: Iterable[int], seconds: int) -> list[dict[str, object]]:
    """One line a rate."""
    lines: list[dict[str, object]] = []
    for rate in rates:
        found, segments, blocks = to_file_ms(rate, seconds)
        cuts = statistics.quantiles(found, n=100)
        lines.append({"rate": rate, "rows": len(found), "p50_ms": cuts[49], "p99_ms": cuts[98],
                      "segments": segments, "rows_a_block": len(found) / max(1, blocks)})  # fmt: skip
    return lines


# --- rows after kills, and to the table ------------------------------------------------------------------------------------


def rows_of(folder: Path) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """The user's columns of each message's rows, by queue and offset: of a message that ran twice those of its first run."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for path in sorted(folder.glob("*/*.arrows")):
        for batch in pa.ipc.open_stream(path.read_bytes()):
            names = [name for name in batch.schema.names if not name.startswith("_")]
            columns = [batch.column(each).to_pylist() for each in (QUEUE_ID, OFFSET, SEQ, *names)]
            here: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
            for queue, offset, seq, *values in zip(*columns, strict=True):
                if seq == 0:
                    here[queue, offset] = []
                here[queue, offset].append(tuple(values))
            for key, rows in here.items():
                found.setdefault(key, rows)
    return found


def under_kills(case: str, messages: int, kills: int, pause_s: float = 0.3) -> tuple[int, Any]:
    """(kills done, rows) of one run of two workers, one of which is killed now and then."""
    source = Source(messages)
    dice, done = random.Random(1), 0
    try:
        with tempfile.TemporaryDirectory() as name:
            settings = {"workers.count": 2, "consumer.consume_message_batch_max_size": CASES[case].batch,
                        "workers.max_worker_deaths": 100}  # fmt: skip
            crew = Crew(Path(name), source.name_server, case, TOPIC, settings, module="row_handlers")
            try:
                while done < kills and crew.done() < source.messages:
                    time.sleep(pause_s * dice.random())
                    workers = crew.workers()
                    if workers:
                        os.kill(dice.choice(workers), signal.SIGKILL)
                        done += 1
                wait_done(crew, source.messages)
            finally:
                crew.stop()
            return done, rows_of(crew.slot / "segments")
    finally:
        source.stop()


def compared(cases: Iterable[str], messages: int, kills: int) -> list[dict[str, object]]:
    """One line a case: how many messages' rows are missing, too many, or others than without kills."""
    lines: list[dict[str, object]] = []
    for case in cases:
        _, wanted = under_kills(case, messages, 0)
        done, found = under_kills(case, messages, kills)
        lines.append({
            "case": case, "messages": len(wanted), "kills": done, "missing": len(wanted.keys() - found.keys()),
            "too_many": len(found.keys() - wanted.keys()),
            "different": sum(found[key] != wanted[key] for key in found.keys() & wanted.keys()),
        })  # fmt: skip
    return lines


def to_table(case: str, messages: int, format_: str) -> dict[str, object]:
    """Messages a second from the first commit to the last."""
    source = Source(messages)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            table = folder / "table"
            commits = Commits(table)
            settings = {"workers.count": 2, "consumer.consume_message_batch_max_size": CASES[case].batch,
                        "spark.load": "true", "spark.format": format_, "spark.target": table,
                        "spark.max_wait_ms": 2_000}  # fmt: skip
            crew = Crew(folder, source.name_server, case, TOPIC, settings, module="row_handlers")
            wanted = source.messages * CASES[case].rows
            try:
                wait_for(lambda: bool(commits.seen) and _table_rows(table) >= wanted, "the last rows")
            finally:
                commits.stop()
                crew.stop()
            when = sorted(commits.seen.items(), key=lambda one: one[1])
            first = _table_rows(table, when[0][0]) // CASES[case].rows
            seconds = (when[-1][1] - when[0][1]) / 1e9
            return {"case": case, "format": format_, "messages": source.messages, "batches": len(when),
                    "per_s": (source.messages - first) / seconds if seconds else 0.0}  # fmt: skip
    finally:
        source.stop()


def _table_rows(table: Path, batch: int | None = None) -> int:
    """Rows of the table, or of one batch of it."""
    found = ds.dataset(table, partitioning="hive")
    return int(found.count_rows(filter=None if batch is None else ds.field("batch_id") == batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["worker", "replay", "latency", "kills", "table"])
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "matrix"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--chunks", nargs="+", type=int, default=[1, 8, 16], help="of 32 messages, a flush")
    parser.add_argument("--uneven", action="store_true", help="records whose bodies and keys have different lengths")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--per-pull", type=int, default=32)
    parser.add_argument("--rates", nargs="+", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--seconds", type=int, default=10, help="of messages at each rate")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--formats", nargs="+", default=["parquet", "pyarrow"])
    options = parser.parse_args()
    interruptible()
    usual = USUAL if options.what in ("worker", "replay") else ["dict5"]
    cases: list[str] = ["none", *MATRIX] if options.cases == ["matrix"] else options.cases or usual
    if options.what in ("worker", "replay"):  # ratios are to those without rows
        cases = list(dict.fromkeys([*("batch_none" if CASES[case].batch > 1 else "none" for case in cases), *cases]))
    print(f"calibration: {calibrate():.2f} s for 10^7 empty turns, {calibrate_arrow():.2f} µs a row of Arrow's own")
    if options.what == "replay":
        report("rows_replay", replays(cases, options.messages, options.runs, options.per_pull))
    elif options.what == "latency":
        report("rows_latency", latencies(options.rates, options.seconds))
    elif options.what == "kills":
        report("rows_kills", compared(cases, options.messages, options.kills))
    elif options.what == "table":
        report("rows_table", [to_table(case, options.messages, each) for case in cases for each in options.formats])
    else:
        lines = [
            line for chunks in options.chunks for line in in_worker(cases, chunks, options.runs, uneven=options.uneven)
        ]
        report("rows_worker", lines)


if __name__ == "__main__":
    main()
