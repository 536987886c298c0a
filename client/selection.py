"""Which queue a message goes to. Pure.

Round robin over the topic's writable queues; after a failure the broker that failed is left out where there is another one,
and where brokers are rated (faults.py), the better ones are preferred (client/latency/MQFaultStrategy.java and
client/impl/producer/TopicPublishInfo.java, selectOneMessageQueue). A selector decides by itself, and then nothing is
retried elsewhere: who chooses a queue wants an order.

Selectors are any callables; those here are Java's SelectMessageQueueByHash, -ByRandom and -ByMachineRoom. The last one
returns nothing in RocketMQ's open source; here it keeps to brokers whose name is `room@name`, as the allocation strategy of
that name does (AllocateMessageQueueByMachineRoom.java).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..remoting.arguments import FUNCTION, TEXTS, check, instance, refuse
from ..remoting.errors import UsageError
from ..remoting.hashing import java_hash
from ..remoting.queues import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of the topic's writable queues (broker by broker, never empty)."""

Wanted = Callable[[MessageQueue], bool]

TOPICS_MAX = 4_096


class RoundRobin:
    """One turn counter per topic, bounded; a topic's first turn starts at `start(n)` (a random number below n)."""

    def __init__(self, start: Callable[[int], int]) -> None:
        self._start = start
        self._turns: dict[str, int] = {}

    def select(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        avoid_broker: str | None = None,
        preferences: Sequence[Wanted] = (),
    ) -> MessageQueue:
        """The topic's next queue, not on `avoid_broker` unless there is no other. `queues` must not be empty.

        Of `preferences` the first counts that a queue of another broker meets; where none does, the turn decides alone.
        """
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= TOPICS_MAX:
                self._turns.clear()
            turn = self._start(len(queues))
        for wanted in preferences or (_any,):
            for step in range(len(queues)):
                choice = queues[(turn + step) % len(queues)]
                if choice.broker_name != avoid_broker and wanted(choice):
                    self._turns[topic] = turn + step + 1
                    return choice
        self._turns[topic] = turn + 1
        return queues[turn % len(queues)]


def _any(_: MessageQueue) -> bool:
    return True


def by_key(key: str) -> QueueSelector:
    """All messages of one key into one queue, by Java's hash (SelectMessageQueueByHash.java), while the queues stay."""
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        refuse("by_key", "key", key, "a str, such as str(order_id)")
    value = abs(java_hash(key))  # Java's remainder has the sign of the hash, and it drops the sign afterwards

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[value % len(queues)]

    return select


def by_random(below: Callable[[int], int]) -> QueueSelector:
    """Any queue (SelectMessageQueueByRandom.java); `below(n)` draws a number from 0 to n-1: `random.randrange`."""
    check("by_random", {"below": below}, {"below": FUNCTION})

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[below(len(queues))]

    return select


def by_machine_room(rooms: Iterable[str], then: QueueSelector) -> QueueSelector:
    """What `then` chooses among the queues of brokers in these rooms. Raises UsageError when there are none."""
    rooms = check("by_machine_room", {"rooms": rooms, "then": then}, {"rooms": TEXTS, "then": FUNCTION})["rooms"]

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        near = [mq for mq in queues if "@" in mq.broker_name and mq.broker_name.partition("@")[0] in rooms]
        if not near:
            raise UsageError(
                f"topic {queues[0].topic} has no queue in the machine rooms {', '.join(sorted(rooms))}: brokers must be"
                " named room@name"
            )
        return then(near)

    return select


def to_queue(mq: MessageQueue) -> QueueSelector:
    """Into exactly this queue. Raises UsageError when the topic has no such writable queue."""
    check(
        "to_queue", {"mq": mq}, {"mq": instance(MessageQueue, "a MessageQueue, such as one of producer.queues(topic)")}
    )

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        if mq not in queues:
            raise UsageError(f"queue {mq.queue_id} of topic {mq.topic} on broker {mq.broker_name} cannot be written")
        return mq

    return select
