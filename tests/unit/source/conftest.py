"""An embedded broker in a loop of its own thread, and connections that a test closes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.source.connections import Connections

PATIENT_MS = 60_000
"""The machine may stand still for seconds, in the middle of any request."""


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """In memory, and gone after the test."""
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())
    yield broker
    thread.run(broker.stop())
    thread.close()


@pytest.fixture
def access(broker: EmbeddedBroker) -> Access:
    """How the broker is reached."""
    return Access(broker.name_server, request_timeout_ms=PATIENT_MS, connect_timeout_ms=PATIENT_MS)


@pytest.fixture
def connections(clock: Clock) -> Iterator[Connections]:
    """Nothing looks for idle ones by itself within a test."""
    made = Connections(clock, idle_s=3600)
    yield made
    made.close()
