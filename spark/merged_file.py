"""Rows of several Parquet files as one: what `compact` and the background merging of small files write alike."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from .column_bounds import with_bounds

pa: Any = pyarrow
pq: Any = pyarrow.parquet

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Of rows that wait in memory."""
_FLOATS: Final = ("FLOAT", "DOUBLE")
_LISTS: Final = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_fixed_size_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)
"""What others have noted in a file as its types, all of them lists to Parquet."""


def open_part(source: Any) -> Any:
    """A file to be merged: a path, or what Arrow reads from. Raises Arrow's errors, OSError."""
    # Times in 96 bits, as Spark can write them, would end in 2262 as nanoseconds.
    return pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us")


def schema_of(opened: Any) -> Any:
    """The columns of an opened file, each nullable, also within others: a table's are, whatever a handler declares NOT NULL,
    and the files beside this one may lack some. Times in 96 bits are moments, which the file does not say: Spark writes no
    others so."""
    schema: Any = opened.schema_arrow.remove_metadata()
    stored = iter([one.physical_type for one in map(opened.schema.column, range(len(opened.schema)))])
    return pa.schema([_as_in_table(field, stored) for field in schema])


def _as_in_table(field: Any, stored: Iterator[str]) -> Any:
    """`stored`: how the leaves of this field, and of those behind it, are stored."""
    kind = field.type
    if kind.num_fields:
        return field.with_type(_with_fields(kind, lambda within: _as_in_table(within, stored))).with_nullable(True)
    return field.with_type(pa.timestamp("us", "UTC") if next(stored) == "INT96" else kind).with_nullable(True)


def _with_fields(kind: Any, change: Callable[[Any], Any]) -> Any:
    """A nested type with what `change` makes of each field in it."""
    types: Any = pa.types
    if types.is_map(kind):
        return pa.map_(change(kind.key_field).with_nullable(False), change(kind.item_field))
    for is_one, made in _LISTS:
        if is_one(kind):
            size = (kind.list_size,) if types.is_fixed_size_list(kind) else ()
            return made(change(kind.value_field), *size)
    return pa.struct([change(field) for field in kind])


def write_merged(tables: Iterable[Any], schema: Any, output: Any, compression: str) -> None:
    """All rows of `tables`, in order, as one file with the columns and types of `schema`; what some lack is null there.

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
        table.column(field.name).cast(field.type) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
