"""Where a queue is begun that is assigned to us: the stored offset, else what consumeFromWhere says.

RebalancePushImpl.computePullFromWhereWithException (docs/protocol.md). A broker answers 0 for a queue without a stored
offset while its first message is still in memory, so that a new group starts at 0 on a young topic whatever
consumeFromWhere says (ConsumerManageProcessor.queryConsumerOffset): that answer counts as stored. What lies behind a 0 is
asked once more, so that the reason can be told; a 4.x broker cannot tell the two apart.
"""

from __future__ import annotations

from typing import Protocol

from ...client.operations import Operations
from ...remoting.names import RETRY_PREFIX
from ...remoting.queues import MessageQueue
from .local_offsets import LocalOffsets


class StoredOffsets(Protocol):
    """Where the group's or the member's offsets are kept."""

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        """(offset, where it comes from), None without one. Raises what a look-up raises."""
        ...


class BrokersOffsets:
    """Clustering: the broker has the group's offsets."""

    def __init__(self, operations: Operations, group: str) -> None:
        self._operations = operations
        self._group = group

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        offset = await self._operations.query_consumer_offset(self._group, mq)
        if offset is None:
            return None
        if offset == 0:
            real = await self._operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
            if real is None:
                return 0, "a young queue: it still has its first message, so the broker begins a new group there"
        return offset, "the broker's stored offset"


class FileOffsets:
    """Broadcasting: each member has its own."""

    def __init__(self, local: LocalOffsets) -> None:
        self._local = local

    async def find(self, mq: MessageQueue) -> tuple[int, str] | None:
        offset = self._local.read(mq)
        return None if offset is None else (offset, f"the offset in {self._local.path}")


class FirstOffset:
    """The rule with its settings; `timestamp_ms` is that of consumeTimestamp."""

    def __init__(
        self, operations: Operations, stored: StoredOffsets, consume_from_where: str, timestamp_ms: int
    ) -> None:
        self._operations = operations
        self._stored = stored
        self._where = consume_from_where
        self._timestamp_ms = timestamp_ms

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
