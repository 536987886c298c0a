"""A set of queue offsets as sorted, disjoint, half-open intervals. Small and pure: used for what was finished already."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Intervals:
    """Adjacent intervals are merged, so that a queue finished in order stays one pair."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in pairs:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add `[start, end)`; an empty interval is nothing."""
        if start >= end:
            return
        left = bisect_left(self._ends, start)
        right = bisect_right(self._starts, end)
        if left < right:
            start = min(start, self._starts[left])
            end = max(end, self._ends[right - 1])
        self._starts[left:right] = [start]
        self._ends[left:right] = [end]

    def discard_below(self, floor: int) -> None:
        """Forget everything below `floor`."""
        keep = bisect_right(self._ends, floor)
        del self._starts[:keep], self._ends[:keep]
        if self._starts and self._starts[0] < floor:
            self._starts[0] = floor

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.pairs() == other.pairs()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Intervals({self.pairs()})"

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def total(self) -> int:
        """How many offsets it holds."""
        return sum(self._ends) - sum(self._starts)
