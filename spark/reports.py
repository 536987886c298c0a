"""What the loader reports of itself: its batches, its counters, rows that it drops. Pure: the log is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..durable.intervals import OffsetSet
from ..remoting.names import RETRY_PREFIX

ELSEWHERE_LEAST: Final = 10_000
ELSEWHERE_SHARE: Final = 0.1
"""Of the records that the table got meanwhile: what is elsewhere and has not come again is worth a warning above both."""


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

    A few at the beginning of a segment are usual after a crash: they were delivered again. A segment that brings nothing new
    is what a reset of the group's offsets looks like (and seldom a crash), whose user may wonder where the rows are: that has
    a warning of its own, also after the usual case was logged.
    """

    def __init__(self, totals: Totals, log: Any) -> None:
        self._totals = totals
        self._log = log
        self._logged_some = False
        self._logged_all = False

    def note(self, rows: int, whole: int) -> None:
        """So many rows were dropped; `whole` of them with segments of which nothing was new."""
        self._totals.rows_dropped += rows
        if whole and not self._logged_all:
            self._logged_all = True
            self._log.warning(
                "rows_known_dropped", rows=whole,
                reason="all records of a segment are in the table: the group's offsets were reset, or a crash had much"
                " delivered again; counted from now on",
                remedy="to load such records once more: rocketcrew reset --reprocess",
            )  # fmt: skip
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
        if not self._logged and self._left >= max(ELSEWHERE_LEAST, ELSEWHERE_SHARE * self._records):
            self._logged = True
            self._log.warning(
                "popped_elsewhere", messages=self._left, loaded=self._records,
                reason="brokers have shown these messages to the group, and neither they nor their retries reach this table:"
                " other members of the group fill another table or none, or topics are asked for by tags",
                remedy="where that is not meant, give all members of the group the same spark.target; counted from now on",
            )  # fmt: skip
