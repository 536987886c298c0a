"""The columns of a file that is merged, where others have noted in it which kinds of lists they had."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from rocketcrew.spark.merged_file import schema_of, write_merged

pq: Any = pyarrow.parquet
MOMENT: Any = pa.timestamp("us", "UTC")
PAIR: Any = pa.struct([("s", pa.string()), ("t", MOMENT)])


@pytest.mark.parametrize(
    "kind",
    [pa.list_(PAIR), pa.list_(PAIR, 1), pa.large_list(PAIR), pa.large_list(MOMENT), pa.list_view(PAIR),
     pa.large_list_view(MOMENT)],
)  # fmt: skip
def test_times_in_96_bits_are_told_from_what_is_behind_any_list(kind: Any) -> None:
    file, merged = io.BytesIO(), io.BytesIO()
    one: Any = {"s": "s", "t": 1} if kind.value_type == PAIR else 1
    rows: Any = pa.table([pa.array([[one]], kind), ["z"], pa.array([1], MOMENT)], ["l", "s", "t"])
    try:
        pq.write_table(rows, file, use_deprecated_int96_timestamps=True)
    except pa.ArrowNotImplementedError:
        assert "view" in str(kind)
        pytest.skip("this Arrow writes no views into Parquet")
    opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    found = schema_of(opened)
    assert found.types[1:] == [pa.string(), MOMENT]
    assert str(found.types[0]) == str(kind).replace("item", "element")
    if "view" not in str(kind):  # Arrow (26) has no cast for those
        write_merged([opened.read()], found, merged, "snappy")
        assert pq.ParquetFile(merged).read().to_pylist() == rows.to_pylist()
