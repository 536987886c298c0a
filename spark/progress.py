"""How far the batch in work is, for whoever watches: a batch may be all that waits, and take minutes.

The work thread says what it begins, the threads that convert count segments, Spark is asked for its tasks; another thread
reads (work.py). Times are of a monotonic clock, in seconds, and passed in by the reader as well as the writer.

The time that is left is estimated from what commits have cost (costs.py; before the first, from what is usual), and from the
share of the present phase that is done: the longer estimate counts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

from .costs import Costs

STAGING: Final = "staging"
"""Segments are converted, and Spark starts if it does not run yet."""
WRITING: Final = "writing"
COMMITTING: Final = "committing"


@dataclass(frozen=True, slots=True)
class Running:
    """The batch in work. `done` of `total`: segments while staging, Spark's tasks after that; 0 of 0 is unknown."""

    batch: int
    rows: int
    rows_after: int
    begun_s: float
    phase: str = STAGING
    phase_begun_s: float = 0.0
    done: int = 0
    total: int = 0

    def seconds_left(self, costs: Costs, now_s: float) -> float:
        """Until all that waits is in the table, about."""
        fixed, per_row = costs.line()
        after = fixed + per_row * self.rows_after if self.rows_after > 0 else 0.0
        by_cost = fixed + per_row * self.rows - (now_s - self.begun_s)
        by_share = (now_s - self.phase_begun_s) * (self.total - self.done) / self.done if self.done else 0.0
        return max(by_cost, by_share, 0.0) + after


class Progress:
    """The batch in work, if any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Running | None = None

    def begin(self, batch: int, rows: int, rows_after: int, now_s: float) -> None:
        """A batch of `rows` starts; `rows_after` wait for the next ones."""
        with self._lock:
            self._running = Running(batch, rows, rows_after, now_s, phase_begun_s=now_s)

    def enter(self, phase: str, now_s: float) -> None:
        """Its next phase begins."""
        with self._lock:
            if self._running is not None:
                self._running = replace(self._running, phase=phase, phase_begun_s=now_s, done=0, total=0)

    def expect(self, total: int) -> None:
        """So many things are to be counted in this phase."""
        with self._lock:
            if self._running is not None:
                self._running = replace(self._running, total=total)

    def count(self) -> None:
        """One of them is done."""
        with self._lock:
            if self._running is not None:
                self._running = replace(self._running, done=self._running.done + 1)

    def end(self) -> None:
        """No batch is in work any more."""
        with self._lock:
            self._running = None

    def look(self) -> Running | None:
        """What is known now."""
        with self._lock:
            return self._running
