"""What an answer without records means for the range that is being read. Pure.

Offsets of a queue are without gaps, so what is left out between two records, or between a range and what the queue still has,
is lost (deleted by retention, or a topic made anew). Only cleaned-up compaction topics have gaps of their own; they are read
with failOnDataLoss=false.

The brokers are asked again first: a reset of the pulling group's offset is reported once to whoever pulls next in its name
(PullMessageProcessor.java), and a broker may be between two roles. What only a replica says proves no loss: it may lag
(client/routes.py, `is_final`).
"""

from __future__ import annotations

from ..remoting.headers import PullResponse
from .planning import Range


def goes_on_at(part: Range, at: int, header: PullResponse) -> int | None:
    """Where reading goes on when asking again does not help; what lies between is lost. None: the answer proves no loss."""
    if header.max_offset <= at:
        return part.end  # the queue is shorter than it was
    if header.next_begin_offset > at:
        return min(header.next_begin_offset, part.end)
    return None


def is_short(part: Range, header: PullResponse) -> bool:
    """Whether the queue ends before the range does: a broker that comes back, or fails over, may be longer in a moment."""
    return header.max_offset < part.end
