"""Process queues: what was pulled or popped of a message queue, what runs, what is finished.

A process queue is what dispatching and settling work with. It answers with the offset that may be committed: the smallest
one that is not finished *and durable* (sealed, without rows, filtered, or its send-back accepted). Its ledger knows that
(ledger.py); chunks are kept only while they are open.

Where its messages came from is its owner's affair. A queue that is pulled has a `PulledQueue` (assigning.py owns it): it is
made when the queue is assigned and dies with the assignment. A queue that comes back gets a new one, and late answers find
the old one ended and are dropped (docs/protocol.md has Java's). What one pop brought has a `PopQueue` (popping.py).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...remoting.check_points import CheckPoint
from ...remoting.queues import MessageQueue
from .chunks import Chunk, PullRun, Token
from .ledger import Ledger
from .states import QueueState

RESERVE_BYTES_MIN = 16 * 1024
RESERVE_BYTES_MAX = 256 * 1024
"""A broker stops a pull at 256 KiB unless its first message alone is larger (MessageStoreConfig.java)."""


class Lane:
    """What is handled in order, one thing at a time: the whole queue with order = "queue", one key of it with order = "key".

    It has chunks in order of offset: those in flight, then those that wait.
    """

    __slots__ = (
        "beside", "handle", "in_hand", "key", "open", "queued", "sending", "suspended", "ticket", "waiting", "worker_id",
    )  # fmt: skip

    def __init__(self, handle: int, key: bytes | int) -> None:
        self.handle = handle
        self.key = key
        self.open = 0
        """Messages that are not finished, with order = "key": a lane without any is forgotten."""
        self.waiting: deque[Chunk] = deque()
        """Not dispatched, or given back: the next one first."""
        self.in_hand: set[int] = set()
        """Chunks that a worker has, by id."""
        self.suspended = 0
        """Number of the suspension that holds it; 0 = none. A number, because an old timer must not end a new one."""
        self.sending = -1
        """The offset whose send-back is open: nothing after it may start before that is accepted. -1 = none."""
        self.queued = False
        """It is in a line of lanes that may be dispatched."""
        self.beside = False
        """It waits for a rate, and is in no line."""
        self.ticket = 0
        """Its place among those that wait for a rate, which it keeps until it gets something; 0 = none."""
        self.worker_id: str | None = None
        """The worker that it sticks to, with order = "queue"."""

    @property
    def free(self) -> bool:
        """Nothing of it is under way that the next message has to wait for."""
        return not self.in_hand and not self.suspended and self.sending < 0


class QueueOrder:
    """What an ordered mode knows of one assignment: its lanes, and how often which message was tried here.

    All of that ends with the assignment, so the local counts are lost with it, as in Java (only a send-back writes a count
    down).
    """

    __slots__ = ("attempts", "beside", "lanes", "of_offset", "uncommitted")

    def __init__(self) -> None:
        self.lanes: dict[bytes | int, Lane] = {}
        """By key; a message without a key has a lane of its own, under its offset."""
        self.beside = 0
        """Lanes that wait for a rate."""
        self.of_offset: dict[int, Lane] = {}
        """The lane of each unfinished message, with order = "key"."""
        self.attempts: dict[int, int] = {}
        """How often the message at an offset was tried here and failed; forgotten when it is finished."""
        self.uncommitted: deque[Chunk] = deque()
        """Consumed by a handler that commits by itself, and neither committed nor rolled back."""


class Owner(Protocol):
    """In what queues that are pulled and popped messages differ. `now` is in seconds of the core's clock."""

    def progress(self, pq: ProcessQueue, now: float) -> None:
        """Something of the queue finished or became durable, or nobody will finish it here."""

    def finished(self, pq: ProcessQueue, start: int, end: int, token: Token) -> None:
        """Messages of the offsets `[start, end)` are finished; their rows are in that segment (number 0 = none)."""

    def check_of(self, pq: ProcessQueue, offset: int) -> CheckPoint | None:
        """The check point of the message at that offset; None = it was pulled, and has none."""

    def after_renewal(self, pq: ProcessQueue, offset: int, then: Callable[[], None]) -> bool:
        """Whether the message's check point is being replaced: then `then()` is called when the broker has answered."""
        ...

    def going_back(self, pq: ProcessQueue, offset: int) -> None:
        """The message at that offset is being sent back: `given_back` or `stays` follows."""

    def given_back(self, pq: ProcessQueue, offset: int, *, last: bool) -> None:
        """A broker has accepted the send-back of the message at that offset; `last`: as a dead letter."""

    def stays(self, pq: ProcessQueue, offset: int) -> None:
        """No broker has accepted it: the message stays with us."""

    def revoked(self, pq: ProcessQueue, now: float) -> None:
        """The queue drains from now on."""

    def deadline(self, pq: ProcessQueue, now: float) -> None:
        """It has drained for as long as it may."""

    def persist(self, pq: ProcessQueue, now: float) -> None:
        """Save how far the queue has come, every few seconds; not called of one that opens."""


class ProcessQueue:
    """State only; the decisions are in dispatching.py and settling.py. Owned by the supervisor's core."""

    __slots__ = (
        "cut_short", "handle", "info_handle", "last_consume", "ledger", "locked", "locked_at", "locked_until", "mq",
        "never_begun", "next_offset", "open", "order", "owner", "send_failures", "state", "unfinished", "unfinished_bytes",
        "waiting",
    )  # fmt: skip

    def __init__(self, handle: int, mq: MessageQueue, owner: Owner, info_handle: int = 0) -> None:
        self.handle = handle
        self.mq = mq
        self.owner = owner
        self.info_handle = info_handle or handle
        """By which workers know the queue: sent once to each."""
        self.state = QueueState.OPENING
        self.ledger = Ledger(-1)
        """Of what was pulled; it begins where the queue was opened."""
        self.next_offset = -1
        """The end of what was pulled or popped: the next pull begins there."""
        self.waiting: deque[PullRun] = deque()
        self.open: dict[int, Chunk] = {}
        """By id: chunks with messages that have no outcome, or failed and were not sent back yet."""
        self.unfinished = 0
        self.unfinished_bytes = 0
        self.send_failures = True
        """Failures are sent back; False once the queue was taken away (another member has them)."""
        self.cut_short = False
        """It drains for so long that nothing of it begins any more, whoever has it."""
        self.never_begun = 0
        """Of `unfinished`: messages that came back from workers that had not begun them, left to the next owner."""
        self.locked = True
        """It may be pulled and started: its lock is ours, or it needs none."""
        self.locked_at = 0.0
        """When the last confirmed lock was asked for."""
        self.locked_until = float("inf")
        """The last confirmed lock is held for certain until then."""
        self.order: QueueOrder | None = None
        """What an ordered mode knows of it."""
        self.last_consume = 0.0

    @property
    def head_offset(self) -> int:
        """The offset that may be committed: the smallest one that is not finished and durable."""
        return min(self.ledger.head, self.next_offset)

    @property
    def span(self) -> int:
        """Offsets from the first unfinished message to the next pull; finished but unsealed ones do not count. Looks at all
        that is open, see `is_wider`."""
        first = min((chunk.first_unfinished for chunk in self.open.values()), default=self.next_offset)
        if self.waiting:
            first = min(first, self.waiting[0].offsets[self.waiting[0].at])
        return self.next_offset - first

    def is_wider(self, span_max: int) -> bool:
        """`span` is more than that. Looked up only when it may be: what was not delivered before a message does not count."""
        return self.next_offset - self.ledger.first_open > span_max and self.span > span_max

    def running(self) -> bool:
        """A worker still has messages of it, or a send-back is under way or tried again."""
        return any(self.send_failures or chunk.reported < chunk.count for chunk in self.open.values())

    def nothing_unfinished_below(self, offset: int) -> bool:
        """The invariant of every commit, looked up by what is open and held, apart from how the offset was computed."""
        ledger = self.ledger
        # What a record begins with may be done all the same: an earlier assignment passed a gap before it.
        unfinished = [min(ledger.done.next_gap(chunk.floor), chunk.first_unfinished) for chunk in self.open.values()]
        unfinished += [min(ledger.done.next_gap(run.begin), run.offsets[run.at]) for run in self.waiting]
        unfinished += [
            offsets.start for offsets in (ledger.lost, *(held.offsets for held in ledger.held.values())) if offsets
        ]
        return offset <= min(unfinished, default=self.next_offset)

    def leave(self, chunk: Chunk) -> None:
        """Nobody will start the rest of the chunk in this assignment."""
        del self.open[chunk.chunk_id]
        self.ledger.lose(chunk.floor, chunk.offsets[-1] + 1)


class Move(NamedTuple):
    """The broker said that our offset is not in the queue, or an operator reset it: where it is to go on."""

    offset: int
    skips_from: int = -1
    """By an operator: what lies between there (or our offset, if that is higher) and `offset` is skipped; -1 of any other."""
    lost_to: int = -1
    """By the broker: up to there it has deleted its messages; -1 of any other."""
    holds: bool = False
    """A broker has confirmed it."""

    def aimed(self, start: int) -> Move:
        """Where the broker's end is below ours, and what was pulled from `start` on was not run, it still has that: its
        answer passes over it."""
        if self.lost_to < 0 or self.skips_from >= 0:
            return self
        return self._replace(offset=min(self.offset, max(start, self.lost_to)))


class PulledQueue:
    """One assignment of a message queue that is pulled: its position, its commits, and what holds its next pull back.

    State only; the decisions are in pulling.py and assigning.py.
    """

    __slots__ = (
        "back_at", "blocked", "commit_asked", "committed", "committed_at", "cut_off_at", "doubted_at", "drops", "end_offset",
        "end_told_at", "final_commit", "forgets", "gap_logged_at", "kept", "last_body_bytes", "last_commit_at",
        "last_commit_tries", "last_pull", "left_to", "move", "newer", "newer_at", "opened_ms", "ours", "position_asked", "pq",
        "pull_pending", "refusals", "refused_at", "refused_code", "refused_remark", "settled_to", "starved", "stuck_end",
        "stuck_waits",
    )  # fmt: skip

    def __init__(self, pq: ProcessQueue) -> None:
        self.pq = pq
        self.committed = -1
        """What the broker confirmed, or where the queue was opened."""
        self.committed_at, self.opened_ms = float("-inf"), 0
        """When the broker confirmed it: an opening offset that nobody stored is committed at the first persist. And the time
        of day at which it was opened, for the journal."""
        self.commit_asked = -1
        """The offset of the commit that is under way, -1 when none is."""
        self.left_to, self.back_at = -1, sys.maxsize
        """The offset of a commit that found the group further, and left it there: not asked again at each persist. And where
        the group was found behind `committed`, until a commit is confirmed: guarded ones go on from there."""
        self.doubted_at = float("inf")
        """Since when another member may have gone on with it unnoticed; inf = it is ours (doubts.py)."""
        self.cut_off_at = 0.0
        """Of a doubt: since when the broker may not have heard of us, also where there were several doubts since."""
        self.kept, self.newer, self.newer_at = -1, -1, float("-inf")
        """Below `kept` its broker forgets no offset, whatever happens to it; `newer` was committed at `newer_at`, and takes
        the place of that in time."""
        self.position_asked = False
        """Where the group is was asked for that, and not answered."""
        self.final_commit = False
        """The last commit of a draining queue was asked for: the queue ends with the answer."""
        self.last_commit_tries, self.last_commit_at = 0, 0.0
        """How often that commit failed, and when it may be asked again."""
        self.move: Move | None = None
        """The queue ends, and goes on there."""
        self.ours = False
        """It drains, but no other member has it: a reset that comes meanwhile is ours to commit."""
        self.forgets = False
        """It was reset while it drained for another member, or moved and not done at its deadline: what is finished of it
        counts for no later assignment."""
        self.end_offset = -1
        """What the queue's next message will get, as the last pull's answer said, or the broker when it was asked; -1
        before."""
        self.end_told_at = float("-inf")
        """When it was said last."""
        self.gap_logged_at = float("-inf")
        """When the log said last that a pull has passed over what is subscribed."""
        self.settled_to = -1
        """Up to there it is noted that the queue's messages are finished and durable; -1 before that."""
        self.pull_pending = False
        self.last_pull = 0.0
        self.last_body_bytes = 0
        self.drops = 0
        """How often in a row a response found no room."""
        self.blocked = False
        """Flow control holds the next pull until something finishes."""
        self.starved = False
        """It waits in the line for bytes of the slab."""
        self.refused_code, self.refused_remark, self.refusals, self.refused_at = -1, "", 0, 0.0
        """The code of the refusal of its last pull, -1 when it was none; what the broker said, how often in a row, and since
        when."""
        self.stuck_end, self.stuck_waits = -1, 0
        """Where the queue ends at a broker that has nothing at our offset, -1 when its last pull went on; how often in a row
        that was waited for."""

    @property
    def unconfirmed(self) -> Move | None:
        """Its move, while no broker has confirmed that."""
        return None if self.move is None or self.move.holds else self.move

    @property
    def step_back(self) -> Move | None:
        """It is ours, and was moved to where nothing unfinished lies before: no broker has confirmed that yet."""
        move = self.unconfirmed
        return move if move and self.ours and move.offset <= self.pq.head_offset else None

    @property
    def in_doubt(self) -> bool:
        """Another member may have gone on with it, and may still."""
        return self.doubted_at != float("inf")

    @property
    def move_in_doubt(self) -> bool:
        """The broker has moved it off what it does not have, and another member may have gone on further. (An operator's
        reset counts all the same.)"""
        return self.move is not None and self.move.skips_from < 0 and (self.in_doubt or not self.pq.locked)

    def reservation_bytes(self) -> int:
        """What the next pull sets aside: a quarter more than the last body, within what brokers send.

        After a response that found no room: all of that body, however large.
        """
        return self.last_body_bytes if self.drops else bytes_for_next(self.last_body_bytes)


def bytes_for_next(last_body_bytes: int) -> int:
    """What the next request of a queue sets aside: a quarter more than its last body, within what brokers send."""
    return min(max(last_body_bytes + last_body_bytes // 4, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
