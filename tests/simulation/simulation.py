"""One run: members, broker, producer, loader and faults in one world; invariants after every step; the reckoning at the end.

The first part plays `steps` events with faults between them. Then everything is made to work, and the world must come to
rest within a bounded time, with every message accounted for: done and in the table, or in the dead-letter topic, none lost.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from rocketcrew.durable.intervals import IntervalSet
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.states import QueueState

from . import bounds
from .broker_host import BrokerHost
from .disk import Folder, loader_key
from .faults import Faults
from .member import SimMember
from .order_truth import OrderTruth
from .parts import Parts
from .script import BACKLOG_BURSTS, BROKER, DLQ_TOPIC, MANY_QUEUES, RETRY_TOPIC, Script
from .truth import QueueKey, Truth
from .world import Violation, World

REST_MS = 90_000
REST_STEPS = 60_000
LOOK_EVERY_STEPS = 8
"""What is kept is looked at thing by thing, see bounds.py: not after each step."""


class Simulation:
    """Built from a seed; `run` raises Violation (or whatever the core raises) when something is wrong."""

    def __init__(self, seed: int, parts: Parts | None = None, *, trace: bool = False) -> None:
        self.world = World(seed)
        if trace:
            self.world.trace = []
        self.parts = parts or Parts()
        self.script = Script.draw(self.world.random).focused(self.parts.focus, self.parts.script)
        if self.script.queues == MANY_QUEUES:
            self.world.note("many queues and workers")
        if self.script.rows_always:
            self.world.note("rows in every message of a backlog")
        self.truth = Truth(self.world)
        self.broker = BrokerHost(self.world, self.script, self.truth)
        self.truth.is_filtered = self.broker.is_filtered
        if self.script.order != "concurrent":
            self.truth.order = OrderTruth(self.world, self.broker.lane)
            self.truth.order.is_done = self._nothing_to_run
        self.truth.max_offset = self.broker.max_offset
        self.truth.claims_all = self.script.claims_all
        self.truth.deaths.one_ledger = self.script.members_max == 1
        self.truth.strict_resets = self.script.members_max == 1
        self.truth.only_loaded_counts = self.script.commit_after_loaded
        self.table = self.parts.table_class(self.world, self.truth)
        self.truth.accounted = self._accounted
        self.folders: list[Folder] = []
        self.members: list[SimMember] = []
        """Those that live, and those that ended and are not forgotten yet."""
        self.letters_counted = 0
        """Dead letters, by members that have ended."""
        self.lives_on: SimMember | None = None
        """This one is not killed."""
        self.next_boot_fails = False
        self.transitions: Counter[tuple[Enum, Enum]] = Counter()
        self.faults = Faults(self)
        self._names = 0

    def _nothing_to_run(self, key: QueueKey, offset: int) -> bool:
        truth = self.truth
        return (
            offset in truth.retried.get(key, ())
            or offset < truth.skipped_ever.get(key, 0)
            or self.broker.is_filtered(key, offset)
        )

    def _accounted(self, key: QueueKey) -> IntervalSet:
        offsets = self.table.loaded.of_queue(loader_key(MessageQueue(key[0], BROKER, key[1])))
        for folder in self.folders:
            offsets |= folder.accounts_for(loader_key(MessageQueue(key[0], BROKER, key[1])))
        return offsets

    def run(self, steps: int) -> None:
        for _ in range(self.script.members):
            self.start_member()
        self.world.after(1, self._produce)
        self.world.after(300, self._load)
        world = self.world
        while world.steps < steps:
            if world.random.random() < self.script.fault_rate:
                self.faults.one()
            self._step()
        self._settle()

    def _step(self) -> None:
        self.world.step()
        for member in self.members:
            if member.alive:
                self._check(member)
        if any(not member.alive for member in self.members):
            self._bury()

    # --- members ------------------------------------------------------------------------------------------------

    def start_member(self) -> None:
        """Start a process on the lowest free slot; sometimes it takes over the slots that nobody holds."""
        free = [folder for folder in self.folders if not folder.held]
        folder = free[0] if free else Folder(len(self.folders))
        if not free:
            self.folders.append(folder)
        dead = free[1:] if self.world.chance(0.5) or self.world.calm else []
        self._names += 1
        name = f"10.0.0.{self.world.random.randrange(1, 9)}@{self._names}"
        member = SimMember(self.world, self.script, self.truth, self.broker, folder, dead, name, self.parts)
        self.members.append(member)
        if self.next_boot_fails:
            self.next_boot_fails = False
            self.world.after(self.world.random.random() * self.script.boot_fails_ms, member.fail_boot)

    def living(self) -> list[SimMember]:
        return [member for member in self.members if member.alive]

    def _bury(self) -> None:
        """Forget the dead; in their place another is started soon."""
        for member in [member for member in self.members if not member.alive]:
            self.members.remove(member)
            self._count(member)
            self._check_end(member)
            if not self.living() or self.world.chance(0.7):
                self.world.after(5 + self.world.random.random() * self.script.restart_ms, self._start_again)

    def _start_again(self) -> None:
        unheld = any(not folder.held for folder in self.folders)
        if len(self.living()) < self.script.members_max or (self.world.calm and unheld):
            self.start_member()

    def _check_end(self, member: SimMember) -> None:
        """A clean stop leaves nothing finished above what was committed.

        Except where the handler commits: a message that was sent back stays above those that it has not committed, as in
        Java (ConsumeMessageOrderlyService.processConsumeResult commits after a send-back only with autoCommit).
        """
        finished = member.finished
        if finished is None or not finished.clean:
            return
        for mq, (_, done) in member.core.state.recovered.items():
            before = member.held_at_stop.get(mq)
            if before is None:
                continue
            sent = () if self.script.auto_commit else self.truth.retried.get((mq.topic, mq.queue_id), ())
            above = [at for start, end in done.pairs() for at in range(start, end) if at not in before]
            if any(at not in sent for at in above):
                raise Violation(f"{member.client_id} stopped cleanly, but {above} of {mq} are above the offset")

    # --- invariants ---------------------------------------------------------------------------------------------

    def _check(self, member: SimMember) -> None:
        state = member.core.state
        slab = state.slab
        if state.counters.invariant_violations:
            raise Violation("counters.invariant_violations is not 0")
        if not 0 <= slab.used_units <= slab.units or slab.reserved_units > slab.units:
            raise Violation(f"slab: {slab.used_units} used, {slab.reserved_units} reserved of {slab.units}")
        if not self.world.steps % LOOK_EVERY_STEPS:
            bounds.check(state, self.script)
            member.pool.check_reported()

    # --- the world around ---------------------------------------------------------------------------------------

    def _produce(self) -> None:
        """Messages in bursts, until there are enough."""
        random = self.world.random
        if len(self.broker.sent) < self.script.messages_max and not self.world.calm:
            for _ in range(random.choice(BACKLOG_BURSTS if self.script.rows_always else self.script.bursts)):
                self.broker.produce(random.randrange(self.script.queues))
            self.world.after(random.expovariate(1 / 60), self._produce)

    def _load(self) -> None:
        """One slot's loader makes a batch."""
        for folder in self.folders:
            if folder.load_wanted:
                folder.load_wanted = False
                self.world.note("a load was asked for")
                self.table.load(folder, all_of_it=True)
        if self.folders:
            folder = self.world.random.choice(self.folders)
            if not (self.script.commit_after_loaded and folder in self._stopping()):
                self.table.load(folder)
        self.world.after(50 + self.world.random.random() * 500, self._load)

    def _stopping(self) -> list[Folder]:
        """Folders whose loaders get nothing more by themselves: a batch that is not asked for may be due in an hour."""
        return [member.folder for member in self.members if member.alive and member.core.state.stopping]

    # --- the end ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """No more faults: everybody is there, everything works, until nothing is left to do. Then all stop."""
        self._rest()
        self._stop_all()
        for folder in self.folders:
            self.table.load(folder, all_of_it=True)
        self._reckon()

    def _rest(self) -> None:
        self.world.calm = True
        self.faults.end()
        world = self.world
        until, most = world.now_ms + REST_MS, world.steps + REST_STEPS
        while not self._at_rest():
            if world.now_ms > until or world.steps > most:
                raise Violation(f"does not come to rest: {self._unrest()}")
            for _ in range(20):
                self._step()

    def _committed(self, key: QueueKey) -> int | None:
        """The group's offset at the broker, or that of the one member's file when it broadcasts."""
        if not self.script.broadcasting:
            return self.broker.committed(key)
        return self.folders[0].offsets.get(MessageQueue(key[0], BROKER, key[1]))

    def _at_rest(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        """What is still to be done, in words; empty when the world is at rest."""
        core = self.broker.core
        if core is None:
            return "the broker is down"
        if core.state.delays.next_due_ms() is not None:
            return "messages are delayed"
        if not self.living() or not all(member.running for member in self.living()):
            return "no member runs"
        for key in self.broker.queues():
            if self.broker.max_offset(key) and self._committed(key) != self.broker.max_offset(key):
                owners = [
                    (
                        member.client_id,
                        q.pq.state.name,
                        q.committed,
                        q.pq.next_offset,
                        q.pq.unfinished,
                        q.starved,
                        q.blocked,
                    )
                    for member in self.living()
                    for q in member.core.state.pulled.values()
                    if (q.pq.mq.topic, q.pq.mq.queue_id) == key
                ]
                return f"{key} is at {self._committed(key)} of {self.broker.max_offset(key)}, held by {owners}"
        for member in self.living():
            state = member.core.state
            if any(pq.state is not QueueState.ASSIGNED for pq in state.queues.values()):
                return f"{member.client_id} rebalances"
            waits = state.redo or state.quarantine or state.waiting_messages
            if any(q.commit_asked >= 0 for q in state.pulled.values()):
                return f"{member.client_id} commits"
            if state.slab.used_units or state.chunks or state.unsealed or waits:
                return f"{member.client_id} holds {state.slab.used_units} units, chunks {list(state.chunks)}"
        return ""

    def _stop_all(self) -> None:
        """Everybody stops in order, and nothing is left that would be repeated."""
        for member in self.living():
            member.event(member.stop)
        until = self.world.now_ms + 20_000
        stopping = self.living()
        while any(member.alive for member in stopping):
            if self.world.now_ms > until:
                raise Violation("a member does not stop")
            self.world.step()
        for member in stopping:
            self._count(member)
            left = member.finished
            if left is None or not left.clean:
                raise Violation(f"{member.client_id} did not stop cleanly at rest: {left}")
            self._check_end(member)

    def _reckon(self) -> None:
        """Every record is in the table, or has no rows, or was sent back; every message was done or dead-lettered."""
        truth = self.truth
        done: set[int] = set()
        for key in self.broker.queues():
            finished = truth.finished_ms.get(key, {})
            for offset, number in enumerate(self.broker.numbers_in(key)):
                in_table = (*key, offset) in self.table.rows
                if in_table or offset in truth.without_rows.get(key, ()):
                    done.add(number)
                elif offset in truth.retried.get(key, ()):
                    continue
                elif offset < truth.skipped_below.get(key, 0) or self.broker.is_filtered(key, offset):
                    done.add(number)
                else:
                    raise Violation(
                        f"record {key} {offset} (message {number}) is lost: finished {finished.get(offset)}"
                    )
        lost = set(self.broker.sent) - done - self.broker.dead_letters()
        if lost:
            raise Violation(f"messages are lost: {sorted(lost)}")
        for key, offset, rows in ((row[:2], row[2], rows) for row, rows in self.table.rows.items()):
            if not rows or offset >= self.broker.max_offset(key):
                raise Violation(f"the table has rows of {key} {offset}, which is no record")
        for key in self.broker.queues():
            truth.gaps_named(key)
        if self.letters_counted > self.broker.letters():
            raise Violation(f"{self.letters_counted} dead letters are counted, of {self.broker.letters()}")
        self._check_segments()
        self._note_what_happened()

    def _check_segments(self) -> None:
        """Rows of a backlog leave few segments: full ones, unless something leaves, ends or idles."""
        happened = self.world.happened
        segments, rows = happened["sealed: rows"] + happened["sealed: much waits for it"], happened["rows sealed"]
        most = self.script.segments_max(rows, happened["workers"])
        if self.script.rows_always and segments > most:
            raise Violation(f"{rows} messages with a row each were sealed into {segments} segments, {most} are enough")

    def _count(self, member: SimMember) -> None:
        """Figures of a member that has ended."""
        self.transitions.update(member.core.state.seen)
        counters = member.core.state.counters
        self.letters_counted += counters.dead_letter_messages
        for name in ("late_reports", "late_answers", "discarded_failures", "salvaged_messages", "skipped_messages"):
            if count := getattr(counters, name):
                self.world.happened["counted: " + name] += count

    def _note_what_happened(self) -> None:
        happened = self.world.happened
        if self.broker.max_offset((RETRY_TOPIC, 0)):
            happened["a message was retried"] += 1
        if self.broker.max_offset((DLQ_TOPIC, 0)):
            happened["a message was dead-lettered"] += 1
        if self.truth.repeats():
            happened["a message ran again"] += self.truth.repeats()
