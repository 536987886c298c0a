"""Rows with a value that contains itself, or is nested too deeply: their message fails, and it is said by which column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from rocketcrew.testing import message as made
from rocketcrew.workers.copying import ENDLESS, RowError, listed
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.inferring import columns_of
from rocketcrew.workers.rows import RowBuffer

DDL = "n bigint, what string, tags array<string>, at struct<x: bigint>, each array<struct<x: bigint>>"
PLAIN = {"n": 1, "what": "x", "tags": ["t"], "at": {"x": 1}, "each": [{"x": 1}]}


@dataclasses.dataclass
class Row:
    n: int
    what: Any


@dataclasses.dataclass
class OfItself:
    n: int
    what: list  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]  # does not say of what


def cycle_of_lists() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def cycle_of_dicts() -> Any:
    value: dict[str, Any] = {}
    value["x"] = value
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


def as_dict(value: Any) -> Any:
    return {"n": 1, "what": value}


def as_dataclass(value: Any) -> Any:
    return Row(1, value)


def in_a_list(row: Any) -> Any:
    return [row, row]


def yielded(row: Any) -> Iterator[Any]:
    yield row


def with_its_message(row: Any) -> Iterator[Any]:
    yield made(b""), row


def cycle_of_arrays() -> Any:
    value: Any = numpy.empty(1, object)
    value[0] = value
    return value


def cycle_of_a_list_and_an_array() -> Any:
    value: Any = numpy.empty(1, object)
    value[0] = [value]
    return value


def cycle_of_values() -> Any:
    value: dict[str, Any] = {}
    value["x"] = [value.values()]
    return value.values()


class HidesItems(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def cycle_of_lists_that_hide_it() -> Any:
    value = HidesItems()
    value.append(value)
    return value


class HidesValues(dict[str, Any]):
    def values(self) -> Any:
        return ()


def cycle_of_dicts_that_hide_it() -> Any:
    value = HidesValues()
    value["x"] = value
    return value


class HasHash(set[Any]):
    def __hash__(self) -> int:  # type: ignore[override]
        return 1


def cycle_of_sets() -> Any:
    value = HasHash()
    value.add(value)
    return value


FAULTS = [cycle_of_lists, cycle_of_dicts, deep]


@pytest.mark.parametrize("shape", [dict, in_a_list, yielded])
@pytest.mark.parametrize("value", FAULTS)
@pytest.mark.parametrize("column", ["what", "tags", "at", "each"])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_column_is_named_or_how_its_values_are_to_be(
    shape: Callable[[Any], Any], value: Callable[[], Any], column: str, at_once: bool
) -> None:
    rows = RowBuffer[str](parse_ddl(DDL), "group")
    with pytest.raises(RowError, match=f"^column {column} .*: ({ENDLESS}$|expected a )"):
        prepared = rows.prepare(made(b""), shape(PLAIN | {column: value()}), at_once=at_once)
        assert prepared is not None
        rows.check(prepared)


@pytest.mark.parametrize("value", FAULTS)
def test_of_a_dataclass_too(value: Callable[[], Any]) -> None:
    rows = RowBuffer[str](parse_ddl("n bigint, what array<string>"), "group")
    with pytest.raises(RowError, match=ENDLESS) as caught:
        rows.prepare(made(b""), Row(1, value()))
    assert str(caught.value).startswith('column "what"')


@pytest.mark.parametrize("value", FAULTS)
@pytest.mark.parametrize("shape", [yielded, with_its_message])
@pytest.mark.parametrize("row", [as_dict, as_dataclass])
def test_where_rows_are_copied_before_their_columns_are_known(
    row: Callable[[Any], Any], shape: Callable[[Any], Any], value: Callable[[], Any]
) -> None:
    with pytest.raises(RowError, match=f'^column "what": {ENDLESS}$'):
        listed(shape(row(value())))


FAULTS_FOR_ARROW = [
    *FAULTS,
    cycle_of_arrays,
    cycle_of_a_list_and_an_array,
    cycle_of_values,
    cycle_of_lists_that_hide_it,
    cycle_of_dicts_that_hide_it,
    cycle_of_sets,
]


@pytest.mark.parametrize("value", FAULTS_FOR_ARROW)
def test_no_columns_are_inferred_of_it(value: Callable[[], Any]) -> None:
    """Arrow's own look at such a value ends the process."""
    with pytest.raises(RowError, match=f'^column "what": {ENDLESS}$'):
        columns_of([{"n": 1, "what": value()}])


@pytest.mark.parametrize("value", FAULTS)
def test_no_columns_are_inferred_of_a_dataclass_that_has_it(value: Callable[[], Any]) -> None:
    with pytest.raises(RowError, match=f'^column "what": {ENDLESS}$'):
        columns_of([OfItself(1, []), OfItself(1, value())])


def test_no_columns_are_inferred_of_a_dataclass_in_itself() -> None:
    value: list[Any] = []
    row = OfItself(1, value)
    value.append(row)
    with pytest.raises(RowError, match=f'^column "what": {ENDLESS}$'):
        columns_of([row])
