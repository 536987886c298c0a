"""What the supervisor does over the cells of workers: settles with one what it will run of its chunks (reclaiming.py),
and reads what it has finished while a call goes on (workers/unreported.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from ...workers.cells import CellFile
from ...workers.claims import find_barrier, take_back
from ...workers.reporter import REPORT_SIGNAL
from ...workers.unreported import look
from ..core import events as ev
from ..core.actions import AskReport, ReadCell, Reclaim
from ..core.decisions import Core
from .child import Child

log = structlog.get_logger("rocketcrew.pool")


class TakingBack:
    """Of all workers; `children` by worker id. Where the system has no barrier, nothing is ever taken back or read off."""

    def __init__(self, core: Core, cells: CellFile, children: Mapping[str, Child]) -> None:
        self._core = core
        self._cells = cells
        self._children = children
        self._barrier = find_barrier()
        self._loop = asyncio.get_running_loop()

    def take(self, action: Reclaim) -> None:
        """Take back what it has not claimed; without effect when it is gone or went on in this moment."""
        child = self._children.get(action.worker_id)
        if child is None or self._barrier is None:
            return
        cell = self._cells.view(child.cell_slot)
        found = take_back(cell, child.chunks_sent, self._barrier)
        if found is None:
            return
        unbegun, claimed = found
        log.debug("taken_back", worker=child.worker_id, chunks=unbegun, records_kept=claimed)
        self._core.handle(ev.Reclaimed(action.worker_id, action.chunk_ids, unbegun, claimed), self._loop.time())

    def read(self, action: ReadCell) -> None:
        """Read what it has finished; without effect when it runs nothing, or a report of it is on its way."""
        child = self._children.get(action.worker_id)
        if child is None or self._barrier is None:
            return
        seen = look(self._cells.view(child.cell_slot), child.reports, self._barrier)
        if seen is not None:
            self._core.handle(ev.CellRead(action.worker_id, seen.chunk_id, seen.offset, seen.held), self._loop.time())

    def ask(self, action: AskReport) -> None:
        """Wake its reporter's thread."""
        child = self._children.get(action.worker_id)
        if child is not None:
            child.process.kill(REPORT_SIGNAL)

    def seal(self, child: Child) -> None:
        """It is asked to seal, by a packet that it reads after its call: its thread shall not wait for that."""
        if self._cells.want_seal(child.cell_slot):
            child.process.kill(REPORT_SIGNAL)
