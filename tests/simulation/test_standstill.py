"""A member stands still for longer than brokers wait for it, or is cut off: another one goes on with its queues, and it finds
that out when it is back."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pytest

from .member import SimMember
from .parts import Parts
from .simulation import Simulation

STILL_MS = 130_000
BEFORE_MS = 1_500
CUT_OFF_MS = 6_000
"""Longer than its locks hold."""
IN_HAND_MAX = 40
"""Messages that it had pulled, or that were on their way to it."""
QUIET: dict[str, Any] = {
    "members": 2, "members_max": 2, "queues": 4, "messages_max": 400, "faults": {}, "fault_rate": 0.0, "subscription": "*",
    "slow": 0.0, "refusing": 0.0, "deadly": 0, "hard_limit_ms": 0, "topic_limit": 0, "rate": 0.0,
    "commit_after_loaded": False, "late_links": 0.0, "broadcasting": False, "batch": 1, "order": "concurrent",
}  # fmt: skip
ALL_SUCCEED = {"rows_always": False, "rows_never": True, "auto_commit": True}


class Away(Simulation):
    """Nothing fails, but for one member that is away while messages come."""

    away_ms: float

    @abstractmethod
    def leaves(self, member: SimMember) -> None:
        """For so long."""

    def play(self) -> int:
        """How many messages ran again since it went on."""
        for _ in range(2):
            self.start_member()
        self.world.after(1, self._produce)
        self.world.after(300, self._load)
        self._until(self.world.now_ms + BEFORE_MS)
        one = next(member for member in self.living() if member.core.state.pulled)
        self.leaves(one)
        self._until(self.world.now_ms + self.away_ms - 1)
        before = self.truth.repeats()
        self._settle()
        return self.truth.repeats() - before

    def _until(self, end_ms: float) -> None:
        while self.world.now_ms < end_ms:
            self._step()


class Standstill(Away):
    away_ms = STILL_MS

    def leaves(self, member: SimMember) -> None:
        member.stands_still(STILL_MS)


class CutOff(Away):
    away_ms = CUT_OFF_MS

    def leaves(self, member: SimMember) -> None:
        member.edge.cut_off(CUT_OFF_MS)


@pytest.mark.parametrize("seed", [1, 6, 12])
def test_no_offset_goes_back_when_it_goes_on(seed: int) -> None:
    """It committed the offset of before: all that the other had finished ran again."""
    simulation = Standstill(seed, Parts((), QUIET))
    assert simulation.play() <= IN_HAND_MAX
    assert simulation.world.happened["the broker's offset went back"] == 0


@pytest.mark.parametrize(("order", "seed"), [("concurrent", 1), ("queue", 1), ("key", 5)])
def test_what_others_did_while_it_was_cut_off_stays(order: str, seed: int) -> None:
    """In order it got its locks back, and ran what it had pulled before: old messages after the newer ones."""
    simulation = CutOff(seed, Parts((), QUIET | {"order": order} | ALL_SUCCEED))
    repeated = simulation.play()
    assert simulation.world.happened["the broker's offset went back"] == 0
    assert repeated == 0 or order == "concurrent"
    assert repeated <= IN_HAND_MAX


class BrokerAway(Away):
    """Killed, and back when it would have forgotten its members."""

    away_ms = 100_000

    def leaves(self, member: SimMember) -> None:
        del member
        self.broker.kill(away_ms=self.away_ms)


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_what_a_broker_forgot_that_was_away_for_long_does_not_run_again(seed: int) -> None:
    """Offsets of its last moments were taken for a reset: all that was finished above them ran again."""
    simulation = BrokerAway(seed, Parts((), QUIET | ALL_SUCCEED))
    assert simulation.play() == 0
    assert simulation.world.happened["the broker's offset went back"] > 0
