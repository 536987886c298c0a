"""`spark.readStream.format("rocketmq")`: offsets and plans on the driver, rows on executors.

- Spark writes the end of a batch into its checkpoint before it asks for the rows, so a batch is a fixed set of offset ranges:
  run again, it has the same rows. The checkpoint alone decides where a query goes on; options and group only where it begins.
  That is written into the end of the first batch (`@begin`), as Spark does not keep it.
- With the offsets Spark keeps a mark of each queue that was read: offset and store time of the last message (marks.py). It is
  looked at before each batch that goes on behind it, and before one is run again that another process has planned. While a
  queue has nothing to read it is looked at only now and then.
- The group's offset at brokers is for people who look at the lag. It is told when the next batch is looked for, because
  then the last one is complete; Spark's own `commit` comes a batch later, and never for the last one. Where a query begins is
  not told: another one may have come further. A group at whose offsets it began stands in the checkpoint: nothing is told to
  it, whatever the options of a later start leave out.
- A query that has nothing to do asks brokers for the ends of queues again and again, every 100 ms at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..client.clock import wall_ms
from ..client.logs import get_logger
from ..remoting.errors import RocketcrewError, UnreachableError, UsageError
from ..remoting.log_keys import place_keys, queue_keys
from ..remoting.queues import MessageQueue
from .batch_reader import RangePartition, part_of
from .connections import Link, shared
from .errors import DataLossError
from .looking import Looker, looked, tell_beyond_end
from .marks import (
    Overtaken,
    Sound,
    goes_on,
    gone,
    left,
    looks_for,
    overtaken,
    places_of_new,
    refused,
    same_and_shorter,
    unmarked,
    what_happened,
)
from .offsets import (
    BEGIN,
    KEPT_GROUP,
    Marks,
    Offsets,
    Place,
    Spec,
    from_json,
    marks_from_json,
    names,
    to_json,
)
from .planning import Range, limited, ranges_between, split, waits
from .positions import Facts, check_named, first_offset, is_anew, known_ends, shorter
from .pulling import LOST_TRIES_MAX, Reading

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_INTERVAL_S = 0.1
SPARE_MS = 60_000
"""How far the clocks of brokers and of this host may be apart."""
CHANGES_MAX = 60
"""Looks in a row that each find other queues than the one before. A topic is made anew once."""

T = TypeVar("T")

_log = get_logger("rocketcrew.source")


@dataclass(slots=True)
class Tries:
    """How often it was looked again for one batch, by why."""

    changed: int = 0
    unmarked: int = 0
    overtaken: int = 0
    last: Overtaken = field(default_factory=Overtaken)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source. Spark makes one on the driver, and another one for planning `read`."""

    def __init__(
        self, reading: Reading, clock: Callable[[], float] = time.monotonic, wall: Callable[[], int] = wall_ms
    ) -> None:
        self._reading = reading
        self._clock = clock
        self._wall_ms = wall
        self._seen_ms: dict[MessageQueue, int] = {}
        """When each queue was last looked at, in this process."""
        self._sound: dict[MessageQueue, Sound] = {}
        """The marks that were there when this process looked for them last."""
        self._before: Marks = {}
        """The marks before those in the last end: where they are still there, all up to them was read."""
        self._facts: dict[MessageQueue, Facts] = {}
        """What brokers said at the last look."""
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._first: Offsets | None = None
        self._refused: UsageError | DataLossError | None = None
        """Why the options say no place where a new query could begin. A first batch that is planned has one of its own."""
        self._planned: dict[str, Any] | None = None
        """The end of the last batch, as it was told to Spark. What is fixed by another end was planned by another process."""
        self._reports = reading.options.report_group_offsets
        self._introduced = False
        self._reported: Offsets = {}
        self._away: set[str] = set()
        self._queues_away: set[MessageQueue] = set()
        self._looked_s = float("-inf")
        self._batch_s = float("-inf")

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins. Raises BrokerError, UnreachableError.

        Spark also asks when it runs a first batch again, of which the checkpoint says where it begins (`@begin`): then it
        does not matter what the options mean by now. So where they are refused, whoever plans a first batch hears of it.
        """
        if self._first is None:
            now_ms = self._wall_ms()
            with shared.use(self._reading.access) as link:
                self._first = link.run(self._begin(Looker(link, self._reading.options, is_first=True)))
            self._seen_ms.update(dict.fromkeys(self._first, now_ms))
        return to_json(self._first)

    async def _begin(self, looker: Looker) -> Offsets:
        self._refused = None
        try:
            return await self._told_begin(looker)
        except (UsageError, DataLossError) as error:
            self._refused = error
        facts = await looker.facts(await looker.queues(set()))
        return {queue: known.minimum for queue, known in facts.items()}

    async def _told_begin(self, looker: Looker) -> Offsets:
        """Where the options say. Raises UsageError, DataLossError."""
        options = self._reading.options
        # A pattern may mean nothing yet: its topics enter at their first offset, as every new queue does.
        queues = await looker.queues(set() if options.pattern else None)
        looker.check_assigned(queues)
        looker.tell(queues)
        check_named(options.starting, queues)
        facts = await looker.facts(queues, options.starting)
        late, fail = options.latest_when_too_late, options.fail_on_data_loss
        begins = {
            queue: first_offset(options.starting, queue, facts[queue], latest_when_too_late=late, fail=fail)
            for queue in queues
        }
        tell_beyond_end(begins, facts)
        return begins

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is what this run reads."""
        with shared.use(self._reading.access) as link:
            self._target = self._looked(link, lambda looker: link.run(self._there(looker)), is_first=True)

    async def _there(self, looker: Looker) -> Offsets:
        facts = await looker.facts(await looker.queues(self._away))
        return {queue: known.maximum for queue, known in facts.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """maxOffsetsPerTrigger, else minOffsetsPerTrigger, else none. With both, the least is kept to here."""
        options = self._reading.options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch; `start` when there is none. Raises as `initialOffset`, and DataLossError.

        Spark writes down where a batch ends, but not where the first one begins: it asks again when that is run again. A
        query that begins at the latest, at a group's offset or at a time would lose what lies between the two answers. So
        its first batch is empty.
        """
        if from_json(start) != self._first:
            self._first = None  # the stream may come back to these offsets
        with shared.use(self._reading.access) as link:
            self._planned = self._looked(link, lambda looker: self._next_end(link, looker, start, limit))
        return self._planned

    def _looked(self, link: Link, look: Callable[[Looker], T], *, is_first: bool = False) -> T:
        options = self._reading.options
        return looked(lambda: look(Looker(link, options, goes_on=True, is_first=is_first)), options.retries)

    def _next_end(self, link: Link, looker: Looker, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin, marks = from_json(start), marks_from_json(start)
        if self._refused is not None and self._is_first(start, begin):
            raise self._refused
        if self._reports and self._may_report(start):
            link.run(self._report(looker, begin))
        tries = Tries()
        while True:
            now_ms = self._wall_ms()
            ends = self._look(lambda: link.run(self._ends(looker, begin, marks)), again=tries.changed > 0)
            self._latest = dict(ends)
            ends = self._chosen(start, begin, ends, limit)
            planned = start
            # Also an empty first batch says where it began. Once: the next one starts with that.
            if ends == begin and not (begin and self._is_first(start, begin)):
                break
            planned = link.run(self._marked(looker, start, ends))
            changed = link.run(self._changed(looker, begin, marks, ends))
            for queue in changed:
                self._sound.pop(queue, None)
            if not self._is_open(start, ends, marks_from_json(planned), changed, tries):
                break
        self._seen_ms.update(dict.fromkeys(self._facts, now_ms))  # not before: what an open look saw, none has planned
        if ends != begin:
            self._batch_s = self._clock()
        return planned

    def _is_open(self, start: dict[str, Any], ends: Offsets, new: Marks, changed: Marks, tries: Tries) -> bool:
        """Whether it must be looked again before a batch may end there, after some time. Raises UnreachableError.

        A first batch waits for the marks of all its queues. Without them nobody would know that it is another message which
        stands in a queue where the stream began. A later one has those of the batch before it.
        """
        begin, options = from_json(start), self._reading.options
        if changed:  # the next look finds it out
            tries.changed += 1
            if tries.changed > CHANGES_MAX:
                raise UnreachableError(
                    min(changed).broker_name,
                    f"{names(changed)} had other messages at each of {CHANGES_MAX} looks than the brokers said before",
                )
            return True
        missing = unmarked(ends, new, self._facts) if self._is_first(start, begin) else []
        if missing:
            what = f"no master says what is before the place where the stream begins in {names(missing)}: see that one runs"
            if tries.unmarked >= options.retries:
                raise UnreachableError(missing[0].broker_name, f"{what}, then start the query again")
            if not tries.unmarked:
                _log.warning("asked_again", error=what, after_ms=options.retry_interval_ms)
            tries.unmarked += 1
        late = overtaken(begin, ends, marks_from_json(start), new, self._facts)
        # An offset without a message (a compacted topic) is so at the next look as well, and the mark before stays. Where
        # there is none before, what cannot be read is taken for deleted: only after a while.
        nothing = any(mark.offset == place and mark.stored_ms < 0 for place, mark in late.values())
        again = bool(late) and tries.overtaken < LOST_TRIES_MAX and (nothing or late != tries.last)
        tries.overtaken += again
        tries.last = late
        if missing or (again and nothing):
            time.sleep(options.retry_interval_ms / 1000)
        return bool(missing) or again

    def _chosen(self, start: dict[str, Any], begin: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        """What of it the next batch takes."""
        options = self._reading.options
        if self._planned is None and options.starting.moves and self._is_first(start, begin):
            return {queue: min(end, begin.get(queue, end)) for queue, end in ends.items()}
        if self._target is not None:
            ends = {
                queue: min(end, max(self._target.get(queue, 0), begin.get(queue, end))) for queue, end in ends.items()
            }
        elif not isinstance(limit, ReadAllAvailable):
            since_ms = (self._clock() - self._batch_s) * 1000
            if waits(begin, ends, options.min_offsets_per_trigger, since_ms, options.max_trigger_delay_ms):
                return begin
        return limited(begin, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends of the queues as they were last seen: the lag in Spark's progress."""
        return to_json(self._latest) if self._latest else None

    async def _ends(self, looker: Looker, begin: Offsets, marks: Marks) -> Offsets:
        self._facts = facts = await looker.facts(await looker.queues(self._away))
        fail = self._reading.options.fail_on_data_loss
        now_s = self._clock()
        short = shorter(begin, facts)  # these were longer in between: they are looked at
        sound = {queue: seen for queue, seen in self._sound.items() if queue not in short}
        stored_ms = await looker.stored_at(looks_for(marks, facts, sound, now_s))
        self._found(marks, stored_ms, now_s)
        others = await self._go_on(looker, marks, facts, stored_ms)
        same = same_and_shorter(begin, marks, facts, stored_ms)
        back = same | others
        if back and fail:
            raise refused(back, facts)
        hints = what_happened(back, facts)
        since = {} if fail else await self._since(looker, short)
        since |= {queue: max(since[queue], marks[queue].offset + 1) for queue in same.keys() & since.keys()}
        earliest = back | {queue: min(at, back.get(queue, at)) for queue, at in since.items()}
        enters = await self._enters(looker, sorted(facts.keys() - begin.keys()), facts)
        ends = known_ends(begin, facts, earliest, enters, fail=fail)
        for queue, end in ends.items():
            if end < begin.get(queue, 0):
                hint = hints.get(queue, "the queue became shorter")
                _log.warning("goes_back", **place_keys(queue, begin[queue]), to=end, hint=hint)
        away = {queue for queue in begin.keys() - facts.keys() if queue.topic not in self._away}
        for queue in sorted(away - self._queues_away):
            _log.warning("queue_away", **place_keys(queue, begin[queue]), hint="what it has from there on waits")
        self._queues_away = away
        return ends

    async def _enters(
        self, looker: Looker, queues: Sequence[MessageQueue], facts: Mapping[MessageQueue, Facts]
    ) -> Offsets:
        """Where those of these new queues begin of which the options, or the group, say it. A group's offset that is left of
        another queue of that name is no loss of ours: nothing of this one was read."""
        options = self._reading.options
        told = dict(options.starting.values) if options.starting.place is Place.OFFSETS else Offsets()
        places = {queue: options.starting for queue in queues if queue in told}
        if options.new_at_group and (others := [queue for queue in queues if queue not in told]):
            at_group = Spec(Place.GROUP, "newQueues")
            facts = {**facts, **await looker.facts(others, at_group)}
            places |= dict.fromkeys(others, at_group)
        enters = Offsets()
        for queue, spec in places.items():
            anew = spec.place is Place.GROUP and is_anew(facts[queue].group or 0, facts[queue])
            fail = options.fail_on_data_loss and not anew
            enters[queue] = first_offset(spec, queue, facts[queue], latest_when_too_late=True, fail=fail)
        known = told.keys() | self._latest.keys()  # named by options, or logged at the look before
        tell_beyond_end({queue: at for queue, at in enters.items() if queue not in known}, facts)
        return enters

    async def _changed(self, looker: Looker, begin: Offsets, marks: Marks, ends: Offsets) -> Marks:
        """The marks that are gone behind which the next batch would go on, or to which it would go back.

        Asked for after the new marks: where the old one is still there, the new one is of the same queue. Also where the look
        said that it was deleted: it is not in that queue.
        """
        moved = {queue: mark for queue, mark in marks.items() if mark.offset < ends[queue] != begin[queue]}
        return gone(moved, self._facts, await looker.stored_at({queue: mark.offset for queue, mark in moved.items()}))

    async def _go_on(
        self,
        looker: Looker,
        marks: Marks,
        facts: Mapping[MessageQueue, Facts],
        stored_ms: Mapping[MessageQueue, int | None],
    ) -> Offsets:
        """Where reading goes on in queues whose marks are gone."""
        lost = gone(marks, facts, stored_ms)
        return goes_on(lost, await looker.searches({queue: mark.latest_ms + 1 for queue, mark in lost.items()}))

    async def _marked(self, looker: Looker, start: dict[str, Any], ends: Offsets) -> dict[str, Any]:
        """`ends` with what else Spark's checkpoint keeps."""
        begin, marks = from_json(start), marks_from_json(start)
        places = places_of_new(begin, ends, marks, self._facts)
        now_ms = self._wall_ms()  # not later: what another queue gets after the answer is not what was there
        stored_ms = await looker.stored_at(places)
        new = left(marks, ends, self._facts, stored_ms, max(1, now_ms - SPARE_MS), now_ms)
        self._before |= {queue: marks[queue] for queue, ms in stored_ms.items() if ms is not None and queue in marks}
        self._found(new, stored_ms, self._clock())
        return to_json(ends, new, self._kept_group(start), begin if self._is_first(start, begin) else None)

    def _found(self, marks: Marks, stored_ms: Mapping[MessageQueue, int | None], at_s: float) -> None:
        """Remember the marks that were there, and those of nothing where still nothing is."""
        self._sound |= {
            queue: Sound(marks[queue], self._facts[queue].maximum, at_s)
            for queue, ms in stored_ms.items()
            if queue in marks and (marks[queue].stored_ms < 0 if ms is None else marks[queue].fits(ms))
        }

    def _is_first(self, start: dict[str, Any], begin: Offsets) -> bool:
        """Whether the batch from `start`, with the offsets `begin`, is the first one. The end of an empty first batch has the
        same offsets."""
        return BEGIN not in start and begin == self._first

    def _kept_group(self, start: dict[str, Any]) -> str:
        """The group at whose offsets the query began; where the checkpoint names none, the options say it."""
        return str(start.get(KEPT_GROUP, "")) or self._reading.options.kept_group

    async def _since(self, looker: Looker, queues: Sequence[MessageQueue]) -> Offsets:
        """Of queues that became shorter, the first message stored since they were last looked at, where they were.

        What was stored a little earlier may be new as well (SPARE_MS), but not where it was read in an earlier batch.
        """
        seen_ms = {queue: self._seen_ms[queue] for queue in queues if queue in self._seen_ms}
        since = await looker.searches({queue: max(0, ms - SPARE_MS) for queue, ms in seen_ms.items()})
        before = {
            queue: mark for queue, mark in self._before.items() if since.get(queue, mark.offset + 1) <= mark.offset
        }
        stored_ms = await looker.stored_at({queue: mark.offset for queue, mark in before.items()})
        read = {queue: mark.offset + 1 for queue, mark in before.items() if mark.fits(stored_ms[queue])}
        return since | read

    def _look(self, look: Callable[[], Offsets], *, again: bool) -> Offsets:
        """Not more often than is good for the brokers. `again`: it saw what brokers contradict, and that may last."""
        wait_s = self._looked_s + LOOK_INTERVAL_S - self._clock()
        if wait_s > 0 and (again or self._target is None):
            time.sleep(wait_s)
        found = look()
        self._looked_s = self._clock()
        return found

    def _may_report(self, start: dict[str, Any]) -> bool:
        options = self._reading.options
        return options.report_kept_group or self._kept_group(start) != options.group

    async def _report(self, looker: Looker, done: Offsets) -> None:
        if done == self._first and not self._reported:
            return
        news = {queue: offset for queue, offset in done.items() if self._reported.get(queue) != offset}
        if not news:
            return
        group = self._reading.options.group
        self._reported.update(news)  # also where it fails: the next batch tells more
        try:
            # They own the offsets, and would begin at ours when they start again: so also when they are stopped later.
            self._reports = not await looker.has_members(group, {queue.topic for queue in news})
        except RocketcrewError as error:
            _log.warning("group_offset_not_reported", group=group, error=str(error))
            return
        if not self._reports:
            _log.warning("group_has_members", group=group, hint="its offsets are not moved: give the stream its own")
            return
        if not self._introduced:
            self._introduced = True
            await looker.introduce(group, done)
        await looker.report(group, news)

    # Rows.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets. Brokers are asked only where another process has planned them. Raises as
        `latestOffset`."""
        first, last = from_json(start), from_json(end)
        options = self._reading.options
        is_first = self._is_first(start, first) and BEGIN in end
        if self._refused is not None and self._is_first(start, first) and not is_first:
            raise self._refused
        ranges = ranges_between(from_json(end[BEGIN]) if is_first else first, last)
        if end != self._planned:  # it is run again
            self._seen_ms.clear()  # this process has not seen what was planned
            ranges = self._still_there(ranges, marks_from_json(end))
        self._planned = end
        return [RangePartition(part) for part in split(ranges, options.min_partitions, options.max_per_partition)]

    def _still_there(self, ranges: list[Range], marks: Marks) -> list[Range]:
        """The ranges without what is other messages by now; these are read when the next batch has found it out as well."""
        asked = {part.queue: marks[part.queue] for part in ranges if part.queue in marks}
        if not asked:
            return ranges
        with shared.use(self._reading.access) as link:
            back = self._looked(link, lambda looker: link.run(self._other(looker, asked)))
        return [part._replace(end=min(part.end, back.get(part.queue, part.end))) for part in ranges]

    async def _other(self, looker: Looker, marks: Marks) -> Offsets:
        """From where on queues have other messages than a batch that was planned with these marks."""
        facts = await looker.facts([queue for queue in await looker.queues(self._away) if queue in marks])
        places = looks_for(marks, facts, {}, 0.0)
        back = await self._go_on(looker, marks, facts, await looker.stored_at(places))
        if back and self._reading.options.fail_on_data_loss:
            raise refused(back, facts)
        for queue, hint in what_happened(back, facts).items():
            _log.warning("data_lost", **queue_keys(queue), start=back[queue], end=marks[queue].offset + 1, hint=hint)
        return back

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        yield from self._reading.read(part_of(partition), shared)
