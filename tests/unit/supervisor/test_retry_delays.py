"""How many messages wait for the delay of their retry."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.retry_delays import LEVELS_S, PARTS, RetryDelays, level_delay_s

A, B = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)


def test_a_message_waits_from_its_send_back_until_its_delay_is_over() -> None:
    delays = RetryDelays()
    delays.waits(A, 10, now=100.0)
    delays.waits(A, 30, now=101.0)
    delays.waits(B, 10, now=105.0)
    part_s = 10 / PARTS
    assert delays.waiting(109.9) == {A: 2, B: 1}
    assert delays.waiting(110 + part_s) == {A: 1, B: 1}
    assert delays.waiting(115 + part_s) == {A: 1}
    assert delays.waiting(131 + 30 / PARTS) == {}


def test_many_failures_are_a_few_numbers_and_none_that_waits_is_forgotten() -> None:
    delays = RetryDelays()
    now, sent = 0.0, 0
    for step in range(20_000):
        delays.waits(A, LEVELS_S[step % len(LEVELS_S)], now)
        delays.forget(now)
        now, sent = now + 1.0, sent + 1
    kept = delays._ends  # pyright: ignore[reportPrivateUsage]
    assert len(kept) == len(delays._counts) <= (PARTS + 1) * len(LEVELS_S)  # pyright: ignore[reportPrivateUsage]
    waiting = delays.waiting(now)[A]
    exact = sum(step + LEVELS_S[step % len(LEVELS_S)] > now for step in range(20_000))
    assert exact <= waiting <= exact * (1 + 2 / PARTS) + len(LEVELS_S)
    over = now + max(LEVELS_S) * (1 + 1 / PARTS)
    assert delays.waiting(over) == {}
    delays.forget(over)
    assert not kept


@pytest.mark.parametrize(("level", "delay_s"), [(1, 1), (3, 10), (18, 7200), (40, 7200)])
def test_delays_of_levels(level: int, delay_s: int) -> None:
    assert level_delay_s(level) == delay_s
