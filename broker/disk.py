"""DiskStorage: the broker's data folder.

Layout, as a RocketMQ user knows it: `commitlog/<first position>`, `consumequeue/<topic>/<queue>/<first position>`,
`config/*.json`, `lock`. As the genuine server's, segments are made in their full size, as sparse files (ftruncate): the end
of what was written is not that of the file, and its owner has to find it and say so (`truncate`).

With `ahead_bytes` the log takes room on the disk before it is needed, by writing zeros. A sync then brings bytes alone to the
disk; into a hole, it also commits the file system's news of where they are. Measured on ext4: 0.13 ms instead of 0.37. Room
that is only reserved (fallocate) has to be committed as well: 0.34.

Why plain write(2) and not a mapping: what the kernel took with write survives a kill -9 just as well, a full disk is an
error that a request can report (a mapping dies by SIGBUS), and a read of a served range is one call.

Waiting for the disk is slow (milliseconds) and must not stop the loop: a thread does it (syncing.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from itertools import pairwise
from pathlib import Path

from ..durable.files import make_folders
from ..durable.mounts import boot_id
from ..remoting.errors import RocketcrewError, UsageError
from .refused_folders import refuse_foreign, refuse_half_converted, refuse_other_name
from .storage import StorageError
from .syncing import FILE_MODE, PREVIOUS, DiskCalls, Syncer, taken_bytes

OPEN_FILES_MAX = 256  # descriptors kept open; a broker with more queues than that reopens the rarely used ones
AHEAD_BYTES = 1 << 20  # 800 messages of 1 KiB; one sync in so many is a longer one
BUFFER_MAX_BYTES = 65_536  # a buffered file writes itself out beyond this, so that its loss in a kill stays small
ZERO_STEP_BYTES = 1 << 20
PAGE_BYTES = 4_096
ASIDE = "damaged"  # folder of what could not be read
ABORT = "abort"
NAME_DIGITS = 20  # as RocketMQ names its segments (UtilAll.offset2FileName)


class DescriptorPool:
    """Open descriptors by path, least recently used closed first."""

    def __init__(self, open_max: int, calls: DiskCalls) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._open_max = open_max
        self.calls = calls

    def get(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        try:
            fd = self.calls.open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        self._open[path] = fd
        if len(self._open) > self._open_max:
            self.calls.close(self._open.popitem(last=False)[1])
        return fd

    def forget(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            self.calls.close(fd)

    def close(self) -> None:
        while self._open:
            self.calls.close(self._open.popitem()[1])


class DiskFile:
    """A StoredFile in a folder of segment files, each named by its first position."""

    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        buffered: bool,
        pool: DescriptorPool,
        *,
        ahead_bytes: int = 0,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        """`ahead_bytes`: how much room a segment takes before it is needed; `on_gone` is told of each path that came to
        name another file, or none."""
        self._folder = folder
        self._ahead_bytes = ahead_bytes
        # The segment written last, and up to where it has room, or was refused it.
        self._has_room: tuple[str, int] = ("", 0)
        self._on_gone = on_gone
        self._segment_bytes = segment_bytes
        self.is_buffered = buffered
        self._pool = pool
        self._calls = pool.calls
        self.dirty: dict[str, None] = {}
        """Paths that the disk may not have yet, in the order in which they are to be brought there."""
        self._buffer = bytearray()
        self._holes: list[tuple[int, int]] = []
        self._paths: dict[int, str] = {}  # of the segments in use; spares writing their names for every record
        self.dirty |= dict.fromkeys(_made(folder, self._calls))
        self._whole: set[str] = set()  # segments that have their full size
        self._starts, self._written = self._scan()
        self._limit = max(self._starts[-1] + self._segment_bytes, self._written)

    def _scan(self) -> tuple[list[int], int]:
        """Find the segments, and how far they reach. Positions stay whatever is missing: a segment that ends too early, or is
        not there, leaves a hole that reads as zeros. One that runs into the next (a write that failed, then a new segment)
        ends there. Segments that are all of one other size, as a genuine broker was told, are gone on with in that size."""
        starts = sorted(
            int(entry) for entry in os.listdir(self._folder) if entry.isdigit() and len(entry) == NAME_DIGITS
        )
        if not starts:
            return [0], 0
        sizes = [os.path.getsize(self._path(start)) for start in starts]
        several = len(starts) > 1 and set(sizes) == {starts[1] - starts[0]}
        if several or (len(starts) == 1 and sizes[0] > self._segment_bytes and starts[0] % sizes[0] == 0):
            self._segment_bytes = sizes[0]
        for (start, following), size in zip(pairwise(starts), sizes, strict=False):
            if start + size < following:
                self._holes.append((start + size, following - start - size))
        return starts, starts[-1] + sizes[-1]

    def _path(self, start: int) -> str:
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = os.path.join(self._folder, f"{start:0{NAME_DIGITS}d}")
        return path

    @property
    def holes(self) -> list[tuple[int, int]]:
        return list(self._holes)

    @property
    def start(self) -> int:
        return self._starts[0]

    @property
    def end(self) -> int:
        return self._written + len(self._buffer)

    def append(self, data: bytes) -> int:
        position = self._written + len(self._buffer)
        if self.is_buffered:
            self._buffer += data
            if len(self._buffer) > BUFFER_MAX_BYTES:
                with contextlib.suppress(StorageError):  # they stay in the buffer; who asks for a flush hears of it
                    self.flush()
        else:
            self._write(data)
        return position

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def room(self) -> int:
        return self._limit - self.end

    @property
    def content_end(self) -> int:
        """The last page that holds data says so, without being read."""
        if self._buffer:
            return self.end
        start = self._starts[-1]
        if self._written == start:
            return start
        fd, end = self._pool.get(self._path(start)), 0
        with _refused_as(f"cannot read {self._path(start)}"):
            while (data_at := self._next_data(fd, end)) is not None:
                end = os.lseek(fd, data_at, os.SEEK_HOLE)
        # The last bytes of a record may be zeros for which a copied file has no page.
        return min(start + end + PAGE_BYTES, self._written) if end else start

    def roll(self, last: bytes) -> None:
        rest = self._limit
        self._write(last)
        self._written = rest

    def _write(self, data: bytes | bytearray) -> None:
        """Write at the end, in a new segment where the last one is full; all or, for the reader, nothing.

        `_written` moves only at the end, and the next write starts there again, so a write cut short by a full disk
        leaves bytes that nobody reads and the next one overwrites.
        """
        at, tail, limit, done = self._written, self._starts[-1], self._limit, 0
        if tail < at <= limit - len(data):  # nearly every time: one piece, in a segment that has its name already
            self._write_part(tail, limit, at, data)
            self._written = at + len(data)
            self.dirty[self._path(tail)] = None
            return
        made: list[int] = []
        written: list[str] = []
        while done < len(data):
            if at == limit:
                tail, limit = at, at + self._segment_bytes
                made.append(tail)
            step = min(len(data) - done, limit - at)
            self._write_part(tail, limit, at, memoryview(data)[done : done + step])
            written.append(self._path(tail))
            at, done = at + step, done + step
        self._starts += made
        if made or self._written == self._starts[0]:
            written.append(str(self._folder))  # it has a new name in it
        self._written, self._limit = at, limit
        self.dirty |= dict.fromkeys(written)

    def _write_part(self, tail: int, limit: int, at: int, data: bytes | bytearray | memoryview) -> None:
        path = self._path(tail)
        try:
            fd = self._pool.get(path)
            if path not in self._whole:
                self._make_whole(fd, path, limit - tail)
            self._calls.write(fd, data, at - tail)
        except OSError as error:
            self._cut_back(path, at - tail, limit - tail)
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        if self._ahead_bytes:
            self._take_room(fd, path, at - tail + len(data), limit - tail)

    def _make_whole(self, fd: int, path: str, length_bytes: int) -> None:
        """Give a segment its full size, without taking room for it."""
        if os.fstat(fd).st_size < length_bytes:
            self._calls.ftruncate(fd, length_bytes)
        self._whole.add(path)

    def _take_room(self, fd: int, path: str, begin: int, size: int) -> None:
        """Write zeros where the next writes come. A disk without room for them keeps what it has for data, and is asked
        again only so many bytes later."""
        known, has = self._has_room
        if begin >= size or (known == path and begin <= has):
            return
        end = min(begin + self._ahead_bytes, size)
        try:
            self._calls.write(fd, bytes(end - begin), begin)
        except OSError:
            self._cut_back(path, begin, size)
        self._has_room = path, end

    def _cut_back(self, path: str, keep_bytes: int, length_bytes: int) -> None:
        """Take half a write away, and the room that it took; the next write would do the first too."""
        self._has_room = "", 0
        self._whole.discard(path)
        with contextlib.suppress(OSError, StorageError):
            fd = self._pool.get(path)
            self._calls.ftruncate(fd, keep_bytes)
            self._calls.ftruncate(fd, length_bytes)

    def read(self, position: int, length_bytes: int) -> bytes:
        if position < self._starts[0] or position > self._written + len(self._buffer):
            raise StorageError(f"{self._folder.name}: read at {position} outside of [{self.start}, {self.end}]")
        written = min(length_bytes, self._written - position)
        if written == length_bytes and position >= self._starts[-1]:
            return self._pread(self._starts[-1], position, length_bytes)
        parts: list[bytes] = []
        while written > 0:
            index = bisect_right(self._starts, position) - 1
            limit = self._starts[index + 1] if index + 1 < len(self._starts) else self._written
            step = min(written, limit - position)
            parts.append(self._pread(self._starts[index], position, step))
            position += step
            written -= step
            length_bytes -= step
        if length_bytes > 0 and self._buffer:
            at = position - self._written
            parts.append(bytes(self._buffer[at : at + length_bytes]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pread(self, start: int, position: int, length_bytes: int) -> bytes:
        path = self._path(start)
        try:
            data = os.pread(self._pool.get(path), length_bytes, position - start)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if len(data) != length_bytes and self._in_hole(position + len(data)):
            return data.ljust(length_bytes, b"\0")
        if len(data) != length_bytes:
            raise StorageError(f"{path} is shorter than it was: something else changed the data folder")
        return data

    def _in_hole(self, position: int) -> bool:
        return any(at <= position < at + length_bytes for at, length_bytes in self._holes)

    def flush(self) -> None:
        if self._buffer:
            self._write(bytes(self._buffer))  # a copy: what a failed write still refers to could not grow
            self._buffer = bytearray()

    def truncate(self, end: int) -> None:
        self.flush()
        end = max(end, self.start)
        last = self._starts[-1]
        while self._starts[-1] >= end and len(self._starts) > 1:
            self._drop_last()
        if self._starts[-1] != last and not self.is_buffered:
            self._calls.sync(str(self._folder))
        self._written = min(end, self._limit)
        path = self._path(self._starts[-1])
        if os.path.exists(path):
            with _refused_as(f"cannot write {path}"):
                self._zero(path, self._written - self._starts[-1])
        self._holes = [(at, length) for at, length in self._holes if at < end]

    def _zero(self, path: str, begin: int) -> None:
        """Overwrite what is there from `begin` on, and of an unbuffered file wait for the disk; a hole stays one."""
        fd = self._pool.get(path)
        changed = False
        while (data_at := self._next_data(fd, begin)) is not None:
            data_end = os.lseek(fd, data_at, os.SEEK_HOLE)
            data = os.pread(fd, min(ZERO_STEP_BYTES, data_end - data_at), data_at)
            if data.count(0) != len(data):
                self._calls.write(fd, bytes(len(data)), data_at)
                changed = True
            begin = data_at + len(data)
        if changed and not self.is_buffered:
            self._calls.sync_open(fd, path)

    @staticmethod
    def _next_data(fd: int, position: int) -> int | None:
        """Where the first byte is, at or after `position`, that the file has room for on the disk."""
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return position if position < os.fstat(fd).st_size else None

    def reset(self, position: int) -> None:
        """A kill in its middle leaves the front of a file that goes back: a queue with its newest entries alone would look
        whole. Of one that goes on it leaves the end: a journal's older lines alone would undo what its newer ones say."""
        if position >= self.end:
            self.drop_before(position)
        else:
            self._buffer.clear()
        while self._starts:
            self._drop_last()
        self._buffer.clear()
        self._starts = [position]
        self._written = position
        self._limit = position + self._segment_bytes
        self._holes.clear()

    def drop_before(self, position: int) -> None:
        while len(self._starts) > 1 and self._starts[1] <= position:
            self._unlink(self._starts[0])
            del self._starts[0]
        self._holes = [(at, length) for at, length in self._holes if at >= self.start]

    def _drop_last(self) -> None:
        self._unlink(self._starts[-1])
        self._written = self._limit = self._starts.pop()

    def segment_starts(self) -> list[int]:
        return list(self._starts)

    def taken_bytes(self, start: int) -> int:
        return taken_bytes(self._path(start))

    def _unlink(self, start: int) -> None:
        path = self._path(start)
        with _refused_as(f"cannot remove {path}"), contextlib.suppress(FileNotFoundError):
            self._calls.unlink(path)
        del self._paths[start]
        self._whole.discard(path)
        self._pool.forget(path)
        self.dirty.pop(path, None)
        self._has_room = "", 0
        if self._on_gone is not None:
            self._on_gone(path)

    def forget(self) -> None:
        """Give the descriptors back; the files stay."""
        for start in self._starts:
            self._pool.forget(self._path(start))
            if self._on_gone is not None:
                self._on_gone(self._path(start))
        self.dirty.clear()

    def settle(self, position: int) -> None:
        self.flush()
        reached = bisect_right(self._starts, position) - 1
        written = [self._path(start) for start in self._starts[max(reached, 0) :]]
        for path in [*written, *self.dirty, str(self._folder)]:
            self._calls.sync(path)
        self.dirty.clear()

    def remove(self) -> None:
        self.reset(0)
        with contextlib.suppress(OSError):  # somebody else's files in it: not ours to delete
            self._calls.rmdir(str(self._folder))


class DiskPlainFile:
    """A PlainFile."""

    def __init__(self, path: str, pool: DescriptorPool, dirty: dict[str, None]) -> None:
        """`dirty` is told of each write: its path, which the disk may not have then."""
        self._path = path
        self._pool = pool
        self._dirty = dirty

    def read(self, position: int, length_bytes: int) -> bytes:
        try:
            return os.pread(self._pool.get(self._path), length_bytes, position)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from error

    def write(self, position: int, data: bytes) -> None:
        self._dirty[self._path] = None
        with _refused_as(f"cannot write {self._path}"):
            self._pool.calls.write(self._pool.get(self._path), data, position)

    def make_whole(self, length_bytes: int) -> None:
        with _refused_as(f"cannot write {self._path}"):
            self._pool.calls.ftruncate(self._pool.get(self._path), length_bytes)

    @property
    def taken_bytes(self) -> int:
        return taken_bytes(self._path)


@contextlib.contextmanager
def _refused_as(cannot: str) -> Generator[None]:
    """An OSError becomes a StorageError that begins with these words."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{cannot}: {error.strerror}") from error


def _made(folder: Path, calls: DiskCalls) -> list[str]:
    """As DiskCalls.make_folder; raises StorageError."""
    with _refused_as(f"cannot make {folder}"):
        return calls.make_folder(folder)


class DiskStorage:
    """Storage in one folder, locked by flock for as long as this object lives."""

    has_disk = True

    def __init__(
        self,
        folder: Path,
        open_files_max: int = OPEN_FILES_MAX,
        calls: DiskCalls | None = None,
        *,
        has_thread: bool = True,
        ahead_bytes: int = 0,
        name: str = "",
    ) -> None:
        """`ahead_bytes`: how much room files take before it is needed, those that are written at once and in larger segments.
        `name` is that of the broker which is to serve the folder; empty for who only looks at it.
        `calls` change the folder (a test may record them, or let them fail); without a thread of its own a test says when
        the disk is waited for: `syncer.work()`.

        Raises UsageError when the folder cannot be used, RocketcrewError when another process holds it.
        """
        self._folder = folder
        self._calls = calls or DiskCalls()
        self._ahead_bytes = ahead_bytes
        refuse_foreign(folder)
        refuse_half_converted(folder)
        if name:
            refuse_other_name(folder, name)
        try:
            make_folders(folder.parent)
            made = self._calls.make_folder(folder / "config")
            self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise UsageError(f"broker data folder {folder} cannot be used: {error.strerror}") from error
        self._take_lock()
        self._calls.sweep(folder / "config")
        self._files: dict[str, DiskFile] = {}
        self._plain_dirty: dict[str, None] = {}  # of plain files; only a clean stop waits for those
        self._pool = DescriptorPool(open_files_max, self._calls)
        self.syncer = Syncer(self._calls, has_thread=has_thread)
        for path in [*made, str(folder)]:
            self._calls.sync(path)
        self._abort: str | None = None  # the file that is there while the store is in use, as the genuine broker's
        self.kept_all = self._was_kept()

    def _was_kept(self) -> bool:
        abort = self._folder / ABORT
        if not abort.exists():
            return True
        lines = abort.read_text(encoding="ascii", errors="replace").split()
        return len(lines) == 2 and lines[1] == boot_id()

    def begin(self) -> None:
        abort = str(self._folder / ABORT)
        with _refused_as(f"cannot write {abort}"):
            fd = self._calls.open(abort, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self._calls.write(fd, f"{os.getpid()}\n{boot_id()}\n".encode(), 0)
            finally:
                self._calls.close(fd)
            self._calls.sync(abort)
            self._calls.sync(str(self._folder))
        self._abort = abort

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock_fd)
            raise RocketcrewError(
                f"broker data folder {self._folder} is in use by another broker (process {holder}): "
                "stop that one, or choose another folder"
            ) from error
        if not self._is_named():
            os.close(self._lock_fd)
            raise UsageError(f"broker data folder {self._folder} was converted at this moment: try again")
        own = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk: who else wants the folder is not told who holds it
            os.pwrite(self._lock_fd, own, 0)
            os.ftruncate(self._lock_fd, len(own))

    def _is_named(self) -> bool:
        """Whether what is locked is still the folder of that name."""
        try:
            return os.path.samestat(os.stat(self._folder / "lock"), os.fstat(self._lock_fd))
        except FileNotFoundError:
            return False

    def open(self, name: str, segment_bytes: int, buffered: bool) -> DiskFile:
        file = self._files.get(name)
        if file is None:
            ahead_bytes = 0 if buffered or segment_bytes <= self._ahead_bytes else self._ahead_bytes
            file = self._files[name] = DiskFile(
                self._folder / name, segment_bytes, buffered, self._pool,
                ahead_bytes=ahead_bytes, on_gone=self.syncer.forget,
            )  # fmt: skip
        return file

    def names(self, prefix: str, *, tidies: bool = False) -> list[str]:
        """Folders below the data folder that hold segments; topic names cannot hold a slash, so names are paths."""
        found: set[str] = set(self._files)
        for path, folders, files in os.walk(self._folder / os.path.dirname(prefix), topdown=not tidies):
            if path == str(self._folder) and ASIDE in folders:
                folders.remove(ASIDE)
            name = os.path.relpath(path, self._folder)
            if any(entry.isdigit() and len(entry) == NAME_DIGITS for entry in files):
                found.add(name)
            elif tidies and not files and name not in self._files:
                self._calls.remove_empty(self._folder, os.path.join(name, ""))
        return sorted(name for name in found if name.startswith(prefix))

    def remove(self, name: str) -> None:
        file = self._files.pop(name, None) or DiskFile(self._folder / name, 1, False, self._pool)
        file.remove()
        self._calls.remove_empty(self._folder, name)

    def load(self, table: str) -> bytes | None:
        pending = self.syncer.pending_table(str(self._folder / table))
        if pending is not None:
            return pending
        try:
            return (self._folder / table).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {self._folder / table}: {error.strerror}") from error

    def load_previous(self, table: str) -> bytes | None:
        return self.load(table + PREVIOUS)

    def replace(self, table: str, content: bytes, *, sync: bool = False) -> None:
        if not sync:
            self.syncer.submit_table(str(self._folder / table), content)
            if self.syncer.table_trouble is not None:  # of an earlier one; all that wait are tried again
                raise StorageError(self.syncer.table_trouble)
            return
        with _refused_as(f"cannot write {self._folder / table}"):
            self.syncer.write_table_now(str(self._folder / table), content)

    def is_saved(self, *tables: str) -> bool:
        return all(self.syncer.pending_table(str(self._folder / table)) is None for table in tables)

    @property
    def disk_bytes(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_blocks * found.f_frsize

    def set_aside(self, name: str, parts: Iterable[bytes]) -> None:
        path = self._folder / ASIDE / name
        if path.exists():
            return
        fresh = path.with_name(path.name + ".tmp")
        with _refused_as(f"cannot keep a copy of damaged bytes in {path}"):
            made = self._calls.make_folder(path.parent)
            fd = self._calls.open(str(fresh), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                length_bytes = 0
                for part in parts:
                    if part.count(0) != len(part):
                        self._calls.write(fd, part, length_bytes)
                    length_bytes += len(part)
                self._calls.ftruncate(fd, length_bytes)
                self._calls.sync_open(fd, str(fresh))
            finally:
                self._calls.close(fd)
            self._calls.rename(str(fresh), str(path))
            for changed in [str(path.parent), *made]:
                self._calls.sync(changed)

    def move_aside(self, name: str) -> None:
        file = self._files.pop(name, None)
        place = self._folder / ASIDE / name
        number = 0
        while place.exists():
            number += 1
            place = self._folder / ASIDE / f"{name}.{number}"
        try:
            self._calls.make_folder(place.parent)
            self._calls.rename(str(self._folder / name), str(place))
            self._calls.remove_empty(self._folder, name)
        except OSError as error:
            raise StorageError(f"cannot set {self._folder / name} aside: {error.strerror}") from error
        finally:
            if file is not None:
                file.forget()

    def aside(self) -> list[str]:
        folder = self._folder / ASIDE
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def plain_names(self, folder: str) -> list[str]:
        place = self._folder / folder
        found = place.iterdir() if place.is_dir() else ()
        return sorted(f"{folder}/{path.name}" for path in found if path.name.isdigit())

    def open_plain(self, name: str) -> DiskPlainFile:
        self._plain_dirty |= dict.fromkeys(_made((self._folder / name).parent, self._calls))
        return DiskPlainFile(str(self._folder / name), self._pool, self._plain_dirty)

    def remove_plain(self, name: str) -> None:
        path = str(self._folder / name)
        self._pool.forget(path)
        with _refused_as(f"cannot remove {path}"), contextlib.suppress(FileNotFoundError):
            self._calls.unlink(path)

    def sync(self, *names: str) -> int:
        paths: dict[str, None] = {}
        for file in [self._files[name] for name in names] if names else self._files.values():
            paths |= file.dirty
            if names or file.is_buffered:  # what waits for a flush must not have to wait for a round
                file.dirty.clear()
        return self.syncer.submit(paths, flush=bool(names))

    def is_synced(self, ticket: int) -> bool:
        return self.syncer.is_done(ticket)

    def sync_now(self) -> None:
        for file in self._files.values():
            file.flush()
        self.syncer.wait(self.sync())

    def close(self) -> None:
        """Flush and sync everything, end the thread, release the folder. Does nothing the second time."""
        if self._lock_fd < 0:
            return
        try:
            self.end()
        finally:
            self.abandon()

    def end(self) -> None:
        """Flush and sync everything: the store is not in use any more. The folder stays locked."""
        self.sync_now()
        if self._abort is not None:
            folders = [os.path.dirname(path) for path in self._plain_dirty]
            self.syncer.wait(self.syncer.submit(dict.fromkeys([*self._plain_dirty, *folders]), flush=False))
            self._calls.unlink(self._abort)
            self._abort = None

    def abandon(self) -> None:
        """Release the folder and keep only what is durable, as the end of a killed process does."""
        if self._lock_fd < 0:
            return
        self.syncer.close()
        self._pool.close()
        os.close(self._lock_fd)
        self._lock_fd = -1  # a descriptor closed twice could be somebody else's the second time
