"""Rows that are dropped because their records are in the table: counted, and said once, with what to do about it.

A few at the beginning of a segment are usual after a crash: they were delivered again. A segment that brings nothing new is
what a reset of the group's offsets looks like (and seldom a crash), whose user may wonder where the rows are: a warning of
its own, which the usual case does not use up.
"""

from __future__ import annotations

from typing import Any

from .reports import Totals


class Dropped:
    """Counts into `totals`, and says each of the two things once."""

    def __init__(self, totals: Totals, log: Any) -> None:
        self._totals = totals
        self._log = log
        self._told_some = False
        self._told_all = False

    def note(self, rows: int, whole: int) -> None:
        """So many rows were dropped; `whole` of them with segments of which nothing was new."""
        self._totals.rows_dropped += rows
        if whole and not self._told_all:
            self._told_all = True
            self._log.warning(
                "rows_known_dropped", rows=whole,
                why="all records of a segment are in the table: the group's offsets were reset, or a crash had much delivered"
                " again; counted from now on",
                remedy="to load such records once more: rocketcrew reset --reprocess",
            )  # fmt: skip
        if rows > whole and not self._told_some:
            self._told_some = True
            self._log.info(
                "rows_delivered_again", rows=rows - whole,
                why="their records are in the table; usual after a crash; counted from now on",
            )  # fmt: skip
