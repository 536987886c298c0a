"""What workers say beside outcomes when they keep an order: messages given back, consumed without a commit, and keys."""

from __future__ import annotations

from collections.abc import Callable

from ...workers.failures import Failure
from .actions import KillWorker
from .chunks import Chunk
from .ordered import Ordered
from .process_queue import ProcessQueue
from .state import State


class Returning:
    """Takes what came back. `progress(queue, now)` looks at a queue again."""

    def __init__(self, state: State, ordered: Ordered, progress: Callable[[ProcessQueue, float], None]) -> None:
        self.s = state
        self._ordered = ordered
        self._progress = progress

    def _known(self, worker_id: str, chunk_id: int) -> Chunk | None:
        """The chunk, if that worker has it."""
        worker = self.s.workers.get(worker_id)
        chunk = worker.in_flight.get(chunk_id) if worker is not None else None
        if chunk is None:
            self.s.counters.late_outcomes += 1
        return chunk

    def _late(self, chunk: Chunk) -> None:
        """Its queue has ended: the next owner has it."""
        self.s.counters.late_outcomes += 1
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
        self._progress(pq, now)

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
        self._progress(pq, now)
