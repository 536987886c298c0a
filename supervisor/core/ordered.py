"""What the two ordered modes share: lanes that dispatch one thing at a time, and what comes back unfinished.

The order is kept by one rule: a lane dispatches nothing while anything of it is in flight, held after a failure,
or on its way back to the broker. So the next worker starts only after the dead one's salvage (its chunks count as in flight
until then), and a later message never begins before the earlier one is finished or sent back.

A failed message is held: it waits for the suspend time in front of its lane and is tried again, its count of attempts in
memory; at `max_reconsume_times` it goes to the retry topic as Java's orderly service sends it, where brokers put it into the
dead-letter topic. What a worker did not start (after a failure, or too late for its lock) comes back without a count.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from functools import partial
from heapq import heappop, heappush
from itertools import count

from ...remoting.errors import ProtocolError
from ...remoting.stored import record_info
from ...workers.failures import Cause, Failure
from .actions import DispatchOrdered, KillWorker, OrderedChunk
from .chunks import Chunk
from .dispatching import Dispatching, Links
from .process_queue import Lane, ProcessQueue, QueueOrder
from .rate_limits import GATHER_S, MEMBER
from .state import State, Worker
from .states import QueueState

SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000
"""Bounds of a handler's suspend time (ConsumeMessageOrderlyService.submitConsumeRequestLater)."""


class Ordered(Dispatching):
    """Dispatching in order."""

    def __init__(self, state: State, links: Links) -> None:
        super().__init__(state, links)
        self._suspensions = 0
        self._uncommitted: Counter[str] = Counter()
        """By worker: chunks that it has consumed, and that are neither committed nor rolled back."""
        self._beside_lanes: dict[str, list[tuple[int, Lane]]] = {}
        """Lanes whose topic is at its rate: by topic, which take turns, a heap by ticket."""
        self._tickets = count(1)

    # --- what the modes decide ----------------------------------------------------------------------------------

    @abstractmethod
    def lane_at(self, pq: ProcessQueue, offset: int) -> Lane:
        """The lane of the unfinished message at that offset."""

    @abstractmethod
    def offer(self, lane: Lane) -> None:
        """Put the lane into line if it is free and has something to dispatch."""

    @abstractmethod
    def limit(self) -> int:
        """Attempts after which a failed message is sent back."""

    @abstractmethod
    def gives_up(self) -> bool:
        """Failed messages are sent back at once now, instead of held."""

    def freed(self, worker_id: str) -> None:
        """The worker may have less to run than before."""

    # --- dispatch -----------------------------------------------------------------------------------------------

    def order_of(self, pq: ProcessQueue) -> QueueOrder:
        if pq.order is None:
            pq.order = QueueOrder()
        return pq.order

    def may_start(self, pq: ProcessQueue | None) -> bool:
        """The queue is ours, and its lock holds."""
        return pq is not None and pq.locked and self.s.finishes(pq)

    def dispatch(self, worker: Worker, chunks: list[tuple[Chunk, ProcessQueue, Lane]]) -> None:
        """One dispatch to a worker, lanes numbered in their order in it."""
        s = self.s
        numbers: dict[int, int] = {}
        items: list[OrderedChunk] = []
        until = float("inf")
        for chunk, pq, lane in chunks:
            if lane.sending >= 0:
                _insert(lane, chunk)  # the one before it has just become a dead letter: not before that is accepted
                continue
            if len(s.charges) and self.quarantine.exhausted(pq, chunk):
                continue
            s.dispatched(worker, chunk, pq.mq.topic)
            worker.asked_at = None  # it may be run there once more
            lane.in_hand.add(chunk.chunk_id)
            s.counters.dispatched_chunks += 1
            s.counters.dispatched_messages += chunk.count
            until = min(until, pq.locked_until)
            number = numbers.setdefault(id(lane), len(numbers))
            items.append(OrderedChunk(chunk, pq.mq, number, self._tried(pq, chunk)))
        if items:
            s.out.append(DispatchOrdered(worker.worker_id, items, until))

    def _wait_for_rate(self, pq: ProcessQueue, lane: Lane) -> None:
        """Beside the line, in the place that it had when it was held back first."""
        lane.ticket = lane.ticket or next(self._tickets)
        lane.beside = True
        self.order_of(pq).beside += 1
        heappush(self._beside_lanes.setdefault(pq.mq.topic, []), (lane.ticket, lane))

    def _take_tokens_of(self, topic: str, lane: Lane, messages: int) -> None:
        """The lane gets so many messages: whoever waits for the same rate goes before it, and before its topic."""
        self._take_tokens(topic, messages)
        lane.ticket = 0
        line = self._beside_lanes.pop(topic, None)
        if line is not None:
            self._beside_lanes[topic] = line

    def _look_again(self) -> None:
        self._offer_beside()
        self.run()
        s = self.s
        more = [topic for topic, line in self._beside_lanes.items() if line and self._by_rate(topic)]
        if more and MEMBER not in self._looks:  # those that were offered may take less than there is
            self._looks.add(MEMBER)
            s.at(s.now + GATHER_S, partial(self._look, MEMBER))

    def _offer_beside(self) -> None:
        """Offer as many lanes as there is room for, of each topic one in turn."""
        s = self.s
        left = s.rates.room(s.config.rate_limits, MEMBER, s.config.batch_messages_max, s.now)
        rooms = {topic: self._by_rate(topic) for topic, line in self._beside_lanes.items() if line}
        while rooms:
            for topic in list(rooms):
                line = self._beside_lanes[topic]
                if not line or rooms[topic] <= 0 or left <= 0:
                    del rooms[topic]
                    continue
                _, lane = heappop(line)
                lane.beside = False
                pq = s.queues.get(lane.handle)
                if pq is not None:
                    self.order_of(pq).beside -= 1
                self.offer(lane)
                if lane.queued:
                    rooms[topic] -= 1
                    left -= 1

    def _tried(self, pq: ProcessQueue, chunk: Chunk) -> tuple[int, ...]:
        attempts = self.order_of(pq).attempts
        if not attempts:
            return ()
        counts = [attempts.get(offset, 0) for offset in chunk.offsets]
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)

    def resume(self, pq: ProcessQueue) -> None:
        """Its lock is ours again."""
        for lane in self.order_of(pq).lanes.values():
            self.offer(lane)
        if pq.waiting:
            self.s.ready.append(pq)
        self.run()

    # --- what is not under way any more -------------------------------------------------------------------------

    def finished(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
        if chunk.worker_id is not None:
            self.freed(chunk.worker_id)
        if pq is None:
            self._linger_no_more(chunk)
            return
        order = self.order_of(pq)
        if chunk.count:
            lane = self.lane_at(pq, chunk.offsets[0])
            lane.in_hand.discard(chunk.chunk_id)
            self.offer(lane)
        self._committed(order, chunk)
        self._forget_attempts(order, chunk)

    @staticmethod
    def _forget_attempts(order: QueueOrder, chunk: Chunk) -> None:
        """Of what is finished of the chunk."""
        if order.attempts:
            for offset in chunk.offsets[: chunk.reported]:
                order.attempts.pop(offset, None)

    def again(self, pq: ProcessQueue, chunk: Chunk) -> None:
        lane = self.lane_at(pq, chunk.offsets[0])
        chunk.worker_id = None
        _insert(lane, chunk)
        self.offer(lane)

    def apart(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """In its place in the lane: the order matters more than what else its worker has in flight."""
        self.again(pq, chunk)

    def timed_out(self, pq: ProcessQueue, chunk: Chunk, failure: Failure, now: float) -> bool:
        lane = self.lane_at(pq, chunk.offsets[0])
        chunk.worker_id = None
        held = self._failed(pq, lane, chunk, chunk.count, failure)
        if held is not None:
            self._keep(pq, lane, held)
        if held is chunk:
            self._suspend(lane, -1, now)
        self.offer(lane)
        return True

    def sending(self, pq: ProcessQueue, offset: int) -> None:
        self.lane_at(pq, offset).sending = offset

    def sent(self, pq: ProcessQueue, offset: int) -> None:
        self.order_of(pq).attempts.pop(offset, None)
        lane = self.lane_at(pq, offset)
        if lane.sending == offset:
            lane.sending = -1
            self.offer(lane)
            self.run()

    def consumed(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """All of it ran, and its handler, which commits by itself, has not committed it yet: the lane goes on."""
        order, lane = self.order_of(pq), self.lane_at(pq, chunk.offsets[0])
        lane.in_hand.discard(chunk.chunk_id)
        self._wait_for_commit(order, chunk)
        if pq.state is not QueueState.ASSIGNED:
            self._leave_uncommitted(pq)
        self.offer(lane)

    def _wait_for_commit(self, order: QueueOrder, chunk: Chunk) -> None:
        """It was consumed, and waits for the word of its handler."""
        order.uncommitted.append(chunk)
        assert chunk.worker_id is not None, "it is in flight"
        self._uncommitted[chunk.worker_id] += 1
        self.freed(chunk.worker_id)

    def _committed(self, order: QueueOrder, chunk: Chunk) -> None:
        """It does not wait for that any more, if it did."""
        if chunk in order.uncommitted:
            order.uncommitted.remove(chunk)
            self._wait_no_more(chunk)

    def next_uncommitted(self, order: QueueOrder) -> Chunk:
        """The first chunk that waits for the word of its handler; it will not be waited for any more."""
        chunk = order.uncommitted.popleft()
        self._wait_no_more(chunk)
        return chunk

    def _wait_no_more(self, chunk: Chunk) -> None:
        worker_id = chunk.worker_id or ""
        self._uncommitted[worker_id] -= 1
        if not self._uncommitted[worker_id]:
            del self._uncommitted[worker_id]

    def returned(
        self,
        pq: ProcessQueue,
        chunk: Chunk,
        start: int,
        failed: int,
        failure: Failure | None,
        suspend_ms: int,
        now: float,
    ) -> None:
        """Of a chunk in flight, `[start, count)` came back unfinished. What is before it and not reported stays
        in flight, consumed and uncommitted.

        The first `failed` of what came back were tried, the first of all with that failure. `suspend_ms` -1 = as configured,
        0 = nothing is waited for.
        """
        order, lane = self.order_of(pq), self.lane_at(pq, chunk.offsets[start])
        lane.in_hand.discard(chunk.chunk_id)
        self._committed(order, chunk)
        self.s.counters.returned_messages += chunk.count - start - failed
        rest = self._cut_off(pq, chunk, start)
        if chunk is not rest:
            self._forget_attempts(order, chunk)
            if chunk.reported < chunk.count:
                self._wait_for_commit(order, chunk)
            else:
                self.forget(chunk)
                self._links.reported(chunk, pq)
        held = self._failed(pq, lane, rest, failed, failure) if failure is not None else rest
        if held is not None and not self.s.finishes(pq):
            pq.never_begun += sum(offset not in order.attempts for offset in held.offsets)
        if failure is not None and held is rest:
            self.s.recent_failures.note("held", pq.mq, rest.offsets[0], failure.error, now)
        if held is not None:
            self._keep(pq, lane, held)
        if suspend_ms and (not failed or held is rest):
            self._suspend(lane, suspend_ms, now)
        if pq.state is not QueueState.ASSIGNED:
            self._leave_uncommitted(pq)
        self.offer(lane)

    def forget(self, chunk: Chunk) -> None:
        """No worker has it any more."""
        self.s.chunks.pop(chunk.chunk_id, None)
        worker = self.s.workers.get(chunk.worker_id or "")
        if worker is not None:
            worker.heard_at = self.s.now
            self.s.came_back(worker, chunk)
            self.freed(worker.worker_id)
            self.s.let_go(worker)

    def _failed(self, pq: ProcessQueue, lane: Lane, rest: Chunk, failed: int, failure: Failure) -> Chunk | None:
        """Count the attempt, or send the first message back and keep what comes after it; what is to be kept."""
        order, first = self.order_of(pq), rest.offsets[0]
        self.s.counters.failed_messages += failed
        if self.s.charges.noted:
            self.s.survived(pq.mq, rest.offsets[:failed])
        at_limit = self._at_limit(rest, order.attempts.get(first, 0))
        given_up = failure.cause is Cause.GIVEN_UP
        gone = at_limit or given_up or self.gives_up()
        for offset in rest.offsets[1 if gone else 0 : failed]:
            order.attempts[offset] = order.attempts.get(offset, 0) + 1
            self.s.counters.held_messages += 1
        if not gone:
            return rest
        if not pq.send_failures:
            return rest  # its new owner has it
        kept = self._cut_off(pq, rest, 1) if rest.count > 1 else None
        if at_limit and not given_up:
            failure = Failure(Cause.ATTEMPTS, failure.error, tried=order.attempts.get(first, 0))
        elif self.s.config.order_holds and not given_up:
            failure = Failure(Cause.HELD, failure.error)
        self._send(pq, lane, rest, failure)
        return kept

    def _at_limit(self, chunk: Chunk, tried: int) -> bool:
        """The first message of the chunk has been tried often enough, stored count and local one together."""
        try:
            stored = record_info(self.s.view, chunk.positions[0], chunk.positions[1]).reconsume_times
        except ProtocolError:
            stored = 0  # damaged on the way: counted by what we know
        return stored + tried >= self.limit()

    def _send(self, pq: ProcessQueue, lane: Lane, chunk: Chunk, failure: Failure) -> None:
        """Send a chunk's only message back; its lane waits until that is accepted."""
        offset = chunk.offsets[0]
        self.order_of(pq).attempts.pop(offset, None)
        chunk.failed = {0: failure}
        chunk.reported = chunk.count
        self.s.chunks[chunk.chunk_id] = chunk
        lane.sending = offset
        self._links.reported(chunk, pq)
        self._links.send_back(pq, chunk, 0)
        if not chunk.failed:  # broadcasting: it was dropped
            self.s.chunks.pop(chunk.chunk_id, None)
            self.s.release_chunk(chunk)
            self.sent(pq, offset)

    def _keep(self, pq: ProcessQueue, lane: Lane, rest: Chunk) -> None:
        """It waits in its lane; or, when its queue was taken away, for the next owner."""
        if self.s.finishes(pq):
            _insert(lane, rest)
        else:
            self.leave(rest)

    def _cut_off(self, pq: ProcessQueue, chunk: Chunk, at: int) -> Chunk:
        """`[at, count)` of the chunk as one that no worker has; the chunk itself when that is all of it."""
        if at == 0:
            self.forget(chunk)
            chunk.worker_id = None
            return chunk
        rest = chunk.split(at, next(self.s.chunk_ids))
        rest.alone = chunk.alone  # else the death of a worker that has only that one in hand is charged to nobody
        pq.open[rest.chunk_id] = rest
        return rest

    def _suspend(self, lane: Lane, suspend_ms: int, now: float) -> None:
        ms = self.s.config.suspend_current_queue_time_ms if suspend_ms < 0 else suspend_ms
        self._suspensions += 1
        number = lane.suspended = self._suspensions

        def over(_now: float) -> None:
            if lane.suspended == number:
                lane.suspended = 0
                self.offer(lane)
                self.run()

        self.s.at(now + min(max(ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX) / 1000, over)

    # --- the end of a queue -------------------------------------------------------------------------------------

    def drop_waiting(self, pq: ProcessQueue) -> int:
        """Forget what comes after everything that was started; it is not run, and for us the queue ends before it."""
        dropped = super().drop_waiting(pq)
        for chunk in sorted(pq.open.values(), key=lambda chunk: chunk.begin, reverse=True):
            if chunk.worker_id is not None or chunk.reported or chunk.begin < pq.ledger.finished_to:
                break
            del pq.open[chunk.chunk_id]
            pq.next_offset = chunk.begin
            pq.unfinished -= chunk.count
            pq.unfinished_bytes -= chunk.length_bytes
            chunk.held = False
            self.s.release(chunk.slot)
            self.lane_at(pq, chunk.offsets[0]).waiting.remove(chunk)
            dropped += chunk.count
        pq.ledger.pull_again_from(pq.next_offset)
        self._leave_uncommitted(pq)
        return dropped

    def withdraw(self, pq: ProcessQueue) -> None:
        """Leave what waits in its lanes, unstarted or held, for the next owner."""
        order = self.order_of(pq)
        for lane in order.lanes.values():
            while lane.waiting:
                self.leave(lane.waiting.popleft())
        self._leave_uncommitted(pq)

    def _leave_uncommitted(self, pq: ProcessQueue) -> None:
        """Consumed, and never committed: it runs again elsewhere, and what its worker says of it later is dropped."""
        order = self.order_of(pq)
        if any(lane.in_hand for lane in order.lanes.values()):
            return  # the message that runs may commit them
        if order.uncommitted:  # and nothing after them may run before they have run again
            for lane in order.lanes.values():
                while lane.waiting:
                    self.leave(lane.waiting.popleft())
        while order.uncommitted:
            chunk = self.next_uncommitted(order)
            self.forget(chunk)
            rest = self._cut_off(pq, chunk, chunk.reported) if chunk.reported else chunk
            if rest is not chunk:
                self._links.reported(chunk, pq)
            self.leave(rest)

    def ended(self, pq: ProcessQueue) -> None:
        """The queue has ended; chunks of it that a worker still has keep it from being opened again."""
        while pq.order is not None and pq.order.uncommitted:
            # Nothing more is reported of these: they would linger for ever. The next owner has them.
            chunk = self.next_uncommitted(pq.order)
            self.forget(chunk)
            self.abandon(chunk)
        left = {chunk.chunk_id for chunk in pq.open.values() if self._in_hand(chunk)}
        if left:
            self.s.lingering[pq.mq] = self.s.lingering.get(pq.mq, set()) | left

    def _in_hand(self, chunk: Chunk) -> bool:
        worker = self.s.workers.get(chunk.worker_id or "")
        return worker is not None and chunk.chunk_id in worker.in_flight

    def _linger_no_more(self, chunk: Chunk) -> None:
        for mq, left in list(self.s.lingering.items()):
            if chunk.chunk_id in left:
                left.discard(chunk.chunk_id)
                if not left:
                    del self.s.lingering[mq]
                    self._links.settled_down(mq)


def _insert(lane: Lane, chunk: Chunk) -> None:
    """By its place in the queue; what comes back goes before what was never dispatched."""
    waiting = lane.waiting
    at = 0
    while at < len(waiting) and waiting[at].begin < chunk.begin:
        at += 1
    waiting.insert(at, chunk)


class Returning:
    """Takes what workers report of their own when they keep an order: messages given back, and consumed without a commit."""

    def __init__(self, state: State, ordered: Ordered) -> None:
        self.s = state
        self._ordered = ordered

    def _known(self, worker_id: str, chunk_id: int) -> Chunk | None:
        """The chunk, if that worker has it."""
        worker = self.s.workers.get(worker_id)
        chunk = worker.in_flight.get(chunk_id) if worker is not None else None
        if chunk is None:
            self.s.counters.late_reports += 1
        return chunk

    def _late(self, chunk: Chunk) -> None:
        """Its queue has ended: the next owner has it."""
        self.s.counters.late_reports += 1
        self._ordered.forget(chunk)
        self._ordered.abandon(chunk)
        self._ordered.finished(chunk, None)

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
        """Messages `[start, count)` of the chunk are not finished; the first `failed` were tried, with that failure."""
        chunk = self._known(worker_id, chunk_id)
        if chunk is None:
            return
        if (
            not chunk.reported <= start < chunk.count
            or failed > chunk.count - start
            or bool(failed) != (failure is not None)
        ):
            what = f"{failed} failed from {start} of chunk {chunk_id} at {chunk.reported} of {chunk.count}"
            self.s.out.append(KillWorker(worker_id, what))
            return
        pq = self.s.queues.get(chunk.handle)
        if pq is None:
            self._late(chunk)
            return
        if failed:
            pq.last_consume = now
        self._ordered.returned(pq, chunk, start, failed, failure, suspend_ms, now)
        self._ordered.run()
        pq.owner.progress(pq, now)

    def consumed(self, worker_id: str, chunk_id: int, now: float) -> None:
        """All of the chunk ran; its handler commits by itself and has not done so yet."""
        chunk = self._known(worker_id, chunk_id)
        pq = self.s.queues.get(chunk.handle) if chunk is not None else None
        if chunk is None:
            return
        if pq is None:
            self._late(chunk)
            return
        pq.last_consume = now
        self._ordered.consumed(pq, chunk)
        self._ordered.run()
        pq.owner.progress(pq, now)
