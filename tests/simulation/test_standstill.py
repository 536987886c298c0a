"""A member stands still for longer than brokers wait for it: another one goes on with its queues, and it finds that out."""

from __future__ import annotations

from typing import Any

import pytest

from .parts import Parts
from .simulation import Simulation

STILL_MS = 130_000
BEFORE_MS = 1_500
IN_HAND_MAX = 40
"""Messages that it had pulled, or that were on their way to it."""
QUIET: dict[str, Any] = {
    "members": 2, "members_max": 2, "queues": 4, "messages_max": 400, "faults": {}, "fault_rate": 0.0, "subscription": "*",
    "slow": 0.0, "refusing": 0.0, "deadly": 0, "hard_limit_ms": 0, "topic_limit": 0, "rate": 0.0,
    "commit_after_loaded": False, "late_links": 0.0, "broadcasting": False, "batch": 1, "order": "concurrent",
}  # fmt: skip


class Standstill(Simulation):
    """Nothing fails, but for one member that stands still while messages come."""

    def play(self) -> int:
        """How many messages ran again since it went on."""
        for _ in range(2):
            self.start_member()
        self.world.after(1, self._produce)
        self.world.after(300, self._load)
        self._until(self.world.now_ms + BEFORE_MS)
        one = next(member for member in self.living() if member.core.state.pulled)
        one.stands_still(STILL_MS)
        self._until(self.world.now_ms + STILL_MS - 1)
        before = self.truth.repeats()
        self._settle()
        return self.truth.repeats() - before

    def _until(self, end_ms: float) -> None:
        while self.world.now_ms < end_ms:
            self._step()


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_no_offset_goes_back_when_it_goes_on(seed: int) -> None:
    """It committed the offset of before: all that the other had finished ran again."""
    simulation = Standstill(seed, Parts((), QUIET))
    assert simulation.play() <= IN_HAND_MAX
    assert simulation.world.happened["the broker's offset went back"] == 0
