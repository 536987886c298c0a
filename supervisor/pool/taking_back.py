"""Carries out what reclaiming.py wants: settles with a worker, over its cell, what it will run of its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from ...workers.cells import CellFile
from ...workers.claims import find_barrier, take_back
from ..core.actions import Reclaim
from ..core.decisions import Core
from .pool_member import Member

log = structlog.get_logger("rocketcrew.pool")


class TakingBack:
    """Of all workers; `members` by worker id. Where the system has no barrier, nothing is ever taken back."""

    def __init__(self, core: Core, cells: CellFile, members: Mapping[str, Member]) -> None:
        self._core = core
        self._cells = cells
        self._members = members
        self._barrier = find_barrier()
        self._loop = asyncio.get_running_loop()

    def take(self, action: Reclaim) -> None:
        """Take back what it has not claimed; without effect when it is gone or went on in this moment."""
        member = self._members.get(action.worker_id)
        if member is None or self._barrier is None:
            return
        cell = self._cells.view(member.cell_slot)
        found = take_back(cell, member.chunks_sent, self._barrier)
        if found is None:
            return
        unbegun, claimed = found
        log.debug("taken_back", worker=member.worker_id, chunks=unbegun, records_kept=claimed)
        self._core.reclaimed(action.worker_id, action.chunk_ids, unbegun, claimed, self._loop.time())
