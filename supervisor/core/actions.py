"""What the core asks the edge to do. Plain data: the edge (or a simulation) does them in order and answers by events.

Each action that has an answer names the event (events.py) that brings it. An action never carries a live object of the
core except the chunk to dispatch, which the edge reads at once and does not keep. They are made on the hot path, hence not
frozen (a frozen dataclass costs three times as much to make) and compared by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...remoting.check_points import CheckPoint
from ...remoting.queues import MessageQueue
from ...workers.failures import Mode
from .chunks import Chunk


@dataclass(slots=True, eq=False)
class FetchAssignment:
    """Look up the topic's route and the group's members; answer `Members`."""

    topic: str
    asked_at: float
    """The answer says it, too."""


@dataclass(slots=True, eq=False)
class FetchOffset:
    """Find where to begin (stored offset, else consumeFromWhere, docs/protocol.md), or, `in_doubt`, where the group is with a
    queue that we have and `known` is committed of (doubts.py; -1 where the broker has no offset of it); answer `Opened`."""

    handle: int
    mq: MessageQueue
    in_doubt: bool = False
    known: int = -1


@dataclass(slots=True, eq=False)
class Pull:
    """Send one pull; answer `Pulled` or `NoAnswer`."""

    handle: int
    mq: MessageQueue
    offset: int
    commit_offset: int
    """To be committed with the pull, 0 = nothing new."""


@dataclass(slots=True, eq=False)
class Commit:
    """Commit the offset at the broker; answer `Committed`.

    With `guarded` the broker's offset is read first, and only one in `[known, offset)` is replaced (an absent one too): a
    higher one is the new owner's, and one below what the broker sent or confirmed to us was reset by an operator, who would
    not like to see it undone. (Or the broker was killed and forgot it: then messages repeat, which is the lesser evil.)
    """

    handle: int
    mq: MessageQueue
    offset: int
    guarded: bool
    known: int = -1
    moves: bool = False
    """It is where the queue was moved to, which may be a step back."""


@dataclass(slots=True, eq=False)
class SendBack:
    """Return one record to its broker by the way of `mode`; answer `SentBack`.

    `start`/`end` are the record's bytes in the slab; the edge decodes them before it returns to the loop.
    """

    handle: int
    chunk_id: int
    index: int
    mq: MessageQueue
    start: int
    end: int
    mode: Mode
    delay_level: int = 0
    """SEND_BACK, POP: 1..127; 0 = by its attempts so far."""
    attempt: int = 0
    """From 0. The edge tries the broker's send-back and then an ordinary send to the retry topic, in each attempt."""
    tried: int = 0
    """LAST_ATTEMPT: how often it was tried here."""
    check: CheckPoint | None = None
    """Of a popped message, whatever its mode."""
    facts: dict[str, str] | None = None
    """DEAD_LETTER after crashes: its properties; where that is refused, it goes without them, by a send-back."""
    error: str = ""
    """Why it failed, for a dead letter's properties."""
    last: bool = False
    """It is a dead letter once a broker has taken it (workers/failures.py, `is_last`): the edge asks for that."""


@dataclass(slots=True, eq=False)
class Pop:
    """Send one pop; answer `Popped` or `NoAnswer`."""

    handle: int
    mq: MessageQueue


@dataclass(slots=True, eq=False)
class Ack:
    """Acknowledge popped messages, which had no answer so many times before; answer `Acked`."""

    handle: int
    mq: MessageQueue
    checks: Sequence[CheckPoint]
    tries: int = 0


@dataclass(slots=True, eq=False)
class Renew:
    """Ask for the whole invisible time again for a popped message in hand; answer `Renewed`."""

    handle: int
    mq: MessageQueue
    offset: int
    check: CheckPoint


@dataclass(slots=True, eq=False)
class Dispatch:
    """Dispatch the chunk: send its place to the worker, whose reports come by `Reported`."""

    worker_id: str
    chunk: Chunk
    mq: MessageQueue
    info_handle: int
    """By which the worker knows the queue."""
    window_open: bool = False
    """It may be given more before it has reported this chunk."""
    journalled: bool = True
    """What ends of it the journal is told: not where it was popped, and not where all of it is to run again."""


@dataclass(slots=True, eq=False)
class OrderedChunk:
    """One chunk of an ordered dispatch. Of two with the same `lane`, the later waits for the success of the earlier."""

    chunk: Chunk
    mq: MessageQueue
    lane: int
    tried: tuple[int, ...]
    """How often its first messages were tried here already; those after it for the first time."""


@dataclass(slots=True, eq=False)
class DispatchOrdered:
    """Hand chunks to a worker that starts none of their messages after `start_before` (seconds on the core's clock), and
    none after a failed one of its lane. Answers: `Reported`, `Returned`, `Consumed`."""

    worker_id: str
    chunks: list[OrderedChunk]
    start_before: float


@dataclass(slots=True, eq=False)
class Classify:
    """Ask a worker for the keys of the records in `[start, end)` of the slab; answer `Classified`."""

    worker_id: str
    handle: int
    mq: MessageQueue
    start: int
    end: int
    count: int


@dataclass(slots=True, eq=False)
class LockQueues:
    """Lock or renew queues at their brokers; answer `Locked`, once for each broker."""

    mqs: tuple[MessageQueue, ...]


@dataclass(slots=True, eq=False)
class UnlockQueues:
    """Give the locks up, without an answer."""

    mqs: tuple[MessageQueue, ...]


@dataclass(slots=True, eq=False)
class Seal:
    """Ask a worker to seal its open segment; answer `Sealed`."""

    worker_id: str


@dataclass(slots=True, eq=False)
class Load:
    """Ask the loader to load what is sealed now: a queue that is to end waits for it. Answer `Loaded`."""


@dataclass(slots=True, eq=False)
class KillWorker:
    """The worker said what cannot be (a report out of order): it is killed, and its death handled as any other."""

    worker_id: str
    reason: str


@dataclass(slots=True, eq=False)
class Reclaim:
    """Take back what the worker has not begun of its chunks `chunk_ids`, which are all that it has, in the order of
    dispatch; answer `Reclaimed`, or none when it went on meanwhile or has nothing to give."""

    worker_id: str
    chunk_ids: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Recall:
    """Have the worker, which runs them in order, begin nothing more of what it has; it says what it gives back."""

    worker_id: str


@dataclass(slots=True, eq=False)
class ReadCell:
    """The worker has not reported for longer than it should, so it is in a long call: read off its cell what has ended before
    that; answer `CellRead`, or none when there is nothing to be read."""

    worker_id: str
    first_open: tuple[int, int] | None = None
    """Chunk and offset of its first record without an outcome: while the cell names that one, nothing is to be read."""
    held_only: bool = False
    """What the cell shows comes with a report in time: look only whether it holds what the worker alone can report."""


@dataclass(slots=True, eq=False)
class AskReport:
    """Let the worker report beside its call: it has finished messages that only it can report."""

    worker_id: str


@dataclass(slots=True, eq=False)
class Retired:
    """A worker that was to leave has nothing in flight any more: let it seal, tear down and end."""

    worker_id: str


@dataclass(slots=True, eq=False)
class JournalDone:
    """Offsets `[start, end)` are finished; their rows, if any, are in segment (worker_id, seq), seq 0 = no rows."""

    mq: MessageQueue
    start: int
    end: int
    worker_id: str
    seq: int


@dataclass(slots=True, eq=False)
class JournalSealed:
    """The segment (worker_id, seq) is sealed."""

    worker_id: str
    seq: int


@dataclass(slots=True, eq=False)
class JournalLost:
    """The segment (worker_id, seq) is not there: what waited for it waits no longer. Of that the file says nothing, as the
    next start looks for the segments by itself."""

    worker_id: str
    seq: int


@dataclass(slots=True, eq=False)
class JournalCommitted:
    """The broker confirmed the offset; everything below is finished and durable since `start` (the opening)."""

    mq: MessageQueue
    start: int
    offset: int
    opened_ms: int = 0
    """The queue is opened with it at this time of day; 0 = it was before, or that is not known."""


def forgotten(mq: MessageQueue) -> JournalCommitted:
    """Nothing is committed of the queue any more, nor finished: an offset below all others."""
    return JournalCommitted(mq, -1, -1)


@dataclass(slots=True, eq=False)
class JournalGoesOn:
    """The queue goes on here after a doubt: its journal counts as if opened at this time of day (0 = not known). Nothing else
    changes, so no offset is said: before the first commit it would be taken for an opening."""

    mq: MessageQueue
    at_ms: int


@dataclass(slots=True, eq=False)
class CountCellsAnew:
    """What the cells show of chunks that are out by now is not told to the journal by the next start."""


@dataclass(slots=True, eq=False)
class ChargesChanged:
    """`State.charges` is to be written before anything after this is done: a count must outlive the next death."""


LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""As in the module `logging`."""


@dataclass(slots=True, eq=False)
class Log:
    """One event for the log, with its keys."""

    level: str
    event: str
    keys: dict[str, object]


@dataclass(slots=True, eq=False)
class Heartbeat:
    """Send the heartbeat to all brokers now (subscription version or assignment changed)."""


@dataclass(slots=True, eq=False)
class Finished:
    """Every queue has ended after a stop; what may be repeated, 0 = clean: messages `unfinished`, and those finished of which
    rows are `unsealed`: they come again. What is `uncommitted` at the broker is finished for good, and in the journal: it
    comes again only where another member takes over the queue; or it was popped, and no broker has taken its acknowledgement.
    Of `moves_given_up` no broker has confirmed where their queues go on."""

    unfinished: int
    unsealed: int
    uncommitted: int
    moves_given_up: int

    @property
    def clean(self) -> bool:
        """Nothing is left."""
        return not (self.unfinished or self.unsealed or self.uncommitted or self.moves_given_up)


Action = (
    FetchAssignment
    | FetchOffset
    | Pull
    | Commit
    | SendBack
    | Pop
    | Ack
    | Renew
    | Dispatch
    | DispatchOrdered
    | Classify
    | LockQueues
    | UnlockQueues
    | Seal
    | Load
    | KillWorker
    | Reclaim
    | Recall
    | ReadCell
    | AskReport
    | Retired
    | JournalDone
    | JournalSealed
    | JournalLost
    | JournalCommitted
    | JournalGoesOn
    | CountCellsAnew
    | ChargesChanged
    | Log
    | Heartbeat
    | Finished
)
