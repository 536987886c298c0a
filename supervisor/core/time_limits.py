"""Time limits and liveness of one worker: pure, from what its cell says and the time.

A call over its soft limit gets the soft signal, again ever more rarely until its worker has raised it there; over its hard
limit the worker is sent ABRT, which writes the stack, and after a grace KILL. Outside of the handler only progress counts: a
worker that has messages, runs none of them and whose loop does not move for the stall limit is ended in the same way.
`due_ns` says when to look again at the latest, so that limits are kept to the millisecond without looking all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...conf.units import NS_PER_MS

ABORT_GRACE_NS = 1_000 * NS_PER_MS
"""Between ABRT and KILL: time to write a stack of many threads, and a core where those are wanted."""

SOFT_AGAIN_MIN_NS = 20 * NS_PER_MS
SOFT_AGAIN_MAX_NS = 5_000 * NS_PER_MS
"""Between two soft signals to one call, each pause twice the one before: they interrupt what waits for the system."""

LOOK_GAP_NS = 10_000 * NS_PER_MS
"""Looks are far more frequent; after such a gap it was the supervisor that stood still (SIGSTOP, a suspended machine)."""


class Step(Enum):
    NOTHING = "nothing"
    SOFT = "soft"
    ABORT = "abort"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a look at a worker's cell shows. `state` 0 = no call is under way; limits 0 = none."""

    state: int
    started_ns: int
    beats: int
    soft_ns: int
    hard_ns: int
    busy: bool
    """It has chunks that it has not reported on."""
    soft_raised_ns: int = 0
    """Start of the call in which the soft limit was raised."""


@dataclass(slots=True)
class Look:
    """What is remembered of one worker between two looks."""

    soft_sent: int = 0
    """Start of the call that got the soft signal."""
    soft_pause_ns: int = 0
    soft_again_ns: int = 0
    """How long after the last soft signal, and when, the same call gets another one."""
    ended: tuple[int, int] | None = None
    """State and start of the call whose worker was sent ABRT; (0, 0) = it stood still outside of any."""
    ended_ns: int = 0
    """When it was last sent ABRT or KILL."""
    by_machine: bool = False
    """It was not the only one that stood still then, or its process was stopped or waited for a disk."""
    beats: int = -1
    beat_ns: int = 0
    """When `beats` was first seen."""
    looked_ns: int = 0

    def next(self, seen: Progress, now_ns: int, stall_ns: int) -> tuple[Step, int]:
        """What to do now, and when to look again at the latest (ns)."""
        if now_ns - self.looked_ns > LOOK_GAP_NS:
            self.beats = -1  # we stood still ourselves: it may have waited for us
        self.looked_ns = now_ns
        if self.ended is not None:
            return self._ending(now_ns)
        if not seen.state:
            return self._outside(seen, now_ns, stall_ns)
        self.beats = -1
        ran_ns = now_ns - seen.started_ns
        if seen.hard_ns and ran_ns >= seen.hard_ns:
            self.ended, self.ended_ns = (seen.state, seen.started_ns), now_ns
            return Step.ABORT, now_ns + ABORT_GRACE_NS
        due = [seen.started_ns + seen.hard_ns] if seen.hard_ns else []
        step = Step.NOTHING
        if seen.soft_ns and seen.soft_raised_ns != seen.started_ns:
            if self._soft(seen, now_ns):
                step = Step.SOFT
            due.append(self.soft_again_ns)
        return step, min(due, default=now_ns + stall_ns)

    def _soft(self, seen: Progress, now_ns: int) -> bool:
        """Whether the call gets the soft signal now."""
        if self.soft_sent != seen.started_ns:
            self.soft_pause_ns, self.soft_again_ns = SOFT_AGAIN_MIN_NS, seen.started_ns + seen.soft_ns
        if now_ns < self.soft_again_ns:
            return False
        self.soft_sent, self.soft_again_ns = seen.started_ns, now_ns + self.soft_pause_ns
        self.soft_pause_ns = min(2 * self.soft_pause_ns, SOFT_AGAIN_MAX_NS)
        return True

    def _ending(self, now_ns: int) -> tuple[Step, int]:
        due = self.ended_ns + ABORT_GRACE_NS
        if now_ns < due:
            return Step.NOTHING, due
        self.ended_ns = now_ns  # while it has not ended it is killed again: a kill can fail
        return Step.KILL, now_ns + ABORT_GRACE_NS

    def _outside(self, seen: Progress, now_ns: int, stall_ns: int) -> tuple[Step, int]:
        if not seen.busy or seen.beats != self.beats:
            self.beats, self.beat_ns = seen.beats, now_ns
        elif now_ns - self.beat_ns >= stall_ns:
            self.ended, self.ended_ns = (0, 0), now_ns
            return Step.ABORT, now_ns + ABORT_GRACE_NS
        # A call that starts right after this look is over its limit after the shorter of the two.
        limits = [limit for limit in (seen.soft_ns, seen.hard_ns, stall_ns) if limit]
        return Step.NOTHING, now_ns + min(limits)

    def rest(self) -> None:
        """It has nothing to do, and is not looked at any more until it has: its loop may stand still."""
        self.beats = -1

    @property
    def stalled(self) -> bool:
        """It was ended because it stood still outside of any call."""
        return self.ended == (0, 0)

    def still_since(self, ns: int) -> bool:
        """It is outside of a call, has something to do, and has not moved since then, as far as was seen."""
        return self.beats >= 0 and self.beat_ns <= ns

    def timed_out(self, state: int, started_ns: int) -> bool:
        """The call that it died in is the one that it was ended for, and not one that came after it."""
        return not self.stalled and self.ended == (state, started_ns)
