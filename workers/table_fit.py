"""Whether a handler's rows go into the table, asked when a worker starts: before the first pull, and at a reload before
a worker is replaced. Were it asked by the loader alone, offsets would be committed and the rows set aside.

What is sealed and not loaded yet counts too: the table will have its columns. The oldest is loaded first, so a column that
the table does not have yet gets its type from the oldest segment that brings it, and narrower rows go into that.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow

from ..conf.columns import WAYS_OUT, Column, TypeNotForSparkError, check_partition_columns, columns_of, folded, misfits
from ..conf.segment_format import READY_DIR, SEGMENT_NAME
from ..remoting.errors import UsageError
from .boot import TableSpec

pa: Any = pyarrow


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
    wrong, where = misfits(there, ours), f"the table {table.target}"
    if not wrong and segments is not None:
        known = {folded(column.name) for column in there}
        asked = {folded(column.name) for column in ours} - known
        wrong = misfits(waiting_columns(segments / READY_DIR, asked), ours)
        where = (
            f"the segments in {segments / READY_DIR}, which wait for {where} (`rocketcrew load --staging {segments} --target"
            f" {table.target}` loads them without a handler)"
        )
    if wrong:
        raise UsageError(f"the rows of the handler do not fit {where}: {'; '.join(wrong)}. {WAYS_OUT}")


def waiting_columns(ready: Path, asked: set[str]) -> list[Column]:
    """The columns of these names, `folded`, as a table that has none of them gets them from the sealed segments in `ready`:
    each from the oldest that has it. What cannot be read is left out, as the loader sets it aside."""
    found: dict[str, Column] = {}
    read: set[str] = set()
    for path in oldest_first(ready):
        if asked <= found.keys():
            break
        named = SEGMENT_NAME.fullmatch(path.name)
        if named is None or named["worker"] in read:  # a worker has the same columns as long as it lives
            continue
        with suppress(OSError, pa.ArrowException, ValueError):
            with pa.memory_map(str(path)) as source:
                columns = columns_of(pa.ipc.open_stream(source).schema)
            read.add(named["worker"])
            for column in columns:
                if folded(column.name) in asked:
                    found.setdefault(folded(column.name), column)
    return list(found.values())


def oldest_first(ready: Path) -> list[Path]:
    """Its segments in the order in which they are loaded, by sealing time, then name. One that is deleted meanwhile is left
    out: the loader has it."""
    found: list[tuple[int, str, Path]] = []
    with suppress(FileNotFoundError):
        for path in ready.iterdir():
            with suppress(OSError):
                found.append((path.stat().st_mtime_ns, path.name, path))
    return [path for *_, path in sorted(found)]
