"""The list of outcomes as a table keeps it: what is damaged is said to be, whatever byte it is."""

from __future__ import annotations

import gzip
import json

import pytest

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import NO_ROWS, ROWS, BatchOutcomes, DamagedOutcomesError, Outcomes

PIECES = OffsetSet({QueueKey("g", "orders", "broker-a", 0): IntervalSet.of([(3, 9), (11, 40)])})
TOLD = BatchOutcomes(29, Outcomes.of([(ROWS, PIECES), (NO_ROWS, PIECES)]))


def said(packed: bytes) -> BatchOutcomes | None:
    """What it says, None where it is damaged; anything else that is raised is a defect."""
    try:
        return BatchOutcomes.unpack(packed)
    except DamagedOutcomesError:
        return None


def test_each_changed_bit_is_found_or_says_the_same() -> None:
    packed = TOLD.pack()
    found = [
        said(packed[:at] + bytes([packed[at] ^ (1 << bit)]) + packed[at + 1 :])
        for at in range(len(packed))
        for bit in range(8)
    ]
    assert found.count(None) > 8 * (len(packed) - 10), "all but those of gzip's own time and system"
    assert all(one in (None, TOLD) for one in found)


def test_so_is_each_length() -> None:
    packed = TOLD.pack()
    assert [said(packed[:size]) for size in range(len(packed))] == [None] * len(packed)
    assert said(packed + b"more") is None


@pytest.mark.parametrize(
    "text",
    [
        "[]", "3", "null", "{}", '{"version": 1}', '{"version": 1, "rows": 1}', '{"version": 1, "rows": "x", "outcomes": {}}',
        '{"version": 1, "rows": 1e999, "outcomes": {}}', '{"version": 1, "rows": [], "outcomes": {}}',
        '{"version": 1, "rows": 1, "outcomes": []}', '{"version": 1, "rows": 1, "outcomes": {"none": []}}',
        '{"version": 1, "rows": 1, "outcomes": {"rows": [3]}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_and_what_is_whole_and_no_list_of_outcomes(text: str) -> None:
    assert said(gzip.compress(text.encode())) is None


def test_what_a_newer_version_wrote_is_not_damaged() -> None:
    with pytest.raises(ValueError, match="version 3, this program knows 1") as raised:
        BatchOutcomes.unpack(gzip.compress(json.dumps({"version": 3}).encode()))
    assert not isinstance(raised.value, DamagedOutcomesError)
