"""What the broker logs of a disk that takes no data, and takes it again; a clock that was set back."""

from __future__ import annotations

import asyncio
import errno

import pytest
import structlog

from rocketcrew.broker.edge import WallClock
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.broker.storage import DiskFailed, MemoryStorage, StorageError
from rocketcrew.broker.topic_table import TOPICS_TABLE

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


def test_a_start_on_a_full_disk_says_what_to_do_though_its_end_fails_too():
    """The last flush met the full disk again, and its error was the one that was shown."""

    class Full(MemoryStorage):
        def replace(self, table, content, *, sync=False):
            if table == TOPICS_TABLE:
                raise StorageError("cannot write") from OSError(errno.ENOSPC, "No space left on device")
            super().replace(table, content, sync=sync)

        def close(self):
            raise StorageError("cannot flush")

    async def story():
        with pytest.raises(StorageError, match=r"cannot write\. The broker does not start without it: make room there"):
            await EmbeddedBroker(storage=Full()).start()

    asyncio.run(story())


def test_a_stop_after_the_disk_failed_says_what_to_do_though_its_end_fails_too(tmp_path):
    """The advice was lost, as closing the files met the same failure."""

    async def story():
        with pytest.raises(DiskFailed, match=r"not kept\. The broker stops, since"):
            async with EmbeddedBroker(tmp_path) as broker:
                broker.storage.syncer._fail(DiskFailed("not kept"))
                broker.core.failed = "not kept"
                broker._edge.failed.set()
                await broker.stopped_or_failed(asyncio.Event())
        async with EmbeddedBroker(tmp_path):
            pass  # the folder is free again

    asyncio.run(story())


def test_the_clock_never_goes_back():
    clock = WallClock()
    first = clock()
    assert clock.ahead_ms == 0
    clock._ahead_ns += 5_000_000_000  # as if the wall clock had been set back by five seconds
    assert clock() >= first + 5_000
    assert 4_000 < clock.ahead_ms < 6_000
    clock._ahead_ns -= 60_000_000_000  # as if it had jumped ahead by a minute
    assert WallClock()() - 1_000 < clock() < WallClock()() + 1_000
    assert clock.ahead_ms < 1_000


def test_the_core_is_told_how_far_the_machines_clock_was_set_back():
    async def story():
        clock = WallClock()
        async with EmbeddedBroker(clock_ms=clock) as broker:
            clock._ahead_ns += 5_000_000_000
            broker._edge.look_at_clock()
            assert 4_000 < broker.core.state.clock_ahead_ms < 6_000

    asyncio.run(story())
