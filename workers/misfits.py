"""Why a value does not go into its column, in words of this project: where it is, what it is, and what to do. Pure.

Asked only once a column was refused: so it may try value by value. Arrow's own words stay where none here are better.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any, Final

import pyarrow

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

CONVERSION_ERRORS: Final = (Exception,)
"""Arrow's own; and it runs code of the values (`__index__`, `utcoffset` of a time zone), from which anything may come. The
soft time limit may come there as well, and is that of the whole call: it is no Exception."""
SHOWN_CHARACTERS_MAX: Final = 40
BYTES_MAX: Final = (1 << 31) - 2
"""In a column of strings or bytes, whose offsets have 32 bits."""
_PIECE: Final = 1 << 20
"""Characters of a text that are measured at one time."""
NO_TIME: Final = "a time outside of the years 1 to 9999 (in UTC), which neither Python nor Spark can show: return None"

CheckOf = Callable[[Any], Callable[[Sequence[Any]], None] | None]
"""For a type, what raises LossError for values of which Arrow is not to be asked; None where there are none."""


class LossError(TypeError):
    """A value of which Arrow would lose something in silence, or end the process."""


def reason(values: Iterable[Any], kind: Any, check_of: CheckOf) -> str:
    """The first of `values` that is not of the Arrow type `kind`; empty where each of them is, taken alone. Raises
    MemoryError where there is not enough of it to know."""
    for value in values:
        if value is not None and not _goes_in(value, kind, check_of):
            return _where(value, kind, check_of)
    return ""


class EntryError(TypeError):
    """A map has an entry that Arrow cannot take."""


def check_entries(values: Iterable[Any], kind: Any) -> None:
    """Raise EntryError for a map's entry that is None, at any depth: Arrow 26 ends the process for it."""
    if not _has_map(kind):
        return
    for value in values:
        if value is None:
            continue
        entries = _entries(value)
        if pa.types.is_map(kind):
            if any(entry is None for entry in entries):
                raise EntryError("an entry of the map is None: return a dict, or pairs of a key and a value")
            check_entries([_second(entry) for entry in entries], kind.item_type)
        elif pa.types.is_list(kind):
            check_entries(entries, kind.value_type)
        else:
            for field, part in _fields_given(value, entries, kind):
                check_entries([part], field.type)


def _has_map(kind: Any) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _entries(value: Any) -> list[Any]:
    """What Arrow goes through; nothing of what it refuses."""
    try:
        return list(value.items() if hasattr(value, "items") else value)
    except TypeError:
        return []


def _first(entry: Any) -> Any:
    """The key of a map's entry, given as a pair, a dict or a dict's pairs; None where Arrow refuses the entry."""
    try:
        return entry[0] if issubclass(entry.__class__, tuple) else dict(entry)["key"]
    except CONVERSION_ERRORS:
        return None


def _second(entry: Any) -> Any:
    """The same of its value."""
    try:
        return entry[1] if issubclass(entry.__class__, tuple) else dict(entry)["value"]
    except CONVERSION_ERRORS:
        return None


def _fields_given(value: Any, entries: list[Any], kind: Any) -> Iterable[tuple[Any, Any]]:
    """A struct's fields with their values, in each form that Arrow takes: a dict, pairs, a tuple in their order."""
    fields: list[Any] = [kind.field(number) for number in range(kind.num_fields)]
    if isinstance(value, tuple) and len(entries) == len(fields):
        yield from zip(fields, entries, strict=True)
    for field in fields:
        for entry in entries:
            if isinstance(entry, tuple) and entry[:1] == (field.name,):
                yield field, _second(entry)


def _goes_in(value: Any, kind: Any, check_of: CheckOf) -> bool:
    try:
        _try(value, kind, check_of)
    except MemoryError:
        raise  # no value is at fault for that
    except CONVERSION_ERRORS:
        return False
    return True


def _try(value: Any, kind: Any, check_of: CheckOf) -> None:
    if check := check_of(kind):
        check([value])
    pa.array([value], kind)


def _where(value: Any, kind: Any, check_of: CheckOf) -> str:
    """Down to the place within a nested value that does not fit."""
    for place, parts, part_kind in _parts(value, kind):
        found = reason(parts, part_kind, check_of)
        if found:
            return f"{place}: {found}"
    try:
        _try(value, kind, check_of)
    except (EntryError, LossError) as error:
        return str(error)
    except MemoryError:
        raise
    except CONVERSION_ERRORS as error:
        return _words(value, kind) or str(error)
    return ""


def _parts(value: Any, kind: Any) -> list[tuple[str, list[Any], Any]]:
    """What the value is made of, each with its name and type; nothing where it is of another form than its type."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields: list[Any] = [kind.field(number) for number in range(kind.num_fields)]
        given: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [(f"field {field.name}", [given.get(field.name)], field.type) for field in fields]
    if pa.types.is_struct(kind):
        return [
            (f"field {field.name}", [part], field.type) for field, part in _fields_given(value, _entries(value), kind)
        ]
    if pa.types.is_map(kind):
        entries = _entries(value)
        return [
            ("a key", list(map(_first, entries)), kind.key_type),
            ("a value", list(map(_second, entries)), kind.item_type),
        ]
    if pa.types.is_list(kind) and _is_sequence(value):
        return [("an element", list(value), kind.value_type)]
    return []


def _words(value: Any, kind: Any) -> str:
    for is_kind, words in _WORDS:
        if is_kind(kind):
            return words(value, kind)
    return ""


def _text(value: Any, kind: Any) -> str:
    del kind
    if size := _too_large(value):
        return size
    if isinstance(value, str):
        return (
            "a string with half of a surrogate pair, which no UTF-8 has: return value.encode(errors='replace').decode()"
        )
    if isinstance(value, bytes):
        return "bytes that are no UTF-8: return value.decode(…), or declare the column binary"
    return expected("a string", value, "return str(value)")


def _bytes(value: Any, kind: Any) -> str:
    if isinstance(value, str):
        return _text(value, kind)
    return _too_large(value) or expected("bytes", value, "return bytes, or declare the column as what it is")


def _too_large(value: Any) -> str:
    """That a text or bytes have more than Arrow can count; empty where they have not."""
    if isinstance(value, str):  # piece by piece: its UTF-8 as a whole may not fit into the memory any more
        pieces = (value[start : start + _PIECE] for start in range(0, len(value), _PIECE))
        size = (
            len(value) if len(value) > BYTES_MAX else sum(len(each.encode(errors="surrogatepass")) for each in pieces)
        )
    else:
        size = len(value) if isinstance(value, bytes | bytearray) else 0
    return f"{size} bytes: a value has at most 2 GiB" if size > BYTES_MAX else ""


def _integer(value: Any, kind: Any) -> str:
    bits = 0 if isinstance(value, bool) else _whole(value).bit_length()  # also of numpy's, which may be too large, too
    if bits >= kind.bit_width:
        wider = "decimal(38,0)" if bits > 63 else "bigint"
        return f"{_shown(value)} is too large for {kind.bit_width} bits: declare the column {wider}"
    return expected("an integer", value, "return int(value), or declare the column as what it is")


def _floating(value: Any, kind: Any) -> str:
    if isinstance(value, Integral) and abs(whole := _whole(value)) > EXACT_MAX[str(kind)]:
        return too_many_bits(whole)
    return expected("a number", value, "return float(value)")


def _whole(value: Any) -> int:
    """An integer as one of Python's; 0 for what is none (numpy's timedelta64 is Integral, too)."""
    try:
        return operator.index(value)
    except CONVERSION_ERRORS:
        return 0


def too_many_bits(value: int) -> str:
    """Why an int does not go into a column of floats."""
    return (
        f"an int of {value.bit_length()} bits, of which it may not hold all: return float(value), or declare the column"
        " bigint or decimal(38,0)"
    )


def _decimal(value: Any, kind: Any) -> str:
    """Arrow takes ints and Decimals, of which no digit may be lost."""
    if isinstance(value, Decimal) and not value.is_finite():
        return f"{value} is no number that a decimal column holds: return None"
    if isinstance(value, int | Decimal):
        return too_many_digits(value, kind)
    return expected("a Decimal", value, "return Decimal(str(value))")


def too_many_digits(value: int | Decimal, kind: Any) -> str:
    """Why a number does not go into a column of decimals. A zero does, but Arrow moves no point by so many places."""
    if not value:
        return f"{_shown(value)} is a zero of more places than Arrow takes: return Decimal(0)"
    return (
        f"{_shown(value)} has more digits than decimal({kind.precision},{kind.scale}) holds: declare more, or round it, as by"
        f" Decimal(value).quantize(Decimal(1).scaleb(-{kind.scale}))"
    )


def _truth(value: Any, kind: Any) -> str:
    del kind
    return expected("a bool", value, "return bool(value)")


def _time(value: Any, kind: Any) -> str:
    what, how = ("a date", "date") if pa.types.is_date(kind) else ("a datetime", "datetime")
    if isinstance(value, str):
        return expected(what, value, f"return {how}.fromisoformat(value)")
    if isinstance(value, date) and how == "datetime" and not isinstance(value, datetime):
        return expected(what, value, "return datetime.combine(value, time())")
    if type(value).__name__ == "datetime64":  # Arrow takes one into `timestamp_ntz`, or within an array
        return expected(what, value, f"return {DATETIME_OF_NUMPY}")
    return expected(what, value, "return one") if not hasattr(value, "year") else ""


DATETIME_OF_NUMPY: Final = "value.astype('datetime64[us]').tolist()"
"""What goes into each column of times, alone and in arrays."""


def no_row(value: object) -> str:
    """Why a value is no row, and what makes one or several of it."""
    words, how = f"a row must be a dict or a dataclass instance, not {type(value).__name__}", made_row(value)
    return f"{words}: return {how}" if how else words


def made_row(value: object) -> str:
    """What makes a row, or a table, of a value that others take for one; empty where nothing is known."""
    kind = type(value)
    for attribute, how in _ROW_MAKERS.items():
        if hasattr(kind, attribute):
            return how
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return "dict(value)"
    return ""


_ROW_MAKERS: Final = {
    "model_dump": "value.model_dump()",
    "__struct_fields__": "msgspec.structs.asdict(value)",
    "__attrs_attrs__": "attrs.asdict(value)",
    "_asdict": "value._asdict()",
    "iterrows": "pa.Table.from_pandas(value, preserve_index=False)",
    "iter_rows": "value.to_arrow()",
    "to_frame": "value.to_dict()",
}
"""By what only the classes of pydantic, msgspec, attrs, `NamedTuple`, pandas' and polars' frames and pandas' series have."""


def _row(value: Any, kind: Any) -> str:
    del kind
    return "" if isinstance(value, dict) else expected("a dict", value, "return one with the declared names")


def _sequence(value: Any, kind: Any) -> str:
    return "" if _is_sequence(value) else no_list(value, kind)


def no_list(value: Any, kind: Any) -> str:
    """Why a value is no list of this type, and what makes one of it."""
    return expected("a list", value, _made_list(value, kind))


def _made_list(value: Any, kind: Any) -> str:
    """What makes a list of a value; an array of several dimensions becomes lists of lists."""
    own, dimensions, depth = kind.value_type, getattr(value, "ndim", None), 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if isinstance(value, Mapping):
        return "return [value]" if pa.types.is_map(own) or pa.types.is_struct(own) else "return list(value.values())"
    if isinstance(value, str | bytes | bytearray):
        is_text = pa.types.is_string(own) or pa.types.is_binary(own)
        return "return [value]" if is_text else f"return a list of {own}"
    if not isinstance(dimensions, int) or dimensions < 2:
        return "return list(value)" if isinstance(value, Iterable) and dimensions != 0 else "return [value]"
    values = "value" if hasattr(value, "tolist") else "value.to_numpy()"
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":  # of other units numpy makes ints
        values += f".astype('datetime64[{'D' if pa.types.is_date(kind) else 'us'}]')"
    if dimensions == depth:
        return f"return {values}.tolist()"
    return f"return {values}.ravel().tolist(), or declare {'array<' * dimensions}…{'>' * dimensions}"


def _is_sequence(value: Any) -> bool:
    """Whether it has elements; neither text nor a dict, and no array of numpy's without or with several dimensions."""
    if isinstance(value, str | bytes | bytearray | Mapping) or getattr(value, "ndim", 1) != 1:
        return False
    return isinstance(value, Collection)


_NUMBERS: Final = ("an integer", "a number", "a Decimal")
_AS_IT_IS: Final = "declare the column as what it is"


def expected(what: str, value: Any, remedy: str) -> str:
    """That a value is of another class, and what to return instead: the `remedy`, where that is one for this value."""
    kind = type(value).__name__
    if isinstance(value, Enum):
        remedy = _of_member(what, value.value)
    elif is_missing(value):
        kind, remedy = f"{kind} {_shown(value)}", "return None"
    elif what in _NUMBERS and (isinstance(value, Mapping) or _is_sequence(value) or getattr(value, "ndim", 0) > 0):
        remedy = _AS_IT_IS  # no number can be made of several values
    return f"expected {what}, got {kind}: {remedy}"


def _of_member(what: str, held: object) -> str:
    """What to return of an enumeration's member that holds this."""
    fits = {"a string": str, "an integer": int, "a number": int | float, "a bool": bool, "bytes": bytes}
    ways = ["value.value"] * (what in fits and isinstance(held, fits[what])) + ["value.name"] * (what == "a string")
    return "return " + ", or ".join(ways) if ways else _AS_IT_IS


def is_missing(value: Any) -> bool:
    """What numpy and pandas have for no value: NaN, NaT, NA. Only NaN goes into a column, a floating one."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        if isinstance(value, Decimal):
            return value.is_nan()  # a signaling one cannot be compared
        # numpy's datetime64 is no Real, as its timedelta64 is.
        return (isinstance(value, Real) or type(value).__name__ == "datetime64") and bool(value != value)  # noqa: PLR0124
    except CONVERSION_ERRORS:
        return False


def _shown(value: Any) -> str:
    """The value, cut; of an int of very many digits Python refuses to make any text, and of others their class may."""
    if isinstance(value, int):
        value = int.__index__(value)
        if value.bit_length() > 128:
            return f"an int of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


EXACT_MAX: Final = {"float": 1 << 24, "double": 1 << 53}
"""Up to where a floating column takes integers; beyond, Arrow refuses them."""


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


_WORDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], str]], ...]] = (
    (pa.types.is_string, _text),
    (pa.types.is_binary, _bytes),
    (pa.types.is_boolean, _truth),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (_is_time, _time),
    (pa.types.is_map, _row),
    (pa.types.is_struct, _row),
    (pa.types.is_list, _sequence),
)
