"""What rows cost: messages that return rows against the same worker, source and moment without.

- *worker*: one worker with a fake link in this process. CPU µs per message of its loop at a given number of chunks a flush;
  beside it the ratio to a handler that returns nothing, and to one that makes the same rows and drops them.
- *replay*: a crew on the replay source, two workers, as they are by default, sealing on, no loader: messages a second, CPU µs
  per message of supervisor and workers by schedstat, rows a block, segments.

Each figure is a median over alternations; each ratio the median of paired ratios, with the smallest and the largest. The
first line is a calibration: seconds that 10^7 turns of an empty loop take at that moment.

    python bench/rows.py worker [--chunks 1 8 16] [--cases none dict5 ...] [--runs 7]
    python bench/rows.py replay [--messages 300000] [--cases none dict5 ...] [--runs 5]
"""

from __future__ import annotations

import argparse
import copy
import mmap
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
from measure import Crew, Source, interruptible, median, report, wait_done
from row_handlers import CASES, made_only

from rocketcrew.conf.segment_format import OPEN_DIR, READY_DIR
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.api import as_handler
from rocketcrew.workers.boot import WorkerLimits
from rocketcrew.workers.ddl import as_schema
from rocketcrew.workers.link import Transport, WorkerLink, link_pair
from rocketcrew.workers.packets import QueueInfo, encode_chunk, encode_queue
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sealing import Sealer
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.worker import Worker

pa: Any = pyarrow

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


class FakeLink:
    """A worker with its link, in this process: chunks are handed over, and run until it finds no packet."""

    def __init__(self, handler: object, schema: object, batch: int, folder: Path) -> None:
        self.link, sock = link_pair(Transport.SLAB)
        limits = WorkerLimits(batch_messages_max=batch, flush_interval_us=1_000_000)
        rows: RowBuffer[Any] = RowBuffer(as_schema(schema), "group")
        (folder / READY_DIR).mkdir(parents=True)
        segments = SegmentWriter(
            folder, "w", rows.schema, seal_rows=limits.seal_rows, seal_bytes=limits.seal_bytes,
            seal_idle_ms=limits.seal_idle_ms, pause=_give_up,
        )  # fmt: skip
        sealer = Sealer(folder / READY_DIR, pause=_give_up, waits=lambda: None)
        records = b"".join(_record(number) for number in range(CHUNK))
        self.length = len(records)
        slab = mmap.mmap(-1, self.length)
        slab[:] = records
        self.worker_link = WorkerLink(sock, Transport.SLAB)
        self.worker = Worker(
            self.worker_link, as_handler(handler), limits=limits, slab=slab, rows=rows, segments=segments,
            sealer=sealer, clock=time.monotonic_ns,
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
        self.link.close()
        self.worker_link.close()


def _give_up(what: str, error: OSError) -> None:
    raise RuntimeError(what) from error


def _record(index: int) -> bytes:
    properties = {"KEYS": f"key-{index:04d}", "UNIQ_KEY": f"{index:032X}", "WAIT": "true", "TAGS": "tag",
                  "CLUSTER": "c", "MSG_REGION": "DefaultRegion"}  # fmt: skip
    return encode_message(StoredMessage(TOPIC, bytes(1024), encode_properties(properties).encode(), queue_offset=index))


def in_worker(cases: Iterable[str], chunks: int, runs: int) -> list[dict[str, object]]:
    """One line a case, at `chunks` chunks of 32 messages a flush."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        benches: dict[tuple[str, bool], FakeLink] = {}
        for case in cases:
            given = CASES[case]
            benches[case, False] = FakeLink(given.handler, given.handler.schema, given.batch, folder / case)
            if given.rows:
                benches[case, True] = FakeLink(
                    _dropping(case), given.handler.schema, given.batch, folder / f"{case}-dropped"
                )
        found: dict[tuple[str, bool], list[float]] = {key: [] for key in benches}
        for bench in benches.values():
            bench.run(chunks)
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
                begin = wait_done(crew, source.messages // 10)
                first, (supervisor, workers) = crew.done(), crew.cpu()
                begin = time.perf_counter()
                end = wait_done(crew, source.messages)
                counted = source.messages - first
                supervisor_end, workers_end = crew.cpu()
            finally:
                crew.stop()
            segments, blocks, rows = blocks_of(crew.slot / "segments")
            return {"rate": counted / (end - begin), "supervisor_us": (supervisor_end - supervisor) / counted,
                    "workers_us": (workers_end - workers) / counted, "segments": segments,
                    "rows_a_block": rows / blocks if blocks else 0}  # fmt: skip
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["worker", "replay"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--chunks", nargs="+", type=int, default=[1, 8, 16], help="of 32 messages, a flush")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--per-pull", type=int, default=32)
    options = parser.parse_args()
    interruptible()
    print(f"calibration: {calibrate():.2f} s for 10^7 empty turns")
    if options.what == "replay":
        report("rows_replay", replays(options.cases, options.messages, options.runs, options.per_pull))
        return
    lines = [line for chunks in options.chunks for line in in_worker(options.cases, chunks, options.runs)]
    report("rows_worker", lines)


if __name__ == "__main__":
    main()
