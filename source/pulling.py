"""Reading one range of one queue: pulls, one ahead of what is decoded, and Arrow batches out.

A pull asks for everything ("*") in its own name, so it needs no member in a group and moves no offset of one. The broker
decides how much one answer brings (32 messages or 256 KiB by default); the next is under way while the last is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import structlog

from ..client.access import Access
from ..client.operations import PullResult, PullStatus, parse_pull
from .connections import Connections, Link
from .errors import DataLossError
from .looking import patiently
from .offsets import name
from .planning import Range
from .progress import goes_on_at
from .reading import ReadOptions
from .rows import Rows
from .searching import pull_request

LOST_TRIES_MAX = 3
"""Answers without the records that should be there, before they count as lost; each `retryIntervalMs` after the last."""

_log = structlog.get_logger("rocketcrew.source")


@dataclass(frozen=True)
class Reading:
    """What a task needs to read its ranges; travels to executors."""

    access: Access
    options: ReadOptions
    columns: tuple[str, ...]

    def read(
        self, part: Range, connections: Connections, pause: Callable[[float], None] = time.sleep
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Raises DataLossError, ProtocolError, BrokerError, UnreachableError."""
        with connections.use(self.access) as link:
            yield from _Range(self, part, link, pause).batches()

    def lost(self, part: Range, start: int, end: int) -> None:
        """Offsets that are not there: an error, or a line in the log."""
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"rocketmq: offsets {start} to {end - 1} of {name(part.queue)} are not in the queue any more: they were "
                "deleted (retention) or the topic was made anew. failOnDataLoss=false goes on without them"
            )
        _log.warning("data_lost", queue=part.queue, start=start, end=end)


class _Range:
    """One range while it is read."""

    def __init__(self, reading: Reading, part: Range, link: Link, pause: Callable[[float], None]) -> None:
        self._reading = reading
        self._options = reading.options
        self._part = part
        self._link = link
        self._pause = pause
        self._group = reading.options.pull_group_at(reading.access)
        self._mq = part.queue._replace(topic=reading.access.wrap(part.queue.topic))
        self._tries = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        part, options = self._part, self._options
        rows = Rows(self._reading.columns, part.queue, options.tags, options.fail_on_data_loss)
        at = part.start
        pulling = self._link.submit(self._pull(at))
        try:
            while True:
                result = pulling.result()
                before, at = at, self._next(result, at)
                if at < part.end:
                    pulling = self._link.submit(self._pull(at))
                if result.status is PullStatus.FOUND:
                    for first, last in rows.take(result.body, before, min(at, part.end)):
                        self._reading.lost(part, first, last)
                if at >= part.end or rows.full:
                    batch = rows.flush()
                    if batch is not None:
                        yield batch
                if at >= part.end:
                    return
        finally:
            pulling.cancel()

    def _next(self, result: PullResult, at: int) -> int:
        """The offset of the next pull."""
        part, next_begin = self._part, result.header.next_begin_offset
        if result.status is PullStatus.FOUND and next_begin > at:
            self._tries = 0
            return next_begin
        if self._tries < min(self._options.retries, LOST_TRIES_MAX):
            self._tries += 1
            self._pause(self._options.retry_interval_ms / 1000)
            return at
        self._tries = 0
        end = goes_on_at(part, at, result.status, next_begin)
        self._reading.lost(part, at, end)
        return end

    async def _pull(self, offset: int) -> PullResult:
        retries, interval_ms = self._options.retries, self._options.retry_interval_ms
        return await patiently(lambda: self._one_pull(offset), retries, interval_ms, topic_exists=True)

    async def _one_pull(self, offset: int) -> PullResult:
        cluster, mq = self._link.cluster, self._mq
        address = await cluster.address_of(mq, only_this=False)
        header = pull_request(self._group, mq, offset, self._options.pull_batch_size)
        answer = await self._link.operations.pull(address, header, timeout_ms=self._options.pull_timeout_ms)
        return parse_pull(answer, address)
