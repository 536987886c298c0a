"""The simulated world: one clock, one queue of events, one random generator, and what has happened so far.

Everything that takes time is an event at a time; events at the same time keep the order in which they were made. All
randomness comes from the seed, so a run is its seed: the same one gives the same steps, whatever machine it runs on.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any


class Violation(AssertionError):
    """An invariant does not hold."""


class World:
    """Clock (`now_ms`), events, random, and the counts of what happened (for the check that everything did)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 1_000_000.0
        self.steps = 0
        self.calm = False
        """No more faults, and nobody is slow: everything comes to rest."""
        self.happened: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self.trace: list[str] | None = None

    @property
    def now(self) -> float:
        """Seconds, as the supervisor's core counts them."""
        return self.now_ms / 1000

    @property
    def wall_ms(self) -> int:
        """The time of day: one clock for all members."""
        return int(self.now_ms)

    def after(self, delay_ms: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act(*args)` in `delay_ms`."""
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), act, args))

    def at(self, due_ms: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (max(due_ms, self.now_ms), next(self._numbers), act, args))

    def step(self) -> None:
        """One event."""
        due, _, act, args = heapq.heappop(self._events)
        self.now_ms = max(due, self.now_ms)
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{due:.2f} {act.__qualname__} {args!r:.140}")
        act(*args)

    def told(self, error: Exception, test: str, steps: int) -> str:
        """What ended the run, and the line that replays it."""
        return (
            f"{type(error).__name__} at step {self.steps}, {self.now_ms:.2f} ms: {error}\n"
            f"replay: .venv/bin/pytest tests/simulation/{test} --sim-seed {self.seed} --sim-steps {steps}"
        )

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, what: str) -> None:
        """Something of interest happened; each kind must happen in some run."""
        self.happened[what] += 1
        if self.trace is not None:
            self.trace.append(f"{self.now_ms:.2f} ** {what}")
