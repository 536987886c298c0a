"""Bugs on purpose in what keeps an order; see planted.py."""

from __future__ import annotations

from rocketcrew.supervisor.lanes import Lanes
from rocketcrew.supervisor.orderly import Orderly
from rocketcrew.supervisor.process_queue import ProcessQueue
from rocketcrew.supervisor.queue_order import Lane

from .ordered_worker import OrderedSimWorker
from .parts import Parts
from .planted import COMING_AND_GOING, SEVERAL, CoreParts, Planted
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


class StartsUnlocked(CoreParts):
    """A queue is opened and started whether its lock is there or not."""

    class dispatching_class(Orderly):
        def may_start(self, pq: ProcessQueue | None) -> bool:
            if pq is not None:
                pq.locked, pq.locked_until = True, float("inf")
            return super().may_start(pq)


class GoesOnBehind(Parts):
    """A worker goes on with its chunk behind a message that failed."""

    class ordered_worker_class(OrderedSimWorker):
        def after_failure(self, work: Work, index: int, level: int) -> None:
            del index, level
            self.rows_of_it = 0
            self._ran_one(work)
            self._go_on(work)


PLANTED_ORDER = {
    "a queue runs beside itself": Planted(StartsBeside, 20, ("kill worker",), {"order": "queue", "auto_commit": True}),
    "a key runs beside what it holds": Planted(KeysBeside, 40, (), {"order": "key", "keys": 1, "key_function": False}),
    "a queue without its lock is started": Planted(
        StartsUnlocked,
        120,
        (*COMING_AND_GOING, "kill broker"),
        SEVERAL | {"order": "queue", "auto_commit": True, "slow": 0.15},
    ),
    "a worker goes on behind a failure": Planted(GoesOnBehind, 40, (), {"order": "queue", "auto_commit": True}),
}
