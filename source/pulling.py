"""Reading one range of one queue: pulls, ahead of what is decoded, and Arrow batches out.

A pull asks for everything ("*") in its own name, so it needs no member in a group and moves no offset of one. The broker
decides how much one answer brings (32 messages or 256 KiB by default), so a batch takes many. They follow each other in the
link's loop, some ahead of the one that is awaited; the task's thread is woken once a batch, decodes it and gives it to Spark
while the next is gathered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..client.access import Access
from ..client.logs import get_logger
from ..client.operations import PullResult, PullStatus, parse_pull
from ..client.routes import is_final
from ..remoting.codes import RequestCode
from ..remoting.command import Command
from ..remoting.errors import RocketcrewError, UnreachableError
from ..remoting.log_keys import place_keys, queue_keys
from .connections import Connections, Link
from .errors import DataLossError
from .looking import patiently, renewed_route
from .offsets import name
from .planning import Range
from .progress import Window, goes_on_at, is_short
from .reading import ReadOptions
from .rows import Rows
from .searching import pull_request

OFFSET = "queueOffset"
AHEAD_MAX = 2
"""Batches that are gathered and not decoded yet; each is 8 MiB at most, or one pull."""
PULLS_AHEAD_MAX = 4
"""Of one range: enough that neither the way to the broker nor a thread that is busy decoding leaves the broker idle."""
LOST_TRIES_MAX = 3
"""Answers without the records that should be there, before they count as lost; each `retryIntervalMs` after the last."""

Pause = Callable[[float], Awaitable[None]]

_log = get_logger("rocketcrew.source")


@dataclass(frozen=True)
class Reading:
    """What a task needs to read its ranges; travels to executors."""

    access: Access
    options: ReadOptions
    columns: tuple[str, ...]

    def read(self, part: Range, connections: Connections, pause: Pause = asyncio.sleep) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Raises DataLossError, ProtocolError, BrokerError, UnreachableError."""
        with connections.use(self.access) as link:
            yield from _Range(self, part, link, pause).batches()

    def lost(self, part: Range, holes: Sequence[tuple[int, int]]) -> None:
        """Offsets that are not there, of one answer: an error, or a line in the log."""
        start, end = holes[0]
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"rocketmq: offsets {start} to {end - 1} of {name(part.queue)} are not in the queue any more: they were "
                "deleted (retention) or the topic was made anew. failOnDataLoss=false goes on without them"
            )
        more = {"holes": len(holes), "offsets": sum(last - first for first, last in holes)} if len(holes) > 1 else {}
        _log.warning("data_lost", **queue_keys(part.queue), start=start, end=holes[-1][1], **more)


class Ahead:
    """Rows on their way from the loop, which gathers them, to the thread that makes batches of them: a few at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._handed: SimpleQueue[Rows | BaseException | None] = SimpleQueue()
        self._room = asyncio.Semaphore(AHEAD_MAX)

    async def gather(self, gathered: AsyncGenerator[Rows]) -> None:
        """In the loop: hand over what is gathered, then how it ended."""
        end: BaseException | None = None
        try:
            async with contextlib.aclosing(gathered):
                async for rows in gathered:
                    await self._room.acquire()
                    self._handed.put(rows)
        except BaseException as error:
            end = error
            raise
        finally:
            self._handed.put(end)

    def take(self, gathered: AsyncGenerator[Rows]) -> Generator[Rows]:
        """In the thread. Raises what gathering raised."""
        work = self._link.submit(self.gather(gathered))
        try:
            while (rows := self._handed.get()) is not None:
                if isinstance(rows, BaseException):
                    raise rows
                yield rows
                self._link.thread.call(self._room.release)
        finally:
            work.cancel()


class _PullAhead(NamedTuple):
    """A pull that was sent before the one before it was answered."""

    offset: int
    address: str
    answer: asyncio.Future[Command]


class _Range:
    """One range while it is read."""

    def __init__(self, reading: Reading, part: Range, link: Link, pause: Pause) -> None:
        self._reading = reading
        self._options = reading.options
        self._part = part
        self._link = link
        self._pause = pause
        self._mq = part.queue._replace(topic=reading.access.wrap(part.queue.topic))
        group = reading.options.pull_group_at(reading.access)
        self._fields = pull_request(group, self._mq, 0, self._options.pull_batch_size).to_fields()
        self._tries = 0
        self._window = Window(PULLS_AHEAD_MAX)
        self._ahead: deque[_PullAhead] = deque()

    def batches(self) -> Iterator[pa.RecordBatch]:
        for rows in Ahead(self._link).take(self._gathered()):
            batch = rows.flush()
            if batch is not None:
                yield batch

    async def _gathered(self) -> AsyncGenerator[Rows]:
        """All rows of the range, as much at a time as makes a batch."""
        part = self._part
        at, rows = part.start, self._rows()
        try:
            while at < part.end:
                address, result = await self._answer(at)
                before, at = at, await self._next(address, result, at)
                if result.status is PullStatus.FOUND:
                    self._go_ahead(address, at, at - before)
                    if holes := rows.take(result.body, before, min(at, part.end)):  # many, in a compacted topic
                        if not await self._is_final(address):
                            raise self._undecided(address, result, holes[0][0])
                        self._reading.lost(part, holes)
                if rows.full:
                    yield rows
                    rows = self._rows()
            yield rows
        finally:
            self._take_back()

    async def _answer(self, at: int) -> tuple[str, PullResult]:
        """What a pull at this offset brings: one that went ahead, if there is one."""
        guessed = bool(self._ahead) and self._ahead[0].offset == at
        self._window.took(guessed=guessed)
        if guessed:
            ahead = self._ahead.popleft()
            try:
                return ahead.address, parse_pull(await ahead.answer, ahead.address)
            except RocketcrewError as error:
                _log.debug("pull_ahead_failed", **place_keys(self._mq, at), error=str(error))
        self._take_back()
        return await self._pull(at)

    def _go_ahead(self, address: str, at: int, step: int) -> None:
        under_way = [ahead.offset for ahead in self._ahead]
        if under_way and under_way[0] != at:
            return  # the next pull takes these back
        for offset in self._window.next(under_way, at, step, self._part.end):
            answer = self._link.cluster.remoting.start(
                address, self._command(offset), timeout_ms=self._options.pull_timeout_ms, body_sink=_place
            )
            if answer is None:
                break
            self._ahead.append(_PullAhead(offset, address, answer))

    def _take_back(self) -> None:
        while self._ahead:
            answer = self._ahead.popleft().answer
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # seen, though nobody needs it

    def _rows(self) -> Rows:
        options = self._options
        return Rows(self._reading.columns, self._part.queue, options.tags, options.fail_on_data_loss)

    async def _next(self, address: str, result: PullResult, at: int) -> int:
        """The offset of the next pull. Raises UnreachableError where the answer shows neither messages nor a loss."""
        part, header = self._part, result.header
        if result.status is PullStatus.FOUND and header.next_begin_offset > at:
            self._tries = 0
            return header.next_begin_offset
        end = goes_on_at(part, at, header) if await self._is_final(address) else None
        tries_max = self._options.retries
        if end is not None and not is_short(part, header):
            tries_max = min(tries_max, LOST_TRIES_MAX)
        if self._tries < tries_max:
            self._tries += 1
            await self._pause(self._options.retry_interval_ms / 1000)
            return at
        self._tries = 0
        if end is None:
            raise self._undecided(address, result, at)
        self._reading.lost(part, [(at, end)])
        return end

    async def _is_final(self, address: str) -> bool:
        """Whether what this replica does not have is lost; the route is looked up again, as a master may be back."""
        route = await renewed_route(self._link.cluster, self._mq.topic)
        return route is not None and is_final(route, self._mq.broker_name, address)

    def _undecided(self, address: str, result: PullResult, at: int) -> UnreachableError:
        header, queue = result.header, self._part.queue
        return UnreachableError(
            address,
            f"it has offsets {header.min_offset} to {header.max_offset} of {name(queue)} and gives nothing at {at}, which"
            f" does not prove a loss: a replica may lag. See that a master of {queue.broker_name} runs, then read again",
        )

    async def _pull(self, offset: int) -> tuple[str, PullResult]:
        return await patiently(
            lambda: self._one_pull(offset),
            self._options.retries,
            self._options.retry_interval_ms,
            topic_exists=True,
            renew=lambda: renewed_route(self._link.cluster, self._mq.topic),
        )

    async def _one_pull(self, offset: int) -> tuple[str, PullResult]:
        """The address that was asked, and its answer."""
        cluster = self._link.cluster
        address = await cluster.address_of(self._mq, only_this=False)
        answer = await cluster.remoting.request(
            address, self._command(offset), timeout_ms=self._options.pull_timeout_ms, body_sink=_place
        )
        return address, parse_pull(answer, address)

    def _command(self, offset: int) -> Command:
        return Command(int(RequestCode.PULL_MESSAGE), {**self._fields, OFFSET: str(offset)})


def _place(_: Command, size: int) -> memoryview:
    """Where a body is received: memory that is neither zeroed before nor copied after."""
    return np.empty(size, np.uint8).data
