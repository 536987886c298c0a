"""Messages that fail without a worker's word: stopped at the hard time limit, or at the cost of too many workers' lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .blame import Fate, Lot
from .charges import Charge
from .chunks import Chunk, Failure
from .dispatching import Dispatching
from .process_queue import ProcessQueue
from .state import State, WorkerView

TIME_OUT_DELAY_LEVEL = 3
"""ProcessQueue.cleanExpiredMsg sends what timed out back at this level."""
TIMED_OUT = "stopped at the hard time limit"


class Failing:
    """Decides what becomes of a dead worker's records. `send_back` and `reported` are those of settling.py."""

    def __init__(
        self, state: State, dispatching: Dispatching, send_back: Callable[[ProcessQueue, Chunk, int], None],
        reported: Callable[[Chunk, ProcessQueue], None],
    ) -> None:  # fmt: skip
        self.s = state
        self._dispatching = dispatching
        self._send_back = send_back
        self._reported = reported

    def again(self, pq: ProcessQueue, chunk: Chunk, lot: Lot, worker: WorkerView, *, alone: bool) -> None:
        """The chunk is a piece of what the dead worker left; pieces of what had to run alone still have to."""
        if lot[0] is Fate.TIMED_OUT:
            worker.timed_out.append((pq, chunk))
        elif lot[0] is Fate.AGAIN and not alone:
            self._dispatching.again(pq, chunk)
        else:
            self._dispatching.quarantine.admit(pq, chunk)

    def time_outs(self, worker: WorkerView, now: float) -> None:
        """What its call was stopped with is one failed attempt (ProcessQueue.cleanExpiredMsg)."""
        for pq, chunk in worker.timed_out:
            self.s.counters.timed_out_messages += chunk.count
            if not self._dispatching.timed_out(pq, chunk, TIMED_OUT, now):
                self._fail(pq, chunk, [Failure(TIME_OUT_DELAY_LEVEL, TIMED_OUT) for _ in chunk.offsets])

    def dead_letter(self, pq: ProcessQueue, chunk: Chunk, charge: Charge) -> None:
        """The one record of the chunk has cost too many workers: it isn't run again."""
        mq = pq.mq
        facts = {"deaths": str(charge.deaths), **charge.facts}
        self.s.log("error", "message_dead_lettered", topic=mq.topic, broker=mq.broker_name, queue_id=mq.queue_id,
                   offset=charge.offset, max_worker_deaths=self.s.config.max_worker_deaths, **facts)  # fmt: skip
        self._dispatching.sending(pq, charge.offset)
        self._fail(pq, chunk, [Failure(-1, f"it has cost {charge.deaths} workers their lives", facts)])

    def _fail(self, pq: ProcessQueue, chunk: Chunk, failures: Sequence[Failure]) -> None:
        s = self.s
        s.counters.failed_messages += chunk.count
        chunk.reported = chunk.count
        chunk.failed = dict(enumerate(failures))
        s.chunks[chunk.chunk_id] = chunk
        self._reported(chunk, pq)
        for index in range(chunk.count):
            self._send_back(pq, chunk, index)
