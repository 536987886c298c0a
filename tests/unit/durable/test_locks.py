"""A lock is that of the file which has the name: one that was removed in the moment of our flock keeps nobody away. Its
number is none that a user's code closes by mistake."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rocketcrew.durable.files import OWN_FROM, out_of_the_way, try_lock, write_atomically

AtFirst = Callable[[object, Callable[[], object]], AbstractContextManager[None]]


def test_a_file_that_another_one_has_removed_and_locked_anew_is_not_ours(tmp_path: Path, at_first: AtFirst) -> None:
    path = tmp_path / "lock"
    others: list[int | None] = []

    def exchanged() -> None:
        path.unlink()
        others.append(try_lock(path))

    with at_first(fcntl.flock, exchanged):
        assert try_lock(path) is None
    assert others[0] is not None
    os.close(others[0])


def test_a_file_that_is_removed_meanwhile_is_made_anew(tmp_path: Path, at_first: AtFirst) -> None:
    path = tmp_path / "lock"
    with at_first(fcntl.flock, path.unlink):
        lock = try_lock(path)
    assert lock is not None
    assert try_lock(path) is None
    os.close(lock)


def test_with_its_folder_nothing_is_locked_and_nothing_stays_open(tmp_path: Path, at_first: AtFirst) -> None:
    (tmp_path / "of").mkdir()
    path = tmp_path / "of" / "lock"
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError), at_first(fcntl.flock, lambda: (path.unlink(), path.parent.rmdir())):
        try_lock(path)
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_lock_is_held_under_a_high_number(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = try_lock(path)
    assert lock is not None
    assert lock >= OWN_FROM
    assert try_lock(path) is None
    os.close(lock)
    again = try_lock(path)
    assert again is not None
    os.close(again)


def test_what_is_moved_is_open_once() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    high = out_of_the_way(fd)
    assert high >= OWN_FROM
    assert not os.get_inheritable(high)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    os.close(high)


def test_neither_a_lock_nor_a_draft_is_what_a_link_leads_to(tmp_path: Path) -> None:
    """Whoever may write the folder had the process write, or make, a file that he may not."""
    kept, made = tmp_path / "kept", tmp_path / "made"
    kept.write_text("of another")
    (tmp_path / ".state.json.new").symlink_to(kept)
    (tmp_path / "lock").symlink_to(made)
    with pytest.raises(OSError, match="symbolic link"):
        try_lock(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic link"):
        write_atomically(tmp_path / "state.json", "ours", durable=False)
    assert kept.read_text() == "of another"
    assert not made.exists()
    write_atomically(tmp_path / "state.json", "ours", durable=False)  # the link was no draft of ours, and went as one
    assert (tmp_path / "state.json").read_text() == "ours"
