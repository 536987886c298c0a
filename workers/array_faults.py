"""What is wrong with a converted array at any depth: nulls where none may be, times and numbers beyond their type. Pure.

Arrow's conversions and casts let these through. Each question is a few calls for a whole array, whatever its length.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow
import pyarrow.compute

from .ddl import fields_of

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow
pc: Any = pyarrow.compute

Arrays = list[Any]
"""Of Arrow, one for a declared column or a part of a nested one."""
GivenAs = Callable[[Any], Any]
"""Gives what an array was made from, converted to another type."""
_YEARS: Final = (datetime.datetime.min, datetime.datetime.max)  # noqa: DTZ901  they have no zone in Arrow either
_YEARS_US: Final = tuple(pa.scalar(each, pa.timestamp("us")).value for each in _YEARS)
_LIMITS: Final[dict[Any, tuple[int, int]]] = {
    pa.timestamp("us", "UTC"): _YEARS_US,
    pa.timestamp("us"): _YEARS_US,
    pa.date32(): tuple(pa.scalar(each, pa.date32()).value for each in (datetime.date.min, datetime.date.max)),
}
"""The least and the largest value of times, which Arrow fills beyond them."""


_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def has_not_null(kind: Any) -> bool:
    """Whether something within the type may not be null: fields, elements, values of a map (its keys never are)."""
    return any(
        (not field.nullable and not (pa.types.is_map(kind) and number == 0)) or has_not_null(field.type)
        for number, field in enumerate(parts_of(kind))
    )


def parts_of(kind: Any) -> list[Any]:
    """The fields of a struct, a list's element, a map's key and value."""
    return [kind.key_field, kind.item_field] if pa.types.is_map(kind) else fields_of(kind)


def has_times(kind: Any) -> bool:
    """Whether the type has times in it."""
    return any(leaf in _LIMITS for leaf in _leaf_types(kind))


def has_floats(kind: Any) -> bool:
    """Whether the type has 32-bit floats in it."""
    return pa.float32() in _leaf_types(kind)


def _leaf_types(kind: Any) -> list[Any]:
    """The type, or those of the values at the ends of a nested one."""
    parts = parts_of(kind)
    return [leaf for part in parts for leaf in _leaf_types(part.type)] if parts else [kind]


def _leaves(array: Any) -> Iterator[Any]:
    """Arrays of these types, without what is within a null."""
    children = _children(array)
    if not children:
        yield array
    for child in children:
        yield from _leaves(child)


def _children(array: Any) -> Arrays:
    """The arrays that a nested one consists of, in the order of `parts_of`, without what is outside of its slice or within
    a null; none of a plain one."""
    kind = array.type
    if pa.types.is_map(kind):
        return _entries_of(array)
    if pa.types.is_struct(kind):
        fields: Arrays = array.flatten()
        return fields
    return [array.flatten()] if any(is_kind(kind) for is_kind in _LISTS) else []


def _entries_of(array: Any) -> Arrays:
    """Keys and values of maps. Arrow gives those of the whole array that this one may be a slice of, and nulls may have some,
    too; it has no `flatten` for them."""
    present = array.drop_null() if array.null_count else array
    first, end = present.offsets[0].as_py(), present.offsets[-1].as_py()
    return [part.slice(first, end - first) for part in (present.keys, present.items)]


def hides_nulls(array: Any) -> bool:
    """Whether a field that may not be null is null within a struct that is null. Nobody sees it, but who writes Parquet
    refuses it. Arrow's own null structs are like that (`pa.nulls`), those that it makes of values are not."""
    if not pa.types.is_struct(array.type):
        return any(map(hides_nulls, _children(array)))
    fields = fields_of(array.type)
    children: Arrays = [array.field(number) for number in range(len(fields))]
    return any(
        (not field.nullable and child.null_count > 0) or hides_nulls(child)
        for field, child in zip(fields, children, strict=True)
    )


def has_extreme_time(array: Any) -> bool:
    """Whether a time in the array is outside of the years 1 to 9999."""
    return any(map(_is_extreme, _leaves(array)))


def _is_extreme(leaf: Any) -> bool:
    limits = _LIMITS.get(leaf.type)
    if limits is None:
        return False
    found = pc.min_max(leaf)
    least, most = found["min"].value, found["max"].value  # as_py() of such a time is what fails
    return least is not None and (least < limits[0] or most > limits[1])


def makes_other_decimals(given: Any, array: Any) -> bool:
    """Whether the array, cast from another type, has other decimals than that: of a large number that gets more places, Arrow
    keeps the lowest 128 bits. The way back shows it."""
    if not (pa.types.is_decimal(array.type) or parts_of(array.type)):
        return False
    if pa.types.is_dictionary(given.type) or pa.types.is_run_end_encoded(given.type):
        given = given.cast(given.type.value_type)
    if isinstance(given, pa.ExtensionArray):
        return makes_other_decimals(given.storage, array)
    if pa.types.is_null(given.type):
        return False
    if parts := parts_of(array.type):
        own = _children(given)
        if pa.types.is_struct(array.type):
            named = dict(zip([field.name for field in fields_of(given.type)], own, strict=True))
            own = [named.get(field.name) for field in parts]
        return any(
            part is not None and makes_other_decimals(part, child)
            for part, child in zip(own, _children(array), strict=True)
        )
    if given.type == array.type or not (pa.types.is_decimal(given.type) and pa.types.is_decimal(array.type)):
        return False
    try:
        return not array.cast(given.type).equals(given)
    except MemoryError:
        raise
    except pa.ArrowException:
        return True


def became_infinite(array: Any, given_as: GivenAs) -> bool:
    """Whether a number is infinite in 32 bits, and was not when it was given."""
    leaves = list(_leaves(array))
    infinite = [pc.is_inf(leaf) if leaf.type == pa.float32() else None for leaf in leaves]
    if not any(each is not None and pc.any(each).as_py() for each in infinite):
        return False
    wide = _leaves(given_as(_with_doubles(array.type)))
    return any(
        pc.any(pc.and_(each, pc.is_finite(number))).as_py()
        for each, number in zip(infinite, wide, strict=True)
        if each is not None
    )


def _with_doubles(kind: Any) -> Any:
    """The type with a double for each float in it."""
    if kind == pa.float32():
        return pa.float64()
    parts = [part.with_type(_with_doubles(part.type)) for part in parts_of(kind)]
    if pa.types.is_map(kind):
        return pa.map_(*parts)
    if pa.types.is_struct(kind):
        return pa.struct(parts)
    return pa.list_(*parts) if parts else kind


def null_in(field: Any, array: Any) -> str:
    """What of a column is null where its field says that it is not; empty where nothing is."""
    return "is null" if array.null_count and not field.nullable else _null_within(array)


def _null_within(array: Any) -> str:
    """The same of the parts of a nested array."""
    kind = array.type
    children = _children(array)
    if children and array.null_count and pa.types.is_struct(kind):  # what is null has no fields
        valid = array.is_valid()
        children = [child.filter(valid) for child in children]
    for field, child in zip(parts_of(kind) if children else (), children, strict=True):
        if child.null_count and not field.nullable:
            return f"field {field.name} is null"
        if found := _null_within(child):
            return found
    return ""
