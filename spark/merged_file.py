"""Rows of several Parquet files as one: what `compact` and the background merging of small files write alike."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from .column_bounds import with_bounds

pa: Any = pyarrow
pq: Any = pyarrow.parquet

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Of rows that wait in memory."""
_FLOATS: Final = ("FLOAT", "DOUBLE")


def write_merged(tables: Iterable[Any], schema: Any, output: Any, compression: str) -> None:
    """All rows of `tables`, in order, as one file of `schema`; columns that some lack are null there.

    `output`: a path, or what Arrow writes into. Raises Arrow's errors.
    """
    with pq.ParquetWriter(
        output,
        schema,
        compression=compression,
        use_dictionary=_with_dictionary(schema),
        store_schema=False,
        write_page_checksum=True,
        write_statistics=with_bounds(schema),
    ) as writer:
        waiting: list[Any] = []
        waiting_bytes = 0
        for table in tables:
            waiting.append(_filled(table, schema))
            waiting_bytes += waiting[-1].nbytes
            if waiting_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _with_dictionary(schema: Any) -> list[str]:
    """The columns of a file of `schema`, also those within others, that are no floats: Spark passes over a row group whose
    dictionary has not the very bits, and so over -0.0 where 0.0 is asked for."""
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.ParquetFile(empty).schema
    return [one.path for one in map(columns.column, range(len(columns))) if one.physical_type not in _FLOATS]


def compression_of(opened: Any) -> str:
    """The codec of an opened Parquet file, as Arrow's writer takes it."""
    return str(opened.metadata.row_group(0).column(0).compression) if opened.metadata.num_row_groups else "SNAPPY"


def _filled(table: Any, schema: Any) -> Any:
    names = set(table.column_names)
    arrays = [
        table.column(field.name) if field.name in names else pa.nulls(table.num_rows, field.type) for field in schema
    ]
    return pa.table(arrays, schema=schema)
