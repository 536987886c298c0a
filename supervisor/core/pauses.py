"""After which time the same is heard, tried or looked for again, for the process around the core. Pure; times are seconds of
one clock.

- TERM and INT: `timeout` and a terminal may send one twice, to the process and to its group. What comes within
  REPEATED_WITHIN_S of one that counted is that one.
- The loader: started again whenever it has ended, and whenever it could not be started, after 1 s, 2 s, 4 s … up to
  LOADER_PAUSE_MAX_S.
- A topic that does not exist yet: whoever has just started often sends the first message next, so it is looked up each second
  for a minute, and not as seldom as a route that may have changed.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

REPEATED_WITHIN_S: Final = 0.5
"""Nobody decides anew in so short a time; what sends a signal twice does so in milliseconds."""
LOADER_PAUSE_MIN_S: Final = 1.0
LOADER_PAUSE_MAX_S: Final = 60.0
LOADER_HEALTHY_S: Final = 60.0
"""A loader that ran this long is started again after the shortest pause."""
LOOK_SOON_S: Final = 1.0
LOOK_SOON_TIMES: Final = 60


class StopWish(Enum):
    """What a signal that ends a supervisor means."""

    STOP = "drain and stop"
    FORCE = "stop at once"
    SAME = "a repetition of the one before"


class StopSignals:
    """TERM and INT."""

    def __init__(self) -> None:
        self._counted_at: float | None = None

    def heard(self, now: float) -> StopWish:
        """A signal, or the same wish by another way."""
        before = self._counted_at
        if before is not None and now - before < REPEATED_WITHIN_S:
            return StopWish.SAME
        self._counted_at = now
        return StopWish.STOP if before is None else StopWish.FORCE


class LoaderPauses:
    """Of one supervisor's loader."""

    def __init__(self) -> None:
        self._next_s = LOADER_PAUSE_MIN_S

    def after(self, lived_s: float) -> float:
        """It has lived for so long, 0 where it could not be started: seconds until it is started again, with whatever code it
        has ended, because later there may be memory, a disk, a Spark."""
        pause_s = LOADER_PAUSE_MIN_S if lived_s > LOADER_HEALTHY_S else self._next_s
        self._next_s = min(pause_s * 2, LOADER_PAUSE_MAX_S)
        return pause_s


class MissingTopics:
    """Of one member; `interval_s` is that of all routes."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._left = LOOK_SOON_TIMES

    def next_s(self, *, missing: bool) -> float | None:
        """Seconds until the next look for those that are missing; None = with the routes, at their interval."""
        if not missing or not self._left:
            return None
        self._left -= 1
        return min(LOOK_SOON_S, self._interval_s)
