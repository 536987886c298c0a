"""What sends the messages out of a handler (sends.py): a producer in a thread of its own, made when the first one is sent.

Messages of one call go out together, those of a batch too, where generators come to their ends first. Those with one order
key go one after another, and none of them after one that was not sent: the retry sends that first. All are stored by a broker
when `send` returns. Where one is not, the message fails that it came from; what was stored of that is sent again with the
retry, under the same keys.

So many are under way at once, and the time of each begins with its turn. Where brokers are silent for the time of one, those
of the call that have not begun are held back: a handler that returned a thousand would be kept for that time again and again.

A child that the handler forked and that comes back out of it has no thread that sends, and must not send beside its parent:
it ends here (forks.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from ..client.access import Access
from ..client.loop_thread import LoopThread
from ..client.producer import IN_FLIGHT_MAX, Producer
from ..client.selection import by_key
from ..remoting.errors import BrokerError, RocketcrewError, UnreachableError
from .forks import end_fork
from .own_thread import NoThreadError, OwnThread
from .sends import Send, SendError

HELD_BACK: Final = "a message was not sent, as one before it of its order key was not"
SILENT: Final = "a message was not sent, as no broker was reached for those before it"
CLOSING_S: Final = 2.0
"""For leaving the brokers at the end: nothing is under way then."""


class Outbox:
    """Sends by a producer of its own. `close` it at the end."""

    def __init__(
        self,
        access: Access,
        process_id: Callable[[], int] = os.getpid,
        end: Callable[[BaseException | None], NoReturn] = end_fork,
        begin: Callable[[Callable[[], None]], OwnThread] = OwnThread,
    ) -> None:
        self._access = access
        self._process_id, self._end, self._begin = process_id, end, begin
        self._own_id = process_id()
        self._thread: LoopThread | None = None
        self._producer: Producer | None = None
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._brokers = Brokers()

    def send(self, sends: Sequence[Send]) -> None:
        self._started().run(self._send_all(sends))

    async def send_awaited(self, sends: Sequence[Send]) -> None:
        await asyncio.wrap_future(self._started().submit(self._send_all(sends)))

    def close(self) -> None:
        """Leave the brokers, as far as they answer, and end the thread."""
        thread, producer = self._thread, self._producer
        if thread is None or producer is None or self._process_id() != self._own_id:
            return
        self._thread = self._producer = None
        with contextlib.suppress(RocketcrewError, OSError, concurrent.futures.TimeoutError):
            thread.submit(producer.close()).result(CLOSING_S)
        thread.close()

    def _started(self) -> LoopThread:
        if self._process_id() != self._own_id:
            self._end(None)
        if self._thread is None:
            try:
                thread = LoopThread(begin=self._begin)
            except NoThreadError as error:
                raise SendError(f"nothing is sent without a thread, and there is none to be had: {error}") from error
            try:
                self._producer = thread.run(self._create())
            except BaseException:
                thread.close()
                raise
            self._thread = thread
        return self._thread

    async def _create(self) -> Producer:
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)  # one of this loop
        producer = Producer(self._access)
        producer.start()
        return producer

    async def _send_all(self, sends: Sequence[Send]) -> None:
        producer = self._producer
        assert producer is not None
        each: list[SendError | None] = [None] * len(sends)
        lanes: dict[object, list[int]] = {}
        for place, one in enumerate(sends):
            lanes.setdefault((one.message.topic, one.order_key) if one.order_key else place, []).append(place)
        brokers, patience_s, turns_s = self._brokers, producer.send_timeout_ms / 1000, list[float]()

        async def send(places: Sequence[int]) -> None:
            for number, place in enumerate(places):
                async with self._turns:
                    turns_s.append(time.monotonic())
                    error = brokers.silence(turns_s[0], patience_s) or await _error_of(producer, sends[place])
                    brokers.heard(error)
                if error is not None:
                    each[place] = error
                    for later in places[number + 1 :]:
                        each[later] = SendError(f"{HELD_BACK}: {error}")
                    return

        for result in await asyncio.gather(*map(send, lanes.values()), return_exceptions=True):
            if result is not None:  # a send was cut off
                raise result
        first = next(filter(None, each), None)
        if first is not None:
            raise SendError(str(first), each) from first


class Brokers:
    """Whether they are silent, as far as the sends of all calls know."""

    def __init__(self) -> None:
        self._heard_s = float("-inf")
        self._lost: SendError | None = None
        self._lost_s = float("-inf")

    def heard(self, error: SendError | None) -> None:
        """How a send has ended. One that a broker refuses was heard."""
        cause = None if error is None else error.__cause__
        if error is None or isinstance(cause, BrokerError):
            self._heard_s = time.monotonic()
        elif isinstance(cause, UnreachableError):
            self._lost, self._lost_s = error, time.monotonic()

    def silence(self, since_s: float, patience_s: float) -> SendError | None:
        """Why a call, which had its first turn at `since_s`, begins no other: none was heard for `patience_s` since then, and
        one has failed to reach a broker."""
        quiet_since_s = max(since_s, self._heard_s)
        if self._lost is None or self._lost_s < quiet_since_s or time.monotonic() - quiet_since_s < patience_s:
            return None
        return SendError(f"{SILENT}: {self._lost}")


async def _error_of(producer: Producer, one: Send) -> SendError | None:
    """Send it; why it was not sent."""
    try:
        await producer.send(one.message, selector=by_key(one.order_key) if one.order_key else None)
    except Exception as cause:  # noqa: BLE001  the message fails that it came from
        error = SendError(f"a message for topic {one.message.topic} was not sent: {cause}")
        error.__cause__ = cause
        return error
    return None
