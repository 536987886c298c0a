"""Months of one member: what is kept does not grow, and a collection that is never cleared is found."""

from __future__ import annotations

import pytest

from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.process_queue import ProcessQueue

from .months import LEAP_MS, LEAPS_A_MONTH, Months
from .parts import Parts
from .planted import CoreParts
from .world import Violation

SEEDS, MONTHS = 6, 3
PLANTED_SEEDS = 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_kept_does_not_grow(seed: int) -> None:
    world = Months(seed)
    world.run(MONTHS)
    assert len(world.counted) == MONTHS
    assert world.world.now_ms > MONTHS * LEAPS_A_MONTH * LEAP_MS
    assert {"State.queues", "State.workers", "State._timers", "State.recovered"} <= set(world.counted[-1])


class RemembersEnded(CoreParts):
    """Something of each assignment is remembered for ever."""

    class assigning_class(Assigning):
        def _forget(self, pq: ProcessQueue, now: float) -> None:
            self.__dict__.setdefault("bodies", {})[pq.handle] = pq.next_offset
            super()._forget(pq, now)


class RemembersWorkers(CoreParts):
    """Workers that are gone stay in a table."""

    class assigning_class(Assigning):
        def persist_all(self, now: float) -> None:
            self.__dict__.setdefault("hands", set()).update(self.s.workers)
            super().persist_all(now)


@pytest.mark.parametrize("parts", [RemembersEnded, RemembersWorkers])
def test_what_is_never_cleared_is_found(parts: type[Parts]) -> None:
    found = ""
    for seed in range(PLANTED_SEEDS):
        world = Months(seed, parts(("cut", "kill worker", "recycle worker"), {"members": 2, "members_max": 2}))
        try:
            world.run(MONTHS)
        except Violation as violation:
            found = str(violation)
            break
    assert "more from month to month" in found
