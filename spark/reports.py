"""What the loader reports of itself: its batches, its counters, rows that it drops. Pure: the log is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..durable.intervals import OffsetSet
from ..remoting.names import RETRY_PREFIX

MUCH: Final = 10_000
MUCH_SHARE: Final = 0.1
"""Of what the table got meanwhile: what did not get there is worth a warning from both of them on."""

_KNOWN: Final = {
    "reason": "all records of a segment are in the table: a queue came from another member before it had committed, a crash"
    " had much delivered again, or the group's offsets were reset; counted from now on",
    "remedy": "only if you have reset the group to have such records once more: `rocketcrew reset --reprocess"
    " --target TABLE -g GROUP -t TOPIC --to TIME`, which loads their rows beside the first ones",
}


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one committed batch was. `rows_dropped` were delivered again, and are in the table already."""

    batch: int
    segments: int
    rows: int
    rows_dropped: int
    bytes: int
    stage_s: float
    job_s: float
    commit_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies in ready/ after a step: the queue that back-pressure looks at."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_ms: int = 0


@dataclass(slots=True)
class Totals:
    """Counters since the process started."""

    batches: int = 0
    rows: int = 0
    rows_dropped: int = 0
    segments: int = 0
    quarantined: int = 0
    replanned: int = 0
    elsewhere: int = 0
    """Messages that other members were shown and this table has not got, not even from the retry topic (POP)."""


class Dropped:
    """Rows that are dropped because their records are in the table: counted into `totals`, and logged once.

    A few at the beginning of a segment are usual after a crash: they were delivered again. Segments that bring nothing new
    come with nearly every rebalance, as the member that had the queue has loaded more of it than it had committed. They are
    also what a reset of the group's offsets looks like, whose user may wonder where the rows are: that has a line of its own,
    and another one, a warning, where they are many beside what was loaded.
    """

    def __init__(self, totals: Totals, log: Any) -> None:
        self._totals = totals
        self._log = log
        self._whole = 0
        self._logged_some = False
        self._logged_whole = False
        self._logged_much = False

    def note(self, rows: int, whole: int) -> None:
        """So many rows were dropped; `whole` of them with segments of which nothing was new."""
        self._totals.rows_dropped += rows
        self._whole += whole
        much = self._whole >= max(MUCH, MUCH_SHARE * (self._totals.rows + self._whole))
        if whole and much and not self._logged_much:
            self._logged_much = self._logged_whole = True
            self._log.warning("rows_known_dropped", rows=self._whole, **_KNOWN)
        elif whole and not self._logged_whole:
            self._logged_whole = True
            self._log.info("rows_known_dropped", rows=self._whole, **_KNOWN)
        if rows > whole and not self._logged_some:
            self._logged_some = True
            self._log.info(
                "rows_delivered_again", rows=rows - whole,
                reason="their records are in the table; usual after a crash; counted from now on",
            )  # fmt: skip


class Elsewhere:
    """POP: messages that end as `elsewhere`, counted into `totals`, and logged once where they grow without an end.

    A message that no member of this table has had comes again from the retry topic when its time is over, as another record,
    and a late member's rows are loaded all the same. So where all members fill this table there are about as many of these
    records as of such messages. What is left over somebody else has for good.
    """

    def __init__(self, totals: Totals, log: Any) -> None:
        self._totals = totals
        self._log = log
        self._left = 0
        self._records = 0
        self._logged = False

    def note(self, ended: OffsetSet, brought: OffsetSet, passed: OffsetSet) -> None:
        """A commit has `ended` so many as elsewhere, and `brought` records, some of which were `passed` before."""
        retried = sum(offsets.count() for key, offsets in brought.queues.items() if key.topic.startswith(RETRY_PREFIX))
        self._left += ended.count() - retried - (brought & passed).count()
        self._records += brought.count()
        self._totals.elsewhere = max(0, self._left)
        if not self._logged and self._left >= max(MUCH, MUCH_SHARE * self._records):
            self._logged = True
            self._log.warning(
                "popped_elsewhere", messages=self._left, loaded=self._records,
                reason="brokers have shown these messages to the group, and neither they nor their retries reach this table:"
                " other members of the group fill another table or none, or topics are asked for by tags",
                remedy="where that is not meant, give all members of the group the same spark.target; counted from now on",
            )  # fmt: skip
