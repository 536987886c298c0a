"""From an access to a cluster one can ask: identity, connections, routes, in one step, for tools and producers.

The supervisor, which serves requests of brokers and names itself by its own rules, puts the parts together itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator

from .access import Access, NameServerList, access_to
from .background import take_each
from .cluster import Cluster
from .identity import client_id, client_ip, instance_name
from .remoting_client import Remoting


def new_cluster(target: NameServerList | Access) -> Cluster:
    """A cluster with connections of its own (`cluster.remoting`), nothing connected yet. Needs a running loop.

    Raises UsageError for a bad or empty list of name servers, and for TLS files that cannot be used.
    """
    access = access_to(target)
    instance = instance_name(access.instance_name, pid=os.getpid(), nanos=time.monotonic_ns())
    own = client_id(client_ip(access.client_ip), instance, access.unit_name)
    return Cluster(access, client_id=own, remoting=Remoting(access=access))


@contextlib.asynccontextmanager
async def open_cluster(target: NameServerList | Access) -> AsyncGenerator[Cluster]:
    """`new_cluster` for an `async with` block; closes its connections at the end."""
    cluster = new_cluster(target)
    try:
        yield cluster
    finally:
        await take_each(cluster.close, cluster.remoting.close)
