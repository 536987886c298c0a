"""Two loaders in two threads, which come to each commit in the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from loader_world import World
from loaders import WAIT_S
from segment_helpers import Record


class Racers:
    """Both have a segment for each race; one gets the batch's number, and the other one the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._together = threading.Barrier(2)
        self._first = [True, True]
        self._sealing = threading.Lock()
        self.loaders = [world.loader(at, on_point=lambda point, at=at: self._at(at, point)) for at in (0, 1)]
        self.batches: list[list[int]] = [[], []]

    def _at(self, at: int, point: str) -> None:
        if point == "noted" and self._first[at]:
            self._first[at] = False
            self._together.wait(WAIT_S)

    def race(self, races: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            failed = [running.exception() for running in [pool.submit(self._run, at, races) for at in (0, 1)]]
        # One that fails breaks the barrier under the other one: what is to be seen is its own error.
        for error in sorted(filter(None, failed), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error

    def _run(self, at: int, races: int) -> None:
        try:
            for number in range(races):
                with self._sealing:
                    self._world.seal([Record(2 * number + at)], at=at)
                self._first[at] = True
                self._together.wait(WAIT_S)
                self.batches[at] += [report.batch for report in self._world.drain(self.loaders[at])]
                self._together.wait(WAIT_S)
        except BaseException:
            self._together.abort()
            raise


def one_has_each_batch(world: World, races: int) -> None:
    """What must hold after them."""
    racers = Racers(world)
    racers.race(races)
    assert sorted(racers.batches[0] + racers.batches[1]) == list(range(1, 2 * races + 1))
    assert sum(loader.totals.replanned for loader in racers.loaders) == races
    world.assert_exact()
    for at in (0, 1):
        world.assert_clean(at)
