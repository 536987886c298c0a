"""Bugs on purpose of queues that are moved: resets that a broker pushes once, and that nobody commits."""

from __future__ import annotations

from collections.abc import Mapping

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.process_queue import PulledQueue
from rocketcrew.supervisor.core.states import QueueEvent, QueueState

from .planted import ONE_SLOT, CoreParts, Planted
from .script import ANEW


class LeavesItToNobody(Assigning):
    """A reset of a queue that drains is its new owner's, though it drains to be opened here again."""

    def reset(self, offsets: Mapping[MessageQueue, int], now: float) -> None:
        for q in self.s.pulled.values():
            q.ours = q.ours and q.move is not None
        super().reset(offsets, now)


class CommitsOnce(Assigning):
    """A reset is committed when the queue ends at its deadline, and whatever the broker says to that is heard by nobody."""

    def _end(self, q: PulledQueue, event: QueueEvent, now: float) -> None:
        self._moves.pop(q.pq.mq, None)
        super()._end(q, event, now)


class DropsItUnopened(Assigning):
    """A reset of a queue that is being opened is dropped: it begins where the broker has said before."""

    def reset(self, offsets: Mapping[MessageQueue, int], now: float) -> None:
        opening = {mq for mq, pq in self.s.by_mq.items() if pq.state is QueueState.OPENING}
        super().reset({mq: offset for mq, offset in offsets.items() if mq not in opening}, now)


class LeavesUnopened(Assigning):
    """A stop owes nothing of queues that are not open: a reset of one of them is dropped."""

    def stop(self, now: float) -> None:
        self._moves.clear()
        super().stop(now)


class LeavesResetsToNobody(CoreParts):
    assigning_class = LeavesItToNobody


class CommitsResetsOnce(CoreParts):
    assigning_class = CommitsOnce


class DropsResetsUnopened(CoreParts):
    assigning_class = DropsItUnopened


class StopsBeforeResets(CoreParts):
    assigning_class = LeavesUnopened


RESETS = ("reset back", "reset forward")
PUSHED = ONE_SLOT | {"pushes_resets": True}

PLANTED_MOVES = {
    "a reset of a queue that drains is dropped": Planted(
        LeavesResetsToNobody, 40, (*RESETS, ANEW), PUSHED | {"slow": 0.15}
    ),
    "a reset is committed once": Planted(
        CommitsResetsOnce, 40, (*RESETS, "refuse commits", "stall broker"), PUSHED | {"slow": 0.15}
    ),
    "a reset of a queue that opens is dropped": Planted(
        DropsResetsUnopened, 40, (*RESETS, ANEW, "slow network"), PUSHED
    ),
    "a stop drops a reset of a queue that is not open": Planted(
        StopsBeforeResets, 40, (*RESETS, ANEW, "stop member"), PUSHED | {"slow": 0.15}
    ),
}
