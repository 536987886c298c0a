"""Reclaiming: a worker that one message holds up gives back what it has not begun, while another worker idles.

Chunks are cut by what messages usually take, and two are in flight so that no worker waits for the next one. A message that
takes a thousand times as long makes those after it wait, in its chunk and in the next. So as long as anything is in
flight, the workers are looked at: one that has not reported for `reclaim_after_ms`, while another has nothing in flight and
nothing waits for dispatch, is asked for the rest. The worker and the edge agree on how far it has come (workers/claims.py);
the chunk is split there, as after a death, and what comes after goes to others at once. A worker that is held up gets nothing
more until it has reported what was left to it.

On the same rounds, a worker that has kept what it finished for longer than it keeps it between calls is in a long call: what
ended before that call is read off its cell (workers/unreported.py, settling.py), so that what waits for it goes on, and a
kill repeats little.

A look takes a core from the handlers for a moment, and finds the caches cold. So none comes before the worker that has been
silent for longest can be in a long call, or, where a worker idles, be asked: by then most of the calls that are alike are
reported.

A queue that leaves, and drains for long, is reclaimed from whoever has it, in order too: its next owner runs what has not
begun.

Nothing is reclaimed in an order for another worker: after a message of a queue or a key there is nothing that may run before
it. What may have killed a worker runs alone, and coroutine handlers have begun all of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...workers.unreported import HELD_INTERVALS, REPORT_INTERVALS
from .actions import ReadCell, Recall, Reclaim
from .chunks import Chunk
from .dispatching import Dispatching
from .process_queue import ProcessQueue
from .state import State, Worker
from .states import LIVING

LOOK_MS_MIN = 1.0
LATE_INTERVALS = 2
"""A worker that has not reported for so many flush intervals more than it keeps what has ended is in a long call."""
HELD_LATE_INTERVALS = 2 * HELD_INTERVALS
"""The same of one that keeps what only it can report, in all: one that is asked during a short call works against it."""
SHOWN_LATE_INTERVALS = REPORT_INTERVALS + LATE_INTERVALS
"""The same of one whose cell shows what has ended."""
QUIET_LOOKS = 8
"""After so many in a row that found nothing, looks are rarer."""
TRY_AGAIN_MS = 50
"""A worker that was held up by no message at all is given something again."""


class Reclaiming:
    """Decides who is asked, and what becomes of the answer. `complete` is that of settling.py."""

    def __init__(
        self, state: State, dispatching: Dispatching, complete: Callable[[Worker, Chunk, ProcessQueue | None], None]
    ) -> None:  # fmt: skip
        self.s = state
        self._dispatching = dispatching
        self._complete = complete
        self.watching = False
        """A look is due soon: `watch` has nothing to do."""
        self._due: float | None = None
        """When the next look is due."""
        self._reclaims_at = 0.0
        self._quiet = 0
        """Looks since one found something."""
        self._left: list[ProcessQueue] = []
        """Queues that were taken away, of which something was left to the next owner in this step."""

    def watch(self, now: float) -> None:
        """Something is in flight, or a worker may idle now: see to it that a look comes in time. A handler that commits
        finishes nothing before."""
        s, config = self.s, self.s.config
        if not (config.order == "concurrent" or config.auto_commit):
            return
        if self._due is None or (self._due > now + config.reclaim_look_ms / 1000 and s.places.idle(s.kept_apart)):
            self._look_later(now)

    def _look_later(self, now: float) -> None:
        s = self.s
        self.watching = s.places.idle(s.kept_apart)
        self._due = now + self._pause_ms(now) / 1000
        s.at(self._due, self._look)

    def _look_ms(self) -> float:
        config = self.s.config
        return min(config.reclaim_look_ms, max(config.report_after_ms, LOOK_MS_MIN))

    def _pause_ms(self, now: float) -> float:
        """Until something of the worker that has been silent for longest may be found."""
        s = self.s
        wait_ms, _ = self._late_ms()
        if self.watching and s.config.order == "concurrent":
            wait_ms = min(wait_ms, s.config.reclaim_after_ms)
        heard_at = min(worker.heard_at for worker in s.busy.values())
        least_ms = self._look_ms() if self._quiet < QUIET_LOOKS else s.config.reclaim_look_ms
        return max(least_ms, 1000 * (heard_at - now) + wait_ms)

    def found(self) -> None:
        """A look has found something: a call is longer than those before it, and another may be."""
        self._quiet = 0

    def _look(self, now: float) -> None:
        s = self.s
        if self._due is None or now < self._due:
            return  # another one came first
        self.watching, self._due = False, None
        busy = list(s.busy.values())
        if not busy:
            self._quiet = 0
            return
        self._quiet += 1
        reclaims = s.config.order == "concurrent" and now >= self._reclaims_at
        if reclaims:
            self._reclaims_at = now + (s.config.reclaim_look_ms - self._look_ms() / 2) / 1000  # looks are a little late
        idle = reclaims and not s.redo and not s.ready and s.places.idle(s.kept_apart)
        late_ms, shown_late_ms = self._late_ms()
        reads: list[ReadCell] = []
        for worker in busy:
            oldest = next(iter(worker.in_flight.values()))
            silent_ms = 1000 * (now - worker.heard_at)
            held_up = silent_ms >= s.config.reclaim_after_ms
            if idle and held_up and _has_more(worker, oldest):
                s.out.append(Reclaim(worker.worker_id, tuple(worker.in_flight)))
            if silent_ms >= late_ms and not worker.window and _has_several(worker, oldest):
                reads.append(ReadCell(worker.worker_id, self._first_open(oldest), silent_ms < shown_late_ms))
        # After all that is reclaimed: reading may change what a worker has in flight.
        s.out += reads
        self._look_later(now)

    def _late_ms(self) -> tuple[float, float]:
        """After how long without a report a worker is in a long call: one that may hold rows, and one that holds nothing."""
        s, interval_ms = self.s, self.s.config.report_after_ms
        held_late_ms, shown_late_ms = HELD_LATE_INTERVALS * interval_ms, SHOWN_LATE_INTERVALS * interval_ms
        if s.config.order != "concurrent":
            return held_late_ms, held_late_ms
        if s.config.batch_messages_max > 1:  # no cell shows calls of several, so they are reported after each
            shown_late_ms = LATE_INTERVALS * interval_ms
        return (held_late_ms if s.sizer.rows else shown_late_ms), shown_late_ms

    def _first_open(self, oldest: Chunk) -> tuple[int, int] | None:
        """The first record that its worker has not reported: while it runs that one, there is nothing to read. In order it
        may have given back what stands before."""
        if self.s.config.order != "concurrent":
            return None
        return (oldest.chunk_id, oldest.offsets[oldest.reported]) if oldest.reported < oldest.count else None

    def reclaimed(self, worker_id: str, chunk_ids: Sequence[int], unbegun: int, claimed: int, now: float) -> None:
        """The worker will run nothing of the last `unbegun` of `chunk_ids` (in the order of dispatch), and of the one before
        these only the first `claimed` records; 0 = as much as it has of it."""
        worker = self.s.workers.get(worker_id)
        if worker is None or worker.state not in LIVING:
            return
        begun = len(chunk_ids) - unbegun
        has_more = not worker.in_flight.keys() <= set(chunk_ids)  # given since it was asked
        chunks = [worker.in_flight[chunk_id] for chunk_id in chunk_ids[begun:]]
        # Reported to the end, what was begun last is not in flight any more, and neither is what came before it.
        if begun and claimed:
            self._split(worker, worker.in_flight[chunk_ids[begun - 1]], claimed, now)
        for chunk in chunks:
            self._take(worker, chunk)
        if not has_more:
            self.s.hold_up(worker, True)
        for pq in self._left:
            pq.owner.progress(pq, now)
        self._left.clear()
        if not worker.in_flight:
            self.s.let_go(worker)
            self.s.at(now + TRY_AGAIN_MS / 1000, lambda _now: self._try_again(worker))
        self._dispatching.run()

    def _try_again(self, worker: Worker) -> None:
        """It had nothing left that it could report: it was stopped, or wrote to a slow disk."""
        self.s.hold_up(worker, False)
        self._dispatching.run()

    def _split(self, worker: Worker, chunk: Chunk, at: int, now: float) -> None:
        """The worker keeps the first `at` records; what comes after becomes a chunk of its own, for another."""
        s = self.s
        if at >= chunk.count:
            return
        pq = s.queues.get(chunk.handle)
        worker.in_flight_messages -= chunk.count - at
        worker.in_flight_bytes -= chunk.positions[-1] - chunk.positions[at]
        s.counters.reclaimed_messages += chunk.count - at
        rest = chunk.split(at, next(s.chunk_ids))
        if pq is not None:
            pq.open[rest.chunk_id] = rest
            self._elsewhere(pq, rest)
        else:
            self._dispatching.abandon(rest)
        if chunk.reported == at:
            self._complete(worker, chunk, pq)
            if pq is not None:
                pq.owner.progress(pq, now)

    def _take(self, worker: Worker, chunk: Chunk) -> None:
        """All of it goes to another, under a new id, so that whatever is said of the old one is of what it was."""
        s = self.s
        s.counters.reclaimed_messages += chunk.count
        s.came_back(worker, chunk)
        s.chunks.pop(chunk.chunk_id, None)
        pq = s.queues.get(chunk.handle)
        known = pq is not None and pq.open.pop(chunk.chunk_id, None) is not None  # a shadow is in no queue
        chunk.chunk_id = next(s.chunk_ids)
        chunk.worker_id = None
        if pq is not None:
            if known:
                pq.open[chunk.chunk_id] = chunk
            self._elsewhere(pq, chunk)
        else:
            self._dispatching.abandon(chunk)

    def _elsewhere(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """Another worker runs it; of a queue that was taken away, its next owner."""
        chunk.never_begun = chunk.count
        if self.s.finishes(pq):
            self._dispatching.again(pq, chunk)
        else:
            self._dispatching.leave(chunk)
            self._left.append(pq)


def holders(state: State, pq: ProcessQueue) -> list[Worker]:
    """The workers that have messages of the queue."""
    names = {chunk.worker_id: None for chunk in pq.open.values() if chunk.reported < chunk.count and chunk.worker_id}
    found = [state.workers.get(name) for name in names]
    return [worker for worker in found if worker is not None and worker.state in LIVING]


def recalls(state: State, pq: ProcessQueue) -> list[Recall]:
    """What has workers give back, in order, all that they have not begun, since a word of a cell knows no queues: what is not
    of this one is dispatched again."""
    return [Recall(worker.worker_id) for worker in holders(state, pq)]


def reclaims(state: State, pq: ProcessQueue) -> list[Reclaim]:
    """The same side by side. A worker that goes on at this moment gives nothing: it is to be asked again."""
    return [
        Reclaim(worker.worker_id, tuple(worker.in_flight))
        for worker in holders(state, pq)
        if _has_more(worker, next(iter(worker.in_flight.values())))
    ]


def _has_several(worker: Worker, oldest: Chunk) -> bool:
    """More than one record that it has not reported: one may have ended, and another not have begun."""
    return len(worker.in_flight) > 1 or oldest.count - oldest.reported > 1


def _has_more(worker: Worker, oldest: Chunk) -> bool:
    """It may have messages that it has not begun, and that may run elsewhere."""
    if worker.held_up or worker.window or any(chunk.alone for chunk in worker.in_flight.values()):
        return False
    return _has_several(worker, oldest)
