"""The records that a flush finished, by queue, and their JSON form in segments (META_BATCH_OUTCOMES) and packets. Pure.

The JSON is `[[topic, broker, queue id, [[from, to], ...]], ...]` with `to` exclusive: the pulled records that a flush
finished, also those without rows.
"""

from __future__ import annotations

from functools import lru_cache
from json import dumps, loads  # bound here: a handler's module may put a function of its own into `json`
from typing import Any, Final

from ..durable.intervals import Intervals
from ..remoting.errors import ProtocolError
from .packets import QueueRanges

QueueKey = tuple[str, str, int]
QUEUES_MAX: Final = 4_096
"""Queues whose text is remembered: with more, each flush makes some anew."""


@lru_cache(maxsize=QUEUES_MAX)
def _queue_text(topic: str, broker: str, queue_id: int) -> str:
    """The queue's entry as far as its ranges. A worker writes the same with each flush."""
    return dumps([topic, broker, queue_id], separators=(",", ":"))[:-1] + ","


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
        texts = [
            f"{_queue_text(*key)}[{','.join([f'[{start},{end}]' for start, end in found.pairs()])}]]"
            for key, found in sorted(self._queues.items())
        ]
        return f"[{','.join(texts)}]".encode()

    def add_json(self, text: bytes, where: str) -> None:
        """Add what `to_json` wrote. Raises ProtocolError."""
        try:
            queues: list[Any] = loads(text)
            for topic, broker, queue_id, spans in queues:
                for start, end in spans:
                    self.add((str(topic), str(broker), int(queue_id)), int(start), int(end))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"unusable offsets: {error}", where) from error
