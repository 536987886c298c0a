"""The records that a flush finished, by queue, and their JSON form in segments (META_BATCH_OUTCOMES) and packets. Pure.

The JSON is `[[topic, broker, queue id, [[from, to], ...]], ...]` with `to` exclusive: the pulled records that a flush
finished, also those without rows.
"""

from __future__ import annotations

import json
from typing import Any

from ..durable.intervals import Intervals
from ..remoting.errors import ProtocolError
from .packets import QueueRanges

QueueKey = tuple[str, str, int]
_to_text = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` would make an encoder for every flush."""


class OffsetSets:
    """Offsets of several queues."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, Intervals] = {}

    def add(self, key: QueueKey, start: int, end: int) -> None:
        """Add [start, end) of queue (topic, broker, queue id)."""
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = Intervals()
        found.add(start, end)

    def queues(self) -> tuple[QueueRanges, ...]:
        """Sorted, disjoint, not touching ranges of every queue."""
        return tuple(
            QueueRanges(*key, tuple(found.pairs()))
            for key, found in sorted(self._queues.items(), key=lambda item: item[0])
        )

    def to_json(self) -> bytes:
        """See the module's text."""
        return _to_text(self.queues()).encode()

    def add_json(self, text: bytes, where: str) -> None:
        """Add what `to_json` wrote. Raises ProtocolError."""
        try:
            queues: list[Any] = json.loads(text)
            for topic, broker, queue_id, spans in queues:
                for start, end in spans:
                    self.add((str(topic), str(broker), int(queue_id)), int(start), int(end))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"unusable offsets: {error}", where) from error
