"""What the supervisor's core knows: one owner, no clock, no socket. The mechanisms (pulling, dispatching, settling,
assigning, stopping) are objects over this one state; only the supervisor's loop calls them.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from ..remoting.queues import MessageQueue
from .actions import Action, Log, Seal
from .allocation import Strategy
from .chunks import Chunk, Token
from .counters import Counters
from .intervals import Intervals
from .process_queue import ProcessQueue
from .sizing import ChunkSizer
from .slab import Slab, Slot
from .states import WORKER, Queue, Seen, Worker, WorkerEvent, move


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings that decide; names, units and ranges as in conf/defaults.toml."""

    client_id: str
    group: str
    topics: tuple[str, ...]
    """Subscribed topics, the retry topic included."""
    strategy: Strategy
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_bytes: int = 100 * 1024 * 1024
    consume_concurrently_max_span: int = 2000
    pull_interval_ms: int = 0
    pull_delay_on_error_ms: int = 1000
    """pullTimeDelayMillsWhenException (ClientConfig.java)."""
    pull_delay_on_flow_control_ms: int = 20
    """PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL (DefaultMQPushConsumerImpl.java)."""
    persist_interval_ms: int = 5000
    rebalance_interval_ms: int = 20000
    open_retry_ms: int = 1000
    chunk_target_us: int = 2000
    chunk_messages_max: int = 64
    chunks_in_flight: int = 2
    send_back_retry_ms: int = 5000
    drain_deadline_ms: int = 10000
    stop_deadline_ms: int = 30000


class WorkerView:
    """One worker process as the core sees it."""

    __slots__ = ("in_flight", "salvaged", "seal_asked", "state", "worker_id")

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.state = Worker.BOOTING
        self.in_flight: dict[int, Chunk] = {}
        """Chunks handed to it and not reported to the end, in the order of hand-over."""
        self.seal_asked = False
        self.salvaged: dict[MessageQueue, Intervals] = {}
        """Records whose rows were found complete in the segment it left behind."""


@dataclass(slots=True)
class State:
    """All mutable state of the core. `view` is the slab's memory, indexed by the slots' starts."""

    config: CoreConfig
    slab: Slab
    view: memoryview | bytearray
    recovered: dict[MessageQueue, tuple[int, Intervals]] = field(default_factory=dict)
    """Finished offsets of queues that are not assigned: (the committed offset they were noted above, the offsets)."""
    counters: Counters = field(default_factory=Counters)
    seen: Seen = field(default_factory=Counter)
    out: list[Action] = field(default_factory=list)
    queues: dict[int, ProcessQueue] = field(default_factory=dict)
    """By handle; an ended queue is not in it, so that a late answer finds nothing."""
    by_mq: dict[MessageQueue, ProcessQueue] = field(default_factory=dict)
    workers: dict[str, WorkerView] = field(default_factory=dict)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """Chunks that wait for an outcome or a send-back."""
    unsealed: dict[Token, list[Chunk]] = field(default_factory=dict)
    reserved: dict[int, int] = field(default_factory=dict)
    """Units set aside for the pull of a handle, also of an ended one."""
    ready: deque[ProcessQueue] = field(default_factory=deque)
    """Queues with something to dispatch, each once, served in turn."""
    redo: deque[Chunk] = field(default_factory=deque)
    """What dead workers left: handed out before anything new."""
    starved: deque[ProcessQueue] = field(default_factory=deque)
    """Queues that wait for bytes of the slab, first come first served."""
    settled: dict[MessageQueue, Intervals] = field(default_factory=dict)
    """Per queue: offsets that are finished and durable by this member, for the loader."""
    waiting_messages: int = 0
    stopping: bool = False
    finished: bool = False
    unfinished_at_stop: int = 0
    unsealed_at_stop: int = 0
    """Messages of queues that ended at their deadline: to be expected again."""
    sizer: ChunkSizer = field(init=False)
    handles: Iterator[int] = field(default_factory=lambda: count(1))
    chunk_ids: Iterator[int] = field(default_factory=lambda: count(1))
    _timers: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _timer_ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.sizer = ChunkSizer(self.config.chunk_target_us, self.config.chunk_messages_max)

    def at(self, due: float, act: Callable[[float], None]) -> None:
        """Call `act(now)` at the first tick at or after `due` (seconds on the caller's clock)."""
        heapq.heappush(self._timers, (due, next(self._timer_ids), act))

    def run_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2](now)

    def next_timer(self) -> float | None:
        """When the next timer is due, None without one."""
        return self._timers[0][0] if self._timers else None

    def log(self, level: str, event: str, **keys: object) -> None:
        self.out.append(Log(level, event, keys))

    def release(self, slot: Slot) -> None:
        self.slab.release(slot)

    def release_chunk(self, chunk: Chunk) -> None:
        """Give the chunk's bytes back, once nobody may read them any more."""
        if chunk.held and not chunk.needs_bytes:
            chunk.held = False
            self.slab.release(chunk.slot)

    def ask_seal(self, worker_id: str) -> None:
        """Ask a worker to seal its segment, unless it was asked already."""
        worker = self.workers.get(worker_id)
        if worker is not None and worker.state is Worker.READY and not worker.seal_asked:
            worker.seal_asked = True
            self.out.append(Seal(worker_id))

    def ask_seals_of(self, pq: ProcessQueue) -> None:
        """Ask every worker that holds unsealed rows of this queue."""
        for chunk in pq.flight:
            for worker_id, _ in chunk.tokens or ():
                self.ask_seal(worker_id)

    def move_worker(self, worker: WorkerView, event: WorkerEvent) -> None:
        worker.state = move(WORKER, worker.state, event, self.seen)

    def assigned(self, handle: int) -> ProcessQueue | None:
        """The queue of that handle if it still takes new work."""
        pq = self.queues.get(handle)
        return pq if pq is not None and pq.state is Queue.ASSIGNED else None
