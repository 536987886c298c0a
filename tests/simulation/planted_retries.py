"""Bugs on purpose of what becomes of failed messages: retries, dead letters, and whom deaths are charged to."""

from __future__ import annotations

from rocketcrew.supervisor.core.actions import JournalDone, SendBack
from rocketcrew.supervisor.core.charges import Charges, Left
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.dispatching import Dispatching
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.retries import Retries
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.workers.failures import Failure, Mode

from .parts import Parts
from .planted import ONE_SLOT, CoreParts, Planted
from .script import CLOSED


class DropsRefused(CoreParts):
    """A send-back that the broker refused counts as sent."""

    class retries_class(Retries):
        def sent_back(self, handle: int, chunk_id: int, index: int, accepted: bool, now: float) -> None:
            super().sent_back(handle, chunk_id, index, True, now)


class LeavesTheEndToItsBroker(CoreParts):
    """A message whose attempts are used up goes back as one to be retried: of attempts made here its broker knows nothing."""

    class retries_class(Retries):
        def send_back(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
            before = len(self.s.out)
            super().send_back(pq, chunk, index)
            for action in self.s.out[before:]:
                if isinstance(action, SendBack) and action.mode is Mode.SEND_BACK:
                    action.last = False


class RunsOnHere(CoreParts):
    """What no broker takes runs here for ever, though its attempts are used up."""

    class retries_class(Retries):
        def _runs_again(self, pq: ProcessQueue, failure: Failure) -> bool:
            if failure.mode is Mode.SEND_BACK:
                failure.last = False
            return super()._runs_again(pq, failure)


class ForgetsTheFailure(CoreParts):
    """A message that runs again because no broker took it back is not a failed one any more: commits pass it."""

    class retries_class(Retries):
        def _run(self, chunk: Chunk, index: int, failure: Failure) -> None:
            super()._run(chunk, index, failure)
            pq = self.s.queues[chunk.handle]
            assert chunk.failed is not None
            del chunk.failed[index]
            pq.unfinished -= 1
            pq.ledger.finish(chunk.begin_of(index), chunk.offsets[index] + 1)
            self._settled(pq, chunk)


class ForgetsTheCharge(CoreParts):
    """What cost a worker its life when it ran again here is charged with nothing as soon as its send-back is asked for."""

    class retries_class(Retries):
        def rerun_died(self, pq: ProcessQueue, shadow: Chunk, worker: Worker) -> None:
            assert shadow.origin is not None
            self._dispatching.quarantine.finished(pq, *shadow.origin, sent_back=True)
            super().rerun_died(pq, shadow, worker)


class DropsSilently(CoreParts):
    """A failed message of a broadcasting member is over before anybody was notified."""

    class retries_class(Retries):
        def send_back(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
            if self.s.config.broadcasting:
                self.s.out.append(JournalDone(pq.mq, chunk.begin_of(index), chunk.offsets[index] + 1, "", 0))
            super().send_back(pq, chunk, index)


class TimesOutAtJavasLevel(CoreParts):
    """What was stopped at its time limit goes back at level 3, whatever level is configured."""

    class retries_class(Retries):
        def _fail(self, pq: ProcessQueue, chunk: Chunk, failures: list[Failure]) -> None:
            for failure in failures:
                failure.level = 3
            super()._fail(pq, chunk, failures)


class ChargesAllOfARun(Parts):
    """The death of a whole run is charged to everything that was in hand."""

    def member_died(self, charges: Charges, left: list[Left]) -> None:
        for one in left:
            charges.member_died([one], stopping=False)


class NeverCareful(Parts):
    """What was in hand when whole runs died is not kept apart from the others afterwards."""

    def member_died(self, charges: Charges, left: list[Left]) -> None:
        super().member_died(charges, left)
        for noted in charges.noted.values():
            noted.runs = 1


class TwoAtATime(CoreParts):
    """What may have killed whole runs is handed out beside others."""

    class dispatching_class(Dispatching):
        def _give_out(self, held_back: list[Chunk], refused: list[ProcessQueue]) -> None:
            noted, self.s.charges.noted = self.s.charges.noted, {}
            super()._give_out(held_back, refused)
            self.s.charges.noted = noted


KILLS_RUNS = ONE_SLOT | {
    "workers": 3, "run_deadly": 12, "deadly": 0, "slow": 0.15, "order": "concurrent", "chunk_messages_max": 3
}  # fmt: skip
OFTEN_CLOSED = ONE_SLOT | {"order": "concurrent", "faults": {CLOSED: 1}, "rows_always": False}
PLANTED_RETRIES = {
    "all in hand of a dead run are charged": Planted(ChargesAllOfARun, 20, ("kill member",), KILLS_RUNS),
    "what kills whole runs is never alone": Planted(NeverCareful, 40, (), KILLS_RUNS),
    "what kills whole runs runs beside others": Planted(TwoAtATime, 40, (), KILLS_RUNS),
    "drop without a word": Planted(DropsSilently, 10, (), ONE_SLOT | {"broadcasting": True}),
    "drop on a refused send-back": Planted(DropsRefused, 40),
    "a dead letter that its broker retries": Planted(LeavesTheEndToItsBroker, 10, (CLOSED,), OFTEN_CLOSED),
    "attempts here beyond the last": Planted(RunsOnHere, 10, (CLOSED,), OFTEN_CLOSED),
    "commit past a local retry": Planted(ForgetsTheFailure, 40, ("refuse send-backs",), {"slow": 0.15}),
    "charge forgotten when a retry here dies": Planted(
        ForgetsTheCharge,
        100,
        ("refuse send-backs",),
        ONE_SLOT | {"order": "concurrent", "deadly": 25, "slow": 0.0, "fault_rate": 0.05},
    ),
    "a time-out ignores the configured level": Planted(
        TimesOutAtJavasLevel, 20, (), {"order": "concurrent", "deadly": 25, "hard_limit_ms": 500, "delay_level": 5}
    ),
}
