"""What became of messages that leave no row behind: noted by the core, kept in `outcomes/` (outcome_files.py).

The list explains gaps in a table (`rocketcrew reconcile`); no promise rests on it. A kill -9 loses what was noted since the
last writing: such messages are settled by the journal all the same, and are then only said to be without rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..remoting.queues import MessageQueue
from ..spark.intervals import IntervalSet, OffsetSet, QueueKey
from ..spark.outcomes import FILTERED, NO_ROWS, Outcomes
from .chunks import Chunk
from .intervals import Intervals


class OutcomeNotes:
    """Notes of the core since they were last taken."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, MessageQueue], Intervals] = {}

    def add(self, kind: str, mq: MessageQueue, start: int, end: int) -> None:
        """`[start, end)` of the queue ended as `kind` (spark/outcomes.py)."""
        noted = self._noted.get((kind, mq))
        if noted is None:
            noted = self._noted[kind, mq] = Intervals()
        noted.add(start, end)

    def without_rows(
        self, mq: MessageQueue, chunk: Chunk, start: int, end: int, filtered: int, failed: Sequence[int]
    ) -> None:
        """Messages `[start, end)` of the chunk have no rows; the `failed` ones among them are not finished.

        A run that was filtered in part has other messages too: then all of it is said to be without rows.
        """
        kind = FILTERED if filtered == end - start else NO_ROWS
        for index in sorted(failed):
            if start < index:
                self.add(kind, mq, chunk.begin_of(start), chunk.begin_of(index))
            start = index + 1
        if start < end:
            self.add(kind, mq, chunk.begin_of(start), chunk.offsets[end - 1] + 1)

    def take(self, group: str) -> Outcomes:
        """All notes, which begin anew; `group` is the one that rows carry."""
        noted, self._noted = self._noted, {}
        return Outcomes.of(
            (
                kind,
                OffsetSet(
                    {
                        QueueKey(group, mq.topic, mq.broker_name, mq.queue_id): IntervalSet.of(intervals.pairs()),
                    }
                ),
            )
            for (kind, mq), intervals in noted.items()
        )
