"""Producers that nobody closed: a warning that names them and says what to do, and no other word."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import warnings

import pytest
import uvloop

from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.sync import SyncProducer
from rocketcrew.remoting.errors import UnreachableError, UsageError
from rocketcrew.testing import LocalBroker

from .conftest import DEADLINE_S, PATIENT_MS

GROUP = "never-closed"
MESSAGE = OutgoingMessage("orders", b"x")


def warned(use):
    """The texts of ResourceWarnings about producers from `use()` and what it leaves."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        use()
        gc.collect()
    return [str(each.message) for each in found if "producer" in str(each.message)]


def errors_of_asyncio(caplog):
    gc.collect()  # a warning that is recorded keeps its producer until here
    return [each.getMessage() for each in caplog.records if each.name == "asyncio" and each.levelno >= logging.ERROR]


async def in_vain(address, **options):
    producer = Producer(address, GROUP, send_timeout_ms=50, **options)
    producer.start()
    with pytest.raises(UnreachableError):
        await producer.send(MESSAGE)


async def given_up(address):
    """The connection is still being made."""
    producer = Producer(address, GROUP)
    producer.start()
    sending = asyncio.ensure_future(producer.send(MESSAGE))
    for _ in range(5):
        await asyncio.sleep(0)  # turns of the loop
    sending.cancel()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("options", [{}, {"trace": True}])
def test_one_that_cannot_connect_is_named_and_its_tasks_are_not(closed_port, caplog, new_loop, options):
    def use():
        loop = new_loop()
        loop.run_until_complete(in_vain(closed_port, **options))
        loop.close()

    (text,) = warned(use)
    assert "group 'never-closed' was not closed: call its close(), or use it in a with block" in text
    assert errors_of_asyncio(caplog) == []


def test_nor_are_those_of_a_connection_that_is_being_made_in_a_loop_that_is_not_closed(silent_port, caplog):
    assert len(warned(lambda: asyncio.new_event_loop().run_until_complete(given_up(silent_port)))) == 1
    assert errors_of_asyncio(caplog) == []


@pytest.mark.parametrize("background", [True, False])
def test_so_is_one_without_a_loop(closed_port, caplog, background):
    def use():
        with pytest.raises(UnreachableError):
            SyncProducer(closed_port, GROUP, send_timeout_ms=50, background=background).send(MESSAGE)

    assert len(warned(use)) == 1
    assert errors_of_asyncio(caplog) == []


def test_one_that_is_connected_and_was_not_started_too(served):
    async def use():
        await Producer(served.broker.name_server, GROUP, send_timeout_ms=PATIENT_MS).send(MESSAGE)

    assert len(warned(lambda: asyncio.run(use()))) == 1


def test_nothing_is_said_of_one_that_is_closed_was_not_used_or_was_not_made(closed_port):
    async def use():
        async with Producer(closed_port, GROUP, send_timeout_ms=50) as producer:
            with pytest.raises(UnreachableError):
                await producer.send(MESSAGE)
        Producer(closed_port, GROUP)
        with pytest.raises(UsageError):
            Producer(closed_port, "no group!")

    def both():
        asyncio.run(use())
        SyncProducer(closed_port, GROUP).close()

    assert warned(both) == []


# With a thread of its own.


def test_one_that_nobody_has_any_more_sends_what_it_has_begun_and_its_thread_ends(served):
    kept = []

    def use():
        producer = SyncProducer(served.broker.name_server, GROUP, send_timeout_ms=PATIENT_MS, background=True)
        kept.extend(producer.send_async(MESSAGE) for _ in range(50))
        kept.append(producer._works.runner)

    assert len(warned(use)) == 1
    *futures, thread = kept
    assert {future.result(PATIENT_MS / 1000).mq.topic for future in futures} == {"orders"}
    thread._thread.join(PATIENT_MS / 1000)
    assert thread.is_closed
    assert not thread._thread.is_alive()


LEFT = """
import os, sys
from rocketcrew import SyncProducer

def use():
    producer = SyncProducer(sys.argv[1], send_timeout_ms=int(sys.argv[2]), background=True)
    for number in range(200):
        producer.send_async("orders", b"%d" % number, timeout_ms=60_000)
    return producer
"""
KEPT = f"{LEFT}\nkept = use()"
DROPPED = f"{LEFT}\nuse()"
FORKED = f"""{LEFT}
kept = use()
if not (pid := os.fork()):
    sys.exit(7)  # waits for nothing: it has no thread
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def ended(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def stored(served):
    store = served.broker.core.state.store
    return sum(store.max_offset("orders", queue_id) for queue_id in store.queue_ids("orders"))


@pytest.mark.parametrize("script", [KEPT, DROPPED, FORKED], ids=["kept", "dropped", "forked"])
def test_the_end_of_the_program_waits_for_what_was_begun(served, script):
    assert ended(script, served.broker.name_server, PATIENT_MS) == ""
    assert stored(served) == 200


@pytest.mark.parametrize("script", [KEPT, DROPPED], ids=["kept", "dropped"])
def test_what_it_waits_for_in_vain_it_names_by_its_number(script):
    with LocalBroker() as broker, broker.faults.drop("SEND_MESSAGE_V2", times=None):
        (line,) = [line for line in ended(script, broker.name_server, 50).splitlines() if "closed_with" in line]
    assert "sends=200" in line


def test_functions_that_run_later_at_exit_may_still_send(served):
    script = """
import atexit, sys
atexit.register(lambda: producer.send("orders", b"last"))  # runs after what is registered after it
from rocketcrew import SyncProducer
producer = SyncProducer(sys.argv[1], send_timeout_ms=int(sys.argv[2]), background=True)
producer.send_async("orders", b"first")
"""
    assert ended(script, served.broker.name_server, PATIENT_MS) == ""
    assert stored(served) == 2


def test_what_they_begin_to_send_is_sent_too(served):
    script = """
import atexit, sys
def flush():
    for number in range(100):
        producer.send_async("orders", b"%d" % number)
atexit.register(flush)
from rocketcrew import SyncProducer
producer = SyncProducer(sys.argv[1], send_timeout_ms=int(sys.argv[2]), background=True)
"""
    assert ended(script, served.broker.name_server, PATIENT_MS) == ""
    assert stored(served) == 100


def test_a_callback_that_sends_then_does_not_wait_for_itself(served):
    script = """
import atexit, sys, threading
def flush():
    called, sent = threading.Event(), threading.Event()
    def again(_):
        producer.send_async("orders", b"second").add_done_callback(lambda _: sent.set())
        called.set()
    producer.send_async("orders", b"first").add_done_callback(again)
    assert called.wait(int(sys.argv[2]) / 1000)
    assert sent.wait(int(sys.argv[2]) / 1000)
atexit.register(flush)
from rocketcrew import SyncProducer
producer = SyncProducer(sys.argv[1], send_timeout_ms=int(sys.argv[2]), background=True)
"""
    assert ended(script, served.broker.name_server, PATIENT_MS) == ""
    assert stored(served) == 2


def test_an_interrupt_ends_the_wait_in_one_line():
    script = """
import signal, sys, threading
from rocketcrew import SyncProducer
from rocketcrew.client import sync
class Interrupts:
    def before_send(self, context):
        assert sync._waited_at_exit.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    def after_send(self, context):
        pass
producer = SyncProducer(sys.argv[1], send_timeout_ms=20_000, hooks=[Interrupts()], background=True)
producer.send_async("orders", b"x")
"""
    with LocalBroker() as broker, broker.faults.drop("SEND_MESSAGE_V2", times=None):
        said = ended(script, broker.name_server)
    assert "interrupted_at_exit" in said
    assert "Traceback" not in said


def test_a_loop_that_somebody_keeps_busy_is_not_waited_for_and_what_it_leaves_is_told_by_its_number(served):
    script = """
import sys, threading
from rocketcrew import SyncProducer
class Holds:
    def before_send(self, context):
        threading.Event().wait()
    def after_send(self, context):
        pass
producer = SyncProducer(sys.argv[1], send_timeout_ms=50, hooks=[Holds()], background=True)
for number in range(20):
    producer.send_async("orders", b"%d" % number, timeout_ms=60_000)
"""
    (line,) = ended(script, served.broker.name_server).splitlines()
    assert "closed_with_sends_under_way" in line
    assert "sends=20" in line
