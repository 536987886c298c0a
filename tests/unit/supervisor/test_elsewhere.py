"""POP: what a broker has shown of a queue has its end once others had their time for it, but for what is in hand here."""

from __future__ import annotations

import random

from rocketcrew.durable.intervals import IntervalSet
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.elsewhere import STEPS, Shown

QUEUE = MessageQueue("T", "broker-a", 0)
WAIT_S = 8.0


def over(shown: Shown, now: float, *in_hand: int) -> list[tuple[int, int]]:
    return list(shown.over(QUEUE, set(in_hand), now).pieces) if QUEUE in shown.queues() else []


def test_it_is_over_after_its_time_and_said_once() -> None:
    shown = Shown(WAIT_S)
    shown.show(QUEUE, 0, 10, 100.0)
    assert over(shown, 100.0 + WAIT_S) == [], "what was shown within the same step may be as late as its end"
    shown.show(QUEUE, 10, 20, 105.0)
    assert over(shown, 100.0 + WAIT_S + shown.step_s) == [(0, 10)]
    assert over(shown, 110.0) == []
    assert over(shown, 105.0 + WAIT_S + shown.step_s) == [(0, 20)]
    assert not shown, "a queue of which all is said takes no room"


def test_what_is_in_hand_is_left_out_until_it_is_no_longer() -> None:
    shown = Shown(WAIT_S)
    shown.show(QUEUE, 0, 10, 0.0)
    late = WAIT_S + shown.step_s
    assert over(shown, late, 3, 4, 12) == [(0, 3), (5, 10)]
    assert over(shown, late + 1, 3, 4) == []
    assert over(shown, late + 2, 4) == [(0, 4), (5, 10)]
    assert over(shown, late + 3) == [(0, 10)]
    assert not shown


def test_a_queue_that_is_popped_without_a_pause_has_few_marks_and_nothing_comes_early() -> None:
    shown, chance = Shown(WAIT_S), random.Random(7)
    now, end = 0.0, 0
    when: list[tuple[float, int]] = []
    told = 0
    for _ in range(5_000):
        now += chance.random() / 20
        end += chance.randrange(4)
        shown.show(QUEUE, end, end, now)
        when.append((now, end))
        if chance.random() < 0.1:
            for _, told in over(shown, now):
                assert any(at + WAIT_S <= now for at, upto in when if upto == told)
        assert len(shown._marks[QUEUE]) <= STEPS + 3
    assert told > end * 0.9
    assert shown.over(QUEUE, set(), now + 2 * WAIT_S) == IntervalSet.of([(0, end)])


def test_of_a_queue_that_went_back_only_what_it_was_shown_since_is_said() -> None:
    """Its topic was made again, or the broker lost its newest messages: these offsets are of other messages now."""
    shown, late = Shown(WAIT_S), WAIT_S + 2.0
    assert not shown.show(QUEUE, 0, 1_000, 0.0)
    assert shown.show(QUEUE, 2, 5, 10.0)
    assert over(shown, late + 10.0) == [(0, 5)]
    assert not shown


def test_what_is_over_and_in_hand_is_forgotten_too_when_a_queue_goes_back() -> None:
    shown, late = Shown(WAIT_S), WAIT_S + 2.0
    shown.show(QUEUE, 0, 1_000, 0.0)
    assert over(shown, late, 7) == [(0, 7), (8, 1_000)]
    assert shown.show(QUEUE, 0, 5, late)
    assert over(shown, 2 * late, 7) == [(0, 5)]
    assert not shown.show(QUEUE, 5, 9, 2 * late), "it goes on"
