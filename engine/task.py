"""One Spark task of the engine: stored messages in, through the handler, rows into segments, one line of report out.

The handler is called by the workers' own runner (workers/runner.py): the same message object, results, batches, filters,
hooks and logs. Rows go into segments of the same format, files of this attempt alone in the job's folder. Nothing counts
before the driver has the report: attempts that die, or that Spark repeats, leave files that nobody names. Messages that
failed go into a file of their own, record and all; the driver sends them back once the whole batch is known (batches.py),
so that a task that is repeated sends nothing twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow

from ..durable.files import sync_path
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import FILTERED, NO_ROWS, Outcomes
from ..remoting.errors import ProtocolError, UsageError
from ..remoting.namespaces import wrap
from ..remoting.queues import MessageQueue
from ..workers.calls import chooser
from ..workers.failures import Cause, Failure
from ..workers.loading import HandlerLoadError
from ..workers.message import Message
from ..workers.packets import QueueInfo
from ..workers.ranges import OffsetSets
from ..workers.rows import RowBuffer
from ..workers.runner import Place, Runner
from ..workers.segment import SegmentWriter
from .hands import Hands, witness_of
from .home import FAILED_DIR, SEEN_DIR, TASK_DIRS
from .overtime import Overtime
from .process import HandlerProcess, handler_process
from .spec import Report, TaskSpec

pa: Any = pyarrow

CHUNK_RECORDS_MAX = 4_096
FAILURE_SCHEMA: Any = pa.schema(
    [
        ("topic", pa.string()), ("broker", pa.string()), ("queue_id", pa.int32()), ("offset", pa.int64()),
        ("cause", pa.int32()), ("level", pa.int32()), ("error", pa.string()), ("deaths", pa.int32()), ("record", pa.binary()),
    ]
)  # fmt: skip
SEEN_SCHEMA: Any = pa.schema([("origin", pa.string())])
DEAD_TEXT = "crashed {} processes"
OVER_TEXT = "stopped at its hard time limit"


def run_tasks(spec: TaskSpec, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """For `mapInArrow`: handle the messages of one partition, and report. Raises OSError when files cannot be written."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    report = run_task(spec, batches, partition, attempt)
    yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})


def run_task(spec: TaskSpec, batches: Iterable[pyarrow.RecordBatch], partition: int, attempt: int) -> Report:
    """The same, outside of Spark."""
    if not _is_writable(spec.folder):
        return Report(partition=partition, unwritable=f"{socket.gethostname()}, with user id {os.geteuid()}")
    try:
        process = handler_process(spec)
    except UsageError as error:
        # Spark would repeat a task that fails. This one would fail again.
        trace = error.traceback if isinstance(error, HandlerLoadError) else ""
        return Report(partition=partition, error=str(error), traceback=trace)
    hands = Hands(spec.folder, partition, attempt, os.getpid(), witness_of(spec.run))
    try:
        task = Task(spec, process, hands, partition, attempt)
        with Overtime(hands.cell, *task.limits_ns, hands.note_over):
            for batch in batches:
                task.take(batch)
        return task.report()
    finally:
        hands.put_down()


def _is_writable(folder: Path) -> bool:
    """Whether tasks may write into `TASK_DIRS` of their batch's folder, or make them."""
    return all(
        os.access(one if one.is_dir() else folder, os.W_OK | os.X_OK) for one in (folder / name for name in TASK_DIRS)
    )


class Task:
    """One attempt at one partition."""

    def __init__(self, spec: TaskSpec, process: HandlerProcess, hands: Hands, partition: int, attempt: int) -> None:
        self._spec = spec
        self._hands = hands
        self._partition = partition
        self._log = process.log
        self._filter = process.handler.filter
        handler, soft_ns, hard_ns = process.for_task(spec, hands.cell, partition)
        self.limits_ns = soft_ns, hard_ns
        self._rows: RowBuffer[Place] | None = (
            RowBuffer(process.schema, spec.group, folders=spec.folders) if spec.results else None
        )
        self._runner = Runner(
            handler, self._rows, cell=hands.cell, bounds=spec.bounds, clock=time.monotonic_ns, flush=self._flush,
            log=process.log,
        )  # fmt: skip
        # Of this run: Spark counts attempts anew in each, and an executor that does not know yet that its driver is gone
        # goes on writing into the same folder.
        name = f"{spec.prefix}.{spec.run}.{partition}.{attempt}"
        bounds = spec.bounds
        self._segments: SegmentWriter | None = None
        if self._rows is not None:
            self._segments = SegmentWriter(
                spec.folder, name, self._rows.schema, seal_rows=bounds.seal_rows, seal_bytes=bounds.seal_bytes,
                seal_idle_ms=bounds.seal_idle_ms, pause=_refuse,
            )  # fmt: skip
        self._failures = ArrowFile(spec.folder / FAILED_DIR / f"{name}.arrows", FAILURE_SCHEMA)
        self._seen = ArrowFile(spec.folder / SEEN_DIR / f"{name}.arrows", SEEN_SCHEMA)
        self._chunks: dict[int, tuple[QueueInfo, Sequence[int], Sequence[bytes]]] = {}
        self._chunk_id = 0
        self._sealed: list[str] = []
        self._row_count = self._handled = self._failed = 0
        self._notes: list[Outcomes] = []

    def take(self, batch: pyarrow.RecordBatch) -> None:
        """Handle the messages of one Arrow batch of RECORD_SCHEMA."""
        spec = self._spec
        given: Any = batch
        columns: list[list[Any]] = [column.to_pylist() for column in given.columns]
        rows = zip(*columns, strict=True)
        for (topic, broker, queue_id), group in groupby(rows, lambda row: row[:3]):
            named = wrap(spec.namespace, topic)
            tags = spec.tags.get(named)
            queue = QueueInfo(spec.group, named, broker, queue_id, tags, spec.namespace)
            first = spec.after.get(MessageQueue(topic, broker, queue_id), 0)
            records = [(offset, record) for _, _, _, offset, record in group if offset >= first]
            chosen = self._choose(queue, records)
            for at in range(0, len(chosen), CHUNK_RECORDS_MAX):
                self._run(queue, chosen[at : at + CHUNK_RECORDS_MAX])
            self._seal_if_due()

    def _choose(self, queue: QueueInfo, records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Those that the handler gets: with tags that are wanted, by the handler's own filter, not known to be deadly."""
        wants = chooser(queue, self._filter, self._log)
        if self._spec.seen:
            self._note_seen(queue, records)
        if wants is not None:
            wanted = [(offset, record) for offset, record in records if wants(Message(record, 0, queue))]
            kept = {offset for offset, _ in wanted}
            self._note(FILTERED, queue, [offset for offset, _ in records if offset not in kept])
            records = wanted
        hands = self._hands
        if not (hands.suspects or hands.over):
            return records
        mq = MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
        left: list[tuple[int, bytes]] = []
        for offset, record in records:
            deaths = hands.deaths[mq, offset]
            if (mq, offset) in hands.over:
                self._fail(queue, offset, record, Failure(Cause.TIME_LIMIT, OVER_TEXT))
            elif deaths >= self._spec.deaths_max:
                self._fail(queue, offset, record, Failure(Cause.DEATHS, DEAD_TEXT.format(deaths)), deaths)
            elif (mq, offset) in hands.suspects:
                self._run(queue, [(offset, record)])
            else:
                left.append((offset, record))
        return left

    def _note_seen(self, queue: QueueInfo, records: Sequence[tuple[int, bytes]]) -> None:
        origins: list[str | None] = []
        for _, record in records:
            try:
                origins.append(Message(record, 0, queue).origin_message_id)
            except ProtocolError:
                origins.append(None)
        self._seen.write([origins])

    def _run(self, queue: QueueInfo, records: Sequence[tuple[int, bytes]]) -> None:
        if not records:
            return
        self._chunk_id += 1
        offsets, parts = [offset for offset, _ in records], [record for _, record in records]
        self._chunks[self._chunk_id] = queue._replace(tags=None), offsets, parts
        self._runner.run_chunk(self._chunk_id, queue._replace(tags=None), b"".join(parts), len(parts))
        self._flush()
        self._chunks.clear()

    def _flush(self) -> None:
        """Rows to the segment, failures to their file."""
        rows, segments, batch = self._rows, self._segments, None
        if rows is not None and segments is not None and rows.kept:
            batch, misfits = rows.take()
            for place, error in misfits:
                self._runner.fail_kept(place, error)
        runs, finished = self._runner.take(), OffsetSets()
        for run in runs:
            queue, offsets, records = self._chunks[run.chunk_id]
            positions = range(run.start, run.start + run.records)
            done = [offsets[at] for at in positions if at not in run.failures]
            self._handled += len(done)
            if batch is not None and run.has_rows:
                run.add_finished(finished)  # its segment says so: what is lost with it is not explained without it
            else:
                self._note(NO_ROWS, queue, done)
            for at, failure in sorted(run.failures.items()):
                self._fail(queue, offsets[at], records[at], failure)
        if batch is not None and segments is not None:
            segments.append(batch, finished.to_json(), time.monotonic_ns())
            self._row_count += batch.num_rows

    def _fail(self, queue: QueueInfo, offset: int, record: bytes, failure: Failure, deaths: int = 0) -> None:
        self._failed += 1
        row = (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset,
            int(failure.cause),
            failure.level,
            failure.error,
            deaths,
            record,
        )
        self._failures.write([[value] for value in row])

    def _note(self, kind: str, queue: QueueInfo, offsets: Sequence[int]) -> None:
        if offsets:
            key = QueueKey(queue.group, queue.topic, queue.broker_name, queue.queue_id)
            self._notes.append(Outcomes.of([(kind, OffsetSet.of([(key, IntervalSet.from_offsets(offsets))]))]))

    def _seal_if_due(self) -> None:
        if self._segments is not None and self._segments.due(time.monotonic_ns()):
            self._seal()

    def _seal(self) -> None:
        ended = self._segments.detach() if self._segments is not None else None
        if ended is not None:
            path, _ = ended
            sync_path(path)
            self._sealed.append(path.name)

    def report(self) -> Report:
        """End all files; what was done."""
        self._seal()
        return Report(
            partition=self._partition,
            segments=tuple(self._sealed),
            rows=self._row_count,
            handled=self._handled,
            failures=self._failures.end(),
            failed=self._failed,
            seen=self._seen.end(),
            outcomes=Outcomes.union(self._notes),
        )


class ArrowFile:
    """A file of record batches that is made with its first one."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._schema = schema
        self._writer: Any = None

    def write(self, columns: Sequence[Sequence[object]]) -> None:
        """Append one batch, column by column. Raises OSError."""
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pa.ipc.new_stream(str(self._path), self._schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def end(self) -> str:
        """Close it, on disk; its name, empty when nothing was written."""
        if self._writer is None:
            return ""
        self._writer.close()
        sync_path(self._path)
        return self._path.name


def _refuse(what: str, error: OSError) -> None:
    """A worker waits for its disk; a task fails, and Spark repeats it elsewhere."""
    raise OSError(error.errno, f"{what}: {error.strerror}", error.filename)
