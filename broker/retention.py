"""Which segments of the commit log may go: those that are too old, and the oldest while the log takes too much of the disk.

- By age: all records of a segment were stored before the limit. A damaged segment is as old as the next one says.
- By space: what counts is the room that the segments really take (blocks; they are sparse), as a share of the whole file
  system. Only the broker's own log counts: files of others that fill the disk are no reason to drop messages.
- The last segment always stays.
- A clock that jumps ahead makes everything old at once. After a jump of more than half the retention time, or a start so long
  after the newest record, nothing expires by age for HOLD_MS: a wrong clock can be put right, and the broker started again.
"""

from __future__ import annotations

from collections.abc import Callable

from .storage import StoredFile

JUMP_MIN_MS = 3_600_000  # less is no jump, however short the retention is
HOLD_MS = 3_600_000


class AgeGuard:
    """Whether records may expire by age: see the module's text."""

    def __init__(self, newest_ms: int, now_ms: int) -> None:
        """`newest_ms` is the store time of the newest record, 0 when there is none."""
        self._seen_ms = newest_ms or now_ms
        self._hold_until_ms = 0

    def look(self, now_ms: int, retention_ms: int) -> bool:
        """Call it every few seconds; True when the clock has jumped since the last call."""
        jumped = now_ms - self._seen_ms > max(retention_ms // 2, JUMP_MIN_MS)
        if jumped:
            self._hold_until_ms = now_ms + HOLD_MS
        self._seen_ms = now_ms
        return jumped

    def may_expire(self, now_ms: int) -> bool:
        return now_ms >= self._hold_until_ms


def keep_from_by_age(log: StoredFile, store_time_ms: int, time_of: Callable[[int], int | None]) -> int:
    """The first position to keep when all segments go whose records were stored before `store_time_ms`; `time_of` is the
    store time of a segment's first record, None when that cannot be read."""
    keep = log.start
    for start in log.segment_starts()[1:]:
        if start == log.end:
            break
        stored_ms = time_of(start)
        if stored_ms is None:
            continue
        if stored_ms >= store_time_ms:
            break
        keep = start
    return keep


def keep_from_by_space(log: StoredFile, bytes_max: int) -> int:
    """The first position to keep when the oldest segments go until the others take at most `bytes_max` of the disk."""
    starts = log.segment_starts()
    taken = [log.taken_bytes(start) for start in starts]
    total = sum(taken)
    for start, length_bytes in zip(starts, taken, strict=True):
        if total <= bytes_max or start == starts[-1]:
            return start
        total -= length_bytes
    return log.start
