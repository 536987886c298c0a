"""A scripted worker that keeps an order, as workers/ordered.py does: hand-overs of lanes, give-backs, commits, keys."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.stored import record_info, walk
from rocketcrew.supervisor.core.actions import Classify, Dispatch, DispatchOrdered
from rocketcrew.supervisor.core.blame import InHand
from rocketcrew.workers.cells import KEYS_OF, RECALLED, STATE

from .coroner import Call
from .disk import Segment
from .script import fate, has_deadly_key, number_of
from .worker import SimWorker, Work
from .world import Violation, World

if TYPE_CHECKING:
    from .member import SimMember


class OrderedSimWorker(SimWorker):
    """See the module's text; planted bugs replace single steps of it."""

    def __init__(
        self, world: World, member: SimMember, worker_id: str, salvage_of: list[str], salvage: list[Segment]
    ) -> None:
        super().__init__(world, member, worker_id, salvage_of, salvage)
        self.group: deque[tuple[Work, int, tuple[int, ...]]] = deque()
        """What is left of the dispatch: chunks, their lanes, and how often their first messages were tried."""
        self.start_before = float("inf")
        self.dispatches = 0
        """That came so far."""
        self.asked: Classify | None = None
        """The question that it works on."""
        self.lane = 0
        self.tried: tuple[int, ...] = ()
        self.rows_of_it = 0
        """Rows of the message that has just succeeded."""
        self.committed: dict[int, int] = {}
        """By chunk: how many of its messages are committed, where the handler does that by itself."""

    # --- packets ------------------------------------------------------------------------------------------------

    def other(self, message: object) -> None:
        """A packet that is neither chunk nor seal nor stop."""
        if isinstance(message, OrderedPacket):
            self.start_before, self.handed_ms = message.start_before, message.sent_ms
            self.dispatches += 1
            self.group.extend(message.works)
            self._next()
        elif isinstance(message, Classify):
            self._flush()
            self.asked = message
            self.world.after(self.world.random.random() * 3, self._classify, message)

    def _classify(self, question: Classify) -> None:
        if not self.alive:
            return
        if self.stalled:
            self.world.after(20, self._classify, question)
            return
        data = bytes(self.member.view[question.start : question.end])
        try:
            positions, offsets = walk(data)
        except ProtocolError:
            positions, offsets = [], []  # its queue was taken away meanwhile, and the bytes are somebody else's
        for index, offset in enumerate(offsets):
            if self._dies_over(data[positions[index] : positions[index + 1]]):
                self.key_in_hand = InHand(KEYS_OF + question.handle, offset, offset, 1)
                self.crashed = True
                self.die()
                return
        self.asked = None
        keys = [self.member.broker.key_in(data[positions[i] : positions[i + 1]]) for i in range(len(offsets))]
        self.say(self.member.pool.classified, self, question.handle, (keys + [None] * question.count)[: question.count])
        self.world.after(0, self._next)

    def _dies_over(self, record: bytes) -> bool:
        info = record_info(record)
        return has_deadly_key(number_of(record[info.body_start : info.body_start + 8]), self.member.script)

    def may_idle(self) -> None:
        """Not while it owes keys of a queue that is there: that queue would wait for ever."""
        owed = [self.asked, *self.inbox]
        handles = {each.handle for each in owed if isinstance(each, Classify)}
        if self.member.alive and handles & self.member.core.state.queues.keys():
            raise Violation(f"{self.worker_id} stands still and owes keys of {handles}, but is not busy")

    def _next(self) -> None:
        if not self.alive or self.stalled or self.work is not None or self.asked is not None:
            return
        if self.group:
            work, self.lane, self.tried = self.group.popleft()
            self._begin(work)
            return
        if self.world.calm and not self.inbox and not self.member.script.auto_commit:
            self._commit_all(self.unreported)  # nothing will come that could: the end of the world would not be at rest
        super()._next()

    # --- one message after the other ----------------------------------------------------------------------------

    def too_late(self) -> bool:
        return self.recalled() or self.world.now >= self.start_before

    def recalled(self) -> bool:
        return self.dispatches <= self.cell[RECALLED]

    def _run_one(self) -> None:
        work = self.work
        assert work is not None
        if self.too_late():
            why = "a queue leaves" if self.recalled() else "its lock may be over"
            self.world.note(f"a message was given back: {why}")
            if self.recalled() and self.member.script.is_large(work.count):
                self.world.note(f"{self.member.script.order}: a large chunk was recalled")
            self._end(work, len(work.results), 0, 0)
            return
        self.member.order.begins(self, (work.mq.topic, work.mq.queue_id), work.offsets[len(work.results)])
        super()._run_one()

    def tried_here(self, index: int) -> int:
        return self.tried[index] if index < len(self.tried) else 0

    def _set_up(self) -> None:
        if self.alive and self.member.script.auto_commit:
            self.unreported_cell.offer()
        super()._set_up()

    def _ran_one(self, work: Work) -> None:
        super()._ran_one(work)
        self.unreported_cell.hold(work.chunk_id, len(work.results) - 1)

    def _ran(self, work: Work, call: Call) -> None:
        if not self.alive or self.work is not work or self.call is not call:
            return
        self.call = None
        self.member.coroner.over(self)
        order, key = self.member.order, (work.mq.topic, work.mq.queue_id)
        index = len(work.results)
        info = record_info(work.data, work.positions[index], work.positions[index + 1])
        number = number_of(work.data[info.body_start : info.body_start + 8])
        times = info.reconsume_times + self.tried_here(index)
        failed, rows = fate(number, times, self.world.random, self.member.script)
        order.ends(self, key, work.offsets[index], handled=failed is None)
        if failed is not None:
            self.world.note("an ordered message failed")
            self.after_failure(work, index, failed)
            return
        if not self.member.script.auto_commit and self._commits(work, index, rows):
            return
        self.rows_of_it = rows
        self._ran_one(work)
        self._go_on(work)

    def fate_of(self, work: Work, index: int, number: int, times: int) -> tuple[int | None, int]:
        """It succeeded; without rows it is finished as soon as it counts."""
        del number, times
        if self.member.script.auto_commit:
            self._count_without_rows(work, index, self.rows_of_it)
        return None, self.rows_of_it

    def _count_without_rows(self, work: Work, index: int, rows: int) -> None:
        if not rows:
            self.member.truth.done_without_rows((work.mq.topic, work.mq.queue_id), work.offsets[index])

    def after_failure(self, work: Work, index: int, level: int) -> None:
        """It comes back, and everything after it in its lane."""
        self._end(work, index, 1, min(level, 0))

    def _end(self, work: Work, start: int, failed: int, level: int) -> None:
        """Give back `[start, count)` of the chunk, and the chunks after it in its lane (or all, when it is too late)."""
        self.work = None
        self.cell[STATE] = 0
        self._flush()
        if not self.alive:
            return
        back = [(work, start, failed)]
        late = not failed and self.too_late()
        back += [(other, 0, 0) for other, lane, _ in self.group if late or lane == self.lane]
        self.group = deque(item for item in self.group if not late and item[1] != self.lane)
        for other, at, tried in back:
            self.give_back(other, at, tried, level if tried else 0)
        self.world.after(0, self._next)

    def give_back(self, work: Work, start: int, failed: int, level: int, suspend_ms: int = 0) -> None:
        wait = (20 + self.world.random.randrange(60)) if failed else suspend_ms
        work.count = len(work.results)
        if work.reported >= work.count and work in self.unreported:
            self.unreported.remove(work)
        self.say(self.member.pool.returned, self, work.chunk_id, start, failed, level, wait)

    # --- commits of the handler's own -----------------------------------------------------------------------------

    def _commits(self, work: Work, index: int, rows: int) -> bool:
        """Commit or roll back by chance; True when the chunk ended by a rollback."""
        draw = self.world.random.random()
        if work.offsets[index] + 1 >= self.member.broker.max_offset((work.mq.topic, work.mq.queue_id)):
            draw = 0.0  # the newest message: nothing would come that could commit it
        mine = [other for other in self.unreported if other.mq == work.mq]
        if draw < 0.5:
            self.world.note("a handler committed")
            self._commit_all(mine)
            self.committed[work.chunk_id] = index + 1
            self._count_without_rows(work, index, rows)
        elif draw < 0.56:
            self.world.note("a handler rolled back")
            self._roll_back(work, index, mine)
            return True
        return False

    def _commit_all(self, works: list[Work]) -> None:
        for work in works:
            for at in range(self.committed.get(work.chunk_id, 0), len(work.results)):
                self._count_without_rows(work, at, work.results[at][1])
            self.committed[work.chunk_id] = len(work.results)

    def _roll_back(self, work: Work, index: int, mine: list[Work]) -> None:
        key = (work.mq.topic, work.mq.queue_id)
        self.member.order.undone(self, key, work.offsets[index])
        self.work = None
        self.cell[STATE] = 0
        self._flush()
        if not self.alive:
            return
        for other in mine:
            at = self.committed.get(other.chunk_id, 0)
            if at == other.count:
                continue  # committed as a whole, and reported just now
            for offset in other.offsets[at : len(other.results)]:
                self.member.order.undone(self, key, offset)
            del other.results[at:]
            self.give_back(other, at, 0, 0, 20 if other is work else 0)
        self.world.after(0, self._next)

    def may_report(self, work: Work) -> int:
        if self.member.script.auto_commit:
            return len(work.results)
        return min(len(work.results), self.committed.get(work.chunk_id, 0))

    def finished_work(self, work: Work) -> None:
        """All of it ran: what is not committed is reported."""
        if not self.member.script.auto_commit and self.may_report(work) < work.count:
            self._flush()
            if self.alive:
                self.say(self.member.pool.consumed, self, work.chunk_id)

    # --- what a death undoes ------------------------------------------------------------------------------------

    def is_told(self, work: Work, start: int, end: int) -> None:
        for offset in work.offsets[start:end]:
            self.member.order.told(self, (work.mq.topic, work.mq.queue_id), offset)

    def die(self) -> None:
        if self.alive:
            self.member.order.died(self)
        super().die()


class OrderedPacket:
    """A dispatch on its way: its content is read when it is sent."""

    def __init__(self, action: DispatchOrdered, sent_ms: float) -> None:
        self.sent_ms = sent_ms
        self.start_before = action.start_before
        self.works = [(Work(Dispatch(action.worker_id, item.chunk, item.mq, item.chunk.handle)), item.lane, item.tried)
                      for item in action.chunks]  # fmt: skip
