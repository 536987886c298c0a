"""Which offsets of a table's queues count as loaded, kept in a few numbers for each queue, however long it runs. Pure.

`[start, floor)` and a set above the floor is what a state file has: at most PIECES_MAX intervals. A hole is an offset between
them that nobody has accounted for yet: its message failed and waits, another member has it, or a broker left it out without
saying so. Where there are too many, the floor *passes* the lowest ones, and those at once that have an end: lost, or skipped
by a reset. They are not taken for loaded: the commit notes
them as `passed` among its outcomes, and the state keeps one interval that spans them, so that only who brings a record from
in there has to read outcomes. See docs/table-records.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import CLOSED, ENDS, EXACT, NOT_ACCOUNTED, PASSED, Outcomes
from .cuts import CUTS_MAX, EARLIER_CUTS_MAX, longest
from .epochs import opened
from .plan import Top

PIECES_MAX: Final = 16
"""Intervals of one queue in its newest epoch or the one before: 16 take about 130 bytes, and 64 such queues 20 KiB."""
OPEN_EPOCHS: Final = 2
"""Epochs of a queue, from the newest down, that segments may still be of (epochs.py); older ones are closed."""


NOTHING: Final = OffsetSet()


@dataclass(frozen=True, slots=True)
class Accounts:
    """What counts as loaded, and per queue the interval that spans the holes which the floor has passed.

    `new`: what counts as loaded since the commit that these accounts belong to, and did not before. `tops`: the newest record
    of each queue in its open epochs. `plans`: as TableState has them.
    """

    loaded: OffsetSet
    holes: OffsetSet = field(default_factory=OffsetSet)
    new: OffsetSet = field(default_factory=OffsetSet)
    tops: Mapping[QueueKey, Top] = field(default_factory=dict[QueueKey, Top])
    plans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """What outcomes say beyond the state of a table: which passed holes are `open` still.

    `noted`: all that they say of open holes and of records that are not loaded, but for ranges that were lost or skipped: in
    these others may have finished (gaps.py). `ended`: the records that are not loaded and of which an exact outcome was
    noted, so that the floor passes no hole when it gets there.
    """

    open: OffsetSet = field(default_factory=OffsetSet)
    noted: OffsetSet = field(default_factory=OffsetSet)
    ended: OffsetSet = field(default_factory=OffsetSet)


NO_DETAIL: Final = Detail()


def detail_after(before: Detail, loaded: OffsetSet, holes: OffsetSet, told: Iterable[Outcomes]) -> Detail:
    """The detail of a table whose state has `loaded` and `holes`, by the outcomes since `before`.

    Outcomes of earlier commits may be among `told`, as merged files have them: each part is whole, so a hole comes with its
    end. What is loaded for sure is dropped at once, so the detail is as large as what is unknown, whatever the table's age.
    """
    sure = loaded - holes
    parts = [Outcomes.of((kind, records - sure) for kind, records in one.kinds.items()) for one in told]
    ended = OffsetSet.union([before.ended, *(one.of_kind(kind) for one in parts for kind in (*EXACT, CLOSED))])
    passed = OffsetSet.union([before.open, *(one.of_kind(PASSED) for one in parts)])
    noted = OffsetSet.union(
        [
            before.noted,
            *(one.of_kind(kind) for one in parts for kind in one.kinds if kind not in (*NOT_ACCOUNTED, *ENDS)),
        ]
    )
    still = (passed & holes) - ended
    return Detail(still, noted - (loaded - still), ended - loaded)


def shrunk(
    loaded: OffsetSet, holes: OffsetSet, pieces_max: int = PIECES_MAX, ended: OffsetSet = NOTHING
) -> tuple[Accounts, OffsetSet]:
    """The accounts of `loaded` with few intervals, and the holes that were passed for it.

    `ended`: holes of which it is known that nobody will fill them; they are passed at once, however few there are.
    """
    ended = ended - loaded
    loaded = loaded | ended
    newest = opened(loaded.queues)
    kept: dict[QueueKey, IntervalSet] = {}
    passed: dict[QueueKey, IntervalSet] = {}
    for key, offsets in loaded.queues.items():
        most = pieces_max if is_open(key, newest) else 1
        kept[key], gaps = _joined_below(offsets, most)
        if gaps:
            passed[key] = gaps
    found = OffsetSet(passed) | ended
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
    """Without those of closed epochs, which nobody asks for, and with few cuts of those that have a newer one, or many
    intervals: both stand in each state file."""
    newest = opened(loaded.queues)
    return {
        key: top._replace(
            cuts=longest(top.cuts, cuts_max(len(loaded.of_queue(key).pieces), newest=is_newest(key, newest)))
        )
        for key, top in tops.items()
        if is_open(key, newest)
    }


def is_newest(key: QueueKey, newest: Mapping[QueueKey, int]) -> bool:
    """Whether no later epoch of the queue is there."""
    return key.epoch == newest.get(key.in_epoch(0), 0)


def cuts_max(intervals: int, *, newest: bool) -> int:
    """How many cuts of an epoch with so many intervals the state keeps: one takes as much as three of these."""
    if newest:
        return max(2, CUTS_MAX - (intervals - 1) // 3)
    return EARLIER_CUTS_MAX if intervals <= PIECES_MAX // 2 else 1
