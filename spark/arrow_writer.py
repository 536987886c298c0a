"""Writers without Spark: nothing to start, nothing that dies.

What Spark gets from the loader is Parquet already (convert.py). Where that has the table's types and no partition folders are
wanted, the staged files themselves become the table's; else Arrow writes them once more. The commit is the target's, and the
same as with Spark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from ..conf.columns import Column, plain_schema
from ..conf.folders import in_folder_name
from .column_bounds import with_bounds
from .convert import REPEATING
from .errors import LoaderError
from .object_store import Place

pa: Any = pyarrow
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

FOLDERS_AT_ONCE = 512
"""Folders that are written into at one time: in each is an open file, of which a process has 1,024 as a rule."""
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


class NoWriter:
    """For targets that commit in this process."""

    session = None
    start_seconds = 0.0

    def check(self) -> None:
        """There is nothing that could be missing."""

    def start(self) -> None:
        """There is nothing to start."""

    def write(self, files: Sequence[Path], output: Place, columns: Sequence[Column], bytes_in: int) -> None:
        """Never asked for."""
        raise RuntimeError(
            f"nothing here writes {len(files)} files of {len(columns)} columns, {bytes_in} bytes to {output}"
        )

    def cancel(self) -> None:
        """What is done in this process is short: it is not interrupted."""

    def tasks(self) -> tuple[int, int]:
        """There are no tasks."""
        return 0, 0

    def close(self) -> None:
        """There is nothing to end."""


class ArrowWriter(NoWriter):
    """Writes Parquet files in this process; `partition_by`: a folder for each value of these columns, named as Spark does."""

    def __init__(self, partition_by: Sequence[str] = (), folders_at_once: int = FOLDERS_AT_ONCE) -> None:
        self._partition_by = tuple(partition_by)
        self._folders_at_once = folders_at_once

    def write(self, files: Sequence[Path], output: Place, columns: Sequence[Column], bytes_in: int) -> None:
        """As `Writer.write`; a column that a staged file lacks its copy lacks too, which readers show as null."""
        del columns, bytes_in
        assert isinstance(output, Path), "elsewhere only Spark writes"
        output.mkdir(parents=True)
        for place, file in enumerate(files):
            stored = pq.read_schema(str(file))
            schema = plain_schema(stored)
            if not self._partition_by and stored.types == schema.types:
                _place(file, output / f"part-{place:05d}.parquet")
                continue
            try:
                self._rewrite(file, schema, output, f"part-{place:05d}.parquet")
            except pa.ArrowInvalid as error:
                by = ", ".join(self._partition_by)
                raise LoaderError(
                    f"the rows could not be written to {output} by {by or 'Arrow'}: {error}. The segments stay"
                ) from None

    def _rewrite(self, file: Path, schema: Any, output: Path, name: str) -> None:
        """A file in each folder; where there are many folders, some of them in each pass over the rows.

        Arrow's own write_dataset names folders as URLs are, with three characters for each byte beyond ASCII, which Spark
        takes for as many letters.
        """
        by = self._partition_by
        folders = _folders(file, schema, by)
        for start in range(0, len(folders), self._folders_at_once):
            some = folders[start : start + self._folders_at_once]
            with ExitStack() as writers:
                opened: dict[str, Any] = {}
                for batch in _batches(file, schema, by, None if len(some) == len(folders) else some):
                    for folder, rows in _spread(batch, by):
                        if folder not in opened:
                            (output / folder).mkdir(parents=True, exist_ok=True)
                            opened[folder] = writers.enter_context(_writer(output / folder / name, rows.schema))
                        opened[folder].write_batch(rows)


def _writer(file: Path, schema: Any) -> Any:
    return pq.ParquetWriter(
        str(file),
        schema,
        compression="snappy",
        use_dictionary=REPEATING,
        store_schema=False,
        write_page_checksum=True,
        write_statistics=with_bounds(schema),
    )


def _folders(file: Path, schema: Any, by: Sequence[str]) -> Any:
    """The folders that a file's rows go to."""
    columns = pa.schema([schema.field(name) for name in by if name in schema.names])
    if not columns:
        return pa.array(["/".join(f"{name}={_NULL_FOLDER}" for name in by)])
    folders: Any = pa.array([], pa.string())
    for batch in pq.ParquetFile(str(file)).iter_batches(columns=columns.names):
        here = _folder_of(_with_names(batch.select(columns.names).cast(columns), by), by)
        folders = pa.concat_arrays([folders, here.unique()]).unique()
    return folders


def _batches(file: Path, schema: Any, by: Sequence[str] = (), folders: Any = None) -> Iterator[Any]:
    """The rows of a file, those that go to `folders` (None: all)."""
    for rows in pq.ParquetFile(str(file)).iter_batches():
        batch = _with_names(rows.cast(schema), by)
        yield batch if folders is None else batch.filter(pc.is_in(_folder_of(batch, by), folders))


def _with_names(batch: Any, by: Sequence[str]) -> Any:
    """The rows with the values of the columns `by` as they are in the names of folders; a column that they lack is null."""
    for name in by:
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.nulls(len(batch), pa.string()))
            continue
        column = batch.column(name)
        values = column.unique()
        # A folder named "day=" is no value to any reader. Spark does the same.
        names = [in_folder_name(value) if value else None for value in values.cast(pa.string()).to_pylist()]
        told = pa.array(names, pa.string()).take(pc.index_in(column, values))
        batch = batch.set_column(batch.schema.get_field_index(name), name, told)
    return batch


def _folder_of(named: Any, by: Sequence[str]) -> Any:
    """Of each row the path of its folder; no name has a slash in it."""
    names = [pc.binary_join_element_wise(name, pc.fill_null(named.column(name), _NULL_FOLDER), "=") for name in by]
    return pc.binary_join_element_wise(*names, "/") if names else pa.array([""] * len(named), pa.string())


def _spread(named: Any, by: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The rows of each folder, in their order."""
    encoded = _folder_of(named, by).dictionary_encode()
    rest = named.drop_columns(list(by)).take(pc.sort_indices(encoded.indices))
    start = 0
    counts = {one["values"]: one["counts"] for one in encoded.indices.value_counts().to_pylist()}
    for number, folder in enumerate(encoded.dictionary.to_pylist()):
        yield folder, rest.slice(start, counts[number])
        start += counts[number]


def _place(file: Path, target: Path) -> None:
    """Without a copy where both lie on one file system."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
