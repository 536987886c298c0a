"""Limits on descriptors, processes and threads: which one was met, and which ones are too small."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from rocketcrew.conf.limits import (
    files_least,
    files_needed,
    group_tasks_left,
    no_thread_left,
    tasks_needed,
    too_small,
    used_up,
    with_remedy,
)


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "pids.max"),
        (RuntimeError("can't start new thread"), "pids.max"),
    ],
)
def test_each_limit_that_is_met_is_named(error: Exception, names: str) -> None:
    assert names in used_up(error)
    assert names in with_remedy(error)


def test_a_limit_of_address_space_is_named_where_there_is_one() -> None:
    assert "ulimit -v` (1500000 KiB)" in no_thread_left(1_500_000 << 10)
    assert "pids.max" in no_thread_left(1_500_000 << 10)
    assert "ulimit -v" not in no_thread_left(resource.RLIM_INFINITY)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file or directory"),
        BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0),
        RuntimeError("cannot schedule new futures after shutdown"),
        ValueError(),
    ],
)
def test_other_errors_have_met_none(error: Exception) -> None:
    assert used_up(error) == ""
    assert with_remedy(error) == (str(error) or repr(error))


def test_the_group_with_the_least_room_holds_of_both_versions() -> None:
    files = {
        "pids.max": "max\n", "pids.current": "700\n",
        "pods/pids.max": "100\n", "pods/pids.current": "90\n",
        "pods/one/pids.max": "50\n", "pods/one/pids.current": "20\n",
        "pids/pods/pids.max": "30\n", "pids/pods/pids.current": "31\n",
    }  # fmt: skip

    def read(name: str) -> str:
        return files.get(name, "")

    assert group_tasks_left("0::/pods/one\n", read) == 10
    assert group_tasks_left("3:pids:/pods\n", read) == 0
    assert group_tasks_left("0::/elsewhere\n", read) is None
    assert group_tasks_left("", read) is None


def test_only_what_is_too_small_is_told() -> None:
    files, tasks = files_least(4), tasks_needed(4)
    assert list(too_small(4, files, tasks)) == list(too_small(4, files, None)) == []
    told = [each["what"] for each in too_small(4, files - 1, tasks - 1)]
    assert told == ["open files", "processes and threads"]


def test_a_run_with_the_usual_limit_is_not_warned_of_where_doctor_advises_more() -> None:
    assert files_needed(100) > 1024
    assert not list(too_small(100, 1024, None))
