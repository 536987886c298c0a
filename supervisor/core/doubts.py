"""Queues in doubt: the brokers may have given them to another member while we noticed nothing, and may have got them back.

A member whose connection is cut is forgotten at once, and one that stands still (a stopped process, a machine that sleeps)
after two minutes. Others then go on with its queues from what it had committed. When it is back, its own offset is an old
one: whether it is committed or read on from, all that the others have finished meanwhile would run again.

So such a queue does what is done for one that is opened, without ending: the group's members are looked up (the answer may
take it away), then its offset is asked for. Where that is ahead of what is finished here, another has gone on with the queue,
and it is read again from there. Until that is known nothing of it is committed, and after WITHHELD_S what is committed is
guarded; what runs, runs on, and it is pulled, as a broker that merely starts anew gives nothing away. While nobody answers,
each topic is asked for again with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from ...remoting.log_keys import place_keys
from .actions import FetchOffset
from .events import Members
from .process_queue import ProcessQueue, PulledQueue
from .state import State
from .states import QueueState

STOOD_STILL_S = 30.0
"""Without any event or timer. Brokers wait for 120 s after a heartbeat, the last of which may be 30 s old; a doubt costs a
look-up for each topic and a question for each queue, so there is much room."""
WITHHELD_S = 10.0
"""For the answers. A doubt may last: a strategy of the user's fails, say, and then nobody knows whose the queue is."""
AGAIN_MAX_S = 8.0
"""Between two look-ups of a topic while nobody answers: so late a broker that is back may be asked."""


class Doubts:
    """Of one member. `look_up(topic, now)` asks for the members, `restart(queue, now)` ends a queue and reads it again."""

    def __init__(
        self, state: State, look_up: Callable[[str, float], None], restart: Callable[[ProcessQueue, float], None]
    ) -> None:
        self.s = state
        self._look_up = look_up
        self._restart = restart
        self._pauses: dict[str, float] = {}
        """By topic that is to be looked up again: how long it waits."""
        self._due: set[str] = set()
        """Those that have a timer."""

    def broker_lost(self, broker_name: str, now: float) -> None:
        """The connection to the broker was lost, from its side or ours."""
        self._begin([q for q in self.s.pulled.values() if q.pq.mq.broker_name == broker_name], now)

    def stood_still(self, idle_s: float, now: float) -> None:
        """Nothing was done here for so long. Also of a queue that is opening the next answer may be as old."""
        if self.s.pulled:
            self.s.log("warning", "stood_still", duration_ms=round(idle_s * 1000))
        self._begin(self.s.pulled.values(), now)
        for q in self.s.pulled.values():
            if q.pq.state is QueueState.OPENING:
                q.doubted_at = now

    def _begin(self, queues: Iterable[PulledQueue], now: float) -> None:
        if self.s.config.broadcasting:
            return  # nobody else has them
        doubted = [q for q in queues if q.pq.state is QueueState.ASSIGNED]
        for q in doubted:
            q.doubted_at, q.position_asked = now, False
        for topic in dict.fromkeys(q.pq.mq.topic for q in doubted):
            self._pauses.pop(topic, None)
            self._look_up(topic, now)

    def looked_up(self, answer: Members, now: float) -> None:
        """What the group's members are was asked, and done: queues that are still ours are asked for."""
        asked_at = now if answer.asked_at is None else answer.asked_at
        assigned = [
            self.s.pulled[pq.handle]
            for pq in self.s.by_topic.get(answer.topic, {}).values()
            if pq.state is QueueState.ASSIGNED
        ]
        doubted = [q for q in assigned if q.doubted_at <= asked_at and not q.position_asked]
        if doubted and not (answer.queues and answer.members):
            self._soon(answer.topic, now)
            return
        for q in doubted:
            q.position_asked = True
            self.s.out.append(FetchOffset(q.pq.handle, q.pq.mq, in_doubt=True))

    def answered(self, handle: int, offset: int | None, now: float) -> bool:
        """Where the group is, None = that could not be found out. False where nobody doubts: the queue is opened there."""
        q = self.s.pulled.get(handle)
        if q is None or not q.in_doubt:
            return False
        if q.pq.state is QueueState.OPENING:
            q.doubted_at = inf
            if offset is not None:
                self.s.out.append(FetchOffset(handle, q.pq.mq))
            return offset is not None
        if q.pq.state is not QueueState.ASSIGNED or not q.position_asked:
            return False
        q.position_asked = False
        if offset is None:
            self._soon(q.pq.mq.topic, now)
        elif offset > q.pq.head_offset:
            self.s.log("warning", "queue_went_on_elsewhere", **place_keys(q.pq.mq, q.pq.head_offset), committed=offset)
            self._restart(q.pq, now)
        else:
            q.doubted_at = inf
        return True

    def _soon(self, topic: str, now: float) -> None:
        if topic in self._due:
            return
        pause_s = self._pauses.get(topic, self.s.config.open_retry_ms / 1000)
        self._pauses[topic] = min(2 * pause_s, AGAIN_MAX_S)
        self._due.add(topic)

        def again(at: float) -> None:
            self._due.discard(topic)
            if any(q.in_doubt and q.pq.mq.topic == topic for q in self.s.pulled.values()):
                self._look_up(topic, at)

        self.s.at(now + pause_s, again)
