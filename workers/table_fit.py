"""Whether a handler's rows go into the table, asked when a worker starts: before the first pull, and at a reload before
a worker is replaced. Were it asked by the loader alone, offsets would be committed and the rows set aside.

What is sealed and not loaded yet counts too: the table will have its columns, those that it has now as they are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow

from ..conf.columns import WAYS_OUT, Column, TypeNotForSparkError, check_partition_columns, columns_of, folded, misfits
from ..conf.segment_format import READY_DIR, SEGMENT_SUFFIX
from ..remoting.errors import UsageError
from .boot import TableSpec

pa: Any = pyarrow


def check_fits(schema: pyarrow.Schema, table: TableSpec, segments: Path | None) -> None:
    """Raise UsageError naming each column of `schema` that does not go into `table`, and what it can't be cut by.

    `segments`: the staging folder, whose newest sealed segment shows the columns of what is not loaded yet.
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
        waiting = [column for column in newest_sealed(segments / READY_DIR) if folded(column.name) not in known]
        wrong, where = misfits(waiting, ours), f"the segments in {segments / READY_DIR}, which wait for {where}"
    if wrong:
        raise UsageError(f"the rows of the handler do not fit {where}: {'; '.join(wrong)}. {WAYS_OUT}")


def newest_sealed(ready: Path) -> tuple[Column, ...]:
    """The columns of the segment that was sealed last; none when there is none that can be read."""
    with suppress(OSError, pa.ArrowException, ValueError, TypeNotForSparkError):
        files = [(entry.stat().st_mtime_ns, entry) for entry in ready.iterdir() if entry.suffix == SEGMENT_SUFFIX]
        if files:
            with pa.memory_map(str(max(files)[1])) as source:
                return columns_of(pa.ipc.open_stream(source).schema)
    return ()
