"""Whether what the last run has left is of the cluster that a start finds.

Journal, segments, table and checkpoint know queues by the names of their brokers, and other clusters have brokers of the same
names: their messages would be taken for finished. So such a start is refused. A cluster counts as another one where no name
server is the same, nor the address of any broker: both may move, one after the other. An own broker may have other ports at
each start; its folder says who it is.
"""

from __future__ import annotations

from ..remoting.bodies import BrokerData
from ..remoting.errors import BrokerError, UsageError
from .cluster import Cluster
from .route_cache import KnownRoutes, RouteCache
from .routes import one_moved


async def refuse_another_cluster(cluster: Cluster, cache: RouteCache) -> None:
    """Raises UsageError where the last run was on another one, by what is beside the cache too: members of a group take over
    what is sealed there. Where the name server does not tell of brokers (a proxy of 5.x), nobody can say."""
    others: list[KnownRoutes] = []
    for known in cache.load_all():
        if cluster.is_of(known):
            return
        if known.routes:
            others.append(known)
    if not others:
        return
    from .admin import Admin  # of a few starts: what administrators ask is not imported at all of them

    try:
        brokers = (await Admin(cluster).cluster_info()).broker_addr_table
    except BrokerError:
        return
    if found := one_moved((data for known in others for data in known.brokers), brokers):
        old, new = found
        home = cache.path.parent.parent
        raise UsageError(
            f"{home} is of another cluster: the last run was at {';'.join(others[0].name_servers)}, where broker"
            f" {old.broker_name} is at {_addresses(old)}; {cluster.name_servers.where} has it at {_addresses(new)}. What the"
            " folder says of messages there would be taken for these. Give this cluster a supervisor.data_dir of its own (a"
            " broadcasting group also a consumer.local_offset_store_dir). If it is the same cluster, and all of it has moved,"
            f" remove {home}/*/{cache.path.name}"
        )


def _addresses(broker: BrokerData) -> str:
    return ", ".join(address for _, address in sorted(broker.broker_addrs.items()))
