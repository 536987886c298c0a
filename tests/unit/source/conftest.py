"""An embedded broker in a loop of its own thread, a topic in it, and connections that a test closes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import SyncProducer
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.connections import Connections, shared
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options

TOPIC = "orders"
QUEUES = [MessageQueue(TOPIC, "embedded", number) for number in range(4)]
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


class WallClock:
    """Milliseconds since 1970: the real ones, or what a test has set."""

    def __init__(self) -> None:
        self.set_ms: int | None = None

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 if self.set_ms is None else self.set_ms


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
def broker(wall: WallClock) -> Iterator[EmbeddedBroker]:
    """In memory, and gone after the test."""
    thread, broker = LoopThread("broker"), EmbeddedBroker(clock_ms=wall)
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


@pytest.fixture
def filled(access: Access) -> Iterator[Access]:
    """Ten messages in each of four queues; what `shared` connected is closed afterwards."""
    send(access, 10)
    yield access
    shared.close()


def send(access: Access, each: int) -> None:
    with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
        for number in range(each * 4):
            producer.send(OutgoingMessage(TOPIC, b"%d" % number), selector=to_queue(QUEUES[number % 4]))


def reading(
    access: Access, *, streaming: bool = False, columns: tuple[str, ...] = ("queueOffset",), **options: str
) -> Reading:
    given = {"subscribe": TOPIC, "retryIntervalMs": "1", "numRetries": "2"} | options
    return Reading(access, read_options(given, streaming), columns)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]
