"""Runs the handler over a chunk: messages in, finished runs and kept rows out. No socket, no file.

A *run* is a contiguous stretch of a chunk's records with one entry in a report. The loop over a chunk is the hot path: per
message one small object, one store into the cell, one call, one look at the clock (the end of one call is the start of the
next), one comparison for all that is due from time to time, no allocation on the way of a handler that returns None. What
is rare is apart: inner batches (one record, several messages, finished or failed as one) and batch handlers.

The cell names the record that the handler is about to run, or the user's filter to look at, so that a death has one culprit,
and since when, so that the supervisor can keep the time limits; a batch handler's list notes which message was taken last.
The cell is cleared when the chunk is over and before anything is written, because what happens there is not the handler's
fault.

Between calls the runner asks for a flush when the oldest unreported message is older than the flush interval, when many
rows are kept, or when a run has so many failures that they would not fit one packet. It waits for the end of the chunk,
or for longer, where the cell shows all that is unreported (REPORT_INTERVALS), or the supervisor can ask for it during a call
(HELD_INTERVALS), because a flush finds cold caches: of calls of 10 ms that return a row each it took 9 % when it came after
each. While calls are long, it asks before a call for what nobody else could report during the call: rows and failures. The
time for that is a small part of what the long calls took (SPARE_SHIFT).

Beside a call the reporter's thread may take what has ended (`cut_ended`). So what is noted of a record is changed with `lock`
held, and as a whole: a record that another thread sees has all of its rows or none. A message's plain rows are kept by one
append to one list, which is as whole, without the lock. The thread reads the cell first and that list then: so it finds the
rows of every record before the one in the cell, and the last row that it finds is of a record that has ended.
"""

from __future__ import annotations

from _thread import RLock  # as it was before the handler's module: see own_thread.py
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

from ..client.logs import get_logger
from ..conf.units import NS_PER_MS, NS_PER_US
from ..remoting.errors import ProtocolError, RocketcrewError
from ..remoting.log_keys import EndedKeys, place_keys, queue_keys
from ..remoting.stored import SYSFLAG_LOW_BYTE
from .api import Handler, Retry, Rollback, Suspend
from .boot import WorkerBounds
from .calls import OneByOne, Wants, batch_results, chooser, messages_of, open_unit
from .cells import BETWEEN, LAST, RECORDS, STARTED_NS, STATE, TAKEN, CellView, Naming
from .claims import Claims
from .descriptors import lacks_descriptors
from .failures import Cause, Failure
from .fitting import RowError
from .forks import end_fork
from .message import INNER_BATCH_BIT, Message, message_keys, plain_messages
from .packets import QueueInfo, clip
from .rows import Kept, Prepared, RowBuffer
from .run import FAILURES_PER_RUN_MAX, Run, each_is_one, records_of
from .sends import run_out
from .unreported import HELD_INTERVALS, REPORT_INTERVALS, Unreported
from .user_errors import describe_error, failure_of, usable, user_traceback

MARK_NS: Final = 1_000_000
"""The start of a call is noted to the millisecond: of many short calls not each is worth a store."""
SPARE_SHIFT: Final = 6
"""After a long call this part of its time (1/64) may go into flushes before the next calls, so that the reports of 64 workers
with long calls take the supervisor one core at most."""
SPARE_NS_MAX: Final = 1_000_000
"""Of many long calls no more is spared, but for the share of one."""
REPORT_NS: Final = 500_000
"""At least so much a flush takes of it, since its report takes the supervisor some time, too."""
SPARE_STEP_NS: Final = 1_000
"""Taken off the spare time for each message before which nothing had to be flushed."""

Place = tuple[Run, int]
"""A record: its run and its position in the chunk. Owner of kept rows."""


class Runner:
    """The handler and what it has produced since the last flush."""

    def __init__(
        self,
        handler: Handler,
        rows: RowBuffer[Place] | None,
        *,
        cell: CellView,
        bounds: WorkerBounds,
        clock: Callable[[], int],
        flush: Callable[[], None],
        can_wait: Callable[[], bool] = lambda: True,
        few: Callable[[], bool] = lambda: False,
        log: Any = None,
    ) -> None:
        """`rows` None = results are off. `clock` is monotonic, in ns. `flush` must call `take`; what a call has done to the
        worker is found out by it, and while it is put off, by `can_wait`. `few`: hardly any descriptor is free."""
        self.rows = rows
        self._buffer: RowBuffer[Place] = RowBuffer(None, "") if rows is None else rows
        self._function: Callable[[Any], object] = handler.function
        self._batch = handler.batch
        self._filter = handler.filter
        self._cell = cell
        self._bounds = bounds
        self._interval_ns = bounds.flush_interval_us * NS_PER_US
        self._clock = clock
        self._flush = flush
        self._can_wait, self._few = can_wait, few
        self._log = log if log is not None else get_logger()
        self._runs: list[Run] = []
        self._current: Run | None = None
        """The run under way, where it may be cut beside a call."""
        self._lock = RLock()
        self.unreported = Unreported(cell)
        self.spare_ns = 0
        """Left of the time for flushes before calls."""
        self.on_failure: Callable[[QueueInfo, Message | int, BaseException], None] | None = None
        """Called with each failed message, or its queue offset, and its error. Never raises."""
        self.on_hold: Callable[[], None] | None = None
        """Called when something is held that only this worker can report."""
        self._due_ns = 0
        """When a flush is due; meaningful while anything is unreported."""
        self._shown_ns = (REPORT_INTERVALS - 1) * self._interval_ns
        """How much later what the cell shows is due, ..."""
        self._held_ns = (HELD_INTERVALS - 1) * self._interval_ns
        """... and what the supervisor can ask for beside a call."""
        self._look_ns = 0
        """When something is to be done between two calls: a flush, or the note of when the next one began."""
        self._slowest_ns = 0
        self._chunk_id = 0
        """The chunk in hand."""
        self.window_open = False
        """More may come before the last chunk is reported."""
        self.lacks = False
        """A call has failed for want of descriptors, and they were not counted since."""
        self.short = False
        """One has failed while few were free, and it is not known to be for want of them. Not reported yet."""
        self.is_fork = False
        """This is a child of the worker that the handler forked."""
        self.naming = Naming(cell, clock)
        self.claims = Claims(cell)

    @property
    def pending(self) -> bool:
        """Something waits to be reported."""
        return bool(self._runs)

    @property
    def due_ns(self) -> int:
        """When what is pending is to be flushed; meaningful while something is."""
        return self._due_ns

    @property
    def slowest_ns(self) -> int:
        """Longest handler call of the last chunk."""
        return self._slowest_ns

    def forked(self) -> None:
        """This is a child of the worker now: ask for a flush, which ends it, after the call that is under way."""
        self.is_fork = True
        self._lock = RLock()  # the other thread is not here
        self._flush_soon()

    def end_if_forked(self, result: object = None) -> None:
        """End this process where it is such a child, which has come back out of the handler with this result or error: link
        and cell are its parent's, so it must neither read a packet, nor answer one, nor name anything."""
        if self.is_fork:
            end_fork(result if isinstance(result, BaseException) else None)

    def _flush_soon(self) -> None:
        self._due_ns, self._look_ns = -self._shown_ns, 0

    def _suspect(self, error: BaseException) -> None:
        """A call ended by this error, which may be one that its handler wants."""
        if lacks_descriptors(error):
            self._lack()
        elif not (self.short or isinstance(error, Retry | Suspend | Rollback)) and self._few():
            self.short = True
            self._flush_soon()

    def _lack(self) -> None:
        """A call failed for want of descriptors: the next ones may as well."""
        self.lacks = True
        self._flush_soon()

    def judged(self, *, lacks: bool) -> None:
        """What failed while few were free is reported; whether it was for want of them."""
        self.short = False
        if lacks:
            self._lack()

    @property
    def look_due(self) -> bool:
        """Open descriptors are to be counted."""
        return self.lacks

    @property
    def under_way(self) -> bool:
        """Calls have begun that go on beside the loop."""
        return False

    def looked(self) -> None:
        """They were counted, and the calls go on."""
        self.lacks = False

    @property
    def lock(self) -> RLock:
        """Held where what waits to be reported is changed, in two steps or more; never while the handler runs."""
        return self._lock

    def own(self) -> RLock:
        """The lock, taken. A thread that waits for it is not in the handler, whatever the cell names: a disk may be slow."""
        lock = self._lock
        if not lock.acquire(blocking=False):
            self._wait_for(lock)
        return lock

    def _wait_for(self, lock: RLock) -> None:
        self._cell[STATE] = 0
        lock.acquire()

    def take(self) -> list[Run]:
        """The finished runs, in order; they are the caller's now. The lock is held."""
        runs, self._runs = self._runs, []
        return runs

    def cut_ended(self) -> int:
        """Beside a call: what has ended of the run under way becomes a finished run. Returns of how many messages the rows
        that are kept are the finished runs'. The lock is held."""
        # In this order: the loop may begin a run, and keep a row of it, at any moment. To end one takes the lock.
        finished, run, cell = len(self._buffer.kept), self._current, self._cell
        if run is None:
            return finished
        end, state = run.settled, cell[STATE]
        if run.by_cell and state not in (0, BETWEEN):
            index = bisect_left(run.offsets, state - 1, run.start)
            if index < len(run.offsets) and run.offsets[index] == state - 1:
                end = max(end, index)
        kept = self._buffer.kept[:]  # after the cell was read
        own = [index for (owner, index), *_ in kept if owner is run]
        if own:
            end = max(end, own[-1] + 1)
        if end > run.start:
            part = run.cut(end, cell[STARTED_NS])
            part.has_rows = bool(own)
            self._runs.append(part)
            self.unreported.cut(run.offsets[end] if end < len(run.offsets) else None)
        return len(kept)

    def reported(self, packets: int) -> None:
        """All that was finished is in `packets` packets, which were sent. The lock is held."""
        self.unreported.sent(packets, self._first_kept)

    def _first_kept(self) -> tuple[int, int] | None:
        """Chunk and index of the first record with rows: beside the report the loop may have gone on."""
        kept = self._buffer.kept
        if not kept:
            return None
        run, index = kept[0][0]
        return run.chunk_id, index

    def run_chunk(self, chunk_id: int, queue: QueueInfo, data: bytes, records: int) -> None:
        """Run the handler over the records in `data`. Whatever is wrong with them becomes failures, never an exception."""
        if not self.claims.mine():
            return  # and `data` may be something else by now
        try:
            positions, offsets = records_of(data, records, chunk_id)
        except ProtocolError as error:
            if self.claims.claim(records):
                self._fail_chunk(chunk_id, queue, records, error)
            return
        self.begin_chunk(chunk_id, queue)
        run = Run(chunk_id, queue, offsets, 0)
        if self._batch:
            self._run_batches(run, data, positions)
        else:
            self._run_each(run, data, positions)
        self._cell[STATE] = 0

    def begin_chunk(self, chunk_id: int, queue: QueueInfo) -> None:
        """Work on a chunk starts: what it finishes is to be reported after the flush interval, or later (`_may_wait`)."""
        if not self._runs:
            self._due_ns = self._clock() + self._interval_ns
        self._slowest_ns, self._chunk_id = 0, chunk_id
        self.naming.chunk(chunk_id, queue)

    def _fail_chunk(self, chunk_id: int, queue: QueueInfo, records: int, error: Exception) -> None:
        for start in range(0, records, FAILURES_PER_RUN_MAX):
            run = Run(chunk_id, queue, [], start)
            run.records = min(FAILURES_PER_RUN_MAX, records - start)
            for position in range(start, start + run.records):
                run.failures[position] = Failure(Cause.FAILED, clip(str(error)))
            lock = self.own()
            try:
                self._runs.append(run)
                self._hold(run, start)
            finally:
                lock.release()
        self._log.error("chunk_undecodable", **queue_keys(queue), error=str(error))

    # --- one message per call ---------------------------------------------------------------------------------------

    def _run_each(self, run: Run, data: bytes, positions: list[int]) -> None:  # noqa: PLR0912, PLR0915  a call costs
        function, clock, cell, queue = self._function, self._clock, self._cell, run.queue
        buffer, unreported = self._buffer, self.unreported
        plain, plain_rows, kept = buffer.plain, buffer.plain_rows, buffer.kept
        keep = kept.append
        wants = chooser(queue, self._filter, self._log)
        cell[RECORDS] = 1
        claims, end = self.claims, len(run.offsets)
        slowest = claimed = first = 0
        shows = unreported.offered and unreported.counts and each_is_one(run.offsets, data, positions)
        cell[STARTED_NS] = started = last = clock()
        self._begin_run(run, last, shows=shows)
        for index, position, offset in zip(range(end), positions, run.offsets, strict=False):
            if index == claimed:
                claimed = min(index + claims.stride, end)
                if not claims.claim(claimed):
                    end = index
                    break
            message = Message(data, position, queue)
            cell[STATE] = offset + 1
            try:
                if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
                    self._run_unit(run, index, data, position, positions[index + 1], wants)
                elif wants is not None and not wants(message):
                    self._filtered(run, index)
                else:
                    result = function(message)
                    if result is not None:
                        values = plain_rows(result) if result.__class__ is list else plain(result)
                        if values is not None:
                            keep(((run, index), message, values, None))
                            run.has_rows = True
                            if not unreported.held or len(kept) >= buffer.full_at:
                                self._after_keep(run, index)
                        elif (part := self._prepare(message, result)) is not None:
                            self._keep_part(run, index, part)
            except BaseException as error:  # noqa: BLE001
                # SystemExit too: a handler that calls sys.exit() has failed this message, and nothing else.
                self._fail(run, index, message, error, clock() - last)
            now = clock()
            if now - last > slowest:  # noqa: PLR1730  max() is a call, here is the hot path
                slowest = now - last
            took, last = now - last, now
            if now >= self._look_ns:
                if self._must_flush(now, took, more=index + 1 < end):
                    self._close(run, index + 1, now - run.began_ns, slowest)
                    cell[STATE] = 0
                    self._flush()
                    run, first, slowest = Run(run.chunk_id, queue, run.offsets, index + 1), index + 1, 0
                    started = last = clock()
                    self._flushed(last - now)
                    self._begin_run(run, last, shows=shows)
                cell[STARTED_NS] = last
                due_ns = self._due_ns if self._due_ns > last else last + MARK_NS  # what waits is looked at each MARK_NS
                self._look_ns = 0 if self.spare_ns > 0 else min(due_ns, last + MARK_NS)
        self._close(run, end, last - run.began_ns, slowest)
        claims.ran(end - first, last - started, self._slowest_ns)

    def _begin_run(self, run: Run, now: int, *, shows: bool) -> None:
        run.began_ns, run.by_cell = now, True
        self.unreported.begin(run.offsets[run.start] if shows and run.start < len(run.offsets) else None)
        self._current = run
        self._look_ns = min(self._due_ns, now + MARK_NS)

    def _must_flush(self, now: int, took: int, *, more: bool = False) -> bool:
        """Between two calls; `took` is what the last one took. What the supervisor can see or ask for can wait while there is
        `more` of the chunk to come: at its end a report makes room for another one, unless there is room."""
        self.end_if_forked()
        if took >= self._interval_ns:
            share = took >> SPARE_SHIFT
            self.spare_ns = min(self.spare_ns + share, max(share, SPARE_NS_MAX))
        if now >= self._due_ns and not self._may_wait(now - self._due_ns, more=more):
            return True
        if self.spare_ns <= 0:
            return False
        if self.unreported.held:
            return True
        self.spare_ns -= SPARE_STEP_NS
        return False

    def _may_wait(self, late_ns: int, *, more: bool) -> bool:
        """The supervisor can see what is unreported, or ask for it, and nothing is wrong that a flush would find."""
        unreported, runs = self.unreported, self._runs
        more = more and not (runs and runs[0].chunk_id != self._chunk_id)
        if unreported.held:
            may = (more or self.window_open) and unreported.offered and late_ns < self._held_ns
        else:
            may = more and unreported.shown and late_ns < self._shown_ns
        return may and self._can_wait()

    def _flushed(self, took: int) -> None:
        self._due_ns = self._clock() + self._interval_ns
        if self.spare_ns > 0:
            # It may have waited for a full disk.
            self.spare_ns = max(self.spare_ns - max(took, REPORT_NS), -SPARE_NS_MAX)

    def _run_unit(self, run: Run, index: int, data: bytes, position: int, end: int, wants: Wants | None) -> None:
        """One record that is an inner batch: all of its messages, rows kept only when none fails."""
        messages, results = open_unit(run, index, data, position, end, wants), list[Prepared | None]()
        for message in messages:
            started_ns = self._clock()
            try:
                results.append(self._prepare(message, self._called(message)))
            except BaseException as error:  # noqa: BLE001  it is this message's, which need not be the first of the record
                self._fail(run, index, message, error, self._clock() - started_ns)
                return
        if not messages:
            self._filtered(run, index)
        lock = self.own()
        try:
            self._keep(run, index, results)
        finally:
            lock.release()

    def _called(self, given: Any) -> object:
        """What the handler makes of it. A child that it forked and that comes back does nothing else here."""
        result = self._function(given)
        self.end_if_forked()
        return result

    def _prepare(self, message: Message, result: object) -> Prepared | None:
        """The rows of one result. A Retry or another exception that was returned is raised."""
        if isinstance(result, BaseException):
            raise result
        return self._rows_of(message, result)

    def _rows_of(self, message: Message, result: object, *, at_once: bool = False) -> Prepared | None:
        """The rows of a result that is no failure; a generator runs the handler's code. `at_once` as in RowBuffer."""
        prepared = None
        try:
            if self.rows is None or result is None:
                run_out(result)
            else:
                prepared = self.rows.prepare(message, result, at_once=at_once)
        except BaseException as error:
            self.end_if_forked(error)  # here, as the callers note a failure later, and clear the cell before
            raise
        self.end_if_forked()
        return prepared

    def _keep(self, run: Run, index: int, prepared: Sequence[Prepared | None]) -> None:
        """The rows of a record that has ended."""
        for part in prepared:
            if part is not None:
                self._keep_part(run, index, part)

    def _keep_part(self, run: Run, index: int, part: Prepared) -> None:
        """Of a record with several, only with the lock held around all of them."""
        rows, lock = self.rows, self._lock
        if rows is None:
            return
        if not lock.acquire(False):  # by name it takes twice as long
            self._wait_for(lock)
        try:
            rows.keep((run, index), part)
            run.has_rows = True
            run.settled = index + 1
            if not self.unreported.held:
                self._hold(run, index)
        finally:
            lock.release()
        if rows.full:
            self._flush_soon()

    def _after_keep(self, run: Run, index: int) -> None:
        """The record's row was kept without the lock. Whoever reports just now has it until HELD names what is left."""
        lock = self.own()
        try:
            self._hold(run, index)
        finally:
            lock.release()
        if self._buffer.full:
            self._flush_soon()

    def _filtered(self, run: Run, index: int) -> None:
        lock = self.own()
        try:
            run.filtered += 1
            run.settled = index + 1
            self._hold(run, index)
        finally:
            lock.release()

    def _hold(self, run: Run, index: int) -> None:
        """Only this worker can say what became of the record. The lock is held."""
        self.end_if_forked()
        if not self.unreported.held:
            self.unreported.hold(run.chunk_id, index)
            if self.on_hold is not None:
                self.on_hold()

    def _close(self, run: Run, end: int, busy_ns: int, slowest_ns: int) -> None:
        """The run ends before record `end`; it waits for the flush."""
        lock = self.own()
        try:
            self._current = None
            run.records = end - run.start
            run.busy_ns = busy_ns
            run.slowest_ns = slowest_ns
            self._slowest_ns = max(self._slowest_ns, slowest_ns)
            if run.records:
                self._runs.append(run)
        finally:
            lock.release()

    # --- failures ---------------------------------------------------------------------------------------------------

    def fail_kept(self, place: Place, error: RowError) -> None:
        """Rows that were kept turned out not to fit when they were converted: their record has failed after all."""
        run, index = place
        # It may have been cut or joined since.
        for each in self._runs:
            if each.chunk_id == run.chunk_id and each.start <= index < each.start + each.records:
                run = each
        failure = Failure(Cause.FAILED, clip(str(error)))
        self._note(run, index, failure)
        self._log.warning("rows_do_not_fit", **place_keys(run.queue, run.offsets[index]),
                          outcome=outcome_of(failure, error), error=str(error))  # fmt: skip
        if self.on_failure is not None:
            self.on_failure(run.queue, run.offsets[index], error)

    def _fail(self, run: Run, index: int, message: Message, error: BaseException, took_ns: int) -> None:
        """`took_ns` is the time of the message's call; 0 = it was not called."""
        self.end_if_forked(error)
        error = usable(error)
        failure = failure_of(error)
        self._note(run, index, failure)
        self._suspect(error)
        ended = ended_keys(failure, error, took_ns)
        if isinstance(error, Retry):
            self._log.info("message_retry", **message_keys(message), **ended, delay_level=error.delay_level,
                           reason=error.reason)  # fmt: skip
        else:
            self._log.warning("message_failed", **message_keys(message), **ended, **error_keys(error))
        if self.on_failure is not None:
            self.on_failure(run.queue, message, error)

    def _note(self, run: Run, index: int, failure: Failure) -> None:
        lock = self.own()
        try:
            if index not in run.failures:
                run.failures[index] = failure
                if len(run.failures) >= FAILURES_PER_RUN_MAX:
                    self._flush_soon()
            run.settled = max(run.settled, index + 1)
            self._hold(run, index)
        finally:
            lock.release()

    # --- several messages per call ----------------------------------------------------------------------------------

    def _run_batches(self, run: Run, data: bytes, positions: list[int]) -> None:
        """Call a batch handler with up to `batch_messages_max` messages; a record is never split over two calls."""
        cell, clock = self._cell, self._clock
        wants = chooser(run.queue, self._filter, self._log)
        total = len(positions) - 1
        index = 0
        while index < total:
            first = index
            batch, places, index = self._next_call(run, index, data, positions, wants)
            if index == first or not self.claims.claim(index):
                return
            started = clock()
            kept: list[Kept[Place]] = []
            if batch:
                cell[STARTED_NS] = started
                cell[RECORDS] = index - first
                cell[LAST] = run.offsets[index - 1]
                cell[TAKEN] = 0
                cell[STATE] = run.offsets[first] + 1
                kept = self._run_batch(run, batch, places, started)
                cell[STATE] = 0
            took = clock() - started
            self._end_batch(run, index, kept, took)
            if self._must_flush(started + took, took, more=index < total):
                self._flush()
                self._flushed(clock() - started - took)
            run = Run(run.chunk_id, run.queue, run.offsets, index)

    def _end_batch(self, run: Run, end: int, kept: list[Kept[Place]], took: int) -> None:
        """Its rows and its end as one: they are reported together."""
        lock = self.own()
        try:
            if run.failures:
                kept = [each for each in kept if each[0][1] not in run.failures]
            if kept:
                self._buffer.keep_all(kept)
                run.has_rows = True
                if self._buffer.full:
                    self._flush_soon()
            if kept or run.filtered:
                self._hold(run, run.start)
            self._close(run, end, took, took // (end - run.start))
            self._slowest_ns = max(self._slowest_ns, took)
            if len(self._runs) > 1 and self._runs[-2].join(run):
                self._runs.pop()
        finally:
            lock.release()

    def _next_call(
        self, run: Run, first: int, data: bytes, positions: list[int], wants: Wants | None
    ) -> tuple[list[Message], Sequence[int], int]:
        """The messages of the next call, the place of each one's record, and the place after the last record, which is
        `first` when all the rest was reclaimed."""
        total = len(positions) - 1
        if wants is None:
            end = min(first + self._bounds.batch_messages_max, total)
            plain = plain_messages(data, positions[first:end], run.queue)
            if plain is not None:
                return plain, range(first, end), end
        index = first
        batch: list[Message] = []
        places: list[int] = []
        while index < total and len(batch) < self._bounds.batch_messages_max:
            if self._filter is not None:
                if not self.claims.claim(index + 1):
                    break  # what was claimed before is kept
                self._hold_batch(run, first)
                self.naming.record(run.offsets[index])
            messages = self._messages_of(run, index, data, positions, wants)
            batch.extend(messages)
            places.extend([index] * len(messages))
            index += 1
        self._cell[STATE] = 0
        return batch, places, index

    def _messages_of(
        self, run: Run, index: int, data: bytes, positions: list[int], wants: Wants | None
    ) -> list[Message]:
        """The wanted messages of one record; none when it is filtered or damaged (then it has failed)."""
        messages, damaged = messages_of(run, index, data, positions, wants)
        if damaged is not None:
            self._fail(run, index, Message(data, positions[index], run.queue), damaged, 0)
        return messages

    def _hold_batch(self, run: Run, first: int) -> None:
        """The cell names a record while the user's filter looks at it; those of its batch that stand before have not run."""
        lock = self.own()
        try:
            self._hold(run, first)
        finally:
            lock.release()

    def _run_batch(self, run: Run, batch: list[Message], places: Sequence[int], started_ns: int) -> list[Kept[Place]]:
        """One call of a batch handler; the rows to be kept. Nothing of it is kept before everything that fails is known."""
        try:
            offsets = run.offsets
            own = offsets[places.start : places.stop] if isinstance(places, range) else [offsets[at] for at in places]
            given = OneByOne(batch, own, self._cell)
            result = self._called(given)
            if result is None:
                return []  # all done, nothing to keep
            results = batch_results(batch, result)
            self.end_if_forked()  # in a generator of rows
            together = self._buffer.together(results)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the handler's
            took_ns = self._clock() - started_ns
            for message, index in zip(batch, places, strict=True):
                self._fail(run, index, message, error, took_ns)
            return []
        if together is not None:
            return list(zip(zip(repeat(run), places), batch, *together, strict=False))
        kept: list[Kept[Place]] = []
        for index, message, result in zip(places, batch, results, strict=True):
            if result is None:
                continue
            try:
                if (prepared := self._prepare(message, result)) is not None:
                    kept.append(((run, index), *prepared))
            except BaseException as error:  # noqa: BLE001  a generator runs the handler's code
                self._fail(run, index, message, error, self._clock() - started_ns)
        return kept


def outcome_of(failure: Failure, error: BaseException) -> str:
    """The word in the log for a call that did not finish its message; whether that was its last attempt is not known here."""
    if failure.cause is Cause.GIVEN_UP:
        return "given_up"
    return "retry" if isinstance(error, Retry) else failure.cause.name.lower()


def ended_keys(failure: Failure, error: BaseException, took_ns: int) -> EndedKeys:
    """For the log line of such a message; `took_ns` is the time of its call."""
    return {"outcome": outcome_of(failure, error), "duration_ms": took_ns // NS_PER_MS}


def error_keys(error: BaseException) -> dict[str, str]:
    """The error's text, and its traceback where the handler raised it and not we."""
    text = {"error": clip(describe_error(error))}
    return text if isinstance(error, RocketcrewError) else {**text, "exception": user_traceback(error)}


HANDLER_CALLERS: Final = frozenset(
    getattr(Runner, name).__code__
    for name in ("_run_each", "_run_unit", "_called", "_prepare", "_run_batch", "_next_call")
)
"""Frames under which the handler's code runs, and which take whatever it raises for the message's failure."""
NEVER_INTERRUPTED: Final = frozenset(
    getattr(Runner, name).__code__
    for name in (
        "_fail", "_note", "_filtered", "_hold_batch", "_after_keep", "_keep", "_keep_part", "_end_batch", "_close", "own",
        "_wait_for", "_must_flush", "_may_wait", "_flushed",
    )
)  # fmt: skip
"""They run beside a call, not in it: what is raised in them would be nobody's failure."""
