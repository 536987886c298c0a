"""A scripted worker process: boots (and salvages), runs chunks message by message, writes rows, reports, seals, dies.

It keeps the real one's promises (workers/worker.py): rows are written before their outcome is sent, outcomes before the
seal of their rows; what it sent before its death is still read. It looks at the bytes it was given before and after the
work: they must be those of the messages, and must not change under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import record_info, walk
from rocketcrew.supervisor.core.actions import Dispatch
from rocketcrew.supervisor.core.blame import InHand
from rocketcrew.workers.cells import CHUNK_ID, CLAIM, STATE, UNREPORTED, private_cell
from rocketcrew.workers.claims import RECORD_BITS
from rocketcrew.workers.failures import asked
from rocketcrew.workers.unreported import Unreported

from .disk import Segment
from .reporting import ByChance, WhenDue
from .script import MAX_RECONSUME_TIMES, ROWS_MAX, SLOW_IN_ORDER_MS, doom, fate, number_of, spoils_its_worker
from .world import Violation, World

if TYPE_CHECKING:
    from .coroner import Call
    from .member import SimMember


LATE_MS = 60
SEALING_MS = 20
SEAL, SEAL_MUCH = "seal", "seal, as much waits for it"
"""Packets; a worker does the same for both."""
STALL_LIMIT_MS = 250


class Work:
    """One chunk in the worker's hands: what the packet said, and what became of each message."""

    def __init__(self, action: Dispatch) -> None:
        chunk = action.chunk
        self.chunk_id = chunk.chunk_id
        self.handle = chunk.handle
        self.mq = action.mq
        self.journalled = action.journalled
        self.window_open = action.window_open
        self.start, self.end = chunk.positions[0], chunk.positions[-1]
        self.count = chunk.count
        self.expected = list(chunk.offsets)
        self.data = b""
        self.positions: list[int] = []
        self.offsets: list[int] = []
        self.reported = 0
        self.results: list[tuple[int | None, int]] = []
        """(delay level of a failure or None, rows) of messages run so far."""


class SimWorker:
    """One process. `salvage` are segments that dead workers left, looked at before it is ready."""

    def __init__(
        self, world: World, member: SimMember, worker_id: str, salvage_of: list[str], salvage: list[Segment]
    ) -> None:
        self.world = world
        self.member = member
        self.worker_id = worker_id
        self.salvage_of = salvage_of
        self.salvage = salvage
        self.alive = True
        self.ready = False
        self.stopping = False
        self.retires: str | None = None
        """The worker that goes when this one is ready."""
        self.in_pipe: deque[Work | str | object] = deque()
        self.inbox: deque[Work | str | object] = deque()
        self.work: Work | None = None
        self.cell = private_cell()
        self.claims = member.parts.claims_class(self.cell, self._waits)
        self.unreported_cell = Unreported(self.cell)
        self.heard = 0
        """Reports of it that the supervisor has read."""
        self.sent = self._handed = 0
        """Chunks that were sent to it, and that it got."""
        self.asleep = False
        """Between its claim and its look whether it was asked."""
        self.call: Call | None = None
        """The handler call under way."""
        self.asked_beside: Call | None = None
        """The call beside which it was asked last to report."""
        self.handed_ms = 0.0
        """When the supervisor sent what it works on; kept in order only."""
        self.key_in_hand: InHand | None = None
        """The message whose key it was asked for when it died."""
        self.retired = False
        """It was asked to leave."""
        self.condemned: Call | None = None
        """The call that was over its hard limit when the supervisor looked: the worker is being killed for it."""
        self.crashed = False
        self.spoilt = False
        """It crashed between two calls, or stood still there until it was ended."""
        self.stalled = False
        """Its loop is stopped; calls under way and seals go on."""
        self.ended = False
        """The supervisor kills it for that."""
        self.by_machine = False
        """It was not the only one then."""
        self.unattended = False
        """Its forkserver died, and took it along."""
        self.unreported: list[Work] = []
        self.segment: Segment | None = None
        self.sealing: deque[Segment] = deque()
        """Ended, and on their way to be sealed beside the work."""
        self.seq = 0
        self.dies_at: str | None = None
        """A step inside of a flush or a seal at which it is killed."""
        self.said: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Packets that are on their way to the supervisor."""
        self.reporting = (WhenDue if member.script.holds_reports else ByChance)(self)
        self.rows_max = ROWS_MAX if member.script.rows_always else world.random.choice([3, 20, 1000])
        world.happened["workers"] += 1
        world.after(2 + world.random.random() * 60, self._boot)

    # --- talking ------------------------------------------------------------------------------------------------

    def say(self, what: Callable[..., None], *args: Any) -> None:
        self.said.append((what, args))
        late = self.member.script.late_links
        late_ms = self.world.random.random() * LATE_MS if late and self.world.chance(late) else 0.0
        self.world.after(0.02 + self.world.random.random() * 0.4 + late_ms, self._heard, self.said[-1])

    def _heard(self, packet: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
        """Packets are read in order, all that stand before this one too."""
        if packet not in self.said:
            self.world.steps -= 1  # nothing happened
            return
        while self.said:
            first = self.said.popleft()
            self.member.heard(first[0], *first[1])
            if first is packet:
                return

    def read_all(self) -> None:
        """The supervisor reads what the dead worker had sent."""
        while self.said:
            what, args = self.said.popleft()
            what(*args)

    def hear(self) -> None:
        """A packet of the supervisor arrives; they keep their order."""
        self.inbox.append(self.in_pipe.popleft())
        if self.alive and self.work is None and self.ready:
            self._next()

    # --- life ---------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        if not self.alive:
            return
        for segment in self.salvage:
            self.member.pool.salvage_segment(self, segment)
        self.salvage = []
        self.say(self.member.pool.salvage_done, self)
        self.world.after(self.world.random.choice([0, 0, 40]) * self.world.random.random(), self._set_up)

    def _set_up(self) -> None:
        if not self.alive:
            return
        self.ready = True
        if self.member.script.order == "concurrent":
            self.claims.offer()
            self.unreported_cell.offer()
        self.say(self.member.pool.is_ready, self)
        self.world.after(1, self._next)

    def die(self) -> None:
        """Kill -9. What it was doing is lost, what it wrote and sent is not."""
        if not self.alive:
            return
        self.alive = False
        if self.sealing:
            self.world.note("a worker died while its segment was being sealed")
        if not self.ready:
            self.world.note("a worker died while it booted")
        elif self.work is None:
            self.world.note("a worker died idle")
        elif self.work.reported < self.work.count:
            self.world.note("a worker died with messages in hand")
        self.world.after(self.world.random.random() * 4, self.member.event, self.member.pool.ended, self)

    def stands_still(self, ms: float) -> None:
        """For so long, unless it is ended."""
        self.stalled = True
        self.world.after(STALL_LIMIT_MS, self._looked_at)
        self.world.after(ms, self.goes_on)

    def _looked_at(self) -> None:
        """As supervisor/core/time_limits.py: what is busy outside of a call and does not move is ended."""
        if not self.alive or not self.stalled:
            return
        if self.call is None and self.member.alive:
            if self.worker_id in self.member.core.busy_workers():
                others = [each for each in self.member.pool.workers.values() if each is not self]
                self.ended, self.by_machine = True, any(each.stalled and each.call is None for each in others)
                self.die()
                return
            self.may_idle()
        self.world.after(STALL_LIMIT_MS, self._looked_at)

    def may_idle(self) -> None:
        """The supervisor takes it for idle."""

    def goes_on(self) -> None:
        """It moves again, where it stopped."""
        if not self.alive or not self.stalled:
            return
        self.stalled = False
        self.world.note("a worker that stood still went on")
        if self.work is None:
            self._next()
        elif self.call is None and not self.asleep:
            self._go_on(self.work)

    # --- running ------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """The next packet; without one, report and, when it stays idle, seal."""
        if not self.alive or self.stalled or self.work is not None:
            return
        if not self.inbox:
            if holds_ms := self.reporting.holds_ms():
                self.world.after(holds_ms, self._next)
                return
            self._flush()
            if self.alive and self.segment is not None:
                self.world.after(80, self._idle, self.segment, len(self.segment.finished))
            return
        message = self.inbox.popleft()
        if isinstance(message, Work):
            self._handed += 1
            self.reporting.window_open = message.window_open
            if not self.claims.handed() or not self._begin(message):
                self.world.after(0, self._next)
            return
        if not isinstance(message, str):
            self.other(message)
            return
        self._flush()
        self._seal("much waits for it" if message == SEAL_MUCH else "something leaves")
        if message == "stop":
            self._leave()
            return
        self.world.after(0, self._next)

    def _leave(self) -> None:
        """When everything is sealed."""
        if self.alive and (self.sealing or self.stalled):
            self.world.after(20 if self.stalled else 1, self._leave)
        elif self.alive:
            self.alive = False
            self.stopping = True
            self.world.after(0.5, self.member.event, self.member.pool.ended, self)

    def _idle(self, segment: Segment, finished: int) -> None:
        """Nothing was written for a while."""
        if self.alive and self.segment is segment and len(segment.finished) == finished and self.work is None:
            if self.stalled:
                self.world.after(80, self._idle, segment, finished)
            else:
                self._seal("idle")

    def _begin(self, work: Work) -> bool:
        """Copy the records and run the first; False: they were reclaimed."""
        work.data = bytes(self.member.view[work.start : work.end])
        if not self.claims.mine():
            return False
        try:
            work.positions, work.offsets = walk(work.data)
        except ProtocolError as error:
            raise Violation(f"chunk {work.chunk_id} of {work.mq} should hold {work.expected}: {error}") from error
        if len(work.offsets) != work.count or work.offsets != work.expected:
            raise Violation(f"chunk {work.chunk_id} of {work.mq} should hold {work.expected}, it holds {work.offsets}")
        self.work = work
        self.reporting.begins()
        self.unreported.append(work)
        self.cell[UNREPORTED] = 0
        if work.journalled and self.member.script.order == "concurrent" and self.member.script.batch == 1:
            self.unreported_cell.begin(work.offsets[0])
        self._run_one()
        return True

    def _run_one(self) -> None:
        """Claim the messages of the next call of the chunk: one, or a batch."""
        work = self.work
        assert work is not None
        upto = min(len(work.results) + self.member.script.batch, work.count)
        if self.member.script.order == "concurrent" and self.world.chance(0.03):
            self.cell[CLAIM] = self._handed << RECORD_BITS | upto
            self.asleep = True
            self.world.after(self.world.random.random() * 60, self._claim, work, upto)
        else:
            self._claim(work, upto)

    def _claim(self, work: Work, upto: int) -> None:
        """It looks whether it was asked; then the call begins, or the chunk is over for it."""
        if not self.alive:
            return
        if self.stalled:
            self.world.after(20, self._claim, work, upto)
            return
        self.asleep = False
        if self.claims.claim(upto):
            self._call(work, upto)
            return
        self.world.note("a worker claimed what was taken back")
        work.count = len(work.results)
        self._over(work)

    def _waits(self, _seconds: float) -> None:
        raise Violation(f"{self.worker_id} waits for an answer, which is there as soon as it is asked")

    def _call(self, work: Work, upto: int) -> None:
        index, script = len(work.results), self.member.script
        count = upto - index
        self.member.pool.may_begin(self)
        for at in range(index, index + count):
            self._runs_nowhere_else(work, at)
            self.member.truth.began((work.mq.topic, work.mq.queue_id), work.offsets[at])
        random = self.world.random
        duration = random.expovariate(1.0) * script.call_ms
        if random.random() < self.member.script.slow and not self.world.calm:
            longest = (
                [30, 200, 600, 1_500, 4_000] if self.member.script.order == "concurrent" else [30, SLOW_IN_ORDER_MS]
            )
            duration = random.choice(longest) * random.random()
            self.world.note("a slow message")
        self.call = self.member.coroner.begin(self, work, index, count)
        self.cell[STATE] = 0
        self.cell[CHUNK_ID] = work.chunk_id
        self.cell[STATE] = work.offsets[index] + 1
        attempt = record_info(work.data, work.positions[index], work.positions[index + 1]).reconsume_times
        if attempt > MAX_RECONSUME_TIMES:
            raise Violation(f"{work.mq} {work.offsets[index]} runs once more after its attempts were used up")
        attempt += self.tried_here(index)
        end = doom(list(self.call.numbers.values()), attempt, script, self.member.coroner.cost)
        if end == "dies":
            self.world.after(duration * random.random(), self._crash, self.call)
        elif end == "ends all":
            self.world.after(duration * random.random(), self._end_all, self.call)
        elif end != "hangs":
            self.world.after(duration, self._ran, work, self.call)
        if script.hard_limit_ms:
            self.world.after(script.hard_limit_ms, self._over_limit, self.call)

    def _runs_nowhere_else(self, work: Work, index: int) -> None:
        """Of one assignment, a message is in the hands of one living worker at a time."""
        for other in self.member.pool.workers.values():
            if other is self or not other.alive or other.work is None or other.call is None:
                continue
            if other.work.handle == work.handle and work.offsets[index] in other.call.numbers:
                raise Violation(f"{work.mq} {work.offsets[index]} runs at {self.worker_id} and at {other.worker_id}")

    def _crash(self, call: Call) -> None:
        """The handler ends its process."""
        if self.alive and self.call is call:
            self.crashed = True
            self.die()

    def _end_all(self, call: Call) -> None:
        """The handler ends its whole run, the supervisor too."""
        if self.alive and self.call is call and self.member.alive:
            self.member.coroner.kills_the_run(call)
            self.member.die()

    def _over_limit(self, call: Call) -> None:
        """The supervisor sees it and kills; the call may end before that comes about, and another one begin."""
        if self.alive and self.call is call:
            self.condemned = call
            self.world.after(self.world.random.random() * 5, self.die)

    def _ran(self, work: Work, call: Call) -> None:
        if not self.alive or self.work is not work or self.call is not call:
            return
        self.call = None
        self.member.coroner.over(self)
        for _ in call.numbers:
            self._ran_one(work)
        self._go_on(work)

    def _ran_one(self, work: Work) -> None:
        index = len(work.results)
        info = record_info(work.data, work.positions[index], work.positions[index + 1])
        failed, rows = self.fate_of(work, index, _number(work, index), info.reconsume_times)
        work.results.append((failed, rows))
        if failed is not None or rows:
            self.unreported_cell.hold(work.chunk_id, index)

    def _go_on(self, work: Work) -> None:
        if self.stalled:
            return
        if len(work.results) == work.count:
            self._check_bytes(work)
            self._over(work)
            return
        if self.reporting.is_due(work):
            self._flush()
        if self.alive:
            self._run_one()

    def _check_bytes(self, work: Work) -> None:
        now = bytes(self.member.view[work.start : work.end])
        # A failed message that no broker took back runs elsewhere meanwhile, with one attempt more in its record.
        kept = [at for at, (delay_level, _) in enumerate(work.results) if delay_level is None]
        spans = [slice(work.positions[at], work.positions[at + 1]) for at in kept]
        if any(now[span] != work.data[span] for span in spans):
            raise Violation(f"the bytes of chunk {work.chunk_id} changed while {self.worker_id} had it")

    def _over(self, work: Work) -> None:
        """It has nothing more of the chunk."""
        self.work = None
        self.cell[STATE] = 0
        if self.reporting.is_due(work):
            self._flush()
        self.unreported = [work for work in self.unreported if work.reported < work.count]
        if self.alive:
            self.finished_work(work)
            self._next()

    def fate_of(self, work: Work, index: int, number: int, times: int) -> tuple[int | None, int]:
        """What the handler makes of the message."""
        failed, rows = fate(number, times, self.world.random, self.member.script)
        if failed is None and not rows:
            self.member.truth.done_without_rows((work.mq.topic, work.mq.queue_id), work.offsets[index])
        return failed, rows

    def tried_here(self, index: int) -> int:
        """How often that message of the chunk was tried here and not sent back."""
        del index
        return 0

    def finished_work(self, work: Work) -> None:
        """All of the chunk ran."""

    def other(self, message: object) -> None:
        """A packet that only an ordered worker knows."""
        raise Violation(f"{self.worker_id} got {message}")

    def pending(self) -> list[Work]:
        """Chunks of which something may be reported and is not."""
        return [work for work in self.unreported if work.reported < self.may_report(work)]

    def may_report(self, work: Work) -> int:
        """How many messages of the chunk may be reported."""
        return len(work.results)

    def is_told(self, work: Work, start: int, end: int) -> None:
        """They are written, or reported."""

    # --- writing and reporting ----------------------------------------------------------------------------------

    def row_queue(self, work: Work, index: int) -> MessageQueue:
        """The queue that the rows' key names: the one that the record was pulled from."""
        del index
        return work.mq

    def _flush(self) -> None:
        """Rows first, then outcomes."""
        unreported = self.pending()
        if not unreported:
            return
        has_rows = [
            work for work in unreported if any(rows for _, rows in work.results[work.reported : self.may_report(work)])
        ]
        if has_rows and (self._spoilt(has_rows) or not self._write(unreported)):
            return
        for work in unreported:
            start, end = work.reported, self.may_report(work)
            work.reported = end
            if work is self.work:
                self.unreported_cell.cut(work.offsets[end] if end < work.count else None)
            self.is_told(work, start, end)
            failures = [
                (index, asked(level, "no"))
                for index in range(start, end)
                if (level := work.results[index][0]) is not None
            ]
            if end < work.count:
                self.world.note("a partial report")
            seq = self.seq if work in has_rows else 0
            self.say(self.member.pool.report, self, work, start, end - start, seq, failures)
        self.unreported_cell.sent(len(unreported))
        self.unreported = [work for work in self.unreported if work.reported < work.count]
        if self.segment is not None and sum(rows for _, _, rows in self.segment.rows) >= self.rows_max:
            self._seal("rows")

    def _spoilt(self, has_rows: list[Work]) -> bool:
        """Whether rows that are to be written end it. Beside a call the cell would name another message."""
        cost, script = self.member.coroner.cost, self.member.script
        ends = [
            spoils_its_worker(_number(work, index), script, cost)
            for work in has_rows
            for index, (failed, rows) in enumerate(work.results[: self.may_report(work)])
            if index >= work.reported and rows and failed is None
        ]
        end = next(filter(None, ends), "") if self.call is None else ""
        self.spoilt = bool(end)
        if end:
            self.world.note(f"a worker {end} between two calls")
            self.crashed, self.ended = end == "crashes", end == "stalls"
            self.die()
        return self.spoilt

    def beside(self) -> None:
        """It was asked to report beside its call, and the handler lets it."""
        if self.alive and self.call is not None and not self.stalled:
            self.world.note("a report beside a call")
            self._flush()

    def _write(self, unreported: list[Work]) -> bool:
        """Append one batch to the open segment; False when it was killed at it."""
        if self.segment is None:
            self.seq += 1
            self.segment = Segment(self.worker_id, self.seq)
            self.member.folder.open[self.segment.token] = self.segment
        if self.dies_at == "in a write":
            self.world.note("killed in the middle of a write")
            self.die()  # the torn batch is not whole, and as if it were not there
            return False
        for work in unreported:
            self.is_told(work, work.reported, self.may_report(work))
            for index in range(work.reported, self.may_report(work)):
                failed, rows = work.results[index]
                if failed is None:
                    mq = self.row_queue(work, index)
                    self.segment.finished.append((mq, work.offsets[index]))
                    if rows:
                        self.segment.rows.append((mq, work.offsets[index], rows))
        self.segment.batches.append((len(self.segment.rows), len(self.segment.finished)))
        if self.dies_at == "behind a write":
            self.world.note("killed between rows and outcome")
            self.die()
            return False
        return True

    def _seal(self, why: str) -> None:
        segment = self.segment
        if segment is None or not self.alive:
            return
        self.world.happened["sealed: " + why] += 1
        self.world.happened["rows sealed"] += len(segment.rows)
        self.segment = None
        self.sealing.append(segment)
        self.world.after(self.world.random.random() * SEALING_MS, self._sealed)

    def _sealed(self) -> None:
        """One after the other, in their order."""
        if not self.alive:
            return
        segment = self.sealing.popleft()
        self.member.folder.seal(segment, self.member.truth)
        if self.dies_at == "behind a rename":
            self.world.note("killed between rename and report")
            self.die()
            return
        self.say(self.member.pool.sealed, self, segment)


def _number(work: Work, index: int) -> int:
    info = record_info(work.data, work.positions[index], work.positions[index + 1])
    return number_of(work.data[info.body_start : info.body_start + 8])
