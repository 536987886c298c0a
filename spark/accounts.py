"""Which offsets of a table's queues count as loaded, kept in a few numbers for each queue, however long it runs. Pure.

`[start, floor)` and a set above the floor is what a state file has: at most PIECES_MAX intervals. A hole is an offset between
them that nobody has accounted for yet: its message failed and waits, another member has it, or a broker left it out without
saying so. Where there are too many, the floor *passes* the lowest ones. They are not taken for loaded: the commit notes
them as `passed` among its outcomes, and the state keeps one interval that spans them, so that only who brings a record from
in there has to read outcomes. See docs/table-records.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import CLOSED, EXACT, NOT_ACCOUNTED, PASSED, Outcomes
from .epochs import opened
from .plan import Top

PIECES_MAX: Final = 16
"""Intervals of one queue in its newest epoch or the one before: 16 take about 130 bytes, and 64 such queues 20 KiB."""
OPEN_EPOCHS: Final = 2
"""Epochs of a queue, from the newest down, that segments may still be of (epochs.py); older ones are closed."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What counts as loaded, and per queue the interval that spans the holes which the floor has passed."""

    loaded: OffsetSet
    holes: OffsetSet = field(default_factory=OffsetSet)


@dataclass(frozen=True, slots=True)
class Detail:
    """What outcomes say of the offsets in `holes`: those that are `open` still, and all that was `noted` of them."""

    open: OffsetSet = field(default_factory=OffsetSet)
    noted: OffsetSet = field(default_factory=OffsetSet)


def detail_of(holes: OffsetSet, outcomes: Outcomes) -> Detail:
    """Which of the holes nobody has ended since they were passed."""
    within = {kind: records & holes for kind, records in outcomes.kinds.items()}
    ended = OffsetSet.union(within[kind] for kind in (*EXACT, CLOSED) if kind in within)
    noted = OffsetSet.union(records for kind, records in within.items() if kind not in NOT_ACCOUNTED)
    return Detail(within.get(PASSED, OffsetSet()) - ended, noted)


def shrunk(loaded: OffsetSet, holes: OffsetSet, pieces_max: int = PIECES_MAX) -> tuple[Accounts, OffsetSet]:
    """The accounts of `loaded` with few intervals, and the holes that were passed for it."""
    newest = opened(loaded)
    kept: dict[QueueKey, IntervalSet] = {}
    passed: dict[QueueKey, IntervalSet] = {}
    for key, offsets in loaded.queues.items():
        most = pieces_max if is_open(key, newest) else 1
        kept[key], gaps = _joined_below(offsets, most)
        if gaps:
            passed[key] = gaps
    found = OffsetSet(passed)
    return Accounts(OffsetSet(kept), OffsetSet.union([holes, found]).hull()), found


def _joined_below(offsets: IntervalSet, pieces_max: int) -> tuple[IntervalSet, IntervalSet]:
    """The set with its lowest pieces joined into one, and what lay between these."""
    pieces = offsets.pieces
    joined = len(pieces) - pieces_max + 1
    if joined <= 1:
        return offsets, IntervalSet()
    low = pieces[:joined]
    gaps = tuple((before[1], after[0]) for before, after in pairwise(low))
    return IntervalSet(((low[0][0], low[-1][1]), *pieces[joined:])), IntervalSet(gaps)


def is_open(key: QueueKey, newest: Mapping[QueueKey, int]) -> bool:
    """Whether segments of this epoch of the queue may still come."""
    return key.epoch > newest.get(key.in_epoch(0), 0) - OPEN_EPOCHS


def open_tops(tops: Mapping[QueueKey, Top], loaded: OffsetSet) -> dict[QueueKey, Top]:
    """Without those of closed epochs, which nobody asks for."""
    newest = opened(loaded)
    return {key: top for key, top in tops.items() if is_open(key, newest)}
