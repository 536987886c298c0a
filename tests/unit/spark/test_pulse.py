"""A JVM that does not answer is killed once; one that answers, is dead or is not wanted any more is left alone."""

from __future__ import annotations

import threading

from rocketcrew.spark.pulse import Pulse

LONG_S = 60.0


def test_an_answer_is_an_answer_also_a_dead_one() -> None:
    def dead() -> None:
        raise ConnectionRefusedError

    assert Pulse(lambda: 1, LONG_S, lambda: None).beat()
    assert Pulse(dead, LONG_S, lambda: None).beat()


def test_silence_kills_once() -> None:
    never, killed = threading.Event(), threading.Event()
    pulse = Pulse(never.wait, 0.001, killed.set)
    pulse.start()
    assert killed.wait(LONG_S)
    pulse._thread.join(LONG_S)
    assert pulse.hung
    never.set()


def test_silence_at_the_end_is_no_hanging() -> None:
    never = threading.Event()
    pulse = Pulse(never.wait, 0.001, lambda: None)
    pulse.stop()
    assert pulse.beat()
    never.set()
