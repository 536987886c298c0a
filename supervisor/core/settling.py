"""Outcomes: what a worker reports becomes *done* or a send-back, is journalled, and becomes durable when it is sealed.

The order is fixed by the worker: rows are appended to its open segment, then the report is sent. A worker that dies
leaves a segment that is salvaged: records found complete in it count as done, the rest of its chunks runs again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import ClassVar

from ...durable.intervals import Intervals
from ...remoting.queues import MessageQueue
from ...remoting.stored import store_timestamp_of
from ...workers.unreported import CHUNK_MASK
from .actions import AskReport, JournalLost, JournalSealed, KillWorker
from .blame import Death, Lot
from .chunks import Chunk, Token
from .dispatching import Dispatching
from .events import FailureReport, Reported
from .process_queue import ProcessQueue
from .quarantine import pieces_of
from .retries import Retries
from .state import State, Worker
from .states import LIVING, QueueState


class Settling:
    """Takes reports, seals, send-back answers and worker deaths."""

    retries_class: ClassVar[type[Retries]] = Retries

    def __init__(
        self, state: State, dispatching: Dispatching, restart: Callable[[ProcessQueue, float], None]
    ) -> None:  # fmt: skip
        self.s = state
        self._dispatching = dispatching
        self._restart = restart
        self.retries = self.retries_class(
            state, dispatching, self.reported, self._finished, self._wait_for_load, self._forget
        )  # fmt: skip

    # --- reports ------------------------------------------------------------------------------------------------

    def report(self, event: Reported, now: float) -> None:
        """Messages of the chunk have an outcome; rows of them are in the segment."""
        s = self.s
        worker_id, chunk_id, start, count = event.worker_id, event.chunk_id, event.start, event.count
        busy_us, slowest_us, failures = event.busy_us, event.slowest_us, event.failures
        chunk = s.chunks.get(chunk_id)
        worker = s.workers.get(worker_id)
        end = start + count
        if worker is not None:
            worker.messages += count
            worker.failed += len(failures)
        if worker is not None and chunk_id in worker.read_ahead:
            self._known(worker, chunk_id, start, end, busy_us, slowest_us, failures)
            return
        if chunk is None or worker is None or chunk.worker_id != worker_id:
            s.counters.late_reports += 1
            return
        known = chunk.reported
        if start != chunk.said or end > chunk.count or (failures and any(index < known for index, _ in failures)):
            s.out.append(KillWorker(worker_id, f"report of {start}..{end} of chunk {chunk_id} at {chunk.said}/{known}"))
            return
        chunk.said = end
        s.counters.busy_us += busy_us
        s.counters.filtered_messages += event.filtered
        pq = s.queues.get(chunk.handle)
        s.sizer.observe(count, busy_us, slowest_us, topic="" if pq is None else pq.mq.topic, rows=event.seq != 0)
        if pq is None:
            s.counters.late_reports += 1
        else:
            s.stats.consumed(pq.mq.topic, count, len(failures), busy_us)
        if end > known:
            self._ended(worker, chunk, pq, end, event.seq, event.filtered, failures, now, event.wall_ms)

    def _known(
        self, worker: Worker, chunk_id: int, start: int, end: int, busy_us: int, slowest_us: int,
        failures: Sequence[FailureReport],
    ) -> None:  # fmt: skip
        """The worker reports what was read off its cell, of a chunk that was over by that."""
        said, count, mq = worker.read_ahead[chunk_id]
        if start != said or end > count or failures:
            error = f"report of {start}..{end} of chunk {chunk_id}, which was read to its end, at {said}"
            self.s.out.append(KillWorker(worker.worker_id, error))
            return
        self.s.sizer.observe(end - start, busy_us, slowest_us, topic="" if mq is None else mq.topic)
        self.s.counters.busy_us += busy_us
        if mq is not None:
            self.s.stats.consumed(mq.topic, end - start, 0, busy_us)
        if end == count:
            del worker.read_ahead[chunk_id]
        else:
            worker.read_ahead[chunk_id] = end, count, mq

    def _ended(
        self, worker: Worker, chunk: Chunk, pq: ProcessQueue | None, end: int, seq: int, filtered: int,
        failures: Sequence[FailureReport], now: float, wall_ms: int,
    ) -> None:  # fmt: skip
        """Messages of the chunk up to `end` have an outcome now; see `report`."""
        s = self.s
        start, chunk.reported = chunk.reported, end
        worker.heard_at = now
        if s.topic_limits.counts:
            s.topic_limits.reported(chunk.chunk_id, end - start)
        has_rows = seq != 0
        if seq <= worker.sealed_seq and not s.config.commit_after_loaded:
            seq = 0  # the segment was sealed before the report was sent: the rows are durable already
        if pq is not None:
            if not has_rows:
                failed = [failure[0] for failure in failures] if failures else ()
                s.outcomes.without_rows(pq.mq, chunk, start, end, filtered, failed)
            if chunk.origin is None:
                self._time(pq, chunk, start, end, wall_ms)
                self._settle(pq, chunk, start, end, worker.worker_id, seq, failures)
            else:
                s.release_chunk(chunk)
                failure = failures[0][1] if failures else None
                self.retries.rerun_ended(pq, chunk, (worker.worker_id, seq), failure)
            pq.last_consume = now
            if chunk.alone or s.charges.noted:
                self._cleared(pq, chunk, start, end)
        if end == chunk.count:
            self.complete(worker, chunk, pq)
        if end == chunk.count or self._dispatching.holds_back:
            self._dispatching.run()
        if pq is not None:
            pq.owner.progress(pq, now)

    def _time(self, pq: ProcessQueue, chunk: Chunk, start: int, end: int, wall_ms: int) -> None:
        """Records `[start, end)` of the chunk, whose bytes are still held, have their first outcome: each comes here once."""
        if wall_ms:
            view, positions = self.s.view, chunk.positions
            stats = self.s.stats
            stats.ended(
                pq.mq.topic, end - start, wall_ms, lambda index: store_timestamp_of(view, positions[start + index])
            )

    def cell_read(
        self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float, wall_ms: int = 0
    ) -> None:  # fmt: skip
        """The worker runs record `offset` of that chunk; what it was given before that has ended (workers/unreported.py).

        Up to the record `held`, (low bits of a chunk's id, index), all of it succeeded and left no rows; from there on only
        the worker can report, and is asked to, once a call. In order it can do so of nothing else.
        """
        worker = self.s.workers.get(worker_id)
        if worker is None or worker.state not in LIVING or worker.window or chunk_id not in worker.in_flight:
            return
        if self.s.config.order != "concurrent":
            if held is not None and worker.asked_at != (chunk_id, offset):
                worker.asked_at = (chunk_id, offset)
                self.s.out.append(AskReport(worker_id))
            return
        chunks = list(worker.in_flight.values())
        if held is not None and held[0] not in [chunk.chunk_id & CHUNK_MASK for chunk in chunks]:
            return
        now_in = worker.in_flight[chunk_id]
        index = bisect_left(now_in.offsets, offset)
        if index == now_in.count or now_in.offsets[index] != offset:
            return  # it runs what is not its own any more
        for chunk in chunks:
            last = chunk is now_in
            end = index if last else chunk.count
            if held is not None and chunk.chunk_id & CHUNK_MASK == held[0]:
                if held[1] < end and worker.asked_at != (chunk_id, offset):
                    worker.asked_at = (chunk_id, offset)
                    self.s.out.append(AskReport(worker_id))
                last, end = True, min(end, held[1])
            if end > chunk.reported:
                self.s.counters.read_off_messages += end - chunk.reported
                self._ended(worker, chunk, self.s.queues.get(chunk.handle), end, 0, 0, (), now, wall_ms)
            if last:
                return

    def complete(self, worker: Worker, chunk: Chunk, pq: ProcessQueue | None) -> None:
        """All that the worker had of the chunk has an outcome."""
        self.s.came_back(worker, chunk)
        if chunk.said < chunk.count:
            worker.read_ahead[chunk.chunk_id] = chunk.said, chunk.count, None if pq is None else pq.mq
        if not worker.in_flight:
            if worker.held_up:
                self.s.hold_up(worker, False)
            self.s.let_go(worker)
        self.reported(chunk, pq)
        self._dispatching.finished(chunk, pq)

    def _settle(
        self, pq: ProcessQueue, chunk: Chunk, start: int, end: int, worker_id: str, seq: int,
        failures: Sequence[FailureReport],
    ) -> None:  # fmt: skip
        s = self.s
        done = end - start - len(failures)
        s.counters.done_messages += done
        pq.unfinished -= done
        if not failures:
            self._finished(pq, chunk, start, end, (worker_id, seq))
            return
        s.counters.failed_messages += len(failures)
        if chunk.failed is None:
            chunk.failed = {}
        for index, failure in failures:
            chunk.failed[index] = failure
        failed_here = sorted(index for index, _ in failures)
        for index in failed_here:
            self._finished(pq, chunk, start, index, (worker_id, seq))
            start = index + 1
        self._finished(pq, chunk, start, end, (worker_id, seq))
        for index in failed_here:
            self.retries.send_back(pq, chunk, index)

    def _finished(self, pq: ProcessQueue, chunk: Chunk, start: int, end: int, token: Token) -> None:
        """Messages `[start, end)` of the chunk are done; rows of them are in the segment `token` (number 0 = none, or it is
        sealed)."""
        if start == end:
            return
        first, last = chunk.begin_of(start), chunk.offsets[end - 1] + 1
        if token[1]:
            self._wait_for_seal(pq, token, first, last, end - start)
        pq.ledger.finish(first, last)
        pq.owner.finished(pq, first, last, token)

    def _cleared(self, pq: ProcessQueue, chunk: Chunk, start: int, end: int) -> None:
        """Suspects that came through are charged with nothing any more; those that failed, when a broker has them again."""
        failed = chunk.failed or {}
        for index in range(start, end):
            if index not in failed:
                self._dispatching.quarantine.finished(pq, chunk, index, sent_back=False)

    def _wait_for_seal(self, pq: ProcessQueue, token: Token, start: int, end: int, messages: int) -> None:
        """The messages of the offsets `[start, end)`, so many, wait for that segment. Its worker seals by rows, bytes and
        time, whatever the backlog; it is asked only when more messages wait than a segment has rows, since few of them may
        have any."""
        s = self.s
        worker_id, seq = token
        worker = s.workers.get(worker_id)
        s.hold(pq, token, start, end, messages)
        if worker is not None and seq <= worker.sealed_seq:
            s.wait_for_table(token)  # it was sealed before the report was sent
            return
        s.unsealed_of.setdefault(worker_id, set()).add(seq)
        s.unsealed_messages[token] += messages
        if s.unsealed_messages[token] > s.config.seal_rows:
            s.ask_seal(worker_id)

    def reported(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
        """Every message of it has an outcome: forget it unless send-backs are open, and free its bytes."""
        if pq is None:
            chunk.failed = None
        elif chunk.held:
            pq.unfinished_bytes -= chunk.length_bytes
        if not chunk.failed:
            self._forget(chunk, pq)
        self.s.release_chunk(chunk)

    def _forget(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
        self.s.chunks.pop(chunk.chunk_id, None)
        if pq is not None:
            pq.open.pop(chunk.chunk_id, None)

    # --- seals --------------------------------------------------------------------------------------------------

    def sealed(self, worker_id: str, seq: int, now: float) -> None:
        """The segment is safe on disk, and with it every earlier one of the worker: what waited for them is durable, or
        waits for the table (`commit_after_loaded`)."""
        worker = self.s.workers.get(worker_id)
        if worker is not None:
            worker.seal_asked = False
            worker.sealed_seq = max(worker.sealed_seq, seq)
        known = self.s.unsealed_of.pop(worker_id, set())
        open_still = {number for number in known if number > seq}
        if open_still:
            self.s.unsealed_of[worker_id] = open_still
        tokens = [(worker_id, number) for number in sorted((known | {seq}) - open_still)]
        if self.s.config.commit_after_loaded:
            waiting = [token for token in tokens if token in self.s.unsealed]
            for token in waiting:
                self.s.wait_for_table(token)
            # A queue that leaves asked for this seal, and now waits for the table: nothing else makes a batch due.
            self.s.ask_load(pq for token in waiting for pq in self.s.unsealed[token].values())
        else:
            self._durable(tokens, now)

    def loaded(self, worker_id: str, seq: int, now: float) -> None:
        """The segment's rows are in the table (only with `commit_after_loaded`)."""
        if (worker_id, seq) in self.s.unloaded:
            del self.s.unloaded[worker_id, seq]
            self._durable([(worker_id, seq)], now)

    def _durable(self, tokens: Iterable[Token], now: float) -> None:
        touched: dict[int, ProcessQueue] = {}
        for token in tokens:
            self.s.out.append(JournalSealed(*token))
            self.s.unsealed_messages.pop(token, None)
            for pq in self.s.unsealed.pop(token, {}).values():
                pq.ledger.release(token)
                if pq.state is not QueueState.ENDED:
                    touched[pq.handle] = pq
        for pq in touched.values():
            pq.owner.progress(pq, now)

    # --- workers ------------------------------------------------------------------------------------------------

    def worker_died(self, worker_id: str, death: Death) -> None:
        """Its last reports were read. Its chunks wait until its open segment is salvaged: rows in it are done."""
        self._dispatching.quarantine.judge(self.s.worker_died(worker_id, death), death)

    def salvaged(
        self, worker_id: str, seq: int, records: Sequence[tuple[MessageQueue, Sequence[tuple[int, int]]]], now: float
    ) -> None:
        """A segment that the worker left open is sealed; `records` are the ones whose rows are complete in it.

        Only what a living assignment waits for is noted as done: a message of an ended one is not forgotten by a reset
        and then found finished after a restart.
        """
        worker = self.s.workers.get(worker_id)
        if worker is None:
            return
        worker.salvaged_in.append((worker_id, seq))
        found: dict[MessageQueue, Intervals] = {}
        for mq, pairs in records:
            here, done = found.setdefault(mq, Intervals()), worker.salvaged.setdefault(mq, Intervals())
            here.update(pairs)
            done.update(pairs)
        for chunk in worker.in_flight.values():
            pq = self.s.queues.get(chunk.handle)
            if pq is not None and pq.mq in found:
                for index in range(chunk.reported, chunk.count):
                    if chunk.offsets[index] in found[pq.mq]:
                        pq.owner.finished(pq, chunk.begin_of(index), chunk.offsets[index] + 1, (worker_id, seq))
        self.sealed(worker_id, seq, now)

    def salvage_complete(self, worker_id: str, now: float, wall_ms: int = 0) -> None:
        """Nothing more of the dead worker will turn up: dispatch the rest of its chunks to others."""
        s = self.s
        worker = s.worker_gone(worker_id)
        touched: dict[int, ProcessQueue] = {}
        for chunk in worker.in_flight.values():
            pq = s.queues.get(chunk.handle)
            s.chunks.pop(chunk.chunk_id, None)
            self._dispatching.finished(chunk, pq)
            if pq is None:
                self._dispatching.abandon(chunk)
                continue
            touched[pq.handle] = pq
            if chunk.origin is None:
                self._split(pq, chunk, worker, wall_ms)
            else:
                self.retries.rerun_died(pq, chunk, worker)
        self.retries.time_outs(worker, now)
        for seq in sorted(s.unsealed_of.pop(worker_id, ())):
            self._lost((worker_id, seq), now)
        for pq in touched.values():
            pq.owner.progress(pq, now)
        self._dispatching.run()

    def _split(self, pq: ProcessQueue, chunk: Chunk, worker: Worker, wall_ms: int) -> None:
        """Trim the chunk to what was reported; what was salvaged is finished, the rest becomes new chunks."""
        s = self.s
        salvaged = worker.salvaged.get(pq.mq, Intervals())
        children: list[tuple[Chunk, Lot | None]] = []
        for start, _, fate in reversed(pieces_of(chunk, salvaged, worker.blamed)):
            children.append((chunk.split(start, next(s.chunk_ids)), fate))
        children.reverse()
        begun_to = self._begun_to(worker, chunk)
        for child, fate in children:
            child.never_begun = sum(offset > begun_to for offset in child.offsets)
            if fate is None:
                child.reported = child.count
                self._time(pq, child, 0, child.count, wall_ms)
                if s.config.commit_after_loaded:
                    self._wait_for_load(pq, child, worker)
                pq.ledger.finish(child.begin, child.offsets[-1] + 1)
                self._dispatching.finished(child, pq)
                pq.unfinished -= child.count
                pq.unfinished_bytes -= child.length_bytes
                s.counters.salvaged_messages += child.count
                s.counters.done_messages += child.count
                s.release_chunk(child)
            else:
                pq.open[child.chunk_id] = child
        if chunk.failed:
            s.chunks[chunk.chunk_id] = chunk
        else:
            del pq.open[chunk.chunk_id]
        pq.unfinished_bytes -= chunk.length_bytes
        s.release_chunk(chunk)
        for child, fate in children:
            if fate is None:
                continue
            if s.finishes(pq):
                self.retries.after_death(pq, child, fate, worker, alone=chunk.alone)
            else:
                self._dispatching.leave(child)

    def _begun_to(self, worker: Worker, chunk: Chunk) -> float:
        """Up to which offset the dead worker may have begun the chunk: side by side it runs all in the order of dispatch, so
        its cell says it, if that names a call."""
        hand, concurrent = worker.in_hand, self.s.config.order == "concurrent"
        if hand is None or hand.waiting or hand.chunk_id not in worker.in_flight or worker.window or not concurrent:
            return inf
        if chunk.chunk_id == hand.chunk_id:
            return hand.last
        in_turn = list(worker.in_flight)
        return inf if in_turn.index(chunk.chunk_id) < in_turn.index(hand.chunk_id) else -1

    def _wait_for_load(self, pq: ProcessQueue, chunk: Chunk, worker: Worker) -> None:
        """Rows of all of the chunk are in one of the segments that were salvaged: which one, nobody noted."""
        for token in worker.salvaged_in:
            self.s.hold(pq, token, chunk.begin, chunk.offsets[-1] + 1, chunk.count)
            self.s.wait_for_table(token)

    def _lost(self, token: Token, now: float) -> None:
        """Rows were reported in a segment that is not there: run them again, from the committed offset."""
        self.s.counters.lost_rows_restarts += 1
        self.s.log("error", "reported_rows_lost", worker=token[0], segment=token[1])
        self.s.unsealed_messages.pop(token, None)
        self.s.out.append(JournalLost(*token))
        for pq in self.s.unsealed.pop(token).values():
            messages = pq.ledger.lose_rows(token)
            if pq.state is QueueState.ENDED:
                continue
            if self.s.stopping:
                self.s.unsealed_at_stop += messages  # nobody reads the queue again before the next start
            self._restart(pq, now)
            pq.owner.progress(pq, now)  # one that leaves waits for nothing of it any more
