"""Room for topics: for those of users, and beside them for those of groups.

`%RETRY%group`, `%DLQ%group` and `%RETRY%group_topic`, where POP shows again what a group has of a topic, belong to a group. A
message that failed must have somewhere to go, so topics of users take no room of theirs, nor the other way round: there are
`topics_max` of each. A group in the table, which has half as many, always gets its own two. Of the rest, what POP shows again
to one in the table may use all of the room, and whoever sends to retry topics of others half of it. What was shown again, or
delayed, gets its topic in any case: it was stored before.

A group's topics outlive it, as at a genuine broker: delayed retries may still come. When there is no room for one more, those
make it that hold no message and whose group nobody knows any more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ..remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_of_group
from .client_table import ClientTable
from .group_table import GroupTable
from .message_store import MessageStore
from .offset_table import OffsetTable
from .topic_table import TopicTable

DROPPED_MAX = 50  # topics that make room at once, as others wait meanwhile
LOOK_INTERVAL_MS = 60_000  # after a look that went through all of them; and of the log's lines about it


def groups_max(topics_max: int) -> int:
    return topics_max // 2


def groups_of(topic: str) -> list[str]:
    """The groups that it may belong to: `%RETRY%g_T` is that of `g_T`, or where POP shows again what `g` has of `T`."""
    if topic.startswith(DLQ_PREFIX):
        return [topic.removeprefix(DLQ_PREFIX)]
    name = topic.removeprefix(RETRY_PREFIX)
    return [name, *(name[:at] for at, char in enumerate(name) if char == "_")]


class TopicRoom:
    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        store: MessageStore,
        delete: Callable[[int, list[str]], None],
        topics_max: int,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._delete = delete
        self._topics_max = topics_max
        self._next_look_ms = self._next_line_ms = 0

    def refusal(self, now_ms: int, topic: str) -> str | None:
        """Why no topic of this name can be made more, None when one can. Raises StorageError."""
        full = self._full(topic)
        if full is not None and is_of_group(topic) and now_ms >= self._next_look_ms:
            leftovers = self._leftovers()
            self._delete(now_ms, leftovers)
            if len(leftovers) < DROPPED_MAX:
                self._next_look_ms = now_ms + LOOK_INTERVAL_MS
            full = self._full(topic)
        if is_of_group(topic) and self._groups.known(groups_of(topic)[0]) is not None:
            return None
        if full is not None and now_ms >= self._next_line_ms:
            self._next_line_ms = now_ms + LOOK_INTERVAL_MS
            self._store.events.append(("store.topics_full", {"reason": full}))
        return full

    def _full(self, topic: str) -> str | None:
        count, most = self._topics.of_groups_count, self._topics_max
        kind = "retry and dead-letter topics"
        remedy = "groups (mqadmin deleteSubGroup), or such topics (deleteTopic) of groups that nobody uses"
        if not is_of_group(topic):
            count, kind, remedy = len(self._topics) - count, "topics", "topics (mqadmin deleteTopic)"
        elif not any(map(self._groups.known, groups_of(topic))):
            most //= 2
        if count < most:
            return None
        return f"this broker has {count} {kind} already, of {most}; {topic} cannot be made: delete {remedy}"

    def _leftovers(self) -> list[str]:
        """Topics of groups that hold no message, and of which no group is needed."""
        found = (
            topic
            for topic in self._topics.of_groups()
            if not self._store.holds(topic) and not any(map(self._is_needed, groups_of(topic)))
        )
        return list(islice(found, DROPPED_MAX))

    def _is_needed(self, group: str) -> bool:
        return self._groups.known(group) is not None or self.is_used(group)

    def is_used(self, group: str) -> bool:
        """Whether a group has members, or offsets that somebody will ask for."""
        return self._clients.consumer_group(group) is not None or self._offsets.has_group(group)
