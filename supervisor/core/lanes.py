"""order = "key": equal keys in order, different keys in parallel over all workers.

Each key of a queue is a lane. Messages enter their lanes in the order of their offsets, as chunks of one, so that each is
settled by itself; a dispatch to a worker takes the next messages of as many lanes as make its share, and lanes that are in
somebody's hands wait. A message without a key is in no order: its lane is its own. A record that holds several messages (an
inner batch) is handled as one, under its own key.

The key is a property, looked up here (in this mode only), or what a function of the user's makes of the message: then a
worker is asked, one pull of each queue at a time. When it dies over that question the next one is asked; where its cell names
the message, that one is asked for by itself from then on, and gets no key when it has cost CLASSIFY_DEATHS_MAX workers.

A key that is slow, or held after a failure, holds its own messages only, until they fill the queue's span
(`consume_concurrently_max_span` offsets, or the thresholds): then the queue is not pulled any more, and others wait too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence

from ...remoting.errors import ProtocolError
from ...remoting.log_keys import place_keys
from ...remoting.properties import find_property
from ...remoting.stored import record_info
from ...workers.cells import KEYS_OF
from ...workers.failures import Cause, Failure, reconsume_limit
from .actions import Classify
from .blame import Death, Verdict
from .chunks import Chunk, PullRun
from .dispatching import Links
from .ordered import Ordered
from .process_queue import Lane, ProcessQueue
from .sizing import UNSHARED_MAX
from .state import State, Worker
from .states import QueueState
from .topic_limits import UNLIMITED

CLASSIFY_DEATHS_MAX = 3


class Lanes(Ordered):
    """Lanes by key, served in the order in which they became free."""

    def __init__(self, state: State, links: Links) -> None:
        super().__init__(state, links)
        state.by_dispatches = True
        self._line: deque[Lane] = deque()
        self._groups: dict[int, list[int]] = {}
        """By chunk: how many chunks of its dispatch are still out, shared by all of them."""
        self._property = state.config.order_key.encode()
        self._asked: dict[int, str] = {}
        """By handle: the worker that was asked for keys."""
        self._unasked: dict[int, None] = {}
        """Handles of queues for which nobody could be asked yet."""
        self._deadly: dict[int, tuple[int, int]] = {}
        """By handle: the offset of a message over whose key workers died, and how many."""

    # --- what the modes decide ----------------------------------------------------------------------------------

    def lane_at(self, pq: ProcessQueue, offset: int) -> Lane:
        return self.order_of(pq).of_offset[offset]

    def limit(self) -> int:
        return reconsume_limit(self.s.config.max_reconsume_times)

    def gives_up(self) -> bool:
        return not self.s.config.order_holds or self.s.stopping

    # --- intake -------------------------------------------------------------------------------------------------

    def _take_in(self, pq: ProcessQueue) -> None:
        """Give what was pulled to its lanes, or ask for the keys."""
        if not self._property:
            self._ask(pq)
            return
        view, name = self.s.view, self._property
        while pq.waiting:
            run = pq.waiting.popleft()
            keys = [
                _property_of(view, run.positions[index], run.positions[index + 1], name)
                for index in range(run.at, run.end)
            ]
            self._enter(pq, run, keys)

    def _enter(self, pq: ProcessQueue, run: PullRun, keys: Sequence[bytes | None]) -> None:
        """The first messages of the run enter the lanes of their keys."""
        s, order = self.s, self.order_of(pq)
        s.waiting_messages -= len(keys)
        for key in keys:
            chunk = run.cut(1, next(s.chunk_ids), pq.handle)
            offset = chunk.offsets[0]
            name: bytes | int = offset if key is None else key
            lane = order.lanes.get(name)
            if lane is None:
                lane = order.lanes[name] = Lane(pq.handle, name)
            order.of_offset[offset] = lane
            lane.waiting.append(chunk)
            lane.open += 1
            pq.open[chunk.chunk_id] = chunk
            self.offer(lane)

    # --- keys from workers --------------------------------------------------------------------------------------

    def _ask(self, pq: ProcessQueue) -> None:
        """Ask the worker that has least to do, unless somebody was asked already."""
        if pq.handle in self._asked or not pq.waiting or pq.state is not QueueState.ASSIGNED:
            return
        run = pq.waiting[0]
        offset, deaths = self._deadly.get(pq.handle, (-1, 0))
        at = bisect_left(run.offsets, offset, run.at, run.end)
        deadly = at < run.end and run.offsets[at] == offset
        if deadly and at == run.at and deaths >= CLASSIFY_DEATHS_MAX:
            self.s.log("error", "key_not_found_out", **place_keys(pq.mq, offset), worker_deaths=deaths)
            self._enter_first(pq, [None])
            return
        worker = self.s.places.least(UNLIMITED, None)
        if worker is None:
            self._unasked[pq.handle] = None  # `run` asks again
            return
        end = max(at, run.at + 1) if deadly else run.end
        self._asked[pq.handle] = worker.worker_id
        self.s.out.append(
            Classify(worker.worker_id, pq.handle, pq.mq, run.positions[run.at], run.positions[end], end - run.at)
        )

    def classified(self, worker_id: str, handle: int, keys: Sequence[bytes | None]) -> None:
        """A worker's answer to Classify: the keys of the first waiting messages; None = in no order."""
        asked = self._asked.get(handle) == worker_id
        if asked:
            del self._asked[handle]  # also of a queue that was taken away meanwhile: the worker waits for nothing more
        pq = self.s.queues.get(handle)
        if not asked or pq is None or not pq.waiting or len(keys) > pq.waiting[0].count:
            self.s.counters.late_answers += 1
            return
        self._enter_first(pq, keys)
        self.run()

    def asked(self) -> Collection[str]:
        """Workers that have not answered yet."""
        return self._asked.values()

    def worker_died(self, worker_id: str, death: Death) -> None:
        """Did it die over a key? What it was asked, another one is asked."""
        in_hand = death.in_hand
        if in_hand is not None and death.verdict in (Verdict.CHARGED, Verdict.TIMED_OUT):
            handle = in_hand.chunk_id - KEYS_OF
            if self._asked.get(handle) == worker_id:
                offset, deaths = self._deadly.get(handle, (-1, 0))
                self._deadly[handle] = in_hand.offset, deaths + 1 if offset == in_hand.offset else 1
        for handle in [handle for handle, asked in self._asked.items() if asked == worker_id]:
            del self._asked[handle]
            self._unasked[handle] = None

    def _enter_first(self, pq: ProcessQueue, keys: Sequence[bytes | None]) -> None:
        run = pq.waiting[0]
        end = run.at + len(keys)
        if self._deadly.get(pq.handle, (-1, 0))[0] in run.offsets[run.at : end]:
            del self._deadly[pq.handle]
        if end == run.end:
            pq.waiting.popleft()
        self._enter(pq, run, keys)
        self._ask(pq)

    def _ask_again(self) -> None:
        """For queues whose worker died over the question, or for which nobody could be asked."""
        if self.s.places.least(UNLIMITED, None) is None:
            return
        unasked, self._unasked = self._unasked, {}
        for handle in unasked:
            pq = self.s.queues.get(handle)
            if pq is not None:
                self._ask(pq)

    # --- dispatch -----------------------------------------------------------------------------------------------

    def offer(self, lane: Lane) -> None:
        if lane.queued or lane.beside:
            return
        if lane.waiting and lane.free and self.may_start(self.s.queues.get(lane.handle)):
            lane.queued = True
            if lane.waiting[0].alone:
                self._line.appendleft(lane)  # others wait until it is over
            else:
                self._line.append(lane)

    def run(self) -> None:
        s = self.s
        while s.ready:
            pq = s.ready.popleft()
            if pq.waiting and pq.state is QueueState.ASSIGNED:
                self._take_in(pq)
        if self._unasked:
            self._ask_again()
        while self._line and not self.quarantine.closed() and not s.rows_wait:
            worker, free = self._choose_worker()
            if worker is None:
                return
            self._dispatch_share(worker, -(-len(self._line) // free))

    def _choose_worker(self) -> tuple[Worker | None, int]:
        """The worker with the fewest dispatches out that still has a place, and how many workers have one."""
        window = self.s.config.chunks_in_flight
        return self.s.places.least(window, None), self.s.places.free(window, None)

    def _share_max(self) -> int:
        """As `chunk_size`, yet bounded: many pulls together have more for one worker than a chunk, which is cut from one."""
        c = self.s.config
        return min(self.s.chunk_size(c.chunk_messages_max, 1), max(UNSHARED_MAX, c.batch_messages_max))

    def _dispatch_share(self, worker: Worker, lanes_max: int) -> None:
        """Up to a chunk's worth of messages of at most `lanes_max` lanes, several of a lane where it has them."""
        size = 1 if self.quarantine.careful() else self._share_max()
        taken: list[tuple[Chunk, ProcessQueue, Lane]] = []
        for _ in range(min(lanes_max, len(self._line))):
            lane = self._line.popleft()
            lane.queued = False
            pq = self.s.queues.get(lane.handle)
            if pq is None or not lane.free or not self.may_start(pq):
                continue
            room = self._by_rate(pq.mq.topic)
            if not room:
                self._wait_for_rate(pq, lane)
                continue
            before = len(taken)
            while lane.waiting and len(taken) < min(size, before + room):
                taken.append((lane.waiting.popleft(), pq, lane))
            self._take_tokens_of(pq.mq.topic, lane, len(taken) - before)
            if len(taken) >= size:
                break
        if not taken:
            return
        self.dispatch(worker, taken)
        dispatched = [chunk.chunk_id for chunk, _, _ in taken if chunk.chunk_id in worker.in_flight]
        if dispatched:
            left = [len(dispatched)]
            self._groups.update((chunk_id, left) for chunk_id in dispatched)
            worker.dispatches += 1
            self.s.place(worker)

    # --- what is not under way any more -------------------------------------------------------------------------

    def forget(self, chunk: Chunk) -> None:
        super().forget(chunk)
        self._came_back(chunk)

    def _came_back(self, chunk: Chunk) -> None:
        group = self._groups.pop(chunk.chunk_id, None)
        if group is None:
            return
        group[0] -= 1
        worker = self.s.workers.get(chunk.worker_id or "")
        if not group[0] and worker is not None:
            worker.dispatches -= 1
            self.s.place(worker)

    def finished(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
        super().finished(chunk, pq)
        self._came_back(chunk)
        if pq is not None and chunk.reported == chunk.count and not chunk.failed:
            self._leave_lanes(pq, chunk.offsets)

    def sent(self, pq: ProcessQueue, offset: int) -> None:
        super().sent(pq, offset)
        self._leave_lanes(pq, [offset])

    def _leave_lanes(self, pq: ProcessQueue, offsets: Sequence[int]) -> None:
        """These are finished: a lane without any message is forgotten."""
        order = self.order_of(pq)
        for offset in offsets:
            lane = order.of_offset.pop(offset, None)
            if lane is not None:
                lane.open -= 1
                if not lane.open:
                    del order.lanes[lane.key]

    # --- the end of a queue -------------------------------------------------------------------------------------

    def ended(self, pq: ProcessQueue) -> None:
        super().ended(pq)
        self._asked.pop(pq.handle, None)
        self._unasked.pop(pq.handle, None)
        self._deadly.pop(pq.handle, None)

    def drop_waiting(self, pq: ProcessQueue) -> int:
        """At a stop, what is held goes back to the broker: its successors that were started let the offset go on."""
        dropped = super().drop_waiting(pq)
        if self.s.finishes(pq):
            order = self.order_of(pq)
            for lane in list(order.lanes.values()):
                if lane.suspended and lane.waiting:
                    lane.suspended = 0
                    self._send(pq, lane, lane.waiting.popleft(), Failure(Cause.HELD, "held at a stop"))
        return dropped


def _property_of(view: memoryview | bytearray, start: int, end: int, name: bytes) -> bytes | None:
    """That property of a record; None when it has none, or is damaged (its worker will say so)."""
    try:
        info = record_info(view, start, end)
    except ProtocolError:
        return None
    found = find_property(bytes(view[info.properties_start : info.end]), name)
    return bytes(found) if found else None
