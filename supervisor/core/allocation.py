"""Which message queues belong to which member of the group: the strategies of client/consumer/rebalance/*.java.

All members of a group must use the same strategy on equally sorted lists, else queues are owned twice or by nobody. So each
gives what the Java class of that name gives, in the same order: tests hold them against results of the Java classes. Where
the list names a client id twice (a lingering connection), `strategy_of` adds the second share to the first.
machine_rooms.py has the larger ones; a user's own strategy runs in a process of its own
(user_strategy.py), because no user code runs in this one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

from ...conf.settings import ConsumerSettings
from ...remoting.errors import UsageError
from ...remoting.queues import MessageQueue
from .machine_rooms import NEARBY_PREFIX, machine_room, machine_room_nearby, room_finder

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, sorted queues of one topic, sorted client ids with the own one among them) -> the own queues. Raises
AllocationError when it cannot decide: then nothing changes in this round (RebalanceImpl.rebalanceByTopic)."""


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Contiguous blocks, the first `n % c` members one queue more (AllocateMessageQueueAveragely.java)."""
    n, c, i = len(queues), len(members), members.index(client_id)
    rest = n % c
    size = 1 if n <= c else (n // c + 1 if i < rest else n // c)
    start = i * size if i < rest else i * size + rest
    return list(queues[start : start + max(0, min(size, n - start))])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Every c-th queue (AllocateMessageQueueAveragelyByCircle.java)."""
    c, i = len(members), members.index(client_id)
    return [queue for k, queue in enumerate(queues) if k % c == i]


VIRTUAL_NODES = 10


def ring_hash(text: str) -> int:
    """0 to 2**32 - 1 (ConsistentHashRouter.MD5Hash)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_text(mq: MessageQueue) -> str:
    """MessageQueue.toString."""
    return f"MessageQueue [topic={mq.topic}, brokerName={mq.broker_name}, queueId={mq.queue_id}]"


def ring_of(members: Sequence[str], virtual_nodes: int) -> dict[int, str]:
    """Place -> member. Of two that fall on one place the later one has it."""
    ring: dict[int, str] = {}
    for member in members:
        there = sum(owner == member for owner in ring.values())
        for number in range(there, there + virtual_nodes):
            ring[ring_hash(f"{member}-{number}")] = member
    return ring


def consistent_hash(
    virtual_nodes: int = VIRTUAL_NODES,
) -> Strategy:
    """AllocateMessageQueueConsistentHash.java with ConsistentHashRouter.java: stable when members come and go. All members
    must use the same number of virtual nodes (Java's default: 10).

    Each member has as many places on a ring as it has virtual nodes, `<client id>-<k>`; a queue belongs to the first place at
    or after its own hash, around the ring. The hash is the first four bytes of MD5, unsigned. A queue's text is what Java's
    MessageQueue.toString gives, and a client id that is listed twice has twice as many places, as in Java.
    """

    def allocate_on_ring(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        ring = ring_of(members, virtual_nodes)
        places = sorted(ring)

        def owner(mq: MessageQueue) -> str:
            at = bisect_left(places, ring_hash(queue_text(mq)))
            return ring[places[at % len(places)]]

        return [mq for mq in queues if owner(mq) == client_id]

    return allocate_on_ring


STRATEGIES: dict[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""The strategies that need no more than the lists; `strategy_of` knows those with settings of their own."""


def of_every_place(strategy: Strategy) -> Strategy:
    """The shares of all places at which the list names us, for a strategy that goes by the first.

    A broker may take a heartbeat for a connection whose end it has seen before, and then names the client twice until the
    connection is idle for 120 s (ClientHousekeepingService.java). Java leaves the second share to nobody for so long. All
    members count the same list, so taking it overlaps with nobody's.
    """

    def allocate_every_share(
        client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        mine: list[MessageQueue] = []
        for place, member in enumerate(members):
            if member == client_id:
                mine += strategy(client_id, queues, [*([""] * place), *members[place:]])
        return mine

    return allocate_every_share


def by_config(wanted: Sequence[MessageQueue]) -> Strategy:
    """The queues that the configuration names, whoever else is there (AllocateMessageQueueByConfig.java).

    Those that the topic's route does not have are left out until it has them.
    """

    def allocate_by_config(
        _client_id: str, queues: Sequence[MessageQueue], _members: Sequence[str]
    ) -> list[MessageQueue]:
        there = set(queues)
        return [mq for mq in wanted if mq in there]

    return allocate_by_config


def everything(_client_id: str, queues: Sequence[MessageQueue], _members: Sequence[str]) -> list[MessageQueue]:
    """All queues: broadcasting."""
    return list(queues)


def parse_queue(text: str) -> MessageQueue:
    """`topic@broker:queueId`; the setting's rule has looked at it before."""
    topic, _, rest = text.partition("@")
    broker, _, number = rest.rpartition(":")
    return MessageQueue(topic, broker, int(number))


def is_users_own(name: str) -> bool:
    """Whether the strategy is an import path ("package.module:function")."""
    return ":" in name


def strategy_of(consumer: ConsumerSettings) -> Strategy:
    """The strategy that the settings name; raises UsageError for an unknown one.

    For a user's own it is one that refuses: `UserStrategy` is asked instead.
    """
    name = consumer.allocate_strategy
    if consumer.message_model == "BROADCASTING":
        return everything
    if name == "CONFIG":
        return by_config([parse_queue(text) for text in consumer.allocate_queues])
    if name == "CONSISTENT_HASH":
        return consistent_hash(consumer.consistent_hash_virtual_nodes)
    if name == "MACHINE_ROOM":
        return of_every_place(machine_room(frozenset(consumer.machine_room_ids)))
    if name.startswith(NEARBY_PREFIX):
        return machine_room_nearby(_in_full(name.removeprefix(NEARBY_PREFIX)), room_finder(consumer.machine_rooms))
    if is_users_own(name):
        return _not_here
    return _in_full(name)


@cache
def _in_full(name: str) -> Strategy:
    # On the ring of the consistent hash every place of a client leads to it anyway.
    return strategy_named(name) if name == "CONSISTENT_HASH" else of_every_place(strategy_named(name))


def strategy_named(name: str) -> Strategy:
    """The strategy of that name, as Java's getName() spells it; raises UsageError for an unknown one."""
    found = STRATEGIES.get(name)
    if found is None:
        raise UsageError(
            f"consumer.allocate_strategy = {name!r} is not known: use one of {', '.join(sorted(STRATEGIES))}"
        )
    return found


def _not_here(_client_id: str, _queues: Sequence[MessageQueue], _members: Sequence[str]) -> list[MessageQueue]:
    raise UsageError("a user's own allocation strategy runs in its own process")


def allocate(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue] | None:
    """The queues of `client_id` after sorting both lists as Java does; None = no change this round.

    An empty list of members or queues means that a look-up failed, and changes nothing (RebalanceImpl.java). A member
    that does not find itself in the list owns nothing (its heartbeat has not arrived yet).
    """
    if not queues or not members:
        return None
    if client_id not in members:
        return []
    return strategy(client_id, sorted(queues), sorted(members))
