"""A storage with places that cannot be read, which counts what is."""

from __future__ import annotations

import errno

from rocketcrew.broker.readable_log import pieces_of
from rocketcrew.broker.storage import MemoryFile, MemoryStorage, StorageError


class CountedFile(MemoryFile):
    """`bad`: positions of which a read must have none, else it fails, with `error_number`, and is counted; `bad_pages`: the
    numbers of pages for which the same holds."""

    __slots__ = ("bad", "bad_pages", "error_number", "failed_reads", "read_bytes")

    def __init__(self, segment_bytes: int, buffered: bool) -> None:
        super().__init__(segment_bytes, buffered)
        self.bad, self.error_number, self.read_bytes = range(0), errno.EIO, 0
        self.failed_reads = 0
        self.bad_pages: set[int] = set()

    def read(self, position: int, length_bytes: int) -> bytes:
        is_bad = position < self.bad.stop and position + length_bytes > self.bad.start
        if is_bad or not self.bad_pages.isdisjoint(pieces_of(position, length_bytes)):
            self.failed_reads += 1
            error = OSError(self.error_number, "Input/output error")
            raise StorageError(f"cannot read: {error.strerror}") from error
        self.read_bytes += length_bytes
        return super().read(position, length_bytes)

    def reset(self, position: int) -> None:
        super().reset(position)
        self.bad, self.bad_pages = range(0), set()  # the file that takes its place is elsewhere on the disk


class CountedStorage(MemoryStorage):
    """Whose files are those."""

    def open(self, name: str, segment_bytes: int, buffered: bool) -> CountedFile:
        file = self._files.get(name)
        if not isinstance(file, CountedFile):
            file = self._files[name] = CountedFile(segment_bytes, buffered)
        return file

    @property
    def log(self) -> CountedFile:
        return self.open("commitlog", 1, buffered=False)
