"""Bugs on purpose, each a small change of one part: the simulation must find every one of them.

They are what a hurried change would do, and none of them is in the production code. `PLANTED` names them, with the number
of seeds within which each must be found, and the kind of world (which faults come often) in which it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from rocketcrew.remoting.properties import PROPERTY_RETRY_TOPIC
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_message
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.blame import Death
from rocketcrew.supervisor.core.chunks import Chunk, Token
from rocketcrew.supervisor.core.decisions import DISPATCHING, Core
from rocketcrew.supervisor.core.dispatching import Dispatching
from rocketcrew.supervisor.core.journal import MAGIC, Entry, JournalState, Records, _Names, _records, replay
from rocketcrew.supervisor.core.process_queue import Move, ProcessQueue, PulledQueue
from rocketcrew.supervisor.core.pulling import Pulling
from rocketcrew.supervisor.core.reclaiming import Reclaiming
from rocketcrew.supervisor.core.retries import Retries
from rocketcrew.supervisor.core.settling import Settling
from rocketcrew.supervisor.core.slab import Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.supervisor.core.states import QueueEvent
from rocketcrew.workers.claims import Claims

from .disk import Segment
from .member import SimMember
from .parts import Parts
from .script import BOOTS, POWER
from .truth import Truth
from .worker import SimWorker, Work
from .world import World


class CoreParts(Parts):
    """Parts with a core some of whose mechanisms are replaced; the classes are set by subclasses."""

    settling_class: type[Settling] = Settling
    dispatching_class: type[Dispatching] = Dispatching
    pulling_class: type[Pulling] = Pulling
    assigning_class: type[Assigning] = Assigning
    reclaiming_class: type[Reclaiming] = Reclaiming
    retries_class: type[Retries] = Retries

    def core(self, config: CoreConfig, slab: Slab, view: bytearray) -> Core:
        classes: dict[str, Any] = {
            name: getattr(self, name) for name in ("pulling_class", "assigning_class", "reclaiming_class")
        }
        settling: dict[str, Any] = {"retries_class": self.retries_class}
        classes["settling_class"] = type("PlantedSettling", (self.settling_class,), settling)
        if self.dispatching_class is not Dispatching:
            if not issubclass(self.dispatching_class, DISPATCHING[config.order]):
                raise TypeError(
                    f"{type(self).__name__} is no bug of a world with order {config.order!r}: give it its order"
                )
            classes["dispatching_classes"] = {config.order: self.dispatching_class}
        return cast("Core", type("PlantedCore", (Core,), classes)(config, slab, view))


# --- offsets ----------------------------------------------------------------------------------------------------


class CommitBeforeSeal(CoreParts):
    """Rows count as durable as soon as their outcome is there."""

    class settling_class(Settling):
        def _wait_for_seal(self, pq: ProcessQueue, token: Token, start: int, end: int, messages: int) -> None:
            pass


class SealsForTheSpan(CoreParts):
    """A seal is asked for when half of a queue's span is taken, though most of it was only pulled ahead."""

    class settling_class(Settling):
        def _wait_for_seal(self, pq: ProcessQueue, token: Token, start: int, end: int, messages: int) -> None:
            super()._wait_for_seal(pq, token, start, end, messages)
            if pq.next_offset - pq.head_offset > self.s.config.consume_concurrently_max_span // 2:
                self.s.ask_seals(pq.ledger.held)


class CommitNext(CoreParts):
    """What is committed is what was pulled, finished or not."""

    class assigning_class(Assigning):
        def _commit(self, q: PulledQueue, offset: int) -> bool:
            q.move, moved = q.move or Move(0), q.move  # past the core's own check, too
            asked = super()._commit(q, q.pq.next_offset if moved is None else offset)
            q.move = moved
            return asked


class TellsOnce(CoreParts):
    """An offset that the broker confirmed is never sent again, though a killed broker forgets."""

    class assigning_class(Assigning):
        def _commit_progress(self, q: PulledQueue, now: float, *, untold: bool = False) -> None:
            if q.pq.head_offset > q.committed:
                super()._commit_progress(q, now, untold=untold)


class CommitUnguarded(Parts):
    """A queue that was taken away commits without looking, and lowers its new owner's offset."""

    guards_commits = False


class SkipsOneTooMany(CoreParts):
    """What was finished before a restart is skipped, and the message after it."""

    class pulling_class(Pulling):
        def _queue_runs(self, pq: ProcessQueue, slot: object, positions: list[int], offsets: list[int]) -> None:
            for start, end in pq.ledger.done.pairs():
                if end > pq.next_offset:
                    pq.ledger.done.add(start, end + 1)
            super()._queue_runs(pq, slot, positions, offsets)  # type: ignore[arg-type]


class IgnoresReset(Parts):
    """The journal keeps what was finished above an offset that went back."""

    def read_journal(self, data: bytes) -> JournalState:
        """As journal.replay, block by block, with `into_journal` instead of `apply`."""
        state, whole = JournalState(), replay(data, "journal")[1]
        at, names = len(MAGIC), _Names()
        while at < whole:
            length = int.from_bytes(data[at : at + 4], "little")
            for entry in _records(data[at + 8 : at + 8 + length], names, "the journal"):
                self.into_journal(state, entry)
            at += 8 + length
        return state

    def into_journal(self, journal: JournalState, entry: Entry) -> bool:
        if isinstance(entry, JournalCommitted) and entry.mq in journal.queues:
            log = journal.queues[entry.mq]
            log.start, log.committed = entry.start, entry.offset
            log.durable.discard_below(entry.offset)
            return False
        return journal.apply(entry)


# --- failures ---------------------------------------------------------------------------------------------------


class SendsRevoked(CoreParts):
    """A queue that was taken away sends its failures back, as does its new owner."""

    class assigning_class(Assigning):
        def revoke(self, pq: ProcessQueue, now: float, *, to_another: bool = False) -> None:
            del to_another
            super().revoke(pq, now)


class AcceptsLate(CoreParts):
    """An outcome of an ended assignment counts for the one that came after it."""

    class settling_class(Settling):
        def report(self, event: ev.Reported, now: float) -> None:
            chunk = self.s.chunks.get(event.chunk_id)
            if chunk is not None and chunk.handle not in self.s.queues:
                for pq in self.s.queues.values():
                    begin, end = chunk.begin_of(event.start), chunk.offsets[event.start + event.count - 1] + 1
                    if pq.ledger.begin >= 0 and pq.mq == self.mqs.get(chunk.handle):
                        pq.ledger.finish(begin, end)
                        self.s.out.append(JournalDone(pq.mq, begin, end, event.worker_id, 0))
            for pq in self.s.queues.values():
                self.mqs[pq.handle] = pq.mq
            super().report(event, now)

        @property
        def mqs(self) -> dict[int, MessageQueue]:
            return self.__dict__.setdefault("known", {})


# --- bytes ------------------------------------------------------------------------------------------------------


class ReusesEarly(CoreParts):
    """A chunk's bytes are given back when it is dispatched."""

    class dispatching_class(Dispatching):
        def _dispatch(self, worker: Worker, chunk: Chunk, pq: ProcessQueue) -> None:
            super()._dispatch(worker, chunk, pq)
            if chunk.held:
                chunk.held = False
                self.s.slab.release(chunk.slot)


class CutsWhatIsRead(CoreParts):
    """When bytes run short, slots are cut down to what waits, and what workers have in hand is forgotten."""

    class pulling_class(Pulling):
        def _trim(self, now: float) -> bool:
            brought = super()._trim(now)
            for worker in self.s.workers.values() if brought else ():
                for chunk in worker.in_flight.values():
                    if chunk.held:
                        waiting = [run for pq in self.s.queues.values() for run in pq.waiting if run.slot is chunk.slot]
                        self.s.slab.trim(
                            chunk.slot, [(run.positions[run.at], run.positions[run.end]) for run in waiting]
                        )
            return brought


class ReusesFailed(CoreParts):
    """A chunk's bytes are given back when all is reported, though failed messages are still to be sent back."""

    class settling_class(Settling):
        def reported(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
            failed, chunk.failed = chunk.failed, None
            super().reported(chunk, pq)
            chunk.failed = failed
            if failed:
                self.s.chunks[chunk.chunk_id] = chunk


class LeavesUnread(Parts):
    """A response that finds no room stays on the connection until there is some."""

    leaves_unread = True


class KeepsReservation(CoreParts):
    """The bytes reserved for a pull are not given back when its queue has ended meanwhile."""

    class pulling_class(Pulling):
        def _answered(self, handle: int) -> ProcessQueue | None:
            if handle not in self.s.queues:
                return None
            return super()._answered(handle)


# --- workers ----------------------------------------------------------------------------------------------------


class ForgetsChunk(CoreParts):
    """Of a dead worker's chunks, only those that it had begun are handed out again."""

    class settling_class(Settling):
        def _split(self, pq: ProcessQueue, chunk: Chunk, worker: Worker, wall_ms: int) -> None:
            waiting = len(self.s.redo)
            super()._split(pq, chunk, worker, wall_ms)
            while len(self.s.redo) > waiting and not chunk.reported:
                self.s.redo.pop()


class TakesTooMuch(Parts):
    """What a worker is held up by is reclaimed, too."""

    def taken_back(self, unbegun: int, claimed: int) -> tuple[int, int]:
        return unbegun, max(claimed - 1, 0)


class ForgetsItsClaim(Parts):
    """A worker that was put to sleep between its claim and its look takes what it claimed for reclaimed."""

    class claims_class(Claims):
        def claim(self, upto: int) -> bool:
            return super().claim(upto) and self.mine()


class TrustsEveryClaim(Parts):
    """A worker that was put to sleep between its claim and its look believes that it has claimed in time."""

    class claims_class(Claims):
        def claim(self, upto: int) -> bool:
            return super().claim(upto) or True


class LosesTheRest(CoreParts):
    """A chunk is split where its worker has come to, and the rest is given to nobody."""

    class reclaiming_class(Reclaiming):
        def _split(self, worker: Worker, chunk: Chunk, at: int, now: float) -> None:
            waiting = len(self.s.redo)
            super()._split(worker, chunk, at, now)
            while len(self.s.redo) > waiting:
                self.s.redo.pop()


class ForgetsTheLimit(CoreParts):
    """What a dead or held-up worker left is handed out as if its topic had no limit."""

    class dispatching_class(Dispatching):
        def _room_again(self, worker: Worker, chunk: Chunk) -> int:
            del worker
            return chunk.count


class ForgetsTokens(CoreParts):
    """The rate of a topic is asked for, and nothing is taken from it."""

    class dispatching_class(Dispatching):
        def _take_tokens(self, topic: str, messages: int) -> None:
            del topic, messages


class ForgetsToLook(CoreParts):
    """What waits for a rate waits until something else happens."""

    class dispatching_class(Dispatching):
        def _look_again(self) -> None:
            pass


class WipesOpen(Parts):
    """What a dead worker left open is removed, and forgotten as if it were sealed."""

    def left_open(self, member: SimMember, segments: list[Segment], truth: Truth) -> list[Segment]:
        for segment in segments:
            del member.folder.open[segment.token]
            member.core.handle(ev.Sealed(*segment.token), member.world.now)
        return []


class OutcomeFirst(Parts):
    """Workers report, and write the rows afterwards."""

    class worker_class(SimWorker):
        def _write(self, unreported: list[Work]) -> bool:
            if self.segment is None:
                self.seq += 1
                self.segment = Segment(self.worker_id, self.seq)
                self.member.folder.open[self.segment.token] = self.segment
            segment = self.segment
            ranges = [(work, work.reported, len(work.results)) for work in unreported]
            self.world.after(5, self._write_late, segment, ranges)
            return True

        def _write_late(self, segment: Segment, ranges: list[tuple[Work, int, int]]) -> None:
            if not self.alive:
                return
            for work, start, end in ranges:
                for index in range(start, end):
                    failed, rows = work.results[index]
                    if failed is None and rows:
                        segment.rows.append((work.mq, work.offsets[index], rows))

    def worker(
        self, world: World, member: SimMember, worker_id: str, salvage_of: list[str], salvage: list[Segment]
    ) -> SimWorker:
        if member.script.order != "concurrent":
            raise TypeError(f"{type(self).__name__} is a bug of workers that keep no order: give it its order")
        return self.worker_class(world, member, worker_id, salvage_of, salvage)


class RestoredKey(OutcomeFirst):
    """The key of a retried message's rows is that of its original topic."""

    class worker_class(SimWorker):
        def row_queue(self, work: Work, index: int) -> MessageQueue:
            message = decode_message(work.data, work.positions[index], work.positions[index + 1])
            return work.mq._replace(topic=message.properties.get(PROPERTY_RETRY_TOPIC, work.mq.topic))


class HandsOutTwice(CoreParts):
    """Chunks of a worker that died are handed out again at once, and after the salvage once more."""

    class settling_class(Settling):
        def worker_died(self, worker_id: str, death: Death) -> None:
            chunks = list(self.s.workers[worker_id].in_flight.values())
            super().worker_died(worker_id, death)
            for chunk in chunks:
                pq = self.s.queues.get(chunk.handle)
                if pq is not None and not chunk.reported:
                    chunk.slot.refs += 1
                    again = Chunk(
                        next(self.s.chunk_ids), pq.handle, chunk.slot, chunk.positions, chunk.offsets, chunk.begin
                    )
                    pq.open[again.chunk_id] = again
                    self.s.redo.append(again)


class KeepsEnded(CoreParts):
    """Bytes of a chunk whose queue has ended are not given back when its outcome comes."""

    class settling_class(Settling):
        def reported(self, chunk: Chunk, pq: ProcessQueue | None) -> None:
            if pq is None:
                self.s.chunks.pop(chunk.chunk_id, None)
            else:
                super().reported(chunk, pq)


# --- deaths -----------------------------------------------------------------------------------------------------


# --- the end ----------------------------------------------------------------------------------------------------


class EndsEarly(CoreParts):
    """A queue counts as drained although send-backs of it are open."""

    class assigning_class(Assigning):
        def _check_drained(self, q: PulledQueue, now: float) -> None:
            sends, q.pq.send_failures = q.pq.send_failures, False
            super()._check_drained(q, now)
            q.pq.send_failures = sends


class ForgetsFinished(CoreParts):
    """What was finished above the committed offset is forgotten when the queue ends."""

    class assigning_class(Assigning):
        def _end(self, q: PulledQueue, event: QueueEvent, now: float) -> None:
            super()._end(q, event, now)
            self.s.recovered.pop(q.pq.mq, None)


# --- what is read off a cell ------------------------------------------------------------------------------------


class TakesWhatIsHeld(CoreParts):
    """What comes before the record in hand counts as done, also what failed or has rows."""

    class settling_class(Settling):
        def cell_read(
            self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float, wall_ms: int = 0
        ) -> None:  # fmt: skip
            del held
            super().cell_read(worker_id, chunk_id, offset, None, now, wall_ms)


class ReadsBehindAReport(Parts):
    """A cell is believed although a report, which says what failed, lies unread in the link."""

    def reports_read(self, worker: SimWorker) -> int:
        return worker.heard + sum(what == worker.member.pool.report for what, _ in worker.said)


class TakesTheRecordInHand(CoreParts):
    """The record in hand counts as done, too."""

    class settling_class(Settling):
        def cell_read(
            self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float, wall_ms: int = 0
        ) -> None:  # fmt: skip
            chunk = self.s.chunks.get(chunk_id)
            later = [other for other in chunk.offsets if other > offset] if chunk is not None else []
            super().cell_read(worker_id, chunk_id, later[0] if later else offset, held, now, wall_ms)


class WaitsForTheCall(CoreParts):
    """What a worker has finished is known when it reports it, after the call that it is in."""

    class settling_class(Settling):
        def cell_read(
            self, worker_id: str, chunk_id: int, offset: int, held: tuple[int, int] | None, now: float, wall_ms: int = 0
        ) -> None:  # fmt: skip
            pass


class ForgetsUncommitted(CoreParts):
    """What was finished is forgotten where the last commit is refused until the deadline."""

    class assigning_class(Assigning):
        def _end(self, q: PulledQueue, event: QueueEvent, now: float) -> None:
            pq, floor = q.pq, q.pq.head_offset
            super()._end(q, event, now)
            if pq.mq in self.s.recovered:
                committed, finished = self.s.recovered[pq.mq]
                finished.discard_below(floor)
                self.s.recovered[pq.mq] = committed, finished


class TrustsTornFiles(Parts):
    """All that was reported of a salvaged segment counts, though its file holds less after a loss of power."""

    def join(
        self, journal: JournalState, salvaged: list[tuple[str, int, Records]], sealed: Iterable[tuple[str, int]]
    ) -> None:
        for worker_id, seq, _ in salvaged:
            journal.sealed((worker_id, seq))
        super().join(journal, salvaged, sealed)


class TrustsEarlierSalvage(Parts):
    """A segment in ready/ holds all that was reported of it, though a start that failed may have salvaged it there."""

    def join(
        self, journal: JournalState, salvaged: list[tuple[str, int, Records]], sealed: Iterable[tuple[str, int]]
    ) -> None:
        for token in sealed:
            journal.sealed(token)
        super().join(journal, salvaged, sealed)


class Planted(NamedTuple):
    """One bug, the number of seeds within which it must be found, and in which kind of world."""

    parts: type[Parts]
    seeds: int
    focus: tuple[str, ...] = ()
    script: Mapping[str, Any] | None = None

    def make(self) -> Parts:
        return self.parts(self.focus, self.script)


COMING_AND_GOING = ("start member", "stop member")
CONCURRENT = {"order": "concurrent"}
STEADY = {"rate": 200.0, "slow": 0.0, "refusing": 0.0, "deadly": 0, "hard_limit_ms": 0, "commit_after_loaded": False}
STARTS_OFTEN = {"faults": {POWER: 1, BOOTS: 2}, "fault_rate": 0.03, "restart_ms": 50.0, "boot_fails_ms": 60.0}
ONE_SLOT = {"members": 1, "members_max": 1}
HELD_UP = {"order": "concurrent", "slow": 0.05, "workers": 3, "handler_us": 50, "chunk_messages_max": 8}
SEVERAL = {"members": 2, "members_max": 3}


class ForgetsToResume(CoreParts):
    """A resume waits for something of a queue to finish."""

    class pulling_class(Pulling):
        def resume(self, reason: str, now: float) -> None:
            del now
            self.s.paused.discard(reason)


class CommitsSealed(CoreParts):
    """With offsets that wait for the table, a sealed segment is enough after all."""

    class settling_class(Settling):
        def sealed(self, worker_id: str, seq: int, now: float) -> None:
            super().sealed(worker_id, seq, now)
            self.loaded(worker_id, seq, now)


PLANTED = {
    "sealed counts as loaded": Planted(CommitsSealed, 20, (), {"commit_after_loaded": True}),
    "resume wakes nobody": Planted(ForgetsToResume, 20, ("pause",)),
    "commit before seal": Planted(CommitBeforeSeal, 10),
    "seals for a span that was only pulled": Planted(SealsForTheSpan, 10, (), {"span_max": 16}),
    "a backlog with rows leaves many segments": Planted(
        SealsForTheSpan, 10, (), {"span_max": 16, "rows_always": True, "messages_max": 600}
    ),
    "commit what was pulled": Planted(CommitNext, 20),
    "finished messages wait for a long call": Planted(WaitsForTheCall, 20, (), HELD_UP),
    "finished messages forgotten where the last commit fails": Planted(
        ForgetsUncommitted, 100, (*COMING_AND_GOING, "refuse commits", "stall broker"), SEVERAL
    ),
    "what was reported counts, though its file is torn": Planted(TrustsTornFiles, 40, (POWER,)),
    "what a failed start has salvaged counts as whole": Planted(
        TrustsEarlierSalvage, 40, (POWER, BOOTS), ONE_SLOT | CONCURRENT | STEADY | STARTS_OFTEN
    ),
    "draining queue commits unguarded": Planted(CommitUnguarded, 40, COMING_AND_GOING, SEVERAL | {"slow": 0.15}),
    "skip one too many": Planted(SkipsOneTooMany, 40),
    "journal ignores a reset": Planted(IgnoresReset, 40, ("reset back",), ONE_SLOT | {"slow": 0.05}),
    "revoked queue sends failures back": Planted(SendsRevoked, 40, COMING_AND_GOING, SEVERAL | {"slow": 0.05}),
    "late outcome of an ended assignment accepted": Planted(
        AcceptsLate, 160, ("reset back", "reset forward"), ONE_SLOT | {"slow": 0.15}
    ),
    "slot reused too early": Planted(ReusesEarly, 10, (), CONCURRENT),
    "slot cut down under a worker's hands": Planted(
        CutsWhatIsRead, 40, (), {"slab_units": 8, "body_large": 0.3, "slow": 0.15}
    ),
    "slot of a failed message reused": Planted(ReusesFailed, 40),
    "connection left unread when the slab is full": Planted(LeavesUnread, 40, (), {"slab_units": 4, "body_large": 0.3}),
    "reservation of an ended queue kept": Planted(
        KeepsReservation, 60, (*COMING_AND_GOING, "stall broker"), SEVERAL | {"slab_units": 4, "queues": 4}
    ),
    "redispatch forgets a chunk": Planted(ForgetsChunk, 60),
    "what is begun is taken back": Planted(TakesTooMuch, 20, (), HELD_UP),
    "a claim that was seen is given up": Planted(ForgetsItsClaim, 20, (), HELD_UP),
    "a claim that came too late is run": Planted(TrustsEveryClaim, 60, (), HELD_UP),
    "what is taken back is forgotten": Planted(LosesTheRest, 60, (), HELD_UP),
    "what is held is read off": Planted(TakesWhatIsHeld, 20, (), HELD_UP),
    "a cell is believed before its report": Planted(
        ReadsBehindAReport, 60, (), HELD_UP | {"late_links": 0.2, "refusing": 0.1}
    ),
    "the record in hand is read off": Planted(TakesTheRecordInHand, 60, ("kill worker",), HELD_UP),
    "what was left is not limited": Planted(ForgetsTheLimit, 40, ("kill worker",), HELD_UP | {"topic_limit": 1}),
    "a rate is not counted": Planted(ForgetsTokens, 5, (), HELD_UP | {"rate": 30.0}),
    "a rate wakes nobody": Planted(
        ForgetsToLook, 40, (), HELD_UP | {"rate": 30.0, "queues": 1, "threshold_messages": 8, "slow": 0.0}
    ),
    "wipe instead of salvage": Planted(WipesOpen, 40),
    "outcome before rows": Planted(OutcomeFirst, 10, (), CONCURRENT),
    "key by restored topic": Planted(RestoredKey, 10, (), CONCURRENT),
    "queue ends with open send-backs": Planted(EndsEarly, 30, ("refuse send-backs", "stop member")),
    "finished messages forgotten at the end": Planted(ForgetsFinished, 80),
    "chunk handed out twice": Planted(HandsOutTwice, 40),
    "bytes of an ended queue kept": Planted(KeepsEnded, 120, ("reset back", "reset forward"), {"slow": 0.15}),
    "offsets are told once": Planted(
        TellsOnce,
        80,
        (),
        ONE_SLOT | {"queues": 4, "messages_max": 40, "faults": {"kill broker": 1}, "fault_rate": 0.02},
    ),
}
