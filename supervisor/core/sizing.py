"""How many messages go to a worker in one chunk.

The aim is about 10 ms of handler time a chunk, so that dispatch costs little and nothing waits long. The estimate
follows the slow tail, not the mean: it jumps up at once with a slow message and comes down slowly, because messages that
wait after a slow one in the same chunk wait for nothing. After an overrun of the target by one message the size is 1 at
once.
"""

from __future__ import annotations

FAST_US = 20.0
"""Below this a message is so cheap that sharing a small pull among idle workers costs more than it brings."""

UNSHARED_MAX = 64
"""As many of those, about a millisecond of work, go to one worker while others idle; of more each gets its share."""

WITHOUT_ROWS_MAX = 2_000
"""After so many messages that returned no rows, reports wait for no more of them."""


class ChunkSizer:
    """Pure: fed with the figures of reports, asked for a size."""

    __slots__ = ("_max", "_since_rows", "_target_us", "rows", "tail_us")

    def __init__(self, target_us: int, chunk_messages_max: int) -> None:
        self._target_us = target_us
        self._max = chunk_messages_max
        self.tail_us: float = float(target_us)
        """Starts at the target: the first chunks hold one message, until something is known."""
        self._since_rows = WITHOUT_ROWS_MAX
        self.rows = False
        """The handler has returned rows of late."""

    def takes(self, messages: int) -> bool:
        """A worker that has so many messages in flight has them for less than the target."""
        return messages * self.tail_us < self._target_us

    def observe(self, count: int, busy_us: int, slowest_us: int, *, rows: bool = False) -> None:
        """`count` messages took `busy_us` together, the slowest alone `slowest_us` (in µs of wall time), and left rows."""
        self._since_rows = 0 if rows else self._since_rows + count
        self.rows = self._since_rows < WITHOUT_ROWS_MAX
        if not count:
            return
        seen = max(slowest_us, busy_us / count)
        if seen >= self.tail_us:
            self.tail_us = seen
        else:
            # More messages in one report are more evidence: one report of 64 counts as 64 of one would by 1/64 each.
            weight = min(0.5, 0.02 * count)
            self.tail_us += (seen - self.tail_us) * weight

    def size(self, waiting: int, free_workers: int) -> int:
        """Messages for the next chunk: at least 1, at most the fair share of what waits unless messages are cheap."""
        # Not by a division first: reports of 0 µs bring the estimate as near to 0 as there are numbers.
        size = self._max if self._max * self.tail_us <= self._target_us else max(int(self._target_us / self.tail_us), 1)
        if free_workers > 1:
            share = max(1, -(-waiting // free_workers))
            size = min(size, share if self.tail_us > FAST_US else max(share, UNSHARED_MAX))
        return size
