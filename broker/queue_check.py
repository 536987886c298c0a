"""A slow look at all records, round after round: whether their queues' entries have the codes of their tags.

A pull by tag passes over an entry by its tags code, without a look at the record; that is what the code is for. So a wrong
code hides its message, and a read notices only what no code can be: it has 32 bits in a place of 64. The rest is noticed
here. The log is read beside all else, STEP_BYTES a second, and a queue whose entry has another code than its record is built
anew. A round takes some five hours for each GiB of the log. Readers that passed the message before do not get it any more.

Checksums over the queues would need less reading, but a file of our own beside RocketMQ's, written at each checkpoint, and
wrong whenever a genuine broker has written to the store since. The log says the same, and is there.

Not looked at:

- the delay levels, whose entries have times instead: delivery looks at the record too;
- the index by keys: a wrong one hides messages from queries by key alone, and is made anew when its folder is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..remoting.stored import StoredMessage
from .consume_queue import ConsumeQueue
from .log_scan import LogScan
from .recovery import Key
from .storage import StorageError, StoredFile

STEP_BYTES = 64 << 10  # some 3 ms for small messages
INTERVAL_MS = 1_000


class QueueCheck:
    """Where the round has come to."""

    def __init__(
        self, log: StoredFile, queues: Mapping[Key, ConsumeQueue], tags_code: Callable[[StoredMessage], int]
    ) -> None:
        self._log = log
        self._queues = queues
        self._tags_code = tags_code
        self._begin(log.start)

    def _begin(self, position: int) -> None:
        self._scan = LogScan(self._log, position, lambda _: True)
        self._parts = iter(self._scan)

    def step(self) -> list[ConsumeQueue]:
        """Read a little further, or begin the next round; returns the queues that differ.

        Raises StorageError, and then goes on in the next segment.
        """
        if self._scan.position < self._log.start:  # retention was faster
            self._begin(self._log.start)
        until = self._scan.position + STEP_BYTES
        wrong: list[ConsumeQueue] = []
        try:
            for part in self._parts:
                if part.message is not None and (queue := self._differing(part.message)) is not None:
                    wrong.append(queue)
                if self._scan.position >= until:
                    return wrong
        except StorageError:
            following = (start for start in self._log.segment_starts() if start > self._scan.position)
            self._begin(next(following, self._log.start))
            raise
        self._begin(self._log.start)
        return wrong

    def _differing(self, message: StoredMessage) -> ConsumeQueue | None:
        """The record's queue, when its entry has another code."""
        queue = self._queues.get((message.topic, message.queue_id))
        if queue is None or queue.has_times:
            return None
        if not queue.min_offset <= message.queue_offset < queue.max_offset:
            return None
        position, _, tags_code = queue.entry(message.queue_offset)
        is_its_own = position == message.physical_offset  # else it is of a topic's earlier life, or reads notice it
        return queue if is_its_own and tags_code != self._tags_code(message) else None


__all__ = ["INTERVAL_MS", "QueueCheck"]
