"""Who is in a group, and which queues each member has: what its members say of themselves, by way of a broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..client.admin import Admin
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.admin_bodies import ConsumerConnections
from ..remoting.errors import RocketcrewError
from ..remoting.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class GroupMember:
    """`queues` is None where the member did not answer."""

    client_id: str
    address: str
    language: str
    version: str
    queues: tuple[MessageQueue, ...] | None
    in_hand: Mapping[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])
    """Messages of each queue that it has pulled or popped and not finished, as it says."""


async def members_of(
    cluster: Cluster, group: str, topic: str | None = None
) -> tuple[list[GroupMember], ConsumerConnections | None]:
    """The members, sorted by client id, and what the broker holds of the group; None and nobody when it is offline.

    `group` and `topic` with their namespace. Raises BrokerError 17 for a group that the cluster does not know.
    """
    found = await Admin(cluster).consumer_connections(group, topic)
    if found is None:
        return [], None
    address = await _a_broker(cluster, group, topic)
    operations = Operations(cluster)

    async def held_by(client_id: str) -> dict[MessageQueue, int] | None:
        try:
            info = await operations.running_info(address, group, client_id)
        except RocketcrewError:
            return None
        held = {mq: queue.cached_msg_count for mq, queue in info.mq_table.items()}
        return held | {mq: queue.wait_ack_count for mq, queue in info.mq_pop_table.items()}

    clients = sorted(found.connection_set, key=lambda one: one.client_id)
    held = await asyncio.gather(*(held_by(one.client_id) for one in clients))
    return [
        GroupMember(
            one.client_id,
            one.client_addr,
            str(one.language),
            str(one.version),
            None if each is None else tuple(sorted(each)),
            each or {},
        )
        for one, each in zip(clients, held, strict=True)
    ], found


async def _a_broker(cluster: Cluster, group: str, topic: str | None) -> str:
    queues = await cluster.queues_to_read(topic or f"%RETRY%{group}")
    return await cluster.address_of(queues[0])


def owners(members: list[GroupMember]) -> dict[MessageQueue, str]:
    """The member that has each queue."""
    return {mq: member.client_id for member in members for mq in member.queues or ()}


def in_hand(members: list[GroupMember]) -> dict[MessageQueue, int]:
    """Messages of each queue that a member has and has not finished."""
    found = Counter[MessageQueue]()
    for member in members:
        found.update(dict(member.in_hand))
    return dict(found)
