"""Locks of message queues at their brokers: what lets one member at a time consume a queue in order.

As Java (RebalanceImpl.java, ConsumeMessageOrderlyService.java): a queue is locked before it is opened, so that its first
offset is read when nobody else moves it any more; all locks are renewed every 20 s; one that was not confirmed for 30 s
counts as lost (the broker's own limit is 60 s); a queue without its lock is neither pulled nor started. Stricter than Java
in two points. After a lost connection the locks of that broker are in doubt, because a broker that restarts knows none:
nothing is handed out until it has confirmed them again; what a worker has goes on, at most until its lock would have ended.
And a queue whose lock another member had meanwhile is read again from its committed offset, because that member may have
moved it.

A queue that was taken away keeps its lock, renewed, while it drains. When it ends with a message still in a worker's hands
(at its deadline), the lock is given up when that message ends, or after UNLOCK_DELAY.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ...remoting.queues import MessageQueue
from .actions import FetchOffset, LockQueues, UnlockQueues
from .process_queue import ProcessQueue
from .state import State
from .states import Queue

FIRST_RENEWAL_MS = 1000
"""Java's first lockAll comes after one second."""


class Locking:
    """Asks, renews and gives up. `resume(queue, now)` goes on with a queue; `restart(queue, now)` reads it again."""

    def __init__(
        self, state: State, resume: Callable[[ProcessQueue, float], None],
        restart: Callable[[ProcessQueue, float], None],
    ) -> None:  # fmt: skip
        self.s = state
        self._resume = resume
        self._restart = restart
        self._asked: set[MessageQueue] = set()
        """A question about these is under way."""
        self._refused: set[int] = set()
        """Open queues that a broker said are another member's."""

    def start(self, now: float) -> None:
        """Begin to renew."""
        ms = min(FIRST_RENEWAL_MS, self.s.config.lock_renewal_ms)
        self.s.at(now + ms / 1000, self._renew)

    def _renew(self, now: float) -> None:
        self._ask(pq for pq in self.s.queues.values() if pq.state is not Queue.ENDED)
        if not self.s.finished:
            self.s.at(now + self.s.config.lock_renewal_ms / 1000, self._renew)

    def _ask(self, queues: Iterable[ProcessQueue]) -> None:
        wanted = tuple(pq.mq for pq in queues if pq.mq not in self._asked)
        if wanted:
            self._asked.update(wanted)
            self.s.out.append(LockQueues(wanted))

    def open(self, queues: list[ProcessQueue]) -> None:
        """Queues that are to be opened: their first offset is asked for when they are locked."""
        for pq in queues:
            pq.locked, pq.locked_until = False, float("-inf")
        self._ask(queues)

    # --- answers ------------------------------------------------------------------------------------------------

    def locked(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue] | None, asked_at: float, now: float
    ) -> None:
        """A broker's answer for its queues; None = there was none. `asked_at`: when the request was sent."""
        self._asked.difference_update(asked)
        stray: list[MessageQueue] = []
        for mq in asked:
            pq = self.s.by_mq.get(mq)
            if pq is None:
                if granted and mq in granted and mq not in self.s.lingering:
                    stray.append(mq)
            elif granted is None:
                self._again(pq, now)
            elif mq in granted:
                self._granted(pq, asked_at, now)
            else:
                self._denied(pq, now)
        if stray:
            self.s.out.append(UnlockQueues(tuple(stray)))

    def _granted(self, pq: ProcessQueue, asked_at: float, now: float) -> None:
        opening, was_locked = pq.state is Queue.OPENING, pq.locked
        pq.locked, pq.locked_at, pq.locked_until = True, asked_at, asked_at + self.s.config.lock_live_ms / 1000
        if pq.locked_until <= now:
            self._lost(pq, now, "the answer came too late")
            return
        self.s.at(pq.locked_until, lambda at: self._expire(pq, at))
        if opening:
            if not was_locked:
                self.s.out.append(FetchOffset(pq.handle, pq.mq))
        elif pq.handle in self._refused:
            self._refused.discard(pq.handle)
            self._restart(pq, now)
        elif not was_locked:
            self.s.log("info", "queue_locked_again", queue=pq.mq)
            self._resume(pq, now)

    def _denied(self, pq: ProcessQueue, now: float) -> None:
        if pq.state is Queue.ASSIGNED:
            self._refused.add(pq.handle)
        self._lost(pq, now, "another member has it")

    def _lost(self, pq: ProcessQueue, now: float, why: str) -> None:
        if pq.locked and pq.state is not Queue.OPENING:
            self.s.counters.locks_lost += 1
            self.s.log("warning", "queue_lock_lost", queue=pq.mq, because=why)
        pq.locked, pq.locked_until = False, float("-inf")
        self._again(pq, now)

    def _expire(self, pq: ProcessQueue, now: float) -> None:
        """Not confirmed since: it counts as lost from its last confirmation on."""
        if pq.locked and pq.locked_until <= now and pq.state is not Queue.ENDED:
            self._lost(pq, now, "it was not confirmed in time")

    def _again(self, pq: ProcessQueue, now: float) -> None:
        """Ask for a lock that we do not have a little later; one that stands is asked for at the next renewal."""
        if pq.locked or pq.state not in (Queue.OPENING, Queue.ASSIGNED):
            return
        config = self.s.config
        denied = pq.state is Queue.ASSIGNED and pq.handle in self._refused
        ms = config.lock_lost_retry_ms if denied else config.lock_retry_ms

        def ask(_now: float) -> None:
            current = self.s.queues.get(pq.handle)
            if current is not None and not current.locked:
                self._ask([current])

        self.s.at(now + ms / 1000, ask)

    # --- connections and ends -----------------------------------------------------------------------------------

    def doubt(self, broker_name: str, now: float) -> None:
        """The connection to a broker was lost: it may have restarted, and know none of our locks."""
        for pq in self.s.queues.values():
            if pq.mq.broker_name == broker_name and pq.locked:
                self._lost(pq, now, "the connection to its broker was lost")

    def ended(self, pq: ProcessQueue, now: float) -> None:
        """The queue is not ours any more: unlock it, unless a worker still runs a message of it."""
        self._refused.discard(pq.handle)
        if not pq.locked:
            return
        if pq.mq not in self.s.lingering:
            self.s.out.append(UnlockQueues((pq.mq,)))
            return
        mq = pq.mq
        self.s.at(now + self.s.config.unlock_delay_ms / 1000, lambda _: self._unlock_late(mq))

    def settled_down(self, mq: MessageQueue) -> None:
        """The last message of an ended queue has left its worker."""
        if mq not in self.s.by_mq:
            self.s.out.append(UnlockQueues((mq,)))

    def _unlock_late(self, mq: MessageQueue) -> None:
        if mq in self.s.lingering and mq not in self.s.by_mq:
            self.s.out.append(UnlockQueues((mq,)))
