"""Reading a table without Spark: as a dataset of Arrow, and by DuckDB.

The views are those of spark/views.py. Parquet is read by pyarrow. For Parquet folders it verifies the checksums of pages,
which DuckDB would not; for Delta tables it does not, as delta-rs says how their files are read. Of Iceberg tables
pyiceberg names the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from ..conf.columns import BATCH_COLUMN
from ..conf.segment_format import EPOCH
from ..remoting.errors import UsageError
from ..spark.delta_log import LOG_DIR, is_delta
from ..spark.errors import LoaderError
from ..spark.iceberg_catalog import failures, is_iceberg
from ..spark.iceberg_catalog import short as short_line
from ..spark.object_store import KEYS_REMEDY, ObjectPath, Place, short
from ..spark.targets.iceberg import data_files, opened
from ..spark.views import UNREADABLE_REMEDY, latest_of, newest_state, table_ddl
from ..workers.ddl import table_schema

ds: Any = pyarrow.dataset


def dataset(table: Place) -> Any:
    """The table at `table` as a `pyarrow.dataset.Dataset`: all rows of all batches, with `batch_id`.

    Raises UsageError when nothing was loaded yet, LoaderError when the table's state can't be read.
    """
    if not isinstance(table, Path) or is_delta(table):
        return _delta(table)
    if is_iceberg(table):
        return _iceberg(table)
    state = newest_state(table)
    schema: Any = table_schema(table_ddl(state))
    folders = pa.schema([schema.field(name) for name in (BATCH_COLUMN, *state.partition_by)])
    files = [file for file in sorted(table.glob("batch_id=*/**/*.parquet")) if not file.name.startswith(("_", "."))]
    parquet = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    return ds.dataset([str(file) for file in files], schema=schema, format=parquet,
                      partitioning=ds.partitioning(folders, flavor="hive"), partition_base_dir=str(table))  # fmt: skip


def _delta(table: Place) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise UsageError(f"{table} is a Delta table: pip install 'rocketcrew[delta]' to read it") from None
    try:
        options = table.storage_options if isinstance(table, ObjectPath) else None
        delta: Any = DeltaTable(str(table), storage_options=options)  # its types are partial
        return delta.to_pyarrow_dataset()
    except OSError as error:
        if isinstance(table, Path):
            raise
        raise LoaderError(f"{table}: the S3 server can't be asked: {short(error)}. {KEYS_REMEDY}") from None
    except DeltaError as error:
        said = str(error).partition("\n")[0]  # what follows are the stacks of delta-rs
        raise LoaderError(
            f"the Delta table {table} can't be read: {said}. Look at its log ({table / LOG_DIR}), and put back what is"
            " damaged or gone; --engine spark asks Spark, which knows more of Delta's features"
        ) from None


def _iceberg(table: Path) -> Any:
    """Its files as a dataset, by name: pyiceberg would hold all rows in memory, and does where names do not tell."""
    target = opened(table)
    if not target.state().batch:
        raise UsageError(f"{table} holds no batch yet: nothing was loaded")
    found = target.table()
    try:
        names = {field.field_id: field.name for field in found.schema().fields}
        renamed = any(
            names.get(field.field_id, field.name) != field.name or field.name not in names.values()
            for schema in found.schemas().values()
            for field in schema.fields
        )
        if renamed or any(task.delete_files for task in found.scan().plan_files()):
            return found.scan().to_arrow()
        return ds.dataset([str(file) for file in data_files(found)], schema=found.schema().as_arrow(), format="parquet")
    except failures() as error:
        raise LoaderError(f"the Iceberg table {table} can't be read: {short_line(error)}") from None


class DuckViews:
    """The views `results` and `latest` of a table in a DuckDB of its own, in memory. Raises as `dataset`."""

    def __init__(self, table: Place) -> None:
        import duckdb

        self._duckdb: Any = duckdb
        # An extension that is not there is an error in words, not a download.
        self._connection = self._duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        rows = dataset(table)
        self._connection.register("results", rows)
        self._connection.execute(f"CREATE VIEW latest AS {latest_of(EPOCH in rows.schema.names, 'EXCLUDE')}")

    def answer(self, statement: str) -> list[Mapping[str, Any]]:
        """The rows of a statement. Raises UsageError when DuckDB refuses it, LoaderError when the table can't be read."""
        errors = self._duckdb
        refused = (errors.ParserException, errors.CatalogException, errors.BinderException)
        try:
            found = self._connection.sql(statement)
            return [] if found is None else list(found.to_arrow_table().to_pylist())
        except refused as error:
            raise UsageError(f"{statement!r}: {error}. That was DuckDB; --engine spark asks Spark") from None
        except (errors.Error, pa.ArrowException, OSError) as error:
            raise LoaderError(f"{statement!r} failed: {error}. {UNREADABLE_REMEDY}") from None

    def close(self) -> None:
        """Free what it holds."""
        self._connection.close()
