"""What a worker writes into its cell about itself: the queue of what it runs, a single record, and its memory.

All of it is written while no call is under way, or before one begins; the state word last (cells.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from typing import Final

from .cells import CHUNK_ID, RECORDS, RSS_PEAK, STARTED_NS, STATE, TAKEN, TEXT, TEXT_BYTES, CellView, queue_words
from .packets import QueueInfo

RSS_EVERY_NS: Final = 50_000_000
"""How often the peak of resident memory is noted, between chunks: a system call of about a microsecond."""
RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


class Naming:
    """Of one worker. `clock` is monotonic, in ns."""

    def __init__(self, cell: CellView, clock: Callable[[], int]) -> None:
        self._cell = cell
        self._clock = clock
        self._queue: QueueInfo | None = None
        """The queue that the cell names."""
        self._texts: dict[QueueInfo, tuple[memoryview, int]] = {}
        """How the cell names each queue; as many as the worker has seen, as with their handles."""
        self._rss_due_ns = 0

    def chunk(self, chunk_id: int, queue: QueueInfo) -> None:
        """A chunk begins; no message is in hand."""
        self._cell[CHUNK_ID] = chunk_id
        self.queue(queue)
        self.memory()

    def queue(self, queue: QueueInfo) -> None:
        """Name the queue."""
        if queue is self._queue:
            return
        self._queue = queue
        text = self._texts.get(queue)
        if text is None:
            text = self._texts[queue] = queue_words(queue.topic, queue.broker_name, queue.queue_id)
        words, size = text
        self._cell[TEXT : TEXT + len(words)] = words
        self._cell[TEXT_BYTES] = size

    def record(self, offset: int) -> None:
        """The user's code is about to look at this one, outside of a call of the handler: a filter, a key function."""
        cell = self._cell
        cell[STARTED_NS] = self._clock()
        cell[RECORDS] = 1
        cell[TAKEN] = 0
        cell[STATE] = offset + 1

    def memory(self) -> None:
        """Note the peak of resident memory, now and then."""
        now = self._clock()
        if now >= self._rss_due_ns:
            self._rss_due_ns = now + RSS_EVERY_NS
            self._cell[RSS_PEAK] = getrusage(RUSAGE_SELF).ru_maxrss * RSS_UNIT
