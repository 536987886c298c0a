"""Writing files so that they survive: whole or not at all, and on the disk before anything depends on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from concurrent.futures import Executor
from pathlib import Path


def sync_path(path: Path) -> None:
    """fsync a file or a directory (its names)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def spark_path(path: Path) -> str:
    """A local file or folder as a path for Spark. Hadoop takes the text as it is: in a URI's own form, a space or a % in a
    folder's name would name another folder."""
    return f"file://{path.absolute()}"


def write_atomically(path: Path, text: str, *, durable: bool) -> None:
    """Replace `path` by one rename; `durable`: it is on disk when this returns. The folder must exist."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
    if durable:
        sync_path(path.parent)


def make_folders(path: Path) -> None:
    """Create `path` and what is missing above it, so that they survive a power failure."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_path(folder.parent)


def sync_tree(root: Path, threads: Executor) -> None:
    """fsync every file and folder below and including `root`; files side by side, as most of it is waiting."""
    folders = [root]
    files: list[Path] = []
    for parent, names, file_names in os.walk(root):
        folders += (Path(parent, name) for name in names)
        files += (Path(parent, name) for name in file_names)
    for _ in threads.map(sync_path, files):
        pass
    for folder in reversed(folders):
        sync_path(folder)


def remove_tree(path: Path) -> None:
    """Delete a folder and all in it; missing is fine. Raises OSError when something can't be deleted."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def try_lock(path: Path) -> int | None:
    """flock the file `path` (made if missing): the descriptor to close when done, None when somebody holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
