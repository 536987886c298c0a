"""The name of one queue of one topic on one broker."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """A message queue; sorts as Java's `MessageQueue.compareTo` (topic, broker name, queue id).

    Every member of a group must sort alike, as the allocation strategies work on positions. Java compares UTF-16 units
    and Python code points; names are limited to `[%|a-zA-Z0-9_-]`, where both orders are the same.
    """

    topic: str
    broker_name: str
    queue_id: int
