"""Intervals against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.supervisor.core.intervals import Intervals

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
