"""Who is in a group, and which queues each member has: what its members say of themselves, by way of a broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..client.admin import Admin
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.admin_bodies import ClientConnection, ConsumerConnections
from ..remoting.bodies import ConsumerRunningInfo
from ..remoting.errors import RocketcrewError
from ..remoting.queues import MessageQueue
from ..supervisor.core.retry_delays import RETRY_DELAYS, decode_counts


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
    delayed: Mapping[MessageQueue, int] | None = None
    """Messages of each queue that it has sent back and that wait for the delay of their retry; None of a member that does
    not count them (Java's)."""


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

    async def asked(client_id: str) -> ConsumerRunningInfo | None:
        try:
            return await operations.running_info(address, group, client_id)
        except RocketcrewError:
            return None

    clients = sorted(found.connection_set, key=lambda one: one.client_id)
    infos = await asyncio.gather(*(asked(one.client_id) for one in clients))
    return [member_of(one, info) for one, info in zip(clients, infos, strict=True)], found


def member_of(client: ClientConnection, info: ConsumerRunningInfo | None) -> GroupMember:
    """A member by what the broker and it say of it; `info` None = it did not answer."""
    who = (client.client_id, client.client_addr, str(client.language), str(client.version))
    if info is None:
        return GroupMember(*who, None)
    held = {mq: queue.cached_msg_count for mq, queue in info.mq_table.items()}
    held |= {mq: queue.wait_ack_count for mq, queue in info.mq_pop_table.items()}
    text = info.user_consumer_info.get(RETRY_DELAYS)
    return GroupMember(*who, tuple(sorted(held)), held, None if text is None else decode_counts(text))


async def _a_broker(cluster: Cluster, group: str, topic: str | None) -> str:
    queues = await cluster.queues_to_read(topic or f"%RETRY%{group}")
    return await cluster.address_of(queues[0])


def owners(members: list[GroupMember]) -> dict[MessageQueue, str]:
    """The member that has each queue."""
    return {mq: member.client_id for member in members for mq in member.queues or ()}


def delayed(members: list[GroupMember]) -> dict[MessageQueue, int] | None:
    """Messages of each queue that wait for the delay of their retry; None where no member counts them."""
    counts = [member.delayed for member in members if member.delayed is not None]
    found = Counter[MessageQueue]()
    for each in counts:
        found.update(dict(each))
    return dict(found) if counts else None


def in_hand(members: list[GroupMember]) -> dict[MessageQueue, int]:
    """Messages of each queue that a member has and has not finished."""
    found = Counter[MessageQueue]()
    for member in members:
        found.update(dict(member.in_hand))
    return dict(found)
