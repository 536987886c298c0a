"""The rows of finished messages between two flushes, and the record batch they become.

The values of a message's rows are taken to a tuple when its handler returns, copied where the handler could change them later
(lists, dicts, buffers, Arrow batches): a handler that fills one dict anew for every message must not write the last one many
times. All of them are converted with the block, and Arrow batches checked with it, which is many times cheaper than one by
one; if that fails, each message is tried alone, and those at fault come back with the error. All rows of a message are
*prepared* (errors included) before they are *kept*, so nothing of a failed message is ever here.

A record batch holds whole messages only, one after the other, with `_seq` counting each one's rows (segment_format.py). Its
key columns come from the bytes of the records (row_keys.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

import pyarrow

from ..conf.folders import NO_FOLDERS, FolderNames
from ..conf.segment_format import FORMAT_VERSION, META_GROUP, META_USER_SCHEMA, META_VERSION, key_fields
from ..remoting.errors import ProtocolError
from .array_faults import Arrays
from .copying import UnknownValueError, holds_all, listed, refused, to_the_end
from .ddl import fields_of, to_ddl
from .fitting import UNDECLARED, Columns, NoRowError, RowError, check_ran
from .inferring import as_rows
from .message import Message
from .misfits import made_row, no_row
from .packets import BLOCK_MESSAGES
from .row_keys import key_columns, key_of

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

FLUSH_ROWS_MAX: Final = 20_000
"""Rows kept before a flush is due at once; bounds memory, not correctness."""
FLUSH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Estimated bytes kept before a flush is due at once."""
_ROW_BYTES_GUESS: Final = 200
"""Until the first larger block is made."""
_MEASURED_ROWS_MIN: Final = 64
"""A few rows say little about the size of the others."""
_ROWS_PER_MESSAGE_MAX: Final = 2**31 - 1
_NO_COLUMNS: Final = (
    "the handler returned rows, but no columns are declared: give a schema to @handler or results.schema"
)
_NO_KEYS: Final = (ProtocolError, pa.ArrowException, OverflowError)
"""What a record raises whose key columns cannot be made."""
TABLES: Final = (pa.RecordBatch, pa.Table)

Owner = TypeVar("Owner")


def warm_up() -> None:
    """Let Arrow convert something: its first conversion imports pandas where that is installed, 150 ms once."""
    pa.array([0], pa.int32())


class _Shared:
    """An Arrow table of which each row is another message's. Asked by each of them, it looks at itself once."""

    __slots__ = ("_given", "_refused", "_whole", "fitted")

    def __init__(self, given: Any) -> None:
        self._given = given
        self._whole: Any = None
        self._refused: RowError | None = None
        self.fitted: Any = None

    def fits(self, columns: Columns) -> bool:
        """Whether its rows fit together, as far as is known."""
        if self.fitted is None and self._refused is None:
            try:
                self.fitted = columns.fit_arrow(self._given)
            except RowError as error:
                self._refused = error
        return self.fitted is not None

    def alone(self, number: int) -> Any:
        """One row as it was given. Raises RowError."""
        if self._whole is None:
            try:
                self._given.validate()  # of a column that is too short Arrow cuts nothing: it ends the process
            except pa.ArrowException as error:
                raise refused(f"a broken Arrow batch: {error}", error) from error
            # A table of many pieces would be put together anew for each row.
            self._whole = self._given.combine_chunks() if isinstance(self._given, pa.Table) else self._given
        return self._whole.slice(number, 1)


class TableRow:
    """One of its rows, as the result of a message."""

    __slots__ = ("number", "table")
    num_rows = 1

    def __init__(self, table: _Shared, number: int) -> None:
        self.table = table
        self.number = number

    def fit(self, columns: Columns) -> Any:
        """What is kept of it: itself, so that neighbours are cut together. Raises RowError, where it is the one at fault."""
        return self if self.table.fits(columns) else columns.fit_arrow(self.table.alone(self.number))

    def cut(self, rows: int = 1) -> Any:
        """So many rows from this one on, once they fit. They are copied, as a look at a slice may see what is beside it."""
        whole = self.table.fitted
        part = whole.slice(self.number, rows)
        return whole if rows == whole.num_rows else pa.concat_batches([part, part.slice(0, 0)])


def tables_in(given: Any) -> list[Any] | None:
    """The Arrow tables that something is; None of what is none. A reader is one table, however it is cut into batches."""
    if isinstance(given, pa.RecordBatchReader):
        return listed(given)
    return [given] if isinstance(given, TABLES) else None


def rows_of_table(table: Any) -> Iterator[TableRow]:
    """A result for each row of a RecordBatch or Table."""
    return map(TableRow, repeat(_Shared(table)), range(table.num_rows))


Prepared = tuple[Message, tuple[Any, ...], Any]
"""Rows of one message that fit, as far as is known: the values of one or more, row by row, or a RecordBatch or TableRow."""
Kept = tuple[Owner, Message, tuple[Any, ...], Any]
"""The same with its owner. One small object, because it is made for every message."""


def _nothing_plain(_row: Any) -> None:
    return None


def _none_plain(_rows: list[Any]) -> None:
    return None


class RowBuffer(Generic[Owner]):
    """Collects prepared rows; `Owner` is whatever the caller wants back with a message that fails at the flush."""

    def __init__(
        self,
        schema: pyarrow.Schema | None,
        group: str,
        infer: Callable[[list[Any]], pyarrow.Schema] | None = None,
        folders: FolderNames = NO_FOLDERS,
    ) -> None:
        """`schema` None = no columns are declared, every row is an error; but with `infer` the first rows decide. `folders`:
        those of the table, which not every value can name."""
        self._infer = infer
        self._folders = folders
        self.on_columns: Callable[[], None] = lambda: None
        """Called when `schema` has become known by the first rows."""
        self.on_converted: Callable[[], None] = lambda: None
        """Called after each block, or message of a block that does not fit as a whole: to convert them may take long."""
        self._columns: Columns | None = None
        self._inferred_in = ""
        self._group = group
        self.kept: list[Kept[Owner]] = []
        """Always the same list. What is appended to it is kept, in one step: another thread sees all of it or nothing."""
        self.plain: Callable[[Any], tuple[Any, ...] | None] = _nothing_plain
        """The values of a result that is one plain row, to be kept with None as its arrays; None = ask `prepare`."""
        self._plain_of_each: Callable[[list[Any]], list[tuple[Any, ...]] | None] = _none_plain
        """The same of several messages' results together."""
        self._more_rows = 0
        """Rows beyond one a message."""
        self._full_rows = min(FLUSH_ROWS_MAX, FLUSH_BYTES_MAX // _ROW_BYTES_GUESS)
        self.full_at = min(BLOCK_MESSAGES, self._full_rows)
        """Full, when so many messages are kept."""
        self.schema = _segment_schema(schema, group)
        self._width = 1
        if schema is not None:
            self._use(Columns(schema, folders))

    def _use(self, columns: Columns) -> None:
        self._columns, self._width = columns, columns.width
        columns.inferred_in = self._inferred_in
        self.plain, self._plain_of_each = columns.values_of_plain, columns.values_of_each_plain

    def are_inferred(self, file: Path) -> None:
        """Nobody declares the columns: they are kept in `file`, which an error names."""
        self._inferred_in = str(file)
        if self._columns is not None:
            self._columns.inferred_in = self._inferred_in

    @property
    def rows(self) -> int:
        """Rows that are kept."""
        return len(self.kept) + self._more_rows

    @property
    def full(self) -> bool:
        """So many rows are kept that they should be flushed now."""
        return len(self.kept) >= self.full_at

    def prepare(self, message: Message, result: object, *, at_once: bool = False) -> Prepared | None:
        """The rows in one handler result (not None), None when it is an empty iterable. Raises RowError.

        `at_once`: what does not fit is known now; rows are converted for it unless a look is enough. Runs the handler's own
        code when `result` is a generator, so anything may be raised.
        """
        try:
            return self._prepared(message, result, at_once=at_once)
        except NoRowError:
            if made_row(result):  # what was iterated is itself meant to be a row
                raise NoRowError(result) from None
            raise

    def _prepared(self, message: Message, result: object, *, at_once: bool) -> Prepared | None:
        given: Any = result
        if given.__class__ is TableRow:
            return self._table_row(message, given, at_once=at_once)
        columns = self._columns
        if columns is not None and at_once:
            if (row := columns.values_of_plain(given)) is not None and columns.sure(row):
                key_of(message)
                return message, row, None
        elif columns is not None:
            plain = columns.values_of_plain_rows if given.__class__ is list else columns.values_of_plain
            if (row := plain(given)) is not None:
                return message, row, None
            if given.__class__ is pa.RecordBatch and 0 < given.num_rows <= _ROWS_PER_MESSAGE_MAX:
                return message, (), columns.fit_arrow(given)
        if columns is None and self._infer is not None:
            given = self._look(result, self._infer)
            if given is None:
                return None
            columns = self._columns
        if columns is None:
            _check_no_rows(given)
            return None
        values, parts = _collect(columns, given)
        count = len(values) + sum([part.num_rows for part in parts])
        if not count:
            return None
        if count > _ROWS_PER_MESSAGE_MAX:
            raise RowError(f"{count} rows of one message, at most {_ROWS_PER_MESSAGE_MAX} are possible")
        if at_once:
            key_of(message)
        return message, *_rows_of(columns, values, parts, at_once=at_once)

    def _table_row(self, message: Message, row: TableRow, *, at_once: bool) -> Prepared:
        if self._columns is None and self._infer is not None:
            self._look(row.table.alone(row.number), self._infer)
        if self._columns is None:
            raise RowError(_NO_COLUMNS)
        prepared: Prepared = message, (), row.fit(self._columns)
        if at_once:
            self.check(prepared)
        return prepared

    def _look(self, result: object, infer: Callable[[list[Any]], pyarrow.Schema]) -> Any:
        """The result, as a list where it was an iterable; its rows decide on the columns. None: there are none."""
        rows = as_rows(result)
        if rows is None:
            return result
        if not rows:
            return None
        schema = infer(rows)
        self._use(Columns(schema, self._folders))
        self.schema = _segment_schema(schema, self._group)
        self.on_columns()
        return rows

    def together(self, results: list[Any]) -> tuple[Iterable[tuple[Any, ...]], Iterable[Any]] | None:
        """Values and arrays of several messages' results that can be kept as they are; None = ask `prepare` for each."""
        try:
            values = self._plain_of_each(results)
            if values is not None:
                return values, repeat(None)
            return (repeat(()), results) if self._fit_as_tables(results) else None
        except Exception:  # noqa: BLE001  what cannot be copied fails its own message: `prepare` raises it again
            return None

    def _fit_as_tables(self, results: list[Any]) -> bool:
        """Whether they are rows of tables in which all rows fit, as far as is known."""
        columns = self._columns
        if columns is None or set(map(type, results)) != {TableRow}:
            return False
        return all(table.fits(columns) for table in {row.table for row in results})

    def check(self, prepared: Prepared) -> None:
        """Convert the rows and forget them. Raises RowError when they do not fit, ProtocolError for a damaged record."""
        message, values, batch = prepared
        key_of(message)
        if self._columns is None:
            return
        if batch is None:
            self._columns.arrays([values])
        else:
            self._columns.checked(_cut([batch])[0])

    def keep(self, owner: Owner, prepared: Prepared) -> None:
        """Take prepared rows in."""
        self.kept.append((owner, *prepared))
        self._count_more(_rows_in(prepared, self._width) - 1)

    def plain_rows(self, rows: Any) -> tuple[Any, ...] | None:
        """As `plain`, for a result that is a list of rows; they count as kept.

        The thread that reports beside a call may count anew before they are kept, or before their number is noted: then the
        buffer counts a message's rows too few or too many until it is taken next. No more than its fullness depends on that.
        """
        columns = self._columns
        values = None if columns is None else columns.values_of_plain_rows(rows)
        if values is not None:
            self._count_more(len(rows) - 1)
        return values

    def _count_more(self, rows: int) -> None:
        if rows:
            self._more_rows += rows
            self._set_full()

    def keep_all(self, several: list[Kept[Owner]]) -> None:
        """Take prepared rows of several messages in."""
        self.kept += several
        self._count_more(self._more_in(several))

    def _more_in(self, several: list[Kept[Owner]]) -> int:
        # Looked at once, as beside a report the loop keeps another meanwhile.
        values = [len(values) if batch is None else batch.num_rows * self._width for _, _, values, batch in several]
        return sum(values) // self._width - len(values)

    def _set_full(self) -> None:
        self.full_at = min(BLOCK_MESSAGES, self._full_rows - self._more_rows)

    def take(self, count: int | None = None) -> tuple[pyarrow.RecordBatch | None, list[tuple[Owner, RowError]]]:
        """The rows of the first `count` kept messages (None: of all) as one record batch (None when there are none), and the
        owners of messages that do not fit.

        When an owner comes back, its rows are not in the batch, and neither are those of other messages of the same
        owner (owners are compared by equality).
        """
        kept = self.kept[:count]
        del self.kept[: len(kept)]
        self._more_rows = self._more_in(self.kept)
        bad: list[tuple[Owner, RowError]] = []
        columns, batch = self._columns, None
        if kept and columns is not None:
            batch, bad = self._block(columns, kept)
        self._set_full()
        return batch, bad

    def _block(self, columns: Columns, kept: list[Kept[Owner]]) -> tuple[Any, list[tuple[Owner, RowError]]]:
        """The block without messages that do not fit, and their owners."""
        try:
            return self._batch(columns, kept), []
        except RowError as error:
            alone, bad = _one_by_one(columns, kept, self.on_converted)
            refused = [owner for owner, _ in bad]
            left = [each for each in alone if each[0] not in refused]
            if not left:
                return None, bad
            try:
                return self._batch(columns, left), bad
            except RowError:
                # Together they are too large.
                return None, bad + [(each[0], error) for each in left]

    def _batch(self, columns: Columns, kept: list[Kept[Owner]]) -> Any:
        """Raises RowError."""
        # No zip(*kept): its iterators, one a message, would have the collector look at all messages in hand, each time.
        plain = all(each[3] is None for each in kept)
        arrays: Arrays = columns.arrays([each[2] for each in kept]) if plain else _in_order(columns, kept).columns
        alone = len(arrays[0]) == len(kept)
        counts = None if alone else [_rows_in(each[1:], columns.width) for each in kept]
        try:
            keys = key_columns(self._group, [each[1] for each in kept], counts)
        except _NO_KEYS as error:
            raise refused(str(error), error) from error
        batch: Any = pa.RecordBatch.from_arrays([*keys, *arrays], schema=self.schema)
        if batch.num_rows >= _MEASURED_ROWS_MIN:
            # What the handler made may be slices of a larger table. `nbytes` takes 16 times as long as the size in a file.
            size = batch.get_total_buffer_size() if plain else pa.ipc.get_record_batch_size(batch)
            self._full_rows = min(FLUSH_ROWS_MAX, FLUSH_BYTES_MAX // max(1, size // batch.num_rows))
        self.on_converted()
        return batch


def _segment_schema(schema: pyarrow.Schema | None, group: str) -> pyarrow.Schema:
    metadata = {META_VERSION: str(FORMAT_VERSION).encode(), META_GROUP: group.encode()}
    user_fields: list[Any] = []
    if schema is not None:
        metadata[META_USER_SCHEMA] = to_ddl(schema).encode()
        user_fields = fields_of(schema)
    whole: pyarrow.Schema = pa.schema([*key_fields(), *user_fields], metadata=metadata)
    return whole


def _looks_like_rows(result: object) -> bool:
    if isinstance(result, TABLES) or _is_row(result):
        return True
    return isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | memoryview)


def _is_row(result: object) -> bool:
    return isinstance(result, dict) or (dataclasses.is_dataclass(result) and not isinstance(result, type))


def _check_no_rows(result: object) -> None:
    """For a handler without columns: what is iterated runs to its end, as it may only send. Raises RowError at its first
    row."""
    check_ran(result)
    if isinstance(result, TABLES) or _is_row(result):
        _refuse_row(result)
        return
    if not _looks_like_rows(result):
        raise RowError(_unusable(result))
    for row in to_the_end(cast("Iterable[Any]", result)):
        _refuse_row(row)


def _refuse_row(row: Any) -> None:
    """A table without rows is nothing, as with columns. Raises RowError for all else."""
    if type(row).__name__ == "Send":
        raise RowError(UNDECLARED)
    if not isinstance(row, TABLES):
        raise RowError(_NO_COLUMNS) if _is_row(row) else NoRowError(row)
    if len(row):
        raise RowError(_NO_COLUMNS)


def _unusable(result: object) -> str:
    if type(result).__name__ == "Send":
        return UNDECLARED
    if made_row(result):
        return no_row(result)
    return (
        f"the handler returned {type(result).__name__}, which is neither None nor a row (dict or dataclass), "
        f"nor an iterable of rows, nor an Arrow batch"
    )


def _collect(columns: Columns, result: object) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Arrow tables in a handler's result, and the values of the rows after the last of them: those before one are in a table,
    too, so that the order stays. A table without rows is nothing. What a generator yields, or another iterable that has no
    rows yet, is taken before it goes on, as it may fill the same memory again. Raises RowError."""
    if _is_row(result):
        return [columns.values_of(result)], []
    if isinstance(result, TABLES):
        table: Any = result
        return [], [columns.fit_arrow(table)] if table.num_rows else []
    check_ran(result)  # a future can be iterated, too
    if not _looks_like_rows(result):
        raise RowError(_unusable(result))
    values: list[tuple[Any, ...]] = []
    parts: list[Any] = []
    given, filled_anew = cast("Iterable[Any]", result), not holds_all(result)
    for row in to_the_end(given) if filled_anew else given:
        if not isinstance(row, TABLES):
            values.append(columns.values_of(row))
            if filled_anew:
                try:
                    values[-1] = columns.taken(values[-1])
                except UnknownValueError:
                    parts.append(columns.batch(values))
                    values = []
        elif row.num_rows:
            if values:
                parts.append(columns.batch(values))
                values = []
            parts.append(columns.fit_arrow(row))
    return values, parts


def _rows_of(
    columns: Columns, values: list[tuple[Any, ...]], parts: list[Any], *, at_once: bool
) -> tuple[tuple[Any, ...], Any]:
    """The rows of a message, converted where they must be: tables, and values that may change in ways not known here."""
    if not parts and not at_once:
        with contextlib.suppress(UnknownValueError):
            return columns.taken(tuple(chain.from_iterable(values))), None
    if values:
        parts.append(columns.batch(values))
    batch = columns.joined(parts)
    return (), columns.checked(batch) if at_once else batch


def _rows_in(prepared: Prepared, width: int) -> int:
    _, values, batch = prepared
    return len(values) // width if batch is None else batch.num_rows


def _in_order(columns: Columns, kept: list[Kept[Any]]) -> Any:
    """A batch of all rows in order, whose arrays were looked at; rows kept as values are converted run by run."""
    parts: list[Any] = []
    run: list[tuple[Any, ...]] = []
    for _, _, values, batch in kept:
        if batch is None:
            run.append(values)
            continue
        if run:
            parts.append(columns.batch(run))
            run = []
        parts.append(batch)
    if run:
        parts.append(columns.batch(run))
    return columns.checked(columns.joined(_cut(parts)))


def _cut(parts: list[Any]) -> list[Any]:
    """The parts, where rows of a table that are neighbours are one."""
    if TableRow not in map(type, parts):
        return parts
    found: list[Any] = []
    first: Any = None
    count = 0
    for part in parts:
        if first is not None:
            if part.__class__ is TableRow and part.table is first.table and part.number == first.number + count:
                count += 1
                continue
            found.append(first.cut(count))
            first = None
        if part.__class__ is TableRow:
            first, count = part, 1
        else:
            found.append(part)
    return found if first is None else [*found, first.cut(count)]


def _one_by_one(
    columns: Columns, kept: list[Kept[Owner]], on_converted: Callable[[], None]
) -> tuple[list[Kept[Owner]], list[tuple[Owner, RowError]]]:
    """Each message converted alone, and the owners of those that do not fit."""
    good: list[Kept[Owner]] = []
    bad: list[tuple[Owner, RowError]] = []
    for each in kept:
        owner, message = each[:2]
        try:
            batch = _in_order(columns, [each])
            key_columns("", [message], None)
        except RowError as error:
            bad.append((owner, error))
        except _NO_KEYS as error:
            bad.append((owner, refused(str(error), error)))
        else:
            good.append((owner, message, (), batch))
        on_converted()
    return good, bad
