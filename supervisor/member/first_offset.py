"""Where a queue is begun that is assigned to us: the stored offset, else what consumeFromWhere says.

RebalancePushImpl.computePullFromWhereWithException (docs/protocol.md). A broker answers 0 for a queue without a stored
offset while its first message is still in memory, so that a new group starts at 0 on a young topic whatever
consumeFromWhere says (ConsumerManageProcessor.queryConsumerOffset): that answer counts as stored. What a 0 means is
asked once more, so that the reason can be logged; a 4.x broker does not distinguish the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.formats import consume_timestamp_ms
from ...conf.settings import ConsumerSettings, Settings, is_broadcasting
from ...remoting.names import RETRY_PREFIX
from ...remoting.queues import MessageQueue
from ..core.decisions import Core
from .commits import Commits
from .local_offsets import LocalCommits, LocalOffsets, own_offsets_path

CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000


class StoredOffsets(Protocol):
    """Where the group's or the member's offsets are kept."""

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        """(offset, where it comes from), None without one. Raises what a look-up raises."""
        ...

    async def stored(self, mq: MessageQueue, known: int) -> int | None:
        """Only what somebody has stored; `known` is what we had committed. Raises what a look-up raises."""
        ...


class FileOffsets:
    """Broadcasting: each member has its own."""

    def __init__(self, local: LocalOffsets) -> None:
        self._local = local

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        offset = self._local.read(mq)
        return None if offset is None else (offset, f"the offset in {self._local.path}")

    async def stored(self, mq: MessageQueue, known: int) -> int | None:
        del known
        return self._local.read(mq)


class FirstOffset:
    """The rule with its settings; `timestamp_ms` is that of consumeTimestamp."""

    def __init__(
        self, operations: Operations, stored: StoredOffsets, consume_from_where: str, timestamp_ms: int
    ) -> None:
        self._operations = operations
        self._stored = stored
        self._where = consume_from_where
        self._timestamp_ms = timestamp_ms

    async def group_is_at(self, mq: MessageQueue, known: int) -> int:
        """The group's offset of a queue that `known` is committed of, -1 where nobody has stored one: nobody is ahead of us
        then, and the 0 that brokers make up for young queues is no reset."""
        stored = await self._stored.stored(mq, known)
        return -1 if stored is None else stored

    async def find(self, mq: MessageQueue) -> tuple[int, str]:
        """(offset, the reason in words). Raises what the look-ups raise."""
        stored = await self._stored.find(mq)
        if stored is not None:
            return stored
        retry = mq.topic.startswith(RETRY_PREFIX)
        if self._where == "CONSUME_FROM_TIMESTAMP":
            if retry:
                return await self._operations.max_offset(mq), "a retry topic, CONSUME_FROM_TIMESTAMP: its end"
            offset = await self._operations.search_offset(mq, self._timestamp_ms)
            return offset, f"CONSUME_FROM_TIMESTAMP {self._timestamp_ms}"
        if retry:
            return 0, "a retry topic: its beginning"
        if self._where == "CONSUME_FROM_FIRST_OFFSET":
            return 0, "CONSUME_FROM_FIRST_OFFSET"
        return await self._operations.max_offset(mq), "CONSUME_FROM_LAST_OFFSET"


def timestamp_to_begin_at(consumer: ConsumerSettings, now_ms: int) -> int:
    """What CONSUME_FROM_TIMESTAMP means, in milliseconds: the setting, else half an hour ago."""
    if consumer.consume_timestamp:
        return consume_timestamp_ms(consumer.consume_timestamp)
    return now_ms - CONSUME_TIMESTAMP_BACK_MS


def offset_store(
    settings: Settings, client_id: str, cluster: Cluster, operations: Operations, core: Core, now: Callable[[], float]
) -> tuple[Commits | LocalCommits, FirstOffset]:
    """Where offsets are committed, and how the first one is found: at the brokers when clustering, in an own file when
    broadcasting (DefaultMQPushConsumerImpl.start). Raises UsageError for a file that cannot be read."""
    consumer = settings.consumer
    timestamp_ms = timestamp_to_begin_at(consumer, wall_ms())
    where = consumer.consume_from_where
    if not is_broadcasting(settings):
        commits = Commits(cluster, operations, core, consumer.group, now)
        return commits, FirstOffset(operations, commits.offsets, where, timestamp_ms)
    local = LocalOffsets(own_offsets_path(consumer, client_id))
    return LocalCommits(local, core, now), FirstOffset(operations, FileOffsets(local), where, timestamp_ms)
