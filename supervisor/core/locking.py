"""Locks of message queues at their brokers: what lets one member at a time consume a queue in order.

As Java (RebalanceImpl.java, ConsumeMessageOrderlyService.java): a queue is locked before it is opened, so that its first
offset is read when nobody else moves it any more; all locks are renewed every 20 s; one that was not confirmed for 30 s
counts as lost (the broker's own limit is 60 s); a queue without its lock is neither pulled nor started. Stricter than Java
in two points. After a lost connection the locks of that broker are in doubt, because a broker that restarts knows none:
nothing is dispatched until it has confirmed them again; what a worker has goes on, at most until its lock would have ended.
And a queue whose lock another member had meanwhile, or may have had (it was not confirmed for as long as brokers wait), is
read again from its committed offset, because that member may have moved it. Where the connection was lost, a lock that the
broker gives again says nothing of that: the queue goes on once it is known where the group is (doubts.py).

What concerns many queues of one broker is one request, one timer and one line of the log, however many there are.

A queue that was taken away keeps its lock, renewed, while it drains. When it ends with a message still in flight
(at its deadline), the lock is given up when that message ends, or after UNLOCK_DELAY.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ...remoting.queues import MessageQueue
from .actions import FetchOffset, LockQueues, UnlockQueues
from .process_queue import ProcessQueue
from .state import State
from .states import QueueState

FIRST_RENEWAL_MS = 1000
"""Java's first lockAll comes after one second."""
LOCK_EXPIRES_S = 60.0
"""At brokers (RebalanceLockManager.java)."""


class Locking:
    """Asks, renews and gives up. `is_sure(queue)`: nobody else may have moved it; `resume(queue, now)` goes on with a queue;
    `restart(queue, now)` reads it again, or leaves it to its next owner."""

    def __init__(
        self, state: State, is_sure: Callable[[ProcessQueue], bool], resume: Callable[[ProcessQueue, float], None],
        restart: Callable[[ProcessQueue, float], None],
    ) -> None:  # fmt: skip
        self.s = state
        self._is_sure = is_sure
        self._resume = resume
        self._restart = restart
        self._asked: set[MessageQueue] = set()
        """A question about these is under way."""
        self._void: set[MessageQueue] = set()
        """Those of them that were given up behind the question: its answer counts for no assignment that comes after."""
        self._refused: set[int] = set()
        """Open queues that a broker said are another member's."""
        self._unused: set[int] = set()
        """Queues whose lock we do not count on, but a broker gave it, or may have it still: it is to be given up, too."""
        self._later: dict[tuple[str, int], set[int]] = {}
        """Queues that are asked for again soon, by broker and delay in ms: one timer runs for all of them."""
        self._unlocks = UnlockQueues(()), 0
        """The last request that gave locks up, and its place in what is to be done: as long as it is there, it takes more."""

    def start(self, now: float) -> None:
        """Begin to renew."""
        ms = min(FIRST_RENEWAL_MS, self.s.config.lock_renewal_ms)
        self.s.at(now + ms / 1000, self._renew)

    def _renew(self, now: float) -> None:
        self._ask(pq for pq in self.s.queues.values() if pq.state is not QueueState.ENDED)
        if not self.s.finished:
            self.s.at(now + self.s.config.lock_renewal_ms / 1000, self._renew)

    def _ask(self, queues: Iterable[ProcessQueue]) -> None:
        wanted = tuple(pq.mq for pq in queues if pq.mq not in self._asked)
        if wanted:
            self._asked.update(wanted)
            self._unlocks = UnlockQueues(()), 0  # what is given up from now on is so behind this question
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
        void = self._void.intersection(asked)
        self._void -= void
        self._asked.difference_update(asked)
        stray: list[MessageQueue] = []
        ours: list[ProcessQueue] = []
        theirs: list[ProcessQueue] = []
        for mq in asked:
            pq = self.s.by_mq.get(mq)
            if pq is None:
                if (granted is None or mq in granted) and mq not in self.s.lingering:
                    stray.append(mq)
            elif granted is None or mq in void:
                self._unused.add(pq.handle)  # only the answer may have been lost, or the unlock came first
                self._again(pq, now)
            else:
                (ours if mq in granted else theirs).append(pq)
        self._granted(ours, asked_at, now)
        self._denied(theirs, now)
        if stray:
            self.s.out.append(UnlockQueues(tuple(stray)))

    def _granted(self, queues: list[ProcessQueue], asked_at: float, now: float) -> None:
        until = asked_at + self.s.config.lock_live_ms / 1000
        before = [(pq.locked, pq.locked_at) for pq in queues]
        for pq in queues:
            pq.locked, pq.locked_at, pq.locked_until = True, asked_at, until
        if until <= now:
            self._lost(queues, now, "the answer came too late")
            return
        if queues:
            self.s.at(until, lambda at: self._expire(queues, at))
        resumed = [
            pq
            for pq, (was_locked, locked_at) in zip(queues, before, strict=True)
            if self._goes_on(pq, was_locked, asked_at - locked_at, now)
        ]
        if resumed:
            self.s.log("info", "queues_locked_again", **_named(resumed))
        for pq in resumed:
            self._resume(pq, now)

    def _goes_on(self, pq: ProcessQueue, was_locked: bool, unconfirmed_s: float, now: float) -> bool:
        """Whether a queue that is locked, and was not, goes on where it was."""
        if pq.state is QueueState.OPENING:
            if not was_locked:
                self.s.out.append(FetchOffset(pq.handle, pq.mq))
        elif pq.handle in self._refused:
            self._refused.discard(pq.handle)
            self._restart(pq, now)
        elif not was_locked and not self._is_sure(pq):
            pq.locked, pq.locked_until = False, float("-inf")
            self._unused.add(pq.handle)
            self._again(pq, now)
        elif not was_locked and unconfirmed_s >= LOCK_EXPIRES_S:
            self._restart(pq, now)
        else:
            return not was_locked
        return False

    def _denied(self, queues: list[ProcessQueue], now: float) -> None:
        self._refused.update(pq.handle for pq in queues if self.s.finishes(pq))
        self._lost(queues, now, "another member has them")
        self._unused.difference_update(pq.handle for pq in queues)

    def _lost(self, queues: Iterable[ProcessQueue], now: float, why: str) -> None:
        """The locks of these queues, all of one broker, do not hold any more here; there they may."""
        lost: list[ProcessQueue] = []
        for pq in queues:
            if pq.locked:
                self._unused.add(pq.handle)
                if pq.state is not QueueState.OPENING:
                    lost.append(pq)
            pq.locked, pq.locked_until = False, float("-inf")
            self._again(pq, now)
        if lost:
            self.s.counters.locks_lost += len(lost)
            self.s.log("warning", "queue_locks_lost", **_named(lost), reason=why)

    def _expire(self, queues: list[ProcessQueue], now: float) -> None:
        """Not confirmed since: they count as lost from their last confirmation on."""
        late = [pq for pq in queues if pq.locked and pq.locked_until <= now and pq.state is not QueueState.ENDED]
        self._lost(late, now, "they were not confirmed in time")

    def _again(self, pq: ProcessQueue, now: float) -> None:
        """Ask for a lock that we do not have a little later; one that holds is asked for at the next renewal.

        All that are waited for at a broker are asked for together, so one that comes in meanwhile waits less.
        """
        if pq.locked or not (pq.state is QueueState.OPENING or self.s.finishes(pq)):
            return
        config = self.s.config
        key = pq.mq.broker_name, config.lock_lost_retry_ms if pq.handle in self._refused else config.lock_retry_ms
        waiting = self._later.get(key)
        if waiting is not None:
            waiting.add(pq.handle)
            return
        self._later[key] = {pq.handle}
        self.s.at(now + key[1] / 1000, lambda _now: self._ask_later(key))

    def _ask_later(self, key: tuple[str, int]) -> None:
        queues = self.s.queues
        waiting = [queues[handle] for handle in sorted(self._later.pop(key)) if handle in queues]
        self._ask(pq for pq in waiting if not pq.locked)

    # --- connections and ends -----------------------------------------------------------------------------------

    def doubt(self, broker_name: str, now: float) -> None:
        """The connection to a broker was lost: it may have restarted, and know none of our locks."""
        held = [pq for pq in self.s.queues.values() if pq.mq.broker_name == broker_name and pq.locked]
        self._lost(held, now, "the connection to their broker was lost")

    def ended(self, pq: ProcessQueue, now: float) -> None:
        """The queue is not ours any more: unlock it, unless a worker still runs a message of it."""
        self._refused.discard(pq.handle)
        given = pq.locked or pq.handle in self._unused
        self._unused.discard(pq.handle)
        if not given:
            return
        if pq.mq not in self.s.lingering:
            self._unlock(pq.mq)
            return
        mq = pq.mq
        self.s.at(now + self.s.config.unlock_delay_ms / 1000, lambda _: self._unlock_late(mq))

    def settled_down(self, mq: MessageQueue) -> None:
        """The last message of an ended queue has left its worker."""
        if mq not in self.s.by_mq:
            self._unlock(mq)

    def _unlock_late(self, mq: MessageQueue) -> None:
        if mq in self.s.lingering and mq not in self.s.by_mq:
            self._unlock(mq)

    def _unlock(self, mq: MessageQueue) -> None:
        if mq in self._asked:
            self._void.add(mq)
        out, (unlocks, place) = self.s.out, self._unlocks
        if place < len(out) and out[place] is unlocks:
            unlocks.mqs += (mq,)
        else:
            self._unlocks = unlocks, _ = UnlockQueues((mq,)), len(out)
            out.append(unlocks)


def _named(queues: list[ProcessQueue]) -> dict[str, object]:
    """What a line of the log says of queues of one broker."""
    first = queues[0].mq
    return {"broker": first.broker_name, "queues": len(queues), "first": f"{first.topic}/{first.queue_id}"}
