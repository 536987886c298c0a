"""Bugs on purpose of what becomes of a worker's death: whom it is charged to, and what a suspect may still do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rocketcrew.supervisor.core.blame import Blamed, Death, End, Verdict
from rocketcrew.supervisor.core.charges import Charge
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.decisions import DISPATCHING, Core
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.quarantine import Quarantine
from rocketcrew.supervisor.core.slab import Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.supervisor.core.states import WorkerState

from .disk import Folder
from .parts import Parts
from .planted import ONE_SLOT, CoreParts, Planted
from .script import STALLS


class QuarantineParts(CoreParts):
    """Parts with another quarantine."""

    quarantine_class: type[Quarantine] = Quarantine

    def core(self, config: CoreConfig, slab: Slab, view: bytearray) -> Core:
        quarantine: dict[str, Any] = {"quarantine_class": self.quarantine_class}
        self.dispatching_class = type("PlantedDispatching", (DISPATCHING[config.order],), quarantine)
        return super().core(config, slab, view)


class ChargesFirst(QuarantineParts):
    """A death is charged to the first message that was not reported, not to the one in hand."""

    class quarantine_class(Quarantine):
        def _find(self, worker: Worker, death: Death) -> Blamed | None:
            blamed = super()._find(worker, death)
            if blamed is not None and blamed.culprit is not None:
                blamed.culprit = worker.in_flight[blamed.chunk_id].reported
            return blamed


class ChargesTimeOuts(QuarantineParts):
    """A call that was stopped at its time limit counts as a death."""

    class quarantine_class(Quarantine):
        def judge(self, worker: Worker, death: Death) -> None:
            super().judge(worker, replace(death, end=End.CRASHED) if death.end is End.TIME_LIMIT else death)


class NotAlone(QuarantineParts):
    """A suspect goes to the least loaded worker, whatever that has in hand."""

    class quarantine_class(Quarantine):
        def run(self) -> None:
            ready = [worker for worker in self.s.workers.values() if worker.state is WorkerState.READY]
            while self.s.quarantine and ready:
                self._dispatch(min(ready, key=lambda worker: len(worker.in_flight)), self.s.quarantine.popleft())


class OnceMore(QuarantineParts):
    """The limit is passed by one."""

    class quarantine_class(Quarantine):
        def exhausted(self, pq: ProcessQueue, chunk: Chunk) -> bool:
            charge = self.s.charges.get(pq.mq, chunk.offsets[0])
            return (
                charge is not None and charge.deaths > self.s.config.max_worker_deaths and super().exhausted(pq, chunk)
            )


class ForgetsTooEarly(QuarantineParts):
    """A dead letter is charged with nothing any more before a broker has accepted it."""

    class quarantine_class(Quarantine):
        def exhausted(self, pq: ProcessQueue, chunk: Chunk) -> bool:
            gone = super().exhausted(pq, chunk)
            if gone:
                self.finished(pq, chunk, 0, sent_back=False)
            return gone


class ForgetsCounts(Parts):
    """A restart does not read what deaths were counted."""

    def read_charges(self, folder: Folder) -> str:
        return ""


class SparesAll(QuarantineParts):
    """Where no call ran at a death, nobody is suspected."""

    class quarantine_class(Quarantine):
        def _suspect_all(self, worker: Worker, verdict: Verdict) -> Blamed | None:
            del worker, verdict
            return None


class SparesStalls(QuarantineParts):
    """Who stood still while it wrote rows is replaced, and what it had comes again as before."""

    class quarantine_class(Quarantine):
        def judge(self, worker: Worker, death: Death) -> None:
            super().judge(worker, replace(death, end=End.OURS) if death.end is End.STALLED else death)


class LastBesideOthers(QuarantineParts):
    """What others may have had of the memory makes a dead letter."""

    class quarantine_class(Quarantine):
        def _last_alone(self, charge: Charge) -> None:
            del charge


class ChargesTheMachine(QuarantineParts):
    """A message is charged with a stand-still although other workers stood still, too."""

    class quarantine_class(Quarantine):
        def judge(self, worker: Worker, death: Death) -> None:
            super().judge(worker, replace(death, end=End.STALLED) if death.end is End.MACHINE else death)


PLANTED_DEATHS = {
    "death charged to the first unreported": Planted(
        ChargesFirst, 20, ("kill worker",), {"deadly": 25, "chunk_messages_max": 8, "handler_us": 50}
    ),
    "time-out charged as a death": Planted(ChargesTimeOuts, 20, (), {"deadly": 25, "hard_limit_ms": 500}),
    "suspect not alone": Planted(NotAlone, 20, (), {"deadly": 25}),
    "limit of deaths passed by one": Planted(OnceMore, 20, (), {"deadly": 25}),
    "dead letter forgotten before it is accepted": Planted(
        ForgetsTooEarly, 120, ("refuse send-backs", "kill member"), ONE_SLOT | {"deadly": 25}
    ),
    "deaths not counted across a restart": Planted(
        ForgetsCounts, 60, ("kill member", "kill member in a step"), ONE_SLOT | {"deadly": 25}
    ),
    "a death between calls is nobody's": Planted(SparesAll, 20, (), {"deadly": 25}),
    "a stand-still is nobody's": Planted(SparesStalls, 20, (), {"deadly": 25}),
    "a dead letter for want of memory, beside others": Planted(LastBesideOthers, 20, (), {"deadly": 25}),
    "a machine that stands still is charged to a message": Planted(
        ChargesTheMachine, 120, (STALLS,), {"deadly": 25, "workers": 3, "slow": 0.0, "order": "concurrent"}
    ),
}
