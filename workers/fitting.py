"""Fit what a handler returns to the declared columns: rows and Arrow batches -> arrays, or an error naming the column.

Arrow's own conversion is trusted except where it loses data without a word: a float in an integer column is cut off, a key
that a struct does not have vanishes, and a number in a column of times counts as so many microseconds or days, whatever its
unit was. The same within nested values, and a text or a dict that would become a list of its letters or keys. All are errors
here. What only the converted arrays tell, at any depth: a null where none may be, a time that is outside of the years that
Python and Spark have, a number that became infinite in 32 bits. And a value that no folder of the table can be named by.
Of Arrow batches this is asked once for a block of them (`Columns.checked`), as a few calls cost more than a small batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import inspect
import numbers
import operator
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import pyarrow

from ..conf.folders import NO_FOLDERS, FolderNames
from ..remoting.errors import RocketcrewError
from .array_faults import (
    Arrays,
    GivenAs,
    became_infinite,
    has_extreme_time,
    has_floats,
    has_not_null,
    has_times,
    hides_nulls,
    null_in,
    parts_of,
)
from .ddl import fields_of, to_ddl
from .misfits import CONVERSION_ERRORS, check_entries, reason

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
NONE_TYPE: Final = type(None)
IMMUTABLE: Final = frozenset(
    {bool, bytes, datetime.date, datetime.datetime, decimal.Decimal, float, int, str, NONE_TYPE}
)  # fmt: skip
_LASTING: Final[frozenset[type]] = frozenset({bytes, NONE_TYPE})
"""Of a column of lists, dicts or buffers, what needs no copy."""
_LASTING_TEXT: Final[frozenset[type]] = _LASTING | {str}
"""The same of a column of strings: Arrow takes any buffer for one."""
_TIMES: Final = (NONE_TYPE, datetime.date, str, pa.Scalar)
"""In a column of times: these, and what Arrow itself refuses when it is of no use there."""
_SURE_MAX: Final = 1 << 20
"""Bytes of a text: a block of such is far from Arrow's 2 GiB."""
DATACLASSES_MAX: Final = 1_000
"""Row classes whose fields are remembered; a handler that makes classes without end is only slower."""
_NO_TIME: Final = "a time outside of the years 1 to 9999 (in UTC), which neither Python nor Spark can show: return None"
_INFINITE: Final = "a number that is infinite in 32 bits: declare the column double"
_NO_UTF_8: Final = (
    "its value names a folder (spark.partition_by), and is a string that is no UTF-8: decode it before, as by"
    " data.decode(errors='replace')"
)


class RowError(RocketcrewError):
    """A handler returned something that is no row, or a row that does not fit the columns."""


def check_ran(result: Any) -> None:
    """Raise RowError for what a handler returned and nothing runs: a coroutine or another awaitable, an async generator."""
    given: object = result
    if not (inspect.isawaitable(given) or isinstance(given, AsyncIterator)):
        return
    kind = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()  # or Python warns that it was never awaited
    raise RowError(
        f"the handler returned {kind}, which was not run: only what a handler declared with `async def` and without `yield`"
        " does is awaited"
    )


class LossError(TypeError):
    """A value of which Arrow would lose something in silence."""


class UnknownValueError(Exception):
    """A value of a class that may be changed later, in a way that is not known here."""


class Columns:
    """The declared columns, prepared for fast extraction of row values.

    The values of several rows are one tuple, row by row: it is one object for the collector to look at, and a column of it is
    a slice.
    """

    def __init__(self, schema: pyarrow.Schema, folders: FolderNames = NO_FOLDERS) -> None:
        """`folders`: those that the table makes of values, by `spark.partition_by`."""
        self.schema = schema
        self.names: list[str] = list(schema.names)
        self._fields = fields_of(schema)
        self._name_set = frozenset(self.names)
        kinds: list[Any] = [field.type for field in self._fields]
        self._nested = [_is_nested(kind) for kind in kinds]
        self._checks = [_CHECKS.get(_family(kind)) for kind in kinds]
        self._looked_at = [number for number in range(len(kinds)) if self._nested[number] or self._checks[number]]
        """Columns of which Arrow would lose something in silence."""
        self._row_type: Any = pa.struct([(field.name, field.type) for field in self._fields])
        self._mutable = [
            (number, lasting, _copier(kind)) for number, kind in enumerate(kinds) if (lasting := _lasting(kind))
        ]
        """Columns whose values may be lists, dicts or buffers, which the handler may change when it is called again; types of
        which none is such a value, and what copies one."""
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
            return self._values_of_dict(dataclasses.asdict(row))
        if type(row).__name__ == "Send":
            raise RowError(UNDECLARED)
        raise RowError(f"a row must be a dict or a dataclass instance, not {type(row).__name__}")

    def _attributes(self, row: object) -> tuple[Any, ...]:
        try:
            return self._pick_attributes(row)
        except AttributeError as error:
            raise RowError(f"a field of the row has no value: {error}") from error

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
                for place, lasting, _ in mutable:
                    if values[place].__class__ not in lasting:
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
            lasting.issuperset(map(type, map(operator.itemgetter(place), picked)))
            for place, lasting, _ in self._mutable
        ):
            return picked
        taken = list(map(self._taken_or_none, picked))
        return None if None in taken else cast("list[tuple[Any, ...]]", taken)

    def _picked(self, rows: list[Any]) -> list[tuple[Any, ...]] | None:
        kinds = set(map(type, rows))
        if len(kinds) > 1:
            return None
        with contextlib.suppress(Exception):  # a name that is missing, or an attribute: `values_of` says which
            if kinds == {dict}:
                picked = list(map(self._pick_items, rows))
                # None has fewer than these names, so one that has more makes the sum larger.
                return picked if sum(map(len, rows)) == len(rows) * self.width else None
            if self._dataclasses.get(kinds.pop()):
                return list(map(self._pick_attributes, rows))
        return None

    def taken(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values with a copy of each that can be changed. Raises UnknownValueError."""
        found: list[Any] | None = None
        for place, lasting, copy in self._mutable:
            column = values[place :: self.width]
            if not lasting.issuperset(map(type, column)):
                found = list(values) if found is None else found
                found[place :: self.width] = [value if value.__class__ in lasting else copy(value) for value in column]
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
            raise RowError(f'column "{unknown[0]}" is not declared; the columns are {", ".join(self.names)}')
        return tuple([row.get(name) for name in self.names])

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
                self._check(number, list(map(operator.itemgetter(number), rows)))
            whole: Any = pa.array(rows, self._row_type)
        except CONVERSION_ERRORS:
            return None
        if isinstance(whole, pa.ChunkedArray):
            return None

        def given_as(number: int, kind: Any) -> Any:
            return pa.array(list(map(operator.itemgetter(number), rows)), kind)

        converted: Arrays = whole.flatten()
        for number in self._judged:
            self._judge(number, converted[number], partial(given_as, number))
        return converted

    def _by_column(self, rows: Sequence[tuple[Any, ...]]) -> Arrays:
        """The same column by column. Raises RowError."""
        converted: Arrays = []
        # zip(*rows) would make an object for each row, and so have the collector look at all of them.
        values = list(chain.from_iterable(rows))
        for number, field in enumerate(self._fields):
            column = values[number :: self.width]
            try:
                self._check(number, column)
                array: Any = pa.array(column, field.type)
            except RowError:
                raise
            except CONVERSION_ERRORS as error:
                raise self._misfit(number, reason(column, field.type) or str(error) or type(error).__name__) from error
            if isinstance(array, pa.ChunkedArray):
                raise self._misfit(number, "more than 2 GiB in the rows of one message")
            self._judge(number, array, partial(pa.array, column))
            converted.append(array)
        return converted

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
            raise self._misfit(number, str(error)) from error

    def _judge(self, number: int, array: Any, given_as: GivenAs | None = None) -> None:
        """Look at a column's array, in a few calls for a block of rows, whatever their number. Raises RowError for a null
        where none may be, for what is too large for its type or for Python, and for what no folder can be named by.
        Without `given_as` its floats are taken to be what was given."""
        fault = ""
        if number in self._not_null and (null := null_in(self._fields[number], array)):
            fault = f"{null}, but declared not null"
        elif number in self._times and has_extreme_time(array):
            fault = _NO_TIME
        elif given_as is not None and number in self._floats and became_infinite(array, given_as):
            fault = _INFINITE
        elif number in self._folder_columns:
            fault = self._folder_fault(number, array)
        if fault:
            raise self._misfit(number, fault)

    def _folder_fault(self, number: int, array: Any) -> str:
        """What is wrong with a value that the table is partitioned by; empty where nothing is."""
        try:
            values = array.unique().to_pylist()
        except UnicodeDecodeError:  # Arrow takes the bytes of its own strings as they are
            return _NO_UTF_8
        return next(filter(None, (self._folders.fault(self.names[number], value) for value in values)), "")

    def _check(self, number: int, column: list[Any]) -> None:
        """Raise RowError for what Arrow would lose in silence."""
        check = self._checks[number]
        try:
            if self._nested[number]:
                check_entries(column, self._fields[number].type)
                _check_nested(column, self._fields[number].type)
            elif check is not None:
                check(column)
        except LossError as error:
            raise self._misfit(number, str(error)) from None

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """As `arrays`, in a RecordBatch."""
        return self._batch_of(self.arrays(rows))

    def _batch_of(self, arrays: Arrays) -> Any:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def fit_arrow(self, table: Any) -> Any:
        """A RecordBatch or Table, cast to the declared types, as a RecordBatch in memory of its own: `pa.array` of a numpy
        array does not copy it, and the handler may fill it anew. What only the arrays tell is for `checked`. Raises
        RowError."""
        if not isinstance(table, pa.RecordBatch):
            return self._batch_of(_copied(self._cast(table)))
        known, schema = self._as_declared, table.schema
        if known is not None and schema.equals(known[0]):
            return pa.concat_batches([table, known[1]])
        converted = self._batch_of(_copied(self._cast(table)))
        if schema.names == self.names and schema.types == [field.type for field in self._fields]:
            self._as_declared = schema, pa.RecordBatch.from_pylist([], schema=schema)
        return converted

    def joined(self, parts: list[Any]) -> Any:
        """Batches of these columns as one. Raises RowError."""
        if len(parts) == 1:
            return parts[0]
        with contextlib.suppress(pa.ArrowException):  # their schemas may differ in what is null or noted in them
            return pa.concat_batches(parts)
        try:
            columns = [pa.concat_arrays(list(each)) for each in zip(*[part.columns for part in parts], strict=True)]
        except pa.ArrowException as error:
            raise RowError(f"the rows cannot be joined: {error}") from error
        return self._batch_of(columns)

    def _cast(self, table: Any) -> Arrays:
        """The same column by column. Raises RowError."""
        names = table.schema.names
        unknown = [name for name in names if name not in self._name_set]
        if unknown:
            raise RowError(f'column "{unknown[0]}" is not declared; the columns are {", ".join(self.names)}')
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
            _check_cast(given.type, kind)
            array = given.cast(kind)
        except CONVERSION_ERRORS as error:
            source = "" if str(given.type) in str(error) else f"given as Arrow's {given.type}: "
            raise self._misfit(number, f"{source}{error}") from error
        if number in self._floats and became_infinite(array, given.cast):
            raise self._misfit(number, _INFINITE)
        return array

    def _misfit(self, number: int, reason: str) -> RowError:
        return RowError(f"column {to_ddl(pa.schema([self._fields[number]]))}: {reason}")


def _row_of(pick: Callable[[Any], Any], width: int) -> Callable[[Any], tuple[Any, ...]]:
    """A getter of several names gives a tuple, one of a single name its bare value."""
    return pick if width > 1 else lambda row: (pick(row),)


def _copied(arrays: Arrays) -> Arrays:
    """Copies of arrays of declared types, of which none is a dictionary: its values would be shared."""
    return [pa.concat_arrays([array, array.slice(0, 0)]) for array in arrays]


def _single_chunk(array: Any) -> Any:
    """A column of a table, whose chunks were combined, as the one array that nested values are looked into by."""
    if array.num_chunks == 0:
        return pa.array([], array.type)
    if array.num_chunks > 1:
        raise RowError("more than 2 GiB in the rows of one message")
    return array.chunk(0)


def _is_nested(kind: Any) -> bool:
    return bool(pa.types.is_nested(kind))


def _lasting(kind: Any) -> frozenset[type]:
    """Types of the column's usual values that nobody changes; empty where no value can be changed."""
    if pa.types.is_string(kind):
        return _LASTING_TEXT
    return _LASTING if _is_nested(kind) or pa.types.is_binary(kind) else frozenset()


def _copier(kind: Any) -> Callable[[Any], Any]:
    """What copies a value of this type, see `copy_of`."""
    if not _has_struct(kind):
        return copy_of
    if pa.types.is_struct(kind):
        fields: dict[Any, Callable[[Any], Any]] = {field.name: _copier(field.type) for field in fields_of(kind)}
        return lambda value: _copy_dict(value, lambda name: fields.get(name, copy_of))
    if pa.types.is_map(kind):
        items = _copier(kind.item_type)
        return lambda value: _copy_dict(value, lambda _name: items)
    each = _copier(kind.value_type)
    return lambda value: _copy_list(value, each)


def _has_struct(kind: Any) -> bool:
    """Arrow looks at the first value of a struct to see how all of them are given: what is no dict is converted alone."""
    if pa.types.is_map(kind):
        return _has_struct(kind.item_type) or _has_struct(kind.key_type)
    return bool(pa.types.is_struct(kind) or (pa.types.is_list(kind) and _has_struct(kind.value_type)))


def _copy_dict(value: Any, copier: Callable[[Any], Callable[[Any], Any]]) -> Any:
    if value is None:
        return None
    if value.__class__ is not dict:
        raise UnknownValueError
    return {name: copier(name)(each) for name, each in value.items()}


def _copy_list(value: Any, copy: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    if value.__class__ is not list:
        raise UnknownValueError
    return [copy(each) for each in value]


def copy_of(value: Any) -> Any:
    """The value as it is now, of the same class, so that Arrow makes the same of it. Raises UnknownValueError."""
    kind = value.__class__
    if kind in IMMUTABLE:
        return value
    if kind is list:
        # Looked at by their classes, most lists need no look at each value.
        return value[:] if IMMUTABLE.issuperset(map(type, value)) else [copy_of(each) for each in value]
    if kind is tuple:
        return value if IMMUTABLE.issuperset(map(type, value)) else tuple([copy_of(each) for each in value])
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copy_of(each) for key, each in value.items()}
    if kind is bytearray:
        return value[:]
    if isinstance(value, str | bytes | numbers.Number):
        return value
    if kind is memoryview and value.format == "B" and value.ndim == 1:
        return memoryview(bytes(value))
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in "biuf":
        return value.copy()
    raise UnknownValueError


def _check_cast(given: Any, declared: Any) -> None:
    """Raise LossError where Arrow's cast of one type to the other would lose something in silence, at any depth."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if _family(declared) in ("time", "date") and pa.types.is_integer(given):
        _check_times([0])
    elif _family(declared) == "integer" and pa.types.is_temporal(given):
        raise LossError(f"expected an integer, got {given}, of which nobody would know the unit: cast it to int64")
    elif pa.types.is_decimal(declared) and pa.types.is_floating(given):
        raise LossError(f"expected a decimal, got {given}, of which digits would be lost: cast it to {declared}")
    elif pa.types.is_struct(given) and pa.types.is_struct(declared):
        fields = {field.name: field.type for field in fields_of(declared)}
        for field in fields_of(given):
            if field.name not in fields:
                raise LossError(_undeclared(field.name, fields))
            _check_cast(field.type, fields[field.name])
    elif given.num_fields == declared.num_fields:
        for own, wanted in zip(parts_of(given), parts_of(declared), strict=True):
            _check_cast(own.type, wanted.type)


def _undeclared(name: object, fields: Iterable[str]) -> str:
    return f'field "{name}" is not declared; the fields are {", ".join(fields)}'


def _check_integers(values: Iterable[Any]) -> None:
    for kind in set(map(type, values)):
        # An array of numpy has an __index__ whatever is in it.
        if kind is not int and kind is not NONE_TYPE and (not hasattr(kind, "__index__") or kind.__name__ == "ndarray"):
            raise LossError(
                f"expected an integer, got {kind.__name__}: return int(value), or declare the column as what it is"
            )


def _check_times(values: Iterable[Any]) -> None:
    """Raise LossError for what is no time: Arrow takes anything that can be made an int, as of floats and Decimals."""
    for kind in set(map(type, values)):
        if kind.__name__ == "NaTType":  # a datetime by its class
            raise LossError("expected a datetime or a date, got NaT: return None")
        # Arrow refuses any string, and of its own scalars and numpy's those of another type or unit.
        if issubclass(kind, _TIMES) or kind.__name__ == "datetime64":
            continue
        number = hasattr(kind, "__index__") or hasattr(kind, "__float__")
        raise LossError(
            f"expected a datetime or a date, got {kind.__name__}"
            + (
                ", whose unit nobody knows: convert it, as by datetime.fromtimestamp(milliseconds / 1000, UTC)"
                if number
                else ": return one"
            )
        )


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


def _family(kind: Any) -> str:
    """Types whose values are looked at before Arrow takes them."""
    if pa.types.is_integer(kind):
        return "integer"
    return "date" if pa.types.is_date(kind) else "time" if pa.types.is_timestamp(kind) else ""


_CHECKS: Final[dict[str, Callable[[Sequence[Any]], None]]] = {
    "integer": _check_integers, "time": _check_times, "date": _check_times,
}  # fmt: skip


def _check_nested(values: Iterable[Any], kind: Any) -> None:
    """What Arrow would lose in silence, at any depth of a nested column. Raises LossError."""
    present: list[Any] = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        names = [field.name for field in fields_of(kind)]
        dicts = [found for value in present if (found := _as_dict(value, names)) is not None]
        known = frozenset(names)
        for value in dicts:
            if not known.issuperset(value):
                raise LossError(_undeclared(next(name for name in value if name not in known), names))
        for field in fields_of(kind):
            _check_nested([value.get(field.name) for value in dicts], field.type)
    elif pa.types.is_map(kind):
        pairs: list[Any] = [pair for value in present for pair in (value.items() if hasattr(value, "items") else value)]
        _check_nested([key for key, _ in pairs], kind.key_type)
        _check_nested([item for _, item in pairs], kind.item_type)
    elif pa.types.is_list(kind):
        for given in set(map(type, present)):
            if issubclass(given, str | dict):
                raise LossError(f"expected a list, got {given.__name__}: return [value]")
        _check_nested([item for value in present for item in value], kind.value_type)
    elif _family(kind):
        _CHECKS[_family(kind)](present)


def _as_dict(value: Any, names: Sequence[str]) -> dict[Any, Any] | None:
    """A struct's value in each form that Arrow takes: a dict, a tuple in the fields' order, pairs; None for any other."""
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        given: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return dict(zip(names, given, strict=True)) if len(given) == len(names) else None
    try:
        return dict(value)
    except (TypeError, ValueError):
        return None
