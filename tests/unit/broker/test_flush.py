"""`flush = sync`: what was acknowledged is on the disk, nobody sees what is not. The disk is done when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.long_answers import OPERATIONS_MAX
from rocketcrew.broker.pops import POPS_JOURNAL
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.broker.state import DELAYS_TABLE
from rocketcrew.broker.storage import DiskFailed, MemoryStorage, StorageError
from rocketcrew.broker.syncing import KEPT_OPEN_MAX, DiskCalls, Syncer
from rocketcrew.broker.transactions import GROUP, HALF_TOPIC
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.admin_headers import CreateTopic, TopicName
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.headers import EndTransaction, MaxOffset, ResetOffset, SendRequestV2
from rocketcrew.remoting.pop_headers import PopRequest
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import decode_messages

from .wire_client import Client, pull
from .wire_client import send as sent


class SlowStorage(MemoryStorage):
    """A storage whose disk is done with nothing until `finish`."""

    has_disk = True

    def __init__(self):
        super().__init__()
        self.begun = 0
        self.done = 0

    def sync(self, *names):
        self.begun += 1
        return self.begun

    def is_synced(self, ticket):
        return ticket <= self.done


@pytest.fixture
def slow(make):
    broker = make(SlowStorage())
    finish(broker)
    return broker


def finish(broker):
    """The disk is done with what is under way; the answers that come of it. The turn of the loop ends, as the edge's does."""
    broker.storage.done = broker.storage.begun
    effects = broker.core.flushed(broker.now_ms)
    broker.core.begin_flush()
    return effects


def send(broker, body=b"x", properties=None, queue_id=0):
    """Send without waiting for the answer; what comes at once."""
    header = SendRequestV2(
        producer_group="pg", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
        sys_flag=0, born_timestamp=broker.now_ms, flag=0, properties=encode_properties(properties or {}),
    )  # fmt: skip
    return broker.request(RequestCode.SEND_MESSAGE_V2, header, body)


def end_of(broker):
    return broker.call(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0)).fields["offset"]


def test_an_answer_waits_for_the_disk_and_others_do_not(slow, tools):
    assert send(slow) == []
    slow.core.begin_flush()
    assert slow.core.flushed(slow.now_ms) == [], "the disk is not done"
    assert end_of(slow) == "0"
    ((channel, answer),) = tools.replies(finish(slow))
    assert (channel, answer.code, answer.fields["queueOffset"], end_of(slow)) == (1, 0, "0", "1")


def test_one_flush_at_a_time_takes_all_that_came_meanwhile(slow, tools):
    begun = slow.storage.begun
    send(slow)
    slow.core.begin_flush()
    for _ in range(10):
        send(slow)
        slow.core.begin_flush()
    assert slow.storage.begun == begun + 1
    assert len(tools.replies(finish(slow))) == 1
    assert slow.storage.begun == begun + 2, "the next one begins when the first ends"
    assert [answer.fields["queueOffset"] for _, answer in tools.replies(finish(slow))] == [
        str(at) for at in range(1, 11)
    ]
    assert slow.storage.begun == begun + 2, "nothing is left"


def test_a_held_pull_is_answered_when_the_disk_has_the_message(slow, tools):
    send(slow, b"first")
    slow.core.begin_flush()
    held = slow.hold(0, channel=2)
    (_, first), (channel, woken) = tools.replies(finish(slow))
    assert (first.fields["queueOffset"], channel, woken.opaque) == ("0", 2, held)
    assert [message.body for message in decode_messages(woken.body)] == [b"first"]


def test_a_delayed_message_and_its_delivery_both_wait(slow, tools):
    assert send(slow, b"later", {"DELAY": "1"}) == []
    slow.later(10_000)
    assert slow.core.state.delays.next_due_ms() is None, "not there yet"
    slow.core.begin_flush()
    assert len(tools.replies(finish(slow))) == 1
    slow.later(10)
    assert end_of(slow) == "0"
    assert slow.storage.load("config/delayOffset.json") is None, "a crash must deliver it again"
    slow.core.begin_flush()
    finish(slow)
    assert end_of(slow) == "1"
    assert b'"offsetTable":{1:1}' in slow.storage.load("config/delayOffset.json")


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_how_far_delivery_came_is_saved_when_the_disk_has_what_was_delivered(make, flush):
    """Else a power cut loses what was delivered, though the disk has had its first record for long."""
    broker = make(SlowStorage(), flush=flush)
    send(broker, properties={"DELAY": "3"})
    broker.core.begin_flush()
    broker.later(500)
    finish(broker)
    broker.later(600)
    assert broker.storage.load(DELAYS_TABLE) is None
    broker.later(1_000)
    assert broker.storage.load(DELAYS_TABLE) is None
    finish(broker)
    broker.later(1_000)
    finish(broker)
    assert broker.storage.load(DELAYS_TABLE) == b'{"offsetTable":{3:1}}'


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_transaction_is_behind_us_when_the_disk_has_its_end(make, flush):
    broker = make(SlowStorage(), flush=flush)
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1"})
    header = SendRequestV2(
        producer_group="pg", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=4,
        born_timestamp=broker.now_ms, flag=0, properties=properties,
    )  # fmt: skip
    broker.request(RequestCode.SEND_MESSAGE_V2, header, b"x")
    broker.core.begin_flush()
    broker.later(1_000)
    finish(broker)
    broker.request(RequestCode.END_TRANSACTION, EndTransaction("pg", 0, 0, 8, "U1", topic="T"))
    for _ in range(20):
        broker.later(1_000)
    assert half_position(broker) in {None, 0}
    finish(broker)
    for _ in range(20):
        broker.later(1_000)
        finish(broker)
    assert half_position(broker) == 1


def half_position(broker):
    return broker.core.state.offsets.query(HALF_TOPIC, GROUP, 0)


def test_a_new_topic_is_acknowledged_when_the_disk_has_it(slow, tools):
    assert slow.request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("N", "TBW102", 1, 1, 6, "SINGLE_TAG")) == []
    slow.core.begin_flush()
    assert [answer.code for _, answer in tools.replies(finish(slow))] == [0]


def test_a_reset_of_what_was_popped_is_acknowledged_when_the_disk_has_it(slow, tools):
    """Only the table of offsets was there: a power cut took the line of POP's journal, and the group went on where it was."""
    send(slow)
    slow.core.begin_flush()
    finish(slow)
    slow.core.state.groups.put(SubscriptionGroupConfig("g"))
    pop = PopRequest("g", "T", 0, 1, 60_000, 0, slow.now_ms, 0, "TAG", "*")
    assert slow.call(RequestCode.POP_MESSAGE, pop).code == 0
    reset = ResetOffset("T", "g", -1, is_force=True, queue_id=0, offset=0)
    assert slow.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset) == []
    slow.core.begin_flush()
    assert [answer.code for _, answer in tools.replies(finish(slow))] == [0]


def test_a_reset_in_rounds_is_acknowledged_when_the_disk_has_it(slow, tools):
    topic = CreateTopic("T", "TBW102", OPERATIONS_MAX + 1, OPERATIONS_MAX + 1, 6, "SINGLE_TAG")
    slow.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    send(slow)
    slow.core.begin_flush()
    finish(slow)
    slow.core.state.groups.put(SubscriptionGroupConfig("g"))
    pop = PopRequest("g", "T", 0, 1, 60_000, 0, slow.now_ms, 0, "TAG", "*")
    assert slow.call(RequestCode.POP_MESSAGE, pop).code == 0
    assert slow.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("T", "g", 0, is_force=True)) == []
    asked = slow.opaque
    while slow.core.state.long_answers.waiting:
        assert tools.replies(slow.later(0)) == []
    slow.core.begin_flush()
    assert [(answer.opaque, answer.code) for _, answer in tools.replies(finish(slow))] == [(asked, 0)]


def test_nothing_is_answered_after_a_failed_flush(slow):
    send(slow)
    slow.core.begin_flush()

    def fail(ticket):
        raise DiskFailed("the disk did not keep it")

    slow.storage.is_synced = fail
    assert slow.core.flushed(slow.now_ms) == []
    assert slow.core.failed == "the disk did not keep it"
    slow.core.begin_flush()
    assert slow.later(60_000) == []


def test_a_flush_overtakes_a_round(tmp_path):
    order = []

    names = ["queue 0", "queue 1", "queue 2", "log"]
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.touch()

    class Calls(DiskCalls):
        def fdatasync(self, fd):
            order.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            if order == ["queue 0"]:
                syncer.submit([str(paths[3])], flush=True)

    syncer = Syncer(Calls(), has_thread=False)
    ticket = syncer.submit([str(path) for path in paths[:3]], flush=False)
    syncer.work()
    assert order == ["queue 0", "log", "queue 1", "queue 2"]
    assert syncer.is_done(ticket)


def test_what_a_round_took_is_flushed_all_the_same(tmp_path):
    """Else a flush that begins while the round waits would be done before the disk has the log."""
    storage = DiskStorage(tmp_path, has_thread=False)
    storage.open("log", 100, buffered=False).append(b"x")
    seen = []
    storage.syncer._calls._kept_by = lambda call, fd, path: seen.append(path)
    storage.sync()
    storage.sync("log")
    storage.syncer.work()
    assert seen[0].endswith(f"log/{0:020d}") or seen[0] == str(tmp_path)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    storage.abandon()


def synced_contents(tmp_path, acts):
    """What the files held that were synced while `acts` ran on a storage, and how many of them were opened for it."""
    found, opened = [], []

    class Calls(DiskCalls):
        def open(self, path, flags):
            opened.append(path)
            return super().open(path, flags)

        def fdatasync(self, fd):
            found.append(os.pread(fd, 100, 0).rstrip(b"\0"))

    storage = DiskStorage(tmp_path, calls=Calls(), has_thread=False)
    file = storage.open("log", 100, buffered=False)

    def flush():
        storage.sync("log")
        storage.syncer.work()

    def append(data):
        file.append(data)
        flush()

    append(b"a")
    found.clear()
    opened.clear()
    acts(file, append)
    storage.abandon()
    return found, len(opened)


def test_a_file_that_is_flushed_again_is_not_opened_again(tmp_path):
    def acts(file, append):
        append(b"b")
        append(b"c")

    assert synced_contents(tmp_path, acts) == ([b"ab", b"abc"], 0)


def test_a_file_made_anew_under_its_name_is_the_one_that_is_flushed(tmp_path):
    def acts(file, append):
        file.reset(0)
        append(b"b")

    found, _ = synced_contents(tmp_path, acts)
    assert found == [b"b"]


def test_a_file_made_anew_while_the_thread_opens_the_one_before_is_the_one_that_is_flushed(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before")
    found = []

    class Calls(DiskCalls):
        def open(self, path, flags):
            fd = super().open(path, flags)
            if not found:
                self.unlink(path)
                syncer.forget(path)
                Path(path).write_bytes(b"after")
            return fd

        def fdatasync(self, fd):
            found.append(os.pread(fd, 100, 0))

    syncer = Syncer(Calls(), has_thread=False)
    for _ in range(3):
        syncer.submit([str(path)], flush=True)
        syncer.work()
    assert found == [b"before", b"after", b"after"]
    syncer.close()


@pytest.mark.parametrize("aside", [False, True])
def test_what_the_thread_opens_while_a_file_goes_is_not_kept_for_the_next_of_its_name(tmp_path, aside):
    synced = []

    class Calls(DiskCalls):
        def fdatasync(self, fd):
            synced.append(os.pread(fd, 100, 0).rstrip(b"\0"))

        def unlink(self, path):
            storage.syncer.work()
            super().unlink(path)

        def rename(self, path, new_path):
            storage.syncer.work()
            super().rename(path, new_path)

    storage = DiskStorage(tmp_path, calls=Calls(), has_thread=False)
    log = storage.open("log", 100, buffered=False)
    log.append(b"before")
    storage.sync("log")
    if aside:
        storage.move_aside("log")
        log = storage.open("log", 100, buffered=False)
    else:
        log.reset(0)
    assert synced == [b"before"], "the thread had its turn"
    log.append(b"after")
    storage.sync("log")
    storage.syncer.work()
    assert synced == [b"before", b"after"]
    storage.abandon()


def test_few_flushed_files_stay_open(tmp_path):
    opened, closed = [], []

    class Calls(DiskCalls):
        def open(self, path, flags):
            opened.append(super().open(path, flags))
            return opened[-1]

        def close(self, fd):
            closed.append(fd)
            super().close(fd)

    syncer = Syncer(Calls(), has_thread=False)
    for number in range(3 * KEPT_OPEN_MAX):
        path = tmp_path / str(number)
        path.touch()
        syncer.submit([str(path)], flush=True)
        syncer.work()
        assert len(opened) - len(closed) <= KEPT_OPEN_MAX
    syncer.close()
    assert len(opened) == len(closed) == 3 * KEPT_OPEN_MAX


def unlinked_and_open(tmp_path):
    """Files below the folder that have no name any more, and keep their room on the disk."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(tmp_path)) and path.endswith("(deleted)"):
                found.append(path)
    return found


class Disk(DiskCalls):
    """May refuse to open or to write, and says which thread closed something."""

    def __init__(self):
        self.refuses = None
        self.closed = SimpleQueue()

    def open(self, path, flags):
        if self.refuses is not None and not flags & os.O_CREAT:
            raise OSError(self.refuses, os.strerror(self.refuses), path)
        return super().open(path, flags)

    def pwrite(self, fd, data, position):
        if self.refuses is not None:
            raise OSError(self.refuses, os.strerror(self.refuses))
        return super().pwrite(fd, data, position)

    def close(self, fd):
        super().close(fd)
        self.closed.put(threading.current_thread().name)


def log_of_segments(tmp_path, disk, has_thread):
    storage = DiskStorage(tmp_path, calls=disk, has_thread=has_thread)
    log = storage.open("log", 4_096, buffered=False)
    for _ in range(KEPT_OPEN_MAX - 1):
        log.append(b"x" * 4_096)
        storage.syncer.wait(storage.sync("log"))
    return storage, log


@pytest.mark.parametrize("refuses", [None, errno.ENOSPC])
def test_what_retention_unlinks_has_its_room_back_though_nothing_is_written_after_it(tmp_path, refuses):
    disk = Disk()
    storage, log = log_of_segments(tmp_path, disk, has_thread=True)
    disk.refuses, disk.closed = refuses, SimpleQueue()
    log.drop_before(log.segment_starts()[-1])
    closed = 0
    while closed < KEPT_OPEN_MAX - 2:
        closed += disk.closed.get(timeout=60) == "broker-sync"
    assert unlinked_and_open(tmp_path) == []
    disk.refuses = None
    storage.abandon()


def test_what_retention_unlinks_is_closed_also_when_no_descriptors_are_left(tmp_path):
    disk = Disk()
    storage, log = log_of_segments(tmp_path, disk, has_thread=False)
    log.append(b"x")
    disk.refuses = errno.EMFILE
    ticket = storage.sync("log")
    log.drop_before(log.segment_starts()[-1])
    assert unlinked_and_open(tmp_path) != []
    storage.syncer.work()
    assert unlinked_and_open(tmp_path) == []
    with pytest.raises(StorageError, match="Too many open files"):
        storage.is_synced(ticket)
    disk.refuses = None
    storage.abandon()


def test_what_retention_unlinks_is_closed_also_after_the_disk_failed(tmp_path):
    storage, log = log_of_segments(tmp_path, Disk(), has_thread=False)
    storage.syncer._fail(DiskFailed("the disk did not keep it"))
    log.drop_before(log.segment_starts()[-1])
    storage.syncer.work()
    assert unlinked_and_open(tmp_path) == []
    storage.abandon()


def test_a_start_brings_what_a_killed_broker_left_to_the_disk_first(tmp_path, make):
    storage = DiskStorage(tmp_path)
    make(storage, flush="async").send()
    storage.abandon()
    synced = []

    class Calls(DiskCalls):
        def sync(self, path):
            synced.append(path)

    storage = DiskStorage(tmp_path, calls=Calls())
    make(storage)
    assert str(tmp_path / "commitlog" / f"{0:020d}") in synced
    storage.abandon()


@pytest.mark.parametrize("flush", [True, False])
def test_a_want_of_descriptors_is_no_failed_disk(tmp_path, flush):
    synced = []
    starved = [True]

    class Calls(DiskCalls):
        def open(self, path, flags):
            if starved:
                raise OSError(24, "Too many open files", path)
            synced.append(path)
            return super().open(path, flags)

    path = tmp_path / "log"
    path.write_bytes(b"x")
    syncer = Syncer(Calls(), has_thread=False)
    ticket = syncer.submit([str(path)], flush=flush)
    syncer.work()
    with pytest.raises(StorageError, match="Too many open files") as caught:
        syncer.is_done(ticket)
    assert not isinstance(caught.value, DiskFailed)
    starved.clear()
    syncer.work()
    assert (syncer.is_done(ticket), synced) == (True, [str(path)])


def test_the_thread_tries_again_by_itself_when_there_are_descriptors(tmp_path):
    tries = []

    class Calls(DiskCalls):
        def open(self, path, flags):
            tries.append(path)
            if len(tries) < 3:
                raise OSError(24, "Too many open files", path)
            return super().open(path, flags)

    syncer = Syncer(Calls(), retry_s=0.001)
    syncer.wait(syncer.submit([str(tmp_path)], flush=True))
    assert len(tries) == 3
    syncer.close()


def test_a_delayed_message_that_fits_no_segment_any_more_holds_up_no_others(make):
    broker = make(mapped_file_size_commit_log=5_000)
    topic = "L" * 127
    size = next(
        size for size in range(5_000, 0, -10) if broker.send(topic, b"p" * size, properties={"DELAY": "1"}).code == 0
    )
    assert size > 4_500  # with its topic, which is the longer one, it does not fit
    assert broker.send("N", b"ok", properties={"DELAY": "1"}).code == 0
    broker.later(1_000)
    broker.later(1_000)
    store = broker.core.state.store
    assert (store.max_offset(topic, 0), store.max_offset("N", 0)) == (0, 1)
    ((event, fields),) = store.events
    assert (event, fields["delay_level"]) == ("store.delayed_message_not_delivered", 1)
    assert store.message_at(fields["position"]).body == b"p" * size


@pytest.mark.parametrize("has_thread", [True, False])
def test_who_waits_for_the_disk_does_not_wait_for_descriptors_without_end(tmp_path, has_thread):
    class Calls(DiskCalls):
        def open(self, path, flags):
            raise OSError(24, "Too many open files", path)

    syncer = Syncer(Calls(), has_thread=has_thread, retry_s=0.0001)
    with pytest.raises(StorageError, match="Too many open files"):
        syncer.wait(syncer.submit([str(tmp_path)], flush=False))
    syncer.close()


def test_topics_come_and_go_without_a_wait_for_the_disk_in_the_loop(tmp_path, make):
    """The journals' lines say it first; the table follows when the disk has them, and only then the topics' journal ends."""
    synced = []

    class Calls(DiskCalls):
        def sync_open(self, fd, path):
            synced.append(path)

    storage = DiskStorage(tmp_path, calls=Calls(), has_thread=False)
    broker = make(storage, flush="async")
    broker.send("A")
    broker.send("B")
    storage.syncer.work()
    synced.clear()
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("A"))
    broker.later(10_000)
    assert synced == []
    journal = storage.open("config/topics.journal", 1, buffered=False)
    assert journal.end > journal.start
    for first, then in (("removedTopics.journal", "topics.json"), ("topics.json", "none")):
        storage.syncer.work()
        names = {path.rpartition("config/")[2].partition("/")[0] for path in synced}
        assert first in names
        assert then not in names
        assert journal.end > journal.start
        broker.later(1)
    assert journal.end == journal.start
    storage.abandon()


def test_a_kill_right_after_a_deletion_leaves_the_old_messages_hidden(tmp_path, make):
    """The table of deleted topics was not written yet: the journal knows where the log ended."""
    storage = DiskStorage(tmp_path, has_thread=False)
    broker = make(storage, flush="async")
    for body in (b"old 0", b"old 1"):
        broker.send("A", body)
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("A"))
    copy = tmp_path.parent / (tmp_path.name + "-killed")
    shutil.copytree(tmp_path, copy)
    storage.abandon()
    again = DiskStorage(copy, has_thread=False)
    broker = make(again, flush="async")
    assert broker.send("A", b"new").code == 0
    assert [message.body for message in broker.read("A")] == [b"new"]
    again.abandon()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_is_shown_again_is_noted_when_the_disk_has_it(make, tools, flush):
    """Else a power cut takes what was stored again, and leaves the line that says so."""
    broker = make(SlowStorage(), flush=flush)
    send(broker)
    broker.core.begin_flush()
    finish(broker)
    broker.core.state.groups.put(SubscriptionGroupConfig("g"))
    popped = PopRequest("g", "T", 0, 32, 5_000, 60_000, broker.now_ms, 0, "TAG", "*")
    ((_, answer),) = tools.replies(broker.request(RequestCode.POP_MESSAGE, popped))
    assert answer.code == 0
    assert broker.request(RequestCode.POP_MESSAGE, popped) == []
    woken = tools.replies(broker.later(5_000))
    assert len(broker.core.state.pops.table) == 1 + (flush == "async"), "shown at once, or not yet"
    assert "r T@g@0 0" not in journal_of(broker)
    broker.core.begin_flush()
    woken += tools.replies(finish(broker))
    broker.later(1_000)
    woken += tools.replies(finish(broker))
    ((_, answer),) = woken
    assert (answer.code, answer.fields["restNum"]) == (0, "0")
    assert "r T@g@0 0" in journal_of(broker)


def journal_of(broker):
    journal = broker.storage.open(POPS_JOURNAL, 1, buffered=False)
    lines = journal.read(journal.start, journal.end - journal.start).decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines]


def test_what_was_written_during_a_flush_is_flushed_before_the_answers_of_that_one_are_written():
    """Not a turn of the loop later: the disk would have nothing to do meanwhile."""

    class Disk(MemoryStorage):
        has_disk = True
        begun = done = 0

        def sync(self, *names):
            self.begun += bool(names)
            return self.begun

        def is_synced(self, ticket):
            return ticket <= self.done

    async def story():
        disk = Disk()
        async with EmbeddedBroker(storage=disk, config=BrokerConfig(flush="sync")) as broker:
            clients = [await Client.open(broker.address) for _ in range(2)]
            assert [(await client.call(*pull(0))).code for client in clients]  # all are served
            disk.done = disk.begun
            broker._edge.flushed()
            begun = disk.begun
            for count, client in enumerate(clients, 1):
                client.write(*sent())
                while broker.core.state.put_count < count or disk.begun == begun:  # noqa: ASYNC110  turns of the loop
                    await asyncio.sleep(0)
            assert disk.begun == begun + 1, "the second one came while the first one's was under way"
            disk.done = disk.begun
            broker._edge.flushed()
            assert disk.begun == begun + 2, "no turn of the loop in between"
            assert (await clients[0].read()).code == 0
            disk.done = disk.begun
            broker._edge.flushed()
            assert (await clients[1].read()).code == 0
            for client in clients:
                await client.close()

    asyncio.run(story())
