"""`spark.readStream.format("rocketmq")`: offsets and plans on the driver, rows on executors.

- Spark writes the end of a batch into its checkpoint before it asks for the rows, so a batch is a fixed set of offset ranges:
  run again, it has the same rows. The checkpoint alone decides where a query goes on; options and group only where it begins.
- With the offsets Spark keeps a mark of each queue that was read: offset and store time of one of its messages. A queue that
  was deleted, made again and filled beyond where the stream stands has another message there, also after a restart.
- The group's offset at brokers is for people who look at the lag. It is told when the next batch is looked for, because
  then the last one is complete; Spark's own `commit` comes a batch later, and never for the last one. Where a query begins is
  not told: another one may have come further.
- A query that has nothing to do asks brokers for the ends of queues again and again, every 100 ms at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..client.logs import get_logger
from ..remoting.errors import RocketcrewError
from ..remoting.log_keys import place_keys, queue_keys
from ..remoting.queues import MessageQueue
from .batch_reader import RangePartition, part_of
from .connections import shared
from .errors import DataLossError
from .looking import Looker
from .offsets import Mark, Marks, Offsets, from_json, marks_from_json, names, to_json
from .planning import limited, ranges_between, split, waits
from .positions import (
    Facts,
    check_first_again,
    check_named,
    first_offset,
    known_ends,
    looks_for,
    made_anew,
    shorter,
)
from .pulling import Reading

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_INTERVAL_S = 0.1
SPARE_MS = 60_000
"""How far the clocks of brokers and of this host may be apart."""

_log = get_logger("rocketcrew.source")


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


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
        self._facts: dict[MessageQueue, Facts] = {}
        """What brokers said at the last look."""
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._first: Offsets | None = None
        self._planned = False
        """Whether the first batch has an end, so that what it reads is fixed."""
        self._reports = reading.options.report_group_offsets
        self._introduced = False
        self._reported: Offsets = {}
        self._away: set[str] = set()
        self._queues_away: set[MessageQueue] = set()
        self._looked_s = float("-inf")
        self._batch_s = float("-inf")

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins. Raises UsageError, DataLossError, BrokerError, UnreachableError."""
        if self._first is None:
            with shared.use(self._reading.access) as link:
                self._first = link.run(self._begin(Looker(link, self._reading.options)))
        return to_json(self._first)

    async def _begin(self, looker: Looker) -> Offsets:
        options = self._reading.options
        # A pattern may mean nothing yet: its topics enter at their first offset, as every new queue does.
        queues = await looker.queues(set() if options.pattern else None)
        looker.check_assigned(queues)
        check_named(options.starting, queues)
        facts = await looker.facts(queues, options.starting)
        late, fail = options.latest_when_too_late, options.fail_on_data_loss
        return {
            queue: first_offset(options.starting, queue, facts[queue], latest_when_too_late=late, fail=fail)
            for queue in queues
        }

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is what this run reads."""
        with shared.use(self._reading.access) as link:
            self._target = link.run(self._ends(Looker(link, self._reading.options), {}, from_nothing=True))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """maxOffsetsPerTrigger, else minOffsetsPerTrigger, else none. With both, the least is kept to here."""
        options = self._reading.options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch; `start` when there is none. Raises as `initialOffset`.

        Spark writes down where a batch ends, but not where the first one begins: it asks again when that is run again. A
        query that begins at the latest, at a group's offset or at a time would lose what lies between the two answers. So
        its first batch is empty.
        """
        begin = from_json(start)
        options = self._reading.options
        first = begin == self._first and not self._planned
        self._planned = True
        if first and options.starting.moves:
            return start
        with shared.use(self._reading.access) as link:
            looker = Looker(link, options)
            if self._reports:
                link.run(self._report(looker, begin))
            ends = self._look(lambda: link.run(self._ends(looker, begin)))
            self._latest = dict(ends)
            ends = self._chosen(begin, ends, limit)
            if ends == begin:
                return start
            self._batch_s = self._clock()
            return link.run(self._marked(looker, begin, ends, marks_from_json(start)))

    def _chosen(self, begin: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        """What of it the next batch takes."""
        options = self._reading.options
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

    async def _ends(self, looker: Looker, begin: Offsets, *, from_nothing: bool = False) -> Offsets:
        now_ms = self._wall_ms()
        self._facts = facts = await looker.facts(await looker.queues(self._away))
        if from_nothing:
            return {queue: known.maximum for queue, known in facts.items()}
        fail = self._reading.options.fail_on_data_loss
        since = {} if fail else await self._since(looker, shorter(begin, facts))
        ends = known_ends(begin, facts, fail=fail, since=since)
        for queue, end in ends.items():
            if end < begin.get(queue, 0):
                _log.warning("goes_back", **place_keys(queue, begin[queue]), to=end, hint="the queue became shorter")
        self._seen_ms.update(dict.fromkeys(facts, now_ms))
        away = {queue for queue in begin.keys() - facts.keys() if queue.topic not in self._away}
        for queue in sorted(away - self._queues_away):
            _log.warning("queue_away", **place_keys(queue, begin[queue]), hint="what it has from there on waits")
        self._queues_away = away
        return ends

    async def _marked(self, looker: Looker, begin: Offsets, ends: Offsets, marks: Marks) -> dict[str, Any]:
        """`ends` and the marks for Spark's checkpoint, after each queue that is to be read was known by its mark.

        Raises DataLossError for one that was made anew, or the stream goes back to its first message.
        """
        marks = {queue: mark for queue, mark in marks.items() if ends[queue] >= begin[queue]}
        places = looks_for(begin, ends, marks, self._facts)
        stored_ms = await looker.stored_at(places)
        anew = made_anew(marks, stored_ms, places)
        if anew and self._reading.options.fail_on_data_loss:
            raise DataLossError(
                f"rocketmq: {names(anew)}: the topic was made anew since it was read, so that its offsets are those of other"
                " messages. Begin with a new checkpoint, or set failOnDataLoss=false to go on at its first message"
            )
        for queue in sorted(anew):
            ends[queue] = self._facts[queue].minimum
            _log.warning("goes_back", **place_keys(queue, begin[queue]), to=ends[queue], hint="the queue was made anew")
        found = {queue: Mark(places[queue], ms) for queue, ms in stored_ms.items() if ms is not None}
        return to_json(ends, {queue: mark for queue, mark in (marks | found).items() if queue not in anew})

    async def _since(self, looker: Looker, queues: Sequence[MessageQueue]) -> Offsets:
        """Of queues that became shorter, the first message stored since they were last looked at, where they were."""
        known = [queue for queue in queues if queue in self._seen_ms]
        found = [await looker.searches([queue], max(0, self._seen_ms[queue] - SPARE_MS)) for queue in known]
        return {queue: offset for one in found for queue, offset in one.items()}

    def _look(self, look: Callable[[], Offsets]) -> Offsets:
        """Not more often than is good for the brokers."""
        wait_s = self._looked_s + LOOK_INTERVAL_S - self._clock()
        if wait_s > 0 and self._target is None:
            time.sleep(wait_s)
        found = look()
        self._looked_s = self._clock()
        return found

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
        """The ranges between two offsets; nothing is asked of anybody. Raises DataLossError."""
        first, last = from_json(start), from_json(end)
        options = self._reading.options
        if first == self._first and not self._planned:  # by this process: it is run again
            for queue in check_first_again(first, last, fail=options.fail_on_data_loss):
                _log.warning("data_lost", **queue_keys(queue), end=last[queue])
        self._planned = True
        ranges = ranges_between(first, last)
        return [RangePartition(part) for part in split(ranges, options.min_partitions, options.max_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        yield from self._reading.read(part_of(partition), shared)
