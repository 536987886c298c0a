"""How many messages go to a worker in one chunk.

The aim is about 10 ms of handler time a chunk, so that dispatch costs little and nothing waits long. The estimate
follows the slow tail, not the mean: it jumps up at once with a slow message and comes down slowly, because messages that
wait after a slow one in the same chunk wait for nothing. After an overrun of the target by one message the size is 1 at
once.

Where much waits for every worker, a chunk may be LARGE_TIMES as long, by the mean of the calls. Each event of a chunk finds
the caches of supervisor and worker cold and costs 100 to 300 us, whatever it carries, so that calls of 1 ms and more pay for
the number of chunks: of 10 ms, four a chunk took 120 us each in the supervisor, sixteen take 50. No worker idles for it: the
queues hold as much work for the others, LARGE_SHARES times over, the last of it is given out in small chunks again, and what
waits behind a slow call is taken back (reclaiming.py). And no queue waits long for its turn: where more than ROUND_CHUNKS
queues a worker are in line, large chunks are so much smaller that a round takes as long as that many do. The mean, because on
busy cores one call in many is interrupted by another process and seems slow: the tail alone would keep the chunks of calls of
1 ms at one message, and make those of cheap calls so for a while. It is each topic's own: cheap messages of one topic say
nothing of another's. Calls that really are slow, longer than a large chunk is to take, leave the estimate to the tail.
"""

from __future__ import annotations

FAST_US = 20.0
"""Below this a message is so cheap that sharing a small pull among idle workers costs more than it brings."""

UNSHARED_MAX = 64
"""As many of those, about a millisecond of work, go to one worker while others idle; of more each gets its share."""

LARGE_TIMES = 16
"""The handler time of a large chunk, in targets: 160 ms. A message waits for the chunk before its own and for its own."""

LARGE_US_MAX = 1_000_000
"""And never more: two of them are far from the deadline by which a queue that leaves is to be finished."""

ROUND_CHUNKS = 8
"""A round over all queues in line takes a worker no longer than so many large chunks, unless small ones take longer."""

BLOCK_TIMES = 4
"""The handler time that messages may be ahead of a worker for the sake of large blocks, in targets."""
LARGE_SHARES = 2
"""A chunk is large only if as much waits for each worker so many times."""

MEAN_WEIGHT_MAX, MEAN_WEIGHT = 0.5, 0.02
"""A report moves the estimates by MEAN_WEIGHT for each of its messages, and by MEAN_WEIGHT_MAX at most."""

KNOWN_MAX = round(1 / MEAN_WEIGHT)
"""Of so many messages at the start the mean is the plain one."""

WITHOUT_ROWS_MAX = 2_000
"""After so many messages that returned no rows, reports wait for no more of them."""


class _Mean:
    """Of the calls of one topic."""

    __slots__ = ("known", "us")

    def __init__(self) -> None:
        self.us = 0.0
        self.known = 0
        """How many messages it is of, KNOWN_MAX for more."""

    def observe(self, count: int, seen_us: float, weight: float) -> None:
        if self.known < KNOWN_MAX:
            self.known += count
            weight = max(weight, count / self.known)
        self.us += (seen_us - self.us) * weight


class ChunkSizer:
    """Pure: fed with the figures of reports, asked for a size."""

    __slots__ = ("_block_us", "_large_us", "_max", "_mean", "_means", "_since_rows", "_target_us", "rows", "tail_us")

    def __init__(self, target_us: int, chunk_messages_max: int) -> None:
        self._target_us = target_us
        self._large_us = max(target_us, min(LARGE_TIMES * target_us, LARGE_US_MAX))
        self._block_us = min(BLOCK_TIMES * target_us, self._large_us)
        self._max = chunk_messages_max
        self.tail_us: float = float(target_us)
        """Starts at the target: the first chunks hold one message, until something is known."""
        self._mean = _Mean()
        self._means: dict[str, _Mean] = {}
        """By topic: as many as were ever subscribed."""
        self._since_rows = WITHOUT_ROWS_MAX
        self.rows = False
        """The handler has returned rows of late."""

    def takes(self, messages: int, waiting: int, workers: int) -> bool:
        """A worker that has so many messages in flight has them for less than the target, or for BLOCK_TIMES of it where
        enough waits for every worker."""
        if messages * self.tail_us < self._target_us:
            return True
        long_us, enough = self._block_us, waiting >= LARGE_SHARES * messages * workers
        return enough and self.tail_us <= long_us and messages * self._mean.us < long_us

    def observe(self, count: int, busy_us: int, slowest_us: int, *, topic: str = "", rows: bool = False) -> None:
        """`count` messages of the topic took `busy_us` together, the slowest alone `slowest_us`, in µs of wall time; `rows`:
        they left some."""
        self._since_rows = 0 if rows else self._since_rows + count
        self.rows = self._since_rows < WITHOUT_ROWS_MAX
        if not count:
            return
        # More messages in one report are more evidence: one report of 64 counts as 64 of one would by 1/64 each.
        mean_us, weight = busy_us / count, min(MEAN_WEIGHT_MAX, MEAN_WEIGHT * count)
        self._mean.observe(count, mean_us, weight)
        (self._means.get(topic) or self._means.setdefault(topic, _Mean())).observe(count, mean_us, weight)
        seen = max(slowest_us, mean_us)
        if seen >= self.tail_us:
            self.tail_us = seen
        else:
            self.tail_us += (seen - self.tail_us) * weight

    def large(self, waiting: int, workers: int, topic: str = "", in_line: float = 1) -> int:
        """Messages of a chunk of the topic where so many wait for so many workers, with so many queues in line for each: 0 =
        calls are too slow for it, or not known, or too few wait, or too many queues."""
        mean, long_us = self._means.get(topic), float(self._large_us)
        if in_line > ROUND_CHUNKS:
            long_us = long_us * ROUND_CHUNKS / in_line
        if mean is None or self.tail_us > long_us or long_us < self._target_us:
            return 0
        fits = self._max if mean.us * self._max <= long_us else round(long_us / mean.us)
        return min(fits, waiting // (LARGE_SHARES * max(1, workers)))

    def size(self, waiting: int, free_workers: int) -> int:
        """Messages for the next chunk: at least 1, at most the fair share of what waits unless messages are cheap."""
        # Not by a division first: reports of 0 µs bring the estimate as near to 0 as there are numbers.
        size = self._max if self._max * self.tail_us <= self._target_us else max(int(self._target_us / self.tail_us), 1)
        if free_workers > 1:
            share = max(1, -(-waiting // free_workers))
            size = min(size, share if self.tail_us > FAST_US else max(share, UNSHARED_MAX))
        return size
