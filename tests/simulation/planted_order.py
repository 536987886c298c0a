"""Bugs on purpose in what keeps an order; see planted.py."""

from __future__ import annotations

from rocketcrew.supervisor.core.blame import Death
from rocketcrew.supervisor.core.lanes import Lanes
from rocketcrew.supervisor.core.orderly import Orderly
from rocketcrew.supervisor.core.process_queue import Lane, ProcessQueue
from rocketcrew.supervisor.core.settling import Settling
from rocketcrew.workers.cells import KEYS_OF

from .ordered_worker import OrderedSimWorker
from .parts import Parts
from .planted import COMING_AND_GOING, SEVERAL, CoreParts, Planted
from .script import STALLS
from .worker import Work


class StartsBeside(CoreParts):
    """A queue goes on while another chunk of it is in a worker's hands, or its worker's death is not salvaged yet."""

    class dispatching_class(Orderly):
        def offer(self, lane: Lane) -> None:
            lane.in_hand.clear()
            super().offer(lane)


class KeysBeside(CoreParts):
    """A key goes on while a message of it is held, or on its way back."""

    class dispatching_class(Lanes):
        def offer(self, lane: Lane) -> None:
            lane.suspended, lane.sending = 0, -1
            super().offer(lane)


class ForgetsTheQuestion(CoreParts):
    """A worker that is asked for keys, and has nothing else, counts as idle."""

    class dispatching_class(Lanes):
        def asks(self, worker_id: str) -> bool:
            del worker_id
            return False


class BlamesEveryQuestion(CoreParts):
    """A death over one queue's key counts against the first message of every queue that the worker was asked for."""

    class dispatching_class(Lanes):
        def worker_died(self, worker_id: str, death: Death) -> None:
            if death.in_hand is not None and death.in_hand.chunk_id >= KEYS_OF:
                for handle in [handle for handle, asked in self._asked.items() if asked == worker_id]:
                    pq = self.s.queues.get(handle)
                    if pq is None or not pq.waiting:
                        continue
                    run = pq.waiting[0]
                    _, deaths = self._deadly.get(handle, (0, 0))
                    self._deadly[handle] = run.offsets[run.at], deaths + 1


class StartsUnlocked(CoreParts):
    """A queue is opened and started whether its lock is there or not."""

    class dispatching_class(Orderly):
        def may_start(self, pq: ProcessQueue | None) -> bool:
            if pq is not None:
                pq.locked, pq.locked_until = True, float("inf")
            return super().may_start(pq)


class GoesOnBehind(Parts):
    """A worker goes on with its chunk after a message that failed."""

    class ordered_worker_class(OrderedSimWorker):
        def after_failure(self, work: Work, index: int, level: int) -> None:
            del index, level
            self.rows_of_it = 0
            self._ran_one(work)
            self._go_on(work)


class WaitsForTheCall(CoreParts):
    """A worker that keeps an order reports between two calls only."""

    class settling_class(Settling):
        def cell_read(
            self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float, wall_ms: int = 0
        ) -> None:  # fmt: skip
            pass


PLANTED_ORDER = {
    "what ended in order waits for a long call": Planted(
        WaitsForTheCall, 40, (), {"order": "queue", "auto_commit": True, "slow": 0.3, "workers": 1, "deadly": 0}
    ),
    "a queue runs beside itself": Planted(StartsBeside, 20, ("kill worker",), {"order": "queue", "auto_commit": True}),
    "a key runs beside what it holds": Planted(KeysBeside, 40, (), {"order": "key", "keys": 1, "key_function": False}),
    "a worker that owes keys counts as idle": Planted(
        ForgetsTheQuestion, 60, (STALLS,), {"order": "key", "key_function": True}
    ),
    "a death over a key counts against all queues": Planted(
        BlamesEveryQuestion, 60, (), {"order": "key", "key_function": True, "deadly": 25, "queues": 4, "workers": 1}
    ),
    "a queue without its lock is started": Planted(
        StartsUnlocked,
        120,
        (*COMING_AND_GOING, "kill broker"),
        SEVERAL | {"order": "queue", "auto_commit": True, "slow": 0.15},
    ),
    "a worker goes on behind a failure": Planted(GoesOnBehind, 40, (), {"order": "queue", "auto_commit": True}),
}
