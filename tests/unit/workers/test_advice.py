"""What the error of a row that does not fit tells to do instead is something that fits."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy
import pandas
import pytest

from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError


class Colour(enum.Enum):
    RED = 1


class Unequal(Decimal):
    """Cannot even be compared."""

    def __ne__(self, _other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


def fit(ddl: str, value: object) -> list[Any]:
    columns = Columns(parse_ddl(f"a {ddl}"))
    row = {"a": value}
    values = columns.values_of_plain(row)
    found: list[Any] = columns.arrays([columns.values_of(row) if values is None else values])[0].to_pylist()
    return found


SQUARE = numpy.eye(2)
LISTS = [[1.0, 0.0], [0.0, 1.0]]
NESTED = "array<array<double>>"
NAT = numpy.datetime64("NaT")
DAY = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = numpy.full((1, 2), "2026-01-01", "M8[ns]")


@pytest.mark.parametrize(
    ("ddl", "value", "advice", "instead"),
    [
        (NESTED, SQUARE, "return value.tolist()", LISTS),
        (NESTED, pandas.DataFrame(SQUARE), "return value.to_numpy().tolist()", LISTS),
        ("array<double>", SQUARE, "return value.ravel().tolist(), or declare array<array<…>>", [1.0, 0.0, 0.0, 1.0]),
        ("array<double>", numpy.array(2.0), "return [value]", [2.0]),
        ("array<double>", 2.0, "return [value]", [2.0]),
        ("array<string>", "text", "return [value]", ["text"]),
        (
            "array<int>",
            numpy.ones((2, 2), int),
            "return value.ravel().tolist(), or declare array<array<…>>",
            [1, 1, 1, 1],
        ),
        ("array<array<int>>", numpy.ones((1, 2), int), "return value.tolist()", [[1, 1]]),
        ("array<int>", pandas.DataFrame({"x": [1]}), "return value.to_numpy().ravel().tolist(), or", [1]),
        ("array<int>", numpy.ma.masked_equal([[0, 1]], 0), "return value.ravel().tolist(), or", [None, 1]),
        ("array<timestamp>", DAYS, "return value.astype('datetime64[us]').ravel().tolist(), or", [DAY, DAY]),
        ("array<array<date>>", DAYS, "return value.astype('datetime64[D]').tolist()", [[DAY.date(), DAY.date()]]),
        ("array<int>", {"x": 1}, "return list(value.values())", [1]),
        ("array<struct<x:int>>", {"x": 1}, "return [value]", [{"x": 1}]),
        ("array<int>", "12", "return a list of int32", [1, 2]),
        ("array<int>", pandas.NaT, "got NaTType NaT: return None", None),
        ("array<bigint>", [NAT], "got datetime64 NaT: return None", [None]),
        ("bigint", NAT, "got datetime64 NaT: return None", None),
        ("double", NAT, "got datetime64 NaT: return None", None),
        ("string", pandas.NaT, "got NaTType NaT: return None", None),
        ("int", Decimal("sNaN"), "got Decimal sNaN: return None", None),
        ("array<int>", (n for n in (1, 2)), "return list(value)", [1, 2]),
        ("array<int>", math.nan, "nan: return None", None),
        ("array<string>", ["x", math.nan], "an element: expected a string, got float nan: return None", ["x", None]),
        ("string", math.nan, "nan: return None", None),
        ("string", numpy.float32("nan"), "nan: return None", None),
        ("string", pandas.NA, "return None", None),
        ("string", 1.5, "return str(value)", "1.5"),
        ("int", math.nan, "nan: return None", None),
        ("int", Decimal("NaN"), "got Decimal NaN: return None", None),
        ("int", pandas.NA, "return None", None),
        ("boolean", math.nan, "nan: return None", None),
        ("date", math.nan, "got float nan: return None", None),
        ("timestamp", pandas.NA, "return None", None),
        ("double", numpy.timedelta64("NaT"), "got timedelta64 NaT: return None", None),
        ("int", Colour.RED, "return value.value", 1),
        ("string", Colour.RED, "return value.name", "RED"),
        ("date", Colour.RED, "got Colour: declare the column as what it is", None),
        ("double", {"x": 1}, "got dict: declare the column as what it is", None),
        ("int", numpy.zeros((2, 2)), "got ndarray: declare the column as what it is", None),
        ("decimal(9,2)", [1], "got list: declare the column as what it is", None),
        ("int", Unequal("1.5"), "return int(value)", 1),
    ],
)
def test_what_is_told_to_be_returned_fits(ddl: str, value: object, advice: str, instead: object) -> None:
    with pytest.raises(RowError) as raised:
        fit(ddl, value)
    assert advice in str(raised.value)
    assert fit(ddl, instead) == [instead]
