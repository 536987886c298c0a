"""The watch over time limits: it looks at those that have something, and at those that it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from structlog.testing import capture_logs

from rocketcrew.conf.units import NS_PER_MS
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.supervisor.core.states import WorkerState
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.watching import CellReader, Watch, is_held
from rocketcrew.workers.cells import CHUNK_ID, HARD_NS, STARTED_NS, STATE, CellFile
from rocketcrew.workers.unreported import Unreported

from .test_scale import FLAT, steps

if TYPE_CHECKING:
    from .conftest import Bench


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
        return Watch(cells, children, lambda: busy, 60_000, lambda worker: {"unreported": worker.worker_id})

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


STALL_NS = 60_000 * NS_PER_MS


def stood_still(children: dict[str, Child], **for_ns: int) -> None:
    """So long these have not moved, as far as was seen."""
    for name, ns in for_ns.items():
        children[name].look.beats, children[name].look.beat_ns = 0, time.monotonic_ns() - ns
        children[name].look.looked_ns = time.monotonic_ns()


def test_who_stands_still_alone_is_told_from_those_that_the_machine_holds(tmp_path: Path) -> None:
    with crew(tmp_path, 3) as (watch, children, _, busy):
        busy.update(children)
        watch.look()
        stood_still(children, w0=STALL_NS, w1=STALL_NS // 4)
        with capture_logs() as said:
            watch.look()
        assert children["w0"].look.stalled
        assert not children["w0"].look.by_machine
        assert [(line["event"], line["worker"], line["unreported"]) for line in said] == [
            ("worker_stalled", "w0", "w0")
        ]
        assert not children["w1"].look.stalled
    with crew(tmp_path, 2) as (watch, children, _, busy):
        busy.update(children)
        watch.look()
        stood_still(children, w0=STALL_NS, w1=STALL_NS * 3 // 4)
        watch.look()
        assert children["w0"].look.by_machine
        assert not children["w1"].look.stalled
        del children["w0"]  # it is gone
        stood_still(children, w1=STALL_NS)
        watch.look()
        assert children["w1"].look.by_machine, "as the other did just before"


def test_a_process_that_a_signal_has_stopped_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_held(os.getpid())
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_held(child.pid) is (sys.platform == "linux")
    finally:
        child.kill()
        child.communicate()
    assert not is_held(child.pid)


def test_a_call_is_read_once_however_long_it_takes(make: Callable[..., Bench], tmp_path: Path) -> None:
    """Each reading interrupts all processors twice, and while one call goes on nothing more ends. The next call is read."""
    barriers: list[None] = []

    def barrier() -> bool:
        barriers.append(None)
        return True

    bench = make(chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("w0")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, range(4))
    chunk = bench.dispatched()[0]

    def done() -> list[tuple[int, int]]:
        return [(entry.start, entry.end) for entry in bench.take(act.JournalDone)]

    with crew(tmp_path, 1) as (_, children, cells, _), cells.view(0) as words:

        async def made() -> CellReader:
            return CellReader(bench.core, cells, children, barrier)

        reader = asyncio.run(made())
        unreported = Unreported(words)
        unreported.offer()
        words[CHUNK_ID], words[STARTED_NS], words[STATE] = chunk.chunk_id, 5, 0 + 1
        reader.read(act.ReadCell("w0", (chunk.chunk_id, 0)))  # the first that it was given: nothing has ended
        assert (done(), len(barriers)) == ([], 0)
        words[CHUNK_ID], words[STARTED_NS], words[STATE] = chunk.chunk_id, 10, 1 + 1
        for _ in range(3):
            reader.read(act.ReadCell("w0", (chunk.chunk_id, 0)))
        assert (done(), len(barriers)) == ([(0, 1)], 2)
        words[STARTED_NS], words[STATE] = 20, 2 + 1
        for _ in range(3):
            reader.read(act.ReadCell("w0"))
        assert (done(), len(barriers)) == ([(1, 2)], 4)
        unreported.hold(chunk.chunk_id, 2)
        unreported.sent(1)  # a report that was not read: what is found is not taken, and is looked for again
        words[STARTED_NS], words[STATE] = 30, 3 + 1
        for _ in range(2):
            reader.read(act.ReadCell("w0"))
        assert (done(), len(barriers)) == ([], 8)
        children["w0"].reports += 1
        for _ in range(2):
            reader.read(act.ReadCell("w0"))
        assert (done(), len(barriers)) == ([(2, 3)], 10)


def test_what_a_dead_worker_had_finished_before_its_call_is_read(make: Callable[..., Bench], tmp_path: Path) -> None:
    """It runs no second time. Rows and failures only a report could have told, and one that lied is not believed."""

    def done_by(held: int | None, *, lies: bool = False) -> list[tuple[int, int]]:
        bench = make(chunk_messages_max=4)
        (handle,) = bench.open(0)
        bench.worker("w0")
        bench.core.state.sizer.tail_us = 100.0
        bench.found(handle, range(4))
        chunk = bench.dispatched()[0]
        with crew(tmp_path, 1) as (_, children, cells, _), cells.view(0) as words:

            async def made() -> CellReader:
                return CellReader(bench.core, cells, children, lambda: True)

            unreported = Unreported(words)
            unreported.offer()
            if held is not None:
                unreported.hold(chunk.chunk_id, held)
            words[CHUNK_ID], words[STARTED_NS], words[STATE] = chunk.chunk_id, 5, 2 + 1
            child = children["w0"]
            child.worker.state = WorkerState.KILLED if lies else WorkerState.READY
            asyncio.run(made()).read_dead(child)
        return [(entry.start, entry.end) for entry in bench.take(act.JournalDone)]

    assert done_by(None) == [(0, 2)]
    assert done_by(1) == [(0, 1)]
    assert done_by(0) == []
    assert done_by(None, lies=True) == []
