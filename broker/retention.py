"""Which segments of the commit log may go: those that are too old, and the oldest while the log takes too much of the disk.

- By age: all records of a segment were stored before the limit. A damaged segment is as old as the next one says.
- By space: what counts is the room that the segments really take (blocks; they are sparse), as a share of the whole file
  system. Only the broker's own log counts: files of others that fill the disk are no reason to drop messages.
- The last segment always stays.
"""

from __future__ import annotations

from collections.abc import Callable

from .storage import StoredFile


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
