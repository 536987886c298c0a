"""A control group (version 2) with a memory limit, for what a test starts in it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import wait_until

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Generator[Path]:
    """A new group with the limit and without swap, empty and removed at the end; skips where none may be made."""
    group = _new_group()
    try:
        _write(group / "memory.max", limit_bytes)
        if (group / "memory.swap.max").exists():
            _write(group / "memory.swap.max", 0)
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the end of all in the control group")
        group.rmdir()


@contextlib.contextmanager
def born_in(group: Path) -> Generator[None]:
    """What is started meanwhile is in the group; this process itself for so long."""
    home = _own_group()
    _write(group / "cgroup.procs", os.getpid())
    try:
        yield
    finally:
        _write(home / "cgroup.procs", os.getpid())


def _own_group() -> Path:
    own = next((line[3:] for line in OWN.read_text().splitlines() if line.startswith("0::")), None)
    if own is None or not (ROOT / "cgroup.controllers").exists():
        pytest.skip(f"no control groups of version 2 at {ROOT}")
    return ROOT / own.lstrip("/")


def _new_group() -> Path:
    """Below our own group or beside it: a group that has processes cannot have groups with a limit, except the root."""
    home = _own_group()
    why = "neither this process's control group nor the one above it gives the memory controller to groups below it"
    for parent in (home, home.parent):
        with contextlib.suppress(OSError):
            if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                group = parent / f"rocketcrew-test-{os.getpid()}"
                try:
                    group.mkdir()
                    _write(home / "cgroup.procs", os.getpid())  # the way back is open
                except OSError as error:
                    why = f"no control group may be made in {parent}: {error}"
                    with contextlib.suppress(OSError):
                        group.rmdir()
                else:
                    return group
    pytest.skip(why)


def _write(file: Path, value: int) -> None:
    """These files take one write, and no truncation."""
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)
