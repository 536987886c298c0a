"""Fixtures of rocketcrew's test kit; pytest loads this package by its entry point.

It imports nothing of rocketcrew before a test asks for a fixture, so that test runs of others do not pay for it.

- `rocketmq`: an embedded broker in memory, started once a session; topics, groups and faults are the test's own.
- `producer`: a `SyncProducer` of that broker.
- `crew`: starts a `Crew`, with real worker processes, that consumes from that broker; all end with the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketcrew.client.sync import SyncProducer
    from rocketcrew.crew.crew import Crew
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
    """A producer of the `rocketmq` broker, also for tests that are coroutines."""
    from rocketcrew.client.sync import SyncProducer

    with SyncProducer(rocketmq.name_server, background=True) as made:
        yield made


CREW_SETTINGS = {
    "cluster.request_timeout_ms": 30_000,
    "cluster.connect_timeout_ms": 30_000,
    "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
    "consumer.rebalance_interval_ms": 1000,
    "results.seal_idle_ms": 100,
    "supervisor.drain_deadline_ms": 2000,
    "supervisor.send_back_retry_ms": 500,
    "supervisor.stop_deadline_ms": 2000,
}
"""What a test does not want to wait for, and patience with a broker in its own process; `settings=` has the last word."""


@pytest.fixture
def crew(rocketmq: LocalBroker, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """A function that starts a `Crew` of the `rocketmq` broker and returns it; its arguments are those of `Crew`.

    Where they say nothing: a group that no other test has, one worker, state in the test's `tmp_path`, and `CREW_SETTINGS`.
    The crews are closed after the test, the last first; a crew that failed by then fails the test.
    """
    from rocketcrew.crew.crew import Crew
    from rocketcrew.remoting.arguments import NONE, TABLE, check

    with contextlib.ExitStack() as running:

        def start(handler: Any, *, settings: dict[str, object] | None = None, **arguments: Any) -> Crew:
            own: dict[str, object] = check("crew", {"settings": settings}, {"settings": TABLE | NONE})["settings"] or {}
            state: dict[str, object] = {
                **CREW_SETTINGS, **rocketmq.settings, "supervisor.data_dir": str(tmp_path / "rocketcrew"),
            }  # fmt: skip
            named: dict[str, Any] = {"workers": 1, "group": rocketmq.group(), "name_servers": rocketmq.name_server}
            named |= arguments
            return running.enter_context(Crew(handler, settings={**state, **own}, **named))

        yield start
