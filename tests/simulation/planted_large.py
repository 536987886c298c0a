"""Bugs on purpose that only worlds of large chunks can find, see large_chunks.py."""

from __future__ import annotations

from rocketcrew.supervisor.core.actions import UnlockQueues
from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.process_queue import ProcessQueue

from .disk import Segment
from .large_chunks import LARGE, LEAVING, calls_of
from .member import SimMember
from .parts import Parts
from .planted import COMING_AND_GOING, CoreParts, Planted
from .reporting import WhenDue
from .worker import SimWorker
from .world import World


class UnlocksWhatRuns(Assigning):
    """Messages that workers are asked to give back count as given back, though one of them runs: the lock is given away."""

    def cut_short(self, pq: ProcessQueue, now: float) -> None:
        super().cut_short(pq, now)
        if pq.cut_short and pq.open:
            self.s.out.append(UnlockQueues((pq.mq,)))


class UnlocksWhatIsRecalled(CoreParts):
    assigning_class = UnlocksWhatRuns


class _DropsWhatIsHeld(WhenDue):
    def begins(self) -> None:
        for work in self.worker.pending():
            work.reported = self.worker.may_report(work)
        super().begins()


class DropsWhatIsHeld(Parts):
    """A chunk that comes while the outcomes of the last one are held takes their place."""

    def worker(
        self, world: World, member: SimMember, worker_id: str, salvage_of: list[str], salvage: list[Segment]
    ) -> SimWorker:
        worker = super().worker(world, member, worker_id, salvage_of, salvage)
        worker.reporting = _DropsWhatIsHeld(worker)
        return worker


SIDE_BY_SIDE = LARGE | calls_of(1) | {"order": "concurrent", "chunk_target_us": 10_000, "slow": 0.05, "batch": 1}

PLANTED_LARGE = {
    "what is recalled counts as given back": Planted(
        UnlocksWhatIsRecalled, 20, COMING_AND_GOING, LEAVING | {"order": "queue"}
    ),
    "what is held is dropped": Planted(DropsWhatIsHeld, 10, (), SIDE_BY_SIDE),
}
