"""The rows of finished messages between two flushes, and the record batch they become.

A message's rows are *prepared* (all of them, errors included) before they are *kept*, so nothing of a failed message is
ever here. Rows of plain values are kept as tuples and converted together, which is many times cheaper than one by one; if
that conversion fails, each message is tried alone, and those at fault come back with the error. Where a value could be
changed by the handler later (lists, dicts, buffers), rows are converted when they are prepared.

A record batch holds whole messages only, one after the other, with `_seq` counting each one's rows (segment_format.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar, cast

import pyarrow

from ..conf.segment_format import FORMAT_VERSION, META_GROUP, META_USER_SCHEMA, META_VERSION, key_fields
from .ddl import fields_of, to_ddl
from .fitting import Arrays, Columns, RowError
from .inferring import as_rows
from .message import Message

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

FLUSH_ROWS_MAX: Final = 20_000
"""Rows kept before a flush is due at once; bounds memory, not correctness."""
FLUSH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Estimated bytes kept before a flush is due at once."""
_ROW_BYTES_GUESS: Final = 200
_MEASURED_ROWS_MIN: Final = 64
"""Asking Arrow for the size of a batch takes longer than building a small one."""
_ROWS_PER_MESSAGE_MAX: Final = 2**31 - 1
_NO_COLUMNS: Final = (
    "the handler returned rows, but no columns are declared: give a schema to @handler or results.schema"
)

Owner = TypeVar("Owner")
Key = tuple[str, str, int, int, str, str, str, int, int]


def warm_up() -> None:
    """Let Arrow convert something: its first conversion imports pandas where that is installed, 150 ms once."""
    pa.array([0], pa.int32())


class Prepared:
    """Rows of one message that fit: `values` (one tuple per row) or `arrays`, `count` >= 1 rows."""

    __slots__ = ("arrays", "count", "key", "values")

    def __init__(self, key: Key, values: list[tuple[Any, ...]], arrays: Arrays | None, count: int) -> None:
        self.key = key
        self.values = values
        self.arrays = arrays
        self.count = count


class RowBuffer(Generic[Owner]):
    """Collects prepared rows; `Owner` is whatever the caller wants back with a message that fails at the flush."""

    def __init__(
        self,
        schema: pyarrow.Schema | None,
        group: str,
        infer: Callable[[list[Any]], pyarrow.Schema] | None = None,
    ) -> None:
        """`schema` None = no columns are declared, every row is an error; but with `infer` the first rows decide."""
        self._infer = infer
        self.on_columns: Callable[[], None] = lambda: None
        """Called when `schema` has become known by the first rows."""
        self.rows = 0
        self._columns = None if schema is None else Columns(schema)
        self._group = group
        self._kept: list[tuple[Owner, Prepared]] = []
        self._key_types: list[Any] = [field.type for field in key_fields()]
        self._bytes_per_row = _ROW_BYTES_GUESS
        self.schema = _segment_schema(schema, group)

    @property
    def full(self) -> bool:
        """So many rows are kept that they should be flushed now."""
        return self.rows >= FLUSH_ROWS_MAX or self.rows * self._bytes_per_row >= FLUSH_BYTES_MAX

    def prepare(self, message: Message, result: object, *, at_once: bool = False) -> Prepared | None:
        """The rows in one handler result (not None), None when it is an empty iterable. Raises RowError.

        `at_once`: rows are converted now, so that what does not fit is known now. Runs the handler's own code when
        `result` is a generator, so anything may be raised.
        """
        given: Any = result
        if self._columns is None and self._infer is not None:
            given = self._look(result, self._infer)
            if given is None:
                return None
        columns = self._columns
        if columns is None:
            raise RowError(_NO_COLUMNS if _looks_like_rows(given) else _unusable(given))
        values, tables = _collect(columns, given)
        count = len(values) + sum(table.num_rows for table in tables)
        if not count:
            return None
        if count > _ROWS_PER_MESSAGE_MAX:
            raise RowError(f"{count} rows of one message, at most {_ROWS_PER_MESSAGE_MAX} are possible")
        if tables:
            arrays = _joined(
                [columns.fit_arrow(table) for table in tables] + ([columns.arrays(values)] if values else [])
            )
            return Prepared(_key(message), [], arrays, count)
        converted = columns.arrays(values) if columns.mutable or at_once else None
        return Prepared(_key(message), values, converted, count)

    def _look(self, result: object, infer: Callable[[list[Any]], pyarrow.Schema]) -> Any:
        """The result, as a list where it was an iterable; its rows decide on the columns. None: there are none."""
        rows = as_rows(result)
        if rows is None:
            return result
        if not rows:
            return None
        schema = infer(rows)
        self._columns = Columns(schema)
        self.schema = _segment_schema(schema, self._group)
        self.on_columns()
        return rows

    def check(self, prepared: Prepared) -> None:
        """Convert the rows and forget them. Raises RowError when they do not fit."""
        if self._columns is not None:
            _build(self._columns, [prepared])

    def keep(self, owner: Owner, prepared: Prepared) -> None:
        """Take prepared rows in."""
        self._kept.append((owner, prepared))
        self.rows += prepared.count

    def take(self) -> tuple[pyarrow.RecordBatch | None, list[tuple[Owner, RowError]]]:
        """All kept rows as one record batch (None when there are none), and the owners of messages that do not fit.

        When an owner comes back, its rows are not in the batch, and neither are those of other messages of the same
        owner (owners are compared by equality).
        """
        kept, self._kept, self.rows = self._kept, [], 0
        bad: list[tuple[Owner, RowError]] = []
        columns = self._columns
        if not kept or columns is None:
            return None, bad
        try:
            arrays = _build(columns, [prepared for _, prepared in kept])
        except RowError as error:
            # When no message alone is at fault, together they are too large: then all come back.
            bad = _misfits(columns, kept) or [(owner, error) for owner, _ in kept]
            refused = [owner for owner, _ in bad]
            kept = [(owner, prepared) for owner, prepared in kept if owner not in refused]
            if not kept:
                return None, bad
            arrays = _build(columns, [prepared for _, prepared in kept])
        keys = self._key_arrays([prepared for _, prepared in kept])
        batch: Any = pa.RecordBatch.from_arrays([*keys, *arrays], schema=self.schema)
        if batch.num_rows >= _MEASURED_ROWS_MIN:
            self._bytes_per_row = max(1, batch.nbytes // batch.num_rows)
        return batch, bad

    def _key_arrays(self, kept: list[Prepared]) -> Arrays:
        counts = [prepared.count for prepared in kept]
        total = sum(counts)
        types = self._key_types
        columns = list(zip(*[prepared.key for prepared in kept], strict=True))
        # Key: topic, broker, queue id, offset | origin topic, ids, reconsume times, store time. `_seq` stands between.
        singles: Arrays = [
            pa.array(values, kind) for values, kind in zip(columns, [*types[1:5], *types[6:]], strict=True)
        ]
        if total == len(kept):
            seq: Any = pa.array([0] * total, types[5])
        else:
            places = pa.array([number for number, count in enumerate(counts) for _ in range(count)], pa.int32())
            singles = [array.take(places) for array in singles]
            seq = pa.array([number for count in counts for number in range(count)], types[5])
        return [pa.array([self._group] * total, types[0]), *singles[:4], seq, *singles[4:]]


def _segment_schema(schema: pyarrow.Schema | None, group: str) -> pyarrow.Schema:
    metadata = {META_VERSION: str(FORMAT_VERSION).encode(), META_GROUP: group.encode()}
    user_fields: list[Any] = []
    if schema is not None:
        metadata[META_USER_SCHEMA] = to_ddl(schema).encode()
        user_fields = fields_of(schema)
    whole: pyarrow.Schema = pa.schema([*key_fields(), *user_fields], metadata=metadata)
    return whole


def _key(message: Message) -> Key:
    queue = message.queue
    return (
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        message.topic,
        message.message_id,
        message.origin_message_id,
        message.reconsume_times,
        message.store_timestamp_ms * 1_000,
    )


def _looks_like_rows(result: object) -> bool:
    if isinstance(result, pa.RecordBatch | pa.Table) or _is_row(result):
        return True
    return isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | memoryview)


def _is_row(result: object) -> bool:
    return isinstance(result, dict) or (dataclasses.is_dataclass(result) and not isinstance(result, type))


def _unusable(result: object) -> str:
    return (
        f"the handler returned {type(result).__name__}, which is neither None nor a row (dict or dataclass), "
        f"nor an iterable of rows, nor an Arrow batch"
    )


def _collect(columns: Columns, result: object) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Row values and Arrow tables in a handler's result."""
    if _is_row(result):
        return [columns.values_of(result)], []
    if isinstance(result, pa.RecordBatch | pa.Table):
        return [], [result]
    if not _looks_like_rows(result):
        raise RowError(_unusable(result))
    values: list[tuple[Any, ...]] = []
    tables: list[Any] = []
    for row in cast("Iterable[object]", result):
        if isinstance(row, pa.RecordBatch | pa.Table):
            tables.append(row)
        else:
            values.append(columns.values_of(row))
    return values, tables


def _joined(parts: list[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    try:
        return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]
    except pa.ArrowException as error:
        raise RowError(f"the rows cannot be joined: {error}") from error


def _build(columns: Columns, kept: list[Prepared]) -> Arrays:
    """Arrays of all rows in order; rows kept as values are converted run by run."""
    parts: list[Arrays] = []
    values: list[tuple[Any, ...]] = []
    for prepared in kept:
        if prepared.arrays is None:
            values.extend(prepared.values)
            continue
        if values:
            parts.append(columns.arrays(values))
            values = []
        parts.append(prepared.arrays)
    if values:
        parts.append(columns.arrays(values))
    return _joined(parts)


def _misfits(columns: Columns, kept: list[tuple[Owner, Prepared]]) -> list[tuple[Owner, RowError]]:
    bad: list[tuple[Owner, RowError]] = []
    for owner, prepared in kept:
        if prepared.arrays is None:
            try:
                columns.arrays(prepared.values)
            except RowError as error:
                bad.append((owner, error))
    return bad
