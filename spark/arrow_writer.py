"""Writers without Spark: nothing to start, nothing that dies.

What Spark gets from the loader is Parquet already (convert.py). Where that has the table's types and no partition folders are
wanted, the staged files themselves become the table's; else Arrow writes them once more. The commit is the target's, and the
same as with Spark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

from ..conf.columns import Column, plain_schema
from .column_bounds import with_bounds
from .convert import REPEATING
from .errors import LoaderError
from .object_store import Place

pa: Any = pyarrow
pc: Any = pyarrow.compute
ds: Any = pyarrow.dataset
pq: Any = pyarrow.parquet

PARTITIONS_MAX = 4_096
"""Folders that one staged file may be spread over."""


class NoWriter:
    """For targets that commit in this process."""

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
    """Writes Parquet files in this process; `partition_by`: a folder for each value of these columns."""

    def __init__(self, partition_by: Sequence[str] = (), partitions_max: int = PARTITIONS_MAX) -> None:
        self._partition_by = tuple(partition_by)
        self._partitions_max = partitions_max

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
            else:
                self._rewrite(file, schema, output, place)

    def _rewrite(self, file: Path, schema: Any, output: Path, place: int) -> None:
        wanted = pa.schema([schema.field(name) for name in self._partition_by])
        parquet = ds.ParquetFileFormat()
        try:
            ds.write_dataset(
                pa.RecordBatchReader.from_batches(schema, _batches(file, schema, self._partition_by)),
                str(output),
                format=parquet,
                file_options=parquet.make_write_options(
                    compression="snappy",
                    use_dictionary=REPEATING,
                    store_schema=False,
                    write_page_checksum=True,
                    write_statistics=with_bounds(schema),
                ),
                partitioning=ds.partitioning(wanted, flavor="hive"),
                basename_template=f"part-{place:05d}-{{i}}.parquet",
                existing_data_behavior="overwrite_or_ignore",
                max_partitions=self._partitions_max,
                use_threads=False,
            )
        except pa.ArrowInvalid as error:
            by = ", ".join(self._partition_by)
            raise LoaderError(
                f"the rows could not be written to {output} by {by or 'Arrow'}: {error}. The segments stay"
            ) from None


def _batches(file: Path, schema: Any, partition_by: Sequence[str]) -> Iterator[Any]:
    for rows in pq.ParquetFile(str(file)).iter_batches():
        batch = rows.cast(schema)
        for name in partition_by:
            if pa.types.is_string(schema.field(name).type):
                # A folder named "day=" is no value to any reader. Spark does the same.
                column = batch.column(name)
                told = pc.if_else(pc.equal(column, ""), None, column)
                batch = batch.set_column(batch.schema.get_field_index(name), schema.field(name), told)
        yield batch


def _place(file: Path, target: Path) -> None:
    """Without a copy where both lie on one file system."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
