"""Writing files so that they survive: whole or not at all, and on the disk before anything depends on them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

LOOKS_MAX: Final = 100
"""How often sealed files are read again because one was replaced meanwhile: each time costs who replaces it an fsync."""

OWN_FROM: Final = 200
"""Out of the way of code that closes low descriptors, or one of its own twice, and opens others under the same numbers."""


class FileCalls:
    """The system calls by which files are written and replaced. A test may record them, or let them fail."""

    def open(self, path: str, flags: int) -> int:
        """What is written anew, as drafts are, is never a file that a link at its name leads to."""
        return os.open(path, flags | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & os.O_TRUNC else 0), 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data, position)

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data`. Raises OSError, and then some of it may be there."""
        done = self.pwrite(fd, data, position)
        while done < len(data):
            done += self.pwrite(fd, memoryview(data)[done:], position + done)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def link(self, path: str, new_path: str) -> None:
        os.link(path, new_path)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def unlink(self, path: str) -> None:
        os.unlink(path)


T = TypeVar("T")

CALLS: Final = FileCalls()
_PIECE_BYTES: Final = 1 << 22


class SyncError(OSError):
    """An fsync failed. The kernel takes the pages for written then: a later one of the same file succeeds with nothing on the
    disk (fsync(2); PostgreSQL's wiki, "Fsync Errors")."""


class Usage(Protocol):
    """What `shutil.disk_usage` says."""

    @property
    def free(self) -> int: ...
    @property
    def total(self) -> int: ...


def sync_path(path: Path, calls: FileCalls = CALLS) -> None:
    """fsync a file or a directory (its names). Raises SyncError, and OSError where it cannot be opened."""
    descriptor = calls.open(str(path), os.O_RDONLY)
    try:
        calls.fsync(descriptor)
    except OSError as error:
        raise SyncError(error.errno, error.strerror, str(path)) from error
    finally:
        calls.close(descriptor)


def sync_copy(
    path: Path, size_bytes: int | None = None, calls: FileCalls = CALLS, check: Callable[[Path], None] | None = None
) -> None:
    """Put a synced copy, of the first `size_bytes` (None: of all), in the place of a file whose own sync may have failed; its
    times and rights stay.

    `check` looks at the copy before it counts, and raises: of a file that the disk has lost some of, one look may be answered
    from memory and the next one not. Raises OSError where the disk refuses, and leaves no draft then.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        descriptor = calls.open(str(draft), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _copy(path, descriptor, size_bytes, calls)
            calls.fsync(descriptor)
        finally:
            calls.close(descriptor)
        if check is not None:
            check(draft)
        calls.rename(str(draft), str(path))
    except BaseException:
        with contextlib.suppress(OSError):
            calls.unlink(str(draft))
        raise
    sync_path(path.parent, calls)


def _copy(path: Path, descriptor: int, size_bytes: int | None, calls: FileCalls) -> None:
    done = 0
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        size_bytes = status.st_size if size_bytes is None else size_bytes
        while done < size_bytes:
            piece = file.read(min(size_bytes - done, _PIECE_BYTES))
            if not piece:
                raise OSError(errno.EIO, f"it ends at byte {done}, not {size_bytes}", str(path))
            calls.write(descriptor, piece, done)
            done += len(piece)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def spark_path(path: Path) -> str:
    """A local file or folder as a path for Spark. Hadoop takes the text as it is: in a URI's own form, a space or a % in a
    folder's name would name another folder."""
    return f"file://{path.absolute()}"


def write_atomically(path: Path, content: str | bytes, *, durable: bool, calls: FileCalls = CALLS) -> None:
    """Replace `path` by one rename; `durable`: it is on disk when this returns. The folder must exist.

    Raises OSError where the disk refuses, and leaves no draft then: a full one is not filled with them.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        _write(draft, content.encode() if isinstance(content, str) else content, durable=durable, calls=calls)
        calls.rename(str(draft), str(path))
    except OSError:
        with contextlib.suppress(OSError):
            calls.unlink(str(draft))
        raise
    if durable:
        sync_path(path.parent, calls)


def _write(path: Path, data: bytes, *, durable: bool, calls: FileCalls) -> None:
    descriptor = calls.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        calls.write(descriptor, data, 0)
        if durable:
            calls.fsync(descriptor)
    finally:
        calls.close(descriptor)


def files_with(folder: Path, *suffixes: str) -> list[Path]:
    """Files of the folder that end so, but for drafts, by name."""
    return [folder / name for name in sorted(os.listdir(folder)) if name[0] != "." and name.endswith(suffixes)]


def read_sealed(folder: Path, *suffixes: str, read: Callable[[Path], T]) -> dict[Path, T]:
    """What `read` makes of each file that ends so. Those of which it raises ValueError, and links that lead nowhere, are
    passed over.

    Sealed files never change, but one may be replaced by another one that contains it, which this look may have missed: so
    they are read again until the same files are there as before, at most `LOOKS_MAX` times.
    """
    found: dict[Path, T] = {}
    listed = files_with(folder, *suffixes)
    for _ in range(LOOKS_MAX):
        found = {}
        for path in listed:
            with contextlib.suppress(ValueError, FileNotFoundError):
                found[path] = read(path)
        before, listed = listed, files_with(folder, *suffixes)
        if listed == before:
            break
    return found


def make_folders(path: Path, mode: int = 0o777) -> None:
    """Create `path`, with `mode`, and what is missing above it, so that they survive a power failure: a synced file is lost
    with a folder whose own name is not on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
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


def free_bytes(folder: Path, usage: Callable[[Path], Usage] = shutil.disk_usage) -> int:
    """The room that is left where the folder is. A mount that cannot say how large it is, as FUSE without statfs, is taken to
    have room. Raises OSError."""
    found = usage(folder)
    return found.free if found.total else sys.maxsize


def remove_tree(path: Path) -> None:
    """Delete a folder and all in it; missing is fine. Raises OSError when something can't be deleted."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def out_of_the_way(fd: int) -> int:
    """The same file under a high number, and the given one is closed; under a low limit it stays as it is."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OWN_FROM)
    except OSError:
        return fd
    with contextlib.suppress(OSError):  # the number is free whatever the close says
        os.close(fd)
    return high


def try_lock(path: Path) -> int | None:
    """flock the file `path` (made if missing, and no link): the descriptor to close when done, None when somebody holds it.
    Raises OSError.

    Who held it may have removed the file between our open and our flock, and another one have made and locked it anew: the
    lock of a file that has no name keeps nobody away.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
                return out_of_the_way(descriptor)  # or a user's function may close it, and nobody would know
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
