"""Reading sealed segments: is it one of ours and whole, which records does it hold, and the rows of the chosen ones.

A segment is mapped, not read into memory. Everything that planning relies on is checked here, once per file: the version,
the key columns and their types, that Arrow finds every batch whole and nothing after the last one, that each batch's
checksum holds, and that rows stand record by record with `_seq` counting from 0. Whatever fails is a `BadSegmentError`,
never a crash of the loader, and never a reason not to load the others. Rows are checked once more when they are read, which
may be hours later: checksums cost some hundredths of making Parquet of them.
"""

from __future__ import annotations

import errno
import json
import mmap
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute

from ..conf.columns import Column, TypeNotForSparkError, columns_of
from ..conf.segment_format import (
    BROKER,
    EPOCH,
    FORMAT_VERSION,
    GROUP,
    KEY_COLUMNS,
    META_BATCH_OUTCOMES,
    META_VERSION,
    OFFSET,
    QUEUE_ID,
    SEQ,
    STORE_TIME,
    TOPIC,
    ReadBatch,
    UnsoundSegmentError,
    key_fields,
    sound_batches,
)
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.versions import later_version
from .errors import BadSegmentError
from .plan import Ends, SegmentFacts, Take

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow
pc: Any = pyarrow.compute

_QUEUE_COLUMNS = (GROUP, TOPIC, BROKER, QUEUE_ID)
PIECES_MAX = 4
"""Of one queue in one segment: what a topic was before and after it was made again is told by the places between."""
_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError)
"""What reading damaged bytes raises: Arrow tells them by its own exceptions, ValueError, or an OSError without a number, and
Python does not make a text, a time or a key of whatever it is given."""
_PLACES = [KEY_COLUMNS.index(name) for name in (*_QUEUE_COLUMNS, OFFSET, SEQ, STORE_TIME)]


def read_facts(path: Path) -> SegmentFacts:
    """The facts of the segment at `path`. Raises BadSegmentError, or OSError when it can't be read at all."""
    size = path.stat().st_size
    if not path.is_file():
        raise BadSegmentError("not a file")
    if not size:
        raise BadSegmentError("the file is empty")
    with _damage_named("not an Arrow stream"):
        columns = _checked_columns(path)
    with _damage_named("cut off or damaged"):
        keys, told = _read_keys(path)
        starts = _record_starts(keys)
        offsets, ends, pieces = _records(starts)
        again = offsets.count() < starts.num_rows
        if again:
            _check_one_time(starts)
        finished = _finished(told, offsets)
    return SegmentFacts(path.name, size, keys.num_rows, offsets, again, columns, ends, finished, pieces)


def read_times(path: Path, key: QueueKey, offsets: IntervalSet) -> tuple[Ends, ...]:
    """Some records of a queue (in epoch 0), each with its own store time. Raises BadSegmentError, or OSError."""
    with _damage_named("cut off or damaged"):
        keys, _ = _read_keys(path)
        starts = keys.filter(_is_start(keys))
        for name, value in zip(_QUEUE_COLUMNS, key[:4], strict=True):
            starts = starts.filter(pc.equal(starts.column(name), value))
        times = starts.column(STORE_TIME).cast(pa.int64()).to_pylist()
        return tuple(
            Ends(offset, offset, time, time)
            for offset, time in zip(starts.column(OFFSET).to_pylist(), times, strict=True)
            if offset in offsets
        )


def readable_offsets(path: Path) -> OffsetSet:
    """Every record that can still be made out in a bad segment, up to the first damage: what must not be taken for loaded.
    Raises nothing but what says that memory is short: MemoryError, OSError."""
    parts: list[OffsetSet] = []
    try:
        with _mapped(path) as source:
            for read in _sound_batches(source, pa.ipc.open_stream(source)):
                keys = pa.Table.from_batches([read.batch])
                keys.validate(full=True)
                offsets, *_ = _records(_without_nulls(keys))
                parts += (offsets, _finished([_told(read.metadata)], offsets))
    except _DAMAGE as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise
    return OffsetSet.union(parts)


def _mapped(path: Path) -> Any:
    """The file, to be read by Arrow. Arrow's own map tells of a lack of memory as it does of damaged bytes."""
    with path.open("rb") as file:
        return pa.BufferReader(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _sound_batches(source: Any, reader: Any) -> Iterator[ReadBatch]:
    """As `sound_batches`; raises BadSegmentError."""
    try:
        yield from sound_batches(source, reader)
    except UnsoundSegmentError as error:
        raise BadSegmentError(str(error)) from None


def _told(metadata: Mapping[bytes, bytes]) -> bytes:
    return metadata.get(META_BATCH_OUTCOMES) or b""


def _finished(told: Iterable[bytes], offsets: OffsetSet) -> OffsetSet:
    """The records that the writer noted with its batches as finished (workers/ranges.py); rows carry one group."""
    group = next((key.group for key in offsets.queues), "")
    try:
        return OffsetSet.of(
            (
                QueueKey(group, str(topic), str(broker), int(queue_id)),
                IntervalSet.of((int(a), int(b)) for a, b in spans),
            )
            for text in told
            if text
            for topic, broker, queue_id, spans in json.loads(text)
        )
    except (ValueError, TypeError) as error:
        raise BadSegmentError(f"what it says of finished records is not understood: {error}") from None


@contextmanager
def _damage_named(what: str) -> Generator[None]:
    """What damaged bytes raise becomes a BadSegmentError. A disk that refuses (an OSError with a number) and a lack of memory
    are none."""
    try:
        yield
    except (BadSegmentError, MemoryError):
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BadSegmentError(f"{what}: {error}") from None


def _checked_columns(path: Path) -> tuple[Column, ...]:
    with _mapped(path) as source:
        schema: Any = pa.ipc.open_stream(source).schema
    metadata: dict[bytes, bytes] = schema.metadata or {}
    version = metadata.get(META_VERSION)
    if version is None:
        raise BadSegmentError(f"not written by rocketcrew: its schema has no {META_VERSION.decode()}")
    if version != str(FORMAT_VERSION).encode():
        if version.isdigit() and int(version) > FORMAT_VERSION:
            raise later_version(path, f"version {int(version)}", FORMAT_VERSION)
        raise BadSegmentError(
            f"of format version {version.decode(errors='replace')}, this program reads {FORMAT_VERSION}"
        )
    wanted = key_fields()
    for place, field in enumerate(wanted):
        if place >= len(schema) or schema.field(place).name != field.name or schema.field(place).type != field.type:
            found = schema.field(place) if place < len(schema) else "nothing"
            raise BadSegmentError(f"key column {place} should be {field.name}: {field.type}, it is {found}")
    try:
        return columns_of(schema)
    except TypeNotForSparkError as error:
        raise BadSegmentError(str(error)) from None


def _read_keys(path: Path) -> tuple[Any, list[bytes]]:
    """The queue, offset and row-number columns of all batches, and what each is noted with."""
    keys, told = _read_table(path, _PLACES)
    # In one piece: all that is asked of them later costs by the piece, and there is one for each flush.
    return _without_nulls(keys.combine_chunks()), told


def _read_table(path: Path, places: list[int] | None = None) -> tuple[Any, list[bytes]]:
    """The columns in these places, or all, over the mapped file and checked to the last byte: C++ code that believes damaged
    lengths crashes. And what each batch is noted with."""
    batches: list[Any] = []
    told: list[bytes] = []
    with _mapped(path) as source:
        reader = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=places))
        for read in _sound_batches(source, reader):
            batches.append(read.batch)
            told.append(_told(read.metadata))
        table = pa.Table.from_batches(batches, reader.schema)
    table.validate(full=True)
    return table, told


def _without_nulls(keys: Any) -> Any:
    """These rows, in which no key is null: Arrow reads what a schema excludes. Raises BadSegmentError."""
    for place in _PLACES:
        if keys.column(KEY_COLUMNS[place]).null_count:
            raise BadSegmentError(f"key column {place}, {KEY_COLUMNS[place]}, has nulls")
    return keys


def _is_start(rows: Any) -> Any:
    return pc.equal(rows.column(SEQ), 0)


def _record_starts(keys: Any) -> Any:
    """The rows with which a record starts, after the check that all others continue the row before."""
    is_start = _is_start(keys)
    if not keys.num_rows or pc.all(is_start).as_py():
        return keys
    seq, offset = keys.column(SEQ).combine_chunks(), keys.column(OFFSET).combine_chunks()
    continues = pc.and_(
        pc.equal(pc.subtract(seq[1:], seq[:-1]), 1),
        pc.equal(offset[1:], offset[:-1]),
    )
    counted = pc.or_(is_start.combine_chunks()[1:], continues)
    if seq[0].as_py() != 0 or not pc.all(counted).as_py():
        raise BadSegmentError("rows of a record do not stand together, counted by _seq from 0")
    return keys.filter(is_start)


def _records(starts: Any) -> tuple[OffsetSet, dict[QueueKey, Ends], dict[QueueKey, tuple[Ends, ...]]]:
    """The distinct records among `starts`, and per queue the ends of their offsets and store times, whole and in pieces."""
    stored = starts.column(STORE_TIME).cast(pa.int64())
    rows = starts.set_column(starts.column_names.index(STORE_TIME), STORE_TIME, stored)
    lists = [(OFFSET, "list"), (STORE_TIME, "list")]
    wanted = [(OFFSET, "min"), (OFFSET, "max"), (STORE_TIME, "min"), (STORE_TIME, "max"), *lists]
    grouped = rows.group_by(list(_QUEUE_COLUMNS), use_threads=False).aggregate(wanted)
    names = [*_QUEUE_COLUMNS, *(f"{name}_{kind}" for name, kind in wanted[:-2])]
    queues: dict[QueueKey, IntervalSet] = {}
    ends: dict[QueueKey, Ends] = {}
    pieces: dict[QueueKey, tuple[Ends, ...]] = {}
    for place, row in enumerate(zip(*(grouped.column(name).to_pylist() for name in names), strict=True)):
        key = QueueKey(*row[:4])
        ends[key] = Ends(*row[4:])
        if ends[key].first_offset < 0:
            raise BadSegmentError(f"an offset of {key} is negative: {ends[key].first_offset}")
        offsets, times = (grouped.column(f"{name}_{kind}")[place].values for name, kind in lists)
        if not pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py():
            order = pc.array_sort_indices(offsets)
            offsets, times = offsets.take(order), times.take(order)
        queues[key] = intervals_of(_distinct(offsets))
        if ends[key].first_us < ends[key].last_us:
            pieces[key] = in_pieces(offsets, times)
    return OffsetSet(queues), ends, pieces


def _check_one_time(starts: Any) -> None:
    """Of a record that was handled twice the first rows count: it has to be the same one. Raises BadSegmentError."""
    times = [(STORE_TIME, "min"), (STORE_TIME, "max")]
    grouped = starts.group_by([*_QUEUE_COLUMNS, OFFSET], use_threads=False).aggregate(times)
    differ = pc.not_equal(*(grouped.column(f"{name}_{kind}") for name, kind in times))
    for row in grouped.select([TOPIC, BROKER, QUEUE_ID, OFFSET]).filter(differ).slice(0, 1).to_pylist():
        raise BadSegmentError(
            f"{row[TOPIC]} {row[BROKER]} {row[QUEUE_ID]} has two records with offset {row[OFFSET]}, stored at different"
            " times: was the topic made again while it was written?"
        )


def _distinct(ordered: Any) -> Any:
    """The sorted offsets, each once: mostly they are."""
    again = pc.equal(ordered[1:], ordered[:-1])
    return ordered.unique() if pc.any(again).as_py() else ordered


def in_pieces(ordered: Any, times: Any) -> tuple[Ends, ...]:
    """A queue's records in few pieces, divided where store times differ most from one offset to the next: Arrow arrays, by
    offset."""
    steps = pc.abs(pc.subtract(times[1:], times[:-1]))
    most = pc.top_k_unstable(steps, min(PIECES_MAX - 1, len(steps)))
    starts = [0, *sorted(at + 1 for at in most.to_pylist())]
    found: list[Ends] = []
    for start, stop in zip(starts, [*starts[1:], len(ordered)], strict=True):
        some = pc.min_max(times[start:stop]).as_py()
        found.append(Ends(ordered[start].as_py(), ordered[stop - 1].as_py(), some["min"], some["max"]))
    return tuple(found)


def intervals_of(ordered: Any) -> IntervalSet:
    """The set of an Arrow array of distinct, sorted offsets: only the ends of its pieces become Python numbers."""
    before, after = ordered[:-1], ordered[1:]
    gap = pc.not_equal(pc.subtract(after, before), 1)
    starts: list[int] = [ordered[0].as_py(), *after.filter(gap).to_pylist()]
    lasts: list[int] = [*before.filter(gap).to_pylist(), ordered[-1].as_py()]
    return IntervalSet(tuple((start, last + 1) for start, last in zip(starts, lasts, strict=True)))


def read_rows(path: Path, take: Take) -> Any:
    """The rows of `path` (a good segment) that `take` chooses, as a `pyarrow.Table` over the mapped file.

    Raises BadSegmentError. Of a record that was handled twice in this segment the first run counts, also when the second gave
    other rows.
    """
    with _damage_named("cut off or damaged"):
        rows, _ = _read_table(path)
    if take.part is None or not rows.num_rows:
        return rows
    # In a plan a queue has one epoch, and a segment knows of none.
    return _chosen(rows, take.part.rekeyed(lambda key: key.in_epoch(0)))


def with_epochs(rows: Any, epochs: Iterable[QueueKey]) -> Any:
    """The rows with the column EPOCH: what `epochs` says of their queue, null for the others.

    Each row gets the number that its queue has where every value of one key column goes with all those of the others, or null
    where it has a value that is in no key: so the rows are gone over as often for thousands of queues as for one.
    """
    queues = dict.fromkeys(epochs, 0)
    numbers: Any = pa.scalar(0)
    for place, name in enumerate(_QUEUE_COLUMNS):
        values = {value: number for number, value in enumerate({key[place] for key in queues})}
        column = rows.column(name)
        own = pc.index_in(column, value_set=pa.array(list(values), column.type)).cast(pa.int64())
        numbers = pc.add(pc.multiply(numbers, len(values)), own)
        queues = {key: number * len(values) + values[key[place]] for key, number in queues.items()}
    found = pc.index_in(numbers, value_set=pa.array(list(queues.values()), pa.int64()))
    return rows.append_column(EPOCH, pa.array([key.epoch for key in queues], pa.int64()).take(found))


def _chosen(rows: Any, part: OffsetSet) -> Any:
    """The plain way, record by record: it runs only for segments with something that was delivered twice."""
    is_start = _is_start(rows)
    starts = rows.select([*_QUEUE_COLUMNS, OFFSET]).filter(is_start)
    seen: set[tuple[QueueKey, int]] = set()
    keep: list[bool] = []
    for group, topic, broker, queue_id, offset in zip(*(column.to_pylist() for column in starts.columns), strict=True):
        record = (QueueKey(group, topic, broker, queue_id), offset)
        keep.append(record not in seen and offset in part.of_queue(record[0]))
        seen.add(record)
    ordinal = pc.subtract(pc.cumulative_sum(is_start.cast(pa.int64())), 1)
    return rows.filter(pa.array(keep, pa.bool_()).take(ordinal.combine_chunks()))
