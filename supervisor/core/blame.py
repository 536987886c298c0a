"""Whose fault is a worker's death? Pure: how it ended and what it had in hand give one verdict, by one table.

A message that was alone in hand is charged with the death; of a batch nobody knows which one it was, so its messages are
suspected and run again apart from all others (quarantine.py). Recycling, reload, shutdown and a dead forkserver charge
nobody. A call over its hard time limit is a failed attempt of its messages, as Java's consume timeout is. Of a coroutine
handler the call whose step ran is in hand; where several waited and none ran, a thread or a callback of the handler's did it,
and all that the worker has is suspected. So it is where a worker ends by a fault or for want of memory between two calls: it
was writing rows of what it had not reported. And where it stood still there, until we ended it: rows that take too long to
convert would do so again and again. But where others stood still with it, or its process is stopped or waits for a disk, it
was most likely the machine. Then what it had runs apart as well, since two messages of that kind may meet, but a message that
was alone is not charged, unless that happens to it again and again.

Two messages that fit into the memory alone may not fit at one time. So of what the kernel killed for want of memory the last
attempt before the dead letter runs alone in the whole member (quarantine.py): only what dies alone is a dead letter.

When the whole member died, supervisor and workers at once (an operator, a container's limit, the host), a message is charged
only if it was alone in hand in all of that member. Of several none is: nobody can say which one it was (charges.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class End(Enum):
    """How a worker's process came to its end."""

    RETIRED = "retired"
    """It was asked to leave: by recycling, reload, scaling, shutdown or an operator."""
    FORKSERVER = "forkserver died"
    OURS = "killed by the supervisor"
    """It said what cannot be, or was over a time limit in a call that ended just before the kill."""
    STALLED = "stood still outside of the handler"
    """We ended it for that."""
    MACHINE = "held up by the machine"
    """The same, but others stood still, too, or its process was stopped or waited for a disk: no message did that."""
    TIME_LIMIT = "hard time limit"
    CRASHED = "crashed"
    """By itself, or killed by the kernel or somebody else."""
    MEMBER = "whole run died"
    """Its cell was found at the next start, and it alone had something in hand."""
    MEMBER_AMONG_OTHERS = "whole run died, with other messages in hand"
    """Its cell was found at the next start, and that of another worker too."""


DEATHS: Final = (End.CRASHED, End.TIME_LIMIT, End.STALLED, End.MACHINE, End.OURS, End.FORKSERVER)
"""Ends of a worker, while its member runs, that nobody asked for."""


class CellContent(Enum):
    """What its cell said."""

    NOTHING = "nothing"
    ONE = "one record"
    SEVERAL = "several records"
    WAITING = "no call that ran, and something was not reported"


class Verdict(Enum):
    NOBODY = "nobody"
    CHARGED = "charged"
    SUSPECTED = "suspected"
    APART = "to be run apart"
    """As suspected, but nothing is charged, not even what ran alone."""
    TIMED_OUT = "timed out"
    NOTED = "noted"
    """In hand beside others: no death of its own, see charges.py."""


VERDICTS: dict[tuple[End, CellContent], Verdict] = {
    (End.RETIRED, CellContent.NOTHING): Verdict.NOBODY,
    (End.RETIRED, CellContent.ONE): Verdict.NOBODY,
    (End.RETIRED, CellContent.SEVERAL): Verdict.NOBODY,
    (End.RETIRED, CellContent.WAITING): Verdict.NOBODY,
    (End.FORKSERVER, CellContent.NOTHING): Verdict.NOBODY,
    (End.FORKSERVER, CellContent.ONE): Verdict.NOBODY,
    (End.FORKSERVER, CellContent.SEVERAL): Verdict.NOBODY,
    (End.FORKSERVER, CellContent.WAITING): Verdict.NOBODY,
    (End.OURS, CellContent.NOTHING): Verdict.NOBODY,
    (End.OURS, CellContent.ONE): Verdict.NOBODY,
    (End.OURS, CellContent.SEVERAL): Verdict.NOBODY,
    (End.OURS, CellContent.WAITING): Verdict.NOBODY,
    # It went on between the look and the kill: who is named has not held it.
    (End.STALLED, CellContent.NOTHING): Verdict.NOBODY,
    (End.STALLED, CellContent.ONE): Verdict.NOBODY,
    (End.STALLED, CellContent.SEVERAL): Verdict.NOBODY,
    (End.STALLED, CellContent.WAITING): Verdict.SUSPECTED,
    (End.MACHINE, CellContent.NOTHING): Verdict.NOBODY,
    (End.MACHINE, CellContent.ONE): Verdict.NOBODY,
    (End.MACHINE, CellContent.SEVERAL): Verdict.NOBODY,
    (End.MACHINE, CellContent.WAITING): Verdict.APART,
    # The call that was over its limit ended between the look and the kill: whoever came after it has done nothing.
    (End.TIME_LIMIT, CellContent.NOTHING): Verdict.NOBODY,
    (End.TIME_LIMIT, CellContent.ONE): Verdict.TIMED_OUT,
    (End.TIME_LIMIT, CellContent.SEVERAL): Verdict.TIMED_OUT,
    (End.TIME_LIMIT, CellContent.WAITING): Verdict.SUSPECTED,
    (End.CRASHED, CellContent.NOTHING): Verdict.NOBODY,
    (End.CRASHED, CellContent.ONE): Verdict.CHARGED,
    (End.CRASHED, CellContent.SEVERAL): Verdict.SUSPECTED,
    (End.CRASHED, CellContent.WAITING): Verdict.SUSPECTED,
    (End.MEMBER, CellContent.NOTHING): Verdict.NOBODY,
    (End.MEMBER, CellContent.ONE): Verdict.CHARGED,
    (End.MEMBER, CellContent.SEVERAL): Verdict.SUSPECTED,
    (End.MEMBER, CellContent.WAITING): Verdict.NOBODY,  # its cell names none, and who was waiting is known no more
    (End.MEMBER_AMONG_OTHERS, CellContent.NOTHING): Verdict.NOBODY,
    (End.MEMBER_AMONG_OTHERS, CellContent.ONE): Verdict.NOTED,
    (End.MEMBER_AMONG_OTHERS, CellContent.SEVERAL): Verdict.NOTED,
    (End.MEMBER_AMONG_OTHERS, CellContent.WAITING): Verdict.NOBODY,
}


@dataclass(frozen=True, slots=True)
class InHand:
    """The call that was under way, from the worker's cell: records `offset .. last` of chunk `chunk_id`."""

    chunk_id: int
    offset: int
    last: int
    records: int
    taken: int | None = None
    """Of a batch: the record whose message the handler took last, if it takes them one by one."""
    mark: str = ""
    """Names this call: a death is counted once, however often its cell is found."""
    waiting: bool = False
    """Several calls of a coroutine handler were under way, and none of them ran, or it died between two calls; what is said
    above names none of them."""

    @property
    def content(self) -> CellContent:
        if self.waiting:
            return CellContent.WAITING
        return CellContent.ONE if self.records == 1 else CellContent.SEVERAL


@dataclass(frozen=True, slots=True)
class Death:
    """One worker's end and what is known of it. Facts that are unknown are left out of `keys`."""

    end: End
    in_hand: InHand | None = None
    cause: str = ""
    """`SIGSEGV`, `exit code 7`."""
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    """For the log and, as text, for a dead letter's properties: worker, pid, run_ms, rss_peak_bytes, oom_kills, stack."""

    @property
    def for_memory(self) -> bool:
        """The kernel killed it for want of memory, most likely; others may have had the rest of that."""
        return bool(self.facts.get("oom_kills"))

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.end, self.in_hand.content if self.in_hand is not None else CellContent.NOTHING]


def how_ended(
    *, retired: bool, ours: bool, timed_out: bool, unattended: bool, by_itself: bool, stalled: bool = False,
    by_machine: bool = False,
) -> End:  # fmt: skip
    """`retired` = it was asked to leave; `ours` = we killed it; `timed_out` = for its time limit, with that very call still
    in hand; `stalled` = because it stood still outside of any, `by_machine` = no message held it; `unattended` = its
    forkserver is gone too, and the exit code with it; `by_itself` = by a fault, or with an exit code that no worker of ours
    has when it leaves: then it counts, asked to leave or not."""
    if timed_out:
        return End.TIME_LIMIT
    if ours:
        return End.OURS
    if stalled:
        return End.MACHINE if by_machine else End.STALLED
    if unattended:
        return End.FORKSERVER
    return End.RETIRED if retired and not by_itself else End.CRASHED


class Fate(Enum):
    """What becomes of a record that a dead worker left unfinished."""

    AGAIN = "again"
    """Nobody suspects it: to another worker at once."""
    APART = "apart"
    """Its part of a suspected batch runs alone."""
    CHARGED = "charged"
    TIMED_OUT = "timed out"


Lot = tuple[Fate, int]
"""Fate, and the number of the part: neighbours with the same lot stay together."""
AGAIN: Lot = (Fate.AGAIN, 0)


class Blamed:
    """The judgement on one death, kept until the dead worker's chunks are dispatched again."""

    __slots__ = ("chunk_id", "culprit", "end", "start", "verdict")

    def __init__(self, chunk_id: int | None, start: int, end: int, verdict: Verdict, culprit: int | None) -> None:
        self.chunk_id = chunk_id
        """None = each of the worker's chunks, as a whole."""
        self.start, self.end = start, end
        self.verdict = verdict
        self.culprit = culprit
        """Position of the record that is charged, None = none is."""

    def lot(self, index: int) -> Lot:
        """The lot of record `index` of that chunk."""
        if self.chunk_id is None:
            return Fate.APART, 0
        if not self.start <= index < self.end:
            return AGAIN
        if self.verdict is Verdict.TIMED_OUT:
            return Fate.TIMED_OUT, 0
        if index == self.culprit:
            return Fate.CHARGED, 0
        if self.culprit is not None:
            return Fate.APART, 1 if index < self.culprit else 2
        return Fate.APART, 1 if index < self.start + (self.end - self.start) // 2 else 2
