"""Runs the handler in order: a failed message ends its lane, and what is not finished is given back.

A dispatch holds chunks of one lane or of several. When a message fails, it and everything after it in its lane come back as
RETURNED, and the other lanes go on; past the dispatch's time (the lock of its queue may be another member's then) nothing is
started any more, nor once the supervisor wants it back, because a queue leaves. Rows are converted as they come, because a
row that does not fit must be known before the next message starts.

With `auto_commit=False` a message that was handled stays *staged*: its run and rows wait in this process for a Commit, and
come back at a Rollback. The supervisor hears CONSUMED when a chunk ends with staged messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from struct import Struct
from typing import Any, Final, NamedTuple

from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.errors import ProtocolError
from ..remoting.log_keys import queue_keys
from .api import Commit, Retry, Rollback, Suspend
from .calls import OneByOne, Wants, batch_results, chooser, messages_of
from .cells import LAST, RECALLED, RECORDS, STARTED_NS, STATE, TAKEN
from .classify import classify, note_failure
from .failures import Cause, Failure
from .message import Message, message_keys
from .ordered_packets import Returned
from .packets import QueueInfo
from .rows import Prepared
from .run import Run, records_of
from .runner import HANDLER_CALLERS, NEVER_INTERRUPTED, Runner, ended_keys, error_keys
from .user_errors import failure_of, keep_last_raise, usable

_SYSFLAG = Struct(">36xI")
_RECONSUME_TIMES = Struct(">I")
_RECONSUME_TIMES_V4 = 72
_V6_MORE = 12
"""Bytes that an IPv6 host takes more than an IPv4 one (the table in remoting/stored.py)."""

SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000

Consumed = int
"""Id of a chunk that ran to its end and is not committed."""


class OrderedWork(NamedTuple):
    """One chunk of a dispatch, with its bytes."""

    chunk_id: int
    queue: QueueInfo
    data: bytes
    records: int
    lane: int
    tried: tuple[int, ...]


class _Staged(NamedTuple):
    """Handled messages that wait for a commit: their runs, and their rows with the place of each."""

    runs: list[Run]
    rows: list[tuple[Run, int, Prepared]]


class _Verdict(NamedTuple):
    """What became of the messages of one call."""

    error: BaseException | None = None
    failed_at: int = 0
    """With an error: the place in the chunk of the record that failed. Of its call, the records before it are done."""
    commit: bool = False
    rows: Sequence[tuple[int, Prepared]] = ()
    """Of the records that are done, by their places."""
    message: Message | None = None
    """With an error: which one failed, of an inner batch perhaps not the record's first; None where none could be read."""


class OrderedRunner(Runner):
    """A runner that also takes ordered dispatches. See the module's text."""

    _auto_commit = True
    _start_before_ns = 0
    _handed = 0
    """Dispatches that came so far."""

    @cached_property
    def _staged(self) -> dict[QueueInfo, _Staged]:
        """By queue: what waits for a commit."""
        return {}

    def run_ordered(
        self, works: Sequence[OrderedWork], start_before_ns: int, *, auto_commit: bool
    ) -> list[Returned | Consumed]:
        """Run the chunks; what to report of them beside the usual reports, to be sent after the next flush.

        `start_before_ns` 0 = no limit. Whatever is wrong with a chunk is a failure of its first message.
        """
        self._auto_commit, self._start_before_ns = auto_commit, start_before_ns
        self._handed += 1
        answers: list[Returned | Consumed] = []
        ended: set[int] = set()
        slowest_ns = 0
        for work in works:
            if work.lane in ended or self._too_late():
                answers.append(Returned(work.chunk_id, 0))
                continue
            found = self._run_work(work)
            slowest_ns = max(slowest_ns, self._slowest_ns)
            if any(isinstance(answer, Returned) for answer in found):
                ended.add(work.lane)
            answers.extend(found)
        self._slowest_ns = slowest_ns
        return answers

    def forget_queue(self, queue: QueueInfo) -> None:
        """The queue was assigned anew: what was staged of it belongs to an assignment that has ended."""
        self._staged.pop(queue, None)

    def _too_late(self) -> bool:
        """Nothing more of the dispatch may begin: the supervisor wants it back, a lock may be over, or descriptors lack."""
        if self.lacks or self._handed <= self._cell[RECALLED]:
            return True
        return bool(self._start_before_ns) and self._clock() >= self._start_before_ns

    def _run_work(self, work: OrderedWork) -> list[Returned | Consumed]:
        try:
            positions, offsets = records_of(work.data, work.records, work.chunk_id)
            data = _with_tries(work.data, positions, work.tried)
        except ProtocolError as error:
            self._log.error("chunk_undecodable", **queue_keys(work.queue), error=str(error))
            return [Returned(work.chunk_id, 0, 1, Failure(Cause.FAILED, str(error)), -1)]
        self.begin_chunk(work.chunk_id, work.queue)
        found = self._run_records(work, data, positions, offsets)
        self._cell[STATE] = 0  # not where an exception ends the worker: then it names whom that is charged to
        return found

    def _run_records(
        self, work: OrderedWork, data: bytes, positions: list[int], offsets: list[int]
    ) -> list[Returned | Consumed]:
        wants = chooser(work.queue, self._filter, self._log)
        run = self._next_run(work, offsets, 0)
        index, total = 0, len(offsets)
        while index < total:
            if self._too_late():
                self._end_run(run, index)
                return [Returned(work.chunk_id, index)]
            started = self._clock()
            end, batch, places, damaged = self._gather(run, index, data, positions, wants)
            verdict = self._call(run, batch, places, started) if batch else _Verdict()
            self._cell[STATE] = 0
            if damaged is not None and verdict.error is None:
                verdict = verdict._replace(error=damaged, failed_at=end - 1, commit=False)
            took = self._clock() - started
            done = end if verdict.error is None else verdict.failed_at
            self._took(run, took, index, done, places, verdict.rows)
            if verdict.error is not None:
                self._end_run(run, done)
                self.naming.record(offsets[done])  # whatever its error does to us is its own
                return self._given_back(work, done, end - done, verdict.error, verdict.message, took)
            index = end
            if verdict.commit:
                self._end_run(run, index)
                self._commit(work.queue)
                run = self._next_run(work, offsets, index)
            if self._auto_commit and self._must_flush(started + took, took, more=index < total):
                self._end_run(run, index)
                self._flush()
                self._flushed(self._clock() - started - took)
                self.begin_chunk(work.chunk_id, work.queue)
                run = self._next_run(work, offsets, index)
        self._end_run(run, total)
        staged = self._staged.get(work.queue)
        waits = staged is not None and any(part.chunk_id == work.chunk_id for part in staged.runs)
        return [work.chunk_id] if waits else []

    def _next_run(self, work: OrderedWork, offsets: list[int], start: int) -> Run:
        """Records from `start` on. What has ended of them may be reported beside a call; not what waits for a commit."""
        run = Run(work.chunk_id, work.queue, offsets, start)
        if self._auto_commit:
            self._current = run
        return run

    def _took(
        self, run: Run, took: int, first: int, end: int, places: list[int], rows: Sequence[tuple[int, Prepared]]
    ) -> None:
        """A call took so long; records `first` to `end` have ended by it with these rows, those without a message in `places`
        filtered: in one step, as a report beside the next call takes all that has ended."""
        called = len(set(places[: bisect_left(places, end)]))
        lock = self.own()
        try:
            self._put(run, rows)
            run.filtered += end - first - called
            run.busy_ns += took
            run.slowest_ns = max(run.slowest_ns, took)
            if end > first and self._auto_commit:
                run.settled = end
                self._hold(run, first)  # in order only this worker knows what it has to give back
        finally:
            lock.release()

    # --- one call ---------------------------------------------------------------------------------------------------

    def _gather(
        self, run: Run, first: int, data: bytes, positions: list[int], wants: Wants | None
    ) -> tuple[int, list[Message], list[int], BaseException | None]:
        """Messages for one call, the place of each, and the end; up to a damaged record, which is the last then."""
        looked_at = Run(run.chunk_id, run.queue, run.offsets, first)  # filtered counts when it has ended: see _took
        looked_at.spans = run.spans
        room = self._bounds.batch_messages_max if self._batch else 1
        batch: list[Message] = []
        places: list[int] = []
        index, damaged = first, None
        while index < len(positions) - 1 and len(batch) < room and (self._batch or index == first):
            if self._filter is not None:
                self.naming.record(run.offsets[index])
            messages, damaged = messages_of(looked_at, index, data, positions, wants)
            batch.extend(messages)
            places.extend([index] * len(messages))
            index += 1
            if damaged is not None:
                break
        return index, batch, places, damaged

    def _call(self, run: Run, batch: list[Message], places: list[int], started_ns: int) -> _Verdict:
        """Call the handler."""
        cell, offsets = self._cell, run.offsets
        cell[STARTED_NS] = started_ns
        cell[RECORDS] = places[-1] - places[0] + 1
        cell[LAST] = offsets[places[-1]]
        cell[TAKEN] = 0
        cell[STATE] = offsets[places[0]] + 1
        if self._batch:
            given = OneByOne(batch, [offsets[place] for place in places], cell)
            return self._one_call(given, batch, places)
        rows: list[tuple[int, Prepared]] = []
        commit = False
        for message in batch:  # all of one record: behind one that fails, nothing begins
            verdict = self._one_call(message, [message], places[:1])
            if verdict.error is not None or len(batch) == 1:
                return verdict
            rows += verdict.rows
            commit |= verdict.commit
        return _Verdict(commit=commit, rows=rows)

    def _one_call(self, given: Any, batch: list[Message], places: Sequence[int]) -> _Verdict:
        """What became of the messages of one call."""
        try:
            result = self._called(given)
            results = batch_results(batch, result) if self._batch else [result]
        except Rollback as error:
            self.end_if_forked(error)
            if not self._auto_commit:
                return _Verdict(error, places[0], message=batch[0])
            results = [None] * len(batch)
            self._warn(batch[0], error)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the handler's
            self.end_if_forked(error)
            return _Verdict(error, places[0], message=batch[0])  # what was filtered before it has not failed
        return self._take(batch, places, results)

    def _take(self, batch: Sequence[Message], places: Sequence[int], results: Sequence[object]) -> _Verdict:
        """Rows of all messages up to the first that failed; a record counts when all of its messages are done."""
        prepared: list[tuple[int, Prepared]] = []
        commit = False
        for message, index, result in zip(batch, places, results, strict=True):
            try:
                rows, says_commit = self._judge(message, result)
            except BaseException as error:  # noqa: BLE001  a generator runs the handler's code
                done = [(place, part) for place, part in prepared if place < index]
                return _Verdict(error, index, rows=done, message=message)
            commit = commit or says_commit
            if rows is not None:
                prepared.append((index, rows))
        return _Verdict(commit=commit and not self._auto_commit, rows=prepared)

    def _judge(self, message: Message, result: object) -> tuple[Prepared | None, bool]:
        """Rows of one result, and whether it commits. Raises what the handler returned as an exception, or a generator of its
        ended with."""
        commit = isinstance(result, Commit)
        if isinstance(result, Commit):
            if self._auto_commit:
                self._warn(message, result)
            result = result.rows
        try:
            if isinstance(result, BaseException):
                raise result
            return self._rows_of(message, result, at_once=True), commit
        except Rollback as error:
            if not self._auto_commit:
                raise
            self._warn(message, error)
            return None, commit

    def _warn(self, message: Message, what: object) -> None:
        """As Java: with auto commit, COMMIT and ROLLBACK are successes."""
        if isinstance(what, Rollback):
            keep_last_raise(what)
        self._log.warning("taken_as_success", **message_keys(message), said=type(what).__name__,
                          hint="declare the handler with auto_commit=False to commit or roll back")  # fmt: skip

    # --- what is done, and what waits for a commit ------------------------------------------------------------------

    def _put(self, run: Run, prepared: Sequence[tuple[int, Prepared]]) -> None:
        if not self._auto_commit:
            self._stage(run.queue).rows.extend((run, index, part) for index, part in prepared)
            return
        for index, part in prepared:
            self._keep(run, index, [part])

    def _stage(self, queue: QueueInfo) -> _Staged:
        return self._staged.setdefault(queue, _Staged([], []))

    def _end_run(self, run: Run, end: int) -> None:
        """The run ends before record `end`: reported with the next flush, or staged."""
        if self._auto_commit:
            self._close(run, end, run.busy_ns, run.slowest_ns)
            return
        run.records = end - run.start
        if run.records:
            self._stage(run.queue).runs.append(run)

    def _commit(self, queue: QueueInfo) -> None:
        staged = self._staged.pop(queue, None)
        if staged is None:
            return
        for run, index, part in staged.rows:
            self._keep(run, index, [part])
        for run in staged.runs:
            self._close(run, run.start + run.records, run.busy_ns, run.slowest_ns)

    def _given_back(
        self, work: OrderedWork, start: int, failed: int, error: BaseException, message: Message | None, took_ns: int
    ) -> list[Returned | Consumed]:
        """What to report of a failure of record `start`, by `message`, whose call took `took_ns`; a rollback also gives back
        what was staged before it."""
        error = usable(error)
        self._suspect(error)
        keys = message_keys(message) if message is not None else {**queue_keys(work.queue)}
        if isinstance(error, Rollback):
            self._log.info("rolled_back", **keys, reason=error.reason)
            staged = self._staged.pop(work.queue, _Staged([], []))
            first: dict[int, int] = {work.chunk_id: start}
            for run in staged.runs:
                first[run.chunk_id] = min(first.get(run.chunk_id, run.start), run.start)
            return [
                Returned(chunk_id, at, suspend_ms=_wait_ms(error.suspend_ms) if chunk_id == work.chunk_id else 0)
                for chunk_id, at in sorted(first.items())
            ]
        failure = failure_of(error)
        ended = ended_keys(failure, error, took_ns)
        if isinstance(error, (Suspend, Retry)):
            if failure.cause is Cause.FAILED:
                ended["outcome"] = "held"
            self._log.info("message_held", **keys, **ended, reason=error.reason)
        else:
            self._log.warning("message_failed", **keys, **ended, **error_keys(error))
        if self.on_failure is not None and message is not None:
            self.on_failure(work.queue, message, error)
        suspend_ms = _wait_ms(error.suspend_ms) if isinstance(error, Suspend) else -1
        return [Returned(work.chunk_id, start, failed, failure, suspend_ms)]


CALLERS: Final = HANDLER_CALLERS | {
    function.__code__
    for function in (OrderedRunner._one_call, OrderedRunner._judge, OrderedRunner._gather, classify)  # pyright: ignore[reportPrivateUsage]
}
"""As HANDLER_CALLERS, the ordered ones too."""
NEVER: Final = NEVER_INTERRUPTED | {
    function.__code__
    for function in (OrderedRunner._put, OrderedRunner._end_run, OrderedRunner._given_back, note_failure)  # pyright: ignore[reportPrivateUsage]
}
"""As NEVER_INTERRUPTED, the ordered ones too."""


def _wait_ms(suspend_ms: int) -> int:
    """-1 = as configured; else within Java's bounds (ConsumeMessageOrderlyService.submitConsumeRequestLater)."""
    return -1 if suspend_ms < 0 else min(max(suspend_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


def _with_tries(data: bytes, positions: Sequence[int], tried: Sequence[int]) -> bytes:
    """The records with the attempts that were made here added to their reconsumeTimes, as Java's orderly service does."""
    if not any(tried):
        return data
    changed = bytearray(data)
    for position, times in zip(positions, tried, strict=False):
        sysflag = _SYSFLAG.unpack_from(changed, position)[0]
        at = position + _RECONSUME_TIMES_V4
        at += _V6_MORE * (bool(sysflag & SYSFLAG_BORN_HOST_V6) + bool(sysflag & SYSFLAG_STORE_HOST_V6))
        stored = _RECONSUME_TIMES.unpack_from(changed, at)[0]
        _RECONSUME_TIMES.pack_into(changed, at, stored + times)
    return bytes(changed)
