"""What sends the messages out of a handler, in a child that the handler forked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest

from rocketcrew.client.access import Access
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.workers.outbox import Outbox
from rocketcrew.workers.own_thread import NoThreadError, OwnThread
from rocketcrew.workers.sends import SendError

BILL = OutgoingMessage("invoices", b"x")


class EndedError(Exception):
    """The process would have ended."""


def end(error: BaseException | None) -> NoReturn:
    raise EndedError(error)


class Started(Outbox):
    """Counts how often a producer is made."""

    made = 0

    async def _create(self) -> Producer:
        self.made += 1
        return await super()._create()


def no_thread(_run: Callable[[], None]) -> OwnThread:
    raise NoThreadError("can't start new thread")


def test_where_a_handler_left_no_memory_for_the_thread_its_messages_fail() -> None:
    """`threading` would wait for it without an end."""
    outbox = Outbox(Access("127.0.0.1:9"), begin=no_thread)
    for _ in range(2):
        with pytest.raises(SendError, match="there is none to be had: can't start new thread"):
            outbox.send([BILL])
    outbox.close()


def test_a_forked_child_that_would_send_ends_and_closes_nothing_of_its_parents() -> None:
    process = [1]
    outbox = Started(Access("127.0.0.1:9"), lambda: process[0], end)
    process[0] = 2
    with pytest.raises(EndedError):
        outbox.send([BILL])
    with pytest.raises(EndedError):
        asyncio.run(outbox.send_awaited([BILL]))
    assert outbox.made == 0
    process[0] = 1
    outbox.send([])  # the parent's thread is there now
    try:
        process[0] = 2
        with pytest.raises(EndedError):
            outbox.send([BILL])
        outbox.close()
        process[0] = 1
        outbox.send([])
        assert outbox.made == 1
    finally:
        outbox.close()
