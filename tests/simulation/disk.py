"""A slot's folder and the shared table, in memory: what a kill leaves is what is here.

Loading is spark/plan.py's: what a plan takes, what it folds into the loaded set. A plan is made at one moment (files of facts
first, then the list of segments) and committed at a later one, unless another slot's loader committed in between. The files
that it was made with are gone then, but for what they say of records that are not loaded (spark/gaps.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import SETTLED, SETTLING, Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.gaps import known, left_of, told
from rocketcrew.spark.plan import PlanBounds, SegmentFacts, first_fitting, make_takes, settled_to_fold
from rocketcrew.supervisor.core.journal import MAGIC, replay

from .coroner import Call
from .script import GROUP
from .truth import Truth
from .world import Violation, World

BLOCK_HEAD_BYTES = 8
"""Of the journal: length and checksum."""
Record = tuple[MessageQueue, int, int]
"""(queue pulled from, offset, rows)."""


def loader_key(mq: MessageQueue) -> QueueKey:
    return QueueKey(GROUP, mq.topic, mq.broker_name, mq.queue_id)


@dataclass
class Segment:
    """One results file: whole batches in the order of writing; each lists its rows' records and all it finished."""

    worker_id: str
    seq: int
    rows: list[Record] = field(default_factory=list)
    finished: list[tuple[MessageQueue, int]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """After each write: how many records have rows, and how many are finished."""
    salvaged: list[tuple[MessageQueue, int]] = field(default_factory=list)
    """What counts as finished when it is loaded, also without rows, because its worker died before it reported."""

    @property
    def token(self) -> tuple[str, int]:
        return self.worker_id, self.seq

    def facts(self) -> SegmentFacts:
        by_queue: dict[MessageQueue, list[int]] = {}
        for mq, offset, _ in self.rows:
            by_queue.setdefault(mq, []).append(offset)
        repeats = any(len(set(offsets)) != len(offsets) for offsets in by_queue.values())
        sets = OffsetSet.of((loader_key(mq), IntervalSet.from_offsets(offsets)) for mq, offsets in by_queue.items())
        rows = sum(count for _, _, count in self.rows)
        finished = OffsetSet.of((loader_key(mq), IntervalSet.from_offsets([offset])) for mq, offset in self.finished)
        return SegmentFacts(
            f"{self.worker_id}-{self.seq}", 100 * rows, rows, sets, repeats, (), finished=finished
        )  # fmt: skip


class Folder:
    """One slot: journal, segments, files of facts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.journal = bytearray()
        self.journal_synced = 0
        """So many bytes of it outlive a loss of power."""
        self.open: dict[tuple[str, int], Segment] = {}
        self.ready: dict[tuple[str, int], Segment] = {}
        self.facts: list[Outcomes] = []
        """Sealed files: what became of messages without rows, and what is settled."""
        self.unsynced_facts: list[Outcomes] = []
        """The same in files that a loss of power takes; only a planted bug writes such."""
        self.left = Outcomes()
        """What its loader left of the files that commits have taken."""
        self.offsets: dict[MessageQueue, int] = {}
        """A broadcasting member's file of offsets."""
        self.charges = ""
        """The file of worker deaths."""
        self.cells: dict[str, Call] = {}
        """What the workers of a dead run had in hand."""
        self.shown: list[tuple[MessageQueue, int, int]] = []
        """What the cells of a dead run show of records that ended and that no report has."""
        self.held = False
        self.load_wanted = False
        """Its member waits for the loader."""

    def lose_power(self, world: World) -> None:
        """Of what was not fsynced, a part is left. An open segment keeps whole batches: a torn or zeroed one ends what is
        salvaged. The journal is cut off, or ends in zeros, or has zeros in the place of some blocks before others. Of facts
        that were not synced nothing is left."""
        random = world.random
        self.unsynced_facts, self.shown = [], []
        for segment in self.open.values():
            kept = random.randrange(len(segment.batches) + 1)
            rows, finished = segment.batches[kept - 1] if kept else (0, 0)
            if kept < len(segment.batches):
                world.note("power loss: a segment was torn")
            del segment.rows[rows:], segment.finished[finished:], segment.batches[kept:]
        whole = len(self.journal)
        kept = random.randint(min(self.journal_synced, whole), whole)
        if kept == whole:
            return
        how = (kept + whole) % 3  # no draw: it would make every seed another world
        start, end = hole(self.journal, kept)
        if how == 0:
            world.note("power loss: the journal was cut")
            del self.journal[kept:]
        elif how == 1 or end == whole:
            world.note("power loss: the journal ends in zeros")
            self.journal[kept:] = bytes(whole - kept)
        else:
            world.note("power loss: zeros between blocks of the journal")
            self.journal[start:end] = bytes(end - start)

    def noted(self) -> Outcomes:
        """What its facts say."""
        return Outcomes.union([*self.facts, *self.unsynced_facts, self.left])

    def accounts_for(self, key: QueueKey) -> IntervalSet:
        """The offsets of a queue of which its facts and sealed segments say what became of them."""
        offsets = IntervalSet.of([])
        for records in self.noted().without(SETTLED).kinds.values():
            offsets |= records.of_queue(key)
        for segment in self.ready.values():
            facts = segment.facts()
            offsets |= facts.offsets.of_queue(key) | facts.finished.of_queue(key)
        return offsets

    def floor(self, topic: str, queue_id: int) -> int | None:
        """What its journal knows as committed, None = nothing."""
        state, _ = replay(bytes(self.journal), "journal")
        floors = [log.committed for mq, log in state.queues.items() if (mq.topic, mq.queue_id) == (topic, queue_id)]
        return floors[0] if floors else None

    def seal(self, segment: Segment, truth: Truth) -> None:
        """The rename: from here on its rows are safe, unless only the table's are."""
        del self.open[segment.token]
        self.ready[segment.token] = segment
        if not truth.only_loaded_counts:
            for mq, offset, _ in segment.rows:
                truth.finished((mq.topic, mq.queue_id), offset)


def hole(journal: bytearray, at: int) -> tuple[int, int]:
    """Where whole blocks from `at` on may be zeros: a multiple of eight bytes, so that who takes eight zeros for an empty
    block comes upon the one after them. The end is the journal's if there is no such place."""
    starts: list[int] = []
    begin = len(MAGIC)
    while begin < len(journal):
        starts.append(begin)
        begin += BLOCK_HEAD_BYTES + int.from_bytes(journal[begin : begin + 4], "little")
    first = next((start for start in starts if start >= at), len(journal))
    return first, next((end for end in starts if end > first and (end - first) % 8 == 0), len(journal))


class Table:
    """Where all slots' loaders put rows."""

    def __init__(self, world: World, truth: Truth) -> None:
        self.world = world
        self.truth = truth
        self.rows: dict[tuple[str, int, int], int] = {}
        """(topic, queue id, offset) -> rows of it."""
        self.loaded = OffsetSet()
        self.version = 0

    def load(self, folder: Folder, *, all_of_it: bool = False) -> None:
        """Begin a batch of one slot; it is committed a little later."""
        noted, files = folder.noted(), [*folder.facts, *folder.unsynced_facts]
        settled = noted.of_kind(SETTLED)
        waiting = list(folder.ready.values())
        if not waiting:
            return
        facts = [segment.facts() for segment in waiting]
        gaps = settled - self.loaded - known(facts, OffsetSet(), noted)
        if gaps:
            raise Violation(f"settled, and nobody knows what became of it: {told(gaps)}")
        count = len(waiting)
        if not all_of_it and self.world.chance(0.3):
            count = first_fitting(facts, PlanBounds(self.world.random.randrange(1, 60), 1 << 30))
            self.world.note("a batch left segments behind" if count < len(waiting) else "a batch took all")
        finished = OffsetSet.union([settled, *(noted.of_kind(kind) for kind in SETTLING)])
        fold = settled_to_fold(finished, facts[count:], OffsetSet())
        if all_of_it:
            self._commit(folder, waiting[:count], facts[:count], files, fold, self.version)
        else:
            self.world.after(
                5 + self.world.random.random() * 200,
                self._commit, folder, waiting[:count], facts[:count], files, fold, self.version,
            )  # fmt: skip

    def _commit(
        self, folder: Folder, segments: list[Segment], facts: list[SegmentFacts], files: list[Outcomes], fold: OffsetSet,
        version: int,
    ) -> None:  # fmt: skip
        if any(segment.token not in folder.ready for segment in segments):
            return  # another batch of the slot, or another slot, took them
        if version != self.version:
            self.world.note("a plan was made again")
        taken = OffsetSet()
        for segment, take in zip(segments, make_takes(facts, self.loaded), strict=True):
            here: set[tuple[str, int, int]] = set()
            part = take.of(segment.facts().offsets)
            for mq, offset, rows in segment.rows:
                key = (mq.topic, mq.queue_id, offset)
                if offset not in part.of_queue(loader_key(mq)) or key in here:
                    self.world.note("rows that the table has were left out")
                    continue
                here.add(key)
                if key in self.rows:
                    raise Violation(f"the table gets rows of {key} twice")
                self.rows[key] = rows
            taken |= part | segment.facts().finished
        self.loaded = self.loaded | taken | fold
        self.version += 1
        self.world.note("a batch was loaded")
        folder.left = self.left_of(Outcomes.union([*files, folder.left]))
        if folder.left:
            self.world.note("a batch left facts")
        for sealed in (folder.facts, folder.unsynced_facts):
            sealed[:] = [file for file in sealed if not any(file is taken for taken in files)]
        for segment in segments:
            del folder.ready[segment.token]
            if self.truth.only_loaded_counts:
                for mq, offset in (*((mq, offset) for mq, offset, _ in segment.rows), *segment.salvaged):
                    self.truth.finished((mq.topic, mq.queue_id), offset)

    def left_of(self, noted: Outcomes) -> Outcomes:
        """What is needed later of the facts that a commit has taken."""
        return left_of(noted, self.loaded, self.loaded, ())
