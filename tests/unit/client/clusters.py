"""Clusters whose name servers are peers with a table, and what they say."""

from __future__ import annotations

import contextlib
from random import Random

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData

LONG_S = 60.0


def route_of(*names, queues=2, perm=6):
    return TopicRouteData(
        queue_datas=tuple(QueueData(name, queues, queues, perm) for name in names),
        broker_datas=tuple(BrokerData(name, {0: f"{name}:10911"}) for name in names),
    )


class Routes:
    """What a name server knows; a callable that answers 105."""

    def __init__(self, **routes):
        self.routes = routes
        self.asked = []
        self.not_ready = False

    def __call__(self, command):
        topic = command.fields["topic"]
        self.asked.append(topic)
        if self.not_ready:
            return command.response(1, remark="name server not ready")
        route = self.routes.get(topic)
        if route is None:
            return command.response(17, remark=f"No topic route info in name server for the topic: {topic}")
        return command.response(0, body=route if isinstance(route, bytes) else route.encode())


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@contextlib.asynccontextmanager
async def cluster_of(*addresses, clock=None, seed=1, **options):
    remoting = Remoting()
    cluster = Cluster(
        ";".join(addresses),
        client_id="127.0.0.1@test",
        remoting=remoting,
        clock=clock or Clock(),
        random=Random(seed),
        **options,
    )
    try:
        yield cluster
    finally:
        await cluster.close()
        await remoting.close()


async def asked_beside(cluster, topic="t"):
    """Wait for the questions that nobody waits for."""
    await cluster.looked(topic, "a", None, 0.0, LONG_S)


def at(port, *, slave=None, name="a", queues=2, perm=6):
    """A route to one broker, and its slave."""
    addresses = {0: f"{name}:{port}"} | ({1: f"{name}:{slave}"} if slave else {})
    return TopicRouteData((QueueData(name, queues, queues, perm),), (BrokerData(name, addresses),))


class Moves:
    """A name server: the broker is at the first address when it is asked first, at the second from then on."""

    def __init__(self, *addresses):
        self.addresses = list(addresses)

    def __call__(self, command):
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        if address is None:
            return None  # it does not answer
        queues, brokers = (QueueData("b", 1, 1, 6),), (BrokerData("b", {0: address}),)
        return command.response(0, body=TopicRouteData(queue_datas=queues, broker_datas=brokers).encode())
