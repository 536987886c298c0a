"""Fixtures of rocketcrew's test kit; pytest loads this package by its entry point.

It imports nothing of rocketcrew before a test asks for a fixture, so that test runs of others do not pay for it.

- `rocketmq`: an embedded broker in memory, started once a session; topics, groups and faults are the test's own.
- `producer`: a `SyncProducer` of that broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rocketcrew.client.sync import SyncProducer
    from rocketcrew.testing.broker import LocalBroker

DELAY_LEVELS = (
    "100ms 100ms 200ms 200ms 300ms 300ms 400ms 400ms 500ms 500ms 600ms 600ms 700ms 700ms 800ms 800ms 900ms 1s"
)
"""Retries come soon: a test that waits for the first of them waits 200 ms, not ten seconds."""


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator[LocalBroker]:
    """The broker of all tests; they ask for `rocketmq`."""
    from rocketcrew.testing.broker import LocalBroker

    with LocalBroker(delay_levels=DELAY_LEVELS) as broker:
        yield broker


@pytest.fixture
def rocketmq(rocketmq_session: LocalBroker) -> Iterator[LocalBroker]:
    """An embedded broker on free ports: `name_server`, `topic()`, `group()`, `messages(topic)`, `faults`, `restart()`."""
    yield rocketmq_session
    rocketmq_session.faults.clear()
    rocketmq_session.start()


@pytest.fixture
def producer(rocketmq: LocalBroker) -> Iterator[SyncProducer]:
    """A producer of the `rocketmq` broker."""
    from rocketcrew.client.sync import SyncProducer

    with SyncProducer(rocketmq.name_server) as made:
        yield made
