"""Bugs on purpose of what a start reads in the cells of a run that was killed: records that ended, and that no report has."""

from __future__ import annotations

from typing import Any

from rocketcrew.workers.cells import CHUNK_ID, HELD, STATE, UNREPORTED, CellView
from rocketcrew.workers.unreported import INDEX_MASK, Unreported, shown_by

from .parts import Parts
from .planted import SEVERAL, Planted
from .worker import SimWorker


class ShowsWhatIsHeld(Parts):
    """What comes before the record in hand counts as done, also what failed or has rows."""

    def shown_by(self, cell: CellView, counts_from: int) -> tuple[int, int] | None:
        copy = memoryview(bytearray(cell)).cast("Q")
        copy[HELD] &= ~INDEX_MASK
        return shown_by(copy, counts_from)


class ShowsTheRecordInHand(Parts):
    """The record in hand counts as done, too."""

    def shown_by(self, cell: CellView, counts_from: int) -> tuple[int, int] | None:
        copy = memoryview(bytearray(cell)).cast("Q")
        copy[STATE] += copy[STATE] > 0 and copy[UNREPORTED] > 0 and copy[CHUNK_ID] > 0
        return shown_by(copy, counts_from)


class _NeverCut(Unreported):
    def cut(self, offset: int | None) -> None:
        pass


class _NeverCuts(SimWorker):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unreported_cell = _NeverCut(self.cell)


class ShowsWhatWasReported(Parts):
    """What was reported of a chunk, failures too, is shown as ended until the chunk is over."""

    def worker(self, *args: Any) -> SimWorker:
        return _NeverCuts(*args) if args[1].script.order == "concurrent" else super().worker(*args)


PLAIN = {"order": "concurrent", "batch": 1, "slow": 0.1}
DIES_OFTEN = {
    "faults": {"kill member": 2, "refuse send-backs": 1}, "fault_rate": 0.03, "restart_ms": 50.0, "slow": 0.3,
    "chunk_messages_max": 16,
}  # fmt: skip

PLANTED_CELLS = {
    "cells show what is held": Planted(ShowsWhatIsHeld, 40, ("kill member",), SEVERAL | PLAIN),
    "cells show the record in hand": Planted(
        ShowsTheRecordInHand, 20, ("kill member",), SEVERAL | PLAIN | {"rows_never": True}
    ),
    "cells show what was reported": Planted(ShowsWhatWasReported, 20, (), SEVERAL | PLAIN | DIES_OFTEN),
}
