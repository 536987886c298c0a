"""What an answer without records means for the range that is being read. Pure.

Offsets of a queue are without gaps, so what is left out between two records, or between a range and what the queue still has,
is lost (deleted by retention, or a topic made anew). Only cleaned-up compaction topics have gaps of their own; they are read
with failOnDataLoss=false.

It is asked again first: a replica may be behind for a moment, and a reset of the pulling group's offset is told to
whoever pulls next in its name (PullMessageProcessor.java), once, though this read goes by offsets of its own.
"""

from __future__ import annotations

from ..client.operations import PullStatus
from .planning import Range


def goes_on_at(part: Range, at: int, status: PullStatus, next_begin: int) -> int:
    """Where reading goes on when asking again does not help; what lies between is lost."""
    if status is PullStatus.NO_NEW_MSG or next_begin <= at:
        # Nothing at or behind `at`; or a jump back: the queue is shorter than it was.
        return part.end
    return min(next_begin, part.end)
