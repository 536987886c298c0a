"""A table in two files: what it was, whole, and a journal of what changed since.

A change costs its own line, whatever the size of the table; a kill loses no line that was appended. When the journal has as
many entries as the table, and `WHOLE_AFTER_MIN` at least, the table is written whole and a new segment begun; once the disk
has the table, the segments before go. So each change pays for one entry or two.

Owners make lines that change nothing when they are read twice, or after a table that has them already. Each line ends with
its CRC32: one that a kill cut short, or that is damaged, does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from .storage import Storage

JOURNAL_BYTES = 1 << 20
WHOLE_AFTER_MIN = 10_000  # entries: some 200 to 500 KB of journal


def checked_line(text: bytes) -> bytes:
    """The line of `text`, which has no line end."""
    return b"%s %08x\n" % (text, crc32(text))


def checked_text(line: bytes) -> bytes | None:
    """The text of a line without its end, None when it is not what was written."""
    text, _, check = line.rpartition(b" ")
    return text if check == b"%08x" % crc32(text) else None


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
        """The texts of the lines, for the start; and how many whole lines are damaged."""
        file = self._file
        lines = file.read(file.start, file.content_end - file.start).rstrip(b"\0").split(b"\n")[:-1]
        texts = [checked_text(line.lstrip(b"\0")) for line in lines]  # zeros: the rest of the segment before
        return [text for text in texts if text is not None], texts.count(None)

    def set_aside(self) -> None:
        """Keep a copy of what has damaged lines, before it begins anew. Raises StorageError."""
        file = self._file
        length_bytes = file.content_end - file.start
        self._storage.set_aside(f"{self._name}/{file.start}-{length_bytes}", [file.read(file.start, length_bytes)])

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
