"""Whether a handler's rows go into the table, asked when a worker starts: before the first pull, and at a reload before
a worker is replaced. Were it asked by the loader alone, offsets would be committed and the rows set aside.

What is sealed and not loaded yet counts too: the table will have its columns. The oldest is loaded first, so a column that
the table does not have yet gets its type from the oldest segment that brings it, and narrower rows go into that. A segment
is read whole only where it brings such a column.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow

from ..conf.columns import (
    WAYS_OUT,
    Column,
    TypeNotForSparkError,
    check_partition_columns,
    columns_of,
    folded,
    merged,
    misfits,
)
from ..conf.delta_names import COLUMN_MAPPING, NOT_MAPPED, maps_names, refused_by_delta
from ..conf.printed import command_line, shape_of
from ..conf.segment_format import FORMAT_VERSION, META_VERSION, READY_DIR, SEGMENT_NAME, ready_files, sound_batches
from ..remoting.errors import UsageError
from .boot import TableSpec

pa: Any = pyarrow

_SET_ASIDE: Final = (pa.ArrowException, OSError, ValueError, TypeError, LookupError)
"""What reading damaged bytes raises, and columns that do not fit."""


def check_fits(schema: pyarrow.Schema, table: TableSpec, segments: Path | None) -> None:
    """Raise UsageError naming each column of `schema` that does not go into `table`, and what it can't be cut by.

    `segments`: the staging folder, whose sealed segments are not loaded yet.
    """
    try:
        ours = columns_of(schema)
    except TypeNotForSparkError as error:
        raise UsageError(f"the handler's columns are none that Spark has: {error}") from None
    check_partition_columns(table.partition_by, ours)
    there = [Column(*column) for column in table.columns]
    if table.format == "delta" and (why := refused_by_delta(there, ours)) and not _maps_names(table):
        raise UsageError(f"the rows of the handler do not fit the table {table.target}: {why}")
    wrong, where = misfits(there, ours), f"the table {table.target}"
    if not wrong and segments is not None:
        known = {folded(column.name) for column in there}
        asked = {folded(column.name) for column in ours} - known
        wrong = misfits(waiting_columns(segments / READY_DIR, there, asked), ours)
        shape = shape_of(table.format, table.partition_by)
        load = command_line("load", "--staging", segments, "--target", table.target, *shape)
        where = (
            f"the segments in {segments / READY_DIR}, which wait for {where} (`{load}` loads them without a handler)"
        )
    if wrong:
        raise UsageError(f"the rows of the handler do not fit {where}: {'; '.join(wrong)}. {WAYS_OUT}")


def _maps_names(table: TableSpec) -> bool:
    """Whether the Delta table has columns under other names in its files, or will have once it is made."""
    if not table.columns:
        return table.new_maps_names
    try:
        from deltalake import DeltaTable  # a worker needs it for nothing else
        from deltalake.exceptions import DeltaError
    except ImportError:
        return False
    try:
        return maps_names(DeltaTable(table.target).metadata().configuration.get(COLUMN_MAPPING, NOT_MAPPED))
    except (DeltaError, OSError):
        return False  # whether the table can be used is the loader's question


def waiting_columns(ready: Path, table: Sequence[Column], asked: set[str]) -> list[Column]:
    """The columns of these names, `folded`, as a table that has none of them gets them from the sealed segments in `ready`:
    each from the oldest that has it. What the loader sets aside is left out: what is damaged, and what does not fit the table
    with the columns of those before."""
    columns, missing = tuple(table), set(asked)
    read: set[str] = set()
    files: list[tuple[Path, os.stat_result]] = []
    with suppress(OSError):  # nothing was sealed yet
        files = ready_files(ready)
    for path, _ in files:
        if not missing:
            break
        named = SEGMENT_NAME.fullmatch(path.name)
        if named is None or named["worker"] in read:  # a worker has the same columns as long as it lives
            continue
        with suppress(*_SET_ASIDE):
            columns = _with_segment(columns, path)
            read.add(named["worker"])
            missing -= {folded(column.name) for column in columns}
    return [column for column in columns[len(table) :] if folded(column.name) in asked]


def _with_segment(table: tuple[Column, ...], path: Path) -> tuple[Column, ...]:
    """The table's columns, and those that the segment brings. Raises one of _SET_ASIDE."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_stream(source)
        columns = merged(table, columns_of(reader.schema))
        if len(columns) > len(table):
            metadata: dict[bytes, bytes] = reader.schema.metadata or {}
            if metadata.get(META_VERSION) != str(FORMAT_VERSION).encode():
                raise ValueError
            for _ in sound_batches(source, reader):
                pass
    return columns
