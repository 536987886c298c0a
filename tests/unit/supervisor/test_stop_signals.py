"""Which signals stop, which force, and which are one that came twice."""

from __future__ import annotations

import pytest

from rocketcrew.supervisor.core.pauses import REPEATED_WITHIN_S, StopSignals, StopWish

JUST_AFTER_S = REPEATED_WITHIN_S / 5
LATER_S = 2 * REPEATED_WITHIN_S


@pytest.mark.parametrize("times", [2, 3])
def test_a_signal_that_comes_again_at_once_is_one(times: int) -> None:
    """`timeout` sends TERM to the process and to its group."""
    signals = StopSignals()
    heard = [signals.heard(100.0 + number * JUST_AFTER_S) for number in range(times)]
    assert heard == [StopWish.STOP, *[StopWish.SAME] * (times - 1)]


def test_a_later_signal_forces_and_its_repetition_is_that_one() -> None:
    signals = StopSignals()
    assert signals.heard(100.0) is StopWish.STOP
    assert signals.heard(100.0 + LATER_S) is StopWish.FORCE
    assert signals.heard(100.0 + LATER_S + JUST_AFTER_S) is StopWish.SAME


def test_repetitions_do_not_put_off_the_next_that_counts() -> None:
    signals = StopSignals()
    assert signals.heard(100.0) is StopWish.STOP
    assert signals.heard(100.0 + 0.9 * REPEATED_WITHIN_S) is StopWish.SAME
    assert signals.heard(100.0 + 1.1 * REPEATED_WITHIN_S) is StopWish.FORCE
