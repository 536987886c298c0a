"""Waiting for events in tests: ask, pause, ask again. The pause is as long as the question was dear."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.25
PAUSE_BY_ANSWER: Final = 4
"""A question to brokers and supervisors is 10 to 20 ms of work for all of them together. Asked every 20 ms, tests would spend
as much CPU on asking as the crew that they wait for has to work with."""


def pause_after(took_s: float) -> float:
    """Seconds until a question whose answer took so long is asked again."""
    return min(max(PAUSE_MIN_S, PAUSE_BY_ANSWER * took_s), PAUSE_MAX_S)


def came_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it is true; False when the time was over first."""
    asked = time.monotonic()
    deadline = asked + timeout_s
    while not condition():
        now = time.monotonic()
        if now >= deadline:
            return False
        time.sleep(pause_after(now - asked))
        asked = time.monotonic()
    return True
