"""Factors between units, and whole units."""

from __future__ import annotations

import math

NS_PER_MS = 1_000_000


def in_whole_ms(due_s: float) -> float:
    """When to have a timer fire that must not be early: `due_s` (loop time, seconds) up to the next whole millisecond.

    uvloop counts whole milliseconds and rounds to the nearest, so that a timer may fire half a millisecond early. What
    looks at the clock then, finds nothing due and sets the timer again, does so until the millisecond is over, some twenty
    times.
    """
    return math.ceil(due_s * 1000) / 1000
