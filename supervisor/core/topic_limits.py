"""How many calls of the handler may work on one topic at once, over all workers (`workers.topic_concurrency`).

A worker counts as one from the moment it is handed messages of the topic until all of them are reported: it runs one call at
a time, so a worker that has some of the topic may have more of it. A worker with a coroutine handler runs all that it has,
so there messages count. Messages of the retry topic may be of any topic: while one is limited, they count for each limited
topic, and so do those of a queue that was taken away.

What finds no room waits beside the line of its kind, and other topics pass it. Only without an order: there a queue, or a
key, is one call at a time anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...remoting.names import RETRY_PREFIX
from ...remoting.queues import MessageQueue
from .chunks import Chunk
from .state import State, WorkerView
from .states import Worker

UNLIMITED: Final = 1 << 30


class TopicLimits:
    """Asked before each hand-over. Keeps nothing: what is in hand stands in the workers' views."""

    def __init__(self, state: State) -> None:
        self.s = state

    def room(self, mq: MessageQueue, worker: WorkerView) -> int:
        """How many messages of the queue may be handed to the worker now."""
        limits = self.s.config.topic_concurrency
        if not limits:
            return UNLIMITED
        if mq.topic.startswith(RETRY_PREFIX):
            return min(self._room(topic, limit, worker) for topic, limit in limits.items())
        limit = limits.get(mq.topic)
        return UNLIMITED if limit is None else self._room(mq.topic, limit, worker)

    def _room(self, topic: str, limit: int, worker: WorkerView) -> int:
        used = in_hand = 0
        for each in self.s.workers.values():
            if each.state is Worker.DEAD:
                continue
            messages = sum(chunk.count - chunk.reported for chunk in self._of(topic, each.in_flight.values()))
            used += messages if each.window else min(messages, 1)
            if each is worker:
                in_hand = messages
        if worker.window:
            return max(0, limit - used)
        return UNLIMITED if in_hand or used < limit else 0

    def _of(self, topic: str, chunks: Iterable[Chunk]) -> Iterable[Chunk]:
        for chunk in chunks:
            pq = self.s.queues.get(chunk.handle)
            if pq is None or pq.mq.topic == topic or pq.mq.topic.startswith(RETRY_PREFIX):
                yield chunk
