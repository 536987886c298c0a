"""Gaps: records that a supervisor says are finished, and of which nobody knows what became of them.

Settled records are folded into the loaded set, so that what has no rows leaves no holes in it. Folding must not swallow rows
that were lost on the way, or they would count as loaded for ever. So each settled record has to be known: it is loaded, it is
in a sealed segment (its rows, or that it was finished without any), in a file in bad/, or somebody noted what became of it
(outcomes/). A file of facts that says what is settled has the notes on which that rests, or an earlier file has them, and the
loader reads these files before it lists segments: so nothing is missing because it comes later. What remains is a gap: a
sealed segment was deleted or lost.

The supervisor says once that a record is settled. Where it cannot count as loaded yet (its rows may be in a segment that this
batch leaves, or in bad/, or it is a gap), the loader leaves that in a file of facts of its own, with the notes of all records
that are not loaded. The commit with which they count as loaded brings these notes along.

Each staging folder answers for itself: what another supervisor on another folder has loaded or not is not looked at, and a
hole between two queues' owners is no gap. Not decided where it cannot be: for a queue that has begun anew (facts know no
epochs), while a file lies in bad/ whose records cannot be made out, and for a new table that is filled from a folder from
which another one was loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..client.logs import get_logger
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import ENDS, ROWS, SETTLED, Outcomes
from .errors import RUN_AGAIN, LoaderError
from .plan import SegmentFacts
from .staging import Staging
from .targets.target import TableState

PIECES_MAX = 20


class Gaps:
    """Looks for gaps in what is to be folded, and leaves the notes that are needed for that."""

    def __init__(self, staging: Staging, *, leave: bool) -> None:
        """`leave`: go on without them, instead of stopping."""
        self._staging = staging
        self._leave = leave
        self._told = ""
        self._log = get_logger().bind(staging=str(staging.root))

    def find(
        self, state: TableState, settled: OffsetSet, segments: Iterable[SegmentFacts], bad: OffsetSet, noted: Outcomes
    ) -> OffsetSet:
        """The gaps in `settled` (without what is loaded), which are not to be folded. Raises LoaderError unless left."""
        if not settled or (not state.batch and self._staging.was_loaded()):
            return OffsetSet()
        gaps = settled - known(segments, bad, noted)
        if not gaps:
            return gaps
        if not self._leave and not self._staging.unknown_in_bad():
            raise LoaderError(
                f"records are finished, and neither in the table nor in {self._staging.root}, and nobody noted that they have"
                f" no rows: {told(gaps)}. Were segments deleted or lost? Put them back into ready/, or set spark.on_gap ="
                " leave to go on without them; then `rocketcrew reconcile` names them, and can run them again"
            )
        if told(gaps) != self._told:
            self._told = told(gaps)
            self._log.error("gaps_left", records=told(gaps), remedy=RUN_AGAIN)
        return gaps

    def going(self, loaded: OffsetSet, sure: OffsetSet, begun_anew: Iterable[QueueKey]) -> Outcomes:
        """What became of the records which `leave` will leave no longer: their commit brings that along, as what was left may
        be of another table, or of another slot's loader."""
        left = Outcomes.union(self._staging.left().values()).without(ROWS, SETTLED)
        gone = set(begun_anew)
        return Outcomes.of(
            (kind, (one & (loaded if kind in ENDS else sure)).without(gone)) for kind, one in left.kinds.items()
        )

    def leave(
        self, plan_id: str, noted: Outcomes, loaded: OffsetSet, sure: OffsetSet, begun_anew: Iterable[QueueKey]
    ) -> None:
        """The commit of that plan has taken these notes: what is not `sure` to be loaded with it is for a later one."""
        before = self._staging.left()
        after = left_of(Outcomes.union([noted, *before.values()]), loaded, sure, begun_anew)
        self._staging.leave(plan_id, after, before)


def left_of(noted: Outcomes, loaded: OffsetSet, sure: OffsetSet, begun_anew: Iterable[QueueKey]) -> Outcomes:
    """What a later batch has to know of these notes; `sure`: records that are `loaded`, but for holes that floors passed.

    Where a floor has passed what was lost or skipped, that has no more to say: it would have each batch read outcomes.
    """
    gone = set(begun_anew)
    return Outcomes.of(
        (kind, (one - (loaded if kind in ENDS else sure)).without(gone))
        for kind, one in noted.kinds.items()
        if kind != ROWS
    )


def known(segments: Iterable[SegmentFacts], bad: OffsetSet, noted: Outcomes) -> OffsetSet:
    """What the staging folder can account for. That records were lost or skipped names ranges in which others finished."""
    sure = [records for kind, records in noted.kinds.items() if kind not in (*ENDS, SETTLED)]
    return OffsetSet.union(
        [bad, *sure, *(part for segment in segments for part in (segment.offsets, segment.finished))]
    )


def told(gaps: OffsetSet) -> str:
    """`orders broker-a 3: 17, 20-29; …`."""
    return "; ".join(
        f"{key.topic} {key.broker} {key.queue_id}: {compact(offsets)}" for key, offsets in sorted(gaps.queues.items())
    )


def compact(offsets: IntervalSet, pieces_max: int = PIECES_MAX) -> str:
    """`17, 20-29, … (1200 in 310 ranges)`: both ends are meant."""
    shown = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in offsets.pieces[:pieces_max]]
    if len(offsets.pieces) > pieces_max:
        shown.append(f"… ({offsets.count()} in {len(offsets.pieces)} ranges)")
    return ", ".join(shown)
