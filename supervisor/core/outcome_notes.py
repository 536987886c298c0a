"""What became of messages that leave no row: noted by the core, sealed in `outcomes/` (sealing.py).

The list explains gaps in a table (`rocketcrew reconcile`). A kill -9 loses what was noted since the last file was sealed: no
offset was sent that depends on it. Where the journal has messages above the offset as finished all the same, and no file says
that they are settled, the next start notes them as `recovered`.

What is settled is noted too, whatever became of it: the loader takes it for loaded, or finds that a segment is lost. No
offset waits for that.

`RecentFailures` is for people: the messages that failed last, with their errors and what became of them, in `/status` and on
the page. Older ones are counted (Counters), were logged by their workers, and are in `dlq` where they are dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...durable.intervals import Intervals, OffsetSet, QueueKey
from ...durable.outcomes import FILTERED, NO_OFFSET_WAITS, NO_ROWS, RECOVERED, Outcomes
from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from .chunks import Chunk
from .journal import JournalState

KEPT_MAX: Final = 20
"""Failed messages that are shown."""
ERROR_CHARACTERS_MAX: Final = 300


def by_queue(sets: Iterable[OffsetSet]) -> dict[MessageQueue, Intervals]:
    """The union of the sets, which are of one group."""
    found: dict[MessageQueue, Intervals] = {}
    for key, offsets in (item for one in sets for item in one.queues.items()):
        found.setdefault(MessageQueue(key.topic, key.broker, key.queue_id), Intervals()).update(offsets.pieces)
    return found


class OutcomeNotes:
    """Notes of the core since they were last taken."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, MessageQueue], Intervals] = {}

    def __bool__(self) -> bool:
        """Whether something was noted since that an offset depends on."""
        return any(kind not in NO_OFFSET_WAITS for kind, _ in self._noted)

    def add(self, kind: str, mq: MessageQueue, start: int, end: int) -> None:
        """`[start, end)` of the queue ended as `kind` (durable/outcomes.py)."""
        noted = self._noted.get((kind, mq))
        if noted is None:
            noted = self._noted[kind, mq] = Intervals()
        noted.add(start, end)

    def forget(self, kind: str, mq: MessageQueue) -> None:
        """What was noted so of the queue is of messages whose offsets others have now."""
        self._noted.pop((kind, mq), None)

    def without_rows(
        self, mq: MessageQueue, chunk: Chunk, start: int, end: int, filtered: int, failed: Sequence[int]
    ) -> None:
        """Messages `[start, end)` of the chunk have no rows; the `failed` ones among them are not finished.

        A run that was filtered in part has other messages too: then all of it is said to be without rows. Of one that has
        rows the segment says which messages were finished.
        """
        kind = FILTERED if filtered == end - start else NO_ROWS
        for index in sorted(failed) if failed else ():
            if start < index:
                self.add(kind, mq, chunk.begin_of(start), chunk.begin_of(index))
            start = index + 1
        if start < end:
            self.add(kind, mq, chunk.begin_of(start), chunk.offsets[end - 1] + 1)

    def recovered(self, journal: JournalState, settled: Mapping[MessageQueue, Intervals]) -> None:
        """What the journal of a dead run says is finished above the offset: of the rest facts were sealed before it was sent.

        `settled` is what files of facts say is settled: notes of it were sealed with that or before. What has none has its
        rows in a segment, and to note it as recovered would hide that this segment is lost.
        """
        for mq, log in journal.queues.items():
            for start, end in (log.durable.frozen() - settled.get(mq, Intervals()).frozen()).pieces:
                self.add(RECOVERED, mq, start, end)

    def take(self, group: str) -> Outcomes:
        """All notes, which begin anew; `group` is the one that rows carry."""
        noted, self._noted = self._noted, {}
        return Outcomes.of(
            (
                kind,
                OffsetSet(
                    {
                        QueueKey(group, mq.topic, mq.broker_name, mq.queue_id): intervals.frozen(),
                    }
                ),
            )
            for (kind, mq), intervals in noted.items()
        )


@dataclass(frozen=True, slots=True)
class _Failed:
    outcome: str
    mq: MessageQueue
    offset: int
    error: str
    at: float
    times: int


class RecentFailures:
    """The newest KEPT_MAX; times are seconds of the core's clock.

    What became of a message again and again, as one that is held and tried every second, is one entry with the newest error:
    it pushes no other out.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, MessageQueue, int], _Failed] = {}

    def note(self, outcome: str, mq: MessageQueue, offset: int, error: str, now: float) -> None:
        """`outcome`: "retry", "held" (tried again here), "dropped" or "dead_letter"; `mq` and `offset` of this attempt."""
        before = self._kept.pop((outcome, mq, offset), None)
        times = 1 if before is None else before.times + 1
        self._kept[outcome, mq, offset] = _Failed(outcome, mq, offset, error[:ERROR_CHARACTERS_MAX], now, times)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def picture(self, now: float) -> list[dict[str, Any]]:
        """JSON types, the newest first."""
        return [
            {
                **place_keys(each.mq, each.offset),
                "outcome": each.outcome,
                "times": each.times,
                "error": each.error,
                "age_s": round(max(0.0, now - each.at), 3),
            }
            for each in reversed(self._kept.values())
        ]
