"""Turns of sends that nobody waits for, and how the end of a producer waits for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading

import pytest

from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import IN_FLIGHT_MAX, Producer
from rocketcrew.client.sync import SyncProducer
from rocketcrew.client.under_way import Left, UnderWay
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import UnreachableError, UsageError

from .conftest import PATIENT_MS

TOPIC = "orders"


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def lane_of(under_way):
    with under_way.one():
        await under_way.take_lane()
        try:
            yield
        finally:
            under_way.leave_lane()


async def test_lanes_are_given_in_turn_and_those_of_cancelled_sends_go_on_to_the_next():
    under_way, order, go_on = UnderWay(2), [], [asyncio.Event() for _ in range(6)]

    async def send(number):
        async with lane_of(under_way):
            order.append(number)
            await go_on[number].wait()

    sends = [asyncio.create_task(send(number)) for number in range(6)]
    await turns(2)
    assert order == [0, 1]
    sends[2].cancel()  # while it waits
    await turns(2)
    go_on[0].set()
    await turns(1)
    sends[3].cancel()  # it may have its lane by now, and has not gone on
    await turns(3)
    assert order[:3] in ([0, 1, 3], [0, 1, 4])
    for event in go_on:
        event.set()
    await asyncio.wait(sends)
    assert [send.cancelled() for send in sends] == [False, False, True, True, False, False]
    assert order[-2:] == [4, 5]
    async with lane_of(under_way), lane_of(under_way):
        pass


@pytest.mark.parametrize("cancelled", [False, True])
async def test_who_comes_in_the_turn_in_which_lanes_end_goes_after_those_that_waited(cancelled):
    under_way, order = UnderWay(3), []

    async def send(number):
        async with lane_of(under_way):
            order.append(number)

    for _ in range(3):
        await under_way.take_lane()
    sends = [asyncio.create_task(send(number)) for number in range(2)]
    await turns(1)
    late = [asyncio.create_task(send(number)) for number in range(2, 5)]  # they come before the first two go on
    for _ in range(3):
        under_way.leave_lane()
    if cancelled:
        sends[1].cancel()
    await asyncio.wait([*sends, *late])
    assert order == ([0, 2, 3, 4] if cancelled else [0, 1, 2, 3, 4])
    async with lane_of(under_way), lane_of(under_way), lane_of(under_way):
        pass


async def sends_in_turn(under_way, count, error=None):
    async def send():
        async with lane_of(under_way):
            await turns(1)
            if error is not None:
                raise error

    return [asyncio.create_task(send()) for _ in range(count)]


async def test_the_end_waits_for_as_long_as_sends_end_well():
    under_way = UnderWay(1)
    sends = await sends_in_turn(under_way, 100)
    assert await under_way.ended(0, closing=True) == Left(0, 0)
    assert all(send.done() for send in sends)
    with pytest.raises(UsageError, match="closed"):
        async with lane_of(under_way):
            pass


@pytest.mark.parametrize("end", [False, True])
async def test_for_sends_that_others_go_on_to_begin_only_those_before_are_waited_for(end):
    """Callbacks, say, and daemon threads at the end of a program."""
    under_way, stops = UnderWay(1), asyncio.Event()

    async def begins_others():
        while not stops.is_set():
            beside.append(asyncio.create_task(one_more()))
            await turns(1)

    async def one_more():
        with under_way.one():
            await (turns(3) if end else stops.wait())

    beside = []
    sends = await sends_in_turn(under_way, 100)
    other = asyncio.create_task(begins_others())
    left, failed = await under_way.ended(0, closing=False)
    assert all(send.done() for send in sends)
    assert (left > 0, failed) == (True, 0)
    stops.set()
    await asyncio.wait([*sends, other, *beside])


@pytest.mark.parametrize("lasts", range(1, 8))
async def test_what_sends_begin_at_their_end_is_waited_for_for_a_while(lasts):
    under_way, begun = UnderWay(1), []

    async def send():
        await turns(2)  # as `send_async` comes from its callback to its loop
        async with lane_of(under_way):
            await turns(lasts)
        if len(begun) < 100:
            begun.append(asyncio.create_task(send()))

    begun.append(asyncio.create_task(send()))
    assert await under_way.ended(PATIENT_MS / 1000, closing=False) == Left(0, 0)
    assert len(begun) == 100


async def test_what_a_failed_send_begins_at_its_end_is_waited_for_too():
    """An alarm, or a dead letter. All of them go well."""
    under_way, begun = UnderWay(1), []

    async def alarm():
        await turns(2)
        async with lane_of(under_way):
            await turns(20)

    async def send():
        try:
            async with lane_of(under_way):
                await turns(3)
                raise UnreachableError("a", "away")
        finally:
            begun.extend(asyncio.create_task(alarm()) for _ in range(10))

    first = asyncio.create_task(send())
    assert await under_way.ended(PATIENT_MS / 1000, closing=False) == Left(0, 1)
    assert [alarm.done() for alarm in begun] == [True] * 10
    assert isinstance(first.exception(), UnreachableError)


async def test_sends_that_fail_one_after_the_other_are_not_waited_for():
    under_way = UnderWay(1)
    sends = await sends_in_turn(under_way, 100, UnreachableError("a", "away"))
    left, failed = await under_way.ended(0, closing=True)
    assert left > 50
    assert failed > 0
    assert left + failed == 100
    await asyncio.wait(sends)
    assert {type(send.exception()) for send in sends} == {UnreachableError}


async def test_what_fails_while_a_producer_closes_is_told_by_its_number(closed_port, capsys):
    producer = Producer(closed_port, send_timeout_ms=PATIENT_MS)
    sends = [asyncio.create_task(producer.send(TOPIC, b"x")) for _ in range(3)]
    await producer.close()
    assert {type(send.exception()) for send in sends} == {UnreachableError}
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "closed_with_sends_under_way" in line]
    assert "failed=3" in line
    assert "sends=0" in line


class Counts:
    """A hook."""

    def __init__(self):
        self.now = self.most = 0

    def before_send(self, context):
        self.now += 1
        self.most = max(self.most, self.now)

    def after_send(self, context):
        self.now -= 1


def test_of_many_that_send_async_begins_at_once_so_many_are_under_way(served):
    hook, count = Counts(), 4 * IN_FLIGHT_MAX
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, hooks=[hook], background=True) as producer:
        sent = [producer.send_async(TOPIC, b"%d" % number) for number in range(count)]
    assert {future.result(0).mq.topic for future in sent} == {TOPIC}
    assert 1 < hook.most <= IN_FLIGHT_MAX


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_whose_thread_a_callback_has_ended_says_by_what_and_closes(served):
    producer = SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True)
    producer.send_async(TOPIC, b"x").add_done_callback(lambda _: sys.exit(3))
    thread = producer._works.runner._thread
    thread.join(PATIENT_MS / 1000)
    assert not thread.is_alive()
    for send in (producer.send, producer.send_async):
        with pytest.raises(UsageError, match=r"too late: what it needs was ended by SystemExit\(3\)"):
            send(TOPIC, b"y")
    works = producer._works
    producer.close()
    assert works.producer._closed
    with pytest.raises(UsageError, match="closed"):
        producer.send(TOPIC, b"z")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_whose_thread_a_callback_ends_while_it_closes_is_closed(served):
    producer = SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True)
    producer.send(TOPIC, b"x")
    works = producer._works

    async def ends_late():
        try:
            await asyncio.Event().wait()
        finally:
            await turns(1000)  # the loop is not closed yet when `close` hears that it is cut off

    def ends_the_thread(command):
        if command.code == RequestCode.UNREGISTER_CLIENT:
            works.runner.call(lambda: sys.exit(3))

    works.runner.submit(ends_late())
    served.broker.intercepts.append(ends_the_thread)
    producer.close()
    works.runner._thread.join(PATIENT_MS / 1000)  # what it raises belongs to this test
    assert works.runner.is_closed
    assert "SystemExit" in works.runner._ended_by


class Interrupted(BaseException):
    """As the exception of a signal's handler."""


def test_a_close_that_a_signal_interrupts_waits_for_no_end_of_a_connection(served):
    """With TLS that end takes the peer, and the loop has no more than some turns."""

    def interrupted(*_):
        raise Interrupted

    def interrupts(command):
        if command.code == RequestCode.UNREGISTER_CLIENT:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    producer = SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS)
    producer.send(OutgoingMessage(TOPIC, b"x"))
    connection = producer._producer.cluster.remoting.connection_of(served.broker.address)
    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        served.broker.intercepts.append(interrupts)
        with pytest.raises(Interrupted):
            producer.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not connection.open
    assert connection.why == "a call was interrupted"
