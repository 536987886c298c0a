"""Fit what a handler returns to the declared columns: rows and Arrow batches -> arrays, or an error naming the column.

Arrow's own conversion is trusted except where it loses data without a word (losses.py). That is an error here, and so is what
only the converted arrays tell, at any depth (array_faults.py): a null where none may be, a time that is outside of the years
that Python and Spark have, a number that became infinite in 32 bits. And a value that no folder of the table can be named by.
Of Arrow batches this is asked once for a block of them (`Columns.checked`), as a few calls cost more than a small batch. That
its strings are UTF-8 and its offsets inside of it, Arrow takes on trust; it is asked of each batch alone (`fit_arrow`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import pyarrow

from ..conf.folders import NO_FOLDERS, FolderNames
from .array_faults import (
    Arrays,
    became_infinite,
    has_extreme_time,
    has_floats,
    has_not_null,
    has_times,
    hides_nulls,
    makes_other_decimals,
    null_in,
)
from .copying import ENDLESS, NONE_TYPE, UnknownValueError, as_dicts, copier, endless, lasting, plain, refused
from .copying import RowError as RowError  # noqa: PLC0414  to be imported from here
from .ddl import fields_of, to_ddl
from .losses import check_cast, check_of
from .misfits import CONVERSION_ERRORS, NO_TIME, LossError, no_row, reason

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

UNORDERED: Final = (
    "the handler returned Sends in a set, which has no order, so a retry would mix up their unique keys: return a list"
)
UNDECLARED: Final = "the handler returned a Send, and is not declared with @handler(sends=True): it would not be sent"
NESTED: Final = (
    "the handler returned a Send inside of a row or of a list in a list, where none is sent: return it alone or beside the"
    " rows"
)
_SURE_MAX: Final = 1 << 20
"""Bytes of a text: a block of such is far from Arrow's 2 GiB."""
DATACLASSES_MAX: Final = 1_000
"""Row classes whose fields are remembered; a handler that makes classes without end is only slower."""
_INFINITE: Final = "a number that is infinite in 32 bits: declare the column double"
_OTHER_DECIMAL: Final = "a decimal of which Arrow's cast makes another number: it has too many digits"
_NO_UTF_8: Final = "a string that is no UTF-8: decode it before, as by data.decode(errors='replace')"


def check_ran(result: Any) -> None:
    """Raise RowError for what a handler returned and nothing runs: a coroutine or another awaitable, an async generator. And
    for the class of an exception, which asks for nothing: a message that `return Retry` means to keep would be done."""
    given: object = result
    if inspect.isclass(result) and issubclass(result, BaseException):
        raise RowError(f"the handler returned the class {result.__name__}: return {result.__name__}(…), or raise it")
    if not (inspect.isawaitable(given) or isinstance(given, AsyncIterator)):
        return
    kind = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()  # or Python warns that it was never awaited
    raise RowError(
        f"the handler returned {kind}, which was not run: only what a handler declared with `async def` and without `yield`"
        " does is awaited"
    )


class NoRowError(RowError):
    """Something among a handler's rows is none, whatever the columns are."""

    def __init__(self, value: object) -> None:
        super().__init__(no_row(value))


class Columns:
    """The declared columns, prepared for fast extraction of row values.

    The values of several rows are one tuple, row by row: it is one object for the collector to look at, and a column of it is
    a slice.
    """

    def __init__(self, schema: pyarrow.Schema, folders: FolderNames = NO_FOLDERS) -> None:
        """`folders`: those that the table makes of values, by `spark.partition_by`."""
        self.schema = schema
        self.inferred_in = ""
        """The file that keeps them, where nobody has declared them."""
        self.names: list[str] = list(schema.names)
        self._fields = fields_of(schema)
        self._name_set = frozenset(self.names)
        kinds: list[Any] = [field.type for field in self._fields]
        self._nested = [_is_nested(kind) for kind in kinds]
        self._checks = [check_of(kind) for kind in kinds]
        self._looked_at = [number for number, check in enumerate(self._checks) if check]
        """Columns of which Arrow would lose something in silence."""
        self._row_type: Any = pa.struct([(field.name, field.type) for field in self._fields])
        self._mutable = [(number, types, copier(kind)) for number, kind in enumerate(kinds) if (types := lasting(kind))]
        """Columns whose values may be lists, dicts, buffers or arrays of one number, which the handler may change when it is
        called again; types of which none is such a value, and what copies one."""
        self.width = len(kinds)
        self._pick_items = _row_of(operator.itemgetter(*self.names), self.width)
        self._pick_attributes = _row_of(operator.attrgetter(*self.names), self.width)
        self._dataclasses: dict[type, bool] = {}
        """Whether a class's attributes are the values as they are; False: it is a dataclass, to be made a dict of."""
        self._not_null = [
            number for number, field in enumerate(self._fields) if not field.nullable or has_not_null(field.type)
        ]
        """Columns that may not be null, or something within them."""
        self._not_null_within = [number for number in self._not_null if has_not_null(kinds[number])]
        self._times = [number for number, kind in enumerate(kinds) if has_times(kind)]
        self._floats = [number for number, kind in enumerate(kinds) if has_floats(kind)]
        """Columns with times or 32-bit floats in them, which may be too large."""
        self._folders = folders
        self._folder_columns = [
            number for number, field in enumerate(self._fields)
            if field.name in folders.columns and pa.types.is_string(field.type)
        ]  # fmt: skip
        """Columns whose values name folders, of any length."""
        self._judged = sorted({*self._not_null, *self._times, *self._floats, *self._folder_columns})
        """Columns whose arrays are looked at."""
        self._as_declared: tuple[Any, Any] | None = None
        """Schema of the last Arrow batch that had the declared columns in their order, each of the declared type, and a batch
        of it without rows."""
        self._sound_dictionary: Any = None
        """The last dictionary of strings in which nothing was broken: many batches may be slices with the same one."""
        self.values_of_plain = self._make_values_of_plain()
        self._sure = [_sure_values(field, folders) for field in self._fields]

    def values_of(self, row: object) -> tuple[Any, ...]:
        """The values of one row in the columns' order. Raises RowError."""
        if row.__class__ is dict:
            return self._values_of_dict(row)
        known = self._dataclasses.get(row.__class__)
        if known:
            return self._attributes(row)
        if isinstance(row, dict):
            return self._values_of_dict(row)
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            if known is None and self._has_these_fields(row.__class__):
                return self._attributes(row)
            return self._values_of_dataclass(row)
        if type(row).__name__ == "Send":
            raise RowError(UNDECLARED)
        raise NoRowError(row)

    def _values_of_dataclass(self, row: object) -> tuple[Any, ...]:
        try:
            return self._values_of_dict(plain(row))
        except AttributeError as error:
            raise _unset(error) from error
        except RecursionError as error:
            raise endless(row, plain) from error

    def _attributes(self, row: object) -> tuple[Any, ...]:
        try:
            return self._pick_attributes(row)
        except AttributeError as error:
            raise _unset(error) from error

    def _make_values_of_plain(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """A function for the values of one row that is a dict of exactly the columns, or of a dataclass that was seen before;
        it returns None where `values_of` and `taken` are to be asked. Made once, because it is called for every row."""
        width, mutable, known = self.width, self._mutable, self._dataclasses
        pick_items, pick_attributes, taken = self._pick_items, self._pick_attributes, self._taken_or_none

        def values_of_plain(row: Any) -> tuple[Any, ...] | None:
            kind = row.__class__
            if kind is dict and len(row) == width:
                try:
                    values = pick_items(row)
                except KeyError:
                    return None
            elif known.get(kind):
                try:
                    values = pick_attributes(row)
                except Exception:  # noqa: BLE001  an attribute that was never set: `values_of` says which
                    return None
            else:
                return None
            if mutable:
                for place, types, _ in mutable:
                    if values[place].__class__ not in types:
                        return taken(values)
            return values

        return values_of_plain

    def sure(self, values: tuple[Any, ...]) -> bool:
        """The values of one row fit for sure: no conversion is needed to know it. False: they may fit."""
        return all(
            (check := checks.get(value.__class__)) is not None and check(value)
            for checks, value in zip(self._sure, values, strict=True)
        )

    def values_of_plain_rows(self, rows: list[Any]) -> tuple[Any, ...] | None:
        """The same of one or more rows, all dicts or all of one dataclass."""
        picked = self._picked(rows)
        return None if picked is None else self._taken_or_none(tuple(chain.from_iterable(picked)))

    def values_of_each_plain(self, rows: list[Any]) -> list[tuple[Any, ...]] | None:
        """The same, for each row its own."""
        picked = self._picked(rows)
        if picked is None or all(
            types.issuperset(map(type, map(operator.itemgetter(place), picked))) for place, types, _ in self._mutable
        ):
            return picked
        taken = list(map(self._taken_or_none, picked))
        return None if None in taken else cast("list[tuple[Any, ...]]", taken)

    def _picked(self, rows: list[Any]) -> list[tuple[Any, ...]] | None:
        kinds = set(map(type, rows))
        if len(kinds) > 1:
            return None
        try:
            if kinds == {dict}:
                picked = list(map(self._pick_items, rows))
                # None has fewer than these names, so one that has more makes the sum larger.
                return picked if sum(map(len, rows)) == len(rows) * self.width else None
            return list(map(self._pick_attributes, rows)) if self._dataclasses.get(kinds.pop()) else None
        except Exception:  # noqa: BLE001  a name that is missing, or an attribute: `values_of` says which
            return None

    def taken(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values with a copy of each that can be changed. Raises UnknownValueError, RowError."""
        found: list[Any] | None = None
        for place, types, copy in self._mutable:
            column = values[place :: self.width]
            if not types.issuperset(map(type, column)):
                found = list(values) if found is None else found
                try:
                    copied = [value if value.__class__ in types else copy(value) for value in column]
                except RecursionError as error:
                    raise self._misfit(place, ENDLESS, error) from error
                found[place :: self.width] = copied
        return values if found is None else tuple(found)

    def _taken_or_none(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        try:
            return self.taken(values)
        except UnknownValueError:
            return None

    def _has_these_fields(self, kind: Any) -> bool:
        """Are the fields of this dataclass the columns, none nested (nested ones may hold dataclasses again)?"""
        fields = frozenset(field.name for field in dataclasses.fields(kind))
        known = fields == self._name_set and not any(self._nested)
        if len(self._dataclasses) < DATACLASSES_MAX:
            self._dataclasses[kind] = known
        return known

    def _values_of_dict(self, row: Any) -> tuple[Any, ...]:
        if row.__class__ is dict and len(row) == self.width:  # of another class, a missing name may be made up
            with contextlib.suppress(KeyError):
                return self._pick_items(row)
        unknown = [str(name) for name in row if name not in self._name_set]
        if unknown:
            raise self._undeclared(unknown[0])
        return tuple([row.get(name) for name in self.names])

    def _undeclared(self, name: str) -> RowError:
        names = ", ".join(self.names)
        if not self.inferred_in:
            return RowError(f'column "{name}" is not declared; the columns are {names}')
        return RowError(
            f'column "{name}" is not among the columns {names}, which were inferred from the first rows of'
            f" this group and are kept in {self.inferred_in}: delete that file and start again to have them inferred"
            " anew, or declare results.schema"
        )

    def arrays(self, rows: Sequence[tuple[Any, ...]]) -> Arrays:
        """Arrays of at least one row, of which each tuple has one or more. Raises RowError naming the first column that does
        not fit."""
        # To make tuples of single rows takes longer than is won.
        together = self._together(rows) if set(map(len, rows)) == {self.width} else None
        return self._by_column(rows) if together is None else together

    def _together(self, rows: Sequence[tuple[Any, ...]]) -> Arrays | None:
        """Arrays of all columns by one conversion, of a row in each tuple: for few rows that takes half as long. None where
        something cannot be converted: what it is, only a look at each column tells. Raises RowError for what the arrays
        tell."""
        try:
            for number in self._looked_at:
                self._check(number, _column(rows, number))
            whole: Any = pa.array(rows, self._row_type)
        except CONVERSION_ERRORS:
            return None
        if isinstance(whole, pa.ChunkedArray):
            return None

        converted: Arrays = whole.flatten()
        for number in self._judged:
            self._judge(number, converted[number], partial(_column, rows, number))
        return converted

    def _by_column(self, rows: Sequence[tuple[Any, ...]]) -> Arrays:
        """The same column by column. Raises RowError."""
        converted: Arrays = []
        # zip(*rows) would make an object for each row, and so have the collector look at all of them.
        values = list(chain.from_iterable(rows))
        for number in range(self.width):
            column = values[number :: self.width]
            try:
                array = self._array(number, column)
            except CONVERSION_ERRORS as error:
                if not self._nested[number]:
                    raise self._why(number, column, error) from error
                array, column = self._array_of_dicts(number, column)
            if isinstance(array, pa.ChunkedArray):
                raise self._misfit(number, "more than 2 GiB in the rows of one message")
            self._judge(number, array, column.copy)
            converted.append(array)
        return converted

    def _array(self, number: int, column: list[Any]) -> Any:
        """Raises LossError, and whatever Arrow or a value raises."""
        self._check(number, column)
        return pa.array(column, self._fields[number].type)

    def _array_of_dicts(self, number: int, column: list[Any]) -> tuple[Any, list[Any]]:
        """The array of a nested column with dicts for its structs, and these. Raises RowError."""
        try:
            column = as_dicts(self._fields[number].type, column)
            return self._array(number, column), column
        except CONVERSION_ERRORS as error:
            raise self._why(number, column, error) from error

    def _why(self, number: int, column: list[Any], error: Exception) -> RowError:
        """What is wrong with a column that raised an error, as far as its values tell; what they run may raise again."""
        if isinstance(error, LossError):
            return self._misfit(number, str(error))
        if isinstance(error, RecursionError):
            return self._misfit(number, ENDLESS)
        words = ""
        try:
            words = reason(column, self._fields[number].type, check_of) or str(error)
        except MemoryError as short:
            error = short
        except CONVERSION_ERRORS:
            pass
        return self._misfit(number, words or type(error).__name__, error)

    def checked(self, batch: Any) -> Any:
        """A batch that `fit_arrow` or `joined` made, once its arrays were looked at. Raises RowError."""
        for number in self._judged:
            self._judge(number, batch.column(number))
        hiding = {number: column for number in self._not_null_within if hides_nulls(column := batch.column(number))}
        if not hiding:
            return batch
        return self._batch_of([
            self._made_anew(number, column) if number in hiding else column for number, column in enumerate(batch.columns)
        ])  # fmt: skip

    def _made_anew(self, number: int, array: Any) -> Any:
        try:
            return pa.array(array.to_pylist(), array.type)
        except CONVERSION_ERRORS as error:
            raise self._misfit(number, str(error), error) from error

    def _judge(self, number: int, array: Any, given: Callable[[], list[Any]] | None = None) -> None:
        """Look at a column's array, in a few calls for a block of rows, whatever their number. Raises RowError for a null
        where none may be, for what is too large for its type or for Python, and for what no folder can be named by.
        Without what was `given`, its floats are taken to be that."""
        fault = ""
        if number in self._not_null and (null := null_in(self._fields[number], array)):
            fault = f"{null}, but declared not null"
        elif number in self._times and has_extreme_time(array):
            fault = NO_TIME
        elif given is not None and number in self._floats and self._became_infinite(number, array, given):
            fault = _INFINITE
        elif number in self._folder_columns:
            fault = self._folder_fault(number, array)
        if fault:
            raise self._misfit(number, fault)

    def _became_infinite(self, number: int, array: Any, given: Callable[[], list[Any]]) -> bool:
        try:
            return became_infinite(array, lambda kind: pa.array(given(), kind))
        except CONVERSION_ERRORS as error:  # a 32-bit scalar of Arrow's is no double
            raise self._why(number, given(), error) from error

    def _folder_fault(self, number: int, array: Any) -> str:
        """What is wrong with a value that the table is partitioned by; empty where nothing is."""
        values = array.unique().to_pylist()
        return next(filter(None, (self._folders.fault(self.names[number], value) for value in values)), "")

    def _check(self, number: int, column: list[Any]) -> None:
        """Raise LossError for what Arrow would lose in silence."""
        if (check := self._checks[number]) is not None:
            check(column)

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """As `arrays`, in a RecordBatch. There may be scalars of Arrow in the rows, whose bytes it takes on trust, too."""
        return self._validate(self._batch_of(self.arrays(rows)), full=True)

    def _batch_of(self, arrays: Arrays) -> Any:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def fit_arrow(self, table: Any) -> Any:
        """A RecordBatch or Table, cast to the declared types, as a RecordBatch in memory of its own: `pa.array` of a numpy
        array does not copy it, and the handler may fill it anew. What only the arrays tell is for `checked`. Raises
        RowError."""
        self._validate(table)
        try:
            return self._fitted(table)
        except pa.ArrowException as error:  # nested offsets that point outside are found by the copy alone
            raise refused(f"a broken Arrow batch: {error}", error) from error

    def _fitted(self, table: Any) -> Any:
        known, schema = self._as_declared, table.schema
        if known is not None and isinstance(table, pa.RecordBatch) and schema.equals(known[0]):
            return self._validate(pa.concat_batches([table, known[1]]), full=True)
        converted = self._validate(self._batch_of(_copied(self._cast(table))), full=True)
        if schema.names == self.names and schema.types == [field.type for field in self._fields]:
            self._as_declared = schema, pa.RecordBatch.from_pylist([], schema=schema)
        return converted

    def _validate(self, table: Any, *, full: bool = False) -> Any:
        """The table, in which Arrow finds nothing broken. `full`: also within its buffers; of a copy, as a slice of nested
        values has all of theirs. Raises RowError."""
        try:
            table.validate(full=full)
        except pa.ArrowException as error:
            for name, column in zip(table.schema.names, table.columns, strict=True):
                if name in self._name_set and (fault := _fault_in(column)):
                    raise self._misfit(self.names.index(name), fault) from error
            raise refused(f"a broken Arrow batch: {error}", error) from error
        return table

    def joined(self, parts: list[Any]) -> Any:
        """Batches of these columns as one. Raises RowError."""
        if len(parts) == 1:
            return parts[0]
        with contextlib.suppress(pa.ArrowException):  # their schemas may differ in what is null or noted in them
            return pa.concat_batches(parts)
        try:
            columns = [pa.concat_arrays(list(each)) for each in zip(*[part.columns for part in parts], strict=True)]
        except pa.ArrowException as error:
            raise refused(f"the rows cannot be joined: {error}", error) from error
        return self._batch_of(columns)

    def _cast(self, table: Any) -> Arrays:
        """The same column by column. Raises RowError."""
        names = table.schema.names
        unknown = [name for name in names if name not in self._name_set]
        if unknown:
            raise self._undeclared(unknown[0])
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RowError(f'column "{twice}" is given twice: each has one name')
        if isinstance(table, pa.Table):
            table = table.combine_chunks()
        converted: Arrays = []
        for number, field in enumerate(self._fields):
            if field.name not in names:
                converted.append(pa.nulls(table.num_rows, field.type))  # `checked` makes anew what hides nulls
                continue
            given: Any = table.column(field.name)
            if isinstance(given, pa.ChunkedArray):
                given = _single_chunk(given)
            converted.append(given if given.type == field.type else self._cast_column(number, given))
        return converted

    def _cast_column(self, number: int, given: Any) -> Any:
        """An array as the declared type. Raises RowError."""
        kind = self._fields[number].type
        try:
            check_cast(given.type, kind)
            # A cast trusts indices and offsets.
            if fault := self._fault_in_given(given):
                raise LossError(fault)
            array = given.cast(kind)
            if makes_other_decimals(given, array):
                raise LossError(_OTHER_DECIMAL)
        except CONVERSION_ERRORS as error:
            source = "" if str(given.type) in str(error) else f"given as Arrow's {given.type}: "
            raise self._misfit(number, f"{source}{error}", error) from error
        if number in self._floats and became_infinite(array, given.cast):
            raise self._misfit(number, _INFINITE)
        return array

    def _fault_in_given(self, given: Any) -> str:
        """What is broken within an array that is to be cast; empty where nothing is."""
        if not pa.types.is_dictionary(given.type):
            return _fault_in(_copied([given])[0] if pa.types.is_nested(given.type) else given)
        words = given.dictionary
        if _is_same(words, self._sound_dictionary):
            return _fault_in(pa.DictionaryArray.from_arrays(given.indices, pa.nulls(len(words)), safe=False))
        fault = _fault_in(given)
        if not fault:
            self._sound_dictionary = words
        return fault

    def _misfit(self, number: int, reason: str, error: Exception | None = None) -> RowError:
        return refused(f"column {to_ddl(pa.schema([self._fields[number]]))}: {reason}", error)


def _column(rows: Sequence[tuple[Any, ...]], number: int) -> list[Any]:
    """The values of a column, of one row in each tuple."""
    return list(map(operator.itemgetter(number), rows))


def _unset(error: AttributeError) -> RowError:
    return RowError(f"a field of the row has no value: {error}")


def _row_of(pick: Callable[[Any], Any], width: int) -> Callable[[Any], tuple[Any, ...]]:
    """A getter of several names gives a tuple, one of a single name its bare value."""
    return pick if width > 1 else lambda row: (pick(row),)


def _copied(arrays: Arrays) -> Arrays:
    """Copies of arrays. Only the values of a dictionary are shared; none of the declared types is one."""
    return [pa.concat_arrays([array, array.slice(0, 0)]) for array in arrays]


def _single_chunk(array: Any) -> Any:
    """A column of a table, whose chunks were combined, as the one array that nested values are looked into by."""
    if array.num_chunks == 0:
        return pa.array([], array.type)
    if array.num_chunks > 1:
        raise RowError("more than 2 GiB in the rows of one message")
    return array.chunk(0)


def _is_same(words: Any, known: Any) -> bool:
    """Whether both are the same memory, taken for an array of strings in the same way."""
    if (
        known is None
        or words.type != known.type
        or not (pa.types.is_string(known.type) or pa.types.is_large_string(known.type))
    ):
        return False
    one, other = ([each and (each.address, each.size) for each in array.buffers()] for array in (words, known))
    return bool((len(words), words.offset, one) == (len(known), known.offset, other))


def _is_nested(kind: Any) -> bool:
    return bool(pa.types.is_nested(kind))


def _fault_in(array: Any) -> str:
    """What is broken within an array; empty where nothing is."""
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        return _NO_UTF_8 if "UTF8" in str(error) else f"a broken Arrow array: {error}"
    return ""


def _always(_value: Any) -> bool:
    return True


def _sure_values(field: Any, folders: FolderNames) -> dict[type, Callable[[Any], bool]]:
    """By the class of a value of the column: whether it is one of which Arrow loses nothing and that it never refuses."""
    kind, sure = field.type, dict[type, Callable[[Any], bool]]()
    if field.name in folders.columns:
        return sure
    if pa.types.is_signed_integer(kind):
        end = 1 << kind.bit_width - 1
        sure[int] = lambda value: -end <= value < end
    elif pa.types.is_string(kind):
        sure[str] = lambda value: len(value) < _SURE_MAX and value.isascii()
    elif pa.types.is_binary(kind):
        sure[bytes] = lambda value: len(value) < _SURE_MAX
    elif pa.types.is_boolean(kind):
        sure[bool] = _always
    elif pa.types.is_float64(kind):
        sure[float] = _always
    if sure and field.nullable:
        sure[NONE_TYPE] = _always
    return sure
