"""order = "queue": each message queue is one lane, handled by one worker at a time, the same one while it lives.

As Java's ConsumeMessageOrderlyService with processes in the place of threads. A queue sticks to its worker even when
another one idles, so that what a handler keeps in memory per queue stays where it is; queues are spread evenly over the
workers. A worker gets one chunk of a queue at a time, and chunks of different queues up to its window.
"""

from __future__ import annotations

from collections import Counter, deque

from .dispatching import Links
from .ordered import Ordered
from .process_queue import Lane, ProcessQueue
from .state import State, Worker
from .states import WorkerState

RECONSUME_UNLIMITED = 2**31 - 1
"""ConsumeMessageOrderlyService.getMaxReconsumeTimes: without a setting there is no limit."""
WHOLE_QUEUE = 0
"""Key of a queue's only lane."""


class Orderly(Ordered):
    """Lanes wait in the line of their worker, or among the homeless while none is ready."""

    def __init__(self, state: State, links: Links) -> None:
        super().__init__(state, links)
        self._lines: dict[str, deque[Lane]] = {}
        self._homeless: deque[Lane] = deque()
        self._due: dict[str, None] = {}
        """Workers that may take something of their line: it was empty, or they had their window full."""
        self._bound: Counter[str] = Counter()
        """By worker: lanes that stick to it."""
        self._changes = -1
        """State.changes when all lines were looked at."""

    # --- what the modes decide ----------------------------------------------------------------------------------

    def lane_at(self, pq: ProcessQueue, offset: int) -> Lane:
        del offset
        return self._lane(pq)

    def _lane(self, pq: ProcessQueue) -> Lane:
        lanes = self.order_of(pq).lanes
        lane = lanes.get(WHOLE_QUEUE)
        if lane is None:
            lane = lanes[WHOLE_QUEUE] = Lane(pq.handle, WHOLE_QUEUE)
        return lane

    def limit(self) -> int:
        configured = self.s.config.max_reconsume_times
        return RECONSUME_UNLIMITED if configured < 0 else configured

    def gives_up(self) -> bool:
        return False

    # --- dispatch -----------------------------------------------------------------------------------------------

    def offer(self, lane: Lane) -> None:
        pq = self.s.queues.get(lane.handle)
        if lane.queued or lane.beside or pq is None or not self._goes_on(lane, pq) or not (lane.waiting or pq.waiting):
            return
        lane.queued = True
        worker_id = self._worker_of(lane)
        if worker_id is None:
            self._homeless.append(lane)
        else:
            self._lines.setdefault(worker_id, deque()).append(lane)
            self._due[worker_id] = None

    def _worker_of(self, lane: Lane) -> str | None:
        """The one that it sticks to; when that is gone, the ready one that has the fewest queues."""
        workers = self.s.workers
        mine = workers.get(lane.worker_id or "")
        if mine is None or mine.state is not WorkerState.READY:
            ready = [worker_id for worker_id, worker in workers.items() if worker.state is WorkerState.READY]
            self._bind(lane, min(ready, key=lambda worker_id: self._bound[worker_id]) if ready else None)
        return lane.worker_id

    def _bind(self, lane: Lane, worker_id: str | None) -> None:
        if lane.worker_id is not None:
            self._bound[lane.worker_id] -= 1
            if not self._bound[lane.worker_id]:
                del self._bound[lane.worker_id]
        lane.worker_id = worker_id
        if worker_id is not None:
            self._bound[worker_id] += 1

    def ended(self, pq: ProcessQueue) -> None:
        super().ended(pq)
        if pq.order is not None:
            for lane in pq.order.lanes.values():
                self._bind(lane, None)

    def _goes_on(self, lane: Lane, pq: ProcessQueue) -> bool:
        """The next message may start: what was consumed before and is not committed lies with a worker that may commit it.

        A worker that leaves gives that up, and it runs again in the next one; a dead one's comes back by the salvage.
        """
        if not lane.free or not self.may_start(pq):
            return False
        order = self.order_of(pq)
        if not order.uncommitted:
            return True
        worker = self.s.workers.get(order.uncommitted[0].worker_id or "")
        if worker is not None and worker.state in (WorkerState.LEAVING, WorkerState.STOPPING):
            self._take_back(pq, lane)
        return worker is not None and worker.state in (WorkerState.READY, WorkerState.LEAVING, WorkerState.STOPPING)

    def _take_back(self, pq: ProcessQueue, lane: Lane) -> None:
        order = self.order_of(pq)
        while order.uncommitted:
            chunk = self.next_uncommitted(order)
            rest = self._cut_off(pq, chunk, chunk.reported)
            if rest is not chunk:
                self.forget(chunk)
                self._links.reported(chunk, pq)
            self._keep(pq, lane, rest)

    def freed(self, worker_id: str) -> None:
        self._due[worker_id] = None

    def run(self) -> None:
        s = self.s
        if self._changes != s.changes:
            self._changes = s.changes
            self._look_at_all()
        while s.ready:
            pq = s.ready.popleft()
            if s.queues.get(pq.handle) is pq:
                self.offer(self._lane(pq))
        while self._homeless and any(worker.state is WorkerState.READY for worker in s.workers.values()):
            lane = self._homeless.popleft()
            lane.queued = False
            self.offer(lane)
        while self._due and not self._closed() and not s.rows_wait:
            worker_id = next(iter(self._due))
            ready, line = s.workers.get(worker_id), self._lines.get(worker_id)
            if ready is None or not line or self._load(ready) >= s.config.chunks_in_flight:
                del self._due[worker_id]  # it comes again when that changes
            else:
                self._dispatch_next(ready, line)

    def _look_at_all(self) -> None:
        """The state of a worker has changed: what waits for one that leaves, or is gone, waits for another."""
        s = self.s
        if not s.config.auto_commit:
            for pq in list(s.queues.values()):
                if pq.order is not None and pq.order.uncommitted:
                    self.offer(self._lane(pq))
        for worker_id in list(self._lines):
            worker = s.workers.get(worker_id)
            if worker is None or worker.state is not WorkerState.READY:
                self._homeless.extend(self._lines.pop(worker_id))

    def _closed(self) -> bool:
        """Nothing may be dispatched before what is in flight is over; what only waits for its commit is."""
        return self.quarantine.careful() and any(self._load(worker) for worker in self.s.workers.values())

    def _load(self, worker: Worker) -> int:
        """Chunks that it has to run; those that only wait for their commit take no place."""
        return len(worker.in_flight) - self._uncommitted[worker.worker_id]

    def _dispatch_next(self, worker: Worker, line: deque[Lane]) -> None:
        in_line, lane = len(line), line.popleft()
        lane.queued = False
        pq = self.s.queues.get(lane.handle)
        if pq is None or not self._goes_on(lane, pq):
            return  # looked at again when it is locked, or free
        room = self._by_rate(pq.mq.topic)
        if not room:
            self._wait_for_rate(pq, lane)
            return
        config = self.s.config
        # A handler that commits is not read during its calls, and reports at the end of a chunk.
        large_of = pq.mq.topic if config.auto_commit and not config.rate_limits else ""
        wanted = 1 if self.quarantine.careful() else self.s.chunk_size(self.s.waiting_messages, 1, large_of, in_line)
        size = min(room, wanted)
        if lane.waiting:
            chunk = lane.waiting.popleft()
            if chunk.count > size:
                lane.waiting.appendleft(self._cut_off(pq, chunk, size))
        elif pq.waiting:
            chunk = self._cut(pq, size)
            pq.open[chunk.chunk_id] = chunk
        else:
            return
        self._take_tokens_of(pq.mq.topic, lane, chunk.count)
        self.dispatch(worker, [(chunk, pq, lane)])
