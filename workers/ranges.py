"""Queue offsets as ranges, and their JSON form in segments (META_BATCH_OUTCOMES) and packets. Pure.

The JSON is `[[topic, broker, queue id, [[from, to], ...]], ...]` with `to` exclusive: the pulled records that a flush
finished, also those without rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..remoting.errors import ProtocolError
from .packets import QueueRanges

QueueKey = tuple[str, str, int]
Span = tuple[int, int]


class OffsetSets:
    """Offsets of several queues, joined into ranges when they are asked for."""

    def __init__(self) -> None:
        self._spans: dict[QueueKey, list[Span]] = {}

    def add(self, key: QueueKey, start: int, end: int) -> None:
        """Add [start, end) of queue (topic, broker, queue id)."""
        spans = self._spans.setdefault(key, [])
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))

    def queues(self) -> tuple[QueueRanges, ...]:
        """Sorted, disjoint, not touching ranges of every queue."""
        return tuple(QueueRanges(*key, tuple(_merged(spans))) for key, spans in sorted(self._spans.items()))

    def to_json(self) -> bytes:
        """See the module's text."""
        return json.dumps(self.queues(), separators=(",", ":")).encode()

    def add_json(self, text: bytes, where: str) -> None:
        """Add what `to_json` wrote. Raises ProtocolError."""
        try:
            queues: list[Any] = json.loads(text)
            for topic, broker, queue_id, spans in queues:
                for start, end in spans:
                    self.add((str(topic), str(broker), int(queue_id)), int(start), int(end))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"unusable offsets: {error}", where) from error


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
