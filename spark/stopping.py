"""How the loader process ends: one table of phases. Pure.

    RUNNING    loads what is due (or, not following, what is sealed)
    DRAINING   asked to load all that is sealed, whether due or not, and to end then
    FINISHING  TERM or INT: the batch in work may finish until the deadline; nothing new is begun
    CANCELLING the deadline passed, or a second signal: the Spark job is cancelled; its plan is run at the next start
    ENDED      the work has ended, or does not matter any more

The parent's death has no grace: whoever asked for the batch is gone, a new supervisor wants the folder, and stopping at
any point is safe. A loader that ignored this would hold the lock.
"""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    """Where the process is on its way to the end."""

    RUNNING = auto()
    DRAINING = auto()
    FINISHING = auto()
    CANCELLING = auto()
    ENDED = auto()


class Happening(Enum):
    """What the main thread is told."""

    DRAIN_ASKED = auto()
    SIGNAL = auto()
    DEADLINE = auto()
    PARENT_GONE = auto()
    WORK_ENDED = auto()


class Action(Enum):
    """What it does about it."""

    NOTHING = auto()
    DRAIN = auto()
    FINISH = auto()
    """Begin nothing more; start the stop deadline."""
    CANCEL = auto()
    """Cancel the Spark job; start the cancel deadline."""
    LEAVE = auto()
    """Return the worker's exit code."""
    FORCE = auto()
    """End the process at once, with the exit code of a forced stop; the kernel ends the JVM."""


TRANSITIONS: dict[tuple[Phase, Happening], tuple[Phase, Action]] = {
    (Phase.RUNNING, Happening.DRAIN_ASKED): (Phase.DRAINING, Action.DRAIN),
    (Phase.RUNNING, Happening.SIGNAL): (Phase.FINISHING, Action.FINISH),
    (Phase.RUNNING, Happening.PARENT_GONE): (Phase.ENDED, Action.FORCE),
    (Phase.RUNNING, Happening.WORK_ENDED): (Phase.ENDED, Action.LEAVE),
    (Phase.DRAINING, Happening.DRAIN_ASKED): (Phase.DRAINING, Action.NOTHING),
    (Phase.DRAINING, Happening.SIGNAL): (Phase.FINISHING, Action.FINISH),
    (Phase.DRAINING, Happening.PARENT_GONE): (Phase.ENDED, Action.FORCE),
    (Phase.DRAINING, Happening.WORK_ENDED): (Phase.ENDED, Action.LEAVE),
    (Phase.FINISHING, Happening.DRAIN_ASKED): (Phase.FINISHING, Action.NOTHING),
    (Phase.FINISHING, Happening.SIGNAL): (Phase.CANCELLING, Action.CANCEL),
    (Phase.FINISHING, Happening.DEADLINE): (Phase.CANCELLING, Action.CANCEL),
    (Phase.FINISHING, Happening.PARENT_GONE): (Phase.ENDED, Action.FORCE),
    (Phase.FINISHING, Happening.WORK_ENDED): (Phase.ENDED, Action.LEAVE),
    (Phase.CANCELLING, Happening.DRAIN_ASKED): (Phase.CANCELLING, Action.NOTHING),
    (Phase.CANCELLING, Happening.SIGNAL): (Phase.ENDED, Action.FORCE),
    (Phase.CANCELLING, Happening.DEADLINE): (Phase.ENDED, Action.FORCE),
    (Phase.CANCELLING, Happening.PARENT_GONE): (Phase.ENDED, Action.FORCE),
    (Phase.CANCELLING, Happening.WORK_ENDED): (Phase.ENDED, Action.LEAVE),
}
"""A pair that is not here can't happen: deadlines run in FINISHING and CANCELLING alone, and nothing follows ENDED."""
