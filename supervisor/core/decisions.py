"""The supervisor's decisions, pure: events in, actions out, no socket, clock, thread, random or environment.

One loop owns a `Core`: it calls an event method with the time, and then does what `take_actions` gives, in order. The
simulation does the same with a fake clock and network. The mechanisms are one file each: pulling.py, dispatching.py,
settling.py, assigning.py, all over the one state of state.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from ...durable.intervals import Intervals
from ...remoting.check_points import CheckPoint
from ...remoting.queues import MessageQueue
from ...workers.failures import Failure
from .actions import Action
from .assigning import Assigning
from .blame import Death, End
from .dispatching import Dispatching
from .lanes import Lanes
from .locking import Locking
from .order import Order
from .ordered import Ordered
from .orderly import Orderly
from .pop_queue import PopQueue
from .popping import Popping, PopResult
from .process_queue import ProcessQueue
from .pulling import Pulling, PullResult
from .reclaiming import Reclaiming
from .returning import Returning
from .settling import FailureReport, Settling
from .slab import Slab, Slot
from .state import OPERATOR, CoreConfig, State
from .states import Queue
from .stats import Window

DISPATCHING: Mapping[str, type[Dispatching]] = {"concurrent": Dispatching, "queue": Orderly, "key": Lanes}


class Core:
    """The facade over the mechanisms. All times are seconds of one monotonic clock, passed in."""

    def __init__(
        self,
        config: CoreConfig,
        slab: Slab,
        view: memoryview | bytearray,
        recovered: dict[MessageQueue, tuple[int, Intervals]] | None = None,
    ) -> None:
        self.state = State(config, slab, view)
        self.recover(recovered or {})
        self._build()

    def _build(self) -> None:
        state = self.state
        self.dispatching = self._make_dispatching()
        self.pulling = Pulling(state, self._moved)
        self.assigning = Assigning(state, self.pulling, self.dispatching)
        self.popping = Popping(state, self.assigning.check_finished)
        self.assigning.popping = self.popping
        self.settling = Settling(state, self.dispatching, self._progress, self.assigning.restart)
        self.reclaiming = Reclaiming(state, self.dispatching, self.settling.complete, self._progress)
        self._keep_order()

    def _make_dispatching(self) -> Dispatching:
        return DISPATCHING[self.state.config.order](self.state)

    def _keep_order(self) -> None:
        """What only the ordered modes have; see ordered.py and locking.py."""
        self.locking: Locking | None = None
        self.returning: Returning | None = None
        ordered = self.dispatching
        if not isinstance(ordered, Ordered):
            return
        ordered.send_back = self.settling.retries.send_back
        ordered.reported = self.settling.reported
        ordered.settled_down = self._settled_down
        self.returning = Returning(self.state, ordered, self._progress)
        if self.state.config.locks:
            self.locking = self.assigning.locking = Locking(self.state, self._locked_again, self.assigning.restart)

    def set_order(self, order: Order) -> None:
        """What the handler's decorator says of order is known when the first worker is ready. Before `start`."""
        self.state.config = replace(self.state.config, **asdict(order))
        self._build()

    def _moved(self, pq: ProcessQueue, offset: int, now: float) -> None:
        self.assigning.moved(pq, offset, now)

    def _progress(self, pq: ProcessQueue, now: float) -> None:
        """Something of the queue finished or became durable: pull more, or see whether it is drained."""
        if isinstance(pq, PopQueue):
            self.popping.progress(pq, now)
        elif pq.state is Queue.ASSIGNED:
            if pq.blocked:
                self.pulling.consider(pq, now)
        elif pq.state is Queue.DRAINING:
            self.assigning.check_drained(pq, now)

    def _locked_again(self, pq: ProcessQueue, now: float) -> None:
        if isinstance(self.dispatching, Ordered):
            self.dispatching.resume(pq)
        self.pulling.consider(pq, now)

    def _settled_down(self, mq: MessageQueue) -> None:
        """The last message of an ended queue has left its worker: unlock it, or open it again."""
        if self.locking is not None:
            self.locking.settled_down(mq)
        self.state.at(0.0, lambda at: self.assigning.look_up(mq.topic, at))

    def _feed(self, now: float) -> None:
        """Bytes may have been given back, also by chunks of a queue that has ended: serve those that wait for them."""
        if self.state.starved:
            self.pulling.feed_starved(now)

    def recover(self, recovered: dict[MessageQueue, tuple[int, Intervals]]) -> None:
        """What was finished before a restart: per queue the committed offset, and the offsets above it. Before `start`."""
        self.state.recovered.update(recovered)

    # --- time ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin: a first rebalance at once, then by the timers."""
        self._rebalance_timer(now)
        self.state.at(now + self.state.config.persist_interval_ms / 1000, self._persist_timer)
        if self.locking is not None:
            self.locking.start(now)
        for window in Window:
            self._sample(window, now)

    def _sample(self, window: Window, now: float) -> None:
        self.state.at(now + window.interval_s, lambda at: self._sample(window, at))
        self.state.stats.sample(window, now)

    def _rebalance_timer(self, now: float) -> None:
        # First the next time: it comes also when this one fails.
        self.state.at(now + self.state.config.rebalance_interval_ms / 1000, self._rebalance_timer)
        self.assigning.rebalance(now)

    def _persist_timer(self, now: float) -> None:
        self.state.at(now + self.state.config.persist_interval_ms / 1000, self._persist_timer)
        self.assigning.persist(now)
        self.assigning.heal(now)

    def tick(self, now: float) -> None:
        """Run the timers that are due."""
        self.state.run_timers(now)
        self.reclaiming.watch_order(now)

    def next_timer(self) -> float | None:
        """When `tick` has something to do next."""
        return self.state.next_timer()

    def take_actions(self) -> list[Action]:
        """What to do now, in order. The caller does all of it before the next event."""
        actions, self.state.out = self.state.out, []
        return actions

    def unexpected_error(self) -> None:
        """Something of the edge failed that nobody expected to: it is counted."""
        self.state.counters.unexpected_errors += 1

    # --- assignment ---------------------------------------------------------------------------------------------

    def rebalance(self, now: float) -> None:
        """The broker says that the group's members changed, or a route changed: look again at once."""
        self.assigning.rebalance(now)

    def members(
        self, topic: str, queues: Sequence[MessageQueue] | None, members: Sequence[str] | None, now: float,
        mine: Sequence[MessageQueue] | None = None,
    ) -> None:  # fmt: skip
        """Answer to FetchAssignment; `mine` = the own queues, where the strategy ran elsewhere."""
        self.assigning.members(topic, queues, members, now, mine)

    def subscribe(self, topic: str, now: float) -> None:
        """The topic is subscribed from now on, or with another filter. The edge tells the brokers in the same step."""
        self.assigning.subscribe(topic, now)

    def unsubscribe(self, topic: str, now: float) -> None:
        """The topic is not subscribed any more."""
        self.assigning.unsubscribe(topic, now)

    def opened(self, handle: int, offset: int | None, now: float) -> None:
        """Answer to FetchOffset."""
        self.assigning.opened(handle, offset, now)

    def committed(self, handle: int, offset: int, ok: bool, now: float) -> None:
        """Answer to Commit."""
        self.assigning.committed(handle, offset, ok, now)

    def persist(self, now: float) -> None:
        """Commit now instead of at the next timer."""
        self.assigning.persist(now)

    def stop(self, now: float) -> None:
        """Drain and end every queue; the action Finished says when that is done."""
        self.assigning.stop(now)

    def reset_offsets(self, offsets: Mapping[MessageQueue, int], now: float) -> None:
        """An administrator has set the offsets of these queues: what runs finishes, then ours begin there."""
        self.assigning.reset(offsets, now)

    def locked(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue] | None, asked_at: float, now: float
    ) -> None:
        """Answer to LockQueues, for the queues of one broker; None = it gave none. `asked_at`: when it was asked."""
        if self.locking is not None:
            self.locking.locked(asked, granted, asked_at, now)

    def broker_lost(self, broker_name: str, now: float) -> None:
        """The connection to a broker was lost."""
        if self.locking is not None:
            self.locking.doubt(broker_name, now)

    # --- pull ---------------------------------------------------------------------------------------------------

    def room_for(self, handle: int, length_bytes: int) -> Slot | None:
        """Where to receive the body of a pull or a pop; None = read it and drop it, then answer with `dropped`."""
        if handle in self.popping.handles:
            return self.popping.room_for(handle, length_bytes)
        return self.pulling.room_for(handle, length_bytes)

    def pulled(self, handle: int, result: PullResult, now: float) -> None:
        """Answer to Pull."""
        self.pulling.pulled(handle, result, now)
        self.dispatching.run()
        self.reclaiming.watch(now)

    def pull_failed(self, handle: int, now: float, slot: Slot | None = None) -> None:
        """Answer to Pull: connection lost or timed out, perhaps in the middle of a body that had `slot`."""
        if slot is not None:
            self.state.release(slot)
        self.pulling.failed(handle, self.state.config.pull_delay_on_error_ms, now)

    def pop_assigned(self, topic: str, mqs: Collection[MessageQueue], now: float) -> None:
        """The topic's queues to pop from, by the brokers' word."""
        self.popping.assigned(topic, mqs, now)

    def popped(self, handle: int, result: PopResult, now: float) -> None:
        """Answer to Pop."""
        self.popping.popped(handle, result, now)
        self.dispatching.run()
        self.reclaiming.watch(now)

    def pop_failed(self, handle: int, now: float, slot: Slot | None = None) -> None:
        """Answer to Pop: connection lost or timed out, perhaps in the middle of a body that had `slot`."""
        if slot is not None:
            self.state.release(slot)
        self.popping.failed(handle, now)

    def renewed(self, handle: int, offset: int, check: CheckPoint | None, now: float) -> None:
        """Answer to Renew: the new check point; None = refused."""
        self.popping.renewed(handle, offset, check, now)

    def acked(self, handle: int, count: int, refused: int, now: float) -> None:
        """Answer to Ack: of `count` messages so many were refused."""
        self.popping.acked(handle, count, refused, now)

    def pause(self, reason: str = OPERATOR) -> None:
        """Pull nothing until `resume` with the same reason; what was pulled is still consumed, the membership stays."""
        self.pulling.pause(reason)

    def resume(self, now: float, reason: str = OPERATOR) -> None:
        self.pulling.resume(reason, now)
        self.popping.resume(now)

    # --- workers ------------------------------------------------------------------------------------------------

    def worker_started(self, worker_id: str) -> None:
        self.settling.worker_started(worker_id)

    def worker_ready(self, worker_id: str) -> None:
        self.settling.worker_ready(worker_id)
        self.reclaiming.wake()

    def worker_window(self, worker_id: str, chunks: int) -> None:
        """The worker runs so many chunks at one time (a coroutine handler), instead of one after another."""
        self.state.workers[worker_id].window = chunks

    def retire(self, worker_id: str) -> None:
        """Give the worker nothing more; the action Retired says when it has nothing in hand."""
        self.settling.retire(worker_id)

    def worker_died(self, worker_id: str, *, expected: bool = False, death: Death | None = None) -> None:
        """Everything it had reported was read before this call. `death` says how it ended and what it had in hand;
        without one, nobody is charged, and `expected` = it was told to leave."""
        death = death or Death(End.TOLD if expected else End.CRASHED)
        if isinstance(self.dispatching, Lanes):
            self.dispatching.worker_died(worker_id, death)
        self.settling.worker_died(worker_id, death)

    def salvaged(
        self, worker_id: str, seq: int, records: Sequence[tuple[MessageQueue, Sequence[tuple[int, int]]]], now: float
    ) -> None:
        self.settling.salvaged(worker_id, seq, records, now)

    def salvage_complete(self, worker_id: str, now: float) -> None:
        self.settling.salvage_complete(worker_id, now)
        self.reclaiming.watch(now)
        self._feed(now)

    def outcome(
        self, worker_id: str, chunk_id: int, start: int, count: int, seq: int, busy_us: int, slowest_us: int,
        filtered: int, failures: Sequence[FailureReport], now: float,
    ) -> None:  # fmt: skip
        """A worker finished messages `[start, start + count)` of a chunk."""
        self.settling.outcome(worker_id, chunk_id, start, count, seq, busy_us, slowest_us, filtered, failures, now)
        self.reclaiming.watch(now)
        self._feed(now)

    def reclaimed(self, worker_id: str, chunk_ids: Sequence[int], unbegun: int, claimed: int, now: float) -> None:
        """Answer to Reclaim: the worker will not begin the last `unbegun` chunks; of the one before them it runs the first
        `claimed` records, 0 = as many as it has."""
        self.reclaiming.reclaimed(worker_id, chunk_ids, unbegun, claimed, now)
        self._feed(now)

    def in_hand(self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float) -> None:
        """Answer to ReadCell: the worker runs record `offset` of the chunk, and only it can report from `held` on."""
        self.settling.in_hand(worker_id, chunk_id, offset, held, now)
        self._feed(now)

    def returned(
        self,
        worker_id: str,
        chunk_id: int,
        start: int,
        failed: int,
        failure: Failure | None,
        suspend_ms: int,
        now: float,
    ) -> None:
        """In order: messages `[start, count)` of a chunk came back unfinished; the first `failed` of them were tried."""
        if self.returning is not None:
            self.returning.returned(worker_id, chunk_id, start, failed, failure, suspend_ms, now)
            self._feed(now)

    def consumed(self, worker_id: str, chunk_id: int, now: float) -> None:
        """In order: a whole chunk ran, and its handler has not committed it yet."""
        if self.returning is not None:
            self.returning.consumed(worker_id, chunk_id, now)

    def classified(self, worker_id: str, handle: int, keys: Sequence[bytes | None]) -> None:
        """Answer to Classify."""
        if isinstance(self.dispatching, Lanes):
            self.dispatching.classified(worker_id, handle, keys)

    def sealed(self, worker_id: str, seq: int, now: float) -> None:
        self.settling.sealed(worker_id, seq, now)

    def loaded(self, worker_id: str, seq: int, now: float) -> None:
        """A sealed segment's rows are in the table; asked for with `commit_after_loaded` only."""
        self.settling.loaded(worker_id, seq, now)

    def unsealed_of(self, worker_id: str) -> list[int]:
        """Sequence numbers of the worker's segments that hold reported rows and are not known to be sealed."""
        return sorted(seq for owner, seq in self.state.unsealed if owner == worker_id)

    def is_busy(self, worker_id: str) -> bool:
        """The worker has chunks that it has not reported on, or had some and did not begin them, or is asked for keys: its
        loop should move."""
        worker = self.state.workers.get(worker_id)
        if worker is None:
            return False
        asked = isinstance(self.dispatching, Lanes) and self.dispatching.asks(worker_id)
        return bool(worker.in_flight) or worker.held_up or asked

    def sent_back(self, handle: int, chunk_id: int, index: int, accepted: bool, now: float) -> None:
        """Answer to SendBack."""
        self.settling.retries.sent_back(handle, chunk_id, index, accepted, now)
        self._feed(now)
