"""What keeps a Delta table cheap over months: small files are merged, and files that were replaced are deleted after a time.

Every commit adds at least one file, and both delta-rs and Spark look at all of them with each commit and each query. So every
`FAN` commits the loader looks how many small files there are, and merges those that are due (`size_to_merge`). Files grow by
levels, so that a row is written a few times in all, however small the commits are. A merge is a commit of the log that
changes no data: streams pass over it, readers at work keep the files that they have begun with, and a loader that commits
meanwhile is not in its way. `batch_id` stays in each row.

Once a day what no version of the last week has any more is deleted (Delta's VACUUM; the week is the table's own property
`delta.deletedFileRetentionDuration`). A folder with files that no writer of Delta has made is left alone.

Sources: Delta's protocol ("Add File and Remove File": dataChange), and its documents on OPTIMIZE and VACUUM.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from ..errors import LoaderError
from ..object_store import STATE_DIR, Place, short, write_whole
from ..outcome_levels import FAN

LEVEL_BITS: Final = 5
"""A file of the next level has about so many times (2 to the power of it) the bytes."""
LEVELS: Final = 3
VACUUM_EVERY_S: Final = 86_400.0
VACUUMED: Final = "vacuumed"
"""Put beside the states when the table is vacuumed: its age says when that was."""
MERGED_BY: Final = {"rocketcrew.upkeep": "merge"}
"""In the log, with a merge."""
_DATA_FILE: Final = ".parquet"


def size_to_merge(files: Iterable[tuple[object, int]], file_bytes: int, fan: int = FAN) -> int:
    """The size in bytes up to which small files are to be merged now, 0 when none are due.

    `files`: partition and bytes of each file; `file_bytes`: the size of the largest level. Files of one partition are due
    when there are `fan` of less than half a level's size.
    """
    by_partition: defaultdict[object, list[int]] = defaultdict(list)
    for partition, size in files:
        by_partition[partition].append(size)
    return max((_level_to_merge(sizes, file_bytes, fan) for sizes in by_partition.values()), default=0)


def _level_to_merge(sizes: list[int], file_bytes: int, fan: int) -> int:
    due = least = 0
    count = total = 0
    for level in reversed(range(LEVELS)):
        size = max(1, file_bytes >> level * LEVEL_BITS)
        here = [each for each in sizes if least <= 2 * each < size]
        count, total, least = count + len(here), total + sum(here), size
        if count >= fan:
            due, count = size, -(-total // size)  # so many would be left, and count for the next level
    return due


class DeltaUpkeep:
    """The upkeep of the table at `path`. Its failures are logged and harmless: the next time it is tried again."""

    def __init__(
        self, path: Place, file_bytes: int, now_s: Callable[[], float] = time.time, fan: int = FAN
    ) -> None:  # fmt: skip
        """`file_bytes`: about the size that files are to reach. `now_s`: seconds since 1970."""
        self._path = path
        self._file_bytes = file_bytes
        self._now_s = now_s
        self._fan = fan
        self._log = structlog.get_logger().bind(table=str(path))

    def run(self, table: Any, batch: int) -> None:
        """Merge and delete what is due after this batch; `table` is delta-rs's, and knows of it afterwards."""
        from deltalake.exceptions import DeltaError

        if batch % self._fan:
            return
        try:
            self._merge(table)
            self._vacuum(table)
        except (DeltaError, LoaderError, OSError) as error:
            self._log.warning("table_upkeep_failed", error=short(error))

    def _merge(self, table: Any) -> None:
        from deltalake import CommitProperties

        size = size_to_merge(_files_of(table), self._file_bytes, self._fan)
        if not size:
            return
        check_mergeable(self._path, table)
        begun = time.monotonic()
        # One after the other: cores and memory belong to the workers.
        done = table.optimize.compact(
            target_size=size, max_concurrent_tasks=1, commit_properties=CommitProperties(custom_metadata=MERGED_BY)
        )
        self._log.info(
            "table_files_merged", files=done["numFilesRemoved"], into=done["numFilesAdded"],
            seconds=round(time.monotonic() - begun, 2),
        )  # fmt: skip

    def _vacuum(self, table: Any) -> None:
        if not self._is_day_over():
            return
        # Delta's LITE form would forget files whose removal a checkpoint has left out already.
        found: list[str] = table.vacuum(dry_run=True, full=True)
        strange = [name for name in found if not name.endswith(_DATA_FILE)]
        if strange:
            self._log.warning(
                "table_not_vacuumed", count=len(strange), strange=strange[:3],
                hint="files that delta-rs has not written lie in the table's folder, and would be deleted: move them away, or"
                " delete what is old by Spark's VACUUM",
            )  # fmt: skip
        elif found:
            table.vacuum(dry_run=False, full=True)
            self._log.info("table_vacuumed", files=len(found))

    def _is_day_over(self) -> bool:
        """Whether the last look was a day ago; then another day begins. A new table has nothing to delete."""
        mark = self._path / STATE_DIR / VACUUMED
        try:
            if self._now_s() < mark.stat().st_mtime + VACUUM_EVERY_S:
                return False
        except FileNotFoundError:
            write_whole(mark, b"")
            return False
        write_whole(mark, b"")
        return True


def check_mergeable(path: Place, table: Any) -> None:
    """Raise LoaderError where delta-rs must not merge files: Spark writes a partition's name into the log as it is, where
    delta-rs writes its bytes beyond ASCII as %XX. It would remove a file of another name, and rows would be there twice."""
    paths: list[str] = table.get_add_actions().column("path").to_pylist()
    for each in paths:
        if not each.isascii():
            raise LoaderError(
                f"the small files of {path} can't be merged here: Spark has written partitions whose names are not ASCII"
                f" ({each.rpartition('/')[0]}). Let Spark do it: OPTIMIZE delta.`{path}`"
            )


def _files_of(table: Any) -> list[tuple[object, int]]:
    """Partition and bytes of each file of the newest version."""
    actions = table.get_add_actions()
    names = actions.schema.names
    sizes: list[int] = actions.column("size_bytes").to_pylist()
    if "partition" not in names:
        return [(None, size) for size in sizes]
    partitions = [str(each) for each in actions.column("partition").to_pylist()]
    return list(zip(partitions, sizes, strict=True))
