"""When a scripted worker reports what it has finished: at any moment, or when the real one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.workers.cells import UNREPORTED
from rocketcrew.workers.unreported import HELD_INTERVALS, REPORT_INTERVALS

if TYPE_CHECKING:
    from .worker import SimWorker, Work

SELDOM = 0.1


class ByChance:
    """What must hold holds whenever a report comes. What its cell shows it reports at the chunk's end, if that comes soon."""

    window_open = False
    """More of its messages may come before it has reported those of the last chunk."""

    def __init__(self, worker: SimWorker) -> None:
        self.worker = worker
        self.world = worker.world
        self.eager = worker.world.random.choice([0.2, 0.6, 1.0])
        """How often it reports between the messages of a chunk."""

    def begins(self) -> None:
        """A chunk is there."""

    def is_due(self, work: Work) -> bool:
        """Between two calls of the chunk, or after its last one."""
        if len(work.results) == work.count:
            return self.world.chance(self.eager) or self.world.chance(0.7)
        worker = self.worker
        seldom = 1.0 if worker.cell[UNREPORTED] == 0 or worker.unreported_cell.held else SELDOM
        return self.world.chance(self.eager * seldom)

    def holds_ms(self) -> float:
        """How long it keeps what it has while its inbox is empty."""
        return 0.0


class WhenDue(ByChance):
    """After the flush interval; later where the supervisor can see it or ask for it and more is to come (workers/runner.py),
    and rows, where the window is open, also while nothing comes (workers/worker.py)."""

    _due_ms = 0.0

    def begins(self) -> None:
        if not self.worker.pending():
            self._set_due()

    def _set_due(self) -> None:
        self._due_ms = self.world.now_ms + self.worker.member.script.report_after_ms

    def is_due(self, work: Work) -> bool:
        pending, late_ms = self.worker.pending(), self.world.now_ms - self._due_ms
        if not pending or late_ms < 0 or not self.worker.member.script.auto_commit:
            return False
        if self._may_wait(late_ms, more=len(work.results) < work.count and pending[0] is work):
            self.world.note(f"{self.worker.member.script.order}: a report was held")
            return False
        self._set_due()
        return True

    def _may_wait(self, late_ms: float, *, more: bool) -> bool:
        worker = self.worker
        interval_ms, shown = worker.member.script.report_after_ms, worker.unreported_cell
        if shown.held:
            return (more or self.window_open) and shown.offered and late_ms < (HELD_INTERVALS - 1) * interval_ms
        return more and worker.cell[UNREPORTED] != 0 and late_ms < (REPORT_INTERVALS - 1) * interval_ms

    def holds_ms(self) -> float:
        worker = self.worker
        has_rows = any(
            rows for work in worker.pending() for _, rows in work.results[work.reported : worker.may_report(work)]
        )
        if not self.window_open or not has_rows or self._due_ms <= self.world.now_ms:
            return 0.0
        self.world.note("rows were held for those of others")
        return self._due_ms - self.world.now_ms + 0.01
