"""Months of one member's life: it lives on while time leaps, workers die, another member comes and goes, faults happen.

A leap is a machine that was suspended: everything that became due meanwhile is late. At the end of each month the world comes
to rest, and every collection is counted that is reachable from the member's core, its journal, its requests, its workers'
cells and the table's state, and from the modules of rocketcrew themselves. Nobody lists them: they are found, and named after
where they are. What grows from month to month is a leak, even where each thing in it would have a reason.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from rocketcrew.durable.intervals import Intervals, IntervalSet

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
    **dict.fromkeys(
        ("RetryDelays._counts", "RetryDelays._ends"), "what waits for its retry now, at most a few a delay level"
    ),
    "RecentFailures._kept": "the newest, so many at most (KEPT_MAX)",
    "Item._notes": "one for each kind of figure and topic, made when the first is noted",
    "Latencies.counts": "as many for each topic, made when its first message is done",
}
"""What may be more, and why; it is in the report."""
GROWS_BY_RESETS = {"OffsetSet.queues": "the table's loaded set has a gap for each stretch that an operator skipped"}
"""The same where operators reset offsets: in every other seed."""
RESETS = ("reset back", "reset forward")
OURS = "rocketcrew."
_CONTAINERS = (Mapping, list, set, deque, tuple, frozenset)
_FLAT = (bytearray, array)
_CACHED = type(lru_cache(str))
Sizes = Counter[str]


def sizes(*roots: object) -> Sizes:
    """By `Type.attribute`: how many things all collections of that name hold together, wherever they are reached from."""
    found: Sizes = Counter()
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque(("", root) for root in roots)
    while todo:
        name, thing = todo.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Intervals):
            found[name] += len(thing)
        elif isinstance(thing, IntervalSet):
            found[name] += len(thing.pieces)
        elif isinstance(thing, _FLAT):
            found[name] += len(thing)
        elif isinstance(thing, _CONTAINERS):
            if not _is_bounded(thing):
                found[name] += len(thing)
            todo.extend((name, each) for each in (thing.values() if isinstance(thing, Mapping) else thing))
        elif isinstance(thing, _CACHED):
            if thing.cache_info().maxsize is None:
                found[name] += thing.cache_info().currsize
        else:
            todo.extend(_parts(name, thing))
    return found


def _is_bounded(thing: object) -> bool:
    return isinstance(thing, (tuple, frozenset)) or (isinstance(thing, deque) and thing.maxlen is not None)


def _parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What hangs on an object, a function (in its closure) or a module of ours, each with its name."""
    if isinstance(thing, ModuleType):
        if thing.__name__.startswith(OURS):
            yield from ((f"{thing.__name__}.{each}", value) for each, value in vars(thing).items() if each[:2] != "__")
    elif isinstance(thing, MethodType):
        yield name, thing.__self__
    elif isinstance(thing, partial):
        yield from ((name, each) for each in (thing.func, *thing.args, *thing.keywords.values()))
    elif isinstance(thing, FunctionType):
        for cell in (thing.__closure__ or ()) if thing.__module__.startswith(OURS) else ():
            yield f"{thing.__qualname__}()", cell.cell_contents
    elif is_ours(thing):
        yield from ((f"{type(thing).__name__}.{attribute}", value) for attribute, value in _attributes(thing))


def is_ours(thing: object) -> bool:
    """Whether it is an object of a class of rocketcrew, also where a planted bug is in the place of one."""
    return not isinstance(thing, type) and any(kind.__module__.startswith(OURS) for kind in type(thing).__mro__)


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            if hasattr(thing, slot):
                yield slot, getattr(thing, slot)


def modules() -> list[ModuleType]:
    """Ours that are loaded: tables that outlive every object are in them."""
    return [module for name, module in sys.modules.items() if name.startswith(OURS)]


class Months(Simulation):
    """`run(months)` plays them; `counted` has the sizes at the end of each."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        super().__init__(seed, parts)
        self.counted: list[Sizes] = []
        self.grows = GROWS | (GROWS_BY_RESETS if seed % 2 else {})
        unwanted = ("kill member", "kill member in a step", "stop member", "start member", POWER)
        for kind in unwanted if seed % 2 else unwanted + RESETS:
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
            for folder in self.folders:
                self.table.load(folder, all_of_it=True)
            self.counted.append(sizes(*self._roots(), *modules()))
            self.world.calm = False
        if not lives_on.alive:
            raise Violation("the member that should live on is dead")
        self.check_growth()

    def _roots(self) -> Iterator[object]:
        """What is real of the member that lives on, of its workers, and of the loader."""
        assert self.lives_on is not None
        member = self.lives_on
        for simulated in (member, member.edge, member.pool, *member.pool.workers.values(), self.table):
            yield from (thing for thing in vars(simulated).values() if is_ours(thing))

    def _day(self, leap: int) -> None:
        world = self.world
        for member in self.living():
            member.event(member.read_ends)  # what it was told is acted on within milliseconds
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
        """The last month has no more of anything than the first. The one before must show half of it, since what one has by
        chance the other has not: the loaded set has a gap for each message without a row since the last file that was loaded
        (13 and 18 of them at the ends of two of ten months, else 4)."""
        first, *_, before, last = self.counted
        grown = {
            name: (first[name], before[name], last[name])
            for name in last
            if last[name] > first[name] + SLACK and before[name] > first[name] + SLACK / 2 and name not in self.grows
        }
        if grown:
            raise Violation(f"kept, more from month to month: {grown}")

    def report(self) -> str:
        """What is kept, by name, at the end of each month, and why it may grow."""
        names = sorted({name for counted in self.counted for name in counted if counted[name]})
        return "\n".join(
            f"{name:60} {' '.join(f'{one[name]:8}' for one in self.counted)}  {self.grows.get(name, '')}"
            for name in names
        )
