"""`spark.read.format("rocketmq")`: planned once on the driver, read on executors.

There is no `pushFilters`. Spark 4.2 keeps the partitions that it leaves of one query in an object that all uses of the
DataFrame share (PythonDataSourceV2.scala, `setReadInfo`), so a count after a filtered query would count the filtered rows,
also where every filter is handed back. Users narrow by options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..remoting.queues import MessageQueue
from .connections import shared
from .looking import Looker, tell_beyond_end
from .offsets import Offsets
from .planning import Range, split
from .positions import check_named, check_order, first_offset, last_offset
from .pulling import Reading

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """One range as Spark hands it to a task."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class BatchReader(DataSourceReader):
    """Reads what its options say, once."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

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
        looker.tell(queues)
        starts, ends = await self._bounds(looker, queues)
        return [Range(queue, starts[queue], ends[queue]) for queue in queues]

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
        tell_beyond_end(starts, at_start)
        return starts, ends


def part_of(partition: InputPartition) -> Range:
    """The range of a partition of ours."""
    return cast("RangePartition", partition).part
