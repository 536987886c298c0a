"""The Parquet table: a folder with one folder per batch, made visible by one rename.

    TARGET/batch_id=1/part-….parquet      the rows; with spark.partition_by in folders of their own, batch_id=1/day=…/
    TARGET/batch_id=1/_loaded.json        the table's state after batch 1, in the newest batches
    TARGET/batch_id=1/_outcomes.json.gz   what became of the records that were loaded or noted with batch 1
    TARGET/_outcomes/                      the same of older batches, in files of many (outcome_levels.py)
    TARGET/batch_id=2/…
    TARGET/_tmp/<plan id>/                 a batch being written; readers ignore names that start with an underscore
    TARGET/_tmp/<plan id>.lock            flocked by the loader that writes it: what nobody holds is swept

Why one rename is enough: the state file lies inside the folder with the data, so both appear together or not at all.
Renaming a folder onto one that is not empty fails on every POSIX file system, so of two loaders that want to be batch 7
one gets it and the other knows. Everything below the folder is fsynced before, the parent after, so the order holds
through a power failure too. Any reader of Parquet folders (Spark, pyarrow, DuckDB) sees whole batches only, and gets
`batch_id` as a partition column. The state of the table is the state file of the highest batch.

Only for file systems whose rename is atomic: local disks, NFS with one client, HDFS through a mount. Not object stores.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pyarrow.parquet

from ...conf.columns import BATCH_COLUMN, check_partition_columns
from ...durable.files import make_folders, remove_tree, sync_path, sync_tree, try_lock
from ...durable.intervals import OffsetSet
from ...durable.outcomes import BatchOutcomes
from ...remoting.errors import UsageError
from ..accounts import Accounts
from ..convert import Staged
from ..errors import BatchTakenError, LoaderError
from ..outcome_levels import FAN, OutcomeLevels, Part
from ..plan import Plan
from ..table_lock import lock_table
from ..table_state import check_partitions, read_state, write_state
from .target import TableState, Writer

pq: Any = pyarrow.parquet

STATE_FILE = "_loaded.json"
OUTCOMES_FILE = "_outcomes.json.gz"
OUTCOMES_FOLDER = "_outcomes"
TMP_DIR = "_tmp"
_BATCH_NAME = re.compile(BATCH_COLUMN + r"=([1-9]\d*)")
TABLE_LOCK_WAIT_S = 600.0
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_EARLY_SYNC_INTERVAL_S = 0.1
_EARLY_SYNC_BYTES = 32 * 1024 * 1024
"""Growth of a file that is worth an fsync of its own."""


class ParquetTarget:
    """A table at `path`, whose files `writer` writes. `threads` serve the fsyncs."""

    def __init__(
        self, path: Path, writer: Writer, threads: Executor, partition_by: Sequence[str] = (),
        keep_outcomes_s: float = math.inf,
    ) -> None:  # fmt: skip
        """`writer` makes the folders of `partition_by`; a table keeps what it began with."""
        self.path = path
        self._partition_by = tuple(partition_by)
        self._writer = writer
        self._threads = threads
        self._newest = 0
        self._folder_id: int | None = None
        self._read: tuple[tuple[int, tuple[int, int] | None], TableState] | None = None
        self._keep_outcomes_s = keep_outcomes_s
        self._lock: int | None = None
        self._table_lock: int | None = None
        """Shared, on the table's folder, while a batch is written: a compaction exchanges the folder between two."""

    def state(self) -> TableState:
        """The state after the highest batch. Raises LoaderError when that can't be read."""
        batch = self._last_batch()
        if not batch:
            self._refuse_foreign()
            return TableState(0, "", OffsetSet(), ())
        state = self._read_state(batch)
        check_partitions(self.path, self._partition_by, state.partition_by)
        return state

    def _read_state(self, batch: int) -> TableState:
        """The state file of the batch; one that was read before is not parsed again, for it never changes."""
        path = batch_folder(self.path, batch) / STATE_FILE
        look = _look(path)
        if look is None or self._read is None or self._read[0] != (batch, look):
            self._read = ((batch, look), read_state(path))
        return self._read[1]

    def _refuse_foreign(self) -> None:
        """Rows of somebody else beside ours would be read as one table, or make both unreadable."""
        if self.path.exists():
            foreign = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(("_", "."))]
            if foreign:
                raise UsageError(
                    f"the table folder {self.path} holds {foreign[0]!r}, which is no batch of rocketcrew: give the path of"
                    " a folder that is new, empty or a table of ours"
                )

    def _last_batch(self) -> int:
        """The highest batch, by a look at the numbers after the one that is known: a listing costs more with each batch.

        Numbers are given one after the other. Only a compaction leaves some out, and it exchanges the folder: then, and
        when the known batch is gone, the folder is listed.
        """
        try:
            folder_id = self.path.stat().st_ino
        except FileNotFoundError:
            self._newest, self._folder_id = 0, None
            return 0
        if folder_id != self._folder_id or not (self._newest and batch_folder(self.path, self._newest).exists()):
            self._newest, self._folder_id = last_batch(self.path), folder_id
        while batch_folder(self.path, self._newest + 1).exists():
            self._newest += 1
        return self._newest

    def has(self, plan: Plan) -> bool:
        """Whether batch `plan.batch` is this plan: it is the only number that a plan can ever get.

        One of long ago, whose state file is gone, is answered by its records: they are loaded.
        """
        folder = batch_folder(self.path, plan.batch)
        if plan.batch < self._last_batch() and not (folder / STATE_FILE).exists():
            return False
        return folder.exists() and self._read_state(plan.batch).plan_id == plan.id

    def start(self) -> None:
        """Start the writer."""
        self._writer.start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """Have the writer make the data files, fsyncing those that are finished while others are still written.

        Raises BatchTakenError when the table is no more what the plan was made on: a compaction may have merged away the
        plan's own number with its neighbours, and the rename would find the place free. From here to the commit none can.
        """
        check_partition_columns(self._partition_by, plan.columns)
        output = self._tmp_dir(plan)
        self._prepare(plan)
        if not self._is_next(plan):
            raise _taken(self.path, plan)
        with _early_sync(output):
            self._writer.write(staged.files, output, plan.columns, staged.bytes)
        written = sum(pq.read_metadata(file).num_rows for file in data_files(output))
        if written != staged.rows:
            raise LoaderError(f"{output} holds {written} rows, but {staged.rows} were to be written: not committed")

    def _is_next(self, plan: Plan) -> bool:
        batch = self._last_batch()
        return plan.follows(batch, self._read_state(batch).plan_id if batch else "")

    def _prepare(self, plan: Plan) -> None:
        try:
            make_folders(self.path)
            self._release(plan)
            self._table_lock = lock_table(self.path, fcntl.LOCK_SH, TABLE_LOCK_WAIT_S)
            remove_tree(self._tmp_dir(plan))
            self._lock = self._lock_of(plan)
        except OSError as error:
            raise UsageError(f"the table folder {self.path} can't be written: {error}") from None

    def _lock_of(self, plan: Plan) -> int | None:
        """The plan's lock, made anew; another loader may remove the empty `_tmp` before the lock is in it."""
        while True:
            self._lock_path(plan).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return try_lock(self._lock_path(plan))

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Rename the written folder to the plan's batch; see the top of this file."""
        output = self._tmp_dir(plan)
        write_state(output / STATE_FILE, plan, accounts, told.rows or 0, durable=False, partition_by=self._partition_by)
        (output / OUTCOMES_FILE).write_bytes(told.pack())
        sync_tree(output, self._threads)
        try:
            output.rename(batch_folder(self.path, plan.batch))
        except OSError as error:
            if error.errno in _TAKEN:
                raise _taken(self.path, plan) from None
            raise
        sync_path(self.path)
        if plan.batch % FAN == 0:  # under the table's lock: no compaction takes the folder away meanwhile
            self._outcomes(plan.batch).tidy(time.time(), self._keep_outcomes_s)
            for old in range(max(1, plan.batch - 2 * FAN), plan.batch - FAN):  # FAN of them at least stay
                (batch_folder(self.path, old) / STATE_FILE).unlink(missing_ok=True)
        self._release(plan)
        self._tidy()

    def upkeep(self, plan: Plan) -> None:
        """Nothing: merging files under readers would hurt them; `rocketcrew compact` does it when it is asked to."""

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What is kept of all commits."""
        return iter(self._outcomes(self._last_batch()).read(above))

    def _outcomes(self, newest: int) -> OutcomeLevels:
        return folder_outcomes(self.path, newest)

    def discard(self, plan: Plan) -> None:
        """Delete the plan's unfinished folder, and `_tmp` itself when it was the last."""
        remove_tree(self._tmp_dir(plan))
        self._release(plan)
        self._tidy()

    def sweep(self) -> None:
        """Delete the unfinished folders whose loader has ended, also those of staging folders that are gone."""
        for lock_path in (self.path / TMP_DIR).glob("*.lock"):
            lock = try_lock(lock_path)
            if lock is not None:
                remove_tree(lock_path.with_suffix(""))
                lock_path.unlink(missing_ok=True)
                os.close(lock)
        self._tidy()

    def _release(self, plan: Plan) -> None:
        self._lock_path(plan).unlink(missing_ok=True)
        for lock in (self._lock, self._table_lock):
            if lock is not None:
                os.close(lock)
        self._lock = self._table_lock = None

    def _tidy(self) -> None:
        """Remove `_tmp` when nothing is in it: the table then holds batches and nothing else."""
        try:
            (self.path / TMP_DIR).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST, errno.ENOTDIR):
                raise

    def _lock_path(self, plan: Plan) -> Path:
        return self.path / TMP_DIR / f"{plan.id}.lock"

    def _tmp_dir(self, plan: Plan) -> Path:
        return self.path / TMP_DIR / plan.id


def _taken(table: Path, plan: Plan) -> BatchTakenError:
    return BatchTakenError(f"another loader has committed batch {plan.batch} of {table}")


def _look(path: Path) -> tuple[int, int] | None:
    """What a file looks like from outside, so that another one in its place is noticed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def batch_folder(table: Path, batch: int) -> Path:
    """Where that batch of the folder `table` is."""
    return table / f"{BATCH_COLUMN}={batch}"


def last_batch(table: Path) -> int:
    """The highest batch number in the folder `table`, 0 when there is none or no folder."""
    return max(batch_folders(table), default=0)


def batch_folders(table: Path) -> dict[int, Path]:
    """Every batch of the folder `table` by its number, in order; none when there is no folder. Raises UsageError."""
    try:
        names = [(_BATCH_NAME.fullmatch(entry.name), entry) for entry in table.iterdir()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"the table folder {table} can't be read: {error}") from None
    return dict(sorted((int(match[1]), entry) for match, entry in names if match))


def folder_outcomes(table: Path, newest: int, fan: int = FAN) -> OutcomeLevels:
    """The outcomes of the batches up to `newest` of the folder `table`."""

    def singles(above: int) -> Iterator[Part]:
        for batch in range(max(1, above + 1), newest + 1):
            folder = batch_folder(table, batch)
            if (folder / OUTCOMES_FILE).exists():
                yield Part(batch, batch, 0, folder / OUTCOMES_FILE)
            elif folder.exists():
                yield Part(batch, batch, 0, None)

    return OutcomeLevels(table / OUTCOMES_FOLDER, singles, fan)


def data_files(folder: Path) -> list[Path]:
    """The files with rows of a batch's folder, also those in folders of partitions."""
    return sorted(folder.rglob("[!._]*.parquet"))


@contextlib.contextmanager
def _early_sync(output: Path) -> Generator[None]:
    """fsync data files while they grow, so that the disk works while the cores compress.

    Only a head start: whatever it misses, or can't open because Spark just moved it, is fsynced before the commit.
    """
    done = threading.Event()

    def sync_grown() -> None:
        synced: Counter[str] = Counter()
        while not done.wait(_EARLY_SYNC_INTERVAL_S):
            with contextlib.suppress(OSError):
                for file in data_files(output):
                    size = file.stat().st_size
                    if size - synced[file.name] >= _EARLY_SYNC_BYTES:
                        sync_path(file)
                        synced[file.name] = size

    thread = threading.Thread(target=sync_grown, name="early-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
