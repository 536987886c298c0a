"""What one pull's answer means for the range that is being read. Pure.

Offsets of a queue are without gaps, so what is left out between two records, or between a range and what the queue still has,
is lost (deleted by retention, or a topic made anew). Only cleaned-up compaction topics have gaps of their own; they are read
with failOnDataLoss=false.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..client.operations import PullStatus
from .planning import Range


class Then(Enum):
    """What follows."""

    AGAIN = "again"
    """The broker has not what it said it had: a replica that is behind, for a moment. After some tries the rest is lost."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Step:
    """Where reading goes on after an answer without records, and what is lost up to there."""

    then: Then
    offset: int


def without_records(part: Range, at: int, status: PullStatus, next_begin: int) -> Step:
    """An answer that brought nothing, while the range says there is something at `at`."""
    if status is PullStatus.NO_NEW_MSG or next_begin <= at:
        # Nothing at or behind `at`; or a jump back: the queue is shorter than it was.
        return Step(Then.AGAIN, at)
    return Step(Then.LOST, min(next_begin, part.end))
