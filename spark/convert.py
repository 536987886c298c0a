"""Segments to Parquet: the rows that a plan takes, in a form that Spark reads fast and without any Python.

Spark can't read Arrow streams, and handing rows over through Python costs several times more than this detour: Arrow
to Parquet is one pass in C++ without the GIL, so the parts are made side by side in threads. Snappy, because it halves
what goes to the disk for next to no CPU; dictionaries and statistics only for the columns that are worth them.

The copies are private to the plan and made anew at each run of it, so they are never fsynced here, and what is left of them
after a failure or a crash is swept: until then it would hold the room that the next try needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from ..conf.columns import Column, widened
from ..conf.segment_format import BROKER, EPOCH, GROUP, OFFSET, ORIGIN_TOPIC, QUEUE_ID, STORE_TIME, TOPIC
from ..durable.files import Usage, free_bytes
from .plan import Plan, SegmentFacts, Take
from .progress import Progress
from .segments import read_rows, with_epochs

pa: Any = pyarrow
pq: Any = pyarrow.parquet

FILE_BYTES = 256 * 1024 * 1024
SEGMENT_BYTES_A_FILE_BYTE = 2
"""A part is one task of Spark and one file of the table, of about half the segments' size: each costs 0.1 s of CPU by itself
(Hadoop runs `chmod` for every file), larger ones read no faster."""
PART_BYTES_MIN = 8 * 1024 * 1024
"""Below this a part is not worth a task and a file of its own."""
REPEATING = [GROUP, TOPIC, BROKER, ORIGIN_TOPIC]
"""Columns whose values are worth a dictionary."""
_ASKED_FOR = [QUEUE_ID, OFFSET, STORE_TIME]
"""Columns by which readers of the table leave out files, where the copies become its files (arrow_writer.py)."""


class CopyDisk:
    """The disk that copies are written to, and that of the table, where it is of this host. A test may let it be full."""

    def __init__(self, table: Path | None = None, usage: Callable[[Path], Usage] = shutil.disk_usage) -> None:
        self._table = table
        self._usage = usage

    def free_bytes(self, folder: Path) -> int:
        """The room that is left where `folder` is, or the table, whose writers do not all say why they fail."""
        free = free_bytes(folder, self._usage)
        if self._table is None:
            return free
        there = next(path for path in (self._table, *self._table.parents) if path.exists())
        return min(free, free_bytes(there, self._usage))

    def sink(self, file: Path) -> Any:
        """What Arrow writes a file through: its path, or an open file."""
        return str(file)


COPY_DISK: Final = CopyDisk()


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of a plan as Parquet files, one a part."""

    files: tuple[Path, ...]
    rows: int
    bytes: int


class DamagedSegmentError(Exception):
    """A segment turned out bad only when it was read again, as a rule for all of its columns, or made into Parquet."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason


def divide(
    takes: Sequence[Take], facts: dict[str, SegmentFacts], cores: int, file_bytes: int = FILE_BYTES
) -> list[list[Take]]:
    """The takes as parts of neighbours: equal columns within a part, about equal bytes, none without rows to take."""
    wanted = [take for take in takes if facts[take.name].rows and (take.part is None or take.part)]
    total = sum(facts[take.name].bytes for take in wanted)
    count = part_count(total, cores, file_bytes)
    parts: list[list[Take]] = []
    before = 0
    last: tuple[int, tuple[Column, ...]] | None = None
    for take in wanted:
        fact = facts[take.name]
        # Where the segment's middle falls when all of them lie in a row, cut into equal pieces.
        here = ((2 * before + fact.bytes) * count // (2 * total), fact.columns)
        if here != last:
            parts.append([])
        parts[-1].append(take)
        before += fact.bytes
        last = here
    return parts


def part_count(total_bytes: int, cores: int, file_bytes: int = FILE_BYTES) -> int:
    """How many parts: the same number for every core, unless there is too little to go round."""
    part_bytes = file_bytes * SEGMENT_BYTES_A_FILE_BYTE
    if total_bytes < cores * PART_BYTES_MIN:
        return max(1, total_bytes // PART_BYTES_MIN)
    rounds = -(-total_bytes // (part_bytes * cores))
    return rounds * cores


def stage(
    plan: Plan,
    facts: dict[str, SegmentFacts],
    ready: Path,
    folder: Path,
    threads: Executor,
    cores: int,
    file_bytes: int = FILE_BYTES,
    progress: Progress | None = None,
    disk: CopyDisk = COPY_DISK,
) -> Staged:
    """Write the plan's rows into `folder` (made anew). Raises DamagedSegmentError, or OSError (disk full); then nothing is
    written any more, so that the folder may be removed.

    `facts` of its segments, in its epochs; `progress` counts each segment.
    """
    progress = progress or Progress()
    folder.mkdir(parents=True)
    parts = divide(plan.takes, facts, cores, file_bytes)
    files = tuple(folder / f"part-{place:05d}.parquet" for place in range(len(parts)))
    progress.expect(sum(map(len, parts)))
    writing = [
        threads.submit(_write_part, ready, plan, facts, progress, disk, file, part)
        for file, part in zip(files, parts, strict=True)
    ]
    _wait_for(writing)
    # In order: those that were cancelled come after the one that failed, as threads take them in order. None is named here
    # while it raises: it and its error, which has this frame, would hold each other, and with them segments that are mapped
    # into memory, whose room a disk gets back only when Python collects its garbage.
    written: list[tuple[Path, int]] = []
    while writing:
        written += writing.pop(0).result()
    kept = tuple(file for file, _ in written)
    return Staged(kept, sum(rows for _, rows in written), sum(file.stat().st_size for file in kept))


def _wait_for(writing: Sequence[Future[Any]]) -> None:
    """Until all have ended; the first failure cancels those that have not begun."""
    if wait(writing, return_when=FIRST_EXCEPTION).not_done:
        for one in writing:
            one.cancel()
        wait(writing)


def _write_part(
    ready: Path,
    plan: Plan,
    facts: dict[str, SegmentFacts],
    progress: Progress,
    disk: CopyDisk,
    file: Path,
    part: Sequence[Take],
) -> list[tuple[Path, int]]:
    """The files that the part becomes, each with its rows: more than one where Arrow's types differ that are one to Spark, as
    when a column is declared NOT NULL from some segment on."""
    written: list[tuple[Path, int]] = []
    writer: Any = None
    try:
        for take in part:
            with _damage_of(take.name):
                rows = _rows_of(ready, plan, facts[take.name], take)
                progress.count()
                if not rows.num_rows:
                    continue
                if writer is None or not rows.schema.equals(writer.schema):
                    if writer is not None:
                        writer.close()
                    written.append((file.with_stem(f"{file.stem}-{len(written)}") if written else file, 0))
                    writer = _parquet_writer(disk.sink(written[-1][0]), rows.schema)
                writer.write_table(rows)
                written[-1] = written[-1][0], written[-1][1] + rows.num_rows
    finally:
        if writer is not None:
            writer.close()
    return written


@contextmanager
def _damage_of(name: str) -> Generator[None]:
    """What Arrow refuses of a segment's rows has that segment set aside; a full disk or memory says nothing of it."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, MemoryError):
            raise
        raise DamagedSegmentError(name, str(error)) from None


def _rows_of(ready: Path, plan: Plan, facts: SegmentFacts, take: Take) -> Any:
    rows = read_rows(ready / take.name, take)
    if any(column.name == EPOCH for column in plan.columns):
        # Of the plan's epochs, which are those of every queue that ever began anew, these queues have theirs in their keys.
        rows = with_epochs(rows, [key for key in facts.ends if key.epoch])
    wide = widened(rows.schema, plan.columns)
    return rows if wide == rows.schema else rows.cast(wide)


def _parquet_writer(sink: Any, schema: Any) -> Any:
    return pq.ParquetWriter(
        sink,
        schema.remove_metadata(),
        compression="snappy",
        use_dictionary=REPEATING,
        write_statistics=_ASKED_FOR,
        store_schema=False,
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
        write_page_checksum=True,
    )
