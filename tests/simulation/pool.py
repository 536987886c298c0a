"""The workers of one member, as supervisor/pool/worker_pool.py cares for them: started, fed, heard, replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.failed_actions import NOT_CARRIED_OUT
from rocketcrew.supervisor.core.reclaiming import HELD_LATE_INTERVALS, SHOWN_LATE_INTERVALS
from rocketcrew.supervisor.core.state import State, Worker
from rocketcrew.supervisor.core.states import LIVING, QueueEvent, QueueState, WorkerState
from rocketcrew.workers.cells import RECALLED
from rocketcrew.workers.claims import take_back
from rocketcrew.workers.failures import asked
from rocketcrew.workers.unreported import Seen, holds, look

from .disk import Segment
from .ordered_worker import OrderedPacket
from .script import READ_MS, TOPIC
from .worker import SEAL, SEAL_MUCH, SimWorker, Work
from .world import Violation

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .member import SimMember

Records = list[tuple[MessageQueue, list[tuple[int, int]]]]
WORKER_STOP_MS = 400
REPORTED_MS = 200
"""Well above all that delays a look at a cell here, once it is late."""


def _ends(state: State) -> int:
    return sum(state.seen[QueueState.DRAINING, event] for event in (QueueEvent.DRAINED, QueueEvent.DEADLINE))


def _by_queue(segment: Segment) -> Records:
    """What is finished in it."""
    found: dict[MessageQueue, list[tuple[int, int]]] = {}
    for mq, offset in segment.finished:
        found.setdefault(mq, []).append((offset, offset + 1))
    return list(found.items())


class SimPool:
    """All workers of one member."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        self.workers: dict[str, SimWorker] = {}
        self.leftovers: list[tuple[tuple[str, int], Records]] = []
        """Segments of the last run that were salvaged: (worker id, seq), and the records in them."""
        self._started = 0
        self._stopping = False
        self._ends = 0
        """Queues that had left before this step."""
        self._sealed: list[Segment] = []
        """What this step was told of: a seal may be asked for and heard of in one read."""
        self._succeeded: set[str] = set()
        """Workers that have or had a successor."""
        self._left: set[str] = set()
        """Workers that were retired because their successor is there."""
        self._dispatched: set[tuple[int, int]] = set()
        """Handle and offset of what was dispatched once, where a rate holds; and how far that is over the rate, at a time."""
        self._over = self._over_at = 0.0
        self.performs: dict[type, Callable[[Any], None]] = {
            act.Dispatch: self._dispatch,
            act.Seal: self._seal,
            act.DispatchOrdered: self._dispatch_ordered,
            act.Classify: lambda a: self._to(a.worker_id, a),
            act.KillWorker: self._kill,
            act.Retired: self._retired,
            act.Reclaim: self._reclaim,
            act.Recall: self._recall,
            act.ReadCell: self._read_cell,
            act.AskReport: self._ask_report,
        }

    def start(self) -> None:
        """All of them; the first looks at what the last run left open."""
        member = self._member
        for index in range(member.script.workers):
            left = [*member.folder.open.values(), *member.sealed_unnoted.values()]
            self._start_one([], left if index == 0 else [])

    def _start_one(self, salvage_of: list[str], salvage: list[Segment]) -> SimWorker:
        self._started += 1
        member = self._member
        worker_id = f"{member.client_id}.{self._started}"
        self.workers[worker_id] = member.parts.worker(member.world, member, worker_id, salvage_of, salvage)
        member.core.handle(ev.WorkerStarted(Worker(worker_id)), member.world.now)
        return self.workers[worker_id]

    # --- feeding ------------------------------------------------------------------------------------------------

    def _to(self, worker_id: str, message: Work | str | object) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.in_pipe.append(message)
            self._member.world.after(0.02 + self._member.world.random.random() * 0.3, worker.hear)

    def keeps_rate(self, wanted: Sequence[act.Action]) -> None:
        """What the core wants dispatched stays within the rate. Counted before it is carried out: of what fails the tokens
        are taken all the same, and what goes out again needs none."""
        if self._member.script.rate:
            for action in wanted:
                if isinstance(action, act.Dispatch):
                    self._count_rate(action.chunk)
                elif isinstance(action, act.DispatchOrdered):
                    for item in action.chunks:
                        self._count_rate(item.chunk)

    def _count_rate(self, chunk: Chunk) -> None:
        """All that this world consumes is of the topic, or its retry."""
        script, now = self._member.script, self._member.world.now
        first = {(chunk.handle, offset) for offset in chunk.offsets} - self._dispatched
        self._dispatched |= first
        self._over = max(0.0, self._over - (now - self._over_at) * script.rate) + len(first)
        self._over_at = now
        told_before_s = READ_MS / 1000  # the token is taken when the core is told, the chunk sent when it is asked
        if self._over > max(1.0, script.rate / 10) + script.rate * told_before_s + 0.01:
            raise Violation(f"{self._over} messages more than {script.rate} a second were dispatched")
        if self._member.core.state.rates.holding(TOPIC, now):
            self._member.world.note("a rate held messages back")

    def _dispatch(self, action: act.Dispatch) -> None:
        done = self._member.notebook.no_repeat.get(action.mq)
        if done is not None:
            for offset in action.chunk.offsets:
                if offset in done:
                    raise Violation(f"{action.mq} {offset} is run again, although it was finished before")
        self._note_size(action.chunk)
        self._member.coroner.handed(action)
        self._member.notebook.handed(action.chunk.handle, action.chunk.offsets, action.worker_id)
        if action.chunk.origin is not None:
            self._member.world.note("a message ran again because no broker took it back")
        if action.worker_id in self.workers:
            self.workers[action.worker_id].sent += 1
        self._to(action.worker_id, Work(action))

    def _dispatch_ordered(self, action: act.DispatchOrdered) -> None:
        for item in action.chunks:
            done = self._member.notebook.no_repeat.get(item.mq, ())
            again = [offset for offset in item.chunk.offsets if offset in done]
            if again:
                raise Violation(f"{item.mq} {again} are run again, although they were finished before")
            self._note_size(item.chunk)
            self._member.notebook.handed(item.chunk.handle, item.chunk.offsets, action.worker_id)
        if action.worker_id in self.workers:
            self.workers[action.worker_id].sent += 1
        self._to(action.worker_id, OrderedPacket(action, self._member.world.now_ms))

    def _note_size(self, chunk: Chunk) -> None:
        script = self._member.script
        if script.is_large(chunk.count):
            self._member.world.note(f"{script.order}: a large chunk")

    def returned(self, worker: SimWorker, chunk_id: int, start: int, failed: int, level: int, suspend_ms: int) -> None:
        core = self._member.core
        chunk = core.state.chunks.get(chunk_id)
        if chunk is not None:
            self._member.notebook.given_back(chunk.handle, chunk.offsets[start:])
        failure = asked(level, "no") if failed else None
        core.handle(ev.Returned(worker.worker_id, chunk_id, start, failed, failure, suspend_ms), self._member.world.now)

    def consumed(self, worker: SimWorker, chunk_id: int) -> None:
        self._member.core.handle(ev.Consumed(worker.worker_id, chunk_id), self._member.world.now)

    def classified(self, worker: SimWorker, handle: int, keys: list[bytes | None]) -> None:
        self._member.core.handle(ev.Classified(worker.worker_id, handle, keys), self._member.world.now)

    def may_begin(self, worker: SimWorker) -> None:
        """Never more calls at once than the topic's limit; all that this world consumes is of the topic, or its retry."""
        limit = self._member.script.topic_limit
        calls = sum(other.alive and other.call is not None for other in self.workers.values() if other is not worker)
        if limit and calls >= limit:
            raise Violation(f"{worker.worker_id} begins a call beside {calls} others, {limit} are allowed")
        if limit and len(self.workers) > limit:
            self._member.world.note("a topic's limit was kept")

    def note_ends(self) -> None:
        """A step is over."""
        self._ends = _ends(self._member.core.state)
        self._sealed.clear()

    def _seal(self, action: act.Seal) -> None:
        self._member.world.note("a seal was asked for")
        core, worker = self._member.core.state, self.workers.get(action.worker_id)
        leaves = core.stopping or any(pq.state is QueueState.DRAINING for pq in core.queues.values())
        leaves = leaves or self._ends != _ends(core)  # it left in the same step, in which it was asked for
        waiting = [] if worker is None else [*worker.sealing, *filter(None, [worker.segment])]
        if worker is not None:
            waiting += [said[1] for what, said in worker.said if what == self.sealed]  # not known to the core yet
        waiting += [one for one in self._sealed if one.worker_id == action.worker_id]  # nor when it asked
        script, finished = self._member.script, sum(len(one.finished) for one in waiting)
        # In a backlog of rows the segments are counted instead (simulation.py).
        if waiting and not leaves and finished <= script.seal_rows and not script.rows_always:
            raise Violation(f"{action.worker_id} is asked to seal, though nothing leaves, and little waits for it")
        if waiting and not leaves:
            self._member.world.note("a seal was asked for because much waited for it")
        self._to(action.worker_id, SEAL if leaves else SEAL_MUCH)

    def _reclaim(self, action: act.Reclaim) -> None:
        """As supervisor/pool/watching.py: worker and edge agree on how far it has come, or it goes on meanwhile."""
        worker, member = self.workers.get(action.worker_id), self._member
        found = None if worker is None else take_back(worker.cell, worker.sent, lambda: not member.world.chance(0.2))
        if worker is None or found is None:
            return
        unbegun, claimed = found
        begun = len(action.chunk_ids) - unbegun
        if begun < 0:
            raise Violation(f"{worker.worker_id} has not begun {unbegun} chunks, and has only {action.chunk_ids}")
        if worker.asleep and claimed:
            member.world.note("a worker slept between its claim and its look")
        for at, chunk_id in enumerate(action.chunk_ids):
            chunk = member.core.state.chunks[chunk_id]
            rest = chunk.offsets[claimed:] if at == begun - 1 and claimed else chunk.offsets if at >= begun else ()
            member.notebook.given_back(chunk.handle, rest)
            if rest:
                member.world.note("messages were taken back from a slow worker")
                if member.script.is_large(chunk.count):
                    member.world.note("messages of a large chunk were taken back")
                pq = member.core.state.queues.get(chunk.handle)
                if pq is not None and pq.state is QueueState.DRAINING:
                    member.world.note("messages of a queue that leaves were taken back")
        told = member.parts.taken_back(unbegun, claimed)
        member.core.handle(ev.Reclaimed(action.worker_id, action.chunk_ids, *told), member.world.now)

    def _recall(self, action: act.Recall) -> None:
        """As supervisor/pool/watching.py."""
        worker = self.workers.get(action.worker_id)
        if worker is not None:
            worker.cell[RECALLED] = worker.sent

    def _read_cell(self, action: act.ReadCell) -> None:
        """As supervisor/pool/watching.py."""
        worker, member = self.workers.get(action.worker_id), self._member
        if worker is not None and (not action.held_only or holds(worker.cell)):
            self._read(
                worker, look(worker.cell, member.parts.reports_read(worker), lambda: not member.world.chance(0.1))
            )

    def _read(self, worker: SimWorker, seen: Seen | None) -> None:
        member = self._member
        if seen is not None:
            before = member.core.state.counters.read_off_messages
            now = member.world.now
            event = ev.CellRead(worker.worker_id, seen.chunk_id, seen.offset, seen.held, round(now * 1000))
            member.core.handle(event, now)
            if member.core.state.counters.read_off_messages > before:
                member.world.note("finished messages were read off a cell")

    def _ask_report(self, action: act.AskReport) -> None:
        """Where the handler holds the interpreter's lock nobody hears it."""
        worker, world = self.workers.get(action.worker_id), self._member.world
        if worker is not None:
            worker.asked_beside = worker.call
        if worker is not None and world.chance(0.7):
            world.after(world.random.random() * 30, worker.beside)

    def check_reported(self) -> None:
        """What ended before a long call is known: read off the cell, or its worker was asked for it, once a call."""
        for worker in self.workers.values():
            call, cell = worker.call, worker.unreported_cell
            if call is None or not worker.alive or not cell.offered or worker.said:
                continue
            core = self._member.core.state
            view, chunk = core.workers.get(worker.worker_id), core.chunks.get(call.in_hand.chunk_id)
            each = core.config.order != "concurrent" or core.config.batch_messages_max > 1
            intervals = HELD_LATE_INTERVALS if each else SHOWN_LATE_INTERVALS
            late_ms = intervals * core.config.report_after_ms + REPORTED_MS
            late = self._member.world.now_ms - call.began_ms > late_ms
            if not late or chunk is None or view is None or view.state not in LIVING:
                continue
            if cell.held and worker.asked_beside is not call:
                raise Violation(
                    f"{worker.worker_id} is in a long call, and was not asked for what it had finished before"
                )
            if not cell.held and chunk.reported < chunk.offsets.index(call.in_hand.offset):
                raise Violation(
                    f"{worker.worker_id} is in a long call, and {chunk.offsets} is known to {chunk.reported} only"
                )

    def _kill(self, action: act.KillWorker) -> None:
        if action.reason.endswith(NOT_CARRIED_OUT):
            worker = self.workers.get(action.worker_id)
            if worker is not None and worker.alive:
                self._member.core.handle(ev.WorkerKilled(worker.worker_id), self._member.world.now)
                worker.ended = True
                worker.die()
            return
        raise Violation(f"the core thinks that {action.worker_id} said {action.reason}")

    def recycle(self, worker: SimWorker) -> None:
        """A successor is started beside it; when that is ready, it gets nothing more."""
        if not self._stopping and worker.worker_id not in self._succeeded:
            self._succeeded.add(worker.worker_id)
            self._start_one([], []).retires = worker.worker_id

    def _retired(self, action: act.Retired) -> None:
        self._member.world.note("a worker left for its successor")
        self._left.add(action.worker_id)
        if action.worker_id in self.workers:
            self.workers[action.worker_id].retired = True
        self._to(action.worker_id, "stop")

    # --- hearing ------------------------------------------------------------------------------------------------

    def salvage_done(self, worker: SimWorker) -> None:
        """Its handler is not set up yet."""
        core, now = self._member.core, self._member.world.now
        for dead in worker.salvage_of:
            self._member.notebook.died(dead)
            core.handle(ev.SalvageComplete(dead, round(now * 1000)), now)
        worker.salvage_of = []

    def is_ready(self, worker: SimWorker) -> None:
        core, now = self._member.core, self._member.world.now
        core.handle(ev.WorkerReady(worker.worker_id), now)
        if worker.retires is not None:
            core.handle(ev.RetireWorker(worker.retires), now)
            if not self._member.script.auto_commit:
                self._member.notebook.leaving.add(worker.retires)
        if not self._member.running and all(other.ready for other in self.workers.values()):
            self._member.workers_ready()

    def report(
        self, worker: SimWorker, work: Work, start: int, count: int, seq: int, failures: list[ev.FailureReport]
    ) -> None:
        worker.heard += 1
        us = 3_000 if self._member.world.chance(0.01) else self._member.script.handler_us
        self._member.core.handle(
            ev.Reported(
                worker.worker_id,
                work.chunk_id,
                start,
                count,
                seq,
                us * count,
                us,
                0,
                failures,
                round(self._member.world.now * 1000),
            ),
            self._member.world.now,
        )

    def sealed(self, worker: SimWorker, segment: Segment) -> None:
        self._sealed.append(segment)
        self._member.core.handle(ev.Sealed(worker.worker_id, segment.seq), self._member.world.now)

    def salvage_segment(self, worker: SimWorker, segment: Segment) -> None:
        """A booting worker salvages a segment of a dead one, and says what is in it."""
        member = self._member
        if segment.token not in member.folder.open:
            if segment.token in member.folder.ready and segment.token in member.sealed_unnoted:
                worker.say(self._salvaged, segment.token, _by_queue(segment))
            return
        if not segment.finished:
            del member.folder.open[segment.token]
            return
        member.folder.seal(segment, member.truth)
        member.world.note("a segment was salvaged")
        for mq, offset in segment.finished:
            # Also without rows: what it finished before a reset is taken for finished after it, as its rows are.
            if member.truth.only_loaded_counts:
                segment.salvaged.append((mq, offset))
            else:
                member.truth.finished((mq.topic, mq.queue_id), offset)
        worker.say(self._salvaged, segment.token, _by_queue(segment))

    def _salvaged(self, token: tuple[str, int], records: Records) -> None:
        if token[0].startswith(self._member.client_id + "."):
            self._member.core.handle(ev.Salvaged(*token, records), self._member.world.now)
        else:
            self.leftovers.append((token, records))

    # --- deaths -------------------------------------------------------------------------------------------------

    def ended(self, worker: SimWorker) -> None:
        """The process is dead: what it said is read to the end, then the core hears of it."""
        if self.workers.get(worker.worker_id) is not worker:
            return
        member, core, now = self._member, self._member.core, self._member.world.now
        worker.read_all()
        del self.workers[worker.worker_id]
        if (state := core.state.workers[worker.worker_id].state) is not WorkerState.KILLED:
            seen = look(worker.cell, member.parts.reports_read(worker), lambda: True)
            if seen is not None and state is WorkerState.READY:
                core.handle(ev.WorkerStops(worker.worker_id), now)  # nothing goes there
            self._read(worker, seen)
        member.coroner.died(worker)
        for seq in core.unsealed_of(worker.worker_id):
            if (worker.worker_id, seq) in member.folder.ready:
                member.world.note("a seal was found though not reported")
                core.handle(ev.Sealed(worker.worker_id, seq), now)
        left = [segment for segment in member.folder.open.values() if segment.worker_id == worker.worker_id]
        left = member.parts.left_open(member, left, member.truth)
        if self._stopping:
            if not self.workers:
                member.workers_left()
            return
        dead = [*worker.salvage_of, worker.worker_id]
        if not left and not worker.salvage_of:
            member.notebook.died(worker.worker_id)
            core.handle(ev.SalvageComplete(worker.worker_id), now)
            dead = []
        if not dead and worker.worker_id in self._left:
            return
        member.world.after(
            member.world.random.random() * 5, member.event, self._replace, dead, [*worker.salvage, *left]
        )

    def _replace(self, dead: list[str], salvage: list[Segment]) -> None:
        if self._stopping:
            return
        others = [worker for worker in self.workers.values() if worker.alive and not worker.retired]
        new = self._start_one(dead, salvage)
        if len(others) >= self._member.script.workers:  # it had a successor already: no worker too many
            new.retires = others[0].worker_id
            self._succeeded.add(others[0].worker_id)

    # --- the end ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let the workers seal and leave; who does not in time is killed."""
        self._stopping = True
        if not self.workers:
            self._member.workers_left()
        for worker in list(self.workers.values()):
            worker.retired = True
            self._member.core.handle(ev.WorkerStops(worker.worker_id), self._member.world.now)
            self._to(worker.worker_id, "stop")
            if worker.call is not None and self._member.world.chance(0.5):
                worker.die()  # somebody is impatient
        self._member.world.after(WORKER_STOP_MS, self._kill_slow)

    def _kill_slow(self) -> None:
        if self._member.alive:
            for worker in list(self.workers.values()):
                worker.die()

    def kill_all(self) -> None:
        for worker in self.workers.values():
            worker.alive = False
            self._member.order.died(worker)
        self.workers.clear()
