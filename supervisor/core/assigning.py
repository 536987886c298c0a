"""Rebalance: look up, allocate, compare, open and close. An assignment is replaced, never edited.

A queue that was taken away drains: it pulls and starts nothing, settles successes and seals them, discards failures
unsent (the new owner has them), commits without ever lowering the broker's offset, and ends, at the latest at its
deadline. A queue that comes back while it drains is opened only after it ended, and takes over what was finished. That is
remembered for some drain deadlines while another member has the queue: an operator may reset it there, and we do not hear
of it.

Where a queue was moved (a reset, an offset that the broker does not have), the new offset is committed before it is pulled
again. Old brokers push a reset to the members once, so it is kept until a broker has confirmed it. A stop owes it as it owes
the offset of what is finished: it is tried a few times, and what is given up is said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping

from ...durable.intervals import Intervals
from ...durable.outcomes import LOST, SETTLED, SKIPPED
from ...remoting.log_keys import place_keys, queue_keys
from ...remoting.queues import MessageQueue
from .actions import (
    Commit,
    CountCellsAnew,
    FetchAssignment,
    FetchOffset,
    Heartbeat,
    JournalCommitted,
    JournalDone,
    forgotten,
)
from .allocation import allocate
from .chunks import Token
from .dispatching import Dispatching
from .doubts import WITHHELD_S, guarded_from, is_forgotten, is_guarded, is_untold
from .events import Members
from .leaving import STOP_COMMIT_TRIES, Leaving, is_known
from .ledger import Ledger
from .locking import Locking
from .machine_rooms import AllocationError
from .popping import Popping
from .process_queue import Move, ProcessQueue, PulledQueue
from .pulling import Pulling
from .reclaiming import recalls, reclaims
from .state import State
from .states import ASSIGNED, QUEUE, QueueEvent, QueueState, move

LAST_COMMIT_RETRY_S = 0.5
CUT_SHORT_MS = 2000
"""Workers have no more than two chunks of a second (sizing.py), or two calls, if these take what they took."""
RECLAIM_AGAIN_MS = 100
LOOK_UP_MAX_S = 20.0
"""The requests of one look-up have time-outs of a few seconds each."""
FORGOTTEN_AFTER_DRAINS = 3
"""Drain deadlines that what we finished of a queue is remembered while it is another member's: one is enough for a queue that
goes and comes with a member that restarts."""


class Assigning:
    """Owns the life of process queues: opening, draining, ending, and the offsets that are committed."""

    def __init__(
        self, state: State, pulling: Pulling, dispatching: Dispatching, popping: Popping, locking: Locking | None
    ) -> None:
        """With `locking`, queues are locked before they are opened."""
        self.s = state
        self._pulling = pulling
        self._dispatching = dispatching
        self._popping = popping
        self._locking = locking
        self._asked: dict[str, float] = {}
        """Topics that a look-up is under way for, and since when."""
        self._answered: dict[str, float] = {}
        """When the newest look-up was asked for that was answered, by topic: as many as were ever subscribed."""
        self._again: set[str] = set()
        """Those of them for which another one is wanted after it."""
        self._moves: dict[MessageQueue, Move] = {}
        """Of queues that are not open, and are or may soon be ours: no broker has confirmed these offsets yet."""
        self.leaving = Leaving(state, self._moves)
        self.awaited: set[MessageQueue] = set()
        """Queues that are to be opened here again, as far as the last look-up knew: the next one may take its time."""
        self._elsewhere: dict[MessageQueue, float] = {}
        """Since when remembered queues (State.recovered) are not ours, as far as we know."""
        self._stop_at = float("inf")
        """When what a stop still waits for is given up."""

    # --- rebalance ----------------------------------------------------------------------------------------------

    def rebalance(self, now: float) -> None:
        """Ask for routes and members of every topic; the answers come to `members`."""
        if not self.s.stopping:
            self.s.counters.rebalances += 1
            for topic in self.s.topics:
                self.look_up(topic, now)

    def members(self, answer: Members, now: float) -> None:
        """The topic's readable queues and the group's client ids; None or empty = unknown, nothing changes."""
        s = self.s
        topic, queues, members, mine = answer.topic, answer.queues, answer.members, answer.mine
        asked_at = self._asked.get(topic) if answer.asked_at is None else answer.asked_at
        if s.stopping or (asked_at is not None and self.is_late(topic, asked_at)):
            return
        if asked_at is not None and queues and members:
            self._answered[topic] = asked_at
        # One that was given up counts, or topics whose look-ups always take too long would never get their queues. But the
        # newer one is still to be answered.
        if asked_at == self._asked.get(topic):
            self._asked.pop(topic, None)
            if topic in self._again:
                self._again.remove(topic)
                self.look_up(topic, now)
        if not queues or not members or topic not in s.topics:
            return
        try:
            mine = allocate(s.config.strategy, s.config.client_id, queues, members) if mine is None else mine
        except AllocationError as error:
            s.log("error", "allocation_failed", topic=topic, error=str(error))
            return
        if mine is None:
            return
        wanted = set(mine)
        changed = False
        for mq, pq in list(s.by_topic.get(topic, {}).items()):
            if pq.state is QueueState.DRAINING:
                q = s.pulled[pq.handle]
                q.ours = mq in wanted
                if not q.ours and (dropped := q.unconfirmed):
                    # It is its new owner's affair, and what was finished counts no more.
                    q.move, q.forgets = None, True
                    self.leaving.not_committed(mq, dropped.offset)
            elif mq not in wanted:
                self.revoke(pq, now, to_another=True)
                changed = True
        self._forget_elsewhere(topic, wanted, now)
        self.awaited = {mq for mq in self.awaited if mq.topic != topic} | (wanted & s.lingering.keys())
        new = [mq for mq in mine if mq not in s.by_mq and mq not in s.lingering]
        self._open(new)
        if changed or new:
            s.log("info", "assignment_changed", topic=topic, queues=len(wanted), of=len(queues), members=len(members))
            s.out.append(Heartbeat())

    def subscribe(self, topic: str, now: float) -> None:
        """The topic is new, or its filter has changed: then its queues end, and are opened again with the new filter.

        An assignment keeps the filter that it began with, here and in the workers: a message that the broker lets through
        by the new one must not be dropped by the old one, and its offset passed.
        """
        self.s.topics = tuple(dict.fromkeys((*self.s.topics, topic)))
        for pq in list(self.s.queues.values()):
            if pq.mq.topic == topic:
                self.restart(pq, now)
        self.look_up(topic, now)

    def unsubscribe(self, topic: str, now: float) -> None:
        """The topic's queues end: what runs is finished, and failures are sent back."""
        self.s.topics = tuple(name for name in self.s.topics if name != topic)
        self._popping.unsubscribed(topic)
        for mq in [mq for mq in self._moves if mq.topic == topic]:
            self.leaving.not_committed(mq, self._moves.pop(mq).offset)
        self.awaited = {mq for mq in self.awaited if mq.topic != topic}
        # No look-up says any more who has them.
        for mq in self.s.recovered:
            if mq.topic == topic:
                self._elsewhere.setdefault(mq, now)
        for pq in list(self.s.queues.values()):
            if pq.mq.topic == topic and pq.state in (QueueState.OPENING, QueueState.ASSIGNED):
                self.revoke(pq, now)

    def _open(self, mqs: list[MessageQueue]) -> None:
        opening = [ProcessQueue(next(self.s.handles), mq, self) for mq in mqs]
        for pq in opening:
            self.s.enter(pq)
        if self._locking is not None:
            self._locking.open(opening)
        else:
            self.s.out.extend(FetchOffset(pq.handle, pq.mq) for pq in opening)

    def opened(self, handle: int, offset: int | None, now: float) -> None:
        """Where the queue begins; None = could not be found out, tried again soon."""
        q = self.s.pulled.get(handle)
        if q is None or q.pq.state is not QueueState.OPENING or q.commit_asked >= 0:
            self.s.counters.late_answers += 1
        elif offset is None:
            self._open_failed(q.pq, now)
        elif q.pq.mq in self._moves:
            self._commit_first(q, offset)
        else:
            self._begin(q, offset, now)

    def _open_failed(self, pq: ProcessQueue, now: float) -> None:
        if self.s.stopping:
            self._try_unopened_again(pq, now)
            return
        self._move(pq, QueueEvent.OPEN_FAILED)
        self.awaited.add(pq.mq)
        self._forget(pq, now)
        self._soon(pq.mq.topic, now)

    def _commit_first(self, q: PulledQueue, offset: int) -> None:
        """The group is at `offset`, but the queue was moved, and no broker has confirmed that yet."""
        self._commit_moved(q, self._moves[q.pq.mq], offset)

    def _committed_first(self, q: PulledQueue, offset: int, ok: bool, now: float) -> None:
        """The answer to that; a later reset may have come meanwhile."""
        mq = q.pq.mq
        if not ok:
            self._open_failed(q.pq, now)
        elif self._moves[mq].offset != offset:
            self._commit_first(q, offset)
        else:
            del self._moves[mq]
            q.move = None
            self.s.recovered.pop(mq, None)
            if self.s.stopping:
                self.revoke(q.pq, now)
            else:
                self._begin(q, offset, now)

    def _begin(self, q: PulledQueue, offset: int, now: float) -> None:
        pq = q.pq
        self._move(pq, QueueEvent.OPENED)
        pq.next_offset = q.committed = q.kept = q.newer = offset
        # The journal learns at once where the queue begins: a reset must make it forget before anything new is noted.
        self.s.out.append(JournalCommitted(pq.mq, offset, offset, q.opened_ms))
        self._elsewhere.pop(pq.mq, None)
        floor, finished = self.s.recovered.pop(pq.mq, (0, Intervals()))
        if offset >= floor:
            finished.discard_below(offset)
            pq.ledger = Ledger(offset, finished)
        else:
            pq.ledger = Ledger(offset)
        if offset < floor and finished:
            # The committed offset went back below what was noted: a reset. What it asks for runs again.
            self.s.log(
                "warning", "offset_was_reset", **place_keys(pq.mq, offset), noted=floor, forgotten=finished.total()
            )
        self._pulling.consider(q, now)

    def _soon(self, topic: str, now: float) -> None:
        self.s.at(now + self.s.config.open_retry_ms / 1000, lambda at: self.look_up(topic, at))

    def look_up(self, topic: str, now: float) -> None:
        """Ask for the topic's queues and members, one question at a time: what comes meanwhile (a notice of each broker for
        each member that joins) is one more question after the answer. So an older answer never follows a newer one. What
        gets no answer for LOOK_UP_MAX_S is given up."""
        if self.s.stopping or topic not in self.s.topics:
            return
        asked_at = self._asked.get(topic)
        if asked_at is not None and now - asked_at < LOOK_UP_MAX_S:
            self._again.add(topic)
            return
        self._asked[topic] = now
        self.s.out.append(FetchAssignment(topic, now))

    def is_late(self, topic: str, asked_at: float) -> bool:
        """Whether the answer to that look-up comes after that to a newer one, and counts for nothing: it was given up, as
        after this process stood still."""
        return asked_at < self._answered.get(topic, asked_at)

    # --- closing ------------------------------------------------------------------------------------------------

    def revoke(self, pq: ProcessQueue, now: float, *, to_another: bool = False) -> None:
        """Close the queue, or lose it `to_another` member: it ends at once when it never opened, else it drains."""
        opening = pq.state is QueueState.OPENING
        self._move(pq, QueueEvent.REVOKED)
        if opening:
            if self.s.stopping:
                self.awaited.add(pq.mq)  # still ours: a reset of it is, too
            self._forget(pq, now)
            return
        pq.send_failures = not to_another
        if (q := self.s.pulled.get(pq.handle)) is not None:
            q.ours = not to_another
        self._dispatching.drop_waiting(pq)
        if not self.s.finishes(pq):
            self._dispatching.withdraw(pq)
        ms = self.s.config.stop_deadline_ms if self.s.stopping else self.s.config.drain_deadline_ms
        self.s.at(now + ms / 1000, lambda at: self._drained_too_long(pq, at))
        planned_ms = max(CUT_SHORT_MS, self.s.config.chunks_in_flight * self.s.sizer.tail_us / 1000)
        self.s.at(now + min(ms / 2, planned_ms) / 1000, lambda at: self.cut_short(pq, at))
        self.s.ask_seals_of(pq)
        pq.owner.revoked(pq, now)

    def _drained_too_long(self, pq: ProcessQueue, now: float) -> None:
        """The deadline has come. At a stop it is put off once where only the table is waited for, by the loader's time."""
        q = self.s.pulled.get(pq.handle)
        drains = q is not None and pq.state is QueueState.DRAINING and q.ours and q.move is None
        loads = (
            drains and pq.ledger.held and not pq.running() and all(map(self.s.unloaded.__contains__, pq.ledger.held))
        )
        if self.s.stopping and loads and self.s.config.stop_load_ms:
            self.s.at(self._stop_at + self.s.config.stop_load_ms / 1000, lambda at: pq.owner.deadline(pq, at))
        else:
            pq.owner.deadline(pq, now)

    def cut_short(self, pq: ProcessQueue, now: float) -> None:
        """What workers have takes longer than planned: what has not begun is left to the next owner, who would else run it
        beside us when the deadline has come, or has gone on already. Not where the queue goes on behind it."""
        q = self.s.pulled.get(pq.handle)
        if pq.state is not QueueState.DRAINING or pq.cut_short or not pq.open or (q is not None and q.move is not None):
            return
        self.s.log("info", "drain_cut_short", **queue_keys(pq.mq), unfinished=pq.unfinished)
        pq.cut_short = True
        self._dispatching.withdraw(pq)
        if self.s.config.order == "concurrent":
            self._reclaim(pq, now)
        else:
            self.s.out += recalls(self.s, pq)
        pq.owner.progress(pq, now)
        if q is not None and is_untold(q):  # what runs may outlast the deadline, and that come before the next persist
            self._commit_progress(q, now, untold=True)

    def _reclaim(self, pq: ProcessQueue, now: float) -> None:
        """Ask workers for it, again where one has just gone on, until it has drained."""
        if pq.state is QueueState.DRAINING and pq.open:
            self.s.out += reclaims(self.s, pq)
            self.s.at(now + RECLAIM_AGAIN_MS / 1000, lambda at: self._reclaim(pq, at))

    def restart(self, pq: ProcessQueue, now: float) -> None:
        """End the queue and read it again from its committed offset."""
        if pq.state is QueueState.ASSIGNED:
            self.revoke(pq, now)

    def heal(self, now: float) -> None:
        """Open those queues anew whose pull was never answered, as Java's rebalance does."""
        for q in list(self.s.pulled.values()):
            if q.pq.state is QueueState.ASSIGNED and self._pulling.expired(q, now):
                self.restart(q.pq, now)

    def moved(self, q: PulledQueue, move: Move, now: float) -> None:
        """The broker says that the offset is not in the queue: commit what it says, end, and open again there.

        5.x clients do the same at once (updateAndFreeze, docs/protocol.md); what runs finishes first.
        """
        q.move = move
        self.revoke(q.pq, now)

    def reset(self, offsets: Mapping[MessageQueue, int], now: float) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET: begin again at these offsets, whatever was committed (MQClientInstance.resetOffset).

        Java drops the queue, sleeps 10 s and commits. Here what runs finishes first, as with an illegal offset, and a reset
        that comes while one is under way replaces it. A queue that is leaving is its new owner's to reset, unless there is
        none: it drains to be opened here again, or for a stop.
        """
        for mq, offset in offsets.items():
            pq = self.s.by_mq.get(mq)
            if pq is None or pq.state is QueueState.OPENING:
                self._reset_unopened(mq, offset, now)
                continue
            q = self.s.pulled[pq.handle]
            if pq.state is QueueState.DRAINING and not q.ours:
                q.forgets = True
                continue
            self.s.log("warning", "offset_reset_by_admin", **place_keys(mq, offset), was=pq.head_offset)
            move = Move(offset, 0, q.move.lost_to if q.move else -1)
            if pq.state is QueueState.ASSIGNED:
                self.moved(q, move, now)
            else:
                q.move, q.final_commit = move, False

    def _reset_unopened(self, mq: MessageQueue, offset: int, now: float) -> None:
        """What was finished of it counts no more. If it is being opened, or is to be, or if a look-up has yet to say whose it
        is, it begins there."""
        self._forget_finished(mq)
        s = self.s
        asked = mq.topic in self._asked and not s.stopping  # then no answer counts any more
        unknown = mq.topic in s.topics and (asked or mq.topic not in self._answered)
        if mq not in s.by_mq and mq not in self.awaited and not unknown:
            return
        if s.stopping and mq not in s.by_mq and not self._open_to_commit(mq, now):
            self.leaving.not_committed(mq, offset)
            return
        s.log("warning", "offset_reset_by_admin", **place_keys(mq, offset), was=-1)
        self._moves[mq] = Move(offset, 0)

    # --- what is remembered of queues that are not open --------------------------------------------------------------

    def _forget_elsewhere(self, topic: str, wanted: Container[MessageQueue], now: float) -> None:
        """The topic's queues that are not `wanted` are another member's: their moves are its affair, and what we finished of
        them is forgotten after a while."""
        for mq in [mq for mq in self._moves if mq.topic == topic and mq not in wanted]:
            del self._moves[mq]
        kept_s = FORGOTTEN_AFTER_DRAINS * self.s.config.drain_deadline_ms / 1000
        for mq in [mq for mq in self.s.recovered if mq.topic == topic]:
            since = self._elsewhere.get(mq)
            if since is not None and now - since >= kept_s:
                self._forget_finished(mq)
            elif mq in wanted:
                self._elsewhere.pop(mq, None)
            else:
                self._elsewhere.setdefault(mq, now)

    def _forget_finished(self, mq: MessageQueue) -> None:
        """What was finished of the queue, which is not open, counts no more, also after a restart."""
        self.s.recovered.pop(mq, None)
        self._elsewhere.pop(mq, None)
        self.s.out.append(forgotten(mq))

    # --- what the mechanisms ask of the owner of a pulled queue -----------------------------------------------------

    def progress(self, pq: ProcessQueue, now: float) -> None:
        """Something of it finished or became durable: pull more, or see whether it is drained."""
        q = self.s.pulled.get(pq.handle)
        if q is None:
            return
        if pq.state is ASSIGNED:
            if q.blocked:
                self._pulling.consider(q, now)
        elif pq.state is QueueState.DRAINING:
            self._check_drained(q, now)

    def finished(self, pq: ProcessQueue, start: int, end: int, token: Token) -> None:
        """The journal learns it, unless a move that holds asks for it to run again."""
        q = self.s.pulled.get(pq.handle)
        if q is None or not (q.move and q.move.holds):
            self.s.out.append(JournalDone(pq.mq, start, end, *token))

    def check_of(self, pq: ProcessQueue, offset: int) -> None:
        """What was pulled has no check point."""

    def going_back(self, pq: ProcessQueue, offset: int) -> None:
        """What was pulled is known by its offset: nothing has to wait."""

    def stays(self, pq: ProcessQueue, offset: int) -> None:
        """What was pulled is ours until it is committed."""

    def after_renewal(self, pq: ProcessQueue, offset: int, then: Callable[[], None]) -> bool:
        """What was pulled has none that is replaced."""
        del pq, offset, then
        return False

    def given_back(self, pq: ProcessQueue, offset: int, *, last: bool) -> None:
        """A last commit that was asked for while the send-back was under way stops before the message: ask again."""
        del offset, last
        self.s.pulled[pq.handle].final_commit = False

    def revoked(self, pq: ProcessQueue, now: float) -> None:
        """The new owner begins at what the broker knows: commit at once what is done so far."""
        q = self.s.pulled[pq.handle]
        self._check_drained(q, now)
        self._commit_progress(q, now)

    def _check_drained(self, q: PulledQueue, now: float) -> None:
        """Commit and end a draining queue when nothing of it is in flight any more."""
        pq = q.pq
        if pq.state is not QueueState.DRAINING or pq.running():
            return
        if pq.ledger.held:
            # Rows reported since the queue was taken away: their workers may be busy and not seal for long.
            self.s.ask_seals_of(pq)
            return
        if q.commit_asked >= 0 or now < q.last_commit_at:
            return
        if q.final_commit:
            self._end(q, QueueEvent.DRAINED, now)
            return
        # Also when it was committed before: the broker may have been killed since, and have forgotten it.
        if q.move is None:
            q.final_commit = self._commit(q, pq.head_offset)
        else:
            q.final_commit = self._commit_moved(q, q.move, pq.head_offset)

    def deadline(self, pq: ProcessQueue, now: float) -> None:
        """What is not finished by now, the next owner repeats."""
        if pq.state is QueueState.DRAINING:
            q = self.s.pulled[pq.handle]
            unsealed = pq.ledger.held_messages()
            self.s.log("warning", "drain_deadline", **queue_keys(pq.mq), unfinished=pq.unfinished, unsealed=unsealed)
            if self.s.stopping:
                self.s.unsealed_at_stop += unsealed
            if q.move is not None:
                self._commit_move_late(q, q.move.aimed(pq.head_offset))
            self._end(q, QueueEvent.DEADLINE, now)

    def _commit_move_late(self, q: PulledQueue, move: Move) -> None:
        """A move must hold although what runs did not finish in time. The answer finds the queue ended: it is committed once
        more before the queue is opened again, so a stop cannot know whether it holds."""
        # Whatever becomes of it: a restart must run all that the move asks for, so the journal forgets what was finished.
        q.forgets = True
        if not self.s.stopping:
            if not q.move_in_doubt:  # else the broker says it again, if it does not have the group's offset either
                self._moves[q.pq.mq] = Move(move.offset, move.skips_from)
        elif move.holds:
            return
        else:
            self.leaving.not_committed(q.pq.mq, move.offset)
        self._commit_moved(q, move, q.pq.head_offset)

    def _end(self, q: PulledQueue, event: QueueEvent, now: float) -> None:
        pq = q.pq
        self._move(pq, event)
        if event is QueueEvent.DEADLINE:
            self.s.out.append(CountCellsAnew())  # what ends of its chunks now is not ours to note
        self._note_settled(q)
        finished = pq.ledger.finished_above(q.committed)  # also where the last commit was refused, until the deadline
        if self.s.stopping and (event is QueueEvent.DEADLINE or (pq.cut_short and q.ours)):
            self.s.unfinished_at_stop += pq.unfinished - pq.never_begun
            if q.move is None:
                # It is in our journal, but another member begins at the committed offset.
                head, group = pq.head_offset, at if (at := guarded_from(q)) >= 0 else pq.ledger.begin
                self.s.uncommitted_at_stop += max(0, head - group) + pq.ledger.finished_above(head).total()
        if q.ours and pq.mq.topic in self.s.topics:
            self.awaited.add(pq.mq)
        if q.forgets:
            self._forget_finished(pq.mq)
        elif q.move is None and (finished or pq.ledger.held):  # what is held the journal learns when it is sealed
            self.s.recovered[pq.mq] = (q.committed, finished)
            if not q.ours or pq.mq.topic not in self.s.topics:
                self._elsewhere[pq.mq] = now
        self._dispatching.give_up(pq)
        self._forget(pq, now)
        self._pulling.feed_starved(now)
        self.look_up(pq.mq.topic, now)  # it may be ours again already, or had to be read again

    def _forget(self, pq: ProcessQueue, now: float) -> None:
        committed = self.s.pulled[pq.handle].committed
        self._dispatching.ended(pq)
        self.s.leave(pq)
        if self._locking is not None:
            self._locking.ended(pq, now)
        self.s.log("debug", "queue_ended", **queue_keys(pq.mq), committed=committed, finished_to=pq.head_offset)
        self.leaving.check_finished()

    def _move(self, pq: ProcessQueue, event: QueueEvent) -> None:
        pq.state = move(QUEUE, pq.state, event, self.s.seen)

    # --- offsets ------------------------------------------------------------------------------------------------

    def persist_all(self, now: float) -> None:
        """Save how far every queue has come."""
        self.s.retry_delays.forget(now)
        for pq in list(self.s.queues.values()):
            if pq.state is not QueueState.OPENING:
                pq.owner.persist(pq, now)

    def persist(self, pq: ProcessQueue, now: float) -> None:
        """Commit what can be committed. A queue that leaves waits for its seals and loads: they are asked for, also again
        (a loader that has started anew knows nothing of the wish before)."""
        q = self.s.pulled[pq.handle]
        self._note_settled(q)
        self._commit_progress(q, now, untold=is_untold(q))
        if pq.state is QueueState.DRAINING and pq.ledger.held:
            self.s.ask_seals_of(pq)

    def _commit_progress(self, q: PulledQueue, now: float, *, untold: bool = False) -> None:
        """Commit what is new, or is to be committed again."""
        pq = q.pq
        if q.commit_asked >= 0 or pq.state is QueueState.ENDED:
            return
        if q.move is not None:
            # Else it waits for what runs. But a stop may be ended by force, and a step back passes nothing.
            if self.s.stopping and q.step_back and now >= q.last_commit_at:
                self._commit_moved(q, q.move, pq.head_offset)
            return
        if q.in_doubt and now - q.doubted_at < WITHHELD_S and pq.state is QueueState.ASSIGNED:
            return
        offset = pq.head_offset
        stale = untold or now - q.committed_at >= self.s.config.recommit_interval_ms / 1000
        if offset > max(q.committed, q.left_to) or stale:
            self._commit(q, offset)

    def _note_settled(self, q: PulledQueue) -> None:
        """For the loader, which folds it into what counts as loaded: its rows are in segments, and what has none is noted."""
        start, end = max(q.settled_to, q.pq.ledger.begin), q.pq.head_offset
        if 0 <= start < end:
            self.s.outcomes.add(SETTLED, q.pq.mq, start, end)
            q.settled_to = end

    def _commit(self, q: PulledQueue, offset: int) -> bool:
        """Ask for it; False where that would be wrong, which is logged and counted."""
        pq = q.pq
        if q.move is None and (offset < q.committed or not pq.nothing_unfinished_below(offset)):
            what = "commit_would_go_back" if offset < q.committed else "commit_would_pass_unfinished"
            self.s.counters.invariant_violations += 1
            self.s.log("critical", what, **place_keys(pq.mq, offset), committed=q.committed)
            return False
        q.commit_asked, moves = offset, q.move is not None
        self.s.out.append(Commit(pq.handle, pq.mq, offset, is_guarded(q, moves), guarded_from(q), moves))
        return True

    def _commit_moved(self, q: PulledQueue, move: Move, start: int) -> bool:
        """Ask for the offset that the queue was moved to. What the broker has deleted, and what an operator skips by that,
        from `start` on, is noted before (as everything that an offset passes: sealing.py), and not with the reset, so that
        the last of several counts.

        Where it is refused and a later reset goes lower, the note stands, and hides nothing: what is settled was not skipped.
        So it does where the group has gone on elsewhere, and its offset stays.
        """
        q.move = move = move.aimed(start)
        self.s.outcomes.add(LOST, q.pq.mq, start, max(start, min(move.lost_to, move.offset)))
        if move.skips_from >= 0:
            self.s.outcomes.add(SKIPPED, q.pq.mq, max(start, move.skips_from), move.offset)
        return self._commit(q, move.offset)

    def committed(self, handle: int, offset: int, ok: bool, left_at: int, final: bool, now: float) -> None:
        """The broker's answer to a Commit; a refused one is asked again at the next persist."""
        q = self.s.pulled.get(handle)
        if q is None or q.commit_asked != offset:
            self.s.counters.late_answers += 1
            return
        pq, q.commit_asked = q.pq, -1
        if fell_back := is_forgotten(q, left_at, final, now):
            ok, q.back_at = False, left_at
        if ok and left_at > offset and pq.state is QueueState.ASSIGNED:
            q.left_to, q.committed_at, q.back_at = offset, now, sys.maxsize
        elif ok:
            self._confirmed(q, offset, now)
        else:
            self.s.counters.commit_errors += 1
        if pq.state is QueueState.OPENING:
            self._committed_first(q, offset, ok, now)
            return
        if not ok and pq.state is QueueState.DRAINING:
            # The offset of a queue that we are leaving: tried until the deadline, so that nothing is repeated.
            q.last_commit_tries += q.final_commit and not fell_back
            q.final_commit = False
            if self.s.stopping and not pq.running() and self.leaving.enough_tries(q, offset):
                q.committed = q.committed if left_at < 0 else min(q.committed, left_at)
                self._give_up_commit(q, offset, now)
            elif now >= q.last_commit_at:
                due = q.last_commit_at = now + LAST_COMMIT_RETRY_S
                self.s.at(due, lambda at: self._check_drained(q, max(at, due)))  # timers tick in milliseconds
            return
        self._check_drained(q, now)

    def _confirmed(self, q: PulledQueue, offset: int, now: float) -> None:
        mq = q.pq.mq
        self.s.counters.commits += 1
        q.committed_at, q.back_at = now, sys.maxsize
        if self.s.charges.forget_below(mq, offset):
            self.s.charges_over()
        if q.move and q.move.offset == offset:
            # It is not finished up to there; what is below only does not concern us any more. And what was finished above
            # runs again: an offset that was never committed may be moved back to one that is no step back for the journal.
            q.committed, q.move = offset, q.move._replace(holds=True)
            self.s.out += (forgotten(mq), JournalCommitted(mq, offset, offset))
        elif offset != q.committed:
            q.committed = offset
            self.s.out.append(JournalCommitted(mq, q.pq.ledger.begin, offset))

    def _give_up_commit(self, q: PulledQueue, offset: int, now: float) -> None:
        if is_known(q, offset):
            self._end(q, QueueEvent.DRAINED, now)
        else:
            self.deadline(q.pq, now)

    # --- stop ---------------------------------------------------------------------------------------------------

    def stop(self, now: float) -> None:
        """Start nothing above the highest dispatched offset; finish, send back, seal and commit what is at or below it and
        begins before `cut_short`, which leaves the rest to the next owner."""
        if self.s.stopping:
            return
        self.s.stopping, self.s.rows_wait = True, False
        self._stop_at = now + self.s.config.stop_deadline_ms / 1000
        before = list(self.s.queues.values())
        for mq in [mq for mq in self._moves if mq not in self.s.by_mq]:
            if not self._open_to_commit(mq, now):
                self.leaving.not_committed(mq, self._moves.pop(mq).offset)
        for pq in before:
            if pq.state is QueueState.OPENING and pq.mq in self._moves:
                self._commit_unopened(pq, asked=pq.locked)
            elif pq.state in (QueueState.OPENING, QueueState.ASSIGNED):
                self.revoke(pq, now)
        self._dispatching.run()  # what has waited for room, of queues that finish
        self.leaving.check_finished()

    def _open_to_commit(self, mq: MessageQueue, now: float) -> bool:
        """In a stop: open a queue of ours once more, only to commit where it was moved to. False where that cannot be: we are
        done, it may be another member's, or messages of it run on."""
        if self.s.finished or now >= self._stop_at or mq not in self.awaited or mq in self.s.lingering:
            return False
        pq = ProcessQueue(next(self.s.handles), mq, self)
        self.s.enter(pq)
        self._commit_unopened(pq, asked=False)
        return True

    def _commit_unopened(self, pq: ProcessQueue, *, asked: bool) -> None:
        """In a stop: a queue that was moved is not left before that holds. Nothing of it is started, so no lock is needed."""
        if not asked:
            self._ask_where(pq)
        self.s.at(self._stop_at, lambda at: self._give_up_unopened(pq, at))

    def _ask_where(self, pq: ProcessQueue) -> None:
        if pq.state is QueueState.OPENING and self.s.pulled[pq.handle].commit_asked < 0:
            self.s.out.append(FetchOffset(pq.handle, pq.mq))

    def _try_unopened_again(self, pq: ProcessQueue, now: float) -> None:
        q = self.s.pulled[pq.handle]
        q.last_commit_tries += 1
        if q.last_commit_tries >= STOP_COMMIT_TRIES:
            self._give_up_unopened(pq, now)
        else:
            self.s.at(now + LAST_COMMIT_RETRY_S, lambda _: self._ask_where(pq))

    def _give_up_unopened(self, pq: ProcessQueue, now: float) -> None:
        if pq.state is QueueState.OPENING:
            self.leaving.not_committed(pq.mq, self._moves.pop(pq.mq).offset)
            self.revoke(pq, now)
