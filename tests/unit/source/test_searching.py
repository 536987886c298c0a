from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.source.searching import LOOK_AT, exact_offset


def search(found: int, low: int, stored: Sequence[int], timestamp_ms: int, at_once: int = LOOK_AT) -> int:
    async def times(start: int, end: int) -> dict[int, int]:
        assert low <= start < end <= low + len(stored)
        return {offset: stored[offset - low] for offset in range(start, min(end, start + at_once))}

    return asyncio.run(exact_offset(found, low, low + len(stored), timestamp_ms, times))


@pytest.mark.parametrize("found", [0, 10, 11, 12, 13, 14, 99])
def test_what_a_broker_says_is_only_near(found: int) -> None:
    stored = [100, 200, 200, 300]
    assert [search(found, 10, stored, time) for time in (1, 100, 101, 200, 201, 300, 301)] == [
        10,
        10,
        11,
        11,
        13,
        13,
        14,
    ]


def test_nothing_is_stored() -> None:
    assert search(5, 7, [], 100) == 7


@given(st.lists(st.integers(0, 6), max_size=150), st.integers(0, 7), st.integers(0, 200), st.sampled_from([1, 8, 32]))
def test_it_is_the_first(stored: list[int], timestamp_ms: int, found: int, at_once: int) -> None:
    stored = sorted(stored)
    first = next((at for at, time in enumerate(stored) if time >= timestamp_ms), len(stored))
    assert search(found, 0, stored, timestamp_ms, at_once) == first
