"""Copies of what a handler may change once the worker has taken its row: it is called again, or its generator goes on. Pure.

What a class's copy would be, is known here of a few classes only. Of any other value the reference must not be kept either:
who gets an UnknownValueError converts the row at once, or fails where nothing tells yet what the row is to become.
"""

from __future__ import annotations

import array
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import numbers
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sized, ValuesView
from typing import Any, Final, cast

import pyarrow

from ..remoting.errors import RocketcrewError
from .ddl import fields_of
from .message import Message

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

NONE_TYPE: Final = type(None)
IMMUTABLE: Final = frozenset(
    {bool, bytes, datetime.date, datetime.datetime, decimal.Decimal, float, int, str, NONE_TYPE}
)  # fmt: skip
_LASTING: Final[frozenset[type]] = frozenset({bytes, NONE_TYPE})
"""Of a column of lists, dicts or buffers, what needs no copy."""
_LASTING_TEXT: Final[frozenset[type]] = _LASTING | {str}
"""The same of a column of strings: Arrow takes any buffer for one."""
NUMPY: Final[Any] = sys.modules.get("numpy")  # imported by Arrow where it is installed
_LASTING_INTEGER: Final[frozenset[type]] = frozenset({int, NONE_TYPE}) | {
    getattr(NUMPY, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64) if NUMPY is not None
}
"""And of integers: Arrow takes whatever has an `__index__`."""
_DICTS: Final[frozenset[type]] = frozenset({dict, OrderedDict, defaultdict, Counter})
"""Arrow takes the entries that they have as dicts."""
_OF_HASHABLE: Final[frozenset[type]] = frozenset({set, frozenset, array.array})
"""Their elements cannot be changed."""
_NO_ENTRIES: Final[dict[Any, Any]] = {}
_SCALARS: Final = (str, bytes, numbers.Number, datetime.date)
_NO_ROWS: Final = (
    *_SCALARS, NONE_TYPE, datetime.time, datetime.timedelta, uuid.UUID, enum.Enum,
    *(getattr(NUMPY, name) for name in ("bool_", "datetime64") if NUMPY is not None),
)  # fmt: skip
"""What can be no row, and holds none."""
_HOLD_ALL: Final[frozenset[Any]] = frozenset(
    {list, tuple, set, frozenset, deque, type(_NO_ENTRIES.keys()), type(_NO_ENTRIES.values())}
)
_EMPTY_OF: Final = frozenset({"builtins", "collections", "array", "numpy", "pandas", "polars", "pyarrow"})
"""Of what these define something empty has no rows. Of a class of the user's it may be a row all the same."""


ENDLESS: Final = "a value that contains itself, or is nested too deeply"
"""What Python has a RecursionError for, which says nothing of a row."""


class RowError(RocketcrewError):
    """A handler returned something that is no row, or a row that does not fit the columns."""


def refused(words: str, error: Exception | None) -> RowError:
    """For rows that could not be converted, by `error`: `words` say why, unless memory was short, for which no value is at
    fault."""
    return RowError("not enough memory to convert its rows" if isinstance(error, MemoryError) else words)


def endless(row: object, copy: Callable[[Any], object]) -> RowError:
    """For a row of which `copy` has raised a RecursionError: with the column, where that is known by now."""
    given: Any = row
    values: dict[Any, Any] = {}
    if issubclass(type(row), tuple) and given:  # with its message
        given = given[-1]
    if issubclass(type(given), dict):
        values = given
    elif dataclasses.is_dataclass(given):
        values = {field.name: getattr(given, field.name, None) for field in dataclasses.fields(given)}
    for name, value in values.items():
        try:
            copy(value)
        except RecursionError:
            return RowError(f'column "{name}": {ENDLESS}')
        except Exception:  # noqa: BLE001, S112  its row has failed already, for another value
            continue
    return RowError(f"the row has {ENDLESS}")


class UnknownValueError(Exception):
    """A value of a class that may be changed later, in a way that is not known here."""


def holds_all(rows: object) -> bool:
    """All rows are there at once. Of any other iterable the handler's code may run between two of them, and fill the same
    memory again: each is to be taken before the next is asked for."""
    return rows.__class__ in _HOLD_ALL


def to_the_end(rows: Iterable[Any]) -> Generator[Any, None, None]:
    """What is iterated, one by one. What a generator returns at its end is no row: an exception is raised, as it is when a
    plain function returns it. Where no row can be in it, it is left out: a count, several in a tuple, something empty. Raises
    RowError for anything else, which nobody would ever see."""
    returned = yield from cast("Generator[Any, None, object]", rows)
    if isinstance(returned, BaseException):
        raise returned
    if not _has_no_rows(returned):
        raise RowError(
            f"what the handler's rows ended with ({type(returned).__name__}) would be lost: yield rows and Sends, and return"
            " nothing, a count, or an exception such as Retry. A function that returns a Commit or a BatchResult has no yield"
        )


def _has_no_rows(returned: object) -> bool:
    if isinstance(returned, _NO_ROWS):
        return True
    if str(type(returned).__module__).partition(".")[0] in _EMPTY_OF:
        with contextlib.suppress(TypeError):  # an array without a length
            if len(cast("Sized", returned)) == 0:
                return True
    return returned.__class__ in (list, tuple, set, frozenset) and all(
        isinstance(each, _NO_ROWS) for each in cast("Iterable[object]", returned)
    )


def lasting(kind: Any) -> frozenset[type]:
    """Types of the column's usual values that nobody changes; empty where no value can be changed."""
    if pa.types.is_string(kind):
        return _LASTING_TEXT
    if pa.types.is_integer(kind):
        return _LASTING_INTEGER
    return _LASTING if pa.types.is_nested(kind) or pa.types.is_binary(kind) else frozenset()


def copier(kind: Any) -> Callable[[Any], Any]:
    """What copies a value of this type, see `copy_of`."""
    if not _has_struct(kind):
        return copy_of
    if pa.types.is_struct(kind):
        fields: dict[Any, Callable[[Any], Any]] = {field.name: copier(field.type) for field in fields_of(kind)}
        return lambda value: _copy_dict(_named(value, fields), lambda name: fields.get(name, copy_of))
    if pa.types.is_map(kind):
        items = copier(kind.item_type)
        return lambda value: _copy_dict(value, lambda _name: items)
    each = copier(kind.value_type)
    return lambda value: _copy_list(value, each)


def _has_struct(kind: Any) -> bool:
    """Arrow looks at the first value of a struct to see how all of them are given: what is no dict is converted alone."""
    if pa.types.is_map(kind):
        return _has_struct(kind.item_type) or _has_struct(kind.key_type)
    return bool(pa.types.is_struct(kind) or (pa.types.is_list(kind) and _has_struct(kind.value_type)))


def _named(value: Any, fields: Iterable[Any]) -> Any:
    """A dict of a tuple that has a struct's fields in their order, or names of its own, where it is one."""
    try:
        return dict(zip(names_of(value, fields), value, strict=True)) if issubclass(value.__class__, tuple) else value
    except ValueError:
        return value


def names_of(value: tuple[Any, ...], fields: Iterable[Any]) -> Iterable[Any]:
    """What the values of a tuple are named: a NamedTuple has names, any other is in the order of the fields."""
    return getattr(value.__class__, "_fields", fields)


def as_dicts(kind: Any, values: list[Any]) -> list[Any]:
    """The values of a column with dicts for its structs, where they are of classes that are known here: Arrow takes dicts and
    tuples in one column for nothing, and a NamedTuple for its values without the names."""
    return [_as_dicts(value, each) for each in [copier(kind)] for value in values] if _has_struct(kind) else values


def _as_dicts(value: Any, copy: Callable[[Any], Any]) -> Any:
    try:
        return copy(value)
    except UnknownValueError:
        return value


def _copy_dict(value: Any, copier: Callable[[Any], Callable[[Any], Any]]) -> Any:
    if value is None:
        return None
    kind: Any = value.__class__
    if kind not in _DICTS:
        raise UnknownValueError
    return {name: copier(name)(each) for name, each in value.items()}


def _copy_list(value: Any, copy: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    if value.__class__ is not list:
        raise UnknownValueError
    return [copy(each) for each in value]


def plain(value: Any) -> Any:
    """A dict for each dataclass in it, at any depth. Of its other values none is copied, as `dataclasses.asdict` would: it
    makes other counts of a Counter, and no copy of a defaultdict or a memoryview."""
    kind: Any = value.__class__
    if kind in IMMUTABLE:
        return value
    if dataclasses.is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(kind)}
    if issubclass(kind, list):
        return [plain(each) for each in value]
    if issubclass(kind, tuple):
        return _tuple_of(kind, map(plain, value))
    if issubclass(kind, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def _tuple_of(kind: Any, values: Iterable[Any]) -> tuple[Any, ...]:
    """A NamedTuple stays one."""
    return getattr(kind, "_make", tuple)(values)


def copy_of(value: Any) -> Any:
    """The value as it is now, in a form of which Arrow makes the same. Raises UnknownValueError."""
    kind = value.__class__
    if kind in IMMUTABLE:
        return value
    if kind is list:
        # Looked at by their classes, most lists need no look at each value.
        return value[:] if IMMUTABLE.issuperset(map(type, value)) else [copy_of(each) for each in value]
    if kind is tuple:
        return value if IMMUTABLE.issuperset(map(type, value)) else tuple([copy_of(each) for each in value])
    if kind in _DICTS:
        if kind is dict and IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copy_of(each) for key, each in value.items()}
    if kind is bytearray:
        return value[:]
    if isinstance(value, _SCALARS):
        return value
    if kind in _OF_HASHABLE:
        return copy.copy(value)
    if kind is deque:
        return deque(map(copy_of, value))
    if kind is memoryview:
        return _copied_view(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and (value.ndim == 1 or not value.dtype.hasobject):
        return list(map(copy_of, value)) if value.dtype.hasobject else value.copy()
    raise UnknownValueError


def _copied_view(view: memoryview) -> Any:
    copied: Any = memoryview(view.tobytes())
    if view.format == "B" and view.ndim == 1:
        return copied
    try:
        return copied.cast(view.format, view.shape)
    except (TypeError, ValueError):  # of this form it has no elements, and so is of use only for its bytes
        return copied


def listed(rows: Iterable[Any]) -> list[Any]:
    """The rows, each as it was when it was given: a copy where the handler may fill the same memory again."""
    return list(rows if holds_all(rows) else map(_row_as_it_is, to_the_end(rows)))


def _row_as_it_is(row: Any) -> Any:
    try:
        return _as_it_is(row)
    except RecursionError as error:
        raise endless(row, _as_it_is) from error


def _as_it_is(row: Any) -> Any:
    """A copy of a row, an Arrow batch, or a row in a tuple with its message. Raises RowError where there is none.

    An error in the place of a row stays itself: a copy would ask its class's `__init__` anew, with other arguments."""
    if isinstance(row, Message | BaseException):
        return row
    if isinstance(row, pa.RecordBatch | pa.Table):
        return _copied_table(row)
    with contextlib.suppress(UnknownValueError):
        return copy_of(row)
    if row.__class__ is dict:
        return {name: _as_it_is(value) for name, value in row.items()}
    kind: Any = row.__class__
    if issubclass(kind, tuple):  # also a named one: of a message with its row
        return _tuple_of(kind, map(_as_it_is, row))
    if issubclass(kind, ValuesView):
        return list(map(_as_it_is, row))
    try:
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            return _copied_instance(row)
        return copy.deepcopy(row)
    except (RowError, RecursionError):
        raise
    except Exception as error:
        name = type(row).__name__
        words = f"{name} cannot be copied, and may change when the next row is asked for: return all rows in a list"
        raise refused(words, error) from error


def _copied_instance(row: Any) -> Any:
    """Of a dataclass, field by field: of a memoryview there is no deep copy."""
    copied = copy.copy(row)
    for field in dataclasses.fields(row):
        if hasattr(row, field.name):
            object.__setattr__(copied, field.name, _as_it_is(getattr(row, field.name)))
    return copied


def _copied_table(table: Any) -> Any:
    """In memory of its own, also the values of dictionaries, which are shared unless they are written. One that is broken is
    left to `fit_arrow`, which tells of it: Arrow ends the process where it writes one."""
    batches: list[Any] = table.to_batches() if isinstance(table, pa.Table) else [table]
    try:
        table.validate()
        for number, batch in enumerate(batches):
            # A look at a slice sees all of its nested values, and not where it cuts them.
            batches[number] = pa.concat_batches([batch, batch.slice(0, 0)])
            batches[number].validate()
    except pa.ArrowException:
        return table
    sink: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
