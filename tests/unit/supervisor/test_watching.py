"""The watch over time limits: it looks at those that have something, and at those that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rocketcrew.conf.units import NS_PER_MS
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.supervisor.core.states import WorkerState
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.watching import Watch
from rocketcrew.workers.cells import HARD_NS, STARTED_NS, STATE, CellFile

from .test_scale import FLAT, steps


class Process:
    """Notes what it is sent."""

    pid = 1

    def __init__(self) -> None:
        self.sent: list[int] = []

    def kill(self, number: int = 9) -> None:
        self.sent.append(int(number))


@contextmanager
def crew(folder: Path, workers: int) -> Generator[tuple[Watch, dict[str, Child], CellFile, set[str]]]:
    """A watch over so many workers that are ready; the set has those that are busy."""
    cells = CellFile(folder / f"cells{workers}", workers)
    children = {
        f"w{number}": Child(
            Worker(f"w{number}", WorkerState.READY),
            number,
            cast("Any", Process()),
            cast("Any", None),
            cast("Any", None),
        )
        for number in range(workers)
    }
    busy: set[str] = set()

    async def make() -> Watch:
        return Watch(cells, children, lambda: busy, stall_ms=60_000)

    try:
        yield asyncio.run(make()), children, cells, busy
    finally:
        cells.close()


def test_a_look_costs_what_is_busy(tmp_path: Path) -> None:
    def cost(workers: int) -> int:
        with crew(tmp_path, workers) as (watch, _, _, busy):
            busy.update(("w0", "w1"))
            watch.look()
            return steps(watch.look)

    assert cost(256) <= FLAT * cost(8)


def test_what_is_ended_is_looked_at_until_it_is_gone(tmp_path: Path) -> None:
    with crew(tmp_path, 2) as (watch, children, cells, busy):
        busy.add("w0")
        with cells.view(0) as words:
            words[HARD_NS], words[STARTED_NS], words[STATE] = 1, 1, 8
        watch.look()
        sent = cast("Any", children["w0"].process).sent
        assert len(sent) == 1, "over its limit for long"
        busy.clear()  # what it had was taken back
        children["w0"].look.ended_ns -= 60_000 * NS_PER_MS
        watch.look()
        assert sent[1:] == [9]
        del children["w0"]
        assert watch.look() > 0
