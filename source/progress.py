"""What answers mean for the range that is being read: where it goes on, and which pulls go ahead. Pure.

Offsets of a queue are without gaps, so what is left out between two records, or between a range and what the queue still has,
is lost (deleted by retention, or a topic made anew). Only cleaned-up compaction topics have gaps of their own; they are read
with failOnDataLoss=false.

The brokers are asked again first: a reset of the pulling group's offset is reported once to whoever pulls next in its name
(PullMessageProcessor.java), and a broker may be between two roles. What only a replica says proves no loss: it may lag
(client/routes.py, `is_final`).
"""

from __future__ import annotations

from collections.abc import Sequence

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


class Window:
    """How many pulls go ahead of the one whose answer is awaited, and at which offsets.

    An answer brings what the broker likes to give (32 messages, 256 KiB), mostly as much as the last one. So the next offsets
    are guessed; each right guess allows one pull more, up to `size_max`, a wrong one takes all of them back.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 1

    def took(self, *, guessed: bool) -> None:
        """An answer was taken; `guessed`: it was asked for ahead, at the right offset."""
        self._size = min(self._size + 1, self._size_max) if guessed else 1

    def next(self, under_way: Sequence[int], at: int, step: int, end: int) -> list[int]:
        """Offsets to ask for now, below `end`.

        `under_way`: those that are asked for already, from `at` on; `step`: how many offsets the last answer brought.
        """
        offset = under_way[-1] + step if under_way else at
        room = max(0, self._size - len(under_way))
        return list(range(offset, end, step)[:room]) if step > 0 else []
