"""One supervisor process in the simulated world: the real core, its journal, and its life from start to death.

It does what the core asks, in order: the journal first, then the rest (edge.py, pool.py). It can be killed at any action;
what is left is the slot's folder: the journal's bytes up to there (perhaps half a block), segments, facts. A start
reads them as supervisor/service.py does: replay, adopt slots that nobody holds, salvage, join, write anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from rocketcrew.durable.intervals import Intervals
from rocketcrew.durable.outcomes import SETTLED, Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import everything, strategy_named
from rocketcrew.supervisor.core.failed_actions import EVENTS, action_failed
from rocketcrew.supervisor.core.journal import (
    Entry,
    JournalError,
    JournalRun,
    JournalSent,
    JournalState,
    entries_of,
    replay,
    snapshot,
)
from rocketcrew.supervisor.core.outcome_notes import by_queue
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.supervisor.core.states import QueueState

from .broker_host import BrokerHost
from .coroner import Coroner
from .disk import Folder
from .edge import Edge
from .notebook import Notebook, queue_of
from .parts import Parts
from .pool import SimPool
from .script import (
    GROUP,
    LOCK_LIVE_MS,
    MAX_RECONSUME_TIMES,
    READ_MS,
    READS_ON,
    RETRY_TOPIC,
    SLOW_IN_ORDER_MS,
    TOPIC,
    Script,
)
from .sealing import SimSealing
from .truth import Asker, Truth
from .world import Violation, World

JOURNAL_MAX_BYTES = 6_000
LOOK_MS = 30


class Killed(Exception):
    """Kill -9 in the middle of a step; caught where the process's event began."""


class SimMember:
    """One process on one slot's folder; made at its start, thrown away with its death."""

    def __init__(
        self, world: World, script: Script, truth: Truth, broker: BrokerHost, folder: Folder, dead: list[Folder],
        name: str, parts: Parts,
    ) -> None:  # fmt: skip
        self.world, self.script, self.truth, self.broker, self.folder = world, script, truth, broker, folder
        self.client_id = name
        self.order = truth.order
        self.parts = parts
        self.alive = True
        self.running = False
        """Its workers were ready and it went to the broker."""
        self.stopping = False
        self.held_at_stop: dict[MessageQueue, Intervals] = {}
        """Queues that it stops in order, with what was finished before this assignment."""
        self.finished: act.Finished | None = None
        self.dies_in = -1
        """Actions until it is killed in the middle of a step, -1 = it is not."""
        self.fails_in = -1
        """Actions until one fails unexpectedly, -1 = none does."""
        self._still_until_ms = 0.0
        """Nothing reaches it before, see `stands_still`."""
        self.notebook = Notebook(world)
        self.askers: dict[MessageQueue, Asker] = {}
        """The newest assignment of each queue."""
        self._tick_at = float("inf")
        self._reading = False
        """The core was told of what came first in a read, and has not been asked yet what it wants."""
        self._seen = 0
        """So many of the actions that wait for the end of the read were looked at."""
        self._trimmed = 0
        folder.held = True
        self.journal = self._known(folder)
        if folder.shown:
            self._keep_journal()
        self._cells_count_from = 1
        """The first chunk of which what the cells show counts."""
        self._taken_over = dead
        self._known_at_start = self._known_on_disk(folder, *dead)
        for other in dead:
            self._adopt(other)
        self.sealed_unnoted = {
            token: folder.ready[token]
            for token in self.journal.pending
            if token in folder.ready and not script.commit_after_loaded
        }
        """Segments in ready/ of which the journal does not know that they are sealed."""
        self.view = bytearray(script.slab_units * UNIT_BYTES)
        self.core = parts.core(self._config(), Slab(len(self.view)), self.view)
        self.coroner = Coroner(self, world, truth.deaths)
        for one in (folder, *dead):
            self._read_charges(one)
        self.sealing = SimSealing(self)
        self.edge = Edge(self)
        self.pool = SimPool(self)
        self._performs: dict[type, Callable[[Any], None]] = self.edge.performs | self.pool.performs
        self._performs[act.Finished] = self._core_finished
        self._performs[act.Log] = self._logged
        self._performs[act.ChargesChanged] = self._write_charges
        self._performs[act.CountCellsAnew] = lambda _: self._count_cells_anew()
        self._performs[act.Load] = self._load_wanted
        self.pool.start()
        if parts.joins_first:
            self.edge.connect()

    def _config(self) -> CoreConfig:
        script = self.script
        return CoreConfig(
            client_id=self.client_id, group=GROUP,
            topics=(TOPIC,) if script.broadcasting else (TOPIC, RETRY_TOPIC), broadcasting=script.broadcasting,
            strategy=everything if script.broadcasting else strategy_named(script.strategy),
            pull_threshold_for_queue=script.threshold_messages, pull_threshold_size_bytes=script.threshold_bytes,
            consume_concurrently_max_span=script.span_max, pull_interval_ms=script.pull_interval_ms,
            pull_delay_on_error_ms=60, pull_delay_on_flow_control_ms=20, persist_interval_ms=250, recommit_interval_ms=1_500,
            rebalance_interval_ms=1_500, open_retry_ms=80, chunk_messages_max=script.chunk_messages_max,
            delay_level_when_next_consume=script.delay_level, send_back_retry_ms=200, drain_deadline_ms=400,
            report_after_ms=script.report_after_ms, chunk_target_us=script.chunk_target_us,
            seal_rows=script.seal_rows, commit_after_loaded=script.commit_after_loaded,
            stop_deadline_ms=100 if script.slow > 0.1 else 2_500, stop_load_ms=800 if script.commit_after_loaded else 0,
            topic_concurrency={TOPIC: script.topic_limit} if script.topic_limit else {},
            rate_limits={TOPIC: script.rate} if script.rate else {},
            order=script.order, locks=script.order != "concurrent", order_key="" if script.key_function else "KEYS",
            order_holds=script.order_holds, auto_commit=script.auto_commit, max_reconsume_times=MAX_RECONSUME_TIMES,
            suspend_current_queue_time_ms=40, lock_renewal_ms=250, lock_live_ms=LOCK_LIVE_MS, lock_retry_ms=50,
            lock_lost_retry_ms=120, unlock_delay_ms=SLOW_IN_ORDER_MS,
        )  # fmt: skip

    # --- start --------------------------------------------------------------------------------------------------

    def _adopt(self, other: Folder) -> None:
        """Take over a slot that nobody holds: its journal, segments and facts."""
        self.world.note("a slot was taken over")
        self.journal.merge(self._known(other))
        self.folder.open |= other.open
        other.open = {}
        self._take_sealed(other)
        if self.parts.keeps_taken_journals:
            self._keep_journal()
        other.journal = bytearray()

    def take_sealed(self, other: Folder) -> None:
        """As `_adopt` does it, of a member that runs: the journal is none any more, and what is open stays."""
        if other.open:
            self.world.note("open segments stay in a slot without a journal")
        self._take_sealed(other)
        if self.parts.deletes_taken_journals:
            other.journal = bytearray()

    def _take_sealed(self, other: Folder) -> None:
        self.folder.facts += other.facts
        self.folder.unsynced_facts += other.unsynced_facts
        self.folder.left = Outcomes.union([self.folder.left, other.left])
        self.folder.ready |= other.ready
        other.ready, other.facts, other.unsynced_facts, other.left = {}, [], [], Outcomes()

    def _keep_journal(self) -> None:
        self.folder.journal = bytearray(snapshot(self.journal)[0])
        self.folder.journal_synced = len(self.folder.journal)

    def _known(self, folder: Folder) -> JournalState:
        """What its journal knows, and the cells of its dead workers show."""
        state = self._read_journal(folder)
        if sum(state.shown(mq, start, end) for mq, start, end in folder.shown):
            self.world.note("a start read what cells show")
        return state

    def _read_journal(self, folder: Folder) -> JournalState:
        try:
            return self.parts.read_journal(bytes(folder.journal))
        except JournalError as error:
            raise Violation(f"{self.client_id} cannot start: {error}") from error

    @staticmethod
    def _known_on_disk(*folders: Folder) -> dict[MessageQueue, Intervals]:
        """What the journals of these slots know as finished, sealed or not."""
        journal = JournalState()
        for folder in folders:
            journal.merge(replay(bytes(folder.journal), "journal")[0])
        known: dict[MessageQueue, Intervals] = {}
        for mq, log in journal.queues.items():
            done = known[mq] = Intervals(log.durable.pairs())
            done.add(0, max(log.committed, 0))
        for mq, offsets in chain.from_iterable(held.items() for held in journal.pending.values()):
            known.setdefault(mq, Intervals()).update(offsets.pairs())
        return known

    def _check_failed_start(self) -> None:
        """A start that failed, or was killed before its workers were ready, forgets nothing of what dead slots knew: those
        may be another member's by now."""
        now = self._known_on_disk(self.folder)
        for mq, before in self._known_at_start.items():
            after = now.get(mq, Intervals())
            if any(at not in after for start, end in before.pairs() for at in range(start, end)):
                raise Violation(f"{self.client_id} did not start, and {before} of {mq} is known no more, only {after}")

    def _read_charges(self, folder: Folder) -> None:
        """Its file of deaths and the cells that were left in it; noted, and only then the cells are cleared."""
        charges = self.core.state.charges
        text = self.parts.read_charges(folder)
        if text:
            charges.add_json(text, "deaths")
        self.coroner.left(folder.cells, charges)
        self._write_charges(act.ChargesChanged())
        folder.cells, folder.shown = {}, []
        if folder is not self.folder:
            folder.charges = ""

    def _write_charges(self, _action: act.ChargesChanged) -> None:
        self.folder.charges = self.core.state.charges.to_json()

    def workers_ready(self) -> None:
        """All workers are there: join the journal with what was found, go on in a new one, and find the broker."""
        self.running = True
        self.core.begin()
        state = self.journal
        if not self.script.commit_after_loaded:
            self.parts.join(state, [(*token, records) for token, records in self.pool.leftovers], self.sealed_unnoted)
        if state.begin_run(self.client_id):
            self.world.note("a segment of the last run was not found")
        recovered = state.recovered()
        if recovered:
            self.world.note("a restart took over finished messages")
        self.notebook.restarted(recovered, state.sent())
        self.core.recover(recovered, state.sent())
        self.core.state.outcomes.recovered(state, by_queue([self.folder.noted().of_kind(SETTLED)]))
        self._write_anew()
        if not self.parts.joins_first:
            self.edge.connect()
        self.core.handle(ev.Start(), self.world.now)
        if self.script.commit_after_loaded:
            self._look_for_loaded()
        self.sealing.start()

    def _write_anew(self) -> None:
        data, self._encoder = snapshot(self.journal)
        self.folder.journal = bytearray(data)
        self.folder.journal_synced = len(data)
        self.world.note("the journal was written anew")

    def _load_wanted(self, _: act.Load) -> None:
        self.folder.load_wanted = True

    def _look_for_loaded(self) -> None:
        """As the edge: a sealed segment that is gone was loaded."""
        for token in list(self.core.state.unloaded):
            if token not in self.folder.ready:
                self.core.handle(ev.Loaded(*token), self.world.now)
        self.world.after(LOOK_MS, self.event, self._look_for_loaded)

    # --- events and actions -------------------------------------------------------------------------------------

    def event(self, what: Callable[..., None], *args: Any) -> None:
        """One event of this process; afterwards everything that the core wants is done."""
        if self.world.now_ms < self._still_until_ms:
            self.world.at(self._still_until_ms, self.event, what, *args)
        elif self.alive:
            with self._killed_here():
                if self._reading:
                    self.act()
                what(*args)
                self.act()

    def heard(self, what: Callable[..., None], *args: Any) -> None:
        """An answer or a report. Of what one read brings (pulls.py, hearing.py) the core is told piece by piece, before
        anything that it wants is done. A read ends with its last piece, or where any other event comes."""
        if self.world.now_ms < self._still_until_ms:
            self.world.at(self._still_until_ms, self.heard, what, *args)
            return
        if not self.alive:
            return
        reads_on = self.world.chance(READS_ON)
        if self._reading:
            self.world.note("several were heard in one read")
        elif reads_on:
            self.world.after(self.world.random.random() * READ_MS, self.event, self.read_ends)
        self._reading = True
        with self._killed_here():
            what(*args)
            self._look_at(self.core.state.out)
            if not reads_on:
                self.act()

    def _look_at(self, wanted: Sequence[act.Action]) -> None:
        """Before the core is told of anything more: what it gives out now is judged by what it knows now."""
        if any(isinstance(action, act.Dispatch | act.DispatchOrdered) for action in wanted[self._seen :]):
            self.coroner.careful()
        self._seen = len(wanted)

    def read_ends(self) -> None:
        """Nothing more comes: what the core wants is done now."""

    @contextmanager
    def _killed_here(self) -> Iterator[None]:
        try:
            yield
        except Killed:
            self.world.note("a member was killed in the middle of a step")
            self.die()

    def act(self) -> None:
        self._reading = False
        while todo := self.core.take_actions():
            self._look_at(todo)
            self._seen = 0
            self.pool.keeps_rate(todo)
            if (entries := entries_of(todo)) and self.running:
                self._write_journal(entries)
            for action in todo:
                perform = self._performs.get(type(action))
                if perform is None:
                    continue
                self._count_down()
                if not self._fails(action):
                    perform(action)
                elif not self.parts.batch_goes_on:
                    break
            self.edge.read_again()
        self.pool.note_ends()
        if (trimmed := self.core.state.counters.trimmed_units) > self._trimmed:
            self._trimmed = trimmed
            self.world.note("a slot was cut down")
        due = self.core.next_timer()
        if due is not None and due * 1000 < self._tick_at:
            self._tick_at = due * 1000
            self.world.at(self._tick_at, self.event, self._tick, self._tick_at, due)

    def _fails(self, action: act.Action) -> bool:
        """Whether this one fails in a way that nobody expected; then the core gets an event."""
        if type(action) not in EVENTS or self.fails_in < 0:
            return False
        self.fails_in -= 1
        if self.fails_in >= 0:
            return False
        self.world.note("an action failed")
        if isinstance(action, act.SendBack):
            chunk = self.core.state.chunks.get(action.chunk_id)
            if chunk is not None:
                self.notebook.refused(action.handle, chunk.offsets[action.index])
        if self.parts.batch_goes_on and self.parts.core_hears:
            action_failed(self.core, action, self.world.now)
        return True

    def _tick(self, due_ms: float, due: float) -> None:
        if due_ms != self._tick_at:
            self.world.steps -= 1  # nothing happened
            return
        self._tick_at = float("inf")
        # After months a millisecond's rounding is more than a nanosecond: never before what is due, or it ticks for ever.
        self.core.tick(max(self.world.now + 1e-9, due))

    def _count_down(self) -> None:
        if self.dies_in >= 0:
            self.dies_in -= 1
            if self.dies_in < 0:
                raise Killed

    def _write_journal(self, entries: list[Entry]) -> None:
        went_back = False
        if not (entries := [entry for entry in entries if not self.journal.is_known(entry)]):
            return
        for entry in entries:
            self._check_entry(entry)
            self.notebook.journalled(entry)
            went_back |= self.parts.into_journal(self.journal, entry)
        if went_back or any(isinstance(each, act.JournalCommitted) and each.start == each.offset for each in entries):
            self._count_cells_anew()
        block = self._encoder.blocks(entries)
        try:
            self._count_down()
        except Killed:
            self.folder.journal += block[: self.world.random.randrange(len(block) or 1)]
            self.world.note("the journal was torn")
            raise
        self.folder.journal += block
        if went_back:
            self.folder.journal_synced = len(self.folder.journal)
        if len(self.folder.journal) > JOURNAL_MAX_BYTES:
            self._write_anew()

    def _count_cells_anew(self) -> None:
        self._cells_count_from = next(self.core.state.chunk_ids)

    def _check_entry(self, entry: Entry) -> None:
        """The journal says nothing that is not true."""
        truth = self.truth
        if isinstance(entry, act.JournalSealed):
            for mq, offsets in self.journal.pending.get((entry.worker_id, entry.seq), {}).items():
                for start, end in offsets.pairs():
                    truth.all_finished((mq.topic, mq.queue_id), start, end, "the journal (sealed)")
            return
        if isinstance(entry, act.JournalLost | act.JournalGoesOn | JournalSent | JournalRun):
            return
        key = (entry.mq.topic, entry.mq.queue_id)
        if isinstance(entry, act.JournalDone):
            if not entry.seq:
                truth.all_finished(key, entry.start, entry.end, "the journal")
        elif entry.start < entry.offset > self.journal.queues[entry.mq].committed:
            truth.may_pass(key, entry.offset, "the journal's offset", self.askers.get(entry.mq))

    def _check_others(self, entry: act.Log) -> None:
        """What an only member had finished is forgotten for nobody. (What it has sent, a loss of power may have taken.) What
        is forgotten, the next start does not find in the journal."""
        topic, _, queue_id = str(entry.keys["first"]).rpartition("/")
        mq = MessageQueue(topic, str(entry.keys["broker"]), int(queue_id))
        if known := self.journal.queues[mq].durable:
            raise Violation(f"{entry.event} {entry.keys}, and the journal still knows {known}")
        alone = self.script.members_max == 1 and not self.truth.power_cut
        if alone and (mq.topic, mq.queue_id) not in self.truth.ever_reset:
            raise Violation(f"{entry.event} {entry.keys}, and nobody else was there")

    def _logged(self, entry: act.Log) -> None:
        if entry.event == "others_went_on":
            self._check_others(entry)
        if entry.event == "key_not_found_out":
            self.world.note("a key was not found out")
        if entry.event == "drain_cut_short":
            why = "a stop" if self.core.state.stopping else "a rebalance"
            self.world.note(f"{self.script.order}: a drain was cut short by {why}")
        if self.world.trace is not None:
            self.world.trace.append(f"{self.world.now_ms:.2f}    {self.client_id} {entry.event} {entry.keys}")
        if entry.level == "critical":
            raise Violation(f"{entry.event} {entry.keys}")
        if entry.event == "reset_not_committed" and (moved := queue_of(entry)) is not None:
            self.edge.pushed.given_up(moved)
        if entry.event == "key_not_found_out":
            mq, offset = queue_of(entry), entry.keys["offset"]
            assert mq is not None
            assert isinstance(offset, int)
            self.order.loses_its_key((mq.topic, mq.queue_id), offset)
        self.notebook.logged(entry, self.core.state)

    # --- end ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """TERM."""
        if not self.stopping and self.running:
            self.stopping = True
            queues = self.core.state.queues.values()
            self.held_at_stop = {pq.mq: self._finished_before(pq) for pq in queues if pq.state is QueueState.ASSIGNED}
            self.core.handle(ev.Stop(), self.world.now)

    def _finished_before(self, pq: ProcessQueue) -> Intervals:
        """What a clean stop may leave above the offset: what an earlier assignment finished, and no commit can reach.

        A handler that commits can roll back what was started: everything above that is out of reach, too."""
        finished = Intervals(_above_what_was_started(pq).pairs())
        if not self.script.auto_commit and pq.mq in self.notebook.no_repeat:
            for start, end in self.notebook.no_repeat[pq.mq].pairs():
                finished.add(start, end)
        return finished

    def _core_finished(self, action: act.Finished) -> None:
        self.finished = action
        self.world.note("a clean stop" if action.clean else "a stop past its deadline")
        self.edge.pushed.member_stopped()
        self.edge.sign_off()
        self.pool.stop()

    def workers_left(self) -> None:
        """All workers have left after a stop."""
        self.sealing.end()
        self.edge.close()
        self.alive = False
        self.folder.held = False

    def fail_boot(self) -> None:
        """Its workers cannot boot, so it ends before it has joined the group."""
        if not self.running:
            self.die()

    def stands_still(self, ms: float) -> None:
        """It is stopped, its workers too (SIGSTOP, a machine that sleeps): what comes meanwhile is read when it goes on."""
        self._still_until_ms = self.world.now_ms + ms
        for worker in self.pool.workers.values():
            if worker.alive:
                worker.stands_still(ms)

    def lose_power(self) -> None:
        """As `die`; what was not fsynced need not be there any more."""
        self.die()
        self._known_at_start = {}

    def die(self) -> None:
        """Kill -9: workers go with it (their death signal), the connection too; the folder stays."""
        if not self.alive:
            return
        self.alive = False
        self.folder.held = False
        self.edge.pushed.member_died()
        if not self.running:
            if self._taken_over:
                self.world.note("a start failed after a take-over")
            if self.edge.link is not None:
                raise Violation(f"{self.client_id} did not start, and the group was rebalanced twice for it")
            self._check_failed_start()
        self.folder.cells = dict(self.coroner.cells)
        self.folder.shown = [
            (worker.work.mq, *found)
            for worker in self.pool.workers.values()
            if worker.work is not None and (found := self.parts.shown_by(worker.cell, self._cells_count_from))
        ]
        self.pool.kill_all()
        self.edge.lose()


def _above_what_was_started(pq: ProcessQueue) -> Intervals:
    """What was finished before a restart and lies above all that a worker was given: no commit can reach it."""
    unstarted = [run.begin for run in pq.waiting]
    unstarted += [chunk.begin for chunk in pq.open.values() if chunk.worker_id is None and not chunk.reported]
    return pq.ledger.finished_above(min(unstarted, default=pq.next_offset))
