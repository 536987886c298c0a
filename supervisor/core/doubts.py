"""Queues in doubt: the brokers may have given them to another member while we noticed nothing, and may have got them back.

A member whose connection is cut is forgotten at once, and one that stands still (a stopped process, a paused container)
after two minutes. Others then go on with its queues from what it had committed. When it is back, its own offset is an old
one: whether it is committed or read on from, all that the others have finished meanwhile would run again.

So such a queue does what is done for one that is opened, without ending: the group's members are looked up (the answer may
take it away), then its offset is asked for. Where that is ahead of what is finished here, another has gone on with the queue,
and it is read again from there. Until that is known nothing of it is committed, and after WITHHELD_S what is committed is
guarded; what runs, runs on, and it is pulled, as a broker that merely starts anew gives nothing away. While nobody answers,
each topic is asked for again with growing pauses.

With locks the group's offset is asked for once the broker has confirmed the queue's lock, since until then another may move
it, and nothing of the queue starts before that is answered (locking.py). So it is in a stop with what the queue finishes.

An offset that went back below what was committed has two causes: the broker forgot its last seconds (it was killed, or a
slave serves in its place, or has become master), or an operator reset the group and another member, which had the queue, took
that. The second asks for messages to be run again: the queue is read again from there. It is the first, and ours is committed
again, after a short while (GONE_S), where a slave says it, and where it goes back by no more than what was committed in the
last seconds before the broker was lost (TAIL_S).

Of a queue that leaves all commits are guarded, but for where it was moved to (assigning.py). So it is in doubt too: to what
its broker has corrected our offset, the group may be far beyond.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from math import inf

from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from .actions import Commit, FetchOffset, JournalGoesOn
from .events import Committed, Members, Opened
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
GONE_S = 90.0
"""Brokers forget a member 120 s after its last heartbeat, which may have been 30 s old."""
TAIL_S = 20.0
"""Brokers write offsets down each 5 s (flushConsumerOffsetInterval), and slaves fetch them each 10 s (SlaveSynchronize)."""


def is_guarded(q: PulledQueue, moves: bool) -> bool:
    """Whether a commit of the queue looks at the group's offset first: its new owner commits too, its lock is not ours, or
    another may have had it. `moves`: it tells where the queue was moved."""
    if moves and q.move is not None:
        return q.move_in_doubt
    return q.in_doubt or not q.pq.locked or q.pq.state is QueueState.DRAINING


def guarded_from(q: PulledQueue) -> int:
    """The lowest offset of the group that a guarded commit of the queue goes over: what was committed, or where the group was
    found behind that."""
    return min(q.committed, q.back_at)


def is_reset(q: PulledQueue, offset: int, final: bool, now: float) -> bool:
    """Of a queue in doubt, where the group was found at `offset`, below what we committed: whether an operator wants that."""
    return final and offset < q.kept and now - q.cut_off_at >= GONE_S


def is_forgotten(q: PulledQueue, left_at: int, final: bool, now: float) -> bool:
    """Of a queue that ends in doubt, to be opened here again or in a stop: whether a broker that was killed left its commit
    behind, so that it is asked for again, as of a queue that goes on (`_went_back`): also one that was moved to where a
    failover had replaced its end. Not with locks: another may have had that."""
    again = q.pq.state is QueueState.DRAINING and q.ours and q.pq.locked_until == inf
    return again and q.in_doubt and 0 <= left_at < guarded_from(q) and not is_reset(q, left_at, final, now)


def is_untold(q: PulledQueue) -> bool:
    """Of a queue that ends in doubt, to be opened here again or in a stop: its broker may have forgotten what we committed,
    and was not told since. Where a message outlasts the deadline, no last commit would say it; so it is told when it is cut
    short, and with what is saved from time to time. Not at once: a last commit that comes soon would wait for the answer of a
    broker that is away."""
    return q.ours and q.in_doubt and q.committed_at < q.doubted_at


class Doubts:
    """Of one member. `look_up(topic, now)` asks for the members, `restart(queue, now)` ends a queue and reads it again, or
    leaves what has not begun of one that leaves."""

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
        self._silent: set[str] = set()
        """Those of them where nobody said where the group is: confirmed locks ask for that no more until the timer."""
        self._gone_back: dict[tuple[str, bool], list[tuple[MessageQueue, int, int]]] = {}
        """Queues whose offset went back, by broker and whether they are read again: ours and the group's are to be told."""

    def broker_lost(self, broker_name: str, now: float) -> None:
        """The connection to the broker was lost, from its side or ours."""
        self._begin([q for q in self.s.pulled.values() if q.pq.mq.broker_name == broker_name], now, now)

    def stood_still(self, idle_s: float, now: float) -> None:
        """Nothing was done here for so long. Also of a queue that is opening the next answer may be as old."""
        if self.s.pulled:
            self.s.log("warning", "stood_still", duration_ms=round(idle_s * 1000))
        self._begin(self.s.pulled.values(), now - idle_s, now)
        for q in self.s.pulled.values():
            if q.pq.state is QueueState.OPENING:
                q.doubted_at = now

    def _begin(self, queues: Iterable[PulledQueue], since: float, now: float) -> None:
        if self.s.config.broadcasting:
            return  # nobody else has them
        doubted = [q for q in queues if q.pq.state in (QueueState.ASSIGNED, QueueState.DRAINING)]
        for q in doubted:
            if not q.in_doubt and min(since, max(q.committed_at, q.end_told_at)) - q.newer_at >= TAIL_S:
                q.kept = q.newer  # the broker was there for so long since
            q.cut_off_at = min(q.cut_off_at, since) if q.in_doubt else since
            q.doubted_at, q.position_asked = now, False
        for topic in dict.fromkeys(q.pq.mq.topic for q in doubted if q.pq.state is QueueState.ASSIGNED):
            self._pauses.pop(topic, None)
            self._silent.discard(topic)
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
            if q.pq.locked:
                self._ask(q)

    def locked(self, pq: ProcessQueue) -> bool:
        """The broker has confirmed the queue's lock: whether it may go on. In doubt it may not before its offset is known,
        which nobody else moves from now on."""
        q = self.s.pulled[pq.handle]
        if q.in_doubt and self._goes_on(q) and not q.position_asked and pq.mq.topic not in self._silent:
            self._ask(q)
        return not q.in_doubt

    def _goes_on(self, q: PulledQueue) -> bool:
        """It starts messages when its doubt is over: also one that finishes what it has dispatched, in a stop."""
        pq = q.pq
        return pq.state is QueueState.ASSIGNED or (self.s.finishes(pq) and bool(pq.open) and q.move is None)

    def _ask(self, q: PulledQueue) -> None:
        q.position_asked = True
        self.s.out.append(FetchOffset(q.pq.handle, q.pq.mq, in_doubt=True, known=q.committed))

    def answered(self, answer: Opened, now: float) -> bool:
        """Where the group is, None = that could not be found out, -1 = it has no offset. False where nobody doubts: the
        queue is opened there."""
        counts = self._answered(answer, now)
        self._tell_went_back()
        return counts

    def _answered(self, answer: Opened, now: float) -> bool:
        handle, offset = answer.handle, answer.offset
        q = self.s.pulled.get(handle)
        if q is None or not q.in_doubt:
            return False
        if q.pq.state is QueueState.OPENING:
            q.doubted_at = inf
            if offset is not None:
                self.s.out.append(FetchOffset(handle, q.pq.mq))
            return offset is not None
        asked, q.position_asked = q.position_asked, False
        if not asked or not self._goes_on(q):
            return False
        if offset is None:
            self._silent.add(q.pq.mq.topic)
            self._soon(q.pq.mq.topic, now)
        elif offset > q.pq.head_offset:
            self.s.log("warning", "queue_went_on_elsewhere", **place_keys(q.pq.mq, q.pq.head_offset), committed=offset)
            self._restart(q.pq, now)
        elif offset < q.committed:
            self._went_back(q, offset, answer.final, now)
        else:
            q.doubted_at, q.left_to, q.back_at = inf, -1, sys.maxsize
        self._note_later(q, answer.wall_ms)
        return True

    def _note_later(self, q: PulledQueue, wall_ms: int) -> None:
        """A queue that goes on here another member of this host may have opened meanwhile: its journal is the older one from
        here on."""
        if q.pq.state is QueueState.ASSIGNED and not q.in_doubt:
            self.s.out.append(JournalGoesOn(q.pq.mq, wall_ms))

    def _went_back(self, q: PulledQueue, offset: int, final: bool, now: float) -> None:
        """Read it again from there, or commit ours once more, at once. What has no offset is no reset: it would be opened
        where new groups begin."""
        again = offset >= 0 and is_reset(q, offset, final, now)
        fell = offset >= 0 or q.committed_at > -inf or q.back_at < sys.maxsize  # else there was none before, either
        if fell:
            told = self._gone_back.setdefault((q.pq.mq.broker_name, again), [])
            told.append((q.pq.mq, q.committed, offset))
        if again:
            self._restart(q.pq, now)
        else:
            q.doubted_at, q.committed_at, q.left_to = inf, -inf, -1
            q.kept, q.newer, q.newer_at = max(offset, 0), max(offset, 0), now
            if fell:
                q.back_at = offset
                if q.pq.state is QueueState.DRAINING:
                    q.committed = offset

    def _tell_went_back(self) -> None:
        """One line for all queues of a broker, when the last of those that were asked for together is answered."""
        for broker_name, again in list(self._gone_back):
            if not any(q.position_asked and q.pq.mq.broker_name == broker_name for q in self.s.pulled.values()):
                told = self._gone_back.pop((broker_name, again))
                mq, ours, offset = told[0]
                self.s.log(
                    "warning", "group_offset_went_back", broker=broker_name, queues=len(told),
                    first=f"{mq.topic}/{mq.queue_id}", offset=ours, committed=offset, again=again,
                )  # fmt: skip

    def guards(self, commit: Commit) -> bool:
        """Whether a commit that was asked for before is to be guarded by now. Of a queue that has ended its new owner may
        know better."""
        q = self.s.pulled.get(commit.handle)
        return not commit.moves if q is None else is_guarded(q, commit.moves)

    def committed(self, answer: Committed, now: float) -> None:
        """The answer to a commit. What was committed so long ago that a master forgets it no more is noted now and then."""
        q = self.s.pulled.get(answer.handle)
        if q is None or q.commit_asked != answer.offset or now - q.newer_at < TAIL_S:
            return
        if answer.ok and answer.left_at < 0 and answer.final:
            q.kept, q.newer, q.newer_at = q.newer, answer.offset, now

    def is_done(self, answer: Committed) -> bool:
        """Whether nothing is left to be done of a commit that may have left the group where it was.

        Whoever is further knows better, and so does the new owner of a queue that leaves. Not so in a stop in doubt, where
        the broker may have forgotten what it had: it is told once more (`is_forgotten`), or the stop is not clean.
        """
        q = self.s.pulled.get(answer.handle)
        if answer.left_at < 0 or q is None or answer.left_at > answer.offset:
            return True
        if answer.left_at >= guarded_from(q):
            return False  # the group was found further back since this was asked for
        return q.pq.state is not QueueState.ASSIGNED and not (self.s.stopping and q.in_doubt and q.move is None)

    def _soon(self, topic: str, now: float) -> None:
        if topic in self._due:
            return
        pause_s = self._pauses.get(topic, self.s.config.open_retry_ms / 1000)
        self._pauses[topic] = min(2 * pause_s, AGAIN_MAX_S)
        self._due.add(topic)

        def again(at: float) -> None:
            self._due.discard(topic)
            self._silent.discard(topic)
            if any(q.in_doubt and q.pq.mq.topic == topic for q in self.s.pulled.values()):
                self._look_up(topic, at)

        self.s.at(now + pause_s, again)
