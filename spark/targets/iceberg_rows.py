"""The rows of a batch as an Iceberg table takes them. Others change its schema too, and what they have declared stays.

A batch adds the columns that the table does not have, all nullable. Those that it has are left as they are: that one that is
NOT NULL would get a null, or one of another type a value that it can't have, is refused with the command that helps. Only
fields within a column become nullable where rows say so: there the loader itself declares NOT NULL what handlers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.compute
import pyarrow.dataset

from ...conf.columns import BATCH_COLUMN, quoted
from ..errors import LoaderError
from ..iceberg_catalog import partition_columns
from .delta import numbered_rows

pa: Any = pyarrow
pc: Any = pyarrow.compute
ds: Any = pyarrow.dataset
PIECE_ROWS: Final = 1_000_000
"""Rows of a partitioned table that are in memory at once: pyiceberg streams only those of others."""


def fitted_rows(table: Any, files: Sequence[Path], batch: int) -> Any:
    """All rows as a RecordBatchReader, as the table takes them. Raises LoaderError where it does not."""
    schema = table.schema()
    required = {field.name for field in schema.fields if field.required}
    needed = {*required, *partition_columns(table)} - {BATCH_COLUMN}  # pyiceberg appends no rows that lack one
    known = [field.remove_metadata().with_nullable(True) for field in schema.as_arrow() if field.name in needed]
    rows = numbered_rows(files, batch, known)
    _refuse_nulls(table, files, rows.schema, sorted(required - {BATCH_COLUMN}))
    told = pa.schema([field.with_nullable(field.nullable and field.name not in required) for field in rows.schema])
    return pa.RecordBatchReader.from_batches(
        told, (pa.RecordBatch.from_arrays(one.columns, schema=told) for one in rows)
    )


def pieces(rows: Any) -> Iterator[Any]:
    """The rows as tables of about PIECE_ROWS each."""
    held: list[Any] = []
    for batch in rows:
        held.append(batch)
        if sum(one.num_rows for one in held) >= PIECE_ROWS:
            yield pa.Table.from_batches(held, rows.schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, rows.schema)


def add_columns(table: Any, update: Any, schema: Any) -> list[str]:
    """Add to pyiceberg's `update` what rows of `schema` have and the table has not; which columns these are.

    Raises LoaderError for a column that the table has as another type.
    """
    from pyiceberg.exceptions import ResolveError, ValidationError
    from pyiceberg.schema import promote

    there = {field.name: field for field in table.schema().fields}
    for field in schema:
        if field.name not in there:
            update.union_by_name(pa.schema([field.with_nullable(True)]))
            continue
        one = there[field.name]
        theirs, given = one.field_type, pa.schema([field.with_nullable(one.optional)])
        ours = _type_of(given)
        try:
            if not theirs.is_primitive:
                update.union_by_name(given)
            elif theirs != ours:
                promote(ours, theirs)
        except (ResolveError, ValidationError, ValueError):
            raise _refused(
                table,
                f"column {field.name} is {theirs} there, as others have made it, and rows have {ours}",
                f"RENAME COLUMN {quoted(field.name)} TO another name in Spark, or the same by rename_column of pyiceberg's"
                " update_schema; the loader then adds its own",
            ) from None
    return [name for name in schema.names if name not in there]


def _type_of(given: Any) -> Any:
    """Iceberg's type of the only column of a schema of Arrow."""
    import pyiceberg.catalog

    catalog: Any = pyiceberg.catalog.Catalog  # it has no public name for what its update_schema does
    return catalog._convert_schema_if_needed(given).fields[0].field_type


def _refuse_nulls(table: Any, files: Sequence[Path], schema: Any, required: Sequence[str]) -> None:
    if not required:
        return
    rows = ds.dataset([str(file) for file in files], schema=schema, format="parquet")
    for name in required:
        if nulls := rows.count_rows(filter=pc.field(name).is_null()):
            raise _refused(
                table,
                f"column {name} is NOT NULL there, as others have made it, and {nulls} of the rows have null",
                f"ALTER COLUMN {quoted(name)} DROP NOT NULL in Spark (after DROP IDENTIFIER FIELDS, where it is one), or the"
                " same by make_column_optional of pyiceberg's update_schema",
            )


def _refused(table: Any, why: str, change: str) -> LoaderError:
    name = ".".join(table.name())
    return LoaderError(
        f"rows do not fit the Iceberg table {name}: {why}. ALTER TABLE {name} {change}. The segments stay"
    )
