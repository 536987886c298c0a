"""Data files that are fsynced while they grow: a sync that failed is told, since no later one would say the truth."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from rocketcrew.durable.files import FileCalls
from rocketcrew.spark.targets.local_folder import EARLY_SYNC_BYTES, early_sync

DEADLINE_S = 20.0


class Disk(FileCalls):
    """One whose next open and first fsync fail, if told so."""

    def __init__(self, *, opens: bool = True, syncs: bool = True) -> None:
        self.opens, self.syncs = opens, syncs
        self.asked = threading.Event()

    def open(self, path: str, flags: int) -> int:
        if not self.opens:
            self.opens = True
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return super().open(path, flags)

    def fsync(self, fd: int) -> None:
        self.asked.set()
        if not self.syncs:
            self.syncs = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def grow(output: Path) -> None:
    with (output / "part-0.parquet").open("wb") as file:
        file.truncate(EARLY_SYNC_BYTES)


def test_a_sync_that_fails_while_files_grow_fails_their_batch(tmp_path: Path) -> None:
    disk = Disk(syncs=False)
    with pytest.raises(OSError, match="Input/output error"), early_sync(tmp_path, disk):
        grow(tmp_path)
        assert disk.asked.wait(DEADLINE_S)


def test_a_file_that_was_moved_meanwhile_is_synced_before_the_commit(tmp_path: Path) -> None:
    disk = Disk(opens=False)
    with early_sync(tmp_path, disk):
        grow(tmp_path)
        assert disk.asked.wait(DEADLINE_S)
