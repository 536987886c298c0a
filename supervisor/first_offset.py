"""Where a queue is begun that is assigned to us: the stored offset, else what consumeFromWhere says.

RebalancePushImpl.computePullFromWhere (PROTOCOL.md §4.4). A real broker answers 0 for a young queue without a stored
offset, so that a new group starts at 0 whatever consumeFromWhere says (§2.3): that answer counts as stored.
"""

from __future__ import annotations

from ..client.operations import Operations
from ..remoting.queues import MessageQueue

RETRY_PREFIX = "%RETRY%"


class FirstOffset:
    """The rule with its settings; `timestamp_ms` is that of consumeTimestamp."""

    def __init__(self, operations: Operations, group: str, consume_from_where: str, timestamp_ms: int) -> None:
        self._operations = operations
        self._group = group
        self._where = consume_from_where
        self._timestamp_ms = timestamp_ms

    async def find(self, mq: MessageQueue) -> tuple[int, str]:
        """(offset, the reason in words). Raises what the look-ups raise."""
        stored = await self._operations.query_consumer_offset(self._group, mq)
        if stored is not None:
            return stored, "the broker's stored offset"
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
