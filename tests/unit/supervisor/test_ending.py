"""A worker that has died: what it had finished counts, and what it reported wrongly does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.states import WorkerState
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.worker_pool import Pool
from rocketcrew.workers.cells import CELLS_FILE, CHUNK_ID, STARTED_NS, STATE, CellFile, CellView
from rocketcrew.workers.claims import find_barrier
from rocketcrew.workers.failures import asked
from rocketcrew.workers.unreported import Unreported

from .conftest import Bench
from .test_starting import Process, Waiting, until, with_pool

RECORDS, IN_HAND = 8, 5

pytestmark = pytest.mark.skipif(find_barrier() is None, reason="this system has no membarrier: no cell is read")


def dies(
    folder: Path, before: Callable[[Pool, Bench, Child, Chunk, Unreported], None]
) -> tuple[list[tuple[int, int]], Any]:
    """A worker that runs record IN_HAND of a chunk dies, after `before`: what is taken for done, and its record."""
    launcher, done, records = Waiting(), list[tuple[int, int]](), list[Any]()

    def acted(pool: Pool, bench: Bench) -> None:
        for action in bench.take(act.KillWorker):
            pool.performs[act.KillWorker](action)
        done.extend((entry.start, entry.end) for entry in bench.take(act.JournalDone))

    async def use(pool: Pool, bench: Bench) -> None:
        pool.run_staffing()
        ((new, launched, _),) = launcher.launches
        process = Process()
        launched(process)
        child = pool.children[new.worker_id]
        bench.core.handle(ev.WorkerReady(new.worker_id), bench.now)
        records.append(bench.core.state.workers[new.worker_id])
        (handle,) = bench.open(0)
        bench.core.state.sizer.tail_us = 100.0
        bench.found(handle, range(RECORDS))
        (chunk,) = bench.dispatched()
        cells = CellFile(folder / CELLS_FILE, 4)
        words: CellView = cells.view(child.cell_slot)
        unreported = Unreported(words)
        unreported.offer()
        words[CHUNK_ID], words[STARTED_NS], words[STATE] = chunk.chunk_id, 5, IN_HAND + 1
        before(pool, bench, child, chunk, unreported)
        words.release()
        cells.close()
        process.kill()
        await until(lambda: not pool.children)

    with_pool(folder, 1, launcher, use, acted=acted)
    return done, records[0]


def test_what_it_had_finished_before_its_call_counts(tmp_path: Path) -> None:
    done, worker = dies(tmp_path, lambda *_: None)
    assert done == [(0, IN_HAND)]
    assert worker.state is WorkerState.GONE


def test_one_whose_last_report_cannot_be_is_not_believed(tmp_path: Path) -> None:
    """It is read when the process is dead, and nobody has acted upon it yet."""

    def lies(_pool: Pool, bench: Bench, child: Child, chunk: Chunk, unreported: Unreported) -> None:
        failures = [(3, asked(3, "boom"))]
        report = ev.Reported(child.worker_id, chunk.chunk_id, 2, 2, 0, 10, 10, 0, failures, 0)
        bench.core.handle(report, bench.now)
        unreported.sent(1)
        child.reports = 1

    done, _ = dies(tmp_path, lies)
    assert done == []


def test_a_death_that_cannot_be_examined_is_told_all_the_same(tmp_path: Path) -> None:
    def cannot_be_read(_pool: Pool, bench: Bench, _child: Child, _chunk: Chunk, _unreported: Unreported) -> None:
        def raises(*_: object, **__: object) -> None:
            raise RuntimeError("boom")

        core: Any = bench.core
        core.settling.cell_read = raises

    with capture_logs() as logs:
        done, worker = dies(tmp_path, cannot_be_read)
    assert done == []
    assert worker.state is WorkerState.GONE
    assert "death_not_examined" in [log["event"] for log in logs]
