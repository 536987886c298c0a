"""Of which columns Parquet's least and greatest values are true for every reader of a file that Arrow writes. Pure.

Arrow and delta-rs leave NaN out of them, as Parquet wants it. To Spark NaN is the greatest number: with `x > 6`, or `x`
equal to NaN, it passes over a file or row group whose greatest value is said to be 5; its own writer says none then.

delta-rs copies them into Delta's log, as JSON, with decimals as binary numbers: of more digits than such a number keeps it
would be another value, and Spark would pass over files that have the rows.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow

pa: Any = pyarrow


EXACT_DIGITS: Final = 15
"""So many a binary number of 64 bits keeps."""


def with_bounds(schema: Any, *, in_log: bool = False) -> list[str] | Literal[True]:
    """As Arrow's `write_statistics`: all columns of a schema, else those that are of a true kind and not nested.

    `in_log`: delta-rs is to copy them."""
    if all(_is_true(field.type, in_log=in_log) for field in schema):
        return True
    return [
        field.name for field in schema if not pa.types.is_nested(field.type) and _is_true(field.type, in_log=in_log)
    ]


def has_floats(kind: Any) -> bool:
    """Whether a type is one of floats, or has one in it."""
    return pa.types.is_floating(kind) or any(has_floats(kind.field(n).type) for n in range(kind.num_fields))


def _is_true(kind: Any, *, in_log: bool) -> bool:
    inexact = pa.types.is_floating(kind) or (in_log and pa.types.is_decimal(kind) and kind.precision > EXACT_DIGITS)
    return not inexact and all(_is_true(kind.field(number).type, in_log=in_log) for number in range(kind.num_fields))
