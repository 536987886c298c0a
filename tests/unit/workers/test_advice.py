"""What the error of a row that does not fit tells to do instead is something that fits."""

from __future__ import annotations

import enum
import math
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


@pytest.mark.parametrize(
    ("ddl", "value", "advice", "instead"),
    [
        (NESTED, SQUARE, "return value.tolist()", LISTS),
        (NESTED, pandas.DataFrame(SQUARE), "return value.to_numpy().tolist()", LISTS),
        ("array<double>", SQUARE, "return value.ravel().tolist(), or declare array<array<…>>", [1.0, 0.0, 0.0, 1.0]),
        ("array<double>", numpy.array(2.0), "return [value]", [2.0]),
        ("array<double>", 2.0, "return [value]", [2.0]),
        ("array<string>", "text", "return [value]", ["text"]),
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
        ("int", Colour.RED, "return value.value, or value.name", 1),
        ("string", Colour.RED, "return value.value, or value.name", "RED"),
        ("int", Unequal("1.5"), "return int(value)", 1),
    ],
)
def test_what_is_told_to_be_returned_fits(ddl: str, value: object, advice: str, instead: object) -> None:
    with pytest.raises(RowError) as raised:
        fit(ddl, value)
    assert advice in str(raised.value)
    assert fit(ddl, instead) == [instead]
