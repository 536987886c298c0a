"""`spark.read.format("rocketmq")`: planned once on the driver, read on executors.

Spark refuses a reader that overrides `pushFilters` while spark.sql.python.filterPushdown.enabled is off, which is the
default; and it tells nobody beforehand how that is set. So `pushFilters` here is a `PushDown` that looks like the
inherited method: with the setting off it is never called, with it on predicates are pushed down. Nobody has to say which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..remoting.queues import MessageQueue
from .connections import shared
from .looking import Looker
from .offsets import Offsets
from .planning import Range, split
from .positions import check_named, check_order, first_offset, last_offset
from .predicates import Predicates, push
from .pulling import Reading

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """One range as Spark hands it to a task."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class PushDown:
    """Takes the filters for a reader; see the module's text."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: Sequence[Any]) -> list[Any]:
        reader = self._reader
        reader.predicates, left = push(reader.predicates, filters)
        return left


class BatchReader(DataSourceReader):
    """Reads what its options say, once."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.predicates = Predicates()

    def __getattribute__(self, name: str) -> Any:
        return PushDown(self) if name == "pushFilters" else super().__getattribute__(name)

    def partitions(self) -> Sequence[InputPartition]:
        """Asks brokers for the ends of all queues. Raises UsageError, DataLossError, BrokerError, UnreachableError."""
        with shared.use(self._reading.access) as link:
            ranges = link.run(self._plan(Looker(link, self._reading.options)))
        options = self._reading.options
        return [RangePartition(part) for part in split(ranges, options.min_partitions, options.max_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; Spark makes one of its own where there is nothing to read."""
        if isinstance(partition, RangePartition):
            yield from self._reading.read(partition.part, shared)

    async def _plan(self, looker: Looker) -> list[Range]:
        queues = await looker.queues()
        looker.check_assigned(queues)
        starts, ends = await self._bounds(looker, queues)
        ranges = [Range(queue, starts[queue], ends[queue]) for queue in queues if self.predicates.wants(queue)]
        return await narrowed(looker, self.predicates, ranges)

    async def _bounds(self, looker: Looker, queues: Sequence[MessageQueue]) -> tuple[Offsets, Offsets]:
        options = self._reading.options
        starting, ending, fail = options.starting, options.ending, options.fail_on_data_loss
        for spec in (starting, ending):
            check_named(spec, queues)
        at_start = await looker.facts(queues, starting)
        at_end = await looker.facts(queues, ending)
        late = options.latest_when_too_late
        starts = {
            queue: first_offset(starting, queue, at_start[queue], latest_when_too_late=late, fail=fail)
            for queue in queues
        }
        ends = {queue: last_offset(ending, queue, at_end[queue], fail=fail) for queue in queues}
        check_order(starts, ends, ending.option)
        return starts, ends


async def narrowed(looker: Looker, predicates: Predicates, ranges: Sequence[Range]) -> list[Range]:
    """The ranges that the predicates leave, brokers asked where these are about times."""
    start_ms, end_ms = predicates.store_start_ms, predicates.store_end_ms
    queues = [part.queue for part in ranges]
    nothing: Offsets = {}
    firsts = nothing if start_ms is None else await looker.searches(dict.fromkeys(queues, start_ms))
    lasts = nothing if end_ms is None else await looker.searches(dict.fromkeys(queues, end_ms))
    parts = (predicates.narrowed(part, firsts.get(part.queue), lasts.get(part.queue)) for part in ranges)
    return [part for part in parts if part.size > 0]


def part_of(partition: InputPartition) -> Range:
    """The range of a partition of ours."""
    return cast("RangePartition", partition).part
