"""Who had what in hand when a worker died, known from outside; and whether the core charges the right one.

Beside the core's own bookkeeping this keeps: the cells (they outlive a member that is killed, as the real file does), which
record each death must be charged to, and how often each message has cost a worker its life. After each death exactly the
record that was alone in hand (or was taken last of a batch) may have been charged, with exactly one more; a record that is
charged runs with nothing beside it; one that has reached the limit never runs again, and is a dead letter. Of deaths for want
of memory the last one is charged only where nothing else was in hand in the whole member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import record_info
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand, Verdict, how_ended
from rocketcrew.supervisor.core.charges import Charges, Left
from rocketcrew.supervisor.core.lanes import CLASSIFY_DEATHS_MAX
from rocketcrew.supervisor.pool.post_mortem import between_calls

from .script import MAX_WORKER_DEATHS, number_of
from .world import Violation, World

if TYPE_CHECKING:
    from .member import SimMember
    from .worker import SimWorker, Work

Record = tuple[MessageQueue, int]


@dataclass(eq=False)
class Call:
    """One handler call under way: what its cell says, and which messages it has."""

    mq: MessageQueue
    in_hand: InHand
    numbers: dict[int, int]
    """Message number by queue offset."""
    began_ms: float


@dataclass
class Deaths:
    """What a whole world remembers of deaths; one for all members."""

    of_number: dict[int, int] = field(default_factory=dict[int, int])
    """How many deaths of workers each message is to blame for."""
    of_record: dict[tuple[str, int, int], int] = field(default_factory=dict[tuple[str, int, int], int])
    """The same of each record (topic, queue id, offset) that is not finished."""
    runs_of_number: dict[int, int] = field(default_factory=dict[int, int])
    """How many whole runs each message has killed since it was last a dead letter: a loss of power may take the journal's
    word of that end, and it is delivered once more."""
    one_ledger: bool = False
    """There is only one slot: no record may cost more lives than the limit, whatever is killed and started again."""
    _marks: set[tuple[Record, str]] = field(default_factory=set[tuple[Record, str]])

    def killed_a_run(self, number: int) -> None:
        """A message that ends its whole run each time comes to an end: noted at first, and then alone in hand and charged. As
        one of a batch it is suspected before that, and then alone."""
        self.runs_of_number[number] = self.runs_of_number.get(number, 0) + 1
        if self.one_ledger and self.runs_of_number[number] > 2 * MAX_WORKER_DEATHS + 1:
            raise Violation(f"message {number} has killed {self.runs_of_number[number]} runs")

    def charge(self, call: Call, offset: int) -> None:
        """Once a call, however often its cell is found."""
        mark = ((call.mq, offset), call.in_hand.mark)
        if mark in self._marks:
            return
        self._marks.add(mark)
        number, record = call.numbers[offset], (call.mq.topic, call.mq.queue_id, offset)
        self.of_number[number] = self.of_number.get(number, 0) + 1
        self.of_record[record] = self.of_record.get(record, 0) + 1
        if self.one_ledger and self.of_record[record] > MAX_WORKER_DEATHS:
            raise Violation(f"{record} has cost {self.of_record[record]} workers their lives")

    def spare(self, call: Call, offset: int) -> None:
        """It cost a life, too, but not one of those that are charged."""
        self._marks.add(((call.mq, offset), call.in_hand.mark))
        number = call.numbers[offset]
        self.of_number[number] = self.of_number.get(number, 0) + 1

    def knows(self, call: Call, offset: int) -> bool:
        """It was charged before, by a member that was killed then."""
        return ((call.mq, offset), call.in_hand.mark) in self._marks

    def lost(self, call: Call, noted: Mapping[Record, int]) -> None:
        """The run was killed in the step in which it learned of this death, before it noted more than `noted`; what it left
        does not say which message had cost a life: there were several, or it was between two calls."""
        for mark in [mark for mark in self._marks if mark[1] == call.in_hand.mark]:
            mq, offset = mark[0]
            record = (mq.topic, mq.queue_id, offset)
            if self.of_record.get(record, 0) > noted.get(mark[0], 0):
                self._marks.discard(mark)
                self.of_record[record] -= 1

    def finished(self, topic: str, queue_id: int, offset: int) -> None:
        self.of_record.pop((topic, queue_id, offset), None)

    def power_lost(self, charges: Charges) -> None:
        """Of what only the journal knew as finished, so that its charge was over, nobody knows anything."""
        for record in list(self.of_record):
            if not any(_place(charge.mq) == record[:2] and charge.offset == record[2] for charge in charges):
                del self.of_record[record]

    def reset(self, topic: str, queue_id: int) -> None:
        """An operator moved the offset of the queue: what is run again begins anew."""
        for record in [record for record in self.of_record if record[:2] == (topic, queue_id)]:
            del self.of_record[record]


def _place(mq: MessageQueue) -> tuple[str, int]:
    return mq.topic, mq.queue_id


class Coroner:
    """Of one member."""

    def __init__(self, member: SimMember, world: World, deaths: Deaths) -> None:
        self._member = member
        self._world = world
        self._deaths = deaths
        self.cells: dict[str, Call] = {}
        self._calls = 0
        self._key_deaths: dict[tuple[int, int], int] = {}
        """By question and offset."""

    def kills_the_run(self, call: Call) -> None:
        """Its handler is about to end everything, as one that takes all memory of a container does."""
        if (
            not self._member.core.state.stopping and not call.in_hand.waiting
        ):  # of calls that waited the cell names none
            self._world.note("a message killed its whole run")
            for number in call.numbers.values():
                self._deaths.killed_a_run(number)

    @property
    def cost(self) -> dict[int, int]:
        """Deaths by message number, of the whole world."""
        return self._deaths.of_number

    # --- cells --------------------------------------------------------------------------------------------------

    def begin(self, worker: SimWorker, work: Work, index: int, count: int) -> Call:
        """The worker names what it is about to run."""
        self._calls += 1
        numbers: dict[int, int] = {}
        for at in range(index, index + count):
            info = record_info(work.data, work.positions[at], work.positions[at + 1])
            numbers[work.offsets[at]] = number_of(work.data[info.body_start : info.body_start + 8])
        first, last = work.offsets[index], work.offsets[index + count - 1]
        taken = self._world.random.choice(list(numbers)) if count > 1 and self._world.chance(0.4) else None
        mark = f"{self._member.client_id}/{self._calls}"
        waiting = self._calls % 8 == 0 and self._member.script.order == "concurrent"  # as of a coroutine handler
        in_hand = InHand(work.chunk_id, first, last, count, taken, mark, waiting)
        call = Call(work.mq, in_hand, numbers, self._world.now_ms)
        self.cells[worker.worker_id] = call
        return call

    def over(self, worker: SimWorker) -> None:
        self.cells.pop(worker.worker_id, None)

    # --- deaths -------------------------------------------------------------------------------------------------

    def died(self, worker: SimWorker) -> None:
        """Tell the core, and look at whom it charges. What it noted is written before the cell is cleared."""
        core, call = self._member.core, self.cells.get(worker.worker_id) or self._between_calls(worker)
        end = how_ended(
            retired=worker.retired or worker.stopping,
            ours=worker.condemned is not None and worker.condemned is not call,
            stalled=worker.ended,
            by_machine=worker.by_machine,
            timed_out=worker.condemned is not None and worker.condemned is call,
            unattended=worker.unattended,
            by_itself=worker.crashed,
        )
        if call is not None or end in (End.OURS, End.STALLED, End.MACHINE):
            self._world.note(f"died: {end.value}")
        in_hand = call.in_hand if call is not None else worker.key_in_hand
        oom_kills = crc32(call.in_hand.mark.encode()) % 2 if end is End.CRASHED and call is not None else 0
        death = Death(end, in_hand, "SIGSEGV", {"pid": 1, "oom_kills": oom_kills})
        if worker.key_in_hand is not None and death.verdict is Verdict.CHARGED:
            self._died_over_a_key(worker.key_in_hand)
        expected = self._to_blame(worker.worker_id, call, death)
        before = self._counts()
        spared = self._to_spare(worker, expected, before) if death.for_memory else set[Record]()
        expected -= spared
        core.handle(ev.WorkerDied(worker.worker_id, death), self._world.now)
        changed = {record for record, count in self._counts().items() if count != before.get(record, 0)}
        if changed != expected:
            raise Violation(f"a death ({end.value}) with {call} in hand is charged to {changed}, not to {expected}")
        for mq, offset in expected:
            assert call is not None
            self._deaths.charge(replace(call, mq=mq), offset)
        for mq, offset in spared:
            assert call is not None
            self._deaths.spare(replace(call, mq=mq), offset)
        self._member.act()
        self.cells.pop(worker.worker_id, None)

    def _to_spare(self, worker: SimWorker, expected: set[Record], counts: dict[Record, int]) -> set[Record]:
        """The kernel killed for want of memory: who would be a dead letter for it has to have been alone in hand, which it is
        when the member was careful because of it."""
        state = self._member.core.state
        if any(chunk.origin is not None for chunk in state.workers[worker.worker_id].in_flight.values()):
            return set()  # what ran again here is sent back now
        last = {record for record in expected if counts.get(record, 0) == MAX_WORKER_DEATHS - 1}
        watched = {record for record in last if state.charges.watched(*record, MAX_WORKER_DEATHS)}
        if watched:
            self._world.note("the last death for want of memory, alone")
            beside = [name for name in self.cells if name != worker.worker_id]
            if beside:
                raise Violation(f"{watched} died for want of memory at last, with calls in hand of {beside}")
        if last - watched:
            self._world.note("a death for want of memory left an attempt alone")
        return last - watched

    def _died_over_a_key(self, in_hand: InHand) -> None:
        """Of one assignment, at most so often as the limit says."""
        self._world.note("a worker died over a key")
        asked = in_hand.chunk_id, in_hand.offset
        self._key_deaths[asked] = self._key_deaths.get(asked, 0) + 1
        if self._key_deaths[asked] > CLASSIFY_DEATHS_MAX:
            raise Violation(f"the key of {in_hand} has cost {self._key_deaths[asked]} workers their lives")

    def _between_calls(self, worker: SimWorker) -> Call | None:
        """What stands for the call of a worker that crashed, or was ended because it stood still, when it had none."""
        in_flight = self._member.core.state.workers[worker.worker_id].in_flight
        if not (worker.spoilt or worker.ended) or not in_flight:
            return None
        self._calls += 1
        call = Call(MessageQueue("", "", 0), between_calls(f"{self._member.client_id}/{self._calls}"), {}, 0)
        for chunk in in_flight.values():
            for at, offset in enumerate(chunk.offsets):
                record = bytes(self._member.view[chunk.positions[at] : chunk.positions[at + 1]])
                info = record_info(record, 0, len(record))
                call.numbers[offset] = number_of(record[info.body_start : info.body_start + 8])
        return call

    def _to_blame(self, worker_id: str, call: Call | None, death: Death) -> set[Record]:
        """Only of a queue that is still ours, and only where one record was in hand or was taken last; where several calls
        waited, or none ran, where the worker had nothing else, and that had been suspected before."""
        if call is None or death.verdict not in (Verdict.CHARGED, Verdict.SUSPECTED):
            return set()
        state = self._member.core.state
        if call.in_hand.waiting:
            self._world.note("a worker died while several calls waited")
            held = state.workers[worker_id].in_flight.values()
            left = [(each, offset) for each in held for offset in each.offsets[each.reported :]]
            return {
                (state.queues[chunk.handle].mq, offset)
                for chunk, offset in left
                if len(left) == 1 and chunk.alone and chunk.handle in state.queues
            }
        chunk = state.chunks.get(call.in_hand.chunk_id)
        if chunk is None or chunk.handle not in state.queues:
            return set()
        offset = call.in_hand.offset if call.in_hand.records == 1 else call.in_hand.taken
        self._world.note("a batch died" if call.in_hand.records > 1 else "a message died")
        return set() if offset is None else {(call.mq, offset)}

    def _counts(self) -> dict[Record, int]:
        return {(charge.mq, charge.offset): charge.deaths for charge in self._member.core.state.charges}

    def left(self, cells: dict[str, Call], charges: Charges) -> None:
        """The cells that a dead run left: only what was alone in hand may be charged."""
        left = [Left(call.mq, call.in_hand, {}) for call in cells.values()]
        for _ in left:
            self._world.note("a cell was left by a dead run")
        before = {(charge.mq, charge.offset): charge.deaths for charge in charges}
        self._member.parts.member_died(charges, left)
        more = {key for charge in charges if charge.deaths > before.get(key := (charge.mq, charge.offset), 0)}
        alone = list(cells.values()) if len(cells) == 1 else []
        expected = {(c.mq, c.in_hand.offset): c for c in alone if c.in_hand.records == 1 and not c.in_hand.waiting}
        known = {record for record, call in expected.items() if self._deaths.knows(call, record[1])}
        if more - set(expected) or set(expected) - more - known:
            raise Violation(f"the death of a run with {len(cells)} calls in hand is charged to {more}")
        for (_, offset), call in expected.items():
            self._deaths.charge(call, offset)
        if len(cells) > 1:
            self._world.note("a run died with several messages in hand")
        for call in cells.values():
            if len(cells) > 1 or call.in_hand.waiting:
                self._deaths.lost(call, before)

    def careful(self) -> None:
        """Something was handed out: while a record was in hand at too many deaths of runs, that is the only thing in hand."""
        state = self._member.core.state
        noted = [
            one
            for one in state.charges.noted.values()
            if one.runs >= MAX_WORKER_DEATHS
            and (pq := state.by_mq.get(one.mq)) is not None
            and one.offset < pq.next_offset
        ]
        if not noted or not self._member.script.auto_commit:
            return
        self._world.note("one message at a time")
        busy = [worker.worker_id for worker in state.workers.values() if worker.in_flight]
        if len(busy) > 1:
            raise Violation(f"{busy} have something in hand beside what may have killed whole runs: {noted}")

    # --- what is handed out -------------------------------------------------------------------------------------

    def handed(self, action: act.Dispatch) -> None:
        """A suspect runs alone, and not at all once it is at the limit."""
        state, chunk = self._member.core.state, action.chunk
        known = [charge for offset in chunk.offsets if (charge := state.charges.get(action.mq, offset)) is not None]
        in_hand = state.workers[action.worker_id].in_flight.values()
        if any(other.alone for other in in_hand) and len(in_hand) > 1:
            raise Violation(
                f"{action.mq} {chunk.offsets} and {[other.offsets for other in in_hand]}: a suspect isn't alone"
            )
        cost = self._deaths.of_record.get((*_place(action.mq), chunk.offsets[0]))
        if chunk.origin is not None and self._deaths.one_ledger and cost:
            raise Violation(f"{action.mq} {chunk.offsets} runs here again, though it has cost a worker its life")
        if not known and not chunk.alone:
            return
        self._world.note("a suspect was handed out")
        if any(charge.deaths >= MAX_WORKER_DEATHS for charge in known):
            raise Violation(f"{known} has cost {MAX_WORKER_DEATHS} workers, and is run again")
        if known and chunk.count > 1:
            raise Violation(f"{known} is not alone in its chunk {chunk.offsets}")

    def dead_letter(self, action: act.SendBack, number: int) -> None:
        """Only what has cost so many lives, and the facts say how many."""
        facts: dict[str, Any] = dict(action.facts or {})
        self._world.note("a message was dead-lettered for its deaths")
        told, true = int(facts["deaths"]), self._deaths.of_number.get(number, 0)
        if told < MAX_WORKER_DEATHS or told > true:
            raise Violation(f"message {number} is a dead letter for {told} deaths, it has cost {true}")
        self._deaths.runs_of_number.pop(number, None)
