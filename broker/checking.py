"""`rocketcrew broker check`: read the whole store, compare its parts, change nothing.

Every record of the log is read with its CRC, every entry of every queue is compared with the record that it names, and the
tables are parsed. What a start would mend by itself (a torn tail, queues that are behind the checkpoint) is said apart from
what is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..conf.printed import counted
from ..remoting.errors import ProtocolError
from ..remoting.fastjson import loads
from ..remoting.names import SCHEDULE_TOPIC
from ..remoting.stored import StoredMessage
from .checkpoint import checkpoint_in, saved_checkpoint
from .consume_queue import ENTRY, ENTRY_BYTES, SEGMENT_BYTES, Entry, entries_end
from .journal import Journal, whole_lines
from .log_scan import Kind, LogScan
from .message_store import LOG
from .opening import QUEUES, queue_name
from .readable_log import ReadableLog, UnreadablePlaces
from .removed_topics import REMOVED, REMOVED_JOURNAL, all_removed
from .state import DELAYS_TABLE, GROUPS_TABLE, JOURNAL_BYTES, OFFSETS_TABLE, TOPICS_JOURNAL
from .storage import Storage, StorageError, StoredFile
from .tags import message_tags_code
from .topic_table import TOPICS_TABLE, TopicTable

FIRST_MAX = 10  # examples of each kind


@dataclass(slots=True)
class Report:
    """What a check found. `damaged` are parts of the log that cannot be read: position and length in bytes."""

    records: int = 0
    bytes: int = 0
    torn_bytes: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    queues: int = 0
    wrong_entries: int = 0
    """Entries of queues that are missing, or say something else than their record; a start, a read or the slow check finds
    them too, and mends them."""
    first_wrong: list[str] = field(default_factory=list[str])
    tables: dict[str, str] = field(default_factory=dict[str, str])
    """Tables that cannot be read, and why."""
    set_aside: list[str] = field(default_factory=list[str])

    @property
    def is_fine(self) -> bool:
        return not (self.damaged or self.wrong_entries or self.tables)

    def lines(self) -> list[str]:
        lines = [f"{counted(self.records, 'record')} in {self.bytes} bytes of log, {counted(self.queues, 'queue')}"]
        if self.torn_bytes:
            lines.append(f"torn: {self.torn_bytes} bytes of one record at the end, for which nobody was answered")
        for position, length in self.damaged:
            lines.append(f"damaged: {length} bytes at {position} of the log cannot be read")
        if self.wrong_entries:
            lines.append(
                f"queues: {self.wrong_entries} entries are missing or wrong; a queue is made anew when that is noticed"
            )
        lines += [f"  {text}" for text in self.first_wrong]
        lines += [f"table {name}: {reason}" for name, reason in self.tables.items()]
        if self.set_aside:
            lines.append(f"set aside by earlier starts: {len(self.set_aside)} in damaged/")
        lines.append("everything agrees" if self.is_fine else "see above: nothing was changed")
        return lines


def check(storage: Storage) -> Report:
    """Read everything. Raises StorageError when the disk gives nothing."""
    report = Report(set_aside=storage.aside())
    log = storage.open(LOG, 1, buffered=False)
    report.bytes = log.end - log.start
    names = storage.names(QUEUES + "/")
    removed = _removed(storage)
    report.queues = len(names)
    queues = {name: storage.open(name, SEGMENT_BYTES, buffered=True) for name in names}
    ends = {name: _end(file) for name, file in queues.items()}
    mended_from, _ = checkpoint_in(saved_checkpoint(storage, log.start, log.end), log.start, log.end)
    readable = ReadableLog(log, UnreadablePlaces(deque()))
    for part in LogScan(readable, log.start, lambda _: True):
        if part.message is not None:
            report.records += 1
            name = queue_name(part.message.topic, part.message.queue_id)
            if name in queues and part.position >= removed.get(part.message.topic, 0):
                what = f"{name} offset {part.message.queue_offset}"
                try:
                    entry = _entry(queues[name], ends[name], part.message.queue_offset)
                except StorageError as error:
                    _wrong(report, f"{what}: {error}")
                    continue
                wanted = part.position, part.length_bytes, _tags_code(part.message, entry)
                if entry != wanted and not (entry is None and part.position >= mended_from):
                    _wrong(report, f"{what}: {entry}, but its record is {wanted}")
        elif part.kind is Kind.DAMAGE:
            report.damaged.append((part.position, part.length_bytes))
        elif part.kind is Kind.TORN:
            report.torn_bytes += part.length_bytes
    for table in (TOPICS_TABLE, GROUPS_TABLE, OFFSETS_TABLE, DELAYS_TABLE):
        content = storage.load(table)
        if content is not None:
            try:
                loads(content, table)
            except ProtocolError as error:
                report.tables[table] = error.what
    return report


def _removed(storage: Storage) -> dict[str, int]:
    """Deleted topics and where the log ended then, as a start finds them."""
    lines: Iterable[tuple[bytes, bool]] = ()
    if TOPICS_JOURNAL in storage.names(TOPICS_JOURNAL):  # to open one that is not there would make it
        lines = whole_lines(storage.open(TOPICS_JOURNAL, JOURNAL_BYTES, buffered=False))
    removals, _ = TopicTable([]).replay(lines)
    deletions: list[bytes] = []
    if REMOVED_JOURNAL in storage.names(REMOVED_JOURNAL):
        deletions, _ = Journal(storage, REMOVED_JOURNAL, REMOVED).texts()
    removed, _ = all_removed(storage, deletions, removals)
    return removed


def _tags_code(message: StoredMessage, entry: Entry | None) -> int:
    """What a record's entry should have; a delay level's has a time, of which only the broker's settings know."""
    return entry[2] if entry is not None and message.topic == SCHEDULE_TOPIC else message_tags_code(message)


def _end(file: StoredFile) -> int:
    """Where the entries of a queue end; one whose last ones cannot be read has them all."""
    try:
        return entries_end(file)
    except StorageError:
        return file.content_end


def _entry(file: StoredFile, end: int, offset: int) -> Entry | None:
    """None when a queue has none for that offset."""
    at = offset * ENTRY_BYTES
    if not file.start <= at <= end - ENTRY_BYTES:
        return None
    return ENTRY.unpack(file.read(at, ENTRY_BYTES))


def _wrong(report: Report, text: str) -> None:
    report.wrong_entries += 1
    if len(report.first_wrong) < FIRST_MAX:
        report.first_wrong.append(text)


__all__ = ["Report", "check"]
