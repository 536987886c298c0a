"""What the member subscribes: topics with their filters, and when each was changed last.

The version of a subscription is the time of its last change and never goes back: a broker keeps the newest that any member
of the group has sent it, and refuses a pull that is newer than what it knows (ConsumerGroupInfo.updateSubscription). A
clustering member subscribes its retry topic too; a broadcasting one retries nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...remoting.bodies import SubscriptionData
from ...remoting.errors import UsageError
from ...remoting.names import RETRY_PREFIX
from ...remoting.subscription import EXPRESSION_TAG, SUB_ALL, FilterExpression


class Subscriptions(Mapping[str, SubscriptionData]):
    """Topic -> subscription, as heartbeats send it. Changed by `subscribe` and `unsubscribe` only."""

    def __init__(self, topics: Mapping[str, FilterExpression], group: str, now_ms: int, *, broadcasting: bool) -> None:
        """Raises UsageError for an expression that means nothing."""
        wanted = dict(topics)
        self._retry_topic = RETRY_PREFIX + group
        if not broadcasting:
            wanted[self._retry_topic] = FilterExpression("*")
        self._table = {topic: _data(topic, wish, now_ms) for topic, wish in wanted.items()}

    def __getitem__(self, topic: str) -> SubscriptionData:
        return self._table[topic]

    def __contains__(self, topic: object) -> bool:
        return topic in self._table  # asked for each pull: that of Mapping is three calls

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def subscribe(self, topic: str, wish: FilterExpression, now_ms: int) -> bool:
        """Add the topic or change its filter; False when it is subscribed so already. Raises UsageError."""
        known = self._table.get(topic)
        version = max(now_ms, known.sub_version + 1) if known is not None else now_ms
        data = _data(topic, wish, version)
        if known is not None and same_filter(known, data):
            return False
        self._table[topic] = data
        return True

    def unsubscribe(self, topic: str) -> bool:
        """Remove the topic; False when it is not subscribed. Raises UsageError for the retry topic and for the last one."""
        if topic not in self._table:
            return False
        if topic == self._retry_topic:
            raise UsageError(f"{topic} cannot be unsubscribed: retries of the group would never be consumed")
        if len(self._table.keys() - {self._retry_topic}) == 1:
            raise UsageError(f"{topic} is the only topic: subscribe another one first, or stop the member")
        del self._table[topic]
        return True

    def wanted_tags(self, topic: str) -> tuple[str, ...] | None:
        """Tags that a worker must check once more (the broker filters by hash); None = every message is wanted."""
        data = self._table.get(topic)
        if data is None or data.expression_type != EXPRESSION_TAG or not data.tags_set:
            return None
        return tuple(sorted(data.tags_set))


def same_filter(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Whether both let the same messages through: the versions, and the order of tags, do not matter."""
    if one.expression_type != other.expression_type:
        return False
    if one.expression_type == EXPRESSION_TAG:
        return set(one.tags_set) == set(other.tags_set)
    return one.sub_string == other.sub_string


def takes_all(data: SubscriptionData) -> bool:
    """Whether a broker leaves nothing out by this subscription, however it compares tags."""
    return data.expression_type == EXPRESSION_TAG and data.sub_string == SUB_ALL


def _data(topic: str, wish: FilterExpression, version: int) -> SubscriptionData:
    return SubscriptionData.of(topic, wish.expression, version, wish.type)


def differences(ours: Mapping[str, SubscriptionData], theirs: Mapping[str, SubscriptionData]) -> list[str]:
    """How another's subscriptions differ from ours, one text a topic; retry topics are made by the clients."""
    found: list[str] = []
    for topic in sorted({*ours, *theirs}):
        if topic.startswith(RETRY_PREFIX):
            continue
        mine, other = ours.get(topic), theirs.get(topic)
        if mine is None:
            found.append(f"topic {topic} is subscribed there, and not by us")
        elif other is None:
            found.append(f"topic {topic} is subscribed by us, and not there")
        elif not same_filter(mine, other):
            found.append(f"topic {topic} is filtered there by {_shown(other)}, by us by {_shown(mine)}")
    return found


def _shown(data: SubscriptionData) -> str:
    kind = "" if data.expression_type == EXPRESSION_TAG else f"{data.expression_type} "
    return f"{kind}{data.sub_string!r}"
