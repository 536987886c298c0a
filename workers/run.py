"""A run: a contiguous stretch of a chunk's records that becomes one entry of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..conf.units import NS_PER_US
from ..remoting.errors import ProtocolError
from ..remoting.stored import SYSFLAG_LOW_BYTE, walk
from .failures import Failure
from .message import INNER_BATCH_BIT
from .packets import U32_MAX, QueueInfo, Report
from .ranges import OffsetSets

FAILURES_PER_RUN_MAX: Final = 64
"""A run is reported when it has so many: with texts of 500 bytes they fill half a packet."""


class Run:
    """A report under construction: records `start .. start+records-1` of a chunk."""

    __slots__ = (
        "began_ns", "busy_ns", "by_cell", "chunk_id", "failures", "filtered", "has_rows", "offsets", "queue", "records",
        "segment_seq", "settled", "slowest_ns", "spans", "start",
    )  # fmt: skip

    def __init__(self, chunk_id: int, queue: QueueInfo, offsets: Sequence[int], start: int) -> None:
        self.chunk_id = chunk_id
        self.queue = queue
        self.offsets = offsets
        """Queue offset of each record of the chunk (the last one of an inner batch)."""
        self.start = start
        self.records = 0
        self.segment_seq = 0
        self.busy_ns = 0
        self.slowest_ns = 0
        self.filtered = 0
        self.has_rows = False
        """A row of it may be kept, or be in the segment that is open."""
        self.failures: dict[int, Failure] = {}
        self.spans: dict[int, int] = {}
        """First queue offset of each inner batch, by position."""
        self.settled = start
        """Records before this one have ended: what is kept or noted of them is whole."""
        self.by_cell = False
        """It runs record by record: those before the record in the worker's cell have ended too."""
        self.began_ns = 0
        """When its first record began, where that is known."""

    def cut(self, end: int, now_ns: int) -> Run:
        """The records before `end`, all of which have ended, as a run of their own; what is left starts there.

        Whether the part has rows, the caller knows. What is left keeps its own mark: the loop may set it at this moment for a
        row of its own. If it was the part's, what is left waits for the seal of a segment that it has no rows in: no harm.
        """
        part = Run(self.chunk_id, self.queue, self.offsets, self.start)
        part.records = end - self.start
        part.failures, self.failures = self.failures, {}
        part.filtered, self.filtered = self.filtered, 0
        part.spans = self.spans
        if self.by_cell:
            part.busy_ns = max(0, now_ns - self.began_ns)
            part.slowest_ns = part.busy_ns // part.records
            self.began_ns = max(now_ns, self.began_ns)
        else:
            part.busy_ns, part.slowest_ns = self.busy_ns, self.slowest_ns
            self.busy_ns = self.slowest_ns = 0
        self.start = end
        return part

    def join(self, other: Run) -> bool:
        """Take over the run that follows, so that both are one entry; False when it does not follow, or something failed."""
        if (
            self.chunk_id != other.chunk_id
            or self.start + self.records != other.start
            or self.failures
            or other.failures
        ):
            return False
        self.records += other.records
        self.busy_ns += other.busy_ns
        self.slowest_ns = max(self.slowest_ns, other.slowest_ns)
        self.filtered += other.filtered
        self.has_rows = self.has_rows or other.has_rows
        self.spans |= other.spans
        return True

    def report(self) -> Report:
        """The entry for the packet."""
        return Report(
            self.chunk_id,
            self.start,
            self.records,
            self.segment_seq,
            min(self.busy_ns // NS_PER_US, U32_MAX),
            min(self.slowest_ns // NS_PER_US, U32_MAX),
            self.filtered,
            len(self.failures),
        )

    def parts(self) -> Iterator[Run]:
        """This run, cut so that no part has more than FAILURES_PER_RUN_MAX failures; times stay with the first part."""
        positions = sorted(self.failures)
        cuts = positions[FAILURES_PER_RUN_MAX::FAILURES_PER_RUN_MAX]
        end = self.start + self.records
        for start, stop in zip([self.start, *cuts], [*cuts, end], strict=True):
            part = Run(self.chunk_id, self.queue, self.offsets, start)
            part.records, part.segment_seq = stop - start, self.segment_seq
            part.failures = {position: self.failures[position] for position in positions if start <= position < stop}
            if start == self.start:
                part.busy_ns, part.slowest_ns, part.filtered = self.busy_ns, self.slowest_ns, self.filtered
            yield part

    def add_finished(self, finished: OffsetSets) -> None:
        """Add the queue offsets of its records that did not fail."""
        key = (self.queue.topic, self.queue.broker_name, self.queue.queue_id)
        if not self.failures and not self.spans and self.records:
            first, last = self.offsets[self.start], self.offsets[self.start + self.records - 1]
            if last - first == self.records - 1:  # offsets only rise
                finished.add(key, first, last + 1)
                return
        for position in range(self.start, self.start + self.records):
            if position not in self.failures:
                last = self.offsets[position]
                finished.add(key, self.spans.get(position, last), last + 1)


def records_of(data: bytes, announced: int, chunk_id: int) -> tuple[list[int], list[int]]:
    """Byte positions of a chunk's records (and the end of the last), and their queue offsets.

    Raises ProtocolError when `data` is not `announced` whole records.
    """
    positions, offsets = walk(data)
    if len(offsets) != announced:
        raise ProtocolError(f"{len(offsets)} records where {announced} were announced", f"chunk {chunk_id}")
    return positions, offsets


def each_is_one(offsets: Sequence[int], data: bytes, positions: Sequence[int]) -> bool:
    """Whether each record has one offset: inner batches have several. Where none is missing, only the first can be one."""
    if not offsets:
        return True
    none_missing = offsets[-1] - offsets[0] == len(offsets) - 1
    looked_at = positions[:1] if none_missing else positions[:-1]
    return not any(data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT for position in looked_at)
