"""The ring of AllocateMessageQueueConsistentHash.java (with ConsistentHashRouter.java): stable when members come and go.

Each member stands on the ring at as many places as it has virtual nodes, `<client id>-<k>`; a queue belongs to the first
place at or behind its own hash, around the ring. The hash is the first four bytes of MD5, unsigned. A queue's text is what
Java's MessageQueue.toString gives, and a client id that is listed twice has twice as many places, as in Java.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence

from ...remoting.queues import MessageQueue

VIRTUAL_NODES = 10


def ring_hash(text: str) -> int:
    """0 to 2**32 - 1 (ConsistentHashRouter.MD5Hash)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_text(mq: MessageQueue) -> str:
    """MessageQueue.toString."""
    return f"MessageQueue [topic={mq.topic}, brokerName={mq.broker_name}, queueId={mq.queue_id}]"


def ring_of(members: Sequence[str], virtual_nodes: int) -> dict[int, str]:
    """Place -> member. Of two that fall on one place the later one stands there."""
    ring: dict[int, str] = {}
    for member in members:
        there = sum(owner == member for owner in ring.values())
        for number in range(there, there + virtual_nodes):
            ring[ring_hash(f"{member}-{number}")] = member
    return ring


def consistent_hash(
    virtual_nodes: int = VIRTUAL_NODES,
) -> Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]:
    """The strategy with so many places a member (Java's default: 10). All members must use the same number."""

    def allocate_on_ring(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        ring = ring_of(members, virtual_nodes)
        places = sorted(ring)

        def owner(mq: MessageQueue) -> str:
            at = bisect_left(places, ring_hash(queue_text(mq)))
            return ring[places[at % len(places)]]

        return [mq for mq in queues if owner(mq) == client_id]

    return allocate_on_ring
