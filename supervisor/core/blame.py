"""Whose fault is a worker's death? Pure: how it ended and what it had in hand give one verdict, by one table.

A message that was alone in hand is charged with the death; of a batch nobody knows which one it was, so its messages are
suspected and run again apart from all others (quarantine.py). What we ended ourselves charges nobody: recycling, reload,
shutdown, a dead forkserver, a worker that stood still between messages. A call over its hard time limit is a failed
attempt of its messages, as Java's consume timeout is. Of a coroutine handler the call whose step ran is in hand; where
several waited and none ran, a thread or a callback of the handler's did it, and all that the worker has is suspected.

When the whole run died, supervisor and workers at once (an operator, a container's limit, the host), a message is charged
only if it was alone in hand in all of that run. Of several none is: nobody can say which one it was (charges.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class End(Enum):
    """How a worker's process came to its end."""

    TOLD = "told to leave"
    """By recycling, reload, scaling, shutdown or an operator: whoever told it says so beforehand."""
    FORKSERVER = "forkserver died"
    OURS = "killed by the supervisor"
    """It stood still outside of the handler, or said what cannot be."""
    TIME_LIMIT = "hard time limit"
    CRASHED = "crashed"
    """By itself, or killed by the kernel or somebody else."""
    RUN = "whole run died"
    """Its cell was found at the next start, and it alone had something in hand."""
    RUN_AMONG_OTHERS = "whole run died, with other messages in hand"
    """Its cell was found at the next start, and that of another worker too."""


class Hand(Enum):
    """What its cell said."""

    NOTHING = "nothing"
    ONE = "one record"
    SEVERAL = "several records"
    WAITING = "several calls, none of which ran"


class Verdict(Enum):
    NOBODY = "nobody"
    CHARGED = "charged"
    SUSPECTED = "suspected"
    TIMED_OUT = "timed out"
    NOTED = "noted"
    """In hand beside others: no death of its own, see charges.py."""


VERDICTS: dict[tuple[End, Hand], Verdict] = {
    (End.TOLD, Hand.NOTHING): Verdict.NOBODY,
    (End.TOLD, Hand.ONE): Verdict.NOBODY,
    (End.TOLD, Hand.SEVERAL): Verdict.NOBODY,
    (End.TOLD, Hand.WAITING): Verdict.NOBODY,
    (End.FORKSERVER, Hand.NOTHING): Verdict.NOBODY,
    (End.FORKSERVER, Hand.ONE): Verdict.NOBODY,
    (End.FORKSERVER, Hand.SEVERAL): Verdict.NOBODY,
    (End.FORKSERVER, Hand.WAITING): Verdict.NOBODY,
    (End.OURS, Hand.NOTHING): Verdict.NOBODY,
    (End.OURS, Hand.ONE): Verdict.NOBODY,
    (End.OURS, Hand.SEVERAL): Verdict.NOBODY,
    (End.OURS, Hand.WAITING): Verdict.NOBODY,
    # The call that was over its limit ended between the look and the kill: whoever came after it has done nothing.
    (End.TIME_LIMIT, Hand.NOTHING): Verdict.NOBODY,
    (End.TIME_LIMIT, Hand.ONE): Verdict.TIMED_OUT,
    (End.TIME_LIMIT, Hand.SEVERAL): Verdict.TIMED_OUT,
    (End.TIME_LIMIT, Hand.WAITING): Verdict.SUSPECTED,
    (End.CRASHED, Hand.NOTHING): Verdict.NOBODY,
    (End.CRASHED, Hand.ONE): Verdict.CHARGED,
    (End.CRASHED, Hand.SEVERAL): Verdict.SUSPECTED,
    (End.CRASHED, Hand.WAITING): Verdict.SUSPECTED,
    (End.RUN, Hand.NOTHING): Verdict.NOBODY,
    (End.RUN, Hand.ONE): Verdict.CHARGED,
    (End.RUN, Hand.SEVERAL): Verdict.SUSPECTED,
    (End.RUN, Hand.WAITING): Verdict.NOBODY,  # its cell names none, and who was waiting is known no more
    (End.RUN_AMONG_OTHERS, Hand.NOTHING): Verdict.NOBODY,
    (End.RUN_AMONG_OTHERS, Hand.ONE): Verdict.NOTED,
    (End.RUN_AMONG_OTHERS, Hand.SEVERAL): Verdict.NOTED,
    (End.RUN_AMONG_OTHERS, Hand.WAITING): Verdict.NOBODY,
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
    """Several calls of a coroutine handler were under way, and none of them ran; what is said above names none of them."""

    @property
    def hand(self) -> Hand:
        if self.waiting:
            return Hand.WAITING
        return Hand.ONE if self.records == 1 else Hand.SEVERAL


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
    def verdict(self) -> Verdict:
        return VERDICTS[self.end, self.in_hand.hand if self.in_hand is not None else Hand.NOTHING]


def how_ended(*, told: bool, ours: bool, timed_out: bool, unattended: bool, by_itself: bool) -> End:
    """`told` = it was asked to leave; `ours` = we killed it; `timed_out` = for its time limit, with that very call still in
    hand; `unattended` = its forkserver is gone too, and the exit code with it; `by_itself` = by a fault, or with an exit code
    that no worker of ours has when it leaves: then it counts, asked to leave or not."""
    if timed_out:
        return End.TIME_LIMIT
    if ours:
        return End.OURS
    if unattended:
        return End.FORKSERVER
    return End.TOLD if told and not by_itself else End.CRASHED


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
    """The judgement on one death, kept until the dead worker's chunks are handed out again."""

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
