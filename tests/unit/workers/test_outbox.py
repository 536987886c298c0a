"""What sends the messages out of a handler: in which order, and in a child that the handler forked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import pytest

from rocketcrew.client.access import Access
from rocketcrew.client.producer import IN_FLIGHT_MAX, Producer
from rocketcrew.client.selection import by_key
from rocketcrew.client.send_hooks import SendContext
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.errors import BrokerError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.testing.broker import LocalBroker
from rocketcrew.workers.outbox import HELD_BACK, SILENT, Brokers, Outbox
from rocketcrew.workers.own_thread import NoThreadError, OwnThread
from rocketcrew.workers.sends import Send, SendError

BILL = Send("invoices", b"x")


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


@pytest.mark.parametrize("awaited", [False, True])
def test_messages_of_one_order_key_are_in_one_queue_in_their_order(awaited: bool) -> None:
    with LocalBroker() as broker:
        topic, outbox = broker.topic(), Outbox(Access(broker.name_server))
        queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
        sends = [Send(topic, f"{key} {number}", order_key=key) for number in range(8) for key in ("o-1", "o-4")]
        try:
            for batch in (sends[:6], sends[6:]):
                if awaited:
                    asyncio.run(outbox.send_awaited(batch))
                else:
                    outbox.send(batch)
        finally:
            outbox.close()
        for key in ("o-1", "o-4"):
            stored = [each for each in broker.messages(topic) if each.body.startswith(key.encode())]
            assert [each.body for each in stored] == [f"{key} {number}".encode() for number in range(8)]
            assert {each.queue_id for each in stored} == {by_key(key)(queues).queue_id}
            assert {each.properties["__SHARDINGKEY"] for each in stored} == {key}


def test_what_comes_after_one_that_was_not_sent_waits_for_the_retry_with_it() -> None:
    """Of its order key; the others are sent."""
    with LocalBroker() as broker:
        topic, outbox = broker.topic(), Outbox(Access(broker.name_server))
        make = partial(Send, topic, order_key="o-1")
        outbox.send([make("0")])
        broker.faults.refuse("SEND_MESSAGE_V2", response="NO_PERMISSION")
        with pytest.raises(SendError, match="planted by a test") as caught:
            outbox.send([make("1"), make("2"), Send(topic, "apart", order_key="o-2")])
        outbox.close()
        first, second, apart = caught.value.each
        assert isinstance(first, SendError)
        assert HELD_BACK in str(second)
        assert apart is None
        assert sorted(each.body for each in broker.messages(topic)) == [b"0", b"apart"]


def test_a_property_that_came_with_a_message_that_is_passed_on_asks_for_no_order() -> None:
    """It is sent to another queue where one refuses it, and nothing waits for it."""
    with LocalBroker() as broker:
        topic, outbox = broker.topic(), Outbox(Access(broker.name_server))
        outbox.send([Send(topic, "0")])
        with broker.faults.refuse("SEND_MESSAGE_V2", response="SYSTEM_BUSY", times=1):
            outbox.send([Send(topic, "1", properties={"__SHARDINGKEY": "o-1"})])
        outbox.close()
        keys = {each.body: each.properties.get("__SHARDINGKEY") for each in broker.messages(topic)}
        assert keys == {b"0": None, b"1": "o-1"}


class Counted(Outbox):
    """Counts its sends, whose time a test sets."""

    begun = 0

    async def _create(self) -> Producer:
        self.producer = Producer(self._access, send_timeout_ms=60_000, hooks=[self])
        return self.producer

    def before_send(self, context: SendContext) -> None:
        self.begun += 1

    def after_send(self, context: SendContext) -> None:
        pass


def test_of_many_to_a_silent_broker_only_those_are_waited_for_that_were_begun() -> None:
    """The others would keep the handler for the time of a send, once for each 256."""
    with LocalBroker() as broker:
        topic, outbox = broker.topic(), Counted(Access(broker.name_server))
        outbox.send([Send(topic, "0")])  # it knows the route
        outbox.producer.send_timeout_ms = 100
        with broker.faults.drop("SEND_MESSAGE_V2", times=None), pytest.raises(SendError) as caught:
            outbox.send([Send(topic, "1")] * 4 * IN_FLIGHT_MAX)
        held_back = sum(SILENT in str(error) for error in caught.value.each)
        assert held_back >= 2 * IN_FLIGHT_MAX
        assert outbox.begun < 1 + 4 * IN_FLIGHT_MAX, "a few of those that were begun are tried twice"
        outbox.producer.send_timeout_ms = 60_000
        outbox.send([Send(topic, "2")] * 2 * IN_FLIGHT_MAX)  # another call tries anew
        outbox.close()
        assert sum(each.body == b"2" for each in broker.messages(topic)) == 2 * IN_FLIGHT_MAX


def not_sent(cause: Exception) -> SendError:
    error = SendError("not sent")
    error.__cause__ = cause
    return error


def test_a_call_that_waited_for_its_turn_is_not_held_back_by_one_lost_connection() -> None:
    """Its time begins with its first turn, and what another call has sent counts for it."""
    brokers, now_s = Brokers(), time.monotonic()
    lost = not_sent(UnreachableError("a", "cut"))
    brokers.heard(lost)
    assert brokers.silence(now_s, patience_s=3_600) is None
    assert SILENT in str(brokers.silence(now_s - 7_200, patience_s=3_600))
    brokers.heard(None)
    brokers.heard(lost)
    assert brokers.silence(now_s - 7_200, patience_s=3_600) is None


def test_a_connection_that_was_lost_before_a_call_holds_back_nothing_of_it() -> None:
    brokers = Brokers()
    brokers.heard(not_sent(UnreachableError("a", "cut")))
    assert brokers.silence(time.monotonic(), patience_s=0) is None


def test_brokers_that_refuse_are_not_silent() -> None:
    brokers, long_ago_s = Brokers(), time.monotonic() - 7_200
    brokers.heard(not_sent(UnreachableError("a", "cut")))
    brokers.heard(not_sent(BrokerError(ResponseCode.SYSTEM_BUSY, "later", "SEND_MESSAGE")))
    assert brokers.silence(long_ago_s, patience_s=3_600) is None
