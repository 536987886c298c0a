"""Whether what earlier runs have left is of the cluster that a start finds.

Journal, segments, table and checkpoint know queues by the names of their brokers, and other clusters have brokers of the same
names: their messages would be taken for finished. So a start on another cluster is refused. Rules:

- An own broker's folder says who it is, wherever its ports are: the same one is the same cluster, and another one is not
  while the first is still there. Where that is gone, it may have been moved, with all that is here: that is compared.
- Where a name server or the address server is the same, the cluster is another one only if a tunnel or port leads elsewhere
  now: none of the brokers has an address or a cluster's name that it had. Routes say that, nobody is asked.
- Else, and where not both are own brokers, the name server is asked for its brokers: none of the same name has an
  address that it had, in a cluster of that name. All name servers may move, and all brokers, one after the other.
- Where no broker has a name that one had, nothing is known yet: one may be down, or register later. So each route is compared
  when it is learnt, before a queue of it is opened, and the next start finds in its file what is still not known.
- A proxy of 5.x names itself in place of the brokers, and tells nobody of these: of it nothing can be known.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..remoting.bodies import BrokerData, TopicRouteData
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UsageError
from .cluster import Cluster
from .route_cache import KnownRoutes, RouteCache, is_folder
from .routes import in_both, is_another

SUSPECTS_MAX = 16
"""The newest. A data_dir that has met more clusters, whose brokers all have other names, is none that runs anywhere."""


class Suspects:
    """What earlier runs knew, by what is beside the cache too: members of a group take over what is sealed there."""

    def __init__(self, cluster: Cluster, cache: RouteCache) -> None:
        """Raises UsageError for an own broker of another folder."""
        self._cluster = cluster
        self._cache = cache
        self._asking = asyncio.Lock()
        self._ask_from_s = float("-inf")
        known = [one for one in cache.load_all() if one.routes]
        of_this = [one for one in known if cluster.is_of(one)]
        judged = [_together(of_this or known), *(one for each in known for one in each.before)]
        self.left: list[KnownRoutes] = []
        """Those of which nothing is known yet."""
        for one in judged:
            own = is_folder(one.place) and is_folder(cluster.place)
            if not one.brokers or (own and cluster.is_of(one)):
                continue
            if own and os.path.isdir(one.place):  # Path raises where one may not look, and of a lost mount
                before, now = f"with the broker of {one.place}", f"this one is of {cluster.place}"
                raise UsageError(self._refusal(one, before, now))
            if one not in self.left:
                self.left.append(one)
        del self.left[SUSPECTS_MAX:]

    def noted(self, known: KnownRoutes) -> KnownRoutes:
        """What is known now, for the next run, with what is to be compared yet."""
        return replace(known, before=tuple(self.left))

    async def compare(self, route: TopicRouteData) -> None:
        """With what a name server says now, before anybody hears of it. Raises UsageError for a route of another cluster."""
        now = {data.broker_name: data for data in route.broker_datas}
        self._judge(now, [one for one in self.left if self._cluster.is_of(one)])
        if any(in_both(one.brokers, now) for one in self.left):
            await self.ask(now)

    async def ask(self, now: Mapping[str, BrokerData] | None = None) -> None:
        """Ask the name server for all brokers, where that may tell; `now`: those that are known. Raises UsageError where it
        is another cluster's. One that does not tell is asked again, unless it cannot."""
        async with self._asking:
            if all(self._cluster.is_of(one) for one in self.left) or self._cluster.clock() < self._ask_from_s:
                return
            from .admin import Admin  # of a few starts: what administrators ask is not imported at all of them

            try:
                told = (await Admin(self._cluster).cluster_info()).broker_addr_table
            except RocketcrewError as error:
                cannot = isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                pause_s = self._cluster.access.poll_interval_ms / 1000
                self._ask_from_s = float("inf") if cannot else self._cluster.clock() + pause_s
                return
            self._judge({**(now or {}), **told}, list(self.left))

    def _judge(self, now: Mapping[str, BrokerData], suspects: Iterable[KnownRoutes]) -> None:
        for one in suspects:
            pairs = in_both(one.brokers, now)
            if another := is_another(pairs, same_place=self._cluster.is_of(one)):
                old, new = pairs[0]
                before = f"at {';'.join(one.name_servers)}, where broker {old.broker_name} is {_where(old)}"
                raise UsageError(self._refusal(one, before, f"{self._cluster.name_servers.where} has it {_where(new)}"))
            if another is False and one in self.left:
                self.left.remove(one)

    def _refusal(self, one: KnownRoutes, before: str, now: str) -> str:
        home = self._cache.path.parent.parent
        places = (one.place, self._cluster.place)
        what = "broker, and its folder or its ports are" if any(map(is_folder, places)) else "cluster, and all of it is"
        return (
            f"{home} is of another cluster: the last run was {before}; {now}. What the folder says of messages there would be"
            " taken for these. Give this cluster a supervisor.data_dir of its own, and where spark.target lies elsewhere a"
            f" table of its own (a broadcasting group also a consumer.local_offset_store_dir). If it is the same"
            f" {what} elsewhere now, remove {home}/*/{self._cache.path.name}"
        )


def _together(known: list[KnownRoutes]) -> KnownRoutes:
    """As one: members of a group were on one cluster. Without what proxies said of themselves."""
    brokers: list[BrokerData] = []
    for one in known:
        for data in one.brokers:
            if data not in brokers and set(one.name_servers).isdisjoint(data.broker_addrs.values()):
                brokers.append(data)
    if not brokers:
        return KnownRoutes()
    return KnownRoutes(known[0].name_servers, {"": TopicRouteData(broker_datas=tuple(brokers))}, known[0].place)


def _where(broker: BrokerData) -> str:
    cluster = f" in cluster {broker.cluster}" if broker.cluster else ""
    return f"at {', '.join(address for _, address in sorted(broker.broker_addrs.items()))}{cluster}"
