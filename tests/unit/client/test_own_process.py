"""Producers and forks: what has begun is its process' alone, what has not begun begins in the child as its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketcrew.client.own_process import OwnProcess
from rocketcrew.remoting.errors import UsageError

DEADLINE_S = 120
BEGIN = """
import asyncio, os, sys, warnings
from rocketcrew import Producer, SyncProducer
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import LocalBroker

PATIENT_MS = 60_000
here = os.getpid()

def forked(child):
    pid = os.fork()
    if not pid:
        return child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def refused(call):
    try:
        call()
    except UsageError as error:
        assert f"made in process {here}" in str(error) and "one in each process" in str(error), error
    else:
        sys.exit("not refused")
"""
USED = """
def child():
    refused(lambda: producer.send("t", b"child"))
    refused(lambda: producer.send_batch([]))
    if BACKGROUND:
        refused(lambda: producer.send_async("t", b"child"))
    refused(lambda: broker.messages("t"))
    with SyncProducer(broker.name_server, send_timeout_ms=PATIENT_MS, background=BACKGROUND) as own:
        own.send("t", b"own")
    sys.exit(0)  # out of both blocks, and the interpreter ends

with LocalBroker() as broker, SyncProducer(broker.name_server, send_timeout_ms=PATIENT_MS, background=BACKGROUND) as producer:
    producer.send("t", b"before")
    forked(child)
    producer._producer.cluster.remoting.close_idle(0)  # and what connects anew
    producer.send("t", b"after")
    producer._call(lambda _: asyncio.wait_for(asyncio.to_thread(int), 20))  # a thread wakes it, as for a name
    assert sorted(message.body for message in broker.messages("t")) == [b"after", b"before", b"own"]
print("fine")
"""
NEW = """
def child():
    for number in range(10):
        producer.send("t", b"%d" % number)
    producer.close()
    os._exit(0)

with LocalBroker() as broker:
    producer = SyncProducer(broker.name_server, send_timeout_ms=PATIENT_MS, background=BACKGROUND)
    forked(child)
    forked(child)
    with producer:
        producer.send("t", b"parent")
    assert len({message.message_id for message in broker.messages("t")}) == len(broker.messages("t")) == 21
print("fine")
"""
ENDS = """
with LocalBroker() as broker:
    with SyncProducer(broker.name_server.replace("127.0.0.1", NAME), send_timeout_ms=PATIENT_MS, background=True) as producer:
        producer.send("t", b"before")
        forked(lambda: sys.exit(0))
print("fine")
"""
AWAITED = """
async def main():
    async with Producer(broker.name_server, send_timeout_ms=PATIENT_MS) as producer:
        await producer.send("t", b"before")
        pid = os.fork()
        if not pid:
            try:
                producer._next_id()
            except UsageError:
                sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await producer.send("t", b"after")

with LocalBroker() as broker:
    asyncio.run(main())
print("fine")
"""


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", [USED, NEW])
def test_of_a_fork(what, background):
    run(f"{BEGIN}\nBACKGROUND = {background}\n{what}")


def test_of_a_fork_of_an_async_program():
    run(BEGIN + AWAITED)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_child_that_does_nothing_ends_in_the_usual_way(host):
    run(f"{BEGIN}\nNAME = {host!r}\n{ENDS}")


def run(script):
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["fine"]), done.stderr
    assert "was not closed" not in done.stderr
    assert "never awaited" not in done.stderr


def test_it_works_where_it_has_begun():
    current = 7
    own = OwnProcess("thing", lambda: current)
    current = 8
    assert not own.is_elsewhere
    own.enter()
    own.enter()
    assert not own.is_elsewhere
    current = 9
    assert own.is_elsewhere
    with pytest.raises(UsageError, match="this thing was made in process 8, and process 9 is a fork of it"):
        own.enter()
