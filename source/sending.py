"""Rows on their way to brokers: many at once, and those of one queue one after the other.

A row whose queue is chosen here waits until the one before it in that queue is stored, and is sent to the same queue again
when that failed: a message that goes elsewhere, or is overtaken by the next, is out of order. A repeated send may give a
message twice, in its place. The others go to any queue, as many at once as there is room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from ..client.producer import Producer
from ..client.selection import to_queue
from ..remoting.queues import MessageQueue
from .looking import patiently
from .outgoing_rows import OutgoingRow


@dataclass(frozen=True, slots=True)
class SendBounds:
    """How many sends are under way at once, how long one may take, and how often one to a chosen queue is repeated."""

    in_flight_max: int
    timeout_ms: int
    retries: int
    retry_interval_ms: int


async def send_rows(producer: Producer, rows: Iterator[OutgoingRow], bounds: SendBounds) -> None:
    """Send all; after a failure nothing more is read. Raises UsageError, BrokerError, UnreachableError."""
    await _Sends(producer, rows, bounds).run()


Drawn = tuple[OutgoingRow, MessageQueue | None, asyncio.Event | None, asyncio.Event | None]


class _Sends:
    def __init__(self, producer: Producer, rows: Iterator[OutgoingRow], bounds: SendBounds) -> None:
        self._producer = producer
        self._rows = rows
        self._bounds = bounds
        self._drawing = asyncio.Lock()
        self._last: dict[MessageQueue, asyncio.Event] = {}
        """By queue: set when the row drawn last for it is stored."""
        self._failures: list[Exception] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._lane() for _ in range(self._bounds.in_flight_max)))
        if self._failures:
            raise self._failures[0]

    async def _lane(self) -> None:
        try:
            while not self._failures and (drawn := await self._draw()) is not None:
                row, mq, before, stored = drawn
                if mq is None or stored is None:
                    await self._producer.send(row.message, timeout_ms=self._bounds.timeout_ms)
                    continue
                if before is not None:
                    await before.wait()
                try:
                    if not self._failures:
                        await self._send_to(mq, row)
                finally:
                    stored.set()
        except Exception as error:  # noqa: BLE001  raised by `run`, after the other lanes have ended
            self._failures.append(error)

    async def _draw(self) -> Drawn | None:
        """The next row, and if it has one, its queue with what to wait for and to set.

        One lane draws at a time, so that each queue keeps the rows' order.
        """
        async with self._drawing:
            row = next(self._rows, None)
            if row is None:
                return None
            if not row.ordered:
                return row, None, None, None
            stored = asyncio.Event()
            mq = row.queue(await self._producer.queues(row.message.topic))
            before, self._last[mq] = self._last.get(mq), stored
            return row, mq, before, stored

    async def _send_to(self, mq: MessageQueue, row: OutgoingRow) -> None:
        bounds, selector = self._bounds, to_queue(mq)
        await patiently(
            lambda: self._producer.send(row.message, timeout_ms=bounds.timeout_ms, selector=selector),
            bounds.retries,
            bounds.retry_interval_ms,
        )
