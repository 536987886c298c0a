"""The state folder: its disk is full, and what killed members leave there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcrew.cli.exit_codes import exit_code
from rocketcrew.durable.files import try_lock
from rocketcrew.durable.room import needs_room, unusable
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.supervisor.slot import (
    CLIENTS_LOOKED_AT_MAX,
    lock_client,
    unlock_client,
)
from rocketcrew.workers.cells import CellFile


def refused(number: int, *filename: str) -> OSError:
    return OSError(number, os.strerror(number), *filename)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_the_start_says_where_and_what_to_do(tmp_path: Path, number: int) -> None:
    with (
        pytest.raises(RocketcrewError, match=r"^supervisor\.data_dir = '/.*Make room on that disk") as raised,
        needs_room(tmp_path),
    ):
        raise refused(number)  # of a write into an open file: it does not say which
    assert str(tmp_path) in str(raised.value)
    assert os.strerror(number) in str(raised.value)
    assert "None" not in str(raised.value)
    assert exit_code(raised.value) == 1, (
        "a service manager may start it again, which it does not after an error of usage"
    )


def test_a_file_that_is_known_is_named(tmp_path: Path) -> None:
    def full(*_: int) -> None:
        raise refused(errno.ENOSPC)

    with pytest.raises(RocketcrewError, match=r"\(/.*/cells\)\. Make room"), needs_room(tmp_path):
        CellFile(tmp_path / "cells", 4, full)


def test_what_else_fails_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError), needs_room(tmp_path):
        raise refused(errno.ECONNREFUSED)
    assert isinstance(unusable(tmp_path, refused(errno.EROFS, "/x")), UsageError)


def names(data_dir: Path) -> set[str]:
    return set(os.listdir(data_dir / "g" / "clients"))


def leave(data_dir: Path, ids: range, keep: Callable[[Path], object] = Path.touch) -> None:
    (data_dir / "g" / "clients").mkdir(parents=True)
    for one in ids:
        keep(data_dir / "g" / "clients" / f"killed{one}.lock")


def test_lock_files_of_killed_members_are_removed_and_held_ones_stay(tmp_path: Path) -> None:
    leave(tmp_path, range(20))
    running = lock_client(tmp_path, "g", "running")
    assert names(tmp_path) == {"running.lock"}
    mine = lock_client(tmp_path, "g", "mine")
    assert names(tmp_path) == {"running.lock", "mine.lock"}
    assert try_lock(tmp_path / "g" / "clients" / "running.lock") is None, "it was not taken away from its member"
    with pytest.raises(UsageError, match="already runs"):
        lock_client(tmp_path, "g", "mine")
    unlock_client(tmp_path, "g", "mine", mine)
    unlock_client(tmp_path, "g", "running", running)
    assert not names(tmp_path)


def test_an_id_that_was_used_before_is_taken_again(tmp_path: Path) -> None:
    os.close(lock_client(tmp_path, "g", "mine"))  # killed
    fd = lock_client(tmp_path, "g", "mine")
    assert names(tmp_path) == {"mine.lock"}
    unlock_client(tmp_path, "g", "mine", fd)


def test_one_start_looks_at_a_bounded_number(tmp_path: Path) -> None:
    leave(tmp_path, range(CLIENTS_LOOKED_AT_MAX + 3))
    unlock_client(tmp_path, "g", "mine", lock_client(tmp_path, "g", "mine"))
    assert len(names(tmp_path)) == 3
    unlock_client(tmp_path, "g", "mine", lock_client(tmp_path, "g", "mine"))
    assert not names(tmp_path)


def test_one_that_stands_still_in_its_start_keeps_no_other_from_starting(tmp_path: Path) -> None:
    leave(tmp_path, range(2))
    stands_still = try_lock(tmp_path / "g" / "clients.lock")
    assert stands_still is not None
    fd = lock_client(tmp_path, "g", "mine", pause_s=0)
    assert names(tmp_path) == {"mine.lock", "killed0.lock", "killed1.lock"}
    unlock_client(tmp_path, "g", "mine", fd)
    os.close(stands_still)
