"""What a stop owes the brokers, and what it leaves undone: looked up and counted. assigning.py asks for what is owed.

Owed are the offset of what is finished, and where a queue was moved (a reset, an offset that the broker does not have), of
which nobody else may know. A commit is tried a few times. What is given up is said, and the stop was not clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from .actions import Finished
from .doubts import guarded_from
from .process_queue import Move, PulledQueue
from .state import State
from .states import QueueState

STOP_COMMIT_TRIES: Final = 3


class Leaving:
    """Of one member; `moves` are those of queues that are not open."""

    def __init__(self, state: State, moves: Mapping[MessageQueue, Move]) -> None:
        self.s = state
        self._moves = moves
        self._moves_given_up = 0
        """Since the stop began."""

    # --- what is owed -------------------------------------------------------------------------------------------

    def owes_commits(self) -> bool:
        """What is finished, or a move, is not committed: it is under way, may be asked for, or its rows are not sealed."""
        return any(self._owes(q) for q in self.s.pulled.values()) or bool(self.uncommitted())

    def _owes(self, q: PulledQueue) -> bool:
        if q.pq.state is QueueState.OPENING:
            return q.pq.mq in self._moves
        return q.commit_asked >= 0 or (q.move is None and bool(q.pq.ledger.held))

    def uncommitted(self) -> dict[int, int]:
        """By handle of their queues: offsets that may be committed in a stop, and whose commits are not under way."""
        found: dict[int, int] = {}
        for handle, q in self.s.pulled.items():
            if q.pq.state is not QueueState.OPENING and q.commit_asked < 0:
                if move := q.step_back:
                    found[handle] = move.offset
                elif q.move is None and q.pq.head_offset > guarded_from(q):
                    found[handle] = q.pq.head_offset
        return found

    @staticmethod
    def enough_tries(q: PulledQueue, offset: int) -> bool:
        """A stop with nothing unfinished does not wait for a broker that is away until its deadline: the journal has what is
        done. One try where the broker knows the offset already, some where another member would repeat messages."""
        return q.last_commit_tries >= (1 if is_known(q, offset) else STOP_COMMIT_TRIES)

    # --- what is left -------------------------------------------------------------------------------------------

    def not_committed(self, mq: MessageQueue, offset: int) -> None:
        """A move is given up, and nobody else may know of it."""
        self._moves_given_up += self.s.stopping
        self.s.log("error", "reset_not_committed", **place_keys(mq, offset))

    def give_up_moves(self) -> None:
        """The stop ends now, by force: no answer comes any more."""
        for mq, move in self._moves.items():
            self.not_committed(mq, move.offset)
        for q in self.s.pulled.values():
            if q.pq.state is not QueueState.OPENING and q.ours and (dropped := q.unconfirmed):
                self.not_committed(q.pq.mq, dropped.offset)

    def left(self) -> Finished:
        """What a stop at this moment leaves to be repeated: unfinished, finished without its rows being sealed, and of queues
        that have ended what is not committed; and how many moves were given up."""
        s, queues = self.s, self.s.queues.values()
        unfinished = s.unfinished_at_stop + sum(pq.unfinished - pq.never_begun for pq in queues)
        unsealed = s.unsealed_at_stop + sum(pq.ledger.held_messages() for pq in queues)
        return Finished(unfinished, unsealed, s.uncommitted_at_stop, self._moves_given_up)

    def check_finished(self) -> None:
        """After a stop: say so when the last queue has ended."""
        s = self.s
        if not s.stopping or s.queues or s.finished:
            return
        s.finished = True
        s.flush_charges()
        s.out.append(self.left())


def is_known(q: PulledQueue, offset: int) -> bool:
    """The broker has confirmed the offset, or sent it, and the group was not found behind that since; of a move only what it
    has confirmed counts."""
    return offset == q.committed and q.back_at >= offset and q.unconfirmed is None
