"""Decimals that Arrow would make others of, or end the process for, fail their message; all others go in as they are."""

from __future__ import annotations

import decimal
import itertools
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy
import pyarrow
import pytest

from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.losses import check_of

from .test_rows_cost import calls_in
from .test_silent_losses import fit, within

pa: Any = pyarrow
WIDE = decimal.Context(prec=200, Emin=-9999, Emax=9999)

TYPES = [(10, 2), (38, 0), (38, 18), (38, 38), (5, 5), (1, 0)]
DIGITS = ["1", "5", "10", "12345678", "9" * 30, "28421709430404007434844970703125", "1" + "0" * 37, "9" * 38, "1" + "0" * 38,
          "1" * 39, "1" + "0" * 45, "1" + "0" * 60, "9" * 80, "0"]  # fmt: skip


@pytest.mark.parametrize(("precision", "scale"), TYPES)
def test_what_arrow_makes_of_a_decimal_is_that_or_nothing(precision: int, scale: int) -> None:
    kind: Any = pa.decimal128(precision, scale)
    check = check_of(kind)
    assert check is not None
    refused: Counter[str] = Counter()
    for digits, exponent, sign in itertools.product(DIGITS, range(-130, 60), (0, 1)):
        value = Decimal((sign, tuple(map(int, digits)), exponent))
        try:
            check([value])
        except TypeError:
            refused["by us"] += 1
            assert not value or value.as_tuple().exponent < -38 - scale or len(digits) > 39
            continue
        try:
            (found,) = pa.array([value], kind).to_pylist()
        except pa.ArrowException:
            refused["by Arrow"] += 1
            continue
        assert found == value
        refused["by none"] += 1
    assert min(refused.values()) > 50


FAR = [
    *("1E-41", "-1E-41", "1E-42", "1E-5000000"),
    *(f"1.{'0' * 60}", "1E-999999999999999999"),
]


@pytest.mark.parametrize("text", FAR)
def test_a_decimal_of_too_many_places_is_refused_at_any_depth(text: str) -> None:
    for ddl, value in within(Decimal(text)):
        with pytest.raises(RowError, match=r"has more digits than decimal\(10,2\) holds: declare more, or round it"):
            fit(f"c {ddl.format('decimal(10,2)')}", {"c": value})


@pytest.mark.parametrize("text", ["0E-41", "-0E-41", "0E-5000000", "0E+39", "0E+5000000"])
def test_a_zero_of_too_many_places_is_said_to_be_one(text: str) -> None:
    """It has no digit too many; but Arrow is not to be asked of it."""
    for ddl, value in within(Decimal(text)):
        with pytest.raises(RowError, match=r"is a zero of more places than Arrow takes: return Decimal\(0\)"):
            fit(f"c {ddl.format('decimal(10,2)')}", {"c": value})


def test_powers_of_two_are_not_zero() -> None:
    with pytest.raises(RowError, match=r"has more digits than decimal\(38,0\)"):
        fit("c decimal(38,0)", {"c": Decimal(2.0**-39)})


def test_decimals_among_others() -> None:
    class Own(Decimal):
        """Of a class of one's own."""

    assert fit("c decimal(10,2)", {"c": Own("1.5")}) == [[Decimal("1.50")]]
    assert fit("c array<decimal(10,2)>", {"c": [1, None, Decimal("0E-40"), Own(2)]}) == [
        [[Decimal(1), None, Decimal(0), Decimal(2)]]
    ]
    with pytest.raises(RowError, match="1E-41 has more digits"):
        fit("c array<decimal(10,2)>", {"c": [1, None, Decimal("1.5"), Own("1E-41")]})
    with pytest.raises(RowError, match="NaN is no number"):
        fit("c decimal(10,2)", {"c": Decimal("NaN")})


def test_what_else_does_not_fit_is_told_without_asking_arrow_of_such_a_decimal() -> None:
    far = Decimal("1E-5000000")
    columns = Columns(parse_ddl("c struct<d: decimal(10,2), m: map<string,int>>"))
    rows = [({"d": far, "m": None},), ({"d": None, "m": [None]},)]
    for order in (rows, rows[::-1]):
        with pytest.raises(RowError, match=r"has more digits|an entry of the map is None"):
            columns.arrays(order)


def test_ordinary_decimals_cost_one_call_each() -> None:
    columns = Columns(parse_ddl("c decimal(10,2)"))
    found: list[Counter[str]] = []
    for count in (100, 200):
        rows = [(Decimal(number) / 100,) for number in range(count)]
        columns.arrays(rows)
        found.append(Counter(calls_in(lambda rows=rows: columns.arrays(rows))))
    assert sum(found[1].values()) - sum(found[0].values()) <= 100
    assert found[1]["Context.plus"] <= 200


BITS = {pa.decimal32: 32, pa.decimal64: 64, pa.decimal128: 128, pa.decimal256: 256}
MOST = {32: 9, 64: 18, 128: 38, 256: 76}
SCALES = (-100, -60, -39, -38, -20, -19, -10, -1, 0, 1, 5, 9, 10, 18, 19, 20, 38, 39, 60, 76, 100)
TARGETS = [
    *(f"decimal({precision},{scale})" for precision, scale in [(10, 2), (38, 0), (38, 18), (38, 38), (9, 9)]),
    *("bigint", "tinyint"),
]


def one(kind: Any, number: int) -> Any:
    data = number.to_bytes(kind.bit_width // 8, "little", signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])


@pytest.mark.parametrize("make", BITS, ids=lambda make: make.__name__)
def test_what_arrow_casts_of_a_decimal_is_that_or_nothing(make: Any) -> None:
    columns = {ddl: Columns(parse_ddl(f"c {ddl}")) for ddl in TARGETS}
    most, taken = MOST[BITS[make]], 0
    for precision, scale in itertools.product((1, most // 2, most), SCALES):
        for number in (0, 1, 7, 10 ** (precision - 1), 10**precision - 1, -1):
            array = one(make(precision, scale), number)
            for ddl in TARGETS:
                try:
                    (found,) = columns[ddl].fit_arrow(pa.record_batch({"c": array})).column(0).to_pylist()
                except RowError:
                    continue
                taken += 1
                assert found == WIDE.scaleb(Decimal(number), -scale), (array.type, number, ddl)
    assert taken > 100


def nested(array: Any) -> list[tuple[str, Any]]:
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
    fixed = pa.FixedSizeListArray.from_arrays(array, 1)
    structs = pa.StructArray.from_arrays([pa.array(["k"]), array], ["y", "x"])
    return [
        ("{}", array),
        ("{}", array.dictionary_encode()),
        ("array<{}>", lists),
        ("array<{}>", lists.cast(pa.large_list(array.type))),
        ("array<{}>", fixed),
        ("struct<x: {}, y: string, z: int>", structs),
        ("map<string, {}>", pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), array)),
    ]


def test_a_large_decimal_that_gets_more_places_is_no_other_at_any_depth() -> None:
    """Arrow keeps its lowest 128 bits."""
    for ddl, array in nested(one(pa.decimal128(38, 9), 10**37)):
        with pytest.raises(RowError, match="a decimal of which Arrow's cast makes another number"):
            Columns(parse_ddl(f"c {ddl.format('decimal(38,38)')}")).fit_arrow(pa.table({"c": array}))
    for ddl, array in nested(one(pa.decimal128(38, 2), 150)):
        found = Columns(parse_ddl(f"c {ddl.format('decimal(18,4)')}")).fit_arrow(pa.table({"c": array}))
        assert "Decimal('1.5000')" in str(found.column(0).to_pylist())
    for ddl, array in nested(one(pa.decimal128(5, -100), 7)):
        with pytest.raises(RowError, match="of which Arrow makes other numbers: give rows with Decimals"):
            Columns(parse_ddl(f"c {ddl.format('decimal(10,2)')}")).fit_arrow(pa.table({"c": array}))


def test_nothing_is_a_decimal_that_is_null() -> None:
    for given in (pa.nulls(2), pa.array([None, None], pa.decimal128(38, 2)), pa.array(numpy.array([1, 2], "i1"))):
        found = Columns(parse_ddl("c decimal(38,4)")).fit_arrow(pa.table({"c": given}))
        assert found.column(0).to_pylist() == given.to_pylist()
