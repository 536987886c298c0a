"""A lock is that of the file which has the name: one that was removed in the moment of our flock keeps nobody away."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from rocketcrew.durable.files import try_lock


def before_first(call: object, act: Callable[[], object], do: Callable[[], int | None]) -> int | None:
    """What `do` gives; `act` happens just before it first makes this call."""
    left = [act]

    def look(_frame: FrameType, event: str, made: object) -> None:
        if event == "c_call" and made is call and left:
            left.pop()()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return do()
    finally:
        sys.setprofile(before)
        assert not left


def test_a_file_that_another_one_has_removed_and_locked_anew_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    others: list[int | None] = []

    def exchanged() -> None:
        path.unlink()
        others.append(try_lock(path))

    assert before_first(fcntl.flock, exchanged, lambda: try_lock(path)) is None
    assert others[0] is not None
    os.close(others[0])


def test_a_file_that_is_removed_meanwhile_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = before_first(fcntl.flock, path.unlink, lambda: try_lock(path))
    assert lock is not None
    assert try_lock(path) is None
    os.close(lock)


def test_with_its_folder_nothing_is_locked_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "of").mkdir()
    path = tmp_path / "of" / "lock"
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        before_first(fcntl.flock, lambda: (path.unlink(), path.parent.rmdir()), lambda: try_lock(path))
    assert len(os.listdir("/proc/self/fd")) == opened
