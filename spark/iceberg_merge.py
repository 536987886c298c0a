"""Small files of an Iceberg table on this host become large ones: a snapshot of the operation `replace`, by pyiceberg.

pyiceberg (0.12) has no such action, only an overwrite, at which a stream of Spark's ends; a `replace` it passes over. So the
snapshot is put together here, from pyiceberg's parts, and the target commits it like a batch: `main` and the tag must be
still where they were when the files were read. Rows that somebody has deleted meanwhile stay deleted, as the merge is lost
then. The old files stay: older snapshots name them, and slow readers read them. When the last of those snapshots has
expired, they are what `replaced` finds.

What cannot be merged without losing something is let be: files with deletes, of another partition spec or with a sort order,
in another format than Parquet, encrypted; and all files of format version 3, whose rows have ids that pyiceberg loses.

Which files are worth it is decided in merging.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyiceberg.io.pyarrow
import pyiceberg.manifest
import pyiceberg.table.snapshots
import pyiceberg.table.update.snapshot
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import load_location_provider

from ..client.logs import get_logger
from .errors import LoaderError, unreadable
from .iceberg_catalog import local_path, short
from .merging import MergeBounds, SmallFile, merge_each

pa: Any = pyarrow
_arrow: Any = pyiceberg.io.pyarrow
_made: Any = pyiceberg.manifest
_snapshots: Any = pyiceberg.table.snapshots
_producers: Any = pyiceberg.table.update.snapshot
VERSION_MAX: Final = 2
"""The newest format version whose rows have no ids of their own."""
PIECE_BYTES: Final = 32 * 1024 * 1024
"""Rows in memory that become a row group."""


class Merge:
    """Files that were written in place of others, and the snapshot that says so; no catalog knows it yet."""

    def __init__(self, table: Any, new: Mapping[Any, Sequence[Any]], marks: Mapping[str, str]) -> None:
        """`new`: the written files, with those that each is in place of. `marks`: of the snapshot."""
        self._table = table
        self._new = [one.file_path for one in new]
        self.files = sum(map(len, new.values()))
        self.made = len(new)
        self._snapshot = _Replacing(
            operation=_snapshots.Operation.OVERWRITE, transaction=table.transaction(), io=table.io,
            snapshot_properties=dict(marks),
        )  # fmt: skip
        for one, olds in new.items():
            self._snapshot.append_data_file(one)
            for old in olds:
                self._snapshot.delete_data_file(old)
        try:
            updates, _ = self._snapshot._commit()
        except Exception:
            self._delete_manifests()
            raise
        self.updates: tuple[Any, ...] = (updates[0],)
        """What adds the snapshot to the table's metadata."""
        self.snapshot = int(self._snapshot.snapshot_id)

    def was_made(self, table: Any) -> bool:
        """Whether `table`, as it is now, has the snapshot."""
        return table.snapshot_by_id(self.snapshot) is not None

    def discard(self) -> None:
        """Delete what was written for a snapshot that will never be in the table."""
        self._delete_manifests()
        for path in self._new:
            self._table.io.delete(path)

    def _delete_manifests(self) -> None:
        # pyiceberg's own _clean_all_uncommitted prints a traceback for each that was not begun.
        of = self._snapshot
        for path in (*of._uncommitted_manifests, *of._written_manifests, *of._written_manifest_lists):
            _delete(self._table, path)


class _Replacing(_producers._OverwriteFiles):  # type: ignore[misc]
    """pyiceberg's overwrite, which finds the old files in their manifests; it counts for none but its own operations."""

    def _summary(self, snapshot_properties: Mapping[str, str]) -> Any:
        counted = _producers._OverwriteFiles._summary(self, snapshot_properties)
        return _snapshots.Summary(operation=_snapshots.Operation.REPLACE, **counted.additional_properties)


def write_merged(table: Any, bounds: MergeBounds, marks: Mapping[str, str]) -> Merge | None:
    """Write large files for small ones of `main`, as far as `bounds` go; None where there is nothing to do.

    What was written is deleted where it can't be brought to an end. Raises LoaderError where there are only files that can't
    be read.
    """
    files = mergeable(table)
    new: dict[Any, list[Any]] = {}
    damaged: list[LoaderError] = []

    def merged(group: Sequence[SmallFile]) -> bool:
        olds = [files[one.path][1] for one in group]
        try:
            new[_written(table, olds)] = olds
        except LoaderError as error:
            damaged.append(error)
            return False
        return True

    try:
        merge_each([small for small, _ in files.values()], bounds, merged)
        merge = Merge(table, new, marks) if new else None
    except Exception:
        for one in new:
            _delete(table, one.file_path)
        raise
    if damaged and merge is None:
        raise damaged[0]
    for error in damaged:
        get_logger().warning("iceberg_files_not_merged", table=".".join(table.name()), error=short(error))
    return merge


def mergeable(table: Any) -> dict[str, tuple[SmallFile, Any]]:
    """The files of `main` that may be merged, by their paths."""
    head = table.current_snapshot()
    if head is None or table.metadata.format_version > VERSION_MAX:
        return {}
    made_ms = {one.snapshot_id: one.timestamp_ms for one in table.metadata.snapshots}
    manifests = head.manifests(table.io)
    let_be: set[str] = set()
    if any(one.content == ManifestContent.DELETES for one in manifests):
        let_be = {task.file.file_path for task in table.scan().plan_files() if task.delete_files}
    found: dict[str, tuple[SmallFile, Any]] = {}
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA or manifest.partition_spec_id != table.metadata.default_spec_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            if file.file_path not in let_be and is_plain(file):
                small = SmallFile(
                    file.file_path, file.file_size_in_bytes, file.record_count, partition=tuple(file.partition),
                    made_ms=made_ms.get(entry.snapshot_id, 0),
                )  # fmt: skip
                found[file.file_path] = (small, file)
    return found


def replaced(table: Any, merges: Iterable[int]) -> list[Path]:
    """The files within the table's folder that those snapshots have taken out, and that `main` does not have."""
    gone: set[str] = set()
    for merge in merges:
        for manifest in table.snapshot_by_id(merge).manifests(table.io):
            if manifest.added_snapshot_id == merge and manifest.content == ManifestContent.DATA:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                gone |= {one.data_file.file_path for one in entries if one.status == ManifestEntryStatus.DELETED}
    if gone and (head := table.current_snapshot()) is not None:  # somebody may have put one in again, by its name
        for manifest in head.manifests(table.io):
            gone -= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
    folder = local_path(table.location())
    return sorted(path for path in map(local_path, gone) if path.is_relative_to(folder))


def is_plain(file: Any) -> bool:
    """Whether it is nothing but rows, in no order, that can be read and written anew."""
    of_rows: bool = file.content == DataFileContent.DATA and file.file_format == FileFormat.PARQUET
    return of_rows and not file.sort_order_id and not file.key_metadata


def _written(table: Any, olds: Sequence[Any]) -> Any:
    """The file with all rows of `olds`, which are of one partition. Raises LoaderError for one that can't be read."""
    metadata = table.metadata
    spec, schema, partition = metadata.spec(), metadata.schema(), olds[0].partition
    name = f"00000-0-{uuid.uuid4()}.parquet"
    folder = "" if spec.is_unpartitioned() else f"{spec.partition_to_path(partition, schema)}/"
    places = load_location_provider(table_location=metadata.location, table_properties=metadata.properties)
    output = table.io.new_output(places.new_data_location(folder + name))
    try:
        counted = _write_rows(table, olds, output)
        return _made.DataFile.from_args(
            content=DataFileContent.DATA, file_path=output.location, file_format=FileFormat.PARQUET, partition=partition,
            file_size_in_bytes=len(output), sort_order_id=None, spec_id=metadata.default_spec_id, equality_ids=None,
            key_metadata=None, **counted,
        )  # fmt: skip
    except Exception:
        _delete(table, output.location)
        raise


def _delete(table: Any, path: str) -> None:
    """Delete a file that no snapshot names. That it can't be hides no other failure."""
    with suppress(OSError):
        table.io.delete(path)


def _write_rows(table: Any, olds: Sequence[Any], output: Any) -> dict[str, Any]:
    """Write all rows of `olds`; what there is to be said of them in a manifest."""
    metadata = table.metadata
    schema = metadata.schema()
    model = FileFormatFactory.get(FileFormat.PARQUET)
    in_file = sanitize_column_names(schema)
    whole = schema_to_pyarrow(in_file)
    writing = model.create_writer(output, in_file, metadata.properties)
    with writing:
        for piece in _pieces(table, olds):
            named = (
                _arrow._to_requested_schema(in_file, schema, rows, include_field_ids=True, format_model=model)
                for rows in piece
            )
            # Files of different versions of the schema have their columns as other types of Arrow.
            writing.write(pa.concat_tables([pa.Table.from_batches([rows]).cast(whole) for rows in named]))
    counted: dict[str, Any] = writing.result().to_serialized_dict()
    return counted


def _pieces(table: Any, olds: Sequence[Any]) -> Iterator[list[Any]]:
    """Their rows by the table's schema, in pieces of about PIECE_BYTES, one file after the other."""
    scan = ArrowScan(table.metadata, table.io, table.metadata.schema(), AlwaysTrue())
    held: list[Any] = []
    for old in olds:
        for rows in _read(scan, old):
            held.append(rows)
            if sum(one.nbytes for one in held) >= PIECE_BYTES:
                yield held
                held = []
    if held:
        yield held


def _read(scan: Any, old: Any) -> Iterator[Any]:
    try:
        yield from scan.to_record_batches([FileScanTask(old)])
    except (pa.ArrowException, OSError) as error:
        raise LoaderError(unreadable(old.file_path, error, iceberg=True)) from None
