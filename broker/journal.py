"""A table in two files: what it was, whole, and a journal of what changed since.

A change costs its own line, whatever the size of the table; a kill loses no line that was appended. When the journal has as
many entries as the table, and `WHOLE_AFTER_MIN` at least, the table is written whole and a new segment begun; once the disk
has the table, the segments before go. So each change pays for one entry or two.

Owners make lines that change nothing when they are read twice, or after a table that has them already. Each line ends with
its CRC32: one that a kill cut short, or that is damaged, does not count. Where zeros are, lines were: only the rest of a
segment that ended early has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32

from .storage import Storage, StoredFile

JOURNAL_BYTES = 1 << 20
WHOLE_AFTER_MIN = 10_000  # entries: some 200 to 500 KB of journal


def checked_line(text: bytes) -> bytes:
    """The line of `text`, which has no line end."""
    return b"%s %08x\n" % (text, crc32(text))


def checked_text(line: bytes) -> bytes | None:
    """The text of a line without its end, None when it is not what was written."""
    text, _, check = line.rpartition(b" ")
    return text if check == b"%08x" % crc32(text) else None


def whole_lines(file: StoredFile) -> Iterator[tuple[bytes, bool]]:
    """The lines of a journal without their ends and the zeros before them, and whether these zeros may be there."""
    starts, at = set(file.segment_starts()), file.start
    for line in file.read(at, file.content_end - at).rstrip(b"\0").split(b"\n")[:-1]:
        text = line.lstrip(b"\0")
        zeros = len(line) - len(text)
        yield text, not zeros or at + zeros in starts
        at += len(line) + 1


def keep_damaged(storage: Storage, name: str, file: StoredFile) -> None:
    """Keep a copy of a journal with damaged lines, before it begins anew. Raises StorageError."""
    length_bytes = file.content_end - file.start
    storage.set_aside(f"{name}/{file.start}-{length_bytes}", [file.read(file.start, length_bytes)])


class Journal:
    """The two files in a storage."""

    def __init__(self, storage: Storage, name: str, table: str) -> None:
        """`name` is a file, `table` a table of `storage`."""
        self._storage = storage
        self._name = name
        self._table = table
        self._file = storage.open(name, JOURNAL_BYTES, buffered=False)
        self.whole_after_min = WHOLE_AFTER_MIN
        self._entries = 0  # that the table does not have
        self._table_has = -1  # the file's end as the table that is being written has it, -1 for none

    def texts(self) -> tuple[list[bytes], int]:
        """The texts of the lines, for the start; and how many are damaged, zeros in place of some counted as one."""
        texts: list[bytes] = []
        damaged = 0
        for line, is_after_line in whole_lines(self._file):
            text = checked_text(line)
            damaged += text is None or not is_after_line
            if text is not None:
                texts.append(text)
        return texts, damaged

    def set_aside(self) -> None:
        """Keep a copy of what has damaged lines, before it begins anew. Raises StorageError."""
        keep_damaged(self._storage, self._name, self._file)

    def begin_anew(self, table: bytes, *, changed: bool = False) -> None:
        """At the end of a start: else something would be appended to a line that a kill cut short. `table` has all lines;
        `changed`: and more.

        Raises StorageError, DiskFailed.
        """
        if changed or self._file.end > self._file.start:
            self._storage.replace(self._table, table, sync=True)
            self._file.reset(self._file.end)

    def append(self, texts: Iterable[bytes], entries: int) -> None:
        """Append lines, which change so many entries. Raises StorageError, and then none is there."""
        self._file.append(b"".join([checked_line(text) for text in texts]))
        self._entries += entries

    @property
    def written(self) -> int:
        """Grows with each line."""
        return self._file.end

    @property
    def is_empty(self) -> bool:
        return self._file.end == self._file.start

    def is_long(self, table_entries: int, more: int = 0) -> bool:
        """Whether the table is to be written, of so many entries; `more` are about to be appended."""
        return self._entries + more >= max(self.whole_after_min, table_entries)

    def write_table(self, table: bytes) -> None:
        """Write the table, which has all that was appended. Raises StorageError."""
        self._storage.replace(self._table, table)
        if 0 < self._file.room < self._file.segment_bytes:
            self._file.roll(b"")
        self._table_has, self._entries = self._file.end, 0

    def end(self) -> None:
        """Drop what a table has that is on the disk; what was appended since stays."""
        if self._table_has >= 0 and self._storage.is_saved(self._table):
            if self._table_has == self._file.end:
                self._file.reset(self._file.end)
            else:
                self._file.drop_before(self._table_has)
            self._table_has = -1
