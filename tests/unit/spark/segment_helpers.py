"""What the loader's tests share: segments written as a worker would, a writer without Spark, the table read back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from rocketcrew.conf.segment_format import (
    CHECK_BLANK,
    FORMAT_VERSION,
    META_BATCH_CHECK,
    META_BATCH_OUTCOMES,
    META_GROUP,
    META_VERSION,
    key_fields,
    segment_name,
    with_check,
)
from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.files import write_atomically
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FILTERED, SETTLED, Outcomes
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.workers.ranges import OffsetSets

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """One pulled record and its user rows (`value` column), as one handler call gives them."""

    offset: int
    values: Sequence[str] = ("row",)
    topic: str = "orders"
    broker: str = "broker-a"
    queue_id: int = 0
    group: str = "g"
    reconsume_times: int = 0
    origin: str = ""
    """The first record's id: that of a retry, and here also of the first one."""
    unique: str = ""
    """The producer's id of the message, which retries keep; where it is empty the origin's is taken."""
    extra: Mapping[str, object] = field(default_factory=dict)


def rows_of(record: Record) -> list[dict[str, object]]:
    """The record's rows with key columns, as dicts."""
    origin = record.origin or f"{record.topic}-{record.broker}-{record.queue_id}-{record.offset}"
    return [
        {
            "_group": record.group,
            "_topic": record.topic,
            "_broker": record.broker,
            "_queue_id": record.queue_id,
            "_offset": record.offset,
            "_seq": seq,
            "_origin_topic": "orders",
            "_message_id": record.unique or origin,
            "_origin_message_id": origin,
            "_reconsume_times": record.reconsume_times,
            "_store_time": EPOCH + timedelta(seconds=record.offset),
            "value": value,
            **record.extra,
        }
        for seq, value in enumerate(record.values)
    ]


def segment_schema(columns: Sequence[tuple[Any, ...]] = (), version: object = FORMAT_VERSION) -> Any:
    user = [pa.field(*one) for one in columns or [("value", pa.string())]]
    return pa.schema([*key_fields(), *user]).with_metadata({META_VERSION: str(version).encode(), META_GROUP: b"g"})


def write_segment(
    staging: Path,
    worker: str,
    seq: int,
    flushes: Iterable[Sequence[Record]],
    columns: Sequence[tuple[Any, ...]] = (),
    version: object = FORMAT_VERSION,
    sealed_s: float | None = None,
) -> Path:
    """Write and seal one segment, a record batch for each flush; returns its path in ready/.

    As a worker does: records of a flush that have no rows are named with those that have, unless none has; and the file
    comes into ready/ whole, by one rename, for a loader that runs takes what lies there. `sealed_s`: its modification time.
    """
    path = staging / "ready" / segment_name(worker, seq)
    path.parent.mkdir(parents=True, exist_ok=True)
    open_path = staging / path.name
    schema = segment_schema(columns, version)
    batches: list[tuple[Any, bytes]] = []
    for flush in flushes:
        rows = [row for record in flush for row in rows_of(record)]
        if rows:
            finished = OffsetSets()
            for record in flush:
                finished.add((record.topic, record.broker, record.queue_id), record.offset, record.offset + 1)
            batches.append((pa.RecordBatch.from_pylist(rows, schema=schema), finished.to_json()))
    open_path.write_bytes(with_checks(schema, batches))
    if sealed_s is not None:
        os.utime(open_path, (sealed_s, sealed_s))
    return open_path.rename(path)


def with_checks(schema: Any, batches: Iterable[tuple[Any, bytes]]) -> bytes:
    """A segment of these batches and of what each is noted with."""
    sink: Any = pa.BufferOutputStream()
    ends = [schema.serialize().size]
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch, noted in batches:
            writer.write_batch(batch, custom_metadata={META_BATCH_OUTCOMES: noted, META_BATCH_CHECK: CHECK_BLANK})
            ends.append(sink.tell())
    whole = bytearray(sink.getvalue())
    for start, end in pairwise(ends):
        with_check(whole, start, end)
    return bytes(whole)


def read_table(
    path: Path, columns: Sequence[str] = ("_topic", "_broker", "_queue_id", "_offset", "_seq", "value")
) -> Any:
    """The table's rows as a sorted list of tuples, read as any other program would."""
    if not path.exists():
        return []
    rows: Any = pa.dataset.dataset(path, partitioning="hive").to_table(columns=list(columns))
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def expected(records: Iterable[Record]) -> list[tuple[object, ...]]:
    """What `read_table` must give for these records, each once."""
    return sorted(
        (record.topic, record.broker, record.queue_id, record.offset, seq, value)
        for record in records
        for seq, value in enumerate(record.values)
    )


def settle(staging: Path, *ranges: tuple[str, str, str, int, int, int]) -> None:
    """Seal a file of facts that says that these ranges are settled, as the supervisor does."""
    settled = OffsetSet.of((QueueKey(*one[:4]), IntervalSet.of([one[4:]])) for one in ranges)
    path = staging / "outcomes" / f"{time.time_ns():020d}-settled.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, facts_to_text(Outcomes.of([(SETTLED, settled)])), durable=False)


def filtered(staging: Path, *ranges: tuple[str, str, str, int, int, int], name: str = "filtered") -> None:
    """Note the ranges as the supervisor does: what has no other outcome in them was filtered."""
    noted = OffsetSet.of((QueueKey(*one[:4]), IntervalSet.of([one[4:]])) for one in ranges)
    path = staging / "outcomes" / f"{name}.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, facts_to_text(Outcomes.of([(FILTERED, noted)])), durable=False)


@dataclass(frozen=True)
class Helpers:
    """What tests get: a fixture, because test files of one folder can't import each other here."""

    Record = Record
    rows_of = staticmethod(rows_of)
    write_segment = staticmethod(write_segment)
    segment_schema = staticmethod(segment_schema)
    pq = pq
    ArrowWriter = ArrowWriter
    read_table = staticmethod(read_table)
    expected = staticmethod(expected)
    settle = staticmethod(settle)
    filtered = staticmethod(filtered)
