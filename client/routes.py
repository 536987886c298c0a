"""What a route means: which queues to read and write, where the brokers are. Pure.

Sources: client/impl/factory/MQClientInstance.java (topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo,
findBrokerAddressInSubscribe, cleanOfflineBroker).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..remoting.bodies import BrokerData, QueueData, TopicRouteData
from ..remoting.codes import PERM_READ, PERM_WRITE
from ..remoting.errors import ProtocolError, UsageError
from ..remoting.names import MASTER_ID
from ..remoting.queues import MessageQueue
from .address import split_address

QUEUES_MAX = 65_536
"""Of a topic on all of its brokers together."""
QUEUE_DIGITS_MAX = 9


def judged(route: TopicRouteData, where: str) -> TopicRouteData:
    """The route in order of brokers, without addresses that are none, and without brokers that have no other.

    Raises ProtocolError for more queues than a topic can have: `where` says whose answer it is.
    """
    datas = route.queue_datas
    counts = ([data.read_queue_nums for data in datas], [data.write_queue_nums for data in datas])
    if any(sum(number for number in numbers if number > 0) > QUEUES_MAX for numbers in counts):
        raise ProtocolError(f"more than {QUEUES_MAX} queues of one topic", where)
    brokers = [replace(data, broker_addrs=_real(data.broker_addrs)) for data in route.broker_datas]
    return replace(
        route,
        queue_datas=tuple(sorted(datas, key=lambda data: data.broker_name)),
        broker_datas=tuple(sorted((one for one in brokers if one.broker_addrs), key=lambda data: data.broker_name)),
    )


def _real(addresses: Mapping[int, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for broker_id, address in addresses.items():
        with contextlib.suppress(UsageError):
            split_address(address)
            found[broker_id] = address
    return found


def refuse_static(topic: str, route: TopicRouteData) -> None:
    """Raises UsageError for a static topic of 5.x. Its queues have ids of their own, which say nothing of brokers, and after
    a remapping records bear other offsets than their queue: read by broker and queue id it would be read in part."""
    if route.topic_queue_mapping_by_broker:
        brokers = ", ".join(sorted(route.topic_queue_mapping_by_broker))
        raise UsageError(
            f"topic {topic} is a static topic (its route maps logical queues to brokers {brokers}), which rocketcrew neither"
            " reads nor writes: take an ordinary topic (mqadmin updateTopic)"
        )


def queues_to_read(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Every queue of each broker that may be read, sorted as all members of a group sort them.

    Raises UsageError for a static topic.
    """
    refuse_static(topic, route)
    found = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
    return sorted(set(found))


def queues_to_write(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Every queue that may be written and whose broker has a master, broker by broker; or those of the order setting.

    An ordered topic's queues are those named in `orderTopicConf` ("brokerA:4;brokerB:2"), so that their number does not
    change with the brokers that happen to be up. Raises UsageError for a static topic.
    """
    refuse_static(topic, route)
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    ]


def _ordered_queues(topic: str, setting: str) -> list[MessageQueue]:
    found: list[MessageQueue] = []
    for part in setting.split(";"):
        broker_name, _, count = part.rpartition(":")
        if broker_name and count.isascii() and count.isdigit():
            queues = min(int(count.lstrip("0")[:QUEUE_DIGITS_MAX] or 0), QUEUES_MAX - len(found))
            found += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(queues)]
    return found


def is_final(route: TopicRouteData, broker_name: str, address: str) -> bool:
    """Whether the replica at `address` knows the ends of the broker's queues of this topic for certain: only a master does.

    A slave may lag. So may one that the name server shows as master while the master is away (enableSlaveActingMaster of 5.x:
    the topic cannot be written there meanwhile; RouteInfoManager.java, pickupTopicRouteData).
    """
    for data in route.broker_datas:
        if data.broker_name == broker_name and data.broker_addrs.get(MASTER_ID) == address:
            writable = any(one.broker_name == broker_name and one.perm & PERM_WRITE for one in route.queue_datas)
            return writable or not data.enable_acting_master
    return False


Pairs = Sequence[tuple[BrokerData, BrokerData]]


def in_both(before: Iterable[BrokerData], now: Mapping[str, BrokerData]) -> Pairs:
    """The brokers whose names are in both, as they were and as they are."""
    return [(old, now[old.broker_name]) for old in before if old.broker_name in now]


def is_another(pairs: Pairs, *, same_place: bool) -> bool | None:
    """Whether these are brokers of another cluster: not one has an address that it had, in a cluster of the same name. Where
    they are found at the `same_place`, an address or the name is enough. None: nobody can say, as no name is in both."""
    if not pairs:
        return None
    for old, new in pairs:
        renamed = None not in (old.cluster, new.cluster) and old.cluster != new.cluster
        stayed = not set(old.broker_addrs.values()).isdisjoint(new.broker_addrs.values())
        if (stayed or not renamed) if same_place else (stayed and not renamed):
            return False
    return True


def default_route(route: TopicRouteData, queue_nums: int) -> TopicRouteData:
    """The default topic's route as a new topic would get it: at most `queue_nums` queues per broker."""

    def limited(data: QueueData) -> QueueData:
        count = min(queue_nums, data.read_queue_nums)
        return replace(data, read_queue_nums=count, write_queue_nums=count)

    return replace(route, queue_datas=tuple(limited(data) for data in route.queue_datas))


class BrokerTable:
    """Broker name -> id -> address, made of all routes in use: what no route names any more is not in it. Of routes that name
    the same broker the last one counts: each says all of its addresses."""

    def __init__(self, routes: Iterable[TopicRouteData] = ()) -> None:
        self._brokers: dict[str, Mapping[int, str]] = {}
        for route in routes:
            self.add(route)

    def add(self, route: TopicRouteData) -> None:
        """A route that was learnt after all that are in it."""
        self._brokers.update((data.broker_name, data.broker_addrs) for data in route.broker_datas)

    @property
    def names(self) -> list[str]:
        return sorted(self._brokers)

    def ids(self, broker_name: str) -> Mapping[int, str]:
        """The addresses of one broker by id (0 is the master); empty when it is unknown."""
        return self._brokers.get(broker_name, {})

    def address(self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str | None:
        """The address of one replica; unless `only_this`, another one when it is not there (id + 1 first, as Java)."""
        addresses = self._brokers.get(broker_name)
        if addresses is None:
            return None
        found = addresses.get(broker_id)
        if found is None and not only_this and addresses:
            found = addresses.get(broker_id + 1) if broker_id != MASTER_ID else None
            found = found or addresses[min(addresses)]
        return found

    def all_addresses(self, *, masters_only: bool = False) -> list[str]:
        """Every address (heartbeats go to slaves too), in a stable order, without doubles."""
        found: dict[str, None] = {}
        for name in self.names:
            for broker_id, address in sorted(self._brokers[name].items()):
                if not masters_only or broker_id == MASTER_ID:
                    found[address] = None
        return list(found)
