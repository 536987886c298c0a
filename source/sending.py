"""Rows on their way to brokers: many at once, and those of one queue one after the other.

A row whose queue is chosen here waits until the one before it in that queue is stored, and is sent to the same queue again
when that failed: a message that goes elsewhere, or is overtaken by the next, is out of order. A repeated send may give a
message twice, in its place. The others go to any queue, as many at once as there is room for. Either waits and is tried again
while brokers are away: a stream that reads through the restart of a broker writes through it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from ..client.cluster import Cluster
from ..client.logs import get_logger
from ..client.producer import Producer
from ..client.selection import QueueSelector, to_queue
from ..remoting.errors import BrokerError
from ..remoting.queues import MessageQueue
from .looking import patiently
from .outgoing_rows import OutgoingRow

SAID_AGAIN_S: Final = 10.0
"""Between two lines that say so, as hundreds of sends may wait."""
T = TypeVar("T")

_log = get_logger("rocketcrew.source")


@dataclass(frozen=True, slots=True)
class SendBounds:
    """How many sends are under way at once, how long one try may take, how often one is repeated, and after which time;
    `first_retries` until a name server has answered a new query, as its address may be wrong."""

    in_flight_max: int
    timeout_ms: int
    retries: int
    retry_interval_ms: int
    first_retries: int


async def find_name_server(cluster: Cluster, topic: str, bounds: SendBounds) -> None:
    """Whatever it says of the topic, as the brokers know that. Raises UnreachableError."""

    async def ask() -> None:
        with contextlib.suppress(BrokerError):
            await cluster.route(topic)

    await patiently(ask, bounds.first_retries, bounds.retry_interval_ms)


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
        self._silent_until = 0.0

    async def run(self) -> None:
        await asyncio.gather(*(self._lane() for _ in range(self._bounds.in_flight_max)))
        if self._failures:
            raise self._failures[0]

    async def _lane(self) -> None:
        try:
            while not self._failures and (drawn := await self._draw()) is not None:
                row, mq, before, stored = drawn
                if mq is None or stored is None:
                    await self._send(row, None)
                    continue
                if before is not None:
                    await before.wait()
                try:
                    if not self._failures:
                        await self._send(row, to_queue(mq))
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
            topic = row.message.topic
            mq = row.queue(await self._patiently(lambda: self._producer.queues(topic)))
            before, self._last[mq] = self._last.get(mq), stored
            return row, mq, before, stored

    async def _send(self, row: OutgoingRow, selector: QueueSelector | None) -> None:
        def send() -> Awaitable[object]:
            return self._producer.send(row.message, timeout_ms=self._bounds.timeout_ms, selector=selector)

        await self._patiently(send)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await patiently(ask, self._bounds.retries, self._bounds.retry_interval_ms, warn=self._warn)

    def _warn(self, _event: str, **more: object) -> None:
        """Once for all lanes that wait."""
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until:
            self._silent_until = now + SAID_AGAIN_S
            _log.warning("sent_again", **more)
