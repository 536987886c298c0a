"""The ledger of one assignment: what became of each offset, in a few intervals.

Every offset from `begin` up to where the next pull begins is in one column: *open* (pulled and not finished; the only one
that is not written down here), *done*, or *lost* (nobody finishes it in this assignment). A done one may be *held* by a
segment: its row is in it, and it counts as durable only when the segment is sealed, or is in the table. What is done and
not held is forgotten but for its interval, so nothing here grows with how much waits for a seal.

Between two records are offsets that the broker did not deliver. They belong to the record after them; those after the last
record of a pull are a *gap*, which is done as soon as everything before it is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from ...durable.intervals import Intervals, IntervalSet
from .chunks import Token

STALE_STARTS_MAX = 64
"""More entries of the past than this, and than segments that hold something, are swept out: one that is held for long would
keep all that came after it."""


class Held:
    """What waits for one segment: offsets, and how many messages they are."""

    __slots__ = ("messages", "offsets")

    def __init__(self) -> None:
        self.offsets = Intervals()
        self.messages = 0


class Ledger:
    """Offsets `[begin, …)` of one queue. `done`: what was finished before, from `begin` on."""

    __slots__ = ("_gaps", "_starts", "begin", "done", "finished_to", "first_open", "held", "lost")

    def __init__(self, begin: int, done: Intervals | None = None) -> None:
        self.begin = begin
        self.done = done or Intervals()
        self.first_open = self.done.next_gap(begin)
        """The smallest offset that is not done."""
        self.finished_to = begin
        """The end of the highest message that was finished in this assignment."""
        self.held: dict[Token, Held] = {}
        self.lost = Intervals()
        self._gaps: deque[tuple[int, int]] = deque()
        self._starts: list[tuple[int, Token]] = []
        """A heap: the first offset that each segment holds, and entries of segments that hold nothing any more."""

    @property
    def head(self) -> int:
        """The smallest offset that is not done and durable."""
        starts = self._starts
        return min(self.first_open, starts[0][0]) if starts else self.first_open

    # --- what is finished ---------------------------------------------------------------------------------------

    def finish(self, start: int, end: int) -> None:
        """Messages of the offsets `[start, end)` are finished; their rows, if they have any, are held first."""
        piece_end = self.done.add(start, end)
        self.finished_to = max(self.finished_to, end)
        if start <= self.first_open < piece_end:
            self.first_open = piece_end
            if self._gaps:
                self._advance()

    def pass_over(self, start: int, end: int) -> None:
        """Nothing is to be done for `[start, end)`: nothing was delivered, or it was finished in an earlier assignment."""
        if start < end:
            self._gaps.append((start, end))
            self._advance()

    def _advance(self) -> None:
        first, gaps = self.done.next_gap(self.first_open), self._gaps
        while gaps and gaps[0][0] <= first:
            self.done.add(*gaps.popleft())
            first = self.done.next_gap(first)
        self.first_open = first

    def pull_again_from(self, offset: int) -> None:
        """What was pulled from `offset` on is forgotten, and with it where records were missing."""
        while self._gaps and self._gaps[-1][0] >= offset:
            self._gaps.pop()

    # --- what is durable ----------------------------------------------------------------------------------------

    def hold(self, token: Token, start: int, end: int, messages: int) -> None:
        """Rows of the messages `[start, end)` are in that segment, which is not safe yet."""
        start = self._own(start, end)
        held = self.held.get(token)
        if held is None:
            held = self.held[token] = Held()
        if not held.offsets or start < held.offsets.start:
            heapq.heappush(self._starts, (start, token))
        held.offsets.add(start, end)
        held.messages += messages
        self._forget_starts()

    def _own(self, start: int, end: int) -> int:
        """Where `[start, end)`, one record or several, begins without the gap before it that is done already: an earlier
        assignment passed it when it was the end of a pull, and the next one gets it with the record after it."""
        return min(self.done.next_gap(start), end - 1)

    def release(self, token: Token) -> int:
        """The segment is safe, or the table has it; how many messages waited for it."""
        held = self.held.pop(token, None)
        self._forget_starts()
        return held.messages if held is not None else 0

    def _forget_starts(self) -> None:
        """Entries at the heap's top that are no segment's first offset any more; the others where they are too many."""
        starts, held = self._starts, self.held
        while starts and ((found := held.get(starts[0][1])) is None or found.offsets.start > starts[0][0]):
            heapq.heappop(starts)
        if len(starts) > 2 * len(held) + STALE_STARTS_MAX:
            starts[:] = [(found.offsets.start, token) for token, found in held.items()]
            heapq.heapify(starts)

    def held_messages(self) -> int:
        """Finished messages whose rows are not safe yet; one that waits for several segments counts for each."""
        return sum(held.messages for held in self.held.values())

    # --- what is not finished here ------------------------------------------------------------------------------

    def lose(self, start: int, end: int) -> None:
        """Nobody will finish `[start, end)` in this assignment: the next owner has it."""
        self.lost.add(self._own(start, end), end)

    def lose_rows(self, token: Token) -> int:
        """The segment is gone with the rows that it held: their messages are not done; how many those were."""
        held = self.held.get(token)
        if held is None:
            return 0
        self.lost.update(held.offsets.pairs())
        self.done = Intervals((IntervalSet.of(self.done.pairs()) - held.offsets.frozen()).pieces)
        self.first_open = self.done.next_gap(self.begin)
        return self.release(token)

    def finished_above(self, floor: int) -> Intervals:
        """Offsets from `floor` on that are done and durable, for a later assignment."""
        done = IntervalSet.of(self.done.pairs()) - IntervalSet.of(self._held_pairs())
        finished = Intervals(done.pieces)
        finished.discard_below(floor)
        return finished

    def _held_pairs(self) -> Iterable[tuple[int, int]]:
        for held in self.held.values():
            yield from held.offsets.pairs()
