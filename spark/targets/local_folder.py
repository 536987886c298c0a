"""A Parquet table's folder on a file system of this host: locks, fsync, and a rename that only one loader can have.

    TARGET/_tmp/<plan id>/        a batch being written
    TARGET/_tmp/<plan id>.lock    flocked by the loader that writes it: what nobody holds is swept

Renaming a folder onto one that is not empty fails on every POSIX file system. Everything below the folder is fsynced
before, the parent after, so the order holds through a power failure too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pyarrow.parquet

from ...durable.files import (
    CALLS,
    FileCalls,
    SyncError,
    make_folders,
    remove_tree,
    sync_path,
    sync_tree,
    try_lock,
)
from ..errors import LoaderError, unusable
from ..object_store import Place
from ..plan import Plan
from ..table_lock import LOCK_POLL_S, lock_table

pq: Any = pyarrow.parquet

TMP_DIR = "_tmp"
TABLE_LOCK_WAIT_S = 600.0
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_EARLY_SYNC_INTERVAL_S = 0.1
EARLY_SYNC_BYTES = 32 * 1024 * 1024
"""Growth of a file that is worth an fsync of its own."""


class LocalFolder:
    """The folder `path` as a `TableFolder`. `threads` serve the fsyncs."""

    def __init__(self, path: Path, threads: Executor, calls: FileCalls = CALLS) -> None:
        self.path = path
        self._threads = threads
        self._calls = calls
        self._lock: int | None = None
        self._table_lock: int | None = None
        """Shared, on the table's folder, while a batch is written: a compaction exchanges the folder between two."""

    def identity(self) -> object:
        """Its inode: a compaction puts another folder in its place."""
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return None

    def prepare(self, plan: Plan) -> Path:
        """Take both locks, and delete what an earlier try left."""
        try:
            make_folders(self.path)
            self.close()
            self._table_lock = lock_table(self.path, fcntl.LOCK_SH, TABLE_LOCK_WAIT_S)
            self._lock = self._lock_of(plan)
            remove_tree(self._tmp_dir(plan))
        except OSError as error:
            raise unusable(f"the table folder {self.path} can't be written", error) from None
        return self._tmp_dir(plan)

    def _lock_of(self, plan: Plan) -> int:
        """The plan's lock. Another loader may hold it, which sweeps what an earlier try left, and may remove the empty `_tmp`
        before the lock is in it."""
        deadline = time.monotonic() + TABLE_LOCK_WAIT_S
        while True:
            self._lock_path(plan).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                if (lock := try_lock(self._lock_path(plan))) is not None:
                    return lock
            if time.monotonic() >= deadline:
                raise LoaderError(
                    f"another process has had the lock {self._lock_path(plan)} for {TABLE_LOCK_WAIT_S:g} s: end it, and start"
                    " again"
                )
            time.sleep(LOCK_POLL_S)

    def writing(self, output: Place) -> contextlib.AbstractContextManager[None]:
        """fsync those files that are finished while others are still written."""
        return early_sync(_local(output))

    def rows(self, output: Place) -> int:
        """As `TableFolder`."""
        return sum(pq.read_metadata(file).num_rows for file in data_files(_local(output)))

    def make_durable(self, output: Place) -> None:
        """As `TableFolder`."""
        sync_tree(_local(output), self._threads)

    def publish(self, output: Place, batch: Place) -> None:
        """As `TableFolder`."""
        try:
            _local(output).rename(_local(batch))
        except OSError as error:
            if error.errno in _TAKEN:
                raise FileExistsError(error.errno, error.strerror, str(batch)) from None
            raise
        self.sync()

    def sync(self) -> None:
        """fsync the table's folder. After one that failed the next is believed: names are in a file system's journal, and one
        that could not write this takes no more, so that nothing that depends on the names can be done either."""
        sync_path(self.path, self._calls)

    def release(self, plan: Plan) -> None:
        """Give the locks back, and remove `_tmp` when it was the last."""
        if self._lock is not None:  # else the file may be that of one who sweeps
            self._lock_path(plan).unlink(missing_ok=True)
        self.close()
        self._tidy()

    def discard(self, plan: Plan) -> None:
        """Delete the plan's unfinished folder, and `_tmp` itself when it was the last."""
        remove_tree(self._tmp_dir(plan))
        self.release(plan)

    def sweep(self) -> None:
        """Delete the unfinished folders whose loader has ended, also those of staging folders that are gone."""
        for lock_path in (self.path / TMP_DIR).glob("*.lock"):
            lock = None
            with contextlib.suppress(FileNotFoundError):  # another start has swept, and removed `_tmp`
                lock = try_lock(lock_path)
            if lock is not None:
                remove_tree(lock_path.with_suffix(""))
                lock_path.unlink(missing_ok=True)
                os.close(lock)
        self._tidy()

    def close(self) -> None:
        """Give the locks back."""
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


def _local(place: Place) -> Path:
    assert isinstance(place, Path)
    return place


def data_files(folder: Path) -> list[Path]:
    """The files with rows of a batch's folder, also those in folders of partitions."""
    return sorted(folder.rglob("[!._]*.parquet"))


@contextlib.contextmanager
def early_sync(output: Path, calls: FileCalls = CALLS) -> Generator[None]:
    """fsync data files while they grow, so that the disk works while the cores compress.

    Only a head start: whatever it misses, or cannot open because Spark just moved it, is fsynced before the commit. Raises
    SyncError at the end when an fsync failed, as the one before the commit would say nothing: the files are written anew.
    """
    done = threading.Event()
    failed: list[SyncError] = []

    def sync_grown() -> None:
        synced: Counter[str] = Counter()
        while not failed and not done.wait(_EARLY_SYNC_INTERVAL_S):
            try:
                for file in data_files(output):
                    size = file.stat().st_size
                    if size - synced[file.name] >= EARLY_SYNC_BYTES:
                        sync_path(file, calls)
                        synced[file.name] = size
            except SyncError as error:
                failed.append(error)
            except OSError:  # a file that was moved
                continue

    thread = threading.Thread(target=sync_grown, name="early-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failed:
        raise failed[0]
