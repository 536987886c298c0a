"""What Arrow would lose of a value, or of an array that it casts, without a word. Pure.

A float in an integer column is cut off, a key that a struct does not have vanishes, and a number in a column of times counts
as so many microseconds or days, whatever its unit was. A mask of numpy's vanishes, and its large unsigned numbers become
negative ones. A Decimal of very many places becomes zero, or ends the process. The same within nested values, and a text or a
dict that would become a list of its letters or keys, or a NamedTuple that has its values in another order. Of arrays that are
cast, what no row may have is refused as well: a text that reads like a number, a number that would count as true.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from math import inf, isinf
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow

from .array_faults import parts_of
from .copying import NONE_TYPE, names_of
from .ddl import fields_of
from .misfits import (
    DATETIME_OF_NUMPY,
    NO_TIME,
    LossError,
    check_entries,
    expected,
    is_missing,
    no_list,
    too_many_bits,
    too_many_digits,
)

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

Check = Callable[[Sequence[Any]], None]

_NUMPY_TIME: Final = "datetime64[us]"
_UNSIGNED: Final = ("uint64", "ulonglong")
_EXTENDED: Final = ("longdouble", "float128", "float96")
"""Names of numpy's classes."""
_LOOKED_AT: Final = ("u8", "f16", "f12")
"""Arrays of these numpy types are looked at element by element."""
_TIMES: Final = (NONE_TYPE, datetime.date, str, pa.Scalar)
"""In a column of times: these, and what Arrow itself refuses when it is of no use there."""
_INTEGERS: Final = (int, NONE_TYPE, pa.Scalar)
"""In a column of integers: of these Arrow loses nothing."""
_WRAPS: Final = 1 << 63
"""From here on Arrow takes an unsigned number for a negative one."""
_PLACES_MAX: Final = 38
"""By so many decimal places Arrow can move a point; by more it reads past its table of powers (apache/arrow#50964)."""
_PLACES_MAX_AS_INTEGER: Final = {32: 9, 64: 18}
"""The same of decimals of so many bits that are cast to integers."""
_DIGITS_MAX: Final = 39
"""More Arrow refuses in a Decimal, whatever they are."""
_PLAIN_TIMES: Final = (datetime.date, datetime.datetime)
_PLAIN_ZONES: Final = frozenset({id(None), id(datetime.UTC)})
_zone_of: Final = operator.attrgetter("tzinfo")


def check_cast(given: Any, declared: Any) -> None:
    """Raise LossError where Arrow's cast of one type to the other would lose something in silence or take what no row may
    have, at any depth."""
    given = _bare(given)
    family = family_of(declared)
    if pa.types.is_null(given):
        return
    if pa.types.is_list_view(given) or pa.types.is_large_list_view(given):
        raise LossError(
            f"expected {declared}, got {given}, of which Arrow's cast loses elements: give a list, as by"
            " pa.array(column.to_pylist(), pa.list_(…))"
        )
    if _is_text(given) != _is_text(declared) or (pa.types.is_boolean(declared) and not pa.types.is_boolean(given)):
        raise LossError(f"expected {declared}, got {given}: cast it before, in the way that is meant")
    if family in ("time", "date") and pa.types.is_integer(given):
        _check_times([0])
    elif (family in ("integer", "floating") or pa.types.is_decimal(declared)) and pa.types.is_boolean(given):
        raise LossError(f"expected {declared}, got {given}: cast it before, in the way that is meant")
    elif family == "integer" and pa.types.is_temporal(given):
        raise LossError(f"expected an integer, got {given}, of which nobody would know the unit: cast it to int64")
    elif pa.types.is_decimal(declared) and pa.types.is_floating(given):
        raise LossError(f"expected a decimal, got {given}, of which digits would be lost: cast it to {declared}")
    elif family == "floating" and pa.types.is_decimal(given):
        raise LossError(f"expected a number, got {given}, of which digits would be lost: cast it to {declared}")
    elif pa.types.is_decimal(given) and _is_beyond(given, declared):
        raise LossError(
            f"expected {declared}, got {given}, of which Arrow makes other numbers: give rows with Decimals"
        )
    elif pa.types.is_struct(given) and pa.types.is_struct(declared):
        _check_struct(given, declared)
    elif given.num_fields == declared.num_fields:
        for own, wanted in zip(parts_of(given), parts_of(declared), strict=True):
            check_cast(own.type, wanted.type)


def _is_beyond(given: Any, declared: Any) -> bool:
    """Whether Arrow would have to move the point of a decimal by more places than it can."""
    if pa.types.is_integer(declared):
        return not 0 <= given.scale <= _PLACES_MAX_AS_INTEGER.get(given.bit_width, _PLACES_MAX)
    return bool(pa.types.is_decimal(declared) and abs(given.scale - declared.scale) > _PLACES_MAX)


def _check_struct(given: Any, declared: Any) -> None:
    fields = {field.name: field.type for field in fields_of(declared)}
    seen: set[str] = set()
    for field in fields_of(given):
        if field.name not in fields:
            raise LossError(_undeclared(field.name, fields))
        if field.name in seen:
            raise LossError(f'field "{field.name}" is given twice: each has one name')
        seen.add(field.name)
        check_cast(field.type, fields[field.name])


def _bare(kind: Any) -> Any:
    """The type of the values, whatever they are encoded or named as."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _bare(kind.value_type)
    if not isinstance(kind, pa.BaseExtensionType):
        return kind
    return pa.bool_() if kind.extension_name == "arrow.bool8" else _bare(kind.storage_type)


def _is_text(kind: Any) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary,
            types.is_binary_view, types.is_fixed_size_binary,
        )
    )  # fmt: skip


def _undeclared(name: object, fields: Iterable[str]) -> str:
    return f'field "{name}" is not declared; the fields are {", ".join(fields)}'


def _check_integers(values: Iterable[Any]) -> None:
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        if issubclass(kind, _INTEGERS):
            continue
        of_kind = [value for value in values if type(value) is kind]
        if _hides_values(kind, of_kind):
            raise LossError(f"expected an integer, got {kind.__name__}, whose mask would be lost: return None")
        try:
            # That a class has an __index__ says little: arrays of numpy and torch have one, whatever is in them.
            list(map(operator.index, of_kind))
        except TypeError:
            remedy = "return int(value), or declare the column as what it is"
            raise LossError(expected("an integer", of_kind[0], remedy)) from None


def _check_times(values: Sequence[Any]) -> None:
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        if kind.__name__ == "datetime64":
            _check_units(value for value in values if type(value) is kind)
            continue
        _check_class_of_time(kind, values)
        if issubclass(kind, datetime.datetime):
            of_kind = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
            _check_years(kind, of_kind)
            _check_fractions(kind, of_kind)


def _check_dates(values: Sequence[Any]) -> None:
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        if kind.__name__ == "datetime64":
            raise LossError("expected a date, got datetime64: return value.astype('datetime64[D]').tolist()")
        _check_class_of_time(kind, values)
        _check_years(kind, values)


def _check_class_of_time(kind: Any, values: Sequence[Any]) -> None:
    """Raise LossError for what is no time: Arrow takes anything that can be made an int, as of floats and Decimals."""
    if kind.__name__ == "NaTType":  # a datetime by its class
        raise LossError("expected a datetime or a date, got NaT: return None")
    # Arrow refuses any string, and of its own scalars those of another type or unit.
    if issubclass(kind, _TIMES):
        return
    value, what = next(value for value in values if type(value) is kind), "a datetime or a date"
    if (hasattr(kind, "__index__") or hasattr(kind, "__float__")) and not is_missing(value):
        raise LossError(
            f"expected {what}, got {kind.__name__}, whose unit nobody knows: convert it, as by"
            " datetime.fromtimestamp(milliseconds / 1000, UTC)"
        )
    raise LossError(expected(what, value, "return one"))


def _check_units(values: Iterable[Any]) -> None:
    """Raise LossError for numpy's times of another unit: Arrow refuses them alone, and takes their numbers for microseconds
    where they are in an array."""
    for unit in {str(value.dtype) for value in values}:
        if unit != _NUMPY_TIME:
            raise LossError(f"expected a datetime, got {unit}: return {DATETIME_OF_NUMPY}")


def _check_years(kind: Any, values: Sequence[Any]) -> None:
    """Raise LossError for a year that only subclasses of Python's times have, as those of pandas: Arrow takes the one in the
    base, which is any."""
    if issubclass(kind, datetime.date) and kind not in _PLAIN_TIMES:
        years = [value.year for value in values if type(value) is kind]
        if min(years) < datetime.MINYEAR or max(years) > datetime.MAXYEAR:
            raise LossError(NO_TIME)


def _check_fractions(kind: Any, values: Sequence[Any]) -> None:
    """Raise LossError for fractions of a second that Arrow cuts off: nanoseconds, and what a zone's offset has of them."""
    if kind not in _PLAIN_TIMES and any(getattr(value, "nanosecond", 0) for value in values):
        raise LossError("a time with nanoseconds, where microseconds are kept: return value.floor('us')")
    if _PLAIN_ZONES.issuperset(map(id, map(_zone_of, values))):
        return
    for value in values:
        if value.tzinfo.__class__ is ZoneInfo:  # by its files, of whole seconds
            continue
        if (offset := value.utcoffset()) is not None and offset.microseconds:
            raise LossError("a time whose zone has fractions of a second, which are lost: return value.astimezone(UTC)")


def _check_decimals(kind: Any, values: Sequence[Any]) -> None:
    """Raise LossError for Decimals of so many digits or places that Arrow is not to be asked."""
    kinds: set[Any] = set(map(type, values))
    if not any(issubclass(each, decimal.Decimal) for each in kinds):
        return
    found = values if len(kinds) == 1 else [value for value in values if isinstance(value, decimal.Decimal)]
    exact = _exact(kind.scale)
    try:
        deque(map(exact, found), maxlen=0)
    except decimal.DecimalException:
        raise LossError(too_many_digits(next(value for value in found if not _goes(exact, value)), kind)) from None


def _goes(exact: Callable[[Any], Any], value: Any) -> bool:
    try:
        exact(value)
    except decimal.DecimalException:
        return False
    return True


@cache
def _exact(scale: int) -> Callable[[Any], Any]:
    """What raises DecimalException for a Decimal of too many digits, or with an exponent that is too small. One call for each
    value tells both; to ask a Decimal for its exponent takes ten times as long."""
    return decimal.Context(
        # The least exponent is this Emin - prec + 1.
        prec=_DIGITS_MAX, Emin=min(0, _DIGITS_MAX - 1 - _PLACES_MAX - scale), traps=[decimal.Rounded, decimal.Clamped],
        Emax=decimal.MAX_EMAX, clamp=0,
    ).plus  # fmt: skip


def _check_floats(values: Sequence[Any]) -> None:
    """Raise LossError for a bool, and for an unsigned number that Arrow takes for a negative one. Python's ints are looked
    at as well: Arrow refuses large ones alone, and not where pandas shows one and has numpy's."""
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        if kind is bool:
            raise LossError("expected a number, got bool: return float(value)")
        if issubclass(kind, int) or kind.__name__ in _UNSIGNED:
            of_kind = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
            most = max(map(operator.index, of_kind))
            if most >= _WRAPS:
                raise LossError(too_many_bits(most))
        elif kind.__name__ in _EXTENDED and any(
            isinf(float(value)) and abs(value) != inf for value in values if type(value) is kind
        ):
            raise LossError("a number that is infinite in 64 bits: return None")


def _hides_values(kind: Any, values: Iterable[Any]) -> bool:
    """Whether something is masked in one of those of this class: Arrow takes what is under numpy's mask."""
    if not any(base.__name__ == "MaskedArray" for base in kind.__mro__):
        return False
    of_kind: list[Any] = [value for value in values if type(value) is kind]
    return any(value.mask.any() for value in of_kind)


def family_of(kind: Any) -> str:
    """Types whose values are looked at before Arrow takes them."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "integer" if pa.types.is_integer(kind) else "floating"
    return "date" if pa.types.is_date(kind) else "time" if pa.types.is_timestamp(kind) else ""


_CHECKS: Final[dict[str, Check]] = {
    "integer": _check_integers,
    "time": _check_times,
    "date": _check_dates,
    "floating": _check_floats,
}


def check_of(kind: Any) -> Check | None:
    """What raises LossError for values of this type that Arrow is not to be given; None where it may have all."""
    if pa.types.is_nested(kind):
        return partial(_check_nested, kind)
    if pa.types.is_decimal(kind):
        return partial(_check_decimals, kind)
    return _CHECKS.get(family_of(kind))


def _check_nested(kind: Any, values: Sequence[Any]) -> None:
    check_entries(values, kind)
    for leaf, found in _leaves(values, kind):
        if check := check_of(leaf):
            check(found)


def _leaves(values: Iterable[Any], kind: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The values at the ends of nested ones that are not None, with their types. Raises LossError for what would be lost of
    the nested ones themselves."""
    present: list[Any] = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        names = [field.name for field in fields_of(kind)]
        dicts = [found for value in present if (found := _as_dict(value, names)) is not None]
        known = frozenset(names)
        for value in dicts:
            if not known.issuperset(value):
                raise LossError(_undeclared(next(name for name in value if name not in known), names))
        for field in fields_of(kind):
            yield from _leaves([value.get(field.name) for value in dicts], field.type)
    elif pa.types.is_map(kind):
        pairs: list[Any] = [pair for value in present if hasattr(value, "items") for pair in value.items()]
        yield from _leaves([key for key, _ in pairs], kind.key_type)
        yield from _leaves([item for _, item in pairs], kind.item_type)
        entries = [_as_pair(entry) for value in present if not hasattr(value, "items") for entry in value]
        if entries:
            yield from _leaves(entries, pa.struct(parts_of(kind)))
    elif pa.types.is_list(kind):
        kinds: set[Any] = set(map(type, present))
        for given in kinds - {list}:
            for value in present:
                if type(value) is given and (isinstance(value, str | dict) or getattr(value, "ndim", 1) != 1):
                    raise LossError(no_list(value, kind))
            if _hides_values(given, present):
                raise LossError("expected a list, got a masked array, whose mask would be lost: return value.tolist()")
        shown = [value if value.__class__ is list else _that_show(value) for value in present]
        yield from _leaves([item for values in shown for item in values], kind.value_type)
    else:
        yield kind, present


def _that_show(values: Any) -> Any:
    """Elements that show of which classes all are: of one of numpy's arrays, one."""
    if (
        type(values).__name__ != "ndarray"
        or values.ndim != 1
        or values.dtype.hasobject
        or values.dtype.str[1:] in _LOOKED_AT
    ):
        return values
    return values[:1]


def _as_pair(entry: Any) -> Any:
    """A map's entry, without names: the first of a tuple is the key."""
    return tuple(entry) if issubclass(entry.__class__, tuple) else entry


def _as_dict(value: Any, names: Sequence[str]) -> dict[Any, Any] | None:
    """A struct's value in each form that Arrow takes: a dict, a tuple in the fields' order, pairs; None for any other. Raises
    LossError for a tuple with other names, which Arrow does not look at."""
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        given: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        if list(names_of(given, names)) != list(names):
            raise LossError(
                f"{type(given).__name__} has not the fields {', '.join(names)} in this order: return its _asdict()"
            )
        return dict(zip(names, given, strict=True)) if len(given) == len(names) else None
    try:
        return dict(value)
    except (TypeError, ValueError):
        return None
