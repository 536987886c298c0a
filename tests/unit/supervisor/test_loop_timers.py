"""A timer that has come finds something due: it is not set again and again until the clock agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.conf.units import in_whole_ms
from rocketcrew.supervisor.acting import Acting
from rocketcrew.supervisor.core.decisions import Core

if TYPE_CHECKING:
    from .conftest import Bench

TIMERS = 40


@given(st.floats(0.0, 1e9))
def test_never_early_and_at_most_a_millisecond_late(due_s: float) -> None:
    late_s = in_whole_ms(due_s) - due_s
    rounding_s = due_s * 1e-15
    assert -rounding_s <= late_s <= 0.001 + rounding_s


class CountingCore(Core):
    """Counts how often a timer of the edge had it look at the clock."""

    ticks = 0

    def tick(self, now: float) -> None:
        self.ticks += 1
        super().tick(now)


def test_the_core_is_woken_once_for_each_timer_on_uvloop(bench: Bench, tmp_path: Path) -> None:
    """uvloop fires up to half a millisecond early, and a timer of less than that at once."""
    core = bench.core
    core.__class__ = CountingCore
    assert isinstance(core, CountingCore)
    came: list[float] = []

    async def wait() -> list[float]:
        loop = asyncio.get_running_loop()
        acting = Acting(core, lambda _entries: None, tmp_path / "journal")
        dues: list[float] = []
        passed = asyncio.Event()
        for number in range(TIMERS):
            dues.append(loop.time() + 0.0011 + number / 1e5)
            core.state.at(dues[-1], came.append)
            core.state.at(dues[-1], lambda _now: passed.set())
            acting.acted()
            await passed.wait()
            passed.clear()
        return dues

    dues = uvloop.run(wait())
    assert core.ticks == TIMERS
    assert all(now >= due for now, due in zip(came, dues, strict=True))
