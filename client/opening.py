"""From settings to a cluster one can ask: identity, connections, routes, in one step, for tools and producers.

The supervisor, which serves requests of brokers and names itself by its own rules, puts the parts together itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, Iterable

from .cluster import POLL_INTERVAL_MS, REQUEST_TIMEOUT_MS, Cluster
from .identity import client_id, client_ip, instance_name
from .remoting_client import CONNECT_TIMEOUT_MS, Remoting


def new_cluster(
    name_servers: str | Iterable[str],
    *,
    ip: str = "",
    instance: str = "",
    unit_name: str = "",
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    poll_interval_ms: int = POLL_INTERVAL_MS,
) -> Cluster:
    """A cluster with connections of its own (`cluster.remoting`), nothing connected yet. Needs a running loop.

    `ip`, `instance` and `unit_name` make the client id; empty: this machine's address, `pid#nanos`, none. Raises
    UsageError for a bad or empty list of name servers.
    """
    own = client_id(client_ip(ip), instance_name(instance, pid=os.getpid(), nanos=time.monotonic_ns()), unit_name)
    return Cluster(
        name_servers,
        client_id=own,
        remoting=Remoting(connect_timeout_ms=connect_timeout_ms),
        request_timeout_ms=request_timeout_ms,
        poll_interval_ms=poll_interval_ms,
    )


@contextlib.asynccontextmanager
async def open_cluster(
    name_servers: str | Iterable[str], *, ip: str = "", instance: str = ""
) -> AsyncGenerator[Cluster]:
    """`new_cluster` for an `async with` block; closes its connections at the end."""
    cluster = new_cluster(name_servers, ip=ip, instance=instance)
    try:
        yield cluster
    finally:
        await cluster.close()
        await cluster.remoting.close()
