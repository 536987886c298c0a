"""Cutting chunks: nothing is lost between two parts, and the slot is free when the last of them is given back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.supervisor.core.chunks import Chunk, PullRun
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.workers.failures import Cause, Failure

RECORD_BYTES = 100


def run_of(slab: Slab, offsets: list[int], begin: int) -> PullRun:
    slot = slab.take(RECORD_BYTES * len(offsets))
    assert slot is not None
    positions = [slot.start + RECORD_BYTES * index for index in range(len(offsets) + 1)]
    return PullRun(slot, positions, offsets, 0, len(offsets), begin)


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 5), max_size=12),
    splits=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), max_size=10),
)
def test_whatever_is_cut_the_parts_are_the_whole(
    gaps: list[int], cuts: list[int], splits: list[tuple[int, int]]
) -> None:
    slab, begin = Slab(64 * UNIT_BYTES), 7
    offsets = [begin - 1 + sum(gaps[: index + 1]) for index in range(len(gaps))]
    run = run_of(slab, offsets, begin)
    first = run.positions[0]
    parts: list[Chunk] = []
    for size in [*cuts, *[1] * len(offsets)]:
        if run.count:
            parts.append(run.cut(min(size, run.count), len(parts), 1))
    for which, at in splits:
        chunk = parts[which % len(parts)]
        parts.insert(which % len(parts) + 1, chunk.split(min(at, chunk.count), len(parts)))
    whole = [part for part in parts if part.count]
    assert [offset for part in whole for offset in part.offsets] == offsets
    for before, after in pairwise(whole):
        assert after.begin == before.offsets[-1] + 1
        assert after.positions[0] == before.positions[-1]
    assert (whole[0].begin, whole[0].positions[0]) == (begin, first)
    assert sum(part.length_bytes for part in parts) == RECORD_BYTES * len(offsets)
    for part in parts:
        assert slab.used_units == 1
        slab.release(part.slot)
    assert slab.used_units == 0


def test_what_has_an_outcome_stays_where_it_was_reported() -> None:
    chunk = run_of(Slab(64 * UNIT_BYTES), [0, 1, 2, 3], 0).cut(4, 1, 1)
    chunk.reported, chunk.failed = 2, {1: Failure(Cause.TIME_LIMIT, "no")}
    with pytest.raises(AssertionError, match="a cut at 1 of 2 reported, 4 messages"):
        chunk.split(1, 2)
    rest = chunk.split(2, 2)
    assert (chunk.count, chunk.reported, list(chunk.failed)) == (2, 2, [1])
    assert (rest.count, rest.reported, rest.failed, rest.offsets) == (2, 0, None, [2, 3])


def test_a_shadow_is_one_failed_record_over_the_same_bytes() -> None:
    slab = Slab(64 * UNIT_BYTES)
    chunk = run_of(slab, [3, 5, 9], 2).cut(3, 1, 1)
    shadow = chunk.shadow(1, 2)
    assert (shadow.offsets, shadow.begin, shadow.positions, shadow.origin) == (
        [5], 4, chunk.positions[1:3], (chunk, 1),
    )  # fmt: skip
    assert chunk.count == 3
    assert chunk.slot.refs == 2
