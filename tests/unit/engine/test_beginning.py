"""What a stream finds out before its first batch, at embedded brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.route_cache import ROUTES_FILE, RouteCache
from rocketcrew.engine.beginning import Beginning
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue


def test_a_checkpoint_of_another_cluster_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its offsets are of queues that have the same names there."""
    cache = RouteCache(tmp_path / "engine" / ROUTES_FILE)
    cache.path.parent.mkdir()

    async def begin(broker: EmbeddedBroker) -> list[MessageQueue]:
        async with open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(
                broker.address, TopicConfig("orders", read_queue_nums=1, write_queue_nums=1)
            )
            return await Beginning(cluster, Operations(cluster), lambda: False).all_queues(["orders"], "billing", cache)

    async def scene() -> None:
        async with EmbeddedBroker() as one, EmbeddedBroker() as two:
            queues = await begin(one)
            with pytest.raises(
                UsageError, match=f"{tmp_path} is of another cluster: the last run was at {one.name_server}"
            ):
                await begin(two)
            assert await begin(one) == queues
            assert "%RETRY%billing" in cache.load().routes

    asyncio.run(scene())
