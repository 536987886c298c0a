"""One consume queue: the index of one message queue, 20 bytes an entry (ST/ConsumeQueue.java).

    int64 position in the commit log | int32 record size | int64 tags code

The entry's number is the queue offset. Entries are appended when a record is stored and when recovery reads the log
again; they are never changed. Records that retention removed from the commit log leave entries behind: `min_offset` is
the first entry whose record is still there.

An entry of size 0 is a *filler*: the message with that offset was in a damaged part of the log. Its position is that of the
next record of the queue, or of the one before, so that positions ascend over the whole file. Its tags code is FILLER_CODE,
so that a page of zeros is never taken for fillers: it is damage, and the queue is made anew. Entries of zeros at the end are
no entries: the genuine broker makes these files at their full size.
"""

from __future__ import annotations

from struct import Struct

from ..remoting.names import SCHEDULE_TOPIC
from .storage import StorageError, StoredFile

ENTRY = Struct(">qiq")
ENTRY_BYTES = ENTRY.size
SEGMENT_BYTES = 300_000 * ENTRY_BYTES  # as the genuine files

TRIM_BYTES = 1_024 * ENTRY_BYTES
FILLER_CODE = -1

Entry = tuple[int, int, int]  # position, size, tags code


def entries_end(file: StoredFile) -> int:
    """Position after the last entry of `file`: what is not whole, or only zeros, at its end does not count."""
    end = min(file.end, file.content_end + ENTRY_BYTES)
    end -= end % ENTRY_BYTES
    while end > file.start:
        step_bytes = min(end - file.start, TRIM_BYTES)
        kept = len(file.read(end - step_bytes, step_bytes).rstrip(b"\0"))
        if kept:
            return end - step_bytes + -(-kept // ENTRY_BYTES) * ENTRY_BYTES
        end -= step_bytes
    return file.start


class ConsumeQueue:
    """Queue offsets [min_offset, next_offset) of one message queue; those from `max_offset` on are not shown yet, as their
    records are not on the disk."""

    __slots__ = ("_file", "max_offset", "min_offset", "next_offset", "queue_id", "topic")

    def __init__(self, file: StoredFile, topic: str, queue_id: int) -> None:
        self._file = file
        self.topic = topic
        self.queue_id = queue_id
        whole = entries_end(file)
        if whole != file.end:  # a kill in the middle of a write, or a file of the genuine broker
            file.truncate(whole)
        self.next_offset = self.max_offset = whole // ENTRY_BYTES
        self.min_offset = file.start // ENTRY_BYTES

    def append_hidden(self, position: int, size_bytes: int, tags_code: int) -> None:
        """Append an entry that nobody sees before `show`."""
        self._file.append(ENTRY.pack(position, size_bytes, tags_code))
        self.next_offset += 1

    def show(self, end: int) -> None:
        """The records of the entries below `end` are on the disk."""
        self.max_offset = max(self.max_offset, min(end, self.next_offset))

    def hide_from(self, position: int) -> None:
        """The records at or above `position` of the log are not on the disk yet."""
        self.max_offset = self.first_at_or_above(position)

    def append(self, position: int, size_bytes: int, tags_code: int) -> None:
        self.append_entries([(position, size_bytes, tags_code)])

    def append_entries(self, entries: list[Entry]) -> None:
        self._file.append(b"".join([ENTRY.pack(*entry) for entry in entries]))
        self.next_offset += len(entries)
        self.max_offset = self.next_offset

    def append_missing(self, position: int, count: int) -> None:
        """Give `count` offsets to messages that are lost; `position` is that of the queue's next record, or last one."""
        self.append_entries([(position, 0, FILLER_CODE)] * count)

    def keep_end(self, end: int) -> None:
        """Let the next entry be that of `end`: the messages before it are lost."""
        if self.next_offset == self.file_start:
            self.restart_at(end)
        else:
            self.append_missing(self.entry(self.next_offset - 1)[0], end - self.next_offset)

    def is_filler(self, offset: int, entry: Entry) -> bool:
        """Whether `entry`, which is the one at `offset`, is a filler. One of size 0 that is none is damage."""
        position, size, tags_code = entry
        if size != 0 or position < 0 or tags_code != FILLER_CODE:
            return False
        return offset + 1 == self.next_offset or self.entry(offset + 1)[0] >= position

    @property
    def has_times(self) -> bool:
        """Whether its entries have times instead of tags codes: it is of a delay level."""
        return self.topic == SCHEDULE_TOPIC

    def may_have_code(self, tags_code: int) -> bool:
        """Whether an entry's tags code can be right: a hash has 32 bits, and there is room for 64."""
        return -0x8000_0000 <= tags_code <= 0x7FFF_FFFF or self.has_times

    @property
    def has_holes(self) -> bool:
        """Whether a part of the file is missing; it has to be built again."""
        return bool(self._file.holes) or self._file.start % ENTRY_BYTES != 0

    @property
    def file_start(self) -> int:
        """Offset of the first entry that the file still has."""
        return self._file.start // ENTRY_BYTES

    def entry(self, offset: int) -> Entry:
        """The entry at `offset`, which must be in [min_offset, next_offset). Raises StorageError, also where the file was
        to be replaced and could not be: it ends earlier then."""
        entry = self._file.read(offset * ENTRY_BYTES, ENTRY_BYTES)
        if len(entry) < ENTRY_BYTES:
            raise StorageError(f"queue {self.queue_id} of {self.topic} has no entry {offset} any more")
        return ENTRY.unpack(entry)

    def entries(self, offset: int, count: int) -> list[Entry]:
        """Up to `count` entries from `offset` on; fewer at the end."""
        return list(ENTRY.iter_unpack(self._file.read(offset * ENTRY_BYTES, count * ENTRY_BYTES)))

    def first_at_or_above(self, position: int) -> int:
        """Smallest offset whose record is at or above `position` in the commit log; next_offset when none does."""
        low, high = self._file.start // ENTRY_BYTES, self.next_offset
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def cut_records_from(self, position: int) -> None:
        """Forget the entries of records at or above `position`: recovery reads those again."""
        keep = self.first_at_or_above(position)
        if keep < self.next_offset:
            self._file.truncate(keep * ENTRY_BYTES)
            self.next_offset = self.max_offset = keep

    def first_kept(self, position: int) -> int | None:
        """The first offset to keep when the commit log begins at `position`. None when the entries do not say where: one of
        zeros in their midst would be taken for an old one, and all before it would go. Pages and entries do not align:
        where zeros end in an entry, the one before it tells."""
        first = self.first_at_or_above(position)
        for said, size, tags_code in map(self.entry, range(max(first - 2, self.file_start), first)):
            if said < 0 or size < 0 or (said == size == 0 and tags_code != FILLER_CODE):
                return None
        return first

    def drop_before(self, offset: int) -> None:
        """The queue begins at `offset` now: the records before it are gone."""
        self.min_offset = offset
        self._file.drop_before(offset * ENTRY_BYTES)

    def restart_at(self, offset: int) -> None:
        """Forget all entries; the next one is `offset`."""
        self._file.reset(offset * ENTRY_BYTES)
        self.min_offset = self.next_offset = self.max_offset = offset

    @property
    def taken_bytes(self) -> int:
        """Room that its entries take on the disk, to the block."""
        return self._file.end - self._file.start

    def taken_bytes_from(self, position: int) -> int:
        """What `taken_bytes` would be after `drop_before`, which drops whole segments: where that would find a place
        that the disk cannot read, none."""
        try:
            keep = self.first_at_or_above(position) * ENTRY_BYTES
        except StorageError:
            return self.taken_bytes
        starts = [start for start in self._file.segment_starts() if start <= keep]
        return self._file.end - max(starts, default=self._file.start)

    def flush(self) -> None:
        self._file.flush()
