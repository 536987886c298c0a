"""A synced copy in the place of a file: on the disk before its name is, the same to whoever looks, or nothing at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketcrew.durable.files import FileCalls, sync_copy


class Recorded(FileCalls):
    """Notes what is synced and renamed, by name."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def fsync(self, fd: int) -> None:
        self.done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")

    def rename(self, path: str, new_path: str) -> None:
        self.done.append(f"rename {Path(path).name}")
        super().rename(path, new_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(b"0123456789")
    path.chmod(0o640)
    os.utime(path, ns=(1, 1_700_000_000_000_000_000))
    return path


def test_it_is_on_the_disk_before_its_name_and_its_name_in_the_end(file: Path) -> None:
    calls, before = Recorded(), file.stat()
    sync_copy(file, calls=calls)
    assert calls.done == ["sync .file.new", "rename .file.new", "sync folder"]
    after = file.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_mtime_ns, file.read_bytes()) == (before.st_mode, before.st_mtime_ns, b"0123456789")


def test_of_the_first_bytes(file: Path) -> None:
    sync_copy(file, 4)
    assert file.read_bytes() == b"0123"


def test_what_is_shorter_than_it_was_is_not_copied(file: Path) -> None:
    with pytest.raises(OSError, match="ends at byte 10, not 11"):
        sync_copy(file, 11)
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_copy_that_does_not_hold_changes_nothing(file: Path) -> None:
    before = file.stat().st_ino

    def refuse(copy: Path) -> None:
        assert copy.read_bytes() == file.read_bytes()
        raise ValueError("it is damaged")

    with pytest.raises(ValueError, match="it is damaged"):
        sync_copy(file, check=refuse)
    assert file.stat().st_ino == before
    assert [path.name for path in file.parent.iterdir()] == ["file"]
