"""What the edge reports to the core: news, answers to actions, and wishes of operators. Plain data, given to `Core.handle`.

Each is named for what has happened, or for what is wanted. The edge and the simulation make the same ones. They are read at
once and not kept, they are made on the hot path, hence not frozen, and compared by identity (as in actions.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...remoting.check_points import CheckPoint
from ...remoting.queues import MessageQueue
from ...workers.failures import Failure
from .blame import Death, End
from .popping import PopResult
from .pulling import PullResult
from .slab import Slot
from .state import OPERATOR, Worker

CRASHED = Death(End.CRASHED)
"""With nothing in hand: nobody is charged."""

FailureReport = tuple[int, Failure]
"""(index in the chunk, why it failed)."""

# --- the life of the member -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Start:
    """Begin: a first rebalance at once, then by the timers."""


@dataclass(slots=True, eq=False)
class Stop:
    """Drain and end every queue; the action Finished says when that is done."""


@dataclass(slots=True, eq=False)
class Pause:
    """Pull nothing until `Resume` with the same reason; the membership stays. What was pulled is still consumed, but for want
    of room for rows (BACKLOG, DISK): then only what was begun is."""

    reason: str = OPERATOR


@dataclass(slots=True, eq=False)
class Resume:
    """That reason does not hold up pulling any more."""

    reason: str = OPERATOR


# --- assignment -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Rebalance:
    """The broker says that the group's members changed, or a route changed: look again at once. Nothing before `Start`."""


@dataclass(slots=True, eq=False)
class Members:
    """Answer to FetchAssignment: the topic's readable queues and the group's client ids; None or empty = unknown."""

    topic: str
    queues: Sequence[MessageQueue] | None
    members: Sequence[str] | None
    mine: Sequence[MessageQueue] | None = None
    """The own queues, where the strategy ran elsewhere."""
    asked_at: float | None = None
    """Of the question; None = of the newest one."""
    unlisted: bool = False
    """A broker that has answered our heartbeat left us out of the members."""


@dataclass(slots=True, eq=False)
class Subscribe:
    """The topic is subscribed from now on, or with another filter. The edge sends it to the brokers in the same step."""

    topic: str


@dataclass(slots=True, eq=False)
class Unsubscribe:
    """The topic is not subscribed any more."""

    topic: str


@dataclass(slots=True, eq=False)
class Opened:
    """Answer to FetchOffset: where the queue begins, or where the group is with it; None = it could not be found out."""

    handle: int
    offset: int | None
    wall_ms: int = 0
    """When it came, in ms since 1970; 0 = not known. It says which of two journals is the later one."""
    final: bool = True
    """Not a slave's, which has what its master had some time ago."""


@dataclass(slots=True, eq=False)
class Committed:
    """Answer to Commit."""

    handle: int
    offset: int
    ok: bool
    left_at: int = -1
    """Where the group is instead, whose offset a guarded commit has left as it was; -1 = it is at `offset`."""
    final: bool = True
    """As that of `Opened`."""


@dataclass(slots=True, eq=False)
class Persist:
    """Commit now instead of at the next timer."""


@dataclass(slots=True, eq=False)
class ResetOffsets:
    """An administrator has set the offsets of these queues: what runs finishes, then ours begin there."""

    offsets: Mapping[MessageQueue, int]


@dataclass(slots=True, eq=False)
class Locked:
    """Answer to LockQueues, for the queues of one broker; `granted` None = it gave no answer."""

    asked: Collection[MessageQueue]
    granted: Collection[MessageQueue] | None
    asked_at: float
    """When the request was sent, in seconds of the core's clock."""


@dataclass(slots=True, eq=False)
class BrokerLost:
    """The connection to a broker was lost."""

    broker_name: str


# --- pulls and pops -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Pulled:
    """Answer to Pull."""

    handle: int
    result: PullResult


@dataclass(slots=True, eq=False)
class EndSeen:
    """A broker was asked where a queue ends that is not pulled now."""

    handle: int
    end_offset: int


@dataclass(slots=True, eq=False)
class NoAnswer:
    """A Pull or Pop has no usable answer: connection lost or timed out, perhaps in the middle of a body that had `slot`."""

    handle: int
    slot: Slot | None = None


@dataclass(slots=True, eq=False)
class PopAssigned:
    """The topic's queues to pop from, as the brokers say."""

    topic: str
    mqs: Collection[MessageQueue]


@dataclass(slots=True, eq=False)
class Popped:
    """Answer to Pop."""

    handle: int
    result: PopResult


@dataclass(slots=True, eq=False)
class Renewed:
    """Answer to Renew: the new check point; None = refused, or `unanswered`."""

    handle: int
    offset: int
    check: CheckPoint | None
    unanswered: bool = False


@dataclass(slots=True, eq=False)
class Acked:
    """Answer to Ack: of `count` messages so many were refused, and for these no answer came. `tries` is the action's."""

    handle: int
    count: int
    refused: int
    unanswered: Sequence[CheckPoint] = ()
    tries: int = 0


@dataclass(slots=True, eq=False)
class SentBack:
    """Answer to SendBack."""

    handle: int
    chunk_id: int
    index: int
    accepted: bool


# --- workers --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WorkerStarted:
    """That worker is about to be started; its record begins."""

    worker: Worker


@dataclass(slots=True, eq=False)
class WorkerNotStarted:
    """No process could be made for that worker."""

    worker_id: str


@dataclass(slots=True, eq=False)
class WorkerReady:
    """It has imported the handler and can be given messages."""

    worker_id: str


@dataclass(slots=True, eq=False)
class WorkerWindow:
    """The worker runs so many chunks at one time (a coroutine handler), instead of one after another."""

    worker_id: str
    chunks: int


@dataclass(slots=True, eq=False)
class RetireWorker:
    """Give the worker nothing more; the action Retired says when it has nothing in flight."""

    worker_id: str


@dataclass(slots=True, eq=False)
class WorkerStops:
    """The worker was asked to end, or reported that it ends: its end is expected."""

    worker_id: str


@dataclass(slots=True, eq=False)
class WorkerKilled:
    """The supervisor kills the worker for what it reported or did not do; its death follows."""

    worker_id: str


@dataclass(slots=True, eq=False)
class WorkerDied:
    """Everything that it had reported was given to the core before. Without anything in hand nobody is charged."""

    worker_id: str
    death: Death = CRASHED


@dataclass(slots=True, eq=False)
class Salvaged:
    """A segment that a dead worker left open is sealed; `records` are those whose rows are complete in it, per queue as
    ranges of offsets."""

    worker_id: str
    seq: int
    records: Sequence[tuple[MessageQueue, Sequence[tuple[int, int]]]]


@dataclass(slots=True, eq=False)
class SalvageComplete:
    """Nothing more of the dead worker will turn up."""

    worker_id: str
    wall_ms: int = 0
    """As in `Reported`."""


@dataclass(slots=True, eq=False)
class Reported:
    """A worker finished messages `[start, start + count)` of a chunk."""

    worker_id: str
    chunk_id: int
    start: int
    count: int
    seq: int
    """Of the segment that holds their rows; 0 = there are none."""
    busy_us: int
    slowest_us: int
    filtered: int
    failures: Sequence[FailureReport]
    wall_ms: int = 0
    """When it came, in ms since 1970; 0 = not known, and then its records have no latency."""


@dataclass(slots=True, eq=False)
class Reclaimed:
    """Answer to Reclaim: the worker will not begin the last `unbegun` of `chunk_ids`; of the one before them it runs the
    first `claimed` records, 0 = as many as it has."""

    worker_id: str
    chunk_ids: Sequence[int]
    unbegun: int
    claimed: int


@dataclass(slots=True, eq=False)
class CellRead:
    """Answer to ReadCell: the worker runs record `offset` of the chunk, and only it can report from `held` on."""

    worker_id: str
    chunk_id: int
    offset: int
    held: tuple[int, int] | None
    wall_ms: int = 0
    """As in `Reported`."""


@dataclass(slots=True, eq=False)
class Returned:
    """In order: messages `[start, count)` of a chunk came back unfinished; the first `failed` of them were tried."""

    worker_id: str
    chunk_id: int
    start: int
    failed: int
    failure: Failure | None
    """Why the first of them failed; None where none was tried."""
    suspend_ms: int
    """-1 = as configured, 0 = nothing is waited for."""


@dataclass(slots=True, eq=False)
class Consumed:
    """In order: a whole chunk ran, and its handler has not committed it yet."""

    worker_id: str
    chunk_id: int


@dataclass(slots=True, eq=False)
class Classified:
    """Answer to Classify: one key per record, None = it has none."""

    worker_id: str
    handle: int
    keys: Sequence[bytes | None]


@dataclass(slots=True, eq=False)
class Sealed:
    """The segment is safe on disk, and with it every earlier one of the worker."""

    worker_id: str
    seq: int


@dataclass(slots=True, eq=False)
class Loaded:
    """A sealed segment's rows are in the table; reported with `commit_after_loaded` only."""

    worker_id: str
    seq: int


Event = (
    Start
    | Stop
    | Pause
    | Resume
    | Rebalance
    | Members
    | Subscribe
    | Unsubscribe
    | Opened
    | EndSeen
    | Committed
    | Persist
    | ResetOffsets
    | Locked
    | BrokerLost
    | Pulled
    | NoAnswer
    | PopAssigned
    | Popped
    | Renewed
    | Acked
    | SentBack
    | WorkerStarted
    | WorkerNotStarted
    | WorkerReady
    | WorkerWindow
    | RetireWorker
    | WorkerStops
    | WorkerKilled
    | WorkerDied
    | Salvaged
    | SalvageComplete
    | Reported
    | Reclaimed
    | CellRead
    | Returned
    | Consumed
    | Classified
    | Sealed
    | Loaded
)
