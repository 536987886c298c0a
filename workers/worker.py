"""One worker's loop: packets in, chunks run, rows to disk, then reports out. No timer; two threads beside it at most: one
reports during a call (reporter.py), one seals (sealing.py).

Order of every flush, which all promises rest on: rows are appended to the open segment first, and only then are reports
sent. A worker killed between the two leaves rows without a report; salvage.py finds them and they count as done. The
other way round an offset could pass a row that exists nowhere.

Reports are flushed as soon as no packet waits (the supervisor may be idle for want of them), and some flush intervals after
the first of what they have while work goes on (runner.py). Where there are rows and the supervisor may send more before it
has a report (the window is open), they wait for others, at an idle worker for one interval, or until so many are kept that a
block is full. Segments are sealed by rows, bytes, idleness or age, on SEAL and on STOP, beside the work (sealing.py); after a
handler call longer than the idle limit the loop waits for it, because the next call may be as long and hold the interpreter's
lock. During a call `report_beside` does both, when the supervisor asks for it.

`step()` handles what lies there and returns, so tests drive a worker in their own process; `run()` is steps until STOP.
The end of the link raises LinkClosedError: the supervisor is gone, so nobody could take a report, and what is unsealed
is salvaged by its successor.
"""

from __future__ import annotations

import errno
import mmap
import time
from _thread import RLock, allocate_lock  # as they were before the handler's module: see own_thread.py
from collections.abc import Callable
from typing import Any, Final

from ..client.logs import get_logger
from ..conf.units import NS_PER_MS
from ..remoting.errors import ProtocolError
from .api import Handler
from .boot import WorkerBounds
from .cells import (
    BEATS,
    BETWEEN,
    BLOCKED_ERRNO,
    BLOCKED_NS,
    CONSUMED_DIRECTLY,
    KEYS_OF,
    LAST,
    RECORDS,
    SEAL_WANTED,
    STARTED_NS,
    STATE,
    TAKEN,
    CellView,
    private_cell,
)
from .classify import classify
from .descriptors import DescriptorWatch, free_descriptors
from .direct import DirectRunner, offset_of
from .failures import Failure
from .link import DescriptorsClosedError, LinkClosedError, WorkerLink
from .memory_watch import MemoryWatch
from .message import Message
from .ordered import OrderedRunner, OrderedWork
from .ordered_packets import (
    CLASSIFY,
    ORDERED,
    Returned,
    decode_classify,
    decode_ordered,
    encode_consumed,
    encode_keys,
    encode_returned,
)
from .packets import (
    CHUNK,
    CHUNK_HEAD_BYTES,
    DIRECT,
    FORGET,
    QUEUE,
    SEAL,
    STOP,
    Buffer,
    QueueInfo,
    decode_chunk,
    decode_direct,
    decode_forget,
    decode_queue,
    decode_stop,
    encode_directed,
    encode_reports,
    encode_sealed,
    encode_traces,
)
from .ranges import OffsetSets
from .reporter import Reporter
from .rows import RowBuffer
from .run import Run
from .runner import Place, Runner
from .sealing import Sealer, SegmentLostError
from .segment import SegmentWriter
from .watching import TraceLog

SEGMENT_RETRY_MS: Final = 250
"""Pause between two tries to write a segment; the supervisor's end is looked at as often."""
SEALING_LOOK_MS: Final = 5
"""How often an idle worker looks whether its segment is sealed by now."""
SEGMENT_LOG_EVERY: Final = 40
"""One log line per so many failed tries: every ten seconds."""


class WorkerLoop:
    """The loop. Construct with everything it needs; nothing is read from the outside."""

    def __init__(
        self,
        link: WorkerLink,
        handler: Handler,
        *,
        bounds: WorkerBounds,
        slab: mmap.mmap | None,
        rows: RowBuffer[Place] | None,
        segments: SegmentWriter | None,
        sealer: Sealer | None = None,
        clock: Callable[[], int],
        cell: CellView | None = None,
        traces: TraceLog | None = None,
        memory: MemoryWatch | None = None,
        log: Any = None,
        runner: type[Runner] = OrderedRunner,
    ) -> None:
        """`rows`, `segments` and `sealer` come together, None = results are off. `clock` is monotonic, in ns."""
        self._traces = traces
        self._link = link
        self._bounds = bounds
        self._slab = slab
        self._segments = segments
        self._sealer = sealer
        self._clock = clock
        self._log = log if log is not None else get_logger()
        self._queues: dict[int, QueueInfo] = {}
        self._cell = private_cell() if cell is None else cell
        self._memory = memory
        self._descriptors = DescriptorWatch(free_descriptors, link.send, self._log)
        self._handled = 0
        """Messages that were reported and had not failed."""
        self._stopped = False
        self._unsent: list[Run] = []
        """What is being reported."""
        self._idle = False
        """The last step found no packet, and left nothing unreported."""
        if rows is not None:
            rows.on_converted = self._beat
        self._handler = handler
        self._runner = runner(
            handler,
            rows,
            cell=self._cell,
            bounds=bounds,
            clock=clock,
            flush=self.flush,
            can_wait=self._reports_can_wait,
            few=self._descriptors.few,
            log=self._log,
        )
        self._direct = DirectRunner(handler, rows, clock, self._log)
        self._broken: BaseException | None = None
        """What went wrong beside a call; the loop raises it."""
        self._sealed_beside = 0
        """Seals that were asked for in the cell, and whose packets were not read yet."""
        self._on: dict[int, Callable[[Buffer], None]] = {
            QUEUE: self._on_queue,
            FORGET: self._on_forget,
            CHUNK: self._on_chunk,
            SEAL: self._on_seal,
            STOP: self._on_stop,
            DIRECT: self._on_direct,
            ORDERED: self._on_ordered,
            CLASSIFY: self._on_classify,
        }

    def report_failures(self, to: Callable[[QueueInfo, Message | int, BaseException], None]) -> None:
        """`to` gets each failed message, or its queue offset, and its error."""
        self._runner.on_failure = to

    def run(self) -> None:
        """Until STOP. Raises LinkClosedError when the supervisor is gone."""
        while self.step():
            if self._idle:
                self._link.wait(self._sleep_ms())

    def step(self) -> bool:
        """Handle one packet, or do what is due when none waits. False after STOP. Never blocks for a packet."""
        self._runner.end_if_forked()
        self._beat()
        packet = self._link.receive()
        self._idle = packet is None
        if packet is None:
            if self._runner.pending and not self._holds():
                self.flush()
            self._seal_if_due()
            self._tell_sealed()
            return True
        on_packet = self._on.get(packet[0])
        if on_packet is None:
            raise ProtocolError(f"kind {packet[0]} is not for a worker", "packet from the supervisor")
        on_packet(packet)
        return not self._stopped

    def _beat(self) -> None:
        """The loop moves. Rows that the reporter's thread converts beside a call count as well: the loop may wait for it."""
        self._cell[BEATS] += 1

    def _holds(self) -> bool:
        """Rows wait for those of the messages that may come, up to the flush interval: large blocks cost much less a row."""
        rows = self._runner.rows
        return self._runner.window_open and rows is not None and bool(rows.kept) and self._clock() < self._runner.due_ns

    def _sleep_ms(self) -> int | None:
        """How long nothing needs to be done: until rows have waited for others long enough, the open segment for more rows,
        or one is sealed."""
        if self._sealer is not None and self._sealer.busy:
            return SEALING_LOOK_MS
        due_ns = None if self._segments is None else self._segments.seal_due_ns()
        if self._runner.pending:
            due_ns = self._runner.due_ns if due_ns is None else min(due_ns, self._runner.due_ns)
        return None if due_ns is None else max(0, (due_ns - self._clock()) // NS_PER_MS + 1)

    # --- packets ----------------------------------------------------------------------------------------------------

    def _on_queue(self, packet: Buffer) -> None:
        handle, queue = decode_queue(packet)
        self._queues[handle] = queue
        if isinstance(self._runner, OrderedRunner):
            self._runner.forget_queue(queue)

    def _on_forget(self, packet: Buffer) -> None:
        """Assignments that have ended; one of the same queue that came after them goes on."""
        ended = {queue for handle in decode_forget(packet) if (queue := self._queues.pop(handle, None)) is not None}
        if isinstance(self._runner, OrderedRunner):
            for queue in ended.difference(self._queues.values()):
                self._runner.forget_queue(queue)

    def _on_chunk(self, packet: Buffer) -> None:
        chunk_id, handle, offset, length, records, window_open, counts = decode_chunk(packet)
        runner = self._runner
        runner.window_open, runner.unreported.counts = window_open, counts
        if not runner.claims.handed():
            return
        queue = self._queues.get(handle)
        if queue is None:
            raise ProtocolError(f"chunk {chunk_id} is of queue handle {handle}, which is unknown", "CHUNK packet")
        if self._slab is None:
            data = bytes(packet[CHUNK_HEAD_BYTES:])
        else:
            data = self._slab[offset : offset + length]
        runner.run_chunk(chunk_id, queue, data, records)
        if self._segments is not None and runner.slowest_ns >= self._bounds.seal_idle_ms * NS_PER_MS:
            self.flush()
            self._seal(wait=True)

    def _on_direct(self, packet: Buffer) -> None:
        """For an administrator; what was finished before is reported first, for the call may take long."""
        self.flush()
        direct = decode_direct(packet)
        if self._slab is None:
            record = bytes(packet[direct.payload_at :])
        else:
            record = self._slab[direct.slab_offset : direct.slab_offset + direct.length]
        # In a call, as any other: what its worker is busy with shows, and its loop does not stand still for nothing.
        naming = self._runner.naming
        naming.chunk(CONSUMED_DIRECTLY, direct.queue)
        naming.record(offset_of(record))
        result = self._direct.run(direct.request, direct.queue, record)
        self._runner.end_if_forked()
        self._cell[STATE] = 0
        self._link.send(encode_directed(result))

    def _on_ordered(self, packet: Buffer) -> None:
        chunks, start_before_ns, at = decode_ordered(packet)
        works: list[OrderedWork] = []
        for chunk in chunks:
            queue = self._queues.get(chunk.handle)
            if queue is None:
                raise ProtocolError(
                    f"chunk {chunk.chunk_id} is of queue handle {chunk.handle}, unknown", "ORDERED packet"
                )
            data = self._data(packet, at, chunk.slab_offset, chunk.length)
            at += chunk.length
            works.append(OrderedWork(chunk.chunk_id, queue, data, chunk.records, chunk.lane, chunk.tried))
        runner = self._runner
        if not isinstance(runner, OrderedRunner):
            raise ProtocolError("calls of this handler run side by side", "ORDERED packet")
        answers = runner.run_ordered(works, start_before_ns, auto_commit=self._handler.auto_commit)
        if answers:
            # What came before must be known first, as an answer is about what is left; a failure before the worker leaves.
            self._report_all()
            for answer in answers:
                self._link.send(encode_returned(answer) if isinstance(answer, Returned) else encode_consumed(answer))
            self._leave_if_due()
        if self._segments is not None and self._runner.slowest_ns >= self._bounds.seal_idle_ms * NS_PER_MS:
            self.flush()
            self._seal(wait=True)

    def _data(self, packet: Buffer, at: int, slab_offset: int, length: int) -> bytes:
        """Bytes of the slab, or on a stream those at `at` of the packet."""
        if self._slab is None:
            return bytes(packet[at : at + length])
        return self._slab[slab_offset : slab_offset + length]

    def _on_classify(self, packet: Buffer) -> None:
        question, at = decode_classify(packet)
        queue, function = self._queues.get(question.handle), self._handler.key
        if queue is None or not callable(function):
            raise ProtocolError(
                f"queue handle {question.handle} is unknown, or there is no key function", "CLASSIFY packet"
            )
        if self._runner.pending:
            self.flush()  # the call may take long, or be the last
        data = self._data(packet, at, question.slab_offset, question.length)
        naming = self._runner.naming
        naming.chunk(KEYS_OF + question.handle, queue)

        def name(offset: int) -> None:
            self._runner.end_if_forked()
            naming.record(offset)

        digests = classify(function, queue, data, question.records, self._log, name)
        self._runner.end_if_forked()
        self._cell[STATE] = 0
        self._link.send(encode_keys(question.handle, digests))

    def _on_seal(self, _packet: Buffer) -> None:
        self.flush()
        with self._runner.lock:
            if self._sealed_beside:
                self._sealed_beside -= 1
            else:
                self._cell[SEAL_WANTED] = 0
                self._seal()

    def _on_stop(self, packet: Buffer) -> None:
        self._link.stop_by_ns = decode_stop(packet)
        self.flush()
        self._seal(wait=True)
        self._stopped = True

    def offer_back(self) -> None:
        """Before the first chunk: the supervisor can reclaim what is not started (claims.py)."""
        self._runner.claims.offer()

    def offer_reports(self) -> None:
        """Before the first chunk: what has ended can be read off the cell while a call goes on."""
        self._runner.unreported.offer()

    def report_when_asked(self) -> None:
        """Before the first chunk, with `offer_reports`: a thread reports while a call goes on, when it is asked to."""
        self._runner.on_hold = Reporter(self.report_beside, self._log).start

    # --- what goes out ----------------------------------------------------------------------------------------------

    @property
    def lock(self) -> RLock:
        """Held while finished messages are written and reported."""
        return self._runner.lock

    def forked(self) -> None:
        """In a child that the handler forked: it is no worker, and ends at its next step out of the handler."""
        self._runner.forked()

    def accuse(self, error: Exception) -> None:
        """The worker ends by this error between two calls. Name in the cell the messages that are not reported yet: one of
        them has spoilt it, and where nobody is to blame they would end workers for ever. A record that the cell names
        already was being looked at; that of closed descriptors is found out at once, so it is of the last chunk."""
        cell = self._cell
        if self._runner.is_fork or cell[STATE] not in (0, BETWEEN):
            return
        with self._runner.lock:  # the reporter's thread may be sending some of them
            runs = [run for run in (*self._unsent, *self._runner.take()) if run.offsets]
        if isinstance(error, DescriptorsClosedError):
            runs = [run for run in runs if run.chunk_id == runs[-1].chunk_id]
        if not runs:
            return
        first, last = runs[0], runs[-1]
        cell[STATE] = 0
        self._runner.naming.chunk(first.chunk_id, first.queue)
        cell[TAKEN] = 0
        cell[STARTED_NS] = self._clock()
        if any(run.chunk_id != first.chunk_id for run in runs):
            cell[STATE] = BETWEEN  # a cell has room for places in one chunk only: all that the worker has is suspected
            return
        end = last.start + last.records
        cell[RECORDS] = end - first.start
        cell[LAST] = first.offsets[end - 1]
        cell[STATE] = first.offsets[first.start] + 1

    def flush(self) -> None:
        """Rows to the segment, then reports to the supervisor. Raises DescriptorsClosedError before anything is written, and
        LeavingError after it."""
        self._report_all()
        self._leave_if_due()

    def _report_all(self) -> None:
        self._runner.end_if_forked()
        if self._broken is not None:
            raise self._broken
        lock = self._runner.own()
        try:
            self._check_descriptors()
            self._write_and_report()
            self._seal_if_due()
            self._tell_sealed()
        finally:
            lock.release()
        if self._traces is not None:
            for packet in encode_traces(self._traces.take()):
                self._link.send(packet)

    def _leave_if_due(self) -> None:
        """All is reported: end where the handler has left too few descriptors, or too little memory."""
        if self._runner.short:
            self._runner.judged(lacks=self._descriptors.in_vain(self._handled))
        if self._runner.look_due:
            self._descriptors(lambda: self._seal(wait=True), under_way=self._runner.under_way)
            self._runner.looked()
        if self._memory is not None:
            self._memory(lambda: self._seal(wait=True))

    def report_beside(self) -> float | None:
        """In the reporter's thread, while the handler runs: what ended before its call is written and reported, and sealed
        where that is due or wanted. Returns after how many seconds there may be more to do, None = when it is asked again."""
        with self._runner.lock:
            if self._runner.is_fork or self._stopped or self._broken is not None:
                return None
            try:
                self._check_descriptors()
                self._write_and_report(self._runner.cut_ended())
                if self._cell[SEAL_WANTED]:
                    self._cell[SEAL_WANTED] = 0
                    self._sealed_beside += 1
                    self._seal()
                self._seal_if_due()
                self._tell_sealed()
            except (LinkClosedError, DescriptorsClosedError):
                return None  # the loop sees it too, and ends
            except BaseException as error:  # noqa: BLE001  a worker that may have lost a report must not go on
                self._broken = error
                return None
            sleep_ms = self._sleep_ms()
        return None if sleep_ms is None else sleep_ms / 1_000

    def _reports_can_wait(self) -> bool:
        """No flush is needed for what the last call has done to the descriptors, for a want of them, for the memory, or for
        what went wrong beside the call."""
        if self._broken is not None:
            return False
        lock = self._runner.own()
        try:
            self._check_descriptors()
        except (DescriptorsClosedError, SegmentLostError):
            return False
        finally:
            lock.release()
        return not self._runner.lacks and (self._memory is None or not self._memory.wants())

    def _check_descriptors(self) -> None:
        """The lock is held: the reporter's thread may be writing. Raises DescriptorsClosedError, SegmentLostError."""
        self._link.check()
        if self._segments is not None:
            self._segments.check()

    def _write_and_report(self, messages: int | None = None) -> None:
        """What is finished, with the rows of so many messages (None: of all). The lock is held."""
        rows, segments = self._runner.rows, self._segments
        if rows is not None and segments is not None and rows.kept:  # not by their count, which may be behind
            batch, misfits = rows.take(messages)
            for place, error in misfits:
                self._runner.fail_kept(place, error)
            runs = self._unsent = self._runner.take()
            if batch is not None:
                finished = OffsetSets()
                for run in runs:
                    run.add_finished(finished)
                seq = segments.append(batch, finished.to_json(), self._clock())
                self._beat()
                for run in runs:
                    run.segment_seq = seq if run.has_rows else 0
        else:
            runs = self._unsent = self._runner.take()
        if runs:
            self._report(runs)

    def _report(self, runs: list[Run]) -> None:
        failures: list[tuple[int, Failure]] = []
        self._handled += sum(run.records - run.filtered - len(run.failures) for run in runs)
        if any(run.failures for run in runs):
            runs = [part for run in runs for part in run.parts()]
            failures = [found for run in runs for found in run.failures.items()]
        packets = encode_reports([run.report() for run in runs], failures)
        for packet in packets:
            self._link.send(packet)
        self._unsent = []
        self._runner.reported(len(packets))

    def _seal_if_due(self) -> None:
        with self._runner.lock:
            if self._segments is not None and self._segments.due(self._clock()):
                self._seal()

    def _seal(self, *, wait: bool = False) -> None:
        """Have sealed what is open; every report of rows in it was sent before. `wait` = all is sealed and reported."""
        if self._segments is None or self._sealer is None:
            return
        with self._runner.lock:
            detached = self._segments.detach()
            if detached is not None:
                self._sealer.add(*detached)
            if wait:
                self._sealer.finish()
            self._tell_sealed()

    def _tell_sealed(self) -> None:
        """Say what has been sealed since."""
        with self._runner.lock:
            if self._sealer is not None and self._sealer.busy:
                for sealed in self._sealer.take():
                    self._link.send(encode_sealed(sealed))


class BlockedWords:
    """What the cell says of segments that cannot be written. The loop and the sealing thread may both be in trouble: the
    words are of the one that has been for longer, until neither is."""

    def __init__(self, cell: CellView, clock: Callable[[], int]) -> None:
        self._cell = cell
        self._clock = clock
        self._lock = allocate_lock()
        self._troubles: dict[object, tuple[int, int]] = {}
        """Since when, and the error's number."""

    def tried(self, who: object, error: OSError) -> None:
        """It has failed once more."""
        with self._lock:
            since_ns = self._troubles[who][0] if who in self._troubles else self._clock()
            self._troubles[who] = since_ns, error.errno or errno.EIO
            self._write()

    def over(self, who: object) -> None:
        """It is written."""
        with self._lock:
            self._troubles.pop(who, None)
            self._write()

    def _write(self) -> None:
        since_ns, number = min(self._troubles.values(), default=(0, 0))
        self._cell[BLOCKED_ERRNO] = number
        self._cell[BLOCKED_NS] = since_ns


class SegmentPause:
    """What a worker does while its segment cannot be written: say so, wait, and end when the supervisor is gone.

    It says so in its log, and in its cell: it may read no packet meanwhile, and `status` and `why-lag` are to know why.
    """

    def __init__(
        self, link: WorkerLink | None, sleep: Callable[[int], None], log: Any, cell: CellView | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:  # fmt: skip
        """`sleep` takes milliseconds; `clock` is monotonic, in ns. Waiting for a disk is progress too: a beat in `cell`."""
        self._link = link
        self._cell = private_cell() if cell is None else cell
        self._sleep = sleep
        self._log = log
        self._words = BlockedWords(self._cell, clock)
        self._tries = 0

    def beside(self) -> SegmentPause:
        """The same for the thread that seals beside the loop. It shows in the same cell, but is no progress of the loop's;
        and whether the supervisor is gone, the loop looks."""
        pause = SegmentPause(None, self._sleep, self._log)
        pause._words = self._words
        return pause

    def __call__(self, what: str, error: OSError) -> None:
        """Raises LinkClosedError when nobody waits for the rows any more, DescriptorsClosedError when the handler has left no
        descriptor to write them with, also in the thread that seals."""
        if error.errno == errno.EMFILE:
            # Only its handler could close some, which does not run while the loop waits; the thread leaves it to the loop.
            raise DescriptorsClosedError(f"{what}: {error}: the handler leaves files or sockets open") from error
        if self._tries % SEGMENT_LOG_EVERY == 0:
            self._log.error("segment_write_failed", what=what, error=str(error), retry_ms=SEGMENT_RETRY_MS)
        self._tries += 1
        self._words.tried(self, error)
        self.waits()
        self._sleep(SEGMENT_RETRY_MS)

    def over(self) -> None:
        """It is written now; the next trouble is another one."""
        self._tries = 0
        self._words.over(self)

    def waits(self) -> None:
        """It is waiting. Raises LinkClosedError when nobody waits for the rows any more, DescriptorsClosedError when the
        handler has closed what it would wait for."""
        self._cell[BEATS] += 1
        if self._link is None:
            return
        self._link.check()
        if self._link.gone():
            raise LinkClosedError("supervisor link: closed while a segment could not be written")
