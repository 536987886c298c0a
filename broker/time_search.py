"""Queue offsets by store time (ST/queue/ConsumeQueue.java, getOffsetInQueueByTime): a binary search that reads the log.

Where the disk cannot read the time of the middle, the first one behind it that can be read says as much: times ascend. When
that is not older than what is searched, or there is none, the page of the middle counts as not older either. So the answer
may be too low by messages that nobody can read, and is never too high: no reset passes over a message. More than UNREAD_MAX
pages are not tried, as each may take the disk seconds; an outage ends there, too.
"""

from __future__ import annotations

from collections.abc import Callable

from .consume_queue import ConsumeQueue
from .readable_log import PIECE_BYTES, is_of_a_place
from .record_heads import HEAD_BYTES
from .storage import StorageError

UNREAD_MAX = 8  # over the whole search


class TimeSearch:
    """One search in one queue."""

    def __init__(self, stored_ms: Callable[[int], int], page_of: Callable[[int], tuple[int, int]]) -> None:
        """`stored_ms`: store time of the message at an offset; `page_of`: as the function below. Both raise StorageError."""
        self._stored_ms = stored_ms
        self._page_of = page_of
        self._left = UNREAD_MAX

    def run(self, low: int, high: int, timestamp_ms: int, *, upper: bool) -> int:
        """The first offset in [low, high) stored at or after the time, with `upper` after it; `high` when there is none.
        Raises StorageError."""
        while low < high:
            middle = (low + high) // 2
            at, stored_ms = self._readable(middle, high)
            if stored_ms is not None and (stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms)):
                low = at + 1
            else:
                high = middle if at == middle else max(self._page_of(middle)[0], low)
        return low

    def _readable(self, offset: int, end: int) -> tuple[int, int | None]:
        """The first offset from this one on whose time can be read, and that time; None when there is none below `end`."""
        while offset < end:
            try:
                return offset, self._stored_ms(offset)
            except StorageError as error:
                if not is_of_a_place(error) or not self._left:
                    raise
            self._left -= 1
            offset = self._page_of(offset)[1]
        return end, None


def page_of(queue: ConsumeQueue, offset: int) -> tuple[int, int]:
    """The first offset of those whose heads begin on the same page of the log, and the first behind them: none of them can be
    read when that one cannot. Where its head goes on on the next page, which may be the bad one, itself and the next."""
    position = queue.entry(offset)[0]
    page_at = position - position % PIECE_BYTES
    behind = max(queue.first_at_or_above(page_at + PIECE_BYTES), offset + 1)
    if position + HEAD_BYTES > page_at + PIECE_BYTES:
        return offset, behind
    return queue.first_at_or_above(page_at), behind


__all__ = ["UNREAD_MAX", "TimeSearch", "page_of"]
