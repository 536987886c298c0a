"""A message whose send-back was refused runs here again, with one attempt more (ConsumeMessageConcurrentlyService.java).

The broker did not take it, nor did any broker take it as an ordinary send: after `send_back_retry_ms` the handler gets it
again with reconsumeTimes + 1, as in Java. It stays a failed message of its chunk all the time, so that no commit passes it:
what runs is a *shadow*, a chunk of one record over the same bytes, which is in no queue. If the shadow succeeds the failure
is settled; if it fails, or its worker dies, the failure is sent back anew, and so on until a broker takes it or the handler
succeeds. A message that must go to the dead letters, or has cost a worker its life here, is not run again, and neither is
anything of a queue that leaves or while we stop: there the send-back itself is repeated.
"""

from __future__ import annotations

from collections.abc import Callable

from ...remoting.stored import raise_reconsume_times
from .chunks import Chunk, Failure, Token
from .dispatching import Dispatching
from .process_queue import ProcessQueue
from .state import State, WorkerView
from .states import Queue


class LocalRetry:
    """Decides what follows a refused send-back. What it is made with are steps of settling.py."""

    def __init__(
        self, state: State, dispatching: Dispatching, send_back: Callable[[ProcessQueue, Chunk, int], None],
        wait_for_load: Callable[[ProcessQueue, Chunk, WorkerView], None],
        finished: Callable[[ProcessQueue, Chunk, int, int, Token], None],
        settled: Callable[[ProcessQueue, Chunk], None],
    ) -> None:  # fmt: skip
        self.s = state
        self._dispatching = dispatching
        self._send_back = send_back
        self._wait_for_load = wait_for_load
        self._finished = finished
        self._settled = settled
        dispatching.left = self._left

    def refused(self, pq: ProcessQueue, chunk: Chunk, index: int, now: float) -> None:
        """The message was refused; it is looked at again after a while."""
        s = self.s
        failure = (chunk.failed or {})[index]
        failure.attempts += 1
        failure.sent = False
        s.counters.send_back_refused += 1
        retry_ms = s.config.send_back_retry_ms
        s.log("warning", "send_back_refused", queue=pq.mq, offset=chunk.offsets[index], attempts=failure.attempts,
              retry_in_ms=retry_ms)  # fmt: skip
        s.at(now + retry_ms / 1000, lambda _now: self._again(pq.handle, chunk, index))

    def _again(self, handle: int, chunk: Chunk, index: int) -> None:
        pq = self.s.queues.get(handle)
        failure = (chunk.failed or {}).get(index)
        if pq is None or failure is None or failure.sent:
            return
        charge = self.s.charges.get(pq.mq, chunk.offsets[index])
        if self._runs_again(pq, failure) and not (charge is not None and charge.deaths):
            self._run(pq, chunk, index, failure)
        else:
            self._send_back(pq, chunk, index)

    def _runs_again(self, pq: ProcessQueue, failure: Failure) -> bool:
        s = self.s
        to_dead_letters = failure.facts is not None or failure.reconsume_times >= 0 or failure.delay_level < 0
        free = pq.state is Queue.ASSIGNED and not s.stopping and not s.paused
        return free and s.config.order == "concurrent" and not to_dead_letters

    def _run(self, pq: ProcessQueue, chunk: Chunk, index: int, failure: Failure) -> None:
        s = self.s
        failure.sent = True  # nothing is sent back beside it
        raise_reconsume_times(s.view, chunk.positions[index])
        shadow = chunk.shadow(index, next(s.chunk_ids))
        s.counters.local_retries += 1
        s.redo.append(shadow)
        self._dispatching.run()

    # --- how a shadow ends --------------------------------------------------------------------------------------

    def outcome(self, pq: ProcessQueue, shadow: Chunk, token: Token, failed: tuple[int, str] | None) -> None:
        """A worker has run it; rows of it are in the segment `token` (number 0 = none). `failed`: delay level and error."""
        s = self.s
        chunk, index = self._origin(shadow)
        if chunk.failed is None or index not in chunk.failed:
            s.counters.late_outcomes += 1
            return
        if failed is not None:
            s.counters.failed_messages += 1
            failure = chunk.failed[index]
            failure.delay_level, failure.error = failed
            self._send_back(pq, chunk, index)
            return
        s.counters.done_messages += 1
        self._finished(pq, chunk, index, index + 1, token)
        self._over(pq, chunk, index)

    def died(self, pq: ProcessQueue, shadow: Chunk, worker: WorkerView) -> None:
        """Its worker died with it: rows that were found complete count, else the attempt has failed."""
        chunk, index = self._origin(shadow)
        shadow.reported = shadow.count
        self.s.release_chunk(shadow)
        if chunk.failed is None or index not in chunk.failed:
            return
        done = worker.salvaged.get(pq.mq)
        if done is not None and chunk.offsets[index] in done:
            self.s.counters.salvaged_messages += 1
            self.s.counters.done_messages += 1
            if self.s.config.commit_after_loaded:
                self._wait_for_load(pq, shadow, worker)
            pq.ledger.finish(shadow.begin, shadow.offsets[0] + 1)
            self._over(pq, chunk, index)
        else:
            self._send_back(pq, chunk, index)

    def _left(self, shadow: Chunk) -> None:
        """Its queue was taken away before a worker had it."""
        chunk, index = self._origin(shadow)
        pq = self.s.queues.get(chunk.handle)
        if pq is not None and chunk.failed and index in chunk.failed:
            self._send_back(pq, chunk, index)

    def _over(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
        assert chunk.failed is not None
        self._dispatching.quarantine.finished(pq, chunk, index, sent_back=False)
        del chunk.failed[index]
        pq.unfinished -= 1
        self._settled(pq, chunk)

    @staticmethod
    def _origin(shadow: Chunk) -> tuple[Chunk, int]:
        assert shadow.origin is not None
        return shadow.origin
