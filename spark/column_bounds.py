"""Of which columns Parquet's least and greatest values are true for every reader of a file that Arrow writes. Pure.

Arrow and delta-rs leave NaN out of them, as Parquet wants it. To Spark NaN is the greatest number: with `x > 6`, or `x`
equal to NaN, it passes over a file or row group whose greatest value is said to be 5; its own writer says none then.
"""

from __future__ import annotations

from typing import Any, Literal

import pyarrow

pa: Any = pyarrow


def with_bounds(schema: Any) -> list[str] | Literal[True]:
    """As Arrow's `write_statistics`: all columns of a schema without floats, else those that are no floats and not nested."""
    if not any(_has_floats(field.type) for field in schema):
        return True
    return [field.name for field in schema if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))]


def _has_floats(kind: Any) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))
