"""Which segments of the commit log may go: those that are too old, and the oldest while the log takes too much of the disk.

- By age: all records of a segment were stored before the limit. A damaged segment is as old as the next one says.
- By space: what counts is the room that log, queues and index really take (blocks; they are sparse), as a share of the whole
  file system: what the genuine broker counts where several share a disk (getMajorFileSize). Files of others that fill the
  disk are no reason to drop messages.
- The last segment always stays.
- What is due to be delivered (delay.py, timers.py) and was not yet, as the broker had been stopped, is not dropped by age
  before that, unless nothing of it moves for HOLD_MS.
- Age is by the machine's clock, also where that was set back while the broker ran: a clock that was wrong for a moment must
  not make old for good what nobody has read.
- A clock that jumps ahead makes everything old at once. After a jump of more than half the retention time, nothing expires by
  age for HOLD_MS: a wrong clock can be put right. The clock at the last look and the end of the hold are kept in
  `config/clock.json`: a start compares with that look, since the newest record may have the wrong time. A store with records
  and without that table is held too.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from .storage import Storage, StoredFile

CLOCK_TABLE = "config/clock.json"
JUMP_MIN_MS = 3_600_000  # less is no jump, however short the retention is
HOLD_MS = 3_600_000
SAVE_EVERY_MS = 600_000  # a look that is saved this late makes a jump longer by that at most


class AgeGuard:
    """Whether records may expire by age: see the module's text."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._seen_ms = 0
        self._saved_ms: int | None = None  # what the table has of it
        self.hold_until_ms = 0

    def start(self, now_ms: int, newest_ms: int, *, has_records: bool) -> None:
        """Begin from the last look that was saved; `newest_ms` is the store time of the newest record, 0 when unknown."""
        saved = _saved_in(self._storage.load(CLOCK_TABLE)) or _saved_in(self._storage.load_previous(CLOCK_TABLE))
        if saved is None:
            self._seen_ms = min(newest_ms or now_ms, now_ms)
            self.hold_until_ms = now_ms + HOLD_MS if has_records else 0
            return
        self._saved_ms, hold_until_ms = saved
        self._seen_ms = min(self._saved_ms, now_ms)
        self.hold_until_ms = min(hold_until_ms, now_ms + HOLD_MS)

    def look(self, now_ms: int, retention_ms: int) -> bool:
        """Call it every few seconds; True when the clock has jumped since the last call."""
        jumped = now_ms - self._seen_ms > max(retention_ms // 2, JUMP_MIN_MS)
        until_ms = now_ms + HOLD_MS  # no hold is longer, also when the clock was set back since
        self.hold_until_ms = until_ms if jumped else min(self.hold_until_ms, until_ms)
        self._seen_ms = now_ms
        return jumped

    def may_expire(self, now_ms: int) -> bool:
        return now_ms >= self.hold_until_ms

    def save(self) -> None:
        """Save the last look in a while, and on the disk when nothing may expire. Raises StorageError; until it succeeds the
        table has a look from before a jump, and a start finds that jump again."""
        if self._saved_ms is None or abs(self._seen_ms - self._saved_ms) >= SAVE_EVERY_MS:
            text = json.dumps({"seen_ms": self._seen_ms, "hold_until_ms": self.hold_until_ms}).encode()
            self._storage.replace(CLOCK_TABLE, text, sync=not self.may_expire(self._seen_ms))
            self._saved_ms = self._seen_ms


def _saved_in(text: bytes | None) -> tuple[int, int] | None:
    """The clock at the last look and the end of the hold; None when nobody knows."""
    try:
        document = json.loads(text or b"")
        seen_ms, hold_until_ms = document["seen_ms"], document["hold_until_ms"]
    except (ValueError, KeyError, TypeError):
        return None
    return (seen_ms, hold_until_ms) if isinstance(seen_ms, int) and isinstance(hold_until_ms, int) else None


def keep_from_by_age(log: StoredFile, store_time_ms: int, kept_from: int, time_of: Callable[[int], int | None]) -> int:
    """The first position to keep when all segments go whose records were stored before `store_time_ms` and lie before
    `kept_from`; `time_of` is the store time of a segment's first record, None when that cannot be read."""
    keep = log.start
    for start in log.segment_starts()[1:]:
        if start == log.end or start > kept_from:
            break
        stored_ms = time_of(start)
        if stored_ms is None:
            continue
        if stored_ms >= store_time_ms:
            break
        keep = start
    return keep


def keep_from_by_space(log: StoredFile, bytes_max: Callable[[int], int]) -> int:
    """The first position to keep when the oldest segments go until the others fit; `bytes_max` says how much of the disk the
    log may take that begins at a position."""
    starts = log.segment_starts()
    taken = [log.taken_bytes(start) for start in starts]
    total = sum(taken)
    for start, length_bytes in zip(starts, taken, strict=True):
        if start == starts[-1] or total <= bytes_max(start):
            return start
        total -= length_bytes
    return log.start
