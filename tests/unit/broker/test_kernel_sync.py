"""Flushes that the kernel does: which of them, what their end says, and that the thread does the others."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from rocketcrew.broker.checkpoint import CHECKPOINT
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.kernel_sync import KernelSync
from rocketcrew.broker.message_store import LOG
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.broker.storage import DiskFailed
from rocketcrew.broker.syncing import DiskCalls, Syncer

from .test_message_store import new_store, put
from .wire_client import Client, send


class Planned:
    """A kernel that ends a sync when the test says so, and how."""

    def __init__(self, refuses=False):
        self.refuses = refuses
        self.begun = []
        self.result = None
        self.forbidden = False
        self.waited = 0
        self.closed = False

    def begin(self, fd):
        if self.refuses:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.begun.append(os.fstat(fd).st_ino)

    def ended(self, *, waits=False):
        self.waited += waits
        if self.forbidden:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        if waits and self.result is None:
            self.result = 0
        result, self.result = self.result, None
        return result

    def close(self):
        self.closed = True


class Counted(DiskCalls):
    def __init__(self):
        self.synced = []

    def fdatasync(self, fd):
        self.synced.append(os.fstat(fd).st_ino)


@pytest.fixture
def calls():
    return Counted()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x")
    return path


@pytest.fixture
def syncer(calls, log):
    """One that has flushed the log once, and so has it open."""
    made = Syncer(calls, has_thread=False)
    made.submit([str(log)], flush=True)
    made.work()
    calls.synced.clear()
    yield made
    made.close()


def test_a_file_that_is_open_is_flushed_by_the_kernel(syncer, calls, log):
    kernel = syncer.kernel = Planned()
    ticket = syncer.submit([str(log)], flush=True)
    syncer.work()
    assert (kernel.begun, calls.synced) == ([log.stat().st_ino], [])
    assert not syncer.is_done(ticket)
    kernel.result = 0
    assert syncer.is_done(ticket)
    assert syncer.is_done(ticket)
    syncer.submit([str(log)], flush=True)
    assert len(kernel.begun) == 2


def test_who_waits_waits_for_the_kernel(syncer, log):
    kernel = syncer.kernel = Planned()
    syncer.wait(syncer.submit([str(log)], flush=True))
    assert kernel.waited == 1


@pytest.mark.parametrize("flush", [True, False])
def test_several_files_and_rounds_are_the_threads(syncer, calls, log, flush):
    kernel = syncer.kernel = Planned()
    ticket = syncer.submit([str(log), str(log.parent)] if flush else [str(log)], flush=flush)
    syncer.work()
    assert syncer.is_done(ticket)
    assert (kernel.begun, calls.synced) == ([], [log.stat().st_ino])


@pytest.mark.parametrize("kept", [True, False])
def test_a_round_is_not_done_before_the_flush_that_it_relies_on(syncer, log, kept):
    kernel = syncer.kernel = Planned()
    syncer.submit([str(log)], flush=True)
    ticket = syncer.submit([str(log.parent)], flush=False)
    syncer.work()
    assert not syncer.is_done(ticket)
    kernel.result = 0 if kept else errno.EIO
    if kept:
        assert syncer.is_done(ticket)
        syncer.submit([str(log)], flush=True)
        assert syncer.is_done(ticket), "a later flush is none of its business"
    else:
        with pytest.raises(DiskFailed):
            syncer.is_done(ticket)


def test_a_checkpoint_waits_for_the_kernels_flush_of_the_log(tmp_path):
    """Else a loss of power leaves a hole below the checkpoint."""
    storage = DiskStorage(tmp_path, has_thread=False)
    store, _ = new_store(storage)
    put(store)
    storage.syncer.wait(storage.sync(LOG))
    kernel = storage.syncer.kernel = Planned()
    put(store)
    storage.sync(LOG)
    assert len(kernel.begun) == 1
    store.begin_checkpoint()
    for result in (None, 0):
        storage.syncer.work()
        kernel.result = result
        store.end_checkpoint()
        storage.syncer.work()
        assert (tmp_path / CHECKPOINT).exists() == (result == 0)
    storage.close()


def test_an_end_that_the_kernel_does_not_tell_fails_the_disk(syncer, log):
    kernel = syncer.kernel = Planned()
    ticket = syncer.submit([str(log)], flush=True)
    kernel.forbidden = True
    for _ in range(2):
        with pytest.raises(DiskFailed, match="Operation not permitted"):
            syncer.is_done(ticket)
    syncer.close()
    assert kernel.closed


def test_what_the_kernel_does_not_take_is_the_threads(syncer, calls, log):
    syncer.kernel = Planned(refuses=True)
    ticket = syncer.submit([str(log)], flush=True)
    assert not syncer.is_done(ticket)
    syncer.work()
    assert (syncer.is_done(ticket), calls.synced) == (True, [log.stat().st_ino])


def test_a_file_made_anew_under_its_name_is_not_taken_for_the_one_that_is_open(syncer, calls, log):
    kernel = syncer.kernel = Planned()
    fresh = log.with_name("fresh")
    fresh.write_bytes(b"y")
    fresh.rename(log)
    syncer.forget(str(log))
    syncer.submit([str(log)], flush=True)
    syncer.work()
    assert (kernel.begun, calls.synced) == ([], [log.stat().st_ino])


def test_a_sync_that_failed_in_the_kernel_is_the_last_word(syncer, calls, log):
    told = []
    kernel = syncer.kernel = Planned()
    syncer.on_flush = lambda: told.append(1)
    ticket = syncer.submit([str(log)], flush=True)
    kernel.result = errno.EIO
    with pytest.raises(DiskFailed, match=rf"did not keep what was written to {log}: Input/output error"):
        syncer.is_done(ticket)
    assert told, "the loop hears of it"
    after = syncer.submit([str(log)], flush=True)
    syncer.work()
    for each in (ticket, after):
        with pytest.raises(DiskFailed):
            syncer.is_done(each)
    assert (len(kernel.begun), calls.synced) == (1, [])


def test_the_end_waits_for_what_is_under_way(syncer, log):
    kernel = syncer.kernel = Planned()
    syncer.submit([str(log)], flush=True)
    syncer.close()
    assert (kernel.waited, kernel.closed) == (1, True)


@pytest.fixture
def eventfd():
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def kernel(eventfd):
    try:
        made = KernelSync(eventfd)
    except OSError as error:
        pytest.skip(f"this kernel offers no such sync: {error}")
    with closing(made):
        yield made


def test_the_kernel_says_when_it_has_ended(kernel, eventfd, log):
    """The descriptor may be closed meanwhile, and there may be many one after the other."""
    for count in range(1, 4):
        fd = os.open(log, os.O_RDWR)
        os.pwrite(fd, b"y" * 4_096 * count, 0)
        kernel.begin(fd)
        os.close(fd)
        select.select([eventfd], [], [])
        assert os.eventfd_read(eventfd) == 1
        assert kernel.ended() == 0
        assert kernel.ended() is None, "told once"


def test_the_kernel_is_waited_for(kernel, log):
    fd = os.open(log, os.O_RDWR)
    os.pwrite(fd, b"y", 0)
    kernel.begin(fd)
    os.close(fd)
    assert kernel.ended(waits=True) == 0


def test_signals_without_end_do_not_end_the_wait(kernel, log):
    came = []

    def interrupt():
        while len(came) < 3 * sys.getrecursionlimit():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(0)
        fd = os.open(log, os.O_RDWR)
        kernel.begin(fd)
        os.close(fd)

    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        assert kernel.ended(waits=True) == 0
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


FORBIDDING = """
import ctypes, errno, os, struct, sys
from rocketcrew.broker.kernel_sync import KernelSync
number = int(sys.argv[1])
KernelSync(os.eventfd(0)).close()
steps = (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)
program = b"".join(struct.pack("<HBBI", *step) for step in steps)  # load the number; is it that one: EPERM; else allow
kept = ctypes.create_string_buffer(program)
head = ctypes.create_string_buffer(struct.pack("<H6xQ", len(steps), ctypes.addressof(kept)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, head, 0, 0) == 0, os.strerror(ctypes.get_errno())
try:
    KernelSync(os.eventfd(0))
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86")
@pytest.mark.parametrize("number", [206, 208, 209])
@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_forbids_one_of_the_calls_offers_none(number):
    """As a container's profile does."""
    done = subprocess.run([sys.executable, "-c", FORBIDDING, str(number)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n", "", 0)


def test_what_is_no_file_is_refused_at_once(kernel):
    read, write = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.begin(read)
    os.close(read)
    os.close(write)
    with pytest.raises(OSError, match="Bad file descriptor"):
        kernel.begin(write)


@pytest.mark.parametrize("in_kernel", [True, False])
def test_sends_are_acknowledged_with_the_kernels_flushes_and_without(tmp_path, in_kernel):
    """The thread does the first one, which opens the log, and those with a new topic's journal."""
    calls, sends = Counted(), 40

    async def story():
        storage = DiskStorage(tmp_path / "data", calls=calls)
        async with EmbeddedBroker(storage=storage, config=BrokerConfig(flush="sync")) as broker:
            if not in_kernel:
                storage.syncer.kernel = None
            elif storage.syncer.kernel is None:
                pytest.skip("this kernel offers no such sync")
            client = await Client.open(broker.address)
            for number in range(sends):
                answer = await client.call(*send())
                assert (answer.code, answer.fields["queueOffset"]) == (0, str(number))
            await client.close()
            log = (tmp_path / "data" / "commitlog" / f"{0:020d}").stat().st_ino
            by_thread = calls.synced.count(log)
            assert by_thread < 10 if in_kernel else by_thread >= sends

    asyncio.run(story())
