"""Comparing a table with what it should hold: every offset of every queue gets one word, or is unexplained. Pure.

    loaded       it has rows in the table
    sent_back    it failed, and went to the group's retry topic (whose queues are looked at too)
    dead_letter  it failed for good, and went to the dead-letter topic
    no_rows      its handler returned none
    filtered     its tag was not asked for
    recovered    it was finished just before a kill -9 that took the last notes along: no rows, sent back or dead letter; only
                 where the brokers cannot say which (cli/sent_on.py)
    compacted    its topic keeps the newest message of each key, and the broker has dropped it (cleanup.policy COMPACTION)
    forgotten    its batch is older than spark.keep_outcomes_days, and nothing more is known of it
    waiting      its rows are sealed and not loaded yet, or the group has not committed it yet (also where a broker passed it
                 over: it will be pulled once more); where brokers were not asked, that nobody says what became of it
    skipped      the group was reset past it
    lost         the broker had deleted it before the group read it; nothing can bring it back, and the report says so
    elsewhere    POP: the broker had shown it to the group, or passed it over for its tag, and this table's members did not
                 have it: another one did, or its time was over and it came again from the retry topic
    before       the group began after it, or the broker deleted it unread before that; of a queue of which nothing is known
                 here, all that is committed, whoever has finished it; in retry topics, whose offsets go on when the group
                 is re-run, another epoch has it. Where no staging folder was looked into, rows that were set
                 aside at the beginning would look the same (`unseen`). Where batches are lost with an earlier table, they may
                 have had it: then nothing is `before`, but unknown

Unexplained is what none of these says:

    quarantined  its rows are in a segment that the loader has set aside (bad/): damaged, or of columns that do not fit
    undelivered  the broker passed it over, though everything of its topic is subscribed: its log is damaged or its files were
                 deleted meanwhile, or another member of the group subscribes less (then the broker has it, and `--rerun` too)
    missing      the ledger says that its rows were loaded, and the table does not have them
    unknown      the group has passed it, or a supervisor says that it is finished, and nobody noted what became of it: so
                 are the records of a sealed segment that vanished before it was loaded, and those that came before the
                 group's old offset into a topic that was made again, or in place of the end that a failover cost a queue
                 (`made_again` says which of these are found), and those that a batch has loaded without rows, or that have
                 none any more, and its outcomes are gone (`untold`)
    overlap      the table has its rows more than once
    foreign      the table has rows of it that the ledger knows nothing of

So is a queue of the ledger that no broker knows now (`not_at_brokers`): what the group had not read of it has no offset here.

From the first record that anybody knows on, up to the last one or to what the group has committed, each offset has its word
whatever the broker still has: what it has deleted since stays unexplained, and cannot be run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from ..conf.units import US_PER_MS
from ..durable.intervals import OFFSET_MAX, IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import (
    DEAD_LETTER,
    ELSEWHERE,
    FILTERED,
    FORGOTTEN,
    KINDS,
    LOST,
    NO_ROWS,
    NOT_ACCOUNTED,
    RECOVERED,
    ROWS,
    SENT_BACK,
    SKIPPED,
    UNDELIVERED,
    Outcomes,
)
from ..remoting.names import RETRY_PREFIX
from .cuts import NO_TOP, newer_than
from .plan import Cut, Ends, Top


class Fate(StrEnum):
    """What became of an offset."""

    LOADED = "loaded"
    SENT_BACK = "sent_back"
    DEAD_LETTER = "dead_letter"
    NO_ROWS = "no_rows"
    FILTERED = "filtered"
    RECOVERED = "recovered"
    COMPACTED = "compacted"
    FORGOTTEN = "forgotten"
    WAITING = "waiting"
    SKIPPED = "skipped"
    LOST = "lost"
    ELSEWHERE = "elsewhere"
    BEFORE = "before"
    MISSING = "missing"
    UNKNOWN = "unknown"
    OVERLAP = "overlap"
    FOREIGN = "foreign"
    QUARANTINED = "quarantined"
    UNDELIVERED = "undelivered"


RUN_AGAIN: Final = (Fate.MISSING, Fate.UNKNOWN, Fate.QUARANTINED, Fate.UNDELIVERED)
"""What is not in the table and should be."""
UNEXPLAINED: Final = (Fate.QUARANTINED, Fate.UNDELIVERED, Fate.MISSING, Fate.UNKNOWN, Fate.OVERLAP, Fate.FOREIGN)
MOVES_ROWS: Final = (Fate.MISSING, Fate.OVERLAP, Fate.FOREIGN)
"""Of these, what explains that the table has another number of rows than were loaded. Of the others none were loaded, but of
unknown ones that are too old to be told apart (FORGOTTEN_PIECES_MAX): there the number is named too."""

COMPARED: Final = (0, 1, 10, 100, 1_000)
"""Which of the records with rows of a queue are compared with those of its broker, from the lowest on: a record that was
dropped by compaction, or lies on a bad page, has some beside it that were too. The first that a broker gives decides, unless
it is another one."""
COMPARED_ABOVE: Final = (0, 10, 100, 1_000, 10_000)
"""Which are compared besides, from the highest on, and the last before each pause that the ledger knows: a failover to a
replica whose log ends earlier leaves the lowest, and has others from there up to where the group went on. So a queue is asked
for a dozen records at most; where one is another one, its broker says which is the first."""


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """What the cluster says of one queue: `[min, max)` is there; the group has `committed`, None = nothing yet."""

    min: int
    max: int
    committed: int | None
    read: bool = True
    """Whether the topic has the queue for readers now: brokers refuse pulls from one beyond those."""


Times = Mapping[QueueKey, Mapping[int, int]]
"""When records were stored, by queue and offset."""


class Others(NamedTuple):
    """Offsets of a queue of which its broker has other records than the table. `newer`: their store times are later, which
    tells the loader that they are of a new epoch; otherwise it takes them for loaded, or sets them aside."""

    offsets: IntervalSet
    newer: bool
    since_ms: int = 0
    """When the first of them was stored at the earliest, where the table's own records lie below; 0: all are others."""


class Search(NamedTuple):
    """What a broker is asked: which of its records in `low..high` is the first that was stored after all that is loaded up to
    `high`, whose own record is another one."""

    low: int
    high: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the table's files and its ledger say.

    `present`: records with rows; `overlaps`: those with more than one first row. `loaded`: the loaded set. `waiting`: records
    of sealed segments; `quarantined`: those of files in bad/. `rows`: how many are there, and how many were loaded; None =
    some batch does not say.
    """

    present: OffsetSet
    overlaps: OffsetSet
    loaded: OffsetSet
    outcomes: Outcomes
    waiting: OffsetSet = field(default_factory=OffsetSet)
    rows: tuple[int, int] | None = None
    settled: OffsetSet = field(default_factory=OffsetSet)
    """What supervisors have finished; of that, what has rows is `waiting` or in the table."""
    quarantined: OffsetSet = field(default_factory=OffsetSet)
    tops: Mapping[QueueKey, Top] = field(default_factory=dict[QueueKey, Top])
    """What the ledger knows of store times."""
    batches: tuple[int, int] = (0, 0)
    """The table's last batch, and how many it must have had by what the loaders of the folders say."""
    needless: tuple[str, ...] = ()
    """Files in bad/ that were of no epoch, and of which the table has each record by now."""
    batches_lost: int = 0
    """How many batches the table had before it was removed or taken back, without which its loaders have gone on."""
    topics_lost: Collection[str] | None = None
    """The topics of which these may have had records; None: any."""
    later: tuple[str, ...] = ()
    """What is said of files that a later version has made: what became of the records in them is not known here."""
    untold: IntervalSet = field(default_factory=IntervalSet)
    """Among which batches are those whose outcomes are gone."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue: its offsets by fate, none named twice but overlaps (which are loaded too)."""

    key: QueueKey
    ends: QueueEnds | None
    fates: Mapping[Fate, IntervalSet]
    out_of_reach: IntervalSet = field(default_factory=IntervalSet)
    """What nobody can run again: no broker has it or gives it, or a later epoch of the queue has begun."""
    unseen: IntervalSet = field(default_factory=IntervalSet)
    """What is BEFORE only because nothing that was looked into knows of it, or would be if brokers were asked."""
    made_again: IntervalSet = field(default_factory=IntervalSet)
    """Of these offsets brokers have other records than the table: they wait, or nobody has handled them. A plain re-run would
    put their rows beside those of the others."""
    newer: bool = True
    """Of what was made again: as `Others` has it."""
    since_ms: int = 0
    """The same."""
    not_at_brokers: bool = False
    """Brokers were asked for this very queue, and none knows it."""
    not_compared: str = ""
    """Why its broker did not say whether it has the records that the table has: it may have others in their place."""
    known: bool = True
    """Whether anything that was looked into knows of the queue."""

    @property
    def unexplained(self) -> IntervalSet:
        """Offsets that nothing explains."""
        return self._of(UNEXPLAINED)

    @property
    def to_run_again(self) -> IntervalSet:
        """What is not in the table, should be, and may still be had."""
        return self._of(RUN_AGAIN) - self.out_of_reach - self.made_again

    @property
    def gone(self) -> IntervalSet:
        """What is not in the table, should be, and cannot be run again."""
        return self._of(RUN_AGAIN) & self.out_of_reach

    def _of(self, fates: Iterable[Fate]) -> IntervalSet:
        return _joined(self.fates.get(fate, IntervalSet()) for fate in fates)


@dataclass(frozen=True, slots=True)
class Report:
    """All queues. `rows`: how many there are and were loaded, where that differs and no record explains it (MOVES_ROWS)."""

    queues: tuple[QueueReport, ...]
    rows: tuple[int, int] | None
    rows_lost: int = 0
    """How many rows fewer than were loaded the table has; 0 where a re-run has no missing record, and so brings none back."""
    loaded: OffsetSet = field(default_factory=OffsetSet)
    """The table's loaded set, when it was looked at."""
    batches: tuple[int, int] | None = None
    """The table's last batch, and how many it must have had, where these are more: it was taken away or back."""
    needless: tuple[str, ...] = ()
    batches_lost: int = 0
    topics_lost: Collection[str] | None = None
    later: tuple[str, ...] = ()
    untold: IntervalSet = field(default_factory=IntervalSet)
    """All as `TableFacts` has them."""

    @property
    def fine(self) -> bool:
        """Whether everything is explained."""
        if self.rows is not None or self.batches is not None or self.unseen_lost:
            return False
        return not any(one.unexplained or one.not_at_brokers or one.not_compared for one in self.queues)

    @property
    def lost(self) -> int:
        """How many messages the brokers had deleted before the group read them."""
        return self._counted(Fate.LOST)

    @property
    def elsewhere(self) -> int:
        """How many messages of queues that are popped this table's members did not have."""
        return self._counted(Fate.ELSEWHERE)

    @property
    def unseen(self) -> int:
        """How many messages there are, or may have been, before the first that anything knows that was looked into."""
        return sum(queue.unseen.count() for queue in self.queues)

    @property
    def unseen_lost(self) -> bool:
        """Whether some of that may have been in batches that are lost."""
        return any(queue.unseen and may_have_lost(self, queue.key) for queue in self.queues)

    @property
    def only_before(self) -> int:
        """How many messages are BEFORE because nothing at all is known here of their queue."""
        return sum(one.fates[Fate.BEFORE].count() for one in self.queues if not one.known and Fate.BEFORE in one.fates)

    @property
    def unknown(self) -> OffsetSet:
        """What nobody says anything of."""
        return OffsetSet.of((one.key, one.fates[Fate.UNKNOWN]) for one in self.queues if Fate.UNKNOWN in one.fates)

    def as_told(self, told: Mapping[Fate, OffsetSet]) -> Report:
        """The same, with what brokers know better of records that left no rows: each of these has that fate and no other."""
        return replace(self, queues=tuple(_told(queue, told) for queue in self.queues)) if told else self

    def with_not_compared(self, why: Mapping[QueueKey, str]) -> Report:
        """The same, where brokers did not answer what they have of these queues."""
        queues = (replace(one, not_compared=why.get(one.key, one.not_compared)) for one in self.queues)
        return replace(self, queues=tuple(queues)) if why else self

    def with_made_again(self, found: Mapping[QueueKey, Others], table: TableFacts) -> Report:
        """The same, where brokers have other records of `found` than the table: of those that the loader tells apart, what is
        sealed waits. What supervisors say they have finished does not: that has no store times, so it may be the records of
        the topic before."""
        all_others = OffsetSet.of((key, one.offsets) for key, one in found.items())
        sealed = OffsetSet.of((key, one.offsets) for key, one in found.items() if one.newer) & table.waiting
        told = self.as_told({Fate.WAITING: sealed, Fate.UNKNOWN: all_others - sealed})
        queues = (
            replace(one, made_again=others.offsets, newer=others.newer, since_ms=others.since_ms)
            if (others := found.get(one.key))
            else one
            for one in told.queues
        )
        return replace(told, queues=tuple(queues))

    def not_named(self, group: str) -> list[QueueKey]:
        """The queues of the group, in epoch 0, that something here knows and no broker has named."""
        named = {queue.key.in_epoch(0) for queue in self.queues if queue.ends is not None}
        return sorted({queue.key.in_epoch(0) for queue in self.queues if queue.key.group == group} - named)

    def _counted(self, fate: Fate) -> int:
        return sum(queue.fates[fate].count() for queue in self.queues if fate in queue.fates)

    def to_run_again(self) -> OffsetSet:
        """What is not in the table and should be: missing, unknown and quarantined records, as far as brokers have them.

        Of each queue's newest epoch: of an earlier one they may not be there any more; what a deliberate re-run left of it
        stays named.
        """
        return OffsetSet.of((queue.key, queue.to_run_again) for queue in self.queues)

    def to_reopen(self) -> OffsetSet:
        """Of these, what the table takes for loaded. What another loader brings in the meantime is none of it."""
        return self.to_run_again() & self.loaded


def reconcile(table: TableFacts, cluster: Mapping[QueueKey, QueueEnds | None] | None) -> Report:
    """The report; `cluster` None = the brokers were not asked, so only what the ledger knows is looked at.

    The cluster's ends are those of each queue's newest epoch; None = no broker knows the queue, although it was asked for.
    """
    keys = {
        *table.loaded.queues, *table.present.queues, *table.outcomes.without(ELSEWHERE).queues(), *table.waiting.queues,
        *table.quarantined.queues,
    }  # fmt: skip
    newest = {key.in_epoch(0): key for key in sorted(keys)}
    ends = {newest.get(key, key): found for key, found in (cluster or {}).items()}
    others = _other_epochs(table, keys)
    queues = tuple(
        replace(
            _queue(
                table, key, ends.get(key), others.get(key, IntervalSet()),
                open_=cluster is None and newest.get(key.in_epoch(0), key) == key,
            ),
            not_at_brokers=key in ends and ends[key] is None,
        )
        for key in sorted(keys | ends.keys())
    )  # fmt: skip
    explained = any(fate in queue.fates for queue in queues for fate in MOVES_ROWS)
    found, loaded = table.rows or (0, 0)
    rows = table.rows if found != loaded and not explained else None
    replaced = any(queue.fates.get(Fate.MISSING, IntervalSet()) - queue.out_of_reach for queue in queues)
    batches = table.batches if table.batches[0] < table.batches[1] else None
    return Report(
        queues, rows, loaded - found if replaced else 0, table.loaded, batches, table.needless, table.batches_lost,
        table.topics_lost, table.later, table.untold,
    )  # fmt: skip


def may_have_lost(one: TableFacts | Report, key: QueueKey) -> bool:
    """Whether batches are lost that may have had records of this queue. Of a topic that the table did not know when its
    loaders took it on, the group began where its first record is."""
    return one.batches_lost > 0 and (one.topics_lost is None or key.topic in one.topics_lost)


def to_compare(report: Report) -> dict[QueueKey, tuple[int, ...]]:
    """Of each queue that the group has passed something of, a few records of which the table has rows and a broker may have a
    message (COMPARED), lowest first."""
    return {key: tuple(_at_ranks(there, COMPARED)) for key, there in _comparable(report)}


def to_compare_above(report: Report, tops: Mapping[QueueKey, Top]) -> dict[QueueKey, tuple[int, ...]]:
    """The same from the highest on, and those before pauses (COMPARED_ABOVE), lowest first."""
    found: dict[QueueKey, tuple[int, ...]] = {}
    for key, there in _comparable(report):
        count = there.count()
        from_top = _at_ranks(there, sorted(count - 1 - rank for rank in COMPARED_ABOVE if rank < count))
        found[key] = tuple(
            sorted({*from_top, *(cut.below for cut in tops.get(key, NO_TOP).cuts if cut.below in there)})
        )
    return found


def _comparable(report: Report) -> Iterator[tuple[QueueKey, IntervalSet]]:
    for queue in report.queues:
        ends = queue.ends
        if ends is None or not ends.read or ends.committed is None or ends.committed <= ends.min:
            continue
        there = queue.fates.get(Fate.LOADED, IntervalSet()) & _span(ends)
        if there:
            yield queue.key, there


def to_date(report: Report, tops: Mapping[QueueKey, Top]) -> dict[QueueKey, tuple[int, ...]]:
    """Of each queue whose newest epoch began with later records: the last one that counts as from before the group, where a
    broker may have it. Its store time says whether it is of the topic that was made again (`passed_again`)."""
    found: dict[QueueKey, tuple[int, ...]] = {}
    for queue in report.queues:
        if queue.ends is not None and queue.ends.read and tops.get(queue.key, NO_TOP).since_us:
            there = queue.fates.get(Fate.BEFORE, IntervalSet()) & _span(queue.ends)
            if there:
                found[queue.key] = (there.pieces[-1][1] - 1,)
    return found


def passed_again(report: Report, table: TableFacts, stored_ms: Times) -> OffsetSet:
    """What the group has passed at the beginning of topics that were made again. It was there before the topic, so none of
    that is from before the group.

    It is of the new topic where its last record (`to_date`) was stored later than what the former epoch has; a broker that
    has only lost a queue's end has the old ones there. What the former epoch has notes of beside its rows is left out: notes
    know no epochs, and these may be of the new records. That a record left no row is such a note only where there is none.
    """
    found: dict[QueueKey, IntervalSet] = {}
    for queue in report.queues:
        before = queue.key.in_epoch(max(0, queue.key.epoch - 1))
        top, notes = table.tops.get(before, NO_TOP), table.outcomes
        for offset, time_ms in stored_ms.get(queue.key, {}).items():
            if _newer_than(top, offset, time_ms) is not None:
                no_rows = notes.of_queue(NO_ROWS, before) - notes.of_queue(ROWS, before)
                kinds = [kind for kind in KINDS if kind not in (ROWS, NO_ROWS, *NOT_ACCOUNTED)]
                noted = _joined((no_rows, *(notes.of_queue(kind, before) for kind in kinds)))
                found[queue.key] = (queue.fates.get(Fate.BEFORE, IntervalSet()) & _span(queue.ends)) - noted
    return OffsetSet.of(found.items())


def _at_ranks(offsets: IntervalSet, wanted: Iterable[int]) -> Iterator[int]:
    before, ranks = 0, list(wanted)
    for start, stop in offsets.pieces:
        while ranks and ranks[0] - before < stop - start:
            yield start + ranks.pop(0) - before
        before += stop - start


def is_same(stored_ms: int, own_us: int | None) -> bool | None:
    """Whether a broker's record is that of the table's row, by their times; None where the row could not be read."""
    return None if own_us is None else own_us // US_PER_MS == stored_ms


def _newer_than(top: Top, offset: int, stored_ms: int) -> Cut | None:
    """The same as `newer_than` of one record."""
    return newer_than(top, Ends(offset, offset, stored_ms * US_PER_MS, stored_ms * US_PER_MS))


class _Other(NamedTuple):
    """One record of a queue of which its broker has another one than the table: all are others from there up to `below`.
    `last_same` is the next lower one that was compared and is the same, -1 for none."""

    offset: int
    below: int
    newer: bool
    last_same: int
    own_ms: int
    time_ms: int

    @property
    def searched(self) -> bool:
        return self.last_same >= 0 and self.time_ms > self.own_ms


def _others(top: Top, stored_ms: Mapping[int, int], own_us: Mapping[int, int]) -> Iterator[_Other]:
    """Two times are two records, whatever the clocks of brokers did. Where the rows cannot be read, a record is another one
    if the ledger knows that all of the table was stored earlier up to its offset (cuts.py); that says how far it goes, too.
    """
    last_same = -1
    for offset, time_ms in sorted(stored_ms.items()):
        cut = _newer_than(top, offset, time_ms)
        same = is_same(time_ms, own_us.get(offset))
        if same or (same is None and cut is None):
            last_same = offset
        else:
            known_us = max(own_us.get(offset, 0), 0 if cut is None else cut.until_us)
            below = max(offset + 1, 0 if cut is None else cut.below + 1)
            yield _Other(offset, below, cut is not None, last_same, known_us // US_PER_MS, time_ms)


def to_search(
    report: Report, tops: Mapping[QueueKey, Top], stored_ms: Times, own_us: Times
) -> dict[QueueKey, list[Search]]:
    """Where brokers have other records above some that are the same: what they are asked, to know where these begin. Nothing
    where a clock is behind."""
    found: dict[QueueKey, list[Search]] = {}
    for queue in report.queues:
        key = queue.key
        for one in _others(tops.get(key, NO_TOP), stored_ms.get(key, {}), own_us.get(key, {})):
            searches = found.setdefault(key, [])
            if one.searched and not (searches and searches[-1].low > one.last_same):
                searches.append(Search(one.last_same + 1, one.offset, one.own_ms + 1))
    return {key: searches for key, searches in found.items() if searches}


def made_again(
    report: Report,
    tops: Mapping[QueueKey, Top],
    stored_ms: Times,
    own_us: Times,
    begins: Mapping[QueueKey, Mapping[int, int]] | None = None,
) -> dict[QueueKey, Others]:
    """What brokers have of topics that were made again, where the group went on at its old offset: up to there, all rows are
    of other records. And the same of queues whose end a failover has replaced.

    `stored_ms`: when records that `to_compare` and `to_compare_above` name were stored, by their brokers; `own_us`: the same
    by their rows in the table. `begins`: the answers to `to_search`, by `high`; without one only what was compared is known.
    The first topic's records without rows prove nothing, nor does anything that the broker has deleted.
    """
    found: dict[QueueKey, Others] = {}
    for queue in report.queues:
        key, ends = queue.key, queue.ends
        if ends is None or ends.committed is None:
            continue
        pieces: list[tuple[int, int]] = []
        newer, since_ms, last_same, begin = False, OFFSET_MAX, -2, ends.min
        for one in _others(tops.get(key, NO_TOP), stored_ms.get(key, {}), own_us.get(key, {})):
            if one.last_same >= 0 and one.last_same != last_same:
                begin = max(ends.min, (begins or {}).get(key, {}).get(one.offset, one.offset))
            last_same = one.last_same
            end = min(one.below, ends.committed, ends.max)
            if begin < end:
                pieces.append((begin, end))
                newer |= one.newer
                since_ms = min(since_ms, one.own_ms + 1 if one.searched else 0)
        if pieces:
            found[key] = Others(IntervalSet.of(pieces), newer, since_ms)
    return found


def _other_epochs(table: TableFacts, keys: Iterable[QueueKey]) -> dict[QueueKey, IntervalSet]:
    """Per queue of a retry topic and epoch, what its other epochs account for: its offsets go on when the group is re-run."""
    retried = sorted(key for key in keys if key.topic.startswith(RETRY_PREFIX))
    found: dict[QueueKey, IntervalSet] = {}
    for one_way in (retried, retried[::-1]):
        passed: dict[QueueKey, IntervalSet] = {}
        for key in one_way:
            base = key.in_epoch(0)
            so_far = passed.get(base, IntervalSet())
            found[key] = found.get(key, IntervalSet()) | so_far
            noted = (table.outcomes.of_queue(kind, key) for kind in KINDS if kind not in (*NOT_ACCOUNTED, ELSEWHERE))
            passed[base] = _joined((so_far, table.loaded.of_queue(key), *noted))
    return found


def _queue(
    table: TableFacts, key: QueueKey, ends: QueueEnds | None, others: IntervalSet, *, open_: bool
) -> QueueReport:
    """`others`: what other epochs have. `open_`: nobody was asked up to where the group has committed, so that a record of
    which nobody says anything may be in hand."""
    present, loaded = table.present.of_queue(key), table.loaded.of_queue(key)
    waiting, settled = table.waiting.of_queue(key), table.settled.of_queue(key)
    aside = table.quarantined.of_queue(key)
    noted = {kind: table.outcomes.of_queue(kind, key) for kind in KINDS if kind != ROWS and kind not in NOT_ACCOUNTED}
    elsewhere = noted.pop(ELSEWHERE) - settled
    known = _joined((present, loaded, settled, *noted.values()))
    expected, not_committed = table.outcomes.of_queue(ROWS, key), _from(ends)
    first = 0 if ends is not None and may_have_lost(table, key) else _first(known, waiting | aside, ends)
    before = IntervalSet.of([(0, first)]) | others
    elsewhere -= before  # it names all that was shown, from 0 on
    all_known = _joined((known, elsewhere, waiting, aside, expected))
    fates: dict[Fate, IntervalSet] = {
        Fate.LOADED: present & loaded,
        Fate.FOREIGN: present - loaded,
        Fate.MISSING: expected - present,
        Fate.OVERLAP: table.overlaps.of_queue(key),
    }
    rest = _joined((all_known, _between(first, all_known, ends), _span(ends))) - present - expected
    for fate, some in (
        (Fate.WAITING, (waiting - loaded) | (noted[UNDELIVERED] & not_committed)),
        (Fate.UNDELIVERED, noted[UNDELIVERED]),
        (Fate.SENT_BACK, noted[SENT_BACK]),
        (Fate.DEAD_LETTER, noted[DEAD_LETTER]),
        (Fate.NO_ROWS, noted[NO_ROWS]),
        (Fate.FILTERED, noted[FILTERED]),
        (Fate.QUARANTINED, aside - loaded),
        (Fate.RECOVERED, noted[RECOVERED]),
        (Fate.FORGOTTEN, noted[FORGOTTEN]),
        (Fate.WAITING, not_committed),
        # Ranges, in which messages may have been in hand: what a supervisor says is finished was not skipped.
        (Fate.SKIPPED, noted[SKIPPED] - settled),
        (Fate.LOST, noted[LOST] - settled),
        (Fate.BEFORE, before),
        (Fate.ELSEWHERE, elsewhere),
        (Fate.WAITING, rest - all_known if open_ else IntervalSet()),
    ):
        fates[fate] = fates.get(fate, IntervalSet()) | (rest & some)
        rest = rest - some
    fates[Fate.UNKNOWN] = rest
    reached_from = OFFSET_MAX if ends is None or not ends.read else ends.min
    out_of_reach = IntervalSet() if open_ else IntervalSet.of([(0, reached_from)])
    unseen = (before if open_ else fates[Fate.BEFORE]) - others
    found = {fate: offsets for fate, offsets in fates.items() if offsets}
    return QueueReport(key, ends, found, out_of_reach, unseen, known=bool(all_known))


def _told(queue: QueueReport, told: Mapping[Fate, OffsetSet]) -> QueueReport:
    known = {fate: offsets.of_queue(queue.key) for fate, offsets in told.items()}
    all_known = _joined(known.values())
    if not all_known:
        return queue
    fates = {fate: offsets - all_known for fate, offsets in queue.fates.items()}
    for fate, offsets in known.items():
        fates[fate] = fates.get(fate, IntervalSet()) | offsets
    return replace(queue, fates={fate: fates[fate] for fate in Fate if fates.get(fate)})


def _joined(sets: Iterable[IntervalSet]) -> IntervalSet:
    return IntervalSet.of(piece for one in sets for piece in one.pieces)


def _span(ends: QueueEnds | None) -> IntervalSet:
    return IntervalSet() if ends is None else IntervalSet.of([(ends.min, ends.max)])


def _from(ends: QueueEnds | None) -> IntervalSet:
    """What the group has not committed: it will be pulled, or is being worked on."""
    if ends is None:
        return IntervalSet()
    return IntervalSet.of([(ends.min if ends.committed is None else max(0, ends.committed), ends.max)])


def _first(known: IntervalSet, waiting: IntervalSet, ends: QueueEnds | None) -> int:
    """The first record that anybody knows: the group began there. With none known, what it committed."""
    first = min((one.pieces[0][0] for one in (known, waiting) if one), default=None)
    if first is None:
        return 0 if ends is None or ends.committed is None else ends.committed
    return first


def _between(first: int, all_known: IntervalSet, ends: QueueEnds | None) -> IntervalSet:
    """From the first record that is known to the last one, or to what the group has committed of what there ever was."""
    committed = 0 if ends is None else min(ends.committed or 0, ends.max)
    last = all_known.pieces[-1][1] if all_known else 0
    return IntervalSet.of([(first, max(last, committed))])
