"""Dispatch: chunks are cut from what waits and given to the least loaded worker, two in flight each (places.py).

What a dead worker left goes first, what may have killed it apart from all else (quarantine.py); queues are served in
turn, so that a busy one does not starve the others. What its topic's limit holds back (topic_limits.py, rate_limits.py) waits
beside, topic by topic: of each only the first is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ...remoting.queues import MessageQueue
from ...workers.failures import Failure
from ...workers.packets import BLOCK_MESSAGES
from .actions import Dispatch
from .charges import Charge
from .chunks import Chunk
from .process_queue import ProcessQueue
from .quarantine import Quarantine
from .rate_limits import MEMBER
from .state import State, Worker
from .states import ASSIGNED, WorkerState
from .topic_limits import UNLIMITED

CHEAP_US = 10.0
"""A message below this: a chunk of 32 takes less than a few hundred µs, about what two wake-ups and their caches cost."""

CHEAP_WINDOW = 2
"""Times the usual chunks in flight while messages are cheap, so that the worker that is awake stays so (measured: 1.8 times
the rate, a fifth less CPU in the supervisor)."""


BLOCK_WINDOW = BLOCK_MESSAGES + 128
"""Messages in flight of a worker whose messages leave rows: a block, and what it runs while that is reported."""
SLAB_SHARE = 4
"""The workers together hold at most this part of the slab (1/4) for the sake of large blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What dispatching asks of mechanisms that are made after it."""

    left: Callable[[Chunk], None]
    """Nobody will run this shadow (retries.py)."""
    dead_letter: Callable[[ProcessQueue, Chunk, Charge], None]
    """The chunk's only record has cost too many workers: send it to the dead letters."""
    send_back: Callable[[ProcessQueue, Chunk, int], None]
    """Ask for the send-back of a failed message."""
    reported: Callable[[Chunk, ProcessQueue], None]
    """All of a chunk is reported: its bytes are given back."""
    settled_down: Callable[[MessageQueue], None]
    """The last message of an ended queue has left its worker: the queue may be opened again."""


class Dispatching:
    """Cuts and gives out chunks."""

    quarantine_class: ClassVar[type[Quarantine]] = Quarantine

    def __init__(self, state: State, links: Links) -> None:
        self.s = state
        self._links = links
        self.quarantine = self.quarantine_class(
            state, self._dispatch_again, self.apart, self._may_run, links.dead_letter
        )
        self._beside: dict[str, deque[ProcessQueue]] = {}
        """Queues whose topic is at its limit, by topic: not in line, so that an idle worker is seen as one."""
        self._recalled: set[int] = set()
        """Handles of queues that were put back into line from there: one that gets nothing keeps its place."""
        self._looks: set[str] = set()
        """Topics whose rate is looked at again by a timer; MEMBER for that of all."""

    @property
    def holds_back(self) -> bool:
        """Something waits for a topic's limit: each message that is over may make room."""
        return bool(self._beside)

    def run(self) -> None:
        """Give out as much as the workers' windows and the topics' limits take."""
        s = self.s
        if self._beside:
            for topic in list(self._beside):
                self._recall(topic)
        if s.redo or s.ready or s.quarantine or s.isolated:
            held_back: list[Chunk] = []
            refused: list[ProcessQueue] = []
            self._give_out(held_back, refused)
            if held_back:
                s.redo.extendleft(reversed(held_back))
            while refused:
                pq = refused.pop()
                self._beside.setdefault(pq.mq.topic, deque()).appendleft(pq)

    def _give_out(self, held_back: list[Chunk], refused: list[ProcessQueue]) -> None:
        s = self.s
        limited = bool(s.config.topic_concurrency or s.config.rate_limits)
        concurrent = s.config.order == "concurrent" and not limited
        room = UNLIMITED
        while s.redo or s.ready or s.quarantine or s.isolated:
            if s.quarantine or s.isolated:
                self.quarantine.run()
            if (s.charges.noted and self.quarantine.closed()) or not (s.redo or (s.ready and not s.rows_wait)):
                return  # what was begun and came back goes on where there is no room for more
            worker, free = self._choose_worker()
            if worker is None:
                return
            if s.redo:
                self._dispatch_next_again(worker, held_back)
                continue
            pq = s.ready.popleft()
            recalled = pq.handle in self._recalled
            self._recalled.discard(pq.handle)
            if pq.state is not ASSIGNED or not pq.waiting:
                continue
            topic = pq.mq.topic
            if limited:
                worker, room = self._within_limits(pq, worker, held_back)
                if worker is None:
                    (refused if recalled else self._beside.setdefault(topic, deque())).append(pq)
                    continue
            large_of = topic if concurrent and not worker.window else ""
            in_line = (len(s.ready) + 1) / len(s.workers)
            chunk = self._cut(pq, min(s.chunk_size(s.waiting_messages, free, large_of, in_line), room))
            if pq.waiting:
                s.ready.append(pq)
            pq.open[chunk.chunk_id] = chunk
            if chunk.alone:
                chunk.unpaid = True
                self.quarantine.admit(pq, chunk)
            else:
                self._dispatch(worker, chunk, pq)
            if limited or self._beside:
                self._given(topic, 0 if chunk.unpaid else chunk.count)

    def _given(self, topic: str, messages: int) -> None:
        """So many of the topic were given out: its next queue may wait for room beside the line."""
        self._take_tokens(topic, messages)
        if topic in self._beside:
            self._beside[topic] = self._beside.pop(topic)  # the others first: all may share one rate
            self._recall(topic)

    def _within_limits(self, pq: ProcessQueue, worker: Worker, held_back: list[Chunk]) -> tuple[Worker | None, int]:
        """Who may have messages of the queue now, and how many, as for its topic's limits; None = nobody."""
        topic = pq.mq.topic
        chosen, room = self._choose_within(topic, worker)
        by_rate = self._by_rate(topic) if chosen is not None else 0
        if not by_rate or any(chunk.handle == pq.handle for chunk in held_back):
            return None, 0
        return chosen, min(room, by_rate)

    def _recall(self, topic: str) -> None:
        """Put the next queue of the topic that waits beside back into line, if something of it may be dispatched now."""
        line = self._beside.get(topic)
        while line and (line[0].state is not ASSIGNED or not line[0].waiting):
            line.popleft()
        if not line:
            self._beside.pop(topic, None)
        elif self._choose_within(topic)[0] is not None and self._by_rate(topic):
            self._recalled.add(line[0].handle)
            self.s.ready.append(line.popleft())

    def _by_rate(self, topic: str) -> int:
        """How many messages of the topic may be dispatched now, as for its rate; where none, the timer that looks again is
        set."""
        s, rates = self.s, self.s.config.rate_limits
        if not rates:
            return UNLIMITED
        room = s.rates.room(rates, topic, s.config.batch_messages_max, s.now)
        if not room:
            # A look is for all topics: what they share needs no other.
            name = MEMBER if MEMBER in s.rates.holding(topic, s.now) else topic
            if name not in self._looks:
                self._looks.add(name)
                s.at(s.rates.due(name, s.now), partial(self._look, name))
        return room

    def _look(self, name: str, _now: float) -> None:
        self._looks.discard(name)
        self._look_again()

    def _take_tokens(self, topic: str, messages: int) -> None:
        if self.s.config.rate_limits:
            self.s.rates.take(topic, messages, self.s.now)

    def _look_again(self) -> None:
        """A rate may give something again: offer all topics in turn."""
        self.run()

    def _room(self, topic: str, worker: Worker) -> int:
        s, limits = self.s, self.s.config.topic_concurrency
        return s.topic_limits.room(limits, topic, worker, side_by_side=worker.window > 0) if limits else UNLIMITED

    def _may_run(self, worker: Worker, chunk: Chunk) -> bool:
        """Whether no limit of its topic holds the suspect back."""
        pq = self.s.queues.get(chunk.handle)
        if pq is None:
            return True
        topic = pq.mq.topic
        return self._room(topic, worker) >= chunk.count and (not chunk.unpaid or self._by_rate(topic) > 0)

    def _room_again(self, worker: Worker, chunk: Chunk) -> int:
        pq = self.s.queues.get(chunk.handle)
        return chunk.count if pq is None else self._room(pq.mq.topic, worker)

    def _dispatch_next_again(self, worker: Worker, held_back: list[Chunk]) -> None:
        """The first of what a dead or held-up worker left, unless its topic is at its limit."""
        chunk = self.s.redo.popleft()
        pq = self.s.queues.get(chunk.handle)
        if self._room_again(worker, chunk) < chunk.count and pq is not None:
            other, room = self._choose_within(pq.mq.topic)
            if other is None or room < chunk.count:
                held_back.append(chunk)
                return
            worker = other
        self._dispatch_again(worker, chunk)

    def _choose_within(self, topic: str, worker: Worker | None = None) -> tuple[Worker | None, int]:
        """A worker that has a place and may have more of the topic, and how much more; `worker`, if it can. While the topic
        is at its limit, that is one of those that have some of it: the one with the fewest chunks in flight."""
        if worker is None:
            worker, _ = self._choose_worker()
        if worker is not None and (room := self._room(topic, worker)):
            return worker, room
        window = self._window()
        holders = self.s.topic_limits.holders(self.s.config.topic_concurrency, topic)
        rooms = [
            (holder, room)
            for holder in holders
            if self._has_place(holder, window) and (room := self._room(topic, holder))
        ]
        return min(rooms, key=lambda found: len(found[0].in_flight), default=(None, 0))

    def _window(self) -> int:
        return self.s.config.chunks_in_flight * (CHEAP_WINDOW if self.s.sizer.tail_us < CHEAP_US else 1)

    def _block_open(self, worker: Worker) -> bool:
        """The worker can have more messages so that their rows make a larger block: as many as a block holds, for less time
        than a chunk is to take (more, where much waits), with a share of the slab. Where a report makes room for the next
        message, none waits."""
        s = self.s
        return (
            s.sizer.rows
            and worker.in_flight_messages < BLOCK_WINDOW
            and s.sizer.takes(worker.in_flight_messages, s.waiting_messages, len(s.workers))
            and worker.in_flight_bytes * SLAB_SHARE * len(s.workers) < s.slab.size_bytes
            and not (worker.window or s.config.topic_concurrency)
        )

    def _has_place(self, worker: Worker, window: int) -> bool:
        return (
            (len(worker.in_flight) < (worker.window or window) or self._block_open(worker))
            and worker.state is WorkerState.READY
            and worker.worker_id != self.s.isolated
            and not worker.held_up
        )

    def _choose_worker(self) -> tuple[Worker | None, int]:
        """The worker for the next chunk, None when no place is free, and how many workers share what waits.

        It is the one with the fewest chunks in flight, so that nothing waits while a core idles, and all that have less than
        their window share. When messages are so cheap that waking a sleeping process costs more than the chunk, it is the
        one with the most: it is awake, and shares with nobody.
        """
        s = self.s
        window, apart = self._window(), s.kept_apart
        if s.sizer.tail_us < CHEAP_US:
            best = s.places.beyond(window, apart, self._block_open, most=True) if s.sizer.rows else None
            return best or s.places.most(window, apart), 1
        best = s.places.least(window, apart)
        if best is None and s.sizer.rows:
            best = s.places.beyond(window, apart, self._block_open, most=False)
        return best, 0 if best is None else s.places.free(window, apart)

    def _cut(self, pq: ProcessQueue, size: int) -> Chunk:
        run = pq.waiting[0]
        end, alone = min(run.at + size, run.end), False
        if self.s.charges.noted and self.quarantine.careful():
            end = min(end, run.at + 1)
        if len(self.s.charges):
            end, alone = self.quarantine.bound(pq.mq, run.offsets, run.at, end)
        chunk = run.cut(end - run.at, next(self.s.chunk_ids), pq.handle)
        chunk.alone = alone
        self.s.waiting_messages -= chunk.count
        if not run.count:
            pq.waiting.popleft()
        return chunk

    def _dispatch(self, worker: Worker, chunk: Chunk, pq: ProcessQueue) -> None:
        s = self.s
        s.dispatched(worker, chunk, pq.mq.topic)
        s.counters.dispatched_chunks += 1
        s.counters.dispatched_messages += chunk.count
        window_open = not chunk.alone and self._block_open(worker)
        q = s.pulled.get(pq.handle)
        journalled = q is not None and not (q.move and q.move.holds)
        s.out.append(Dispatch(worker.worker_id, chunk, pq.mq, pq.info_handle, window_open, journalled))

    def _dispatch_again(self, worker: Worker, chunk: Chunk) -> None:
        pq = self.s.queues.get(chunk.handle)
        if pq is None:
            # The queue ended while its messages waited for a new worker: the next owner has them.
            self.abandon(chunk)
            return
        if not self.s.finishes(pq):
            self.leave(chunk)
            return
        self.s.counters.redispatched_messages += chunk.count
        if chunk.unpaid:
            chunk.unpaid = False
            self._take_tokens(pq.mq.topic, chunk.count)
        self._dispatch(worker, chunk, pq)

    def again(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """Its worker died or is held up: it is dispatched again, before anything new."""
        del pq
        self.s.redo.append(chunk)

    def apart(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """It is suspected of having killed a worker: it is dispatched to one that has nothing else."""
        del pq
        self.s.quarantine.append(chunk)

    def timed_out(self, pq: ProcessQueue, chunk: Chunk, failure: Failure, now: float) -> bool:
        """Its worker was stopped at the hard time limit with all of it in hand. False: it is sent back (retries.py); ordered
        modes count a failed attempt by their own rules."""
        del pq, chunk, failure, now
        return False

    def sending(self, pq: ProcessQueue, offset: int) -> None:
        """A message that no worker failed is being sent back. Ordered modes hold its lane until that is accepted."""

    def finished(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
        """No worker has the chunk any more: all of it was reported, or its worker is dead. Ordered modes wait for this."""

    def sent(self, pq: ProcessQueue, offset: int) -> None:
        """The send-back of that message was accepted. Ordered modes wait for this."""

    def ended(self, pq: ProcessQueue) -> None:
        """The queue has ended. Ordered modes remember what a worker still has of it."""

    def abandon(self, chunk: Chunk) -> None:
        """Drop the chunk: no worker reads it and nobody will send it back."""
        chunk.count = chunk.reported
        chunk.failed = None
        self.s.release_chunk(chunk)

    def leave(self, chunk: Chunk) -> None:
        """A queue that was taken away starts nothing: the chunk stays unfinished in its place, for the next owner."""
        pq = self.s.queues.get(chunk.handle)
        if pq is not None and chunk.origin is None:
            pq.never_begun += chunk.never_begun
            pq.leave(chunk)
        chunk.reported = chunk.count
        self.s.release_chunk(chunk)
        if chunk.origin is not None:
            self._links.left(chunk)

    def withdraw(self, pq: ProcessQueue) -> None:
        """Leave those of its chunks that wait for another worker because theirs died."""
        for line in (self.s.redo, self.s.quarantine):
            if any(chunk.handle == pq.handle for chunk in line):
                for _ in range(len(line)):
                    chunk = line.popleft()
                    if chunk.handle == pq.handle:
                        self.leave(chunk)
                    else:
                        line.append(chunk)

    def give_up(self, pq: ProcessQueue) -> None:
        """Nothing of it is sent back or dispatched any more: bytes are free as soon as no worker reads them."""
        for chunk in pq.open.values():
            if chunk.failed:
                chunk.failed = None
                if chunk.reported == chunk.count:
                    self.s.chunks.pop(chunk.chunk_id, None)
                self.s.release_chunk(chunk)
        self.withdraw(pq)

    def drop_waiting(self, pq: ProcessQueue) -> int:
        """Forget what was pulled and not dispatched: it is not run, and for us the queue ends before it."""
        dropped = 0
        if pq.waiting:
            pq.next_offset = pq.waiting[0].begin
            pq.ledger.pull_again_from(pq.next_offset)
        for run in pq.waiting:
            dropped += run.count
            self.s.release(run.slot)
        pq.waiting.clear()
        self.s.waiting_messages -= dropped
        pq.unfinished -= dropped
        return dropped
