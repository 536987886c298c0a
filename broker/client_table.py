"""Who is connected, in which groups (BR/client/{ConsumerManager,ConsumerGroupInfo,ProducerManager}.java).

Rules:
- Membership belongs to a connection: a group holds channels, each with the client id it announced. One id on two channels
  (a client that reconnected before its old connection was noticed dead) is listed twice.
- Subscriptions belong to the group, and the last heartbeat wins for all: topics that it does not name are removed. A
  subscription is replaced only by one with a greater version.
- A change that members must act on (channel new or gone, topics added or removed) makes a notice to every channel of the
  group, the sender included. The caller sends it; this table says for which groups.
- A channel that does not name a group for `expiry_ms` is removed from that group, whatever else it says, and closed: a client
  that lives connects again. The removal is no notice, as at the genuine broker; the close is one for its other groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..remoting.bodies import BROADCASTING, SubscriptionData
from ..remoting.errors import UsageError
from .wanted import Wanted

CLIENT_ID_MAX_CHARS = 1_024  # Java's are an IP address and the name of an instance


@dataclass(slots=True)
class ClientChannel:
    """One connection as member of one group."""

    channel: int
    client_id: str
    address: str
    language: int
    version: int
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group that has members."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    channels: dict[int, ClientChannel] = field(default_factory=dict[int, ClientChannel])
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    wanted: dict[str, Wanted] = field(default_factory=dict[str, Wanted])
    """What subscriptions want, by topic: made with the first pull, and shared by all that are held."""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        return [member.client_id for member in self.channels.values()]

    def find(self, client_id: str) -> ClientChannel | None:
        return next((member for member in self.channels.values() if member.client_id == client_id), None)

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over what a heartbeat says; True when topics were added or removed."""
        changed = False
        named: set[str] = set()
        for fresh in subscriptions:
            named.add(fresh.topic)
            known = self.subscriptions.get(fresh.topic)
            changed = changed or known is None
            if known is None or fresh.sub_version > known.sub_version:
                self.subscriptions[fresh.topic] = fresh
                self.wanted.pop(fresh.topic, None)
        for topic in [topic for topic in self.subscriptions if topic not in named]:
            changed = True
            del self.subscriptions[topic]
            self.wanted.pop(topic, None)
        return changed


class ClientTable:
    """Consumer and producer groups by name, with an index by channel for the moment when one closes."""

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[int, ClientChannel]] = {}
        self._producer_ids: dict[str, ClientChannel] = {}
        self._groups_of: dict[int, tuple[set[str], set[str]]] = {}  # channel -> consumer groups, producer groups

    def groups_of(self, channel: int) -> tuple[list[ConsumerGroup], set[str]]:
        """The consumer groups and the names of the producer groups that the connection is in."""
        consumers, producers = self._groups_of.get(channel, (set(), set()))
        return [self._consumers[name] for name in consumers], set(producers)

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def producer_of(self, client_id: str) -> ClientChannel | None:
        """The connection on which the client announced itself last as a producer."""
        return self._producer_ids.get(client_id)

    def producers(self, group: str) -> list[ClientChannel]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[str]:
        """Names of the producer groups with members, sorted."""
        return sorted(self._producers)

    def register_consumer(
        self,
        name: str,
        member: ClientChannel,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[SubscriptionData],
    ) -> bool:
        """Add or refresh a member; True when the group must be notified."""
        group = self._consumers.setdefault(name, ConsumerGroup(name))
        group.consume_type = consume_type
        group.message_model = message_model
        group.consume_from_where = consume_from_where
        fresh = member.channel not in group.channels
        group.channels[member.channel] = member
        self._index(member.channel)[0].add(name)
        return group.update_subscriptions(subscriptions) or fresh

    def register_producer(self, name: str, member: ClientChannel) -> None:
        members = self._producers.setdefault(name, {})
        before = members.get(member.channel)
        members[member.channel] = member
        self._index(member.channel)[1].add(name)
        if before is not None and before.client_id != member.client_id:
            self._forget_id(before)
        self._producer_ids[member.client_id] = member

    def _index(self, channel: int) -> tuple[set[str], set[str]]:
        return self._groups_of.setdefault(channel, (set(), set()))

    def unregister_consumer(self, name: str, channel: int) -> bool:
        """Remove a member; True when it was one and the group must be told."""
        group = self._consumers.get(name)
        if group is None or group.channels.pop(channel, None) is None:
            return False
        self._index(channel)[0].discard(name)
        self._forget_empty(name, channel)
        return True

    def unregister_producer(self, name: str, channel: int) -> None:
        member = self._producers.get(name, {}).pop(channel, None)
        if member is not None:
            self._index(channel)[1].discard(name)
            self._forget_id(member)
            self._forget_empty(name, channel)

    def _forget_id(self, member: ClientChannel) -> None:
        """The connection is no member under that client id any more, unless it is so in another group."""
        known = self._producer_ids.get(member.client_id)
        if known is None or known.channel != member.channel:
            return
        others = (self._producers[name][member.channel] for name in self._index(member.channel)[1])
        if all(other.client_id != member.client_id for other in others):
            del self._producer_ids[member.client_id]

    def _forget_empty(self, name: str, channel: int) -> None:
        if name in self._consumers and not self._consumers[name].channels:
            del self._consumers[name]
        if name in self._producers and not self._producers[name]:
            del self._producers[name]
        if self._groups_of.get(channel) == (set(), set()):
            del self._groups_of[channel]

    def close_channel(self, channel: int) -> list[str]:
        """Remove a connection everywhere; the consumer groups that must be told, sorted."""
        consumers, producers = self._groups_of.get(channel, (set(), set()))
        for name in list(producers):
            self.unregister_producer(name, channel)
        return [name for name in sorted(consumers) if self.unregister_consumer(name, channel)]

    def expire(self, now_ms: int) -> list[int]:
        """Remove each member from the group in which it was silent for too long; the channels to close, ascending."""
        consumers = [
            (name, channel) for name, group in self._consumers.items() for channel in self._old(now_ms, group.channels)
        ]
        producers = [
            (name, channel) for name, members in self._producers.items() for channel in self._old(now_ms, members)
        ]
        for name, channel in consumers:
            self.unregister_consumer(name, channel)
        for name, channel in producers:
            self.unregister_producer(name, channel)
        return sorted({channel for _, channel in consumers + producers})

    def _old(self, now_ms: int, members: dict[int, ClientChannel]) -> list[int]:
        return [channel for channel, member in members.items() if now_ms - member.updated_ms > self._expiry_ms]


def text_chars(settings: Iterable[str], subscriptions: Iterable[SubscriptionData]) -> int:
    """How much a group keeps of a heartbeat; hashes of tags count as numbers of ten digits."""
    count = sum(map(len, settings))
    for each in subscriptions:
        words = each.topic, each.sub_string, each.expression_type, *each.tags_set
        count += sum(map(len, words)) + 10 * len(each.code_set)
    return count


def check_client_id(client_id: str) -> None:
    """Raises UsageError."""
    if len(client_id) > CLIENT_ID_MAX_CHARS:
        raise UsageError(f"a client id of {len(client_id)} characters: at most {CLIENT_ID_MAX_CHARS} are possible")
