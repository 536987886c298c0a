"""What is asked of a whole cluster, against an embedded broker."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.asking import known_topics
from rocketcrew.client.access import Access
from rocketcrew.client.asking import ask
from rocketcrew.client.opening import open_cluster
from rocketcrew.remoting.admin_headers import UnregisterBroker
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.names import MASTER_ID


def test_a_cluster_without_topics_and_a_name_server_without_brokers_differ() -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            assert await known_topics(cluster, Access()) == []
            header = UnregisterBroker("broker-a", broker.address, broker.config.cluster, MASTER_ID)
            await ask(cluster.remoting, broker.name_server, RequestCode.UNREGISTER_BROKER, header, timeout_ms=3_000)
            with pytest.raises(UnreachableError, match="no broker is registered at this name server"):
                await known_topics(cluster, Access())

    asyncio.run(run())
