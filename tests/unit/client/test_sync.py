"""The blocking face: against an embedded broker in a process of its own loop, run by a thread of the test."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcrew.client.admin import Admin
from rocketcrew.client.background import background
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.sync import SyncProducer, _CallLoop, _CallRunner, run_with_cluster
from rocketcrew.remoting.errors import TimedOutError, UnreachableError, UsageError
from rocketcrew.testing import LocalBroker, message
from rocketcrew.workers.sends import Send

from .conftest import PATIENT_MS

TOPIC = "orders"


def test_sending_from_a_script(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        result = producer.send(OutgoingMessage(TOPIC, b"one", tags="t"))
        producer.send_oneway(OutgoingMessage(TOPIC, b"two"))
        batch = producer.send_batch([OutgoingMessage(TOPIC, b"three"), OutgoingMessage(TOPIC, b"four")])
        many = producer.send_many((OutgoingMessage(TOPIC, b"x") for _ in range(100)), in_flight_max=8)
        assert (result.mq.topic, len(many), batch.attempts) == (TOPIC, 100, 1)
    stats = run_with_cluster(served.broker.name_server, lambda cluster: Admin(cluster).topic_stats(TOPIC))
    assert sum(entry.max_offset for entry in stats.offset_table.values()) == 104


def test_a_topic_a_body_and_fields_are_a_message_too(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        producer.send(TOPIC, "größe", tags="t", keys=["k1", "k2"], properties={"colour": "red"})
        producer.send_oneway(TOPIC, b"two")
        producer.send_async(TOPIC, b"three").result()
    store = served.broker.core.state.store
    found = [
        store.message_in(TOPIC, queue_id, at)
        for queue_id in store.queue_ids(TOPIC)
        for at in range(store.max_offset(TOPIC, queue_id))
    ]
    (first,) = [message for message in found if message.body == "größe".encode()]
    assert {"TAGS": "t", "KEYS": "k1 k2", "colour": "red"}.items() <= first.properties.items()
    assert {message.body for message in found} == {"größe".encode(), b"two", b"three"}


def test_a_message_is_given_in_one_way_only(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        with pytest.raises(UsageError, match=r"no body: call send\('orders', body\)"):
            producer.send(TOPIC)
        with pytest.raises(UsageError, match="a whole message and also body, tags"):
            producer.send(OutgoingMessage(TOPIC, b"x"), b"y", tags="t")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"body": {"a": 1}}, "the body of a message for topic orders is of type dict: give bytes, or a str"),
        ({"body": None}, "the body of a message for topic orders is of type NoneType"),
        ({"tags": ["a", "b"]}, "tags of a message for topic orders is of type list"),
        ({"keys": 5}, "keys of a message for topic orders: 5 is of type int: give a str, or several"),
        ({"keys": ["a", 5]}, "keys of a message for topic orders: 5 is of type int"),
        (
            {"keys": ["a", "b c"]},
            "keys of a message for topic orders: 'b c' has a blank, and brokers divide keys there",
        ),
        ({"keys": ["a", ""]}, "keys of a message for topic orders: one of them is empty"),
        ({"keys": {"a": "b"}}, "keys of a message for topic orders: {'a': 'b'} is of type dict"),
        ({"topic": 5}, "the topic of a message is of type int"),
        ({"properties": [("a", "b")]}, "properties of a message for topic orders is of type list"),
        ({"keys": b"a"}, "keys of a message for topic orders: b'a' is of type bytes"),
        ({"properties": {"a": 1}}, "properties of a message for topic orders: 'a' with 1: both must be str"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(fields, says):
    with pytest.raises(UsageError) as raised:
        OutgoingMessage(**({"topic": TOPIC, "body": b"x"} | fields))
    assert says in str(raised.value)


def test_no_tags_and_no_keys_may_be_none():
    assert OutgoingMessage(TOPIC, b"x", tags=None, keys=None) == OutgoingMessage(TOPIC, b"x")


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ("o-1", "o-1"),
        ("o-1 c-7", "o-1 c-7"),
        (["o-1", "c-7"], "o-1 c-7"),
        (("o-1",), "o-1"),
        ([], ""),
        (None, ""),
        ("", ""),
    ],
)
def test_keys_are_one_text_wherever_they_are_given_and_read(given, keys):
    assert OutgoingMessage(TOPIC, b"x", keys=given).keys == keys
    assert Send(TOPIC, b"x", keys=given).message.keys == keys
    assert (message(b"x", topic=TOPIC, keys=given).keys or "") == keys
    sent = OutgoingMessage(TOPIC, b"x", keys=given)
    assert replace(sent, body=b"y").keys == keys
    assert sent.all_properties("id").get("KEYS", "") == keys


def test_what_is_no_message_is_named(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        for sent in (
            lambda: producer.send(b"orders", b"x"),
            lambda: producer.send_many([("orders", b"x")]),
            lambda: producer.send_batch([("orders", b"x")]),
        ):
            with pytest.raises(
                UsageError, match=r"what is to be sent is of type (bytes|tuple): give a topic and a body"
            ):
                sent()


def test_connections_that_rotted_between_calls_are_not_used(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, retries=0) as producer:
        producer.send(OutgoingMessage(TOPIC, b"one"))
        lost = producer._producer.cluster.remoting.connection_of(served.broker.address)
        served.do(lambda: [connection.abort() for connection in served.broker._edge._connections.values()])
        assert producer.send(OutgoingMessage(TOPIC, b"two")).attempts == 1
        assert not lost.open


class Counted:
    """A runner; `runs`: how often its loop has run."""

    def __init__(self, runner):
        self._runner, self.runs = runner, 0
        self.close = runner.close

    def run(self, coro, /, **options):
        self.runs += 1
        return self._runner.run(coro, **options)


@contextlib.contextmanager
def with_an_old_route(name_server):
    """A producer that has sent and asks a question beside its next call; its runner; and a name server that is silent."""
    with (
        SyncProducer(name_server, send_timeout_ms=PATIENT_MS) as producer,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        producer.send(TOPIC, b"x")
        producer._works = producer._works._replace(runner=Counted(producer._works.runner))
        producer._producer.cluster._entry(TOPIC).checked_s -= 30
        yield producer, producer._works.runner, f"127.0.0.1:{silent.getsockname()[1]}"


def test_a_loop_runs_on_for_what_was_asked_beside_a_call_and_else_not(served):
    with with_an_old_route(served.broker.name_server) as (producer, runner, silent):
        producer._producer.cluster.name_servers.update(silent)
        producer.send_oneway(TOPIC, b"x")
        assert (producer._producer.cluster.is_settled, runner.runs) == (True, 3)
        producer.send(TOPIC, b"x")
        assert runner.runs == 5, "once for each question"


def test_a_call_that_fails_waits_for_what_it_has_asked_too(served):
    def nowhere(queues):
        return queues[0]._replace(broker_name="nobody knows it")

    with with_an_old_route(served.broker.name_server) as (producer, runner, silent):
        producer._producer.cluster.name_servers.update(silent)
        with pytest.raises(TimedOutError, match="in time where it is"):
            producer.send(TOPIC, b"x", selector=nowhere, timeout_ms=10)
        assert producer._producer.cluster.is_settled
        assert runner.runs == 3


def test_a_call_that_is_interrupted_waits_for_nothing(served):
    def interrupted(_):
        raise KeyboardInterrupt

    with with_an_old_route(served.broker.name_server) as (producer, runner, _):
        with pytest.raises(KeyboardInterrupt):
            producer.send(TOPIC, b"x", selector=interrupted)
        assert runner.runs == 2
        producer.send(TOPIC, b"x")


def test_connections_unused_for_long_are_made_anew(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, retries=0, idle_ms=0) as producer:
        producer.send(OutgoingMessage(TOPIC, b"one"))
        before = producer._producer.cluster.remoting.connection_of(served.broker.address)
        producer.send(OutgoingMessage(TOPIC, b"two"))
        assert not before.open


def test_after_close_it_says_so(served):
    producer = SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS)
    producer.close()
    producer.close()
    with pytest.raises(UsageError, match="closed"):
        producer.send(OutgoingMessage(TOPIC, b"x"))


def test_errors_come_through(closed_port):
    with SyncProducer(closed_port) as producer:
        with pytest.raises(UnreachableError):
            producer.send(OutgoingMessage(TOPIC, b"x"))
        with pytest.raises(UsageError, match="empty body"):
            producer.send(OutgoingMessage(TOPIC, b""))
    with pytest.raises(UsageError, match="no name server"):
        SyncProducer("")


async def test_inside_a_running_loop_it_needs_a_thread(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        assert producer.send(OutgoingMessage(TOPIC, b"x")).attempts == 1


async def test_inside_a_running_loop_it_refuses():
    with pytest.raises(UsageError, match="use Producer with await"):
        SyncProducer("127.0.0.1:1")
    with pytest.raises(UsageError, match="running event loop"):
        run_with_cluster("127.0.0.1:1", lambda cluster: None)


# Leaving while something is under way.


def test_what_send_async_has_begun_is_sent_before_it_closes(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        futures = [producer.send_async(TOPIC, b"%d" % number) for number in range(200)]
    assert {future.result(0).mq.topic for future in futures} == {TOPIC}


async def test_tasks_that_were_made_before_a_block_ends_are_sent(served):
    async with Producer(served.broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        sends = [asyncio.create_task(producer.send(TOPIC, b"%d" % number)) for number in range(20)]
    assert all(send.done() for send in sends)
    assert {send.result().mq.topic for send in sends} == {TOPIC}


def test_what_is_not_sent_in_time_is_told_by_its_number(capsys):
    with LocalBroker() as broker, broker.faults.drop("SEND_MESSAGE_V2", times=None):
        with SyncProducer(broker.name_server, send_timeout_ms=50, background=True) as producer:
            futures = [producer.send_async(TOPIC, b"x", timeout_ms=PATIENT_MS) for _ in range(3)]
        assert all(future.done() for future in futures)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "closed_with_sends_under_way" in line]
    assert "sends=3" in line


async def test_a_close_under_way_lets_no_send_begin_and_a_cancelled_one_closes_all_the_same():
    with LocalBroker() as broker, broker.faults.drop("SEND_MESSAGE_V2", times=None):
        producer = Producer(broker.name_server, send_timeout_ms=PATIENT_MS)
        producer.start()
        send = asyncio.create_task(producer.send(TOPIC, b"x"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="this producer is closed"):
            await producer.send(TOPIC, b"y")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert producer.cluster.remoting.addresses == []
        send.cancel()
        await asyncio.wait([send])


# Several threads.


class Holding:
    """A hook that holds a send until it may go on."""

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()

    def before_send(self, context):
        self.inside.set()
        assert self.go_on.wait(PATIENT_MS / 1000)

    def after_send(self, context):
        pass


def test_a_call_beside_that_of_another_thread_is_refused(served):
    hook = Holding()
    with (
        ThreadPoolExecutor(1) as other,
        SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, hooks=[hook]) as producer,
    ):
        sent = other.submit(producer.send, TOPIC, b"x")
        assert hook.inside.wait(PATIENT_MS / 1000)
        try:
            for call in (lambda: producer.send(TOPIC, b"y"), producer.close):
                with pytest.raises(UsageError, match=r"another thread is inside .* background=True"):
                    call()
        finally:
            hook.go_on.set()
        assert sent.result().mq.topic == TOPIC
        assert producer.send(TOPIC, b"z").mq.topic == TOPIC


class Interrupting:
    """A hook that is interrupted once, as by a signal."""

    def __init__(self):
        self.left = 1

    def before_send(self, context):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def after_send(self, context):
        pass


def test_after_a_call_that_was_interrupted_another_thread_may_call(served):
    with (
        ThreadPoolExecutor(1) as other,
        SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, hooks=[Interrupting()]) as producer,
    ):
        with pytest.raises(KeyboardInterrupt):
            producer.send(TOPIC, b"x")
        assert other.submit(producer.send, TOPIC, b"y").result().mq.topic == TOPIC


class Interrupted(BaseException):
    """As the exception of a handler's soft time limit."""


@pytest.mark.parametrize("where", ["lane", "loop"])
def test_after_a_call_that_was_interrupted_nothing_of_it_goes_on_in_the_next_one(served, where):
    drawn = []

    def source():
        for number in range(1000):
            drawn.append(number)
            if number == 20 and where == "lane":
                raise Interrupted
            yield OutgoingMessage(TOPIC, b"x")

    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, hooks=[LeavesTheLoop(where)]) as producer:
        with pytest.raises(Interrupted if where == "lane" else KeyboardInterrupt):
            producer.send_many(source(), in_flight_max=4)
        before = len(drawn)
        assert before < 100
        for _ in range(3):
            producer.send(TOPIC, b"y")
        assert len(drawn) == before


class LeavesTheLoop:
    """At the twentieth send an exception comes out of the loop beside all tasks, as by a signal while it waits."""

    def __init__(self, where):
        self.left = 20 if where == "loop" else 0

    def before_send(self, context):
        self.left -= 1
        if self.left == 0:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self):
        raise KeyboardInterrupt

    def after_send(self, context):
        pass


def test_with_a_thread_of_its_own_any_number_may_begin_it_at_once(served):
    with (
        SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer,
        ThreadPoolExecutor(4) as others,
    ):
        results = list(others.map(lambda number: producer.send(TOPIC, b"%d" % number), range(40)))
    assert len({result.message_id for result in results}) == 40


# What a signal raises, in the middle of anything.


class TimeLimitError(Exception):
    """As what a handler of SIGALRM raises."""


class LimitsTheFirst:
    """At the first send something is raised in a callback of the loop, as by a signal."""

    def __init__(self, error):
        self.error = error

    def before_send(self, context):
        if self.error is not None:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self):
        error, self.error = self.error, None
        raise error

    def after_send(self, context):
        pass


@pytest.mark.parametrize("error", [TimeLimitError(), TimeoutError()])
def test_what_is_raised_in_a_callback_ends_the_call_that_waits(error):
    with (
        LocalBroker() as broker,
        SyncProducer(broker.name_server, send_timeout_ms=PATIENT_MS, hooks=[LimitsTheFirst(error)]) as producer,
    ):
        with broker.faults.drop("SEND_MESSAGE_V2"), pytest.raises(type(error)) as raised:
            producer.send(TOPIC, b"x")
        assert raised.value is error
        assert producer.send(TOPIC, b"y").mq.topic == TOPIC


class Reads(asyncio.Protocol):
    """Something is raised while it reads, as by a signal."""

    def __init__(self, error):
        self._error = error

    def data_received(self, data):
        raise self._error


@pytest.mark.parametrize("error", [TimeLimitError(), TimeoutError()])
def test_what_is_raised_while_an_answer_is_read_ends_the_call_too(error):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def wait():
        await asyncio.get_running_loop().create_connection(lambda: Reads(error), sock=ours)
        theirs.send(b"answer")
        await asyncio.wait_for(asyncio.Event().wait(), PATIENT_MS / 1000)

    runner = _CallRunner()
    with theirs:
        with pytest.raises(type(error)) as raised:
            runner.run(wait())
        assert raised.value is error
        runner.close()


def test_what_the_system_says_of_a_connection_is_not_raised():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def wait():
        lost = asyncio.get_running_loop().create_future()
        protocol = Reads(OSError(errno.ECONNRESET, "reset"))
        protocol.connection_lost = lost.set_result
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
        theirs.send(b"answer")
        return await lost

    runner = _CallRunner()
    with theirs:
        assert runner.run(wait()).errno == errno.ECONNRESET
        runner.close()


def test_a_loop_whose_task_never_wakes_ends_all_the_same():
    async def never():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def begin():
        return background(never())

    runner = _CallRunner()
    task = runner.run(begin())
    runner.close()
    assert not task.done()


@pytest.mark.parametrize("which", ["here", "first", "later"])
def test_wherever_a_signal_raises_the_next_call_sends(served, which):
    """In a program of its own: where a trace raises in the clean-up of an `except`, Python takes that exception for the one
    that the thread handles, from then on; and what asyncio was about to begin is found by a later collection."""
    program = Path(__file__).with_name("interrupted_calls.py")
    command = [sys.executable, "-W", "ignore", str(program), served.broker.name_server, TOPIC, str(PATIENT_MS), which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENT_MS / 1000, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_a_loop_that_a_signal_has_kept_from_being_made_ends_without_a_word():
    loop = _CallLoop.__new__(_CallLoop)
    asyncio.BaseEventLoop.__init__(loop)
    loop.__del__()


# In the thread of its own.


@pytest.mark.parametrize("call", ["send", "send_many", "close"])
def test_in_its_own_thread_what_would_wait_for_itself_is_refused(served, call):
    said = concurrent.futures.Future()

    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        calls = {
            "send": lambda: producer.send(TOPIC, b"y"),
            "send_many": lambda: producer.send_many([OutgoingMessage(TOPIC, b"y")]),
            "close": producer.close,
        }

        def sent(_):
            try:
                said.set_result(calls[call]())
            except UsageError as error:
                said.set_exception(error)

        producer.send_async(TOPIC, b"x").add_done_callback(sent)
        with pytest.raises(UsageError, match=r"would wait for itself.*use send_async there"):
            said.result(PATIENT_MS / 1000)
        assert producer.send(TOPIC, b"z").mq.topic == TOPIC


def test_send_async_is_possible_there(served):
    said = concurrent.futures.Future()
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        first = producer.send_async(TOPIC, b"x")
        first.add_done_callback(lambda _: said.set_result(producer.send_async(TOPIC, b"y")))
        assert said.result(PATIENT_MS / 1000).result(PATIENT_MS / 1000).mq.topic == TOPIC


def test_a_generator_and_a_selector_that_send_are_refused(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:

        def source():
            producer.send(TOPIC, b"y")
            yield OutgoingMessage(TOPIC, b"x")

        def choose(queues):
            producer.send(TOPIC, b"y")
            return queues[0]

        with pytest.raises(UsageError, match="would wait for itself"):
            producer.send_many(source())
        with pytest.raises(UsageError, match="would wait for itself"):
            producer.send(TOPIC, b"x", selector=choose)


def test_what_is_wrong_with_a_message_the_future_of_send_async_has(served):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        for fields, error in (({"tag": "a"}, TypeError), ({"tags": 5}, UsageError)):
            assert type(producer.send_async(TOPIC, b"x", **fields).exception(PATIENT_MS / 1000)) is error


def test_a_buffer_that_is_used_again_is_sent_as_it_was(served):
    body = bytearray(b"0")
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=True) as producer:
        futures = []
        for number in range(5):
            body[:] = b"%d" % number
            futures.append(producer.send_async("buffers", body))
        results = [future.result() for future in futures]
    store = served.broker.core.state.store
    found = [store.message_in("buffers", each.mq.queue_id, each.queue_offset).body for each in results]
    assert found == [b"0", b"1", b"2", b"3", b"4"]
