"""Which queue a message goes to. Pure.

Round robin over the topic's writable queues; after a failure the broker that failed is left out where there is another one
(client/latency/MQFaultStrategy.java and client/impl/producer/TopicPublishInfo.java, selectOneMessageQueue without latency
faults). A selector decides by itself, and then nothing is retried elsewhere: who chooses a queue wants an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..remoting.errors import UsageError
from ..remoting.hashing import java_hash
from ..remoting.queues import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of the topic's writable queues (broker by broker, never empty)."""

TOPICS_MAX = 4_096


class RoundRobin:
    """One turn counter per topic, bounded; a topic's first turn starts at `start(n)` (a random number below n)."""

    def __init__(self, start: Callable[[int], int]) -> None:
        self._start = start
        self._turns: dict[str, int] = {}

    def select(self, topic: str, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """The topic's next queue, not on `avoid_broker` unless there is no other. `queues` must not be empty."""
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= TOPICS_MAX:
                self._turns.clear()
            turn = self._start(len(queues))
        choice = queues[turn % len(queues)]
        if choice.broker_name == avoid_broker:
            for step in range(1, len(queues)):
                other = queues[(turn + step) % len(queues)]
                if other.broker_name != avoid_broker:
                    choice, turn = other, turn + step
                    break
        self._turns[topic] = turn + 1
        return choice


def by_key(key: str) -> QueueSelector:
    """All messages of one key into one queue, by Java's hash (SelectMessageQueueByHash.java), while the queues stay."""
    value = abs(java_hash(key))  # Java's remainder has the sign of the hash, and it drops the sign afterwards

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[value % len(queues)]

    return select


def to_queue(mq: MessageQueue) -> QueueSelector:
    """Into exactly this queue. Raises UsageError when the topic has no such writable queue."""

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        if mq not in queues:
            raise UsageError(f"queue {mq.queue_id} of topic {mq.topic} on broker {mq.broker_name} cannot be written")
        return mq

    return select
