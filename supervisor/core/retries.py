"""Retries and dead letters: what becomes of a failed message, until a broker has it again or the handler succeeds.

A message fails by its handler's word, by a hard time limit, or by crashing its worker too often. By which way it goes back,
and after which delay, is one table (workers/failures.py). It stays in its chunk as a failed one until its broker has accepted
it, so that no commit passes it.

A send-back that was refused: the broker did not take it, nor did any broker take it as an ordinary send. After
`send_back_retry_ms` the handler gets the message again with reconsumeTimes + 1, as in Java
(ConsumeMessageConcurrentlyService). What runs is a *shadow*, a chunk of one record over the same bytes, which is in no queue.
If the shadow succeeds the failure is settled; if it fails, or its worker dies, the failure is sent back anew, and so on until
a broker takes it or the handler succeeds. A message that must go to the dead letters, also because its attempts were used up
here, or that has crashed a worker here is not run again, and neither is anything of a queue that leaves or while we stop:
there the send-back itself is repeated. That of a dead letter says so: of attempts made here its broker knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...durable.outcomes import DEAD_LETTER, NO_ROWS, SENT_BACK
from ...remoting.log_keys import place_keys
from ...remoting.queues import MessageQueue
from ...remoting.stored import raise_reconsume_times, reconsume_times_of
from ...workers.failures import (
    Cause,
    Failure,
    Mode,
    is_last,
    is_used_up,
    level_of,
    levels_of_retry,
    mode_of,
    pop_delay_ms,
)
from .actions import SendBack
from .blame import Fate, Lot
from .charges import Charge
from .chunks import Chunk, Token
from .dispatching import Dispatching
from .process_queue import ProcessQueue
from .quarantine import unique_id_of
from .retry_delays import level_delay_s
from .state import State, Worker
from .states import QueueState

TIMED_OUT = "stopped at the hard time limit"


class Retries:
    """Decides about failed messages. What it is made with are steps of settling.py: `reported` forgets a chunk of which all
    is reported, `finished` notes messages of a chunk as done, `forget` drops a chunk of which all is done."""

    def __init__(
        self, state: State, dispatching: Dispatching, reported: Callable[[Chunk, ProcessQueue], None],
        finished: Callable[[ProcessQueue, Chunk, int, int, Token], None],
        wait_for_load: Callable[[ProcessQueue, Chunk, Worker], None],
        forget: Callable[[Chunk, ProcessQueue], None],
    ) -> None:  # fmt: skip
        self.s = state
        self._dispatching = dispatching
        self._reported = reported
        self._finished = finished
        self._wait_for_load = wait_for_load
        self._forget = forget

    # --- messages that fail without a worker's word -------------------------------------------------------------

    def after_death(self, pq: ProcessQueue, chunk: Chunk, lot: Lot, worker: Worker, *, alone: bool) -> None:
        """The chunk is a piece of what the dead worker left; pieces of what had to run alone still have to."""
        if lot[0] is Fate.TIMED_OUT:
            worker.timed_out.append((pq, chunk))
        elif lot[0] is Fate.AGAIN and not alone:
            self._dispatching.again(pq, chunk)
        else:
            self._dispatching.quarantine.admit(pq, chunk, charged=lot[0] is Fate.CHARGED)

    def time_outs(self, worker: Worker, now: float) -> None:
        """What its call was stopped with is one failed attempt (ProcessQueue.cleanExpiredMsg)."""
        for pq, chunk in worker.timed_out:
            self.s.counters.timed_out_messages += chunk.count
            failures = [Failure(Cause.TIME_LIMIT, TIMED_OUT) for _ in chunk.offsets]
            if not self._dispatching.timed_out(pq, chunk, failures[0], now):
                self._fail(pq, chunk, failures)

    def dead_letter(self, pq: ProcessQueue, chunk: Chunk, charge: Charge) -> None:
        """The one record of the chunk has crashed too many workers: it isn't run again."""
        facts = {"deaths": str(charge.deaths), **charge.facts}
        self._dispatching.sending(pq, charge.offset)
        self._fail(pq, chunk, [Failure(Cause.DEATHS, f"crashed {charge.deaths} workers", facts=facts)])

    def _fail(self, pq: ProcessQueue, chunk: Chunk, failures: list[Failure]) -> None:
        s = self.s
        s.counters.failed_messages += chunk.count
        chunk.reported = chunk.count
        chunk.failed = dict(enumerate(failures))
        s.chunks[chunk.chunk_id] = chunk
        self._reported(chunk, pq)
        for index in range(chunk.count):
            self.send_back(pq, chunk, index)

    # --- going back ---------------------------------------------------------------------------------------------

    def send_back(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
        """Ask for the send-back of a failed message, unless its queue was taken away."""
        failure, config = (chunk.failed or {})[index], self.s.config
        if not pq.send_failures:
            self.s.counters.discarded_failures += 1
            return
        if pq.owner.after_renewal(pq, chunk.offsets[index], lambda: self._renewed(pq, chunk, index)):
            return
        check = pq.owner.check_of(pq, chunk.offsets[index])
        configured = config.delay_level_when_next_consume
        used_up = is_used_up(reconsume_times_of(self.s.view, chunk.positions[index]), config.max_reconsume_times)
        mode = mode_of(
            failure, configured, used_up=used_up, popped=check is not None, broadcasting=config.broadcasting
        )  # fmt: skip
        failure.sent, failure.mode, failure.last = True, mode, is_last(mode, used_up=used_up)
        pq.owner.going_back(pq, chunk.offsets[index])
        if mode is Mode.DROP:
            # The edge answers as if it had been accepted (ConsumeMessageConcurrentlyService.processConsumeResult).
            self.s.log("warning", "message_dropped", **place_keys(pq.mq, chunk.offsets[index]), outcome="dropped",
                       error=failure.error, reason="broadcasting: nothing is consumed again")  # fmt: skip
        self.s.out.append(
            SendBack(
                pq.handle, chunk.chunk_id, index, pq.mq, chunk.positions[index], chunk.positions[index + 1], mode,
                level_of(failure, mode, configured), failure.attempts, failure.tried, check, failure.facts,
                failure.error, failure.last,
            )
        )  # fmt: skip

    def _renewed(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
        """Its check point is the newest again; unless its queue has given it up meanwhile, it goes back."""
        failure = (chunk.failed or {}).get(index)
        if failure is not None and not failure.sent:
            self.send_back(pq, chunk, index)

    def sent_back(self, handle: int, chunk_id: int, index: int, accepted: bool, now: float) -> None:
        """The answer to a SendBack. Refused: the message stays in the process queue and is sent again later."""
        s = self.s
        chunk = s.chunks.get(chunk_id)
        pq = s.queues.get(handle)
        if chunk is None or pq is None or not chunk.failed or index not in chunk.failed:
            s.counters.late_answers += 1
            return
        if not accepted:
            self._refused(pq, chunk, index, now)
            pq.owner.progress(pq, now)
            return
        failure = chunk.failed.pop(index)
        kind = NO_ROWS if failure.mode is Mode.DROP else DEAD_LETTER if failure.last else SENT_BACK
        s.outcomes.add(kind, pq.mq, chunk.begin_of(index), chunk.offsets[index] + 1)
        self._count(failure)
        self._note_wait(pq.mq, failure, reconsume_times_of(s.view, chunk.positions[index]), now)
        outcome = "dropped" if failure.mode is Mode.DROP else "dead_letter" if failure.last else "retry"
        s.recent_failures.note(outcome, pq.mq, chunk.offsets[index], failure.error, now)
        if failure.last:
            why: dict[str, object] = {"cause": failure.cause.name.lower(), "error": failure.error}
            if failure.facts is not None:
                why |= {"max_worker_deaths": s.config.max_worker_deaths, **_as_logged(failure.facts)}
            if unique_id := unique_id_of(s.view, chunk.positions[index], chunk.positions[index + 1]):
                why["msg_id"] = unique_id
            s.log(
                "error",
                "message_dead_lettered",
                **place_keys(pq.mq, chunk.offsets[index]),
                outcome="dead_letter",
                **why,
            )
        self._dispatching.quarantine.finished(pq, chunk, index, sent_back=failure.cause is not Cause.DEATHS)
        pq.unfinished -= 1
        pq.owner.given_back(pq, chunk.offsets[index], last=failure.last)
        self._finished(pq, chunk, index, index + 1, ("", 0))
        self._dispatching.sent(pq, chunk.offsets[index])
        self._settled(pq, chunk)
        pq.owner.progress(pq, now)

    def _count(self, failure: Failure) -> None:
        counters, dropped = self.s.counters, failure.mode is Mode.DROP
        counters.dropped_messages += dropped
        counters.sent_back_messages += not dropped
        counters.dead_letter_messages += failure.last

    def _note_wait(self, mq: MessageQueue, failure: Failure, reconsume_times: int, now: float) -> None:
        """How long the message waits for its delay from now on, and at which levels it may be."""
        if failure.mode not in (Mode.SEND_BACK, Mode.POP) or failure.last:
            return
        level = level_of(failure, failure.mode, self.s.config.delay_level_when_next_consume)
        if failure.mode is Mode.POP:
            self.s.retry_delays.waits(mq, pop_delay_ms(level, reconsume_times) / 1000, now)
            return
        levels = levels_of_retry(level, reconsume_times, failure.attempts)
        self.s.retry_delays.waits(mq, level_delay_s(levels[-1]), now)
        found = self.s.sent_back_levels
        for one in levels:
            found[one] = found.get(one, 0) + 1

    def _settled(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """A failure of it is over: forget it when it was the last."""
        if not chunk.failed and chunk.reported == chunk.count:
            self._forget(chunk, pq)
            self.s.release_chunk(chunk)

    # --- refused: once more here --------------------------------------------------------------------------------

    def _refused(self, pq: ProcessQueue, chunk: Chunk, index: int, now: float) -> None:
        """The message was refused; it is looked at again after a while."""
        s = self.s
        failure = (chunk.failed or {})[index]
        failure.attempts += 1
        failure.sent = False
        pq.owner.stays(pq, chunk.offsets[index])
        s.counters.send_back_refused += 1
        retry_ms = s.config.send_back_retry_ms
        s.log("warning", "send_back_refused", **place_keys(pq.mq, chunk.offsets[index]), attempts=failure.attempts,
              retry_in_ms=retry_ms)  # fmt: skip
        s.at(now + retry_ms / 1000, lambda _now: self._again(pq.handle, chunk, index))

    def _again(self, handle: int, chunk: Chunk, index: int) -> None:
        pq = self.s.queues.get(handle)
        failure = (chunk.failed or {}).get(index)
        if pq is None or failure is None or failure.sent:
            return
        charge = self.s.charges.get(pq.mq, chunk.offsets[index])
        if self._runs_again(pq, failure) and not (charge is not None and charge.deaths):
            self._run(chunk, index, failure)
        else:
            self.send_back(pq, chunk, index)

    def _runs_again(self, pq: ProcessQueue, failure: Failure) -> bool:
        s = self.s
        free = pq.state is QueueState.ASSIGNED and not s.stopping and not s.paused
        return free and s.config.order == "concurrent" and not failure.last

    def _run(self, chunk: Chunk, index: int, failure: Failure) -> None:
        s = self.s
        failure.sent = True  # nothing is sent back beside it
        raise_reconsume_times(s.view, chunk.positions[index])
        shadow = chunk.shadow(index, next(s.chunk_ids))
        s.counters.local_retries += 1
        s.redo.append(shadow)
        self._dispatching.run()

    def rerun_ended(self, pq: ProcessQueue, shadow: Chunk, token: Token, failure: Failure | None) -> None:
        """A worker has run the shadow; its rows are in the segment `token` (number 0 = none). `failure`: it failed again."""
        s = self.s
        chunk, index = _origin(shadow)
        if chunk.failed is None or index not in chunk.failed:
            s.counters.late_reports += 1
            return
        if failure is not None:
            s.counters.failed_messages += 1
            failure.attempts = chunk.failed[index].attempts
            chunk.failed[index] = failure
            self.send_back(pq, chunk, index)
            return
        s.counters.done_messages += 1
        self._finished(pq, chunk, index, index + 1, token)
        self._over(pq, chunk, index)

    def rerun_died(self, pq: ProcessQueue, shadow: Chunk, worker: Worker) -> None:
        """The shadow's worker died with it: rows that were found complete count, else the attempt has failed."""
        chunk, index = _origin(shadow)
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
            chunk.failed[index].sent = False  # its send-back may have to wait for a renewal
            self.send_back(pq, chunk, index)

    def left(self, shadow: Chunk) -> None:
        """Its queue was taken away before a worker had it."""
        chunk, index = _origin(shadow)
        pq = self.s.queues.get(chunk.handle)
        if pq is not None and chunk.failed and index in chunk.failed:
            chunk.failed[index].sent = False
            self.send_back(pq, chunk, index)

    def _over(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
        assert chunk.failed is not None
        self._dispatching.quarantine.finished(pq, chunk, index, sent_back=False)
        del chunk.failed[index]
        pq.unfinished -= 1
        self._settled(pq, chunk)


_NUMBERS = frozenset({"deaths", "exit_code", "oom_kills", "pid", "rss_last_bytes", "rss_peak_bytes", "run_ms"})


def _as_logged(facts: Mapping[str, str]) -> dict[str, object]:
    """The facts of a crash as `worker_died` has them: its numbers are text only for a dead letter's properties."""
    return {
        name: int(value) if name in _NUMBERS and value.removeprefix("-").isdecimal() else value
        for name, value in facts.items()
    }


def _origin(shadow: Chunk) -> tuple[Chunk, int]:
    assert shadow.origin is not None
    return shadow.origin
