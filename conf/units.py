"""Factors between units, and whole units."""

from __future__ import annotations

import math
from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
US_PER_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


def in_whole_ms(due_s: float) -> float:
    """When to have a timer fire that must not be early: `due_s` (loop time, seconds) up to the next whole millisecond.

    uvloop counts whole milliseconds and rounds to the nearest, so that a timer may fire half a millisecond early. What
    looks at the clock then, finds nothing due and sets the timer again, does so until the millisecond is over, some twenty
    times.
    """
    return math.ceil(due_s * 1000) / 1000
