"""Which topics were deleted, and where the log ended then: older records of the name are not of the topic that has it now.

A deletion costs a line of a journal, however many there were before. An entry is needed while the log may hold such records:
a topic that never had a queue gets none, and the entries that the log has left behind go, the oldest ones first. A stop
writes them all into the table: a conversion reads nothing else.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from .journal import Journal
from .storage import Storage

REMOVED = "config/removedTopics.json"
REMOVED_JOURNAL = "config/removedTopics.journal"


def removed_in(text: bytes | None) -> dict[str, int] | None:
    """The entries of a table, or of a line of the journal; None when nobody knows."""
    try:
        return {str(topic): int(position) for topic, position in json.loads(text or b"").items()}
    except (ValueError, TypeError, AttributeError):
        return None


def all_removed(
    storage: Storage, lines: Sequence[bytes], topics_journal: Mapping[str, int]
) -> tuple[dict[str, int], bool]:
    """The entries of the first table that can be read, of the journal's `lines`, and of the topics' journal, which may have
    more; and whether there was a table or a line."""
    tables = [removed_in(storage.load(REMOVED)), removed_in(storage.load_previous(REMOVED))]
    table = next((table for table in tables if table is not None), None)
    ends = dict(table or {})
    for entries in (*map(removed_in, lines), topics_journal):
        ends |= {topic: max(at, ends.get(topic, 0)) for topic, at in (entries or {}).items()}
    return ends, bool(lines) or table is not None


class RemovedTopics:
    """Deleted topic -> where the log ended then."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.journal = Journal(storage, REMOVED_JOURNAL, REMOVED)
        self._ends: OrderedDict[str, int] = OrderedDict()  # ascending
        self._flushing = self._flushed = -1  # the journal's end as the last flush took it
        self.all_known = False
        """Whether each deletion since the log began was noted, as far as anybody can tell."""
        self.damaged_lines = 0

    def __contains__(self, topic: object) -> bool:
        return topic in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def end_of(self, topic: str) -> int:
        """Records of the topic below this position are of an earlier one of its name."""
        return self._ends.get(topic, 0)

    def load(self, topics_journal: Mapping[str, int], *, is_new: bool) -> None:
        """Read all that is known; `topics_journal` are the deletions that it has. No entry is of a log that `is_new`; from
        now on each deletion is noted. Raises StorageError."""
        if is_new:
            self.journal.begin_anew(b"{}", changed=True)
        lines, self.damaged_lines = self.journal.texts()
        ends, known = all_removed(self._storage, lines, topics_journal)
        self._take(ends)
        self.all_known = known and not self.damaged_lines

    def started(self, log_end: int, strays: Iterable[str]) -> None:
        """At the end of a start: note the lives of `strays` as ended, and write the table. Raises StorageError.

        A crash of the machine may have taken the end of the log that an entry counts on: what is stored there next is
        of the topic's new life.
        """
        ends = {topic: min(at, log_end) for topic, at in self._ends.items()} | dict.fromkeys(strays, log_end)
        saved = removed_in(self._storage.load(REMOVED))
        self._take(ends)
        if self.damaged_lines:
            self.journal.set_aside()
        self.journal.begin_anew(self._text(), changed=bool(ends) and ends != saved)

    def _take(self, ends: Mapping[str, int]) -> None:
        self._ends = OrderedDict(sorted(ends.items(), key=lambda entry: entry[1]))

    def add(self, topic: str, log_end: int) -> None:
        """Note a deletion. Raises StorageError, and then it is not noted."""
        self.journal.append([json.dumps({topic: log_end}).encode()], 1)
        self._ends[topic] = log_end
        self._ends.move_to_end(topic)

    def save(self, log_start: int) -> None:
        """Once a second: drop what the log has left behind, and write the table when the journal is long. Raises
        StorageError."""
        while self._ends and next(iter(self._ends.values())) <= log_start:
            self._ends.popitem(last=False)
        if self.journal.is_long(len(self._ends)):
            self.journal.write_table(self._text())

    def fold(self) -> None:
        """At a stop: write the table, whose journal begins anew. Raises StorageError."""
        self.journal.begin_anew(self._text())

    def _text(self) -> bytes:
        return json.dumps(self._ends).encode()

    # Waiting for the disk

    def begin_flush(self) -> None:
        self._flushing = self.journal.written

    def end_flush(self) -> None:
        self._flushed = self._flushing

    @property
    def are_kept(self) -> bool:
        """Whether the disk has all entries: until then the topics' journal says so."""
        return not self._storage.has_disk or self.journal.is_empty or self.journal.written == self._flushed
