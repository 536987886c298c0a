"""What the supervisor's core knows: one owner, no clock, no socket. The mechanisms (pulling, dispatching, settling,
assigning, stopping) are objects over this one state; only the supervisor's loop calls them.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf

from ...durable.intervals import Intervals
from ...remoting.queues import MessageQueue
from .actions import Action, ChargesChanged, Load, Log, Retired, Seal
from .allocation import Strategy
from .blame import DEATHS, Blamed, Death, End, InHand
from .charges import Charges
from .chunks import Chunk, Token
from .counters import Counters
from .outcome_notes import OutcomeNotes, RecentFailures
from .places import Places
from .process_queue import ProcessQueue, PulledQueue
from .rate_limits import RateLimits
from .retry_delays import RetryDelays
from .sizing import ChunkSizer
from .slab import Slab, Slot
from .states import ASSIGNED, LIVING, READY, WORKER, QueueState, Seen, WorkerEvent, WorkerState, move
from .stats import ConsumerStats
from .topic_limits import InFlight, TopicLimits

CHARGES_WRITTEN_EVERY_S = 1.0
"""Where suspects are over, one by one, the whole file is written so often: it has all of them, and waits for the disk."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What decides: settings of conf/defaults.toml, some in another unit or by a shorter name (wiring.py), and what nobody
    sets, such as times of Java's consumer."""

    client_id: str
    group: str
    topics: tuple[str, ...]
    """Subscribed topics, the retry topic included."""
    broadcasting: bool = field(default=False, kw_only=True)
    """Every member reads everything: a message that fails is dropped, nothing is sent back."""
    strategy: Strategy
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_bytes: int = 100 * 1024 * 1024
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic_bytes: int = -1
    """-1 = off; else shared out to the topic's assigned queues, instead of the two above."""
    consume_concurrently_max_span: int = 2000
    pull_interval_ms: int = 0
    pull_delay_on_error_ms: int = 1000
    """pullTimeDelayMillsWhenException (ClientConfig.java)."""
    pull_delay_on_flow_control_ms: int = 20
    """PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL (DefaultMQPushConsumerImpl.java)."""
    pop_threshold_for_queue: int = 96
    """popThresholdForQueue: messages of one assignment that wait for their acknowledgement, above which nothing is popped."""
    pop_ask_again_ms: int = 1000
    """What had no answer is asked again after this time, then after twice and three times that."""
    pop_elsewhere_after_ms: int = 120_000
    """When a message that a broker has shown to others counts as theirs: its invisible time is over then, and their rows are
    in the table, by the defaults."""
    persist_interval_ms: int = 5000
    recommit_interval_ms: int = 30000
    """An offset that does not move is committed again: a broker that was killed forgot what it had not saved (5 s). Java
    commits every offset at every persist."""
    rebalance_interval_ms: int = 20000
    open_retry_ms: int = 1000
    chunk_target_us: int = 10_000
    chunk_messages_max: int = 256
    batch_messages_max: int = 1
    """Messages of one call of a batch handler; at most `chunk_messages_max`."""
    chunks_in_flight: int = 2
    reclaim_after_ms: int = 30
    """A worker that has not reported for so long gives what it has not begun to one that idles (reclaiming.py)."""
    reclaim_look_ms: int = 20
    report_after_ms: float = 5.0
    """A worker keeps what it has finished to itself for so long; after that its cell is read (workers/unreported.py)."""
    send_back_retry_ms: int = 5000
    delay_level_when_next_consume: int = 0
    """Of a failed message whose handler names none: -1 = dead letter, 0 = the table of workers/failures.py."""
    max_worker_deaths: int = 3
    topic_concurrency: Mapping[str, int] = field(default_factory=dict[str, int])
    """By topic: calls of the handler at once over all workers, see topic_limits.py."""
    rate_limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """By topic, or for all: messages a second, see rate_limits.py."""
    rates_written: Mapping[str, str] = field(default_factory=dict[str, str])
    """By the same: the rate as the settings have it, such as `10/m`."""
    order: str = "concurrent"
    """concurrent, queue or key."""
    locks: bool = False
    """Queues are locked at their brokers before they are consumed: ordered, and clustering."""
    order_key: str = "KEYS"
    """The property that holds the key; empty = workers are asked for it (a function of the user's)."""
    auto_commit: bool = True
    """With order = queue: False = the handler says when its messages are committed (ConsumeOrderlyContext.autoCommit)."""
    order_holds: bool = True
    """With order = key: a failed message is tried again here; False = it is sent back at once."""
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: int = 1000
    lock_renewal_ms: int = 20000
    """REBALANCE_LOCK_INTERVAL (ProcessQueue.java)."""
    lock_live_ms: int = 30000
    """REBALANCE_LOCK_MAX_LIVE_TIME (ProcessQueue.java): a lock not confirmed for so long counts as lost."""
    lock_retry_ms: int = 500
    """A queue that is to be opened and is locked by another member is tried again (RebalanceImpl.java)."""
    lock_lost_retry_ms: int = 3000
    """A queue that was open and lost its lock (ConsumeMessageOrderlyService.java, tryLockLaterAndReconsume)."""
    unlock_delay_ms: int = 20000
    """UNLOCK_DELAY_TIME_MILLS (RebalancePushImpl.java): a message that runs on after its queue was taken away keeps the
    lock at most so long."""
    seal_rows: int = 50_000
    """A worker seals its segment at so many rows; it is asked to when more messages than that wait for one segment."""
    commit_after_loaded: bool = False
    """An offset may be committed when its rows are in the table; False: when they are sealed."""
    drain_deadline_ms: int = 10000
    stop_deadline_ms: int = 24000
    stop_load_ms: int = 0
    """What only waits for the table at a stop's deadline is waited for so much longer (`commit_after_loaded`)."""


OPERATOR = "operator"
"""The reason of a pause that somebody asked for."""
BACKLOG, DISK = "backlog", "disk"
"""Those of want of room for rows: too much waits for the loader, or the disk is nearly full."""


NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Worker:
    """One worker: the record of its life, from the decision to start it until what it left is settled.

    Staffing, dispatch, settling, watching, stacks and status all read this one, and its `state` moves by the table WORKER
    alone. The process and its link are the pool's (pool/child.py). Times are seconds of the core's clock.
    """

    worker_id: str
    state: WorkerState = WorkerState.BOOTING

    # What the staffing decided, and decides by (staffing.py).
    index: int = 0
    """0, 1, ...; a worker that takes the place of another gets its index."""
    generation: int = 0
    """Of the user's code and settings."""
    started_at: float = 0.0
    boots_since: float = 0.0
    """When it was started, or was last done with a segment that it salvages."""
    successor_of: str | None = None
    """The worker that leaves when this one is ready."""
    salvages: tuple[str, ...] = ()
    """Dead workers whose segments it salvages before its handler is set up; empty when it has."""
    messages_max: int = 0
    """It is replaced after so many; 0 = never for that."""
    age_max_s: float = 0.0
    """It is replaced at that age; 0 = never for that."""
    ready_at: float = inf
    """When it became ready; inf = it never was."""
    leaves_at: float = inf
    """When it was retired; inf = it was not."""
    messages: int = 0
    """So many it has reported, failed ones included."""
    failed: int = 0
    look_at_messages: int = NEVER
    """When it has reported so many, the staffing has something to decide."""
    wish: str = ""
    """Why it is to be replaced, as the worker or an operator said."""
    sets_up: bool = False
    """Its handler's set-up hook has begun."""
    boot_error: str = ""
    """Why it cannot boot."""
    kill_again_at: float = inf
    """It was to be killed before it was ready; when that is tried again, should it live on."""

    # What it has in flight (Workers, dispatching.py, settling.py, reclaiming.py).
    window: int = 0
    """Chunks it can have in flight, 0 = as configured."""
    in_flight: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    """Chunks dispatched to it and not reported to the end, in the order of dispatch. Only Workers.dispatched and
    Workers.came_back change it."""
    dispatches: int = 0
    """With order = "key": dispatches of which something is in flight."""
    in_flight_messages: int = 0
    """Of these chunks, those included that are reported."""
    in_flight_bytes: int = 0
    heard_at: float = 0.0
    """When it last reported something, or else was given the first of what it has."""
    held_up: bool = False
    """One message has kept it so long that the others were reclaimed: it gets nothing until it has reported its own."""
    read_ahead: dict[int, tuple[int, int, MessageQueue | None]] = field(
        default_factory=dict[int, "tuple[int, int, MessageQueue | None]"]
    )
    """Chunks that are over because of what was read off its cell, and that it still reports itself, by id: up to which
    record it has, how many there are, and their queue."""
    asked_at: tuple[int, int] | None = None
    """The call (chunk, offset) beside which it was asked to report."""
    seal_asked: bool = False
    sealed_seq: int = 0
    """Its newest segment that is known to be sealed; they are sealed in their order."""

    # What it left (settling.py, quarantine.py, retries.py).
    in_hand: InHand | None = None
    """What it had in hand when it died, whoever is to blame."""
    blamed: Blamed | None = None
    """What its death is charged to."""
    timed_out: list[tuple[ProcessQueue, Chunk]] = field(default_factory=list["tuple[ProcessQueue, Chunk]"])
    """What it had in hand when it was stopped at the hard time limit."""
    salvaged: dict[MessageQueue, Intervals] = field(default_factory=dict[MessageQueue, Intervals])
    """Records whose rows were found complete in the segment that it left."""
    salvaged_in: list[Token] = field(default_factory=list[Token])

    @property
    def booted(self) -> bool:
        """It was ready once, whatever it is now."""
        return self.ready_at != inf


AHEAD_TIMES = 2
"""A worker that runs calls side by side has as many chunks ahead, so that no call waits for a report, and reports can wait
for others. Not where topics are limited: what waits in a worker counts as if it ran."""


class Workers:
    """What the core knows of its workers, and what they have in flight. Kept so that no event looks at all of them."""

    def __init__(self, in_flight: Callable[[], Iterable[InFlight[Worker]]], group: str) -> None:
        self.workers: dict[str, Worker] = {}
        self.busy: dict[str, Worker] = {}
        """Those that have something in flight and answer for it."""
        self.held_up: set[str] = set()
        """Those that are held up, and may have nothing in flight."""
        self.places: Places[Worker] = Places()
        """Where the next chunk may go, or the next dispatch; order = "queue" keeps lines of its own."""
        self.by_dispatches = False
        """The load of a worker is its dispatches, and not its chunks."""
        self.changes = 0
        """How often a worker's state changed."""
        self.topic_limits: TopicLimits[Worker] = TopicLimits(in_flight, group)
        self.rates, self.now = RateLimits(group), 0.0
        """`now` is the time of the event that is taken, or of the timers that run."""
        self.isolated: str | None = None
        """The worker that is kept for the quarantine."""
        self.chunks: dict[int, Chunk] = {}
        """Chunks that wait for a report or a send-back."""
        self.seen: Seen = Counter()

    @property
    def kept_apart(self) -> Worker | None:
        """The worker that is kept for the quarantine."""
        return None if self.isolated is None else self.workers.get(self.isolated)

    def move_worker(self, worker: Worker, event: WorkerEvent) -> None:
        worker.state = move(WORKER, worker.state, event, self.seen)
        self.changes += 1
        if worker.state is WorkerState.DEAD:
            self.held_up.discard(worker.worker_id)
            for chunk_id in worker.in_flight:
                self.topic_limits.over(chunk_id)
        self.place(worker)

    def dispatched(self, worker: Worker, chunk: Chunk, topic: str) -> None:
        """The worker has the chunk in flight from now on."""
        chunk.worker_id = worker.worker_id
        chunk.never_begun = 0
        self.chunks[chunk.chunk_id] = chunk
        if not worker.in_flight:
            worker.heard_at = self.now
        worker.in_flight[chunk.chunk_id] = chunk
        worker.in_flight_messages += chunk.count
        worker.in_flight_bytes += chunk.length_bytes
        if self.topic_limits.counts:
            messages, side_by_side = chunk.count - chunk.reported, worker.window > 0
            self.topic_limits.dispatched(chunk.chunk_id, topic, messages, worker, side_by_side=side_by_side)
        self.place(worker)

    def came_back(self, worker: Worker, chunk: Chunk) -> None:
        """The worker does not have the chunk in flight any more: it was reported to the end, came back, or was reclaimed."""
        if worker.in_flight.pop(chunk.chunk_id, None) is None:
            return
        worker.in_flight_messages -= chunk.count
        worker.in_flight_bytes -= chunk.length_bytes
        if not worker.in_flight:
            worker.in_flight_messages = worker.in_flight_bytes = 0  # what came back of ordered chunks counted whole
        if self.topic_limits.counts:
            self.topic_limits.over(chunk.chunk_id)
        self.place(worker)

    def hold_up(self, worker: Worker, held_up: bool) -> None:
        """Whether the worker is given nothing for now."""
        worker.held_up = held_up
        if held_up:
            self.held_up.add(worker.worker_id)
        else:
            self.held_up.discard(worker.worker_id)
        self.place(worker)

    def place(self, worker: Worker) -> None:
        """Something of it has changed: note whether it may be given something, and after how many others."""
        if worker.state is READY and not worker.held_up:
            if self.by_dispatches:
                self.places.put(worker, worker.dispatches)
            else:
                self.places.put(worker, len(worker.in_flight), worker.window)
            if len(worker.in_flight) > 1:
                return  # it is busy, and was: it gets and loses one at a time
        else:
            self.places.leave(worker)
        if worker.in_flight and worker.state in LIVING:
            self.busy[worker.worker_id] = worker
        else:
            self.busy.pop(worker.worker_id, None)


class State(Workers):
    """All mutable state of the core. `view` is the slab's memory, indexed by the slots' starts."""

    def __init__(self, config: CoreConfig, slab: Slab, view: memoryview | bytearray) -> None:
        super().__init__(self._in_flight, config.group)
        self.config, self.slab, self.view = config, slab, view
        # Of workers, by cause; together they are the counter `worker_deaths`.
        self.deaths: dict[End, int] = dict.fromkeys(DEATHS, 0)
        # Delay level -> how many messages were sent back that may wait there: no dead letters, and none that was popped.
        self.sent_back_levels: dict[int, int] = {}
        self.topics = config.topics
        """Subscribed now."""
        self.recovered: dict[MessageQueue, tuple[int, Intervals]] = {}
        """Finished offsets of queues that are not assigned: (the committed offset they were noted above, the offsets)."""
        self.counters, self.stats, self.retry_delays = Counters(), ConsumerStats(), RetryDelays()
        self.out: list[Action] = []
        self.queues: dict[int, ProcessQueue] = {}
        """By handle; an ended queue is not in it, so that a late answer finds nothing."""
        self.pulled: dict[int, PulledQueue] = {}
        """Those of them that are pulled."""
        self.by_mq: dict[MessageQueue, ProcessQueue] = {}
        self.by_topic: dict[str, dict[MessageQueue, ProcessQueue]] = {}
        """As `by_mq`, which has the queues that are pulled; a topic without queues is not in it."""
        self.unsealed: dict[Token, dict[int, ProcessQueue]] = {}
        """By segment: the queues that have rows in it that are not durable yet, by handle; see Ledger.held."""
        self.unsealed_of: dict[str, set[int]] = {}
        """By worker: its segments in `unsealed` that are not known to be sealed."""
        self.unsealed_messages: Counter[Token] = Counter()
        """By segment: how many messages wait for it."""
        self.unloaded: dict[Token, None] = {}
        """Segments that are sealed and whose offsets wait for the table, with `commit_after_loaded`; the newest last."""
        # How many were ever put there; whether a Load is among the actions that were not taken yet.
        self.unloaded_ever, self.load_asked = 0, False
        self.reserved: dict[int, int] = {}
        """Units set aside for the pull of a handle, also of an ended one."""
        self.ready: deque[ProcessQueue] = deque()
        """Queues with something to dispatch, each once, served in turn."""
        self.redo: deque[Chunk] = deque()
        """What dead workers left: dispatched before anything new."""
        self.quarantine: deque[Chunk] = deque()
        """What may have killed a worker: dispatched before all else, to a worker that has nothing else."""
        self.starved: deque[PulledQueue] = deque()
        """Queues that wait for bytes of the slab, first come first served."""
        self.lingering: dict[MessageQueue, set[int]] = {}
        """Ordered: chunks of queues that have ended, still in flight; such a queue is not opened again yet."""
        self.charges, self.outcomes, self.recent_failures = Charges(), OutcomeNotes(), RecentFailures()
        self._charges_stale = False
        """Charges on the disk name what is over."""
        self.waiting_messages = 0
        self.paused: set[str] = set()
        """Who holds up pulling; what was pulled is still consumed, but where no more rows may come."""
        # `rows_wait`: there is no room for more rows, so what has not begun waits, until a stop.
        self.stopping = self.finished = self.rows_wait = False
        self.unfinished_at_stop = self.unsealed_at_stop = self.uncommitted_at_stop = 0
        """Messages of queues that ended at their deadline: not finished, or finished and their rows not sealed: these come
        again; and finished for good, but not committed: these come again at another member, or where they were popped. With
        them counts each acknowledgement under way (popping.py)."""
        self.sizer = ChunkSizer(config.chunk_target_us, config.chunk_messages_max)
        self.handles, self.chunk_ids, self._timer_ids = count(1), count(1), count()
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []

    def at(self, due: float, act: Callable[[float], None]) -> None:
        """Call `act(now)` at the first tick at or after `due` (seconds on the caller's clock)."""
        heapq.heappush(self._timers, (due, next(self._timer_ids), act))

    def run_timers(self, now: float) -> None:
        """Call what is due. What is added meanwhile waits for the next tick, so that a timer that sets itself again for a
        moment that is already over cannot keep the caller here. When one raises, the others are due again."""
        if not self._timers or self._timers[0][0] > now:
            return
        due: list[tuple[float, int, Callable[[float], None]]] = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers))
        due.reverse()
        try:
            while due:
                due.pop()[2](now)
        finally:
            for timer in due:
                heapq.heappush(self._timers, timer)

    def next_timer(self) -> float | None:
        """When the next timer is due, None without one."""
        return self._timers[0][0] if self._timers else None

    # --- lives of workers ---------------------------------------------------------------------------------------

    def worker_started(self, worker: Worker) -> None:
        self.workers[worker.worker_id] = worker

    def worker_not_started(self, worker_id: str) -> None:
        self.move_worker(self.workers.pop(worker_id), WorkerEvent.NOT_STARTED)

    def worker_ready(self, worker_id: str, now: float) -> None:
        """Messages may be dispatched to it, unless its end was decided before its report was read."""
        worker = self.workers[worker_id]
        if worker.state not in (WorkerState.STOPPING, WorkerState.KILLED):
            self.move_worker(worker, WorkerEvent.READY)
            worker.ready_at = now

    def worker_window(self, worker_id: str, chunks: int) -> None:
        """The worker runs so many calls side by side, each of a chunk of its own where they are slow."""
        worker = self.workers[worker_id]
        worker.window = chunks * (1 if self.config.topic_concurrency else AHEAD_TIMES)
        self.place(worker)

    def retire(self, worker_id: str, now: float) -> None:
        """Give the worker nothing more; Retired follows when it has nothing in flight. Without effect unless it is ready."""
        worker = self.workers.get(worker_id)
        if worker is None or worker.state is not READY:
            return
        worker.leaves_at = now
        self.move_worker(worker, WorkerEvent.RETIRED)
        self.let_go(worker)

    def let_go(self, worker: Worker) -> None:
        """One that leaves may end once it has nothing in flight."""
        if worker.state is WorkerState.LEAVING and not worker.in_flight:
            self.move_worker(worker, WorkerEvent.STOPPED)
            self.out.append(Retired(worker.worker_id))

    def worker_stops(self, worker_id: str) -> None:
        """It gets nothing more. Without effect when its end is decided already."""
        worker = self.workers[worker_id]
        if worker.state not in (WorkerState.STOPPING, WorkerState.KILLED):
            self.move_worker(worker, WorkerEvent.STOPPED)

    def worker_killed(self, worker_id: str) -> None:
        """It gets nothing more; what it had reported before is still read."""
        worker = self.workers[worker_id]
        if worker.state is not WorkerState.KILLED:
            self.move_worker(worker, WorkerEvent.KILLED)

    def worker_died(self, worker_id: str, death: Death) -> Worker:
        """Its last reports were read; what it left is settled by and by."""
        worker = self.workers[worker_id]
        if worker.state in LIVING and worker.booted and death.end is not End.RETIRED:
            self.counters.worker_deaths += 1
            self.deaths[death.end] = self.deaths.get(death.end, 0) + 1
        worker.in_hand = death.in_hand
        self.move_worker(worker, WorkerEvent.DIED)
        return worker

    def worker_gone(self, worker_id: str) -> Worker:
        """The dead worker's open segments are salvaged: nothing more of it will turn up."""
        worker = self.workers.pop(worker_id)
        self.move_worker(worker, WorkerEvent.SALVAGED)
        return worker

    # --- the log ------------------------------------------------------------------------------------------------

    def log(self, level: str, event: str, **keys: object) -> None:
        self.out.append(Log(level, event, keys))

    # --- charges ------------------------------------------------------------------------------------------------

    def charges_grew(self) -> None:
        """A count has grown or was moved, or a record is noted: written before anything after this is done."""
        self._charges_stale = False
        if not self.out or not isinstance(self.out[-1], ChargesChanged):
            self.out.append(ChargesChanged())

    def charges_over(self) -> None:
        """A suspect is over. That is written together with others: one that the file still names costs no more than that the
        next start is careful, or runs it alone."""
        if not self._charges_stale:
            self._charges_stale = True
            self.at(self.now + CHARGES_WRITTEN_EVERY_S, lambda _: self.flush_charges())

    def survived(self, mq: MessageQueue, offsets: Iterable[int]) -> None:
        """These are suspected no more, if they were: they were tried and their worker lives, or they were finished before."""
        if [offset for offset in offsets if self.charges.survived(mq, offset)]:
            self.charges_over()

    def flush_charges(self) -> None:
        """Write what is over."""
        if self._charges_stale:
            self.charges_grew()

    # --- memory -------------------------------------------------------------------------------------------------

    def release(self, slot: Slot) -> None:
        self.slab.release(slot)

    def release_chunk(self, chunk: Chunk) -> None:
        """Give the chunk's bytes back, once no worker may read them any more, and no send-back has to decode one of its
        records."""
        if chunk.held and chunk.reported >= chunk.count and not chunk.failed:
            chunk.held = False
            self.slab.release(chunk.slot)

    def ask_seal(self, worker_id: str) -> None:
        """Ask a worker to seal its segment, unless it was asked already."""
        worker = self.workers.get(worker_id)
        if worker is not None and worker.state in LIVING and not worker.seal_asked:
            worker.seal_asked = True
            self.out.append(Seal(worker_id))

    def ask_seals_of(self, pq: ProcessQueue) -> None:
        """Ask every worker that holds unsealed rows of this queue; and for a load when the queue waits for that to end."""
        self.ask_seals(pq.ledger.held)
        self.ask_load((pq,))

    def ask_load(self, queues: Iterable[ProcessQueue]) -> None:
        """Ask for a load, once, when one of these queues leaves and waits until what it left in sealed segments is in the
        table."""
        if self.load_asked:
            return
        for pq in queues:
            if pq.state is QueueState.DRAINING and any(token in self.unloaded for token in pq.ledger.held):
                self.load_asked = True
                self.out.append(Load())
                return

    def hold(self, pq: ProcessQueue, token: Token, start: int, end: int, messages: int) -> None:
        """Rows of these messages are in that segment, which is not safe yet: the offset does not pass them before it is."""
        self.unsealed.setdefault(token, {})[pq.handle] = pq
        pq.ledger.hold(token, start, end, messages)

    def ask_seals(self, tokens: Iterable[Token]) -> None:
        """Ask for the segments that are not sealed yet."""
        for token in tokens:
            if token not in self.unloaded:
                self.ask_seal(token[0])

    def finishes(self, pq: ProcessQueue) -> bool:
        """What was dispatched of it is dispatched again when its worker dies: not once it was taken away, or has drained for
        long."""
        return pq.state is ASSIGNED or (self.stopping and pq.send_failures and not pq.cut_short)

    def _in_flight(self) -> Iterator[InFlight[Worker]]:
        """What workers have of queues that are assigned."""
        for worker in self.workers.values():
            for chunk in worker.in_flight.values() if worker.state in LIVING else ():
                pq = self.queues.get(chunk.handle)
                if pq is not None:
                    messages = chunk.count - chunk.reported
                    yield InFlight(chunk.chunk_id, worker, pq.mq.topic, messages, worker.window > 0)

    # --- queues -------------------------------------------------------------------------------------------------

    def enter(self, pq: ProcessQueue) -> None:
        """A new assignment of a queue that is pulled."""
        self.pulled[pq.handle] = PulledQueue(pq)
        self.queues[pq.handle] = self.by_mq[pq.mq] = pq
        self.by_topic.setdefault(pq.mq.topic, {})[pq.mq] = pq

    def leave(self, pq: ProcessQueue) -> None:
        """The assignment is over."""
        del self.queues[pq.handle], self.pulled[pq.handle], self.by_mq[pq.mq]
        those = self.by_topic[pq.mq.topic]
        del those[pq.mq]
        if not those:
            del self.by_topic[pq.mq.topic]

    def wait_for_table(self, token: Token) -> None:
        """The segment is sealed, and what was finished with it waits until its rows are in the table."""
        if token not in self.unloaded:
            self.unloaded[token] = None
            self.unloaded_ever += 1

    def newly_unloaded(self, seen: int) -> list[Token]:
        """Segments that wait for the table and did not when `unloaded_ever` was `seen`, and some older ones perhaps."""
        return list(islice(reversed(self.unloaded), self.unloaded_ever - seen))

    def chunk_size(self, waiting: int, free_workers: int, large_of: str = "", in_line: float = 1) -> int:
        """Messages of the next chunk. A batch handler gets its whole batch, however long its calls take: most of a call may
        cost the same for one message as for many, and calls of one message would never show it.

        `large_of`: the topic, where the chunk may be large. Not where nothing of it can be reclaimed that others could run
        (by key, and of coroutines, which have all begun), nor where limits decide how much of what waits may go to the
        others. `in_line`: how many queues a worker has to serve in turn."""
        least = self.config.batch_messages_max if self.stats.calls_are_batches else 1
        size = max(self.sizer.size(waiting, free_workers), least)
        if not large_of:
            return size
        large = self.sizer.large(waiting, len(self.workers), large_of, in_line)
        return max(size, large - large % least)  # whole batches: no call goes beyond its chunk

    def assigned(self, handle: int) -> PulledQueue | None:
        """The pulled queue of that handle if it still takes new work."""
        q = self.pulled.get(handle)
        return q if q is not None and q.pq.state is ASSIGNED else None
