"""Intervals against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.durable.intervals import Intervals, IntervalSet

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20)


@given(PAIRS, st.integers(0, 41))
def test_it_is_the_set_it_stands_for(pairs: list[tuple[int, int]], floor: int) -> None:
    intervals, model = Intervals(), set[int]()
    for start, end in pairs:
        intervals.add(start, end)
        model |= set(range(start, end))
        assert {at for at in range(-1, 42) if at in intervals} == model
    assert intervals.total() == len(model)
    assert bool(intervals) == bool(model)
    flat = [edge for pair in intervals.pairs() for edge in pair]
    assert flat == sorted(set(flat)), "pieces touch or overlap"
    assert len(intervals) == len(intervals.pairs())
    assert Intervals(pairs) == intervals
    intervals.discard_below(floor)
    assert {at for at in range(-1, 42) if at in intervals} == {at for at in model if at >= floor}
    assert all(start < end for start, end in intervals.pairs())


def test_it_shows_itself() -> None:
    assert repr(Intervals([(3, 5), (5, 6)])) == "Intervals([(3, 6)])"
    assert Intervals() != [(1, 2)]


class Counted(int):
    """An offset that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > other

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= other

    def __ge__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) >= other


def comparisons_of_one_more(size: int, step: int) -> int:
    """At the end of a set of `size` intervals (or of one, with step 1)."""
    intervals = Intervals((at, at + 1) for at in range(0, size * step, step))
    Counted.compared = 0
    intervals.add(Counted(size * step), Counted(size * step + 1))
    return Counted.compared


def test_adding_at_the_end_costs_the_same_however_much_is_in_it() -> None:
    assert comparisons_of_one_more(100, 2) == comparisons_of_one_more(10_000, 2)
    assert comparisons_of_one_more(100, 1) == comparisons_of_one_more(10_000, 1)


@given(PAIRS, PAIRS)
def test_a_frozen_one_does_not_change_with_it(first: list[tuple[int, int]], then: list[tuple[int, int]]) -> None:
    intervals = Intervals(first)
    before = intervals.frozen()
    assert before == IntervalSet.of(first)
    intervals.update(then)
    assert before == IntervalSet.of(first)
    assert intervals.frozen() == IntervalSet.of([*first, *then])
