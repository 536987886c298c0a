"""Interval sets behave as sets of integers: each operation is compared with Python's own set."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey

offsets = st.sets(st.integers(0, 60), max_size=40)
pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)
keys = st.builds(QueueKey, st.sampled_from("gh"), st.sampled_from(["t", "%RETRY%g"]), st.just("b"), st.integers(0, 2))
records = st.sets(st.tuples(keys, st.integers(0, 30)), max_size=40)


def members(intervals: IntervalSet) -> set[int]:
    return {offset for start, stop in intervals.pieces for offset in range(start, stop)}


def offset_set(pairs: set[tuple[QueueKey, int]]) -> OffsetSet:
    return OffsetSet.of((key, IntervalSet.from_offsets([offset])) for key, offset in pairs)


def pairs_of(offset_set: OffsetSet) -> set[tuple[QueueKey, int]]:
    return {(key, offset) for key, intervals in offset_set.queues.items() for offset in members(intervals)}


@given(pieces)
def test_pieces_in_any_order_become_sorted_disjoint_and_apart(given_pieces: list[tuple[int, int]]) -> None:
    intervals = IntervalSet.of(given_pieces)
    assert members(intervals) == {n for start, stop in given_pieces for n in range(start, stop)}
    ends = [end for piece in intervals.pieces for end in piece]
    assert all(one < two for one, two in pairwise(ends))


@given(offsets, offsets)
def test_operations_are_those_of_sets(one: set[int], two: set[int]) -> None:
    left, right = IntervalSet.from_offsets(one), IntervalSet.from_offsets(two)
    assert left | right == IntervalSet.from_offsets(one | two)
    assert left - right == IntervalSet.from_offsets(one - two)
    assert left & right == IntervalSet.from_offsets(one & two)
    assert left.count() == len(one)
    assert bool(left) == bool(one)
    assert [n for n in range(62) if n in left] == sorted(one)


@given(offsets)
def test_hull_is_one_piece_around_all(one: set[int]) -> None:
    hull = IntervalSet.from_offsets(one).hull()
    assert hull.pieces == (((min(one), max(one) + 1),) if one else ())


@given(offsets, offsets)
def test_cover_picks_the_same_of_the_universe_with_no_more_pieces(universe: set[int], choice: set[int]) -> None:
    chosen = universe & choice
    whole, part = IntervalSet.from_offsets(universe), IntervalSet.from_offsets(chosen)
    cover = part.cover(whole)
    assert cover & whole == part
    assert len(cover.pieces) <= len(part.pieces)
    assert len(cover.pieces) <= len((whole - part).pieces) + 1


@given(offsets)
def test_json_round_trip(one: set[int]) -> None:
    intervals = IntervalSet.from_offsets(one)
    assert IntervalSet.from_json(json.loads(json.dumps(intervals.to_json()))) == intervals


@pytest.mark.parametrize(
    "bad", [None, {}, [1], [0, 0], [3, 2, 0, 1], [-1, 2], [1.5, 2], [True, 1], [2**63, 1], ["1", 2]]
)
def test_bad_interval_json_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="interval list"):
        IntervalSet.from_json(bad)


@given(records, records)
def test_offset_sets_are_sets_of_records(one: set[tuple[QueueKey, int]], two: set[tuple[QueueKey, int]]) -> None:
    left, right = offset_set(one), offset_set(two)
    assert pairs_of(left | right) == one | two
    assert pairs_of(left - right) == one - two
    assert pairs_of(left & right) == one & two
    assert left.count() == len(one)
    assert bool(left - left) is False
    assert sum(len(offsets.pieces) for offsets in left.queues.values()) <= len(one)
    assert (left & right).cover(left) & left == left & right
    assert not left - left.hull()


@given(records)
def test_offset_set_json_round_trip(one: set[tuple[QueueKey, int]]) -> None:
    offsets_of_queues = offset_set(one)
    assert OffsetSet.from_json(json.loads(json.dumps(offsets_of_queues.to_json()))) == offsets_of_queues


@pytest.mark.parametrize(
    "bad", [None, [1], [["g", "t", "b", "0", [0, 1]]], [["g", "t", "b", 0]], [["g", "t", "b", 0, [0, 1]]] * 2]
)
def test_bad_offset_set_json_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="offset set"):
        OffsetSet.from_json(bad)


def test_a_million_records_of_a_sparse_tag_are_small_when_chosen_by_cover() -> None:
    universe = IntervalSet.from_offsets(range(0, 1_000_000, 10))
    taken = universe - IntervalSet.of([(0, 1000), (500_000, 501_000)])
    assert len(json.dumps(taken.cover(universe).to_json())) < 100
