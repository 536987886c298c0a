"""Why, by which way and after which delay a failed message goes back: one table."""

from __future__ import annotations

from itertools import product

import pytest

from rocketcrew.workers.failures import (
    DELAY_LEVELS,
    Cause,
    Failure,
    Mode,
    asked,
    is_dead_letter,
    level_of,
    mode_of,
    pop_delay_ms,
    resend_level,
)

RETRIED = (Cause.FAILED, Cause.TIME_LIMIT, Cause.HELD)


def test_every_cause_that_is_tried_again_has_a_delay_for_each_way() -> None:
    """What is held back at a stop was ordered, and POP keeps no order."""
    assert set(DELAY_LEVELS) == set(product(RETRIED, (Mode.SEND_BACK, Mode.POP))) - {(Cause.HELD, Mode.POP)}


@pytest.mark.parametrize(
    ("failure", "configured", "mode", "level"),
    [
        (asked(0, ""), 0, Mode.SEND_BACK, 0),
        (asked(0, ""), 4, Mode.SEND_BACK, 4),
        (asked(0, ""), -1, Mode.DEAD_LETTER, 0),
        (asked(7, ""), 4, Mode.SEND_BACK, 7),
        (asked(7, ""), -1, Mode.SEND_BACK, 7),
        (asked(-1, ""), 4, Mode.DEAD_LETTER, 0),
        (Failure(Cause.TIME_LIMIT), 0, Mode.SEND_BACK, 3),
        (Failure(Cause.TIME_LIMIT), 1, Mode.SEND_BACK, 1),
        (Failure(Cause.TIME_LIMIT), -1, Mode.DEAD_LETTER, 0),
        (Failure(Cause.DEATHS), 4, Mode.DEAD_LETTER, 0),
        (Failure(Cause.ATTEMPTS), 4, Mode.LAST_ATTEMPT, 0),
        (Failure(Cause.HELD), 0, Mode.SEND_BACK, 0),
        # It would be tried again here if its member did not stop, so it is no dead letter of the configuration's.
        (Failure(Cause.HELD), -1, Mode.SEND_BACK, 0),
    ],
)
def test_the_handler_goes_before_the_setting_and_that_before_the_table(
    failure: Failure, configured: int, mode: Mode, level: int
) -> None:
    assert mode_of(failure, configured) is mode
    assert level_of(failure, mode, configured) == level
    assert is_dead_letter(failure, configured) == (mode is not Mode.SEND_BACK)
    assert mode_of(failure, configured, popped=True) is (Mode.POP if mode is Mode.SEND_BACK else mode)
    assert mode_of(failure, configured, broadcasting=True) is Mode.DROP


def test_a_level_is_another_time_when_the_message_was_popped() -> None:
    timed_out = level_of(Failure(Cause.TIME_LIMIT), Mode.POP, 0)
    assert [pop_delay_ms(level, 0) // 1000 for level in (1, 2, timed_out, 127)] == [30, 60, 120, 7200]
    assert [pop_delay_ms(0, times) // 1000 for times in range(4)] == [10, 30, 60, 120]


def test_a_client_that_sends_by_itself_delays_as_a_broker_would() -> None:
    assert [resend_level(0, times) for times in (1, 2, 16)] == [3, 4, 18]
    assert resend_level(5, 9) == 5
