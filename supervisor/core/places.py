"""Which worker gets the next chunk: workers by what they have in flight, so that a choice looks at no worker but its own.

A worker is in one line: that of its window (one line, unless handlers run several calls side by side), at its load. It moves
when it is given something or is rid of it. What a choice or a move costs depends on the window, not on how many workers there
are. A worker that may be given nothing (not ready, leaving, held up) is in no line.

Of the workers with the same load the first is chosen. One that has just finished all that it had goes to the front: its
process is awake and its caches are warm. All others go to the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class _Line(Generic[W]):
    """Workers of one window (0 = as configured), by load."""

    __slots__ = ("at", "high", "low", "own", "total")

    def __init__(self, own: int) -> None:
        self.own = own
        self.at: dict[int, OrderedDict[W, None]] = {}
        self.low = self.high = 0
        """No worker has a lower or a higher load. Loads change by steps, and so do these."""
        self.total = 0

    def add(self, worker: W, load: int) -> None:
        here = self.at.get(load)
        if here is None:
            here = self.at[load] = OrderedDict()
        here[worker] = None
        self.total += 1
        if load < self.low or self.total == 1:
            self.low = load
        if load > self.high or self.total == 1:
            self.high = load

    def remove(self, worker: W, load: int) -> None:
        at = self.at
        del at[load][worker]
        self.total -= 1
        if self.total:
            self.step()

    def emptied(self, old: int, load: int) -> None:
        """The last worker of one load went to another one, which most often is the next."""
        if load == old + 1:
            if old == self.low:
                self.low = load
        elif load == old - 1:
            if old == self.high:
                self.high = load
        else:
            self.step()

    def step(self) -> None:
        """To the lowest and the highest load that some worker has."""
        at = self.at
        while not at.get(self.high):
            self.high -= 1
        while not at.get(self.low):
            self.low += 1

    def below(self, window: int) -> int:
        """How many have a load below the window."""
        found = self.total
        for load in range(window, self.high + 1):
            found -= len(self.at.get(load, ()))
        return found


class Places(Generic[W]):
    """The lines. A load is a number of chunks, or of dispatches."""

    __slots__ = ("_lines", "_where")

    def __init__(self) -> None:
        self._lines: dict[int, _Line[W]] = {}
        """By the workers' own window; 0 = as configured."""
        self._where: dict[W, tuple[_Line[W], int]] = {}
        """By worker: its line and its load, where it is."""

    def put(self, worker: W, load: int, own_window: int = 0) -> None:
        """The worker has so much in flight now, and may be given more. Called for each chunk twice."""
        before = self._where.get(worker)
        if before is None or before[0].own != own_window:
            self._enter(worker, load, own_window)
            return
        line, old = before
        if old == load:
            return
        self._where[worker] = line, load
        at = line.at
        left = at[old]
        del left[worker]
        here = at.get(load)
        if here is None:
            here = at[load] = OrderedDict()
        here[worker] = None
        if not load:
            here.move_to_end(worker, last=False)
        if load < line.low:
            line.low = load
        elif load > line.high:
            line.high = load
        if not left:
            line.emptied(old, load)

    def _enter(self, worker: W, load: int, own_window: int) -> None:
        """It was in no line, or in that of another window."""
        self.leave(worker)
        line = self._lines.get(own_window)
        if line is None:
            line = self._lines[own_window] = _Line(own_window)
        self._where[worker] = line, load
        line.add(worker, load)

    def leave(self, worker: W) -> None:
        """The worker may be given nothing."""
        before = self._where.pop(worker, None)
        if before is not None:
            line, load = before
            line.remove(worker, load)
            if not line.total:
                del self._lines[line.own]

    def idle(self, but: W | None) -> bool:
        """Some worker, other than `but`, has nothing in flight."""
        for line in self._lines.values():
            here = line.at.get(0)
            if here and len(here) > (but in here):
                return True
        return False

    def free(self, window: int, but: W | None) -> int:
        """How many workers, other than `but`, have less in flight than their window; `window` is the configured one."""
        found = 0
        for own, line in self._lines.items():
            found += line.below(own or window)
        stands = None if but is None else self._where.get(but)
        return found if stands is None else found - (stands[1] < (stands[0].own or window))

    def least(self, window: int, but: W | None) -> W | None:
        """The worker, other than `but`, that has least in flight, and less than its window."""
        best, best_load = None, 0
        for own, line in self._lines.items():
            load, end = line.low, min(line.high + 1, own or window)
            if best is not None:
                end = min(end, best_load)
            while load < end:
                worker = _first(line.at.get(load), but)
                if worker is not None:
                    best, best_load = worker, load
                    break
                load += 1
        return best

    def most(self, window: int, but: W | None) -> W | None:
        """The worker, other than `but`, that has most in flight, and less than its window."""
        best, best_load = None, -1
        for own, line in self._lines.items():
            load = (own or window) - 1
            load = min(load, line.high)
            while load > best_load and load >= line.low:
                worker = _first(line.at.get(load), but)
                if worker is not None:
                    best, best_load = worker, load
                    break
                load -= 1
        return best

    def beyond(self, window: int, but: W | None, takes: Callable[[W], bool], *, most: bool) -> W | None:
        """A worker that has its window full, and `takes` more all the same. One that does not leaves, until it is put again:
        with its next report, which makes room."""
        line = self._lines.get(0)
        if line is None:
            return None
        loads = range(max(window, line.low), line.high + 1)
        for load in reversed(loads) if most else loads:
            while (worker := _first(line.at.get(load), but)) is not None:
                if takes(worker):
                    return worker
                del self._where[worker]
                line.remove(worker, load)
        return None


def _first(here: OrderedDict[W, None] | None, but: W | None) -> W | None:
    if here:
        for worker in here:
            if worker is not but:
                return worker
    return None
