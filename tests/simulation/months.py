"""Months of one member's life: it lives on while time leaps, workers die, another member comes and goes, faults happen.

A leap is a machine that was suspended: everything that became due meanwhile is late. At the end of each month the world comes
to rest, and all that is reachable from the member's core is counted, by name. What grows from month to month is a leak, even
where each thing in it would have a reason.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from rocketcrew.durable.intervals import Intervals
from rocketcrew.supervisor.core.decisions import Core

from .parts import Parts
from .script import POWER
from .simulation import Simulation
from .world import Violation

LEAP_MS = 12 * 3_600_000.0
LEAPS_A_MONTH = 60
STEPS_A_LEAP = 60
MESSAGES_A_LEAP = 4
COMES_AND_GOES_EVERY = 4
SLACK = 8
"""Things of one name that there may be more of, by chance of the moment at which they are counted."""
GROWS = {
    "Item._notes": "one for each kind of figure and topic, made when the first is noted",
    "State.settled": "an interval for each time that a queue came back, or was reset, at most SETTLED_MAX a queue",
}
"""What may be more, and why; it is in the report."""
_CONTAINERS = (dict, list, set, deque, tuple, frozenset)
Sizes = Counter[str]


def sizes(core: Core) -> Sizes:
    """By `Type.attribute`: how many things all collections of that name hold together, wherever in the core they are."""
    found: Sizes = Counter()
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque([("Core", core)])
    while todo:
        name, thing = todo.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Intervals):
            found[name] += len(list(thing.pairs()))
        elif isinstance(thing, _CONTAINERS):
            bounded = isinstance(thing, (tuple, frozenset)) or (isinstance(thing, deque) and thing.maxlen is not None)
            if not bounded:
                found[name] += len(thing)
            todo.extend((name, each) for each in (thing.values() if isinstance(thing, dict) else thing))
        elif _is_ours(thing):
            todo.extend((f"{type(thing).__name__}.{attribute}", value) for attribute, value in _attributes(thing))
    return found


def _is_ours(thing: object) -> bool:
    """Also where a planted bug stands in the place of one."""
    return not isinstance(thing, type) and any(kind.__module__.startswith("rocketcrew") for kind in type(thing).__mro__)


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            if hasattr(thing, slot):
                yield slot, getattr(thing, slot)


class Months(Simulation):
    """`run(months)` plays them; `counted` has the sizes at the end of each."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        super().__init__(seed, parts)
        self.counted: list[Sizes] = []
        for kind in ("kill member", "kill member in a step", "stop member", "start member", POWER):
            self.script.faults[kind] = 0
        self.faults = type(self.faults)(self)

    def run(self, steps: int) -> None:
        """So many months."""
        self.start_member()
        self.world.after(300, self._load)
        lives_on = self.lives_on = self.members[0]
        for _ in range(steps):
            for leap in range(LEAPS_A_MONTH):
                self._day(leap)
            self._rest()
            self.counted.append(sizes(lives_on.core))
            self.world.calm = False
        if not lives_on.alive:
            raise Violation("the member that should live on is dead")
        self.check_growth()

    def _day(self, leap: int) -> None:
        world = self.world
        world.now_ms += LEAP_MS
        for member in self.living():
            for worker in member.pool.workers.values():
                if worker.call is not None:
                    worker.call.began_ms += LEAP_MS  # it was suspended, too
        for _ in range(MESSAGES_A_LEAP):
            self.broker.produce(world.random.randrange(self.script.queues))
        if leap % COMES_AND_GOES_EVERY == 0 and self.script.members_max > 1:
            others = [member for member in self.living()[1:] if member.running]
            for member in others:
                member.event(member.stop)
            if len(self.living()) < self.script.members_max and not others:
                self.start_member()
        until = world.steps + STEPS_A_LEAP
        while world.steps < until:
            if world.random.random() < self.script.fault_rate:
                self.faults.one()
            self._step()

    def check_growth(self) -> None:
        """The last month has no more of anything than the first."""
        first, last = self.counted[0], self.counted[-1]
        grown = {
            name: (first[name], last[name]) for name in last if last[name] > first[name] + SLACK and name not in GROWS
        }
        if grown:
            raise Violation(f"kept, more from month to month: {grown}")

    def report(self) -> str:
        """What is kept, by name, at the end of each month."""
        names = sorted({name for counted in self.counted for name in counted})
        return "\n".join(f"{name:45} " + " ".join(f"{one[name]:6}" for one in self.counted) for name in names)
