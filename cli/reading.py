"""Reading a table without Spark: as a dataset of Arrow, and by DuckDB.

The views are those of spark/views.py. Parquet is read by pyarrow, which verifies the checksums of pages, as DuckDB would
not. Of Delta tables delta-rs names the files, and of Iceberg tables pyiceberg; the latter's checksums are not verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs

from ..conf.columns import BATCH_COLUMN
from ..conf.segment_format import EPOCH
from ..remoting.errors import UsageError
from ..spark.delta_files import has_deletion_vectors, own_files
from ..spark.delta_log import LOG_DIR, check_path, is_delta
from ..spark.delta_snapshot import mapped_columns
from ..spark.errors import LoaderError
from ..spark.iceberg_catalog import failures, is_iceberg, local_path
from ..spark.iceberg_catalog import short as short_line
from ..spark.object_store import KEYS_REMEDY, ObjectPath, Place, short
from ..spark.targets.iceberg import opened
from ..spark.views import UNREADABLE_REMEDY, latest_of, newest_state, nothing_loaded, refuse_foreign, table_ddl
from ..workers.ddl import table_schema

ds: Any = pyarrow.dataset
pc: Any = pyarrow.compute

ASK_SPARK: Final = "--engine spark asks Spark, which knows more of Delta's features"
_FEATURES: Final = {
    "columnMapping", "deletionVectors", "timestampNtz", "variantType", "variantType-preview",
    "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Of Delta's features for readers: those with which the files can be read, or which are looked at one by one; the last two
concern the log, which is delta-rs's to read, and those who delete files."""
_FOOTERS_AT_ONCE: Final = 16
"""Files of a Delta table whose footers are read side by side: a bucket takes some 20 ms for one."""
_DICTIONARY_BYTES_MAX: Final = 2**31 - 1
"""What Arrow holds of a column's distinct texts in one row group."""


def _format(texts: Sequence[str] = ()) -> Any:
    """How Parquet files are read; `texts`: columns that are read as dictionaries."""
    return ds.ParquetFileFormat(
        # In 96 bits, times that are read as nanoseconds would end in 2262.
        ds.ParquetReadOptions(dictionary_columns=texts, coerce_int96_timestamp_unit="us"),
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
    )


_PARQUET: Final = _format()
_PLAIN_PARQUET: Final = ds.ParquetFileFormat()
_LOCAL: Final = pyarrow.fs.LocalFileSystem()


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
    return ds.dataset([str(file) for file in files], schema=schema, format=_PARQUET,
                      partitioning=ds.partitioning(folders, flavor="hive"), partition_base_dir=str(table))  # fmt: skip


def _delta(table: Place) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise UsageError(f"{table} is a Delta table: pip install 'rocketcrew[delta]' to read it") from None
    if not is_delta(table):  # in a bucket
        raise nothing_loaded(table)
    check_path(table)
    try:
        options = table.storage_options if isinstance(table, ObjectPath) else None
        delta: Any = DeltaTable(str(table), storage_options=options)  # its types are partial
        if why := _unread(table, delta, DeltaError):
            raise LoaderError(f"the Delta table {table} can't be read: {why}. {ASK_SPARK}")
        return _files(table, delta, options)
    except OSError as error:
        if isinstance(table, Path):
            raise
        raise LoaderError(f"{table}: the S3 server can't be asked: {short(error)}. {KEYS_REMEDY}") from None
    except DeltaError as error:
        said = str(error).partition("\n")[0]  # what follows are the stacks of delta-rs
        raise LoaderError(
            f"the Delta table {table} can't be read: {said}. Look at its log ({table / LOG_DIR}), and put back what is"
            f" damaged or gone; {ASK_SPARK}"
        ) from None


def _unread(table: Place, delta: Any, errors: type[Exception]) -> str:
    """Why the files of the table do not tell its rows; empty where they do."""
    features: set[str] = set(delta.protocol().reader_features or ())
    if unknown := features - _FEATURES:
        return f"it has features of Delta that are not known here ({', '.join(sorted(unknown))})"
    if mapped := mapped_columns(delta):
        return f"its files have other names for {', '.join(mapped)} (Delta's column mapping, by a renamed column, say)"
    if has_deletion_vectors(table, delta, errors):
        return "it has deletion vectors, and the rows that they delete are in its files still"
    return ""


def _files(table: Place, delta: Any, options: dict[str, str] | None) -> Any:
    """Every file of the newest version, with what its folders say of it. The bounds of the log, which delta-rs's own dataset
    goes by, are left alone: Arrow leaves out files in which a filter would find rows, where a file's bounds or a column that
    came later are not noted, and one date that Python does not have makes the table unreadable."""
    from deltalake.fs import DeltaStorageHandler

    kinds: Any = pa
    schema: Any = kinds.schema(delta.schema().to_arrow())
    added: Any = kinds.table(delta.get_add_actions())
    paths = own_files(table, added)
    sizes = dict(zip(paths, added.column("size_bytes").to_pylist(), strict=True))
    handler: Any = DeltaStorageHandler(delta.table_uri, options, sizes)
    files = pyarrow.fs.PyFileSystem(handler)
    told = _told_by_folders(added, [schema.field(name) for name in delta.metadata().partition_columns])
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "footers") as threads:
        made = list(threads.map(partial(_fragment, files), paths, told))
    return ds.FileSystemDataset(made, schema, _PARQUET, files)


def _fragment(files: Any, path: str, said: Any) -> Any:
    """A file in which filters work. Arrow (26) does not compare a text with the bounds of a column that its file calls a
    view; delta-rs writes such files at UPDATE, DELETE and MERGE. Read as dictionaries, these columns have bounds that are
    texts."""
    found = _PARQUET.make_fragment(path, files, said)
    try:
        kinds, about = found.physical_schema.types, found.metadata
    except (pa.ArrowException, OSError):
        return found  # whoever reads its rows is told
    sizes = (about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if not any(map(_has_views, kinds)) or max(sizes, default=0) > _DICTIONARY_BYTES_MAX:
        return found
    columns = map(about.schema.column, range(len(about.schema)))
    texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY" and not one.max_repetition_level]
    return _format(texts).make_fragment(path, files, said)


def _has_views(kind: Any) -> bool:
    """Whether the type, or one in a struct, is a view: filters reach no further."""
    types: Any = pa.types
    if types.is_struct(kind):
        return any(_has_views(field.type) for field in kind)
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _told_by_folders(added: Any, folders: list[Any]) -> Iterator[Any]:
    """Of each file what its values of the columns `folders` are, as an expression."""
    values = [pc.struct_field(added.column("partition"), field.name).cast(field.type) for field in folders]
    for row in range(added.num_rows):
        said: Any = ds.scalar(True)
        for field, column in zip(folders, values, strict=True):
            one = ds.field(field.name)
            said = said & (one == column[row] if column[row].is_valid else one.is_null())
        yield said


def _iceberg(table: Path) -> Any:
    """Its files as a dataset, by name: pyiceberg would hold all rows in memory, and does where names do not tell."""
    target = opened(table)
    if not target.state().batch:
        raise nothing_loaded(table)
    found = target.table()
    try:
        schema, scan = found.schema(), found.scan()
        tasks = list(scan.plan_files())
        if _are_plain(schema, tasks):
            paths = [str(local_path(task.file.file_path)) for task in tasks]
            with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "footers") as threads:
                files = list(threads.map(_PLAIN_PARQUET.make_fragment, paths, repeat(_LOCAL)))
                written = {str(one): one for one in threads.map(_schema_of, files)}
            if all(_names_tell(schema, one) for one in written.values()):
                return ds.FileSystemDataset(files, schema.as_arrow(), _PLAIN_PARQUET, _LOCAL)
        return ds.dataset(scan.to_arrow())
    except failures() as error:
        raise LoaderError(f"the Iceberg table {table} can't be read: {short_line(error)}") from None


def _are_plain(schema: Any, tasks: Sequence[Any]) -> bool:
    """Whether the files have every row and value of an Iceberg table, and no more: no deletes, nor values that a column that
    came later has in older rows."""
    from pyiceberg.manifest import FileFormat
    from pyiceberg.schema import index_by_id

    fields: list[Any] = list(index_by_id(schema).values())
    if any(field.initial_default is not None for field in fields):
        return False
    return not any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks)


def _schema_of(file: Any) -> Any:
    """As the file has it, with the numbers of its columns; None of one that can't be read: whoever reads its rows is told."""
    try:
        return file.physical_schema.remove_metadata()
    except (pa.ArrowException, OSError):
        return None


def _names_tell(schema: Any, written: Any) -> bool:
    """Whether every name in files of the schema `written`, also within nested columns, is that of the same column of an
    Iceberg table today.

    It is not where a column was renamed, dropped or made anew, and where the writer had to write another name into the file:
    `net total` is `net_x20total` there. The table's former schemas do not tell: they go with the snapshots that had them.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import index_name_by_id

    try:
        return (
            written is None or index_name_by_id(pyarrow_to_schema(written)).items() <= index_name_by_id(schema).items()
        )
    except (ValueError, TypeError):
        return False  # of a type that Iceberg does not have, or without numbers


def rows_of(table: Any) -> list[Mapping[str, Any]]:
    """The rows of an Arrow table; times that Python has none for, outside of its years, are texts."""
    columns: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (OverflowError, ValueError):
            columns[name] = column.cast(_with_texts(column.type)).to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _with_texts(kind: Any) -> Any:
    """The type with a string for each time in it."""
    types: Any = pa.types
    if types.is_temporal(kind):
        return pa.string()
    if types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_with_texts(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    return kind


class DuckViews:
    """The views `results` and `latest` of a table in a DuckDB of its own, in memory. Raises as `dataset`."""

    def __init__(self, table: Place) -> None:
        import duckdb

        self._duckdb: Any = duckdb
        # An extension that is not there is an error in words, not a download.
        self._connection = self._duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        rows = dataset(table)
        refuse_foreign(table, rows.schema.names)
        self._connection.register("results", rows)
        self._connection.execute(f"CREATE VIEW latest AS {latest_of(EPOCH in rows.schema.names, 'EXCLUDE')}")

    def answer(self, statement: str) -> list[Mapping[str, Any]]:
        """The rows of a statement. Raises UsageError when DuckDB refuses it, LoaderError when the table can't be read."""
        errors = self._duckdb
        refused = (errors.ParserException, errors.CatalogException, errors.BinderException)
        try:
            found = self._connection.sql(statement)
            return [] if found is None else rows_of(found.to_arrow_table())
        except refused as error:
            raise UsageError(f"{statement!r}: {error}. That was DuckDB; --engine spark asks Spark") from None
        except (errors.Error, pa.ArrowException, OSError) as error:
            raise LoaderError(f"{statement!r} failed: {error}. {UNREADABLE_REMEDY}") from None

    def close(self) -> None:
        """Free what it holds."""
        self._connection.close()
