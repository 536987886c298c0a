"""Allocation by machine room: AllocateMessageQueueByMachineRoom.java and AllocateMachineRoomNearby.java.

MACHINE_ROOM takes only queues of brokers called `room@name` whose room is one of the configured ones. MACHINE_ROOM_NEARBY
shares the queues of a room among the members of that room, by another strategy; queues of a room without members are
shared among all. Where something is, a table of patterns says: the first that matches a broker's name or a client
id names its room. A broker or member without a room is an error, as in Java: then nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from ...remoting.errors import RocketcrewError
from ...remoting.queues import MessageQueue

NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"
RoomStrategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


class AllocationError(RocketcrewError):
    """The strategy cannot decide whose the queues are."""


def machine_room(room_ids: frozenset[str]) -> RoomStrategy:
    """The strategy for these rooms (Java's consumeridcs)."""

    def allocate_in_rooms(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        index, count = members.index(client_id), len(members)
        ours = [mq for mq in queues if _is_in(mq.broker_name, room_ids)]
        each, rest = divmod(len(ours), count)
        mine = ours[each * index : each * (index + 1)]
        if index < rest:
            mine.append(ours[index + each * count])
        return mine

    return allocate_in_rooms


def _is_in(broker_name: str, room_ids: frozenset[str]) -> bool:
    # Java's split("@") forgets empty texts at the end: "room@" has one part.
    parts = broker_name.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return len(parts) == 2 and parts[0] in room_ids


def room_finder(rooms: Mapping[str, str]) -> Callable[[str], str]:
    """Name -> room by patterns with * ? [..]; the function raises AllocationError for a name that none matches."""
    patterns = tuple(rooms.items())

    def find(name: str) -> str:
        for pattern, room in patterns:
            if fnmatchcase(name, pattern):
                return room
        raise AllocationError(
            f"no pattern of consumer.machine_rooms matches {name!r}: add one that names the room it is in"
        )

    return find


def machine_room_nearby(inner: RoomStrategy, room_of: Callable[[str], str]) -> RoomStrategy:
    """`inner` on the queues and members of the own room, then on the queues of each room that has no member."""

    def allocate_nearby(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        queues_in: dict[str, list[MessageQueue]] = {}
        for mq in queues:
            queues_in.setdefault(room_of(mq.broker_name), []).append(mq)
        members_in: dict[str, list[str]] = {}
        for member in members:
            members_in.setdefault(room_of(member), []).append(member)
        here = room_of(client_id)
        mine = inner(client_id, queues_in[here], members_in[here]) if here in queues_in else []
        for room in sorted(queues_in.keys() - members_in.keys()):
            mine += inner(client_id, queues_in[room], members)
        return mine

    return allocate_nearby
