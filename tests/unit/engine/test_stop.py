"""Which signals let the engine's batch end, and which cancel it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.engine.stream import CALLBACKS_LOGGER, LOOK_S, Stop, asking, stop_signals
from rocketcrew.spark.errors import SparkDiedError
from rocketcrew.spark.session import SessionSettings
from rocketcrew.spark.spark_writer import SparkWriter

LONG_S = 60.0


class Clock:
    """Seconds, as the test sets them."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("later_s", "insists"), [(0.001, False), (5.0, True)])
def test_a_signal_that_comes_twice_at_once_cancels_no_batch(later_s: float, insists: bool) -> None:
    clock = Clock()
    stop = Stop(clock)
    stop.ask()
    clock.now_s += later_s
    stop.ask()
    assert (stop.asked(), stop.insisted()) == (True, insists)


def test_a_wait_ends_when_a_stop_is_asked_for() -> None:
    stop = Stop(Clock())
    stop.wait(LOOK_S / 100)
    assert not stop.asked()
    waiting = threading.Thread(target=stop.wait, args=(LONG_S,))
    waiting.start()
    stop.ask()
    waiting.join(LONG_S / 2)
    assert not waiting.is_alive()
    stop.wait(LONG_S)  # not at all


def test_of_calls_that_fail_once_a_stop_is_asked_for_py4j_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """No batch is begun then, which Spark hears by an error; what a batch under way fails with is raised in the end."""
    callbacks = logging.getLogger(CALLBACKS_LOGGER)
    with stop_signals() as stop:
        callbacks.error("a batch failed")
        stop.ask()
        callbacks.error("no batch is begun")
    callbacks.error("later")
    assert caplog.messages == ["a batch failed", "later"]


class Dying:
    """In place of a session whose JVM ends: its connections are gone, and the process is still there for a moment."""

    where, jvm_pid = "Spark's JVM", 1

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def alive(self) -> bool:
        return True

    def ends_within(self, seconds: float) -> bool:
        del seconds
        return self._ends


@pytest.mark.parametrize(("ends", "expected"), [(True, SparkDiedError), (False, ConnectionRefusedError)])
def test_a_jvm_that_is_about_to_be_gone_is_told_as_gone(ends: bool, expected: type[Exception], tmp_path: Path) -> None:
    writer = SparkWriter(SessionSettings(tmp_path), 0)
    session: Any = Dying(ends=ends)
    writer.session = session
    with pytest.raises(expected), asking(writer):
        raise ConnectionRefusedError
