"""The rows of finished messages between two flushes, and the record batch they become.

The values of a message's rows are taken to tuples when its handler returns, copied where the handler could change them later
(lists, dicts, buffers): a handler that fills one dict anew for every message must not write the last one many times. All of
them are converted with the block, which is many times cheaper than one by one; if that fails, each message is tried alone,
and those at fault come back with the error. All rows of a message are *prepared* (errors included) before they are *kept*,
so nothing of a failed message is ever here.

A record batch holds whole messages only, one after the other, with `_seq` counting each one's rows (segment_format.py). Its
key columns come from the bytes of the records (row_keys.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import pyarrow

from ..conf.segment_format import FORMAT_VERSION, META_GROUP, META_USER_SCHEMA, META_VERSION, key_fields
from ..remoting.errors import ProtocolError
from .ddl import fields_of, to_ddl
from .fitting import Arrays, Columns, RowError, UnknownValueError
from .inferring import as_rows
from .message import Message
from .row_keys import key_columns, key_of

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

FLUSH_ROWS_MAX: Final = 20_000
"""Rows kept before a flush is due at once; bounds memory, not correctness."""
FLUSH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Estimated bytes kept before a flush is due at once."""
_ROW_BYTES_GUESS: Final = 200
_MEASURED_ROWS_MIN: Final = 64
"""A few rows say little about the size of the others."""
_ROWS_PER_MESSAGE_MAX: Final = 2**31 - 1
_NO_COLUMNS: Final = (
    "the handler returned rows, but no columns are declared: give a schema to @handler or results.schema"
)
_NO_KEYS: Final = (ProtocolError, pa.ArrowException, OverflowError)
"""What a record raises whose key columns cannot be made."""
_TABLES: Final = (pa.RecordBatch, pa.Table)

Owner = TypeVar("Owner")


def warm_up() -> None:
    """Let Arrow convert something: its first conversion imports pandas where that is installed, 150 ms once."""
    pa.array([0], pa.int32())


class Prepared:
    """Rows of one message that fit: `values` (one tuple per row) or `arrays`, `count` >= 1 rows."""

    __slots__ = ("arrays", "count", "message", "values")

    def __init__(self, message: Message, values: list[tuple[Any, ...]], arrays: Arrays | None, count: int) -> None:
        self.message = message
        self.values = values
        self.arrays = arrays
        self.count = count


Kept = tuple[Owner, Message, int, Arrays | None]
"""Of one message: its owner, itself, how many rows, and these where they are converted (else they are in the values)."""


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
        self._kept: list[Kept[Owner]] = []
        self._values: list[tuple[Any, ...]] = []
        """Rows of all kept messages that are not converted yet, in order."""
        self._converted = False
        """Some of what is kept is converted."""
        self._bytes_per_row = _ROW_BYTES_GUESS
        self.schema = _segment_schema(schema, group)

    @property
    def full(self) -> bool:
        """So many rows are kept that they should be flushed now."""
        return self.rows >= FLUSH_ROWS_MAX or self.rows * self._bytes_per_row >= FLUSH_BYTES_MAX

    def add(self, owner: Owner, message: Message, result: object) -> bool:
        """Prepare and keep the rows of a message that has one result. False: there are none. Raises as `prepare`."""
        columns = self._columns
        if columns is not None and (values := columns.values_of_plain(result)) is not None:
            self._values.append(values)
            self._kept.append((owner, message, 1, None))
            self.rows += 1
            return True
        prepared = self.prepare(message, result)
        if prepared is None:
            return False
        self.keep(owner, prepared)
        return True

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
        if at_once:
            key_of(message)
        if tables:
            arrays = _joined(
                [columns.fit_arrow(table) for table in tables] + ([columns.arrays(values)] if values else [])
            )
            return Prepared(message, [], arrays, count)
        if at_once:
            return self._converted_now(message, values, columns)
        try:
            return Prepared(message, columns.taken(values), None, count)
        except UnknownValueError:
            return self._converted_now(message, values, columns)

    def _converted_now(self, message: Message, values: list[tuple[Any, ...]], columns: Columns) -> Prepared:
        return Prepared(message, [], columns.arrays(values), len(values))

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
        """Convert the rows and forget them. Raises RowError when they do not fit, ProtocolError for a damaged record."""
        key_of(prepared.message)
        if self._columns is not None and prepared.arrays is None:
            self._columns.arrays(prepared.values)

    def keep(self, owner: Owner, prepared: Prepared) -> None:
        """Take prepared rows in."""
        self._kept.append((owner, prepared.message, prepared.count, prepared.arrays))
        self._values.extend(prepared.values)
        self._converted = self._converted or prepared.arrays is not None
        self.rows += prepared.count

    def take(self) -> tuple[pyarrow.RecordBatch | None, list[tuple[Owner, RowError]]]:
        """All kept rows as one record batch (None when there are none), and the owners of messages that do not fit.

        When an owner comes back, its rows are not in the batch, and neither are those of other messages of the same
        owner (owners are compared by equality).
        """
        kept, values, converted = self._kept, self._values, self._converted
        self._kept, self._values, self._converted, self.rows = [], [], False, 0
        bad: list[tuple[Owner, RowError]] = []
        columns = self._columns
        if not kept or columns is None:
            return None, bad
        try:
            batch = self._batch(columns, kept, values)
        except RowError as error:
            # When no message alone is at fault, together they are too large: then all come back.
            bad = _misfits(columns, kept, values) or [(owner, error) for owner, *_ in kept]
            kept, values = _without(kept, values, [owner for owner, _ in bad])
            if not kept:
                return None, bad
            batch = self._batch(columns, kept, values)
        if batch.num_rows >= _MEASURED_ROWS_MIN:
            # Exact are the bytes of slices of a larger table only at twenty times the price.
            size = batch.nbytes if converted else batch.get_total_buffer_size()
            self._bytes_per_row = max(1, size // batch.num_rows)
        return batch, bad

    def _batch(self, columns: Columns, kept: list[Kept[Owner]], values: list[tuple[Any, ...]]) -> Any:
        """Raises RowError."""
        arrays = columns.arrays(values) if len(values) == _rows_of(kept) else _in_order(columns, kept, values)
        counts = None if len(kept) == len(arrays[0]) else [count for _, _, count, _ in kept]
        try:
            keys = key_columns(self._group, [message for _, message, _, _ in kept], counts)
        except _NO_KEYS as error:
            raise RowError(str(error)) from error
        return pa.RecordBatch.from_arrays([*keys, *arrays], schema=self.schema)


def _rows_of(kept: list[Kept[Owner]]) -> int:
    return sum([count for _, _, count, _ in kept])


def _segment_schema(schema: pyarrow.Schema | None, group: str) -> pyarrow.Schema:
    metadata = {META_VERSION: str(FORMAT_VERSION).encode(), META_GROUP: group.encode()}
    user_fields: list[Any] = []
    if schema is not None:
        metadata[META_USER_SCHEMA] = to_ddl(schema).encode()
        user_fields = fields_of(schema)
    whole: pyarrow.Schema = pa.schema([*key_fields(), *user_fields], metadata=metadata)
    return whole


def _looks_like_rows(result: object) -> bool:
    if isinstance(result, _TABLES) or _is_row(result):
        return True
    return isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | memoryview)


def _is_row(result: object) -> bool:
    return isinstance(result, dict) or (dataclasses.is_dataclass(result) and not isinstance(result, type))


def _unusable(result: object) -> str:
    return (
        f"the handler returned {type(result).__name__}, which is neither None nor a row (dict or dataclass), "
        f"nor an iterable of rows, nor an Arrow batch"
    )


def _collect(columns: Columns, result: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Row values and Arrow tables in a handler's result."""
    if _is_row(result):
        return [columns.values_of(result)], []
    if isinstance(result, _TABLES):
        return [], [result]
    if not _looks_like_rows(result):
        raise RowError(_unusable(result))
    if isinstance(result, list) and not any(isinstance(row, _TABLES) for row in result):
        return columns.values_of_all(result), []
    values: list[tuple[Any, ...]] = []
    tables: list[Any] = []
    for row in result:
        if isinstance(row, _TABLES):
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


def _in_order(columns: Columns, kept: list[Kept[Owner]], values: list[tuple[Any, ...]]) -> Arrays:
    """Arrays of all rows in order, where some are converted: the others are, run by run."""
    parts: list[Arrays] = []
    start = end = 0
    for _, _, count, arrays in kept:
        if arrays is None:
            end += count
            continue
        if start < end:
            parts.append(columns.arrays(values[start:end]))
            start = end
        parts.append(arrays)
    if start < end:
        parts.append(columns.arrays(values[start:end]))
    return _joined(parts)


def _misfits(
    columns: Columns, kept: list[Kept[Owner]], values: list[tuple[Any, ...]]
) -> list[tuple[Owner, RowError]]:
    bad: list[tuple[Owner, RowError]] = []
    end = 0
    for owner, message, count, arrays in kept:
        start, end = end, end if arrays is not None else end + count
        try:
            if arrays is None:
                columns.arrays(values[start:end])
            key_columns("", [message], None)
        except RowError as error:
            bad.append((owner, error))
        except _NO_KEYS as error:
            bad.append((owner, RowError(str(error))))
    return bad


def _without(
    kept: list[Kept[Owner]], values: list[tuple[Any, ...]], refused: list[Owner]
) -> tuple[list[Kept[Owner]], list[tuple[Any, ...]]]:
    """What is left without the rows of these owners."""
    left: list[Kept[Owner]] = []
    those: list[tuple[Any, ...]] = []
    end = 0
    for each in kept:
        start, end = end, end if each[3] is not None else end + each[2]
        if each[0] not in refused:
            left.append(each)
            those.extend(values[start:end])
    return left, those
