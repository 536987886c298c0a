"""What sends the messages out of a handler (sends.py): a producer in a thread of its own, made when the first one is sent.

Messages of one call go out together, those of a batch too; a generator's when it has ended. All are stored by a broker when
`send` returns. Where one is not, the message fails that it came from; what was stored of that is sent again with the retry,
under the same keys.

A child that the handler forked and that comes back out of it has no thread that sends, and must not send beside its parent:
it ends here (forks.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn

from ..client.access import Access
from ..client.loop_thread import LoopThread
from ..client.outgoing import OutgoingMessage
from ..client.producer import Producer
from ..remoting.errors import RocketcrewError
from .forks import end_fork
from .own_thread import NoThreadError, OwnThread
from .sends import SendError

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

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        self._started().run(self._send_all(messages))

    async def send_awaited(self, messages: Sequence[OutgoingMessage]) -> None:
        await asyncio.wrap_future(self._started().submit(self._send_all(messages)))

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
        producer = Producer.create(self._access)
        producer.start()
        return producer

    async def _send_all(self, messages: Sequence[OutgoingMessage]) -> None:
        producer = self._producer
        assert producer is not None
        sending: list[Coroutine[Any, Any, object]] = [producer.send(message) for message in messages]
        each: list[SendError | None] = []
        for message, result in zip(messages, await asyncio.gather(*sending, return_exceptions=True), strict=True):
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            error = None
            if isinstance(result, Exception):
                error = SendError(f"a message for topic {message.topic} was not sent: {result}")
                error.__cause__ = result
            each.append(error)
        first = next(filter(None, each), None)
        if first is not None:
            raise SendError(str(first), each) from first
