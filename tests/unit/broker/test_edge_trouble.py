"""What the broker logs of a disk that takes no data, and takes it again."""

from __future__ import annotations

import asyncio

import structlog

from rocketcrew.broker.server import EmbeddedBroker

NOW_MS = 1_700_000_000_000


def test_trouble_is_a_warning_and_its_end_is_none():
    async def story():
        async with EmbeddedBroker(clock_ms=lambda: NOW_MS) as broker:
            edge = broker._edge
            with structlog.testing.capture_logs() as lines:
                for trouble in ("No space left on device", "No space left on device", None, None):
                    edge.broker.trouble = trouble
                    edge._tick()
        assert [(line["event"], line["log_level"], line.get("reason")) for line in lines] == [
            ("storage.trouble", "warning", "No space left on device"),
            ("storage.works_again", "info", None),
        ]

    asyncio.run(story())
