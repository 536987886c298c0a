"""Where the broker's bytes live: what is asked of a storage, and the one that lives in memory.

Two kinds of things are stored. *Files* are append-only sequences of bytes addressed by position; a position is never
used twice, the front may be dropped, the tail truncated. *Tables* are small named documents that are replaced whole.

The durability rules, which both storages keep and every test may rely on:

- A file opened with `buffered=False` is durable when `append` returns: a killed process loses none of it. This is the
  commit log, and it is why an acknowledged send survives kill -9: the append comes before the reply.
- A file opened with `buffered=True` is durable up to its last `flush`. These are the consume queues, which can be
  rebuilt from the commit log.
- A table is durable when `replace` with `sync` returns, also against a crash of the machine. Without it, its newest content
  is written soon, and by `close` at the latest. The generation before is kept, so that one of the two is always whole.
- `sync` asks for the same against a crash of the machine; it returns a ticket at once, and `is_synced` tells when that one is
  done. A storage without a machine below it is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ..remoting.errors import RocketcrewError

T = TypeVar("T")


class StorageError(RocketcrewError):
    """The storage cannot take or give bytes (disk full, read error). The request at hand fails, the broker lives."""


class DiskFailed(StorageError):
    """The disk did not keep what it had taken. What is on it now is unknown, so the process has to stop."""


def try_each(act: Callable[[T], None], items: Iterable[T]) -> None:
    """`act` on each of them, whatever the storage refuses; then raise its first refusal."""
    refused: list[StorageError] = []
    for item in items:
        try:
            act(item)
        except StorageError as error:
            refused.append(error)
    if refused:
        raise refused[0]


class StoredFile(Protocol):
    """An append-only sequence of bytes between `start` and `end`, in segments of one size. What was opened may end with zeros
    that nobody wrote: the owner finds its end and says so by `truncate`."""

    @property
    def start(self) -> int:
        """First position still held."""
        ...

    @property
    def end(self) -> int:
        """Position that the next append gets."""
        ...

    def append(self, data: bytes) -> int:
        """Append and return the position of the first byte. Raises StorageError, and then nothing was appended."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Size of a segment that is begun now; what is there may have another one than was asked for."""
        ...

    @property
    def room(self) -> int:
        """Bytes that the last segment has left, 0 when the next append begins a new one."""
        ...

    @property
    def content_end(self) -> int:
        """A position from which on there are only zeros, found without reading them."""
        ...

    def roll(self, last: bytes) -> None:
        """Append `last`, which fits into `room`, and let the next append begin a new segment. Raises as `append`."""
        ...

    def read(self, position: int, length_bytes: int) -> bytes:
        """Bytes from `position`, fewer than asked only at `end`. Raises StorageError outside of [start, end]."""
        ...

    def flush(self) -> None:
        """Make everything appended survive a kill of the process."""
        ...

    def settle(self, position: int) -> None:
        """Wait until everything at and above `position` is on the disk. Raises StorageError, DiskFailed."""
        ...

    def truncate(self, end: int) -> None:
        """Forget everything at and above `end`: it is zeroed, and in an unbuffered file the disk is waited for, so that
        nothing of it can come back."""
        ...

    def reset(self, position: int) -> None:
        """Forget everything; the next append gets `position`. Raises StorageError, and then some of it may be gone."""
        ...

    def drop_before(self, position: int) -> None:
        """Allow everything below `position` to be forgotten; whole segments go, so `start` may stay lower."""
        ...

    def segment_starts(self) -> list[int]:
        """First positions of the segments held, ascending; what `drop_before` can cut at."""
        ...

    def taken_bytes(self, start: int) -> int:
        """Room that the segment beginning at `start` takes on the disk; less than its size, as segments are sparse."""
        ...

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Position and length of what is missing between the segments; it reads as zeros."""
        ...


class PlainFile(Protocol):
    """A file that is read and written anywhere: what can be made anew."""

    def read(self, position: int, length_bytes: int) -> bytes:
        """Fewer bytes at its end. Raises StorageError."""
        ...

    def write(self, position: int, data: bytes) -> None:
        """Raises StorageError, and then any of it may be written."""
        ...

    def make_whole(self, length_bytes: int) -> None:
        """Give it its full size, without taking room for it. Raises StorageError."""
        ...

    @property
    def taken_bytes(self) -> int:
        """Room that it takes on the disk; less than its size, as it is sparse."""
        ...


class Storage(Protocol):
    """All files and tables of one broker; single owner, one thread."""

    def open(self, name: str, segment_bytes: int, buffered: bool) -> StoredFile:
        """Open the file `name` (slashes make folders), creating it at position 0."""
        ...

    def names(self, prefix: str, *, tidies: bool = False) -> list[str]:
        """Names of the files that exist and start with `prefix`, sorted; `tidies` removes what files that are gone left below
        the folder that it names."""
        ...

    def remove(self, name: str) -> None:
        """Remove the file `name` with all its bytes."""
        ...

    def load(self, table: str) -> bytes | None:
        """The table's content, None when it was never written."""
        ...

    def load_previous(self, table: str) -> bytes | None:
        """The table's content before the last `replace`, None when there was none."""
        ...

    def replace(self, table: str, content: bytes, *, sync: bool = False) -> None:
        """Replace the table whole; `sync` waits for the disk as well. Raises StorageError, DiskFailed."""
        ...

    def set_aside(self, name: str, parts: Iterable[bytes]) -> None:
        """Keep a copy of bytes that cannot be read as `damaged/<name>`; what is there under that name already stays."""
        ...

    def move_aside(self, name: str) -> None:
        """Move the file or table `name` to `damaged/<name>`, with a number where something is there already."""
        ...

    def aside(self) -> list[str]:
        """Names of what was set aside, sorted."""
        ...

    def plain_names(self, folder: str) -> list[str]:
        """Names of the plain files in a folder, sorted."""
        ...

    def open_plain(self, name: str) -> PlainFile:
        """Open a plain file, empty when there is none."""
        ...

    def remove_plain(self, name: str) -> None:
        """Remove a plain file."""
        ...

    @property
    def kept_all(self) -> bool:
        """Whether what was written last time and not synced is there: it stopped, or was killed and the machine ran on."""
        ...

    def begin(self) -> None:
        """From now on, until `close`, the store is in use: who finds it so knows of a kill."""
        ...

    def sync(self, *names: str) -> int:
        """Start to bring what is written so far to the disk; of the files `names` alone, and before all else, when there are
        any. Returns the ticket to ask for."""
        ...

    def is_synced(self, ticket: int) -> bool:
        """Whether that is done. Raises DiskFailed once any of it has failed."""
        ...

    def sync_now(self) -> None:
        """Flush all files, and wait until they are on the disk. Raises StorageError, DiskFailed."""
        ...

    def is_saved(self, *tables: str) -> bool:
        """Whether the newest content of these tables is on the disk."""
        ...

    @property
    def disk_bytes(self) -> int:
        """Size of the file system below, 0 for none."""
        ...

    @property
    def has_disk(self) -> bool:
        """Whether there is something to wait for: a storage in memory has none."""
        ...

    def close(self) -> None:
        """Flush, bring to the disk, release the folder."""
        ...


class MemoryFile:
    """A StoredFile in one bytearray; remembers how much of it a crash would leave."""

    __slots__ = ("_buffered", "_cuts", "_data", "_durable_end", "_segment_bytes", "_start")

    def __init__(self, segment_bytes: int, buffered: bool) -> None:
        self._data = bytearray()
        self._start = 0
        self._buffered = buffered
        self._durable_end = 0
        self._segment_bytes = segment_bytes
        self._cuts = [0]

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._start + len(self._data)

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def room(self) -> int:
        return self._cuts[-1] + self._segment_bytes - self.end

    @property
    def content_end(self) -> int:
        return self.end

    def roll(self, last: bytes) -> None:
        self.append(last.ljust(self.room, b"\0"))

    def append(self, data: bytes) -> int:
        position = self.end
        self._data += data
        while self.end > self._cuts[-1] + self._segment_bytes:
            self._cuts.append(self._cuts[-1] + self._segment_bytes)
        if not self._buffered:
            self._durable_end = self.end
        return position

    def read(self, position: int, length_bytes: int) -> bytes:
        if position < self._start or position > self.end:
            raise StorageError(f"read at {position} outside of [{self._start}, {self.end}]")
        at = position - self._start
        return bytes(self._data[at : at + length_bytes])

    def flush(self) -> None:
        self._durable_end = self.end

    def settle(self, position: int) -> None:
        self.flush()

    def truncate(self, end: int) -> None:
        del self._data[max(end - self._start, 0) :]
        self._durable_end = min(self._durable_end, self.end)
        self._cuts = [self._start, *(cut for cut in self._cuts[1:] if cut < self.end)]

    def reset(self, position: int) -> None:
        self._data.clear()
        self._start = self._durable_end = position
        self._cuts = [position]

    def drop_before(self, position: int) -> None:
        kept = [cut for cut in self._cuts if cut <= position]
        cut = kept[-1] if kept else self._start
        del self._data[: cut - self._start]
        self._start = cut
        self._cuts = [at for at in self._cuts if at >= cut]

    def segment_starts(self) -> list[int]:
        return list(self._cuts)

    def taken_bytes(self, start: int) -> int:
        return min(self._segment_bytes, self.end - start)

    @property
    def holes(self) -> list[tuple[int, int]]:
        return []

    @property
    def content(self) -> bytes:
        """All of it, as who moves a file does not read it."""
        return bytes(self._data)

    def overwrite(self, position: int, data: bytes) -> None:
        """For tests: damage what is stored."""
        at = position - self._start
        self._data[at : at + len(data)] = data

    def crash(self, torn: bytes = b"") -> None:
        """Keep what is durable, then `torn`: the front of a record whose write was under way."""
        self.truncate(self._durable_end)
        self._data += torn
        self._durable_end = self.end


class MemoryPlainFile:
    """A PlainFile in a bytearray."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def read(self, position: int, length_bytes: int) -> bytes:
        return bytes(self._data[position : position + length_bytes])

    def write(self, position: int, data: bytes) -> None:
        if position > len(self._data):
            self._data += bytes(position - len(self._data))
        self._data[position : position + len(data)] = data

    def make_whole(self, length_bytes: int) -> None:
        """It grows as it is written."""

    @property
    def taken_bytes(self) -> int:
        return len(self._data)


class MemoryStorage:
    """Storage for tests and the simulation. The same object, after `crash`, is what a restarted broker finds."""

    has_disk = False
    disk_bytes = 0
    kept_all = True

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._tables: dict[str, bytes] = {}
        self._previous: dict[str, bytes] = {}
        self._aside: dict[str, bytes] = {}
        self._plain: dict[str, MemoryPlainFile] = {}

    def open(self, name: str, segment_bytes: int, buffered: bool) -> MemoryFile:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = MemoryFile(segment_bytes, buffered)
        return file

    def names(self, prefix: str, *, tidies: bool = False) -> list[str]:
        del tidies  # files here have no folders
        return sorted(name for name in self._files if name.startswith(prefix))

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def load(self, table: str) -> bytes | None:
        return self._tables.get(table)

    def replace(self, table: str, content: bytes, *, sync: bool = False) -> None:
        if table in self._tables:
            self._previous[table] = self._tables[table]
        self._tables[table] = content

    def load_previous(self, table: str) -> bytes | None:
        return self._previous.get(table)

    def is_saved(self, *tables: str) -> bool:
        return True

    def set_aside(self, name: str, parts: Iterable[bytes]) -> None:
        self._aside.setdefault(name, b"".join(parts))

    def move_aside(self, name: str) -> None:
        file = self._files.pop(name, None)
        content = self._tables.pop(name, b"") if file is None else file.content
        place = name
        while place in self._aside:
            place += "+"
        self._aside[place] = content

    def aside(self) -> list[str]:
        return sorted(self._aside)

    def plain_names(self, folder: str) -> list[str]:
        return sorted(name for name in self._plain if name.startswith(folder + "/"))

    def open_plain(self, name: str) -> MemoryPlainFile:
        return self._plain.setdefault(name, MemoryPlainFile())

    def remove_plain(self, name: str) -> None:
        self._plain.pop(name, None)

    def begin(self) -> None:
        """A MemoryStorage does not outlive its process."""

    def sync(self, *names: str) -> int:
        return 0

    def is_synced(self, ticket: int) -> bool:
        return True

    def sync_now(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.flush()

    def crash(self, torn_log: bytes = b"") -> None:
        """Lose what a killed process loses: unflushed tails of buffered files.

        `torn_log` is put behind the commit log, as the front of a record whose write the kill cut short leaves it; it
        must not be a whole record (such a one was written before its acknowledgement, and counts).
        """
        for name, file in self._files.items():
            file.crash(torn_log if name == "commitlog" else b"")
