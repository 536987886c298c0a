"""An outage of the disk gives the errors of bad sectors, and is none: after it all can be read again."""

from __future__ import annotations

import errno
from collections import deque

import pytest
from bad_places import CountedFile, CountedStorage

from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.message_store import MessageStore, StoreBounds
from rocketcrew.broker.readable_log import (
    ELSEWHERE,
    PIECE_BYTES,
    ReadableLog,
    UnreadablePlaces,
    is_of_a_place,
    reads_elsewhere,
)
from rocketcrew.broker.rebuilds import PAUSE_STEPS
from rocketcrew.broker.storage import DiskFailed, StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, decode_messages

T0 = 1_700_000_000_000
BOUNDS = StoreBounds(32, 262_144, 800, 1 << 24)
EVERYWHERE = range(1 << 40)
COUNT = 6_000


def filled(count=COUNT):
    """A store whose log is read in several steps when a queue is built anew."""
    store = MessageStore(storage := CountedStorage(), BOUNDS, "127.0.0.1", 10911)
    store.recover(lambda topic: topic == "T", message_tags_code)
    for number in range(count):
        store.put(T0 + number, StoredMessage("T", b"%02000d" % number), 0)
    return storage, store


def rebuild_step(store):
    """Whether the disk refused it."""
    try:
        store.rebuild_some()
    except StorageError:
        return True
    return False


def read(store):
    found, at = [], 0
    while at < store.max_offset("T", 0):
        fetched = store.get("T", 0, at, 32)
        found += [int(message.body) for message in decode_messages(fetched.body)]
        at = fetched.next_offset
    return found


@pytest.mark.parametrize("in_doubt", [True, False])
@pytest.mark.parametrize("out", [range(10**6), range(1, 3), range(2, 10**6)])
@pytest.mark.parametrize("with_queue", [True, False])
def test_an_outage_while_a_queue_is_built_anew_empties_nothing_of_it(in_doubt, out, with_queue):
    """`out`: in which steps the disk reads nothing."""
    storage, store = filled()
    store._rebuilds.plan(store.queue("T", 0), in_doubt=in_doubt)
    file = storage.open("consumequeue/T/0", 1, buffered=True)
    step, refused = 0, False
    while store.is_rebuilding:
        storage.log.bad = EVERYWHERE if step in out else range(0)
        file.bad = storage.log.bad if with_queue else range(0)
        refused = rebuild_step(store) or refused
        step += 1
    storage.log.bad = file.bad = range(0)
    assert (refused, store.rebuilt_queues, storage.aside()) == (True, 0, [])
    if in_doubt:
        assert read(store) == list(range(COUNT)), "it has what it had meanwhile"
    for _ in range(PAUSE_STEPS):
        store._rebuilds.rest()
    while store.is_rebuilding:
        store.rebuild_some()
    assert store.rebuilt_queues == (not in_doubt)
    assert read(store) == list(range(COUNT))


def log_with(bad=range(0), pages=200):
    log = CountedStorage().open("commitlog", 1 << 24, buffered=False)
    log.append(bytes(pages * PIECE_BYTES))
    log.bad = bad
    return log


def page(number):
    return range(number * PIECE_BYTES, (number + 1) * PIECE_BYTES)


def test_a_bad_sector_is_confirmed():
    readable = ReadableLog(log := log_with(page(7)), UnreadablePlaces(deque()))
    readable.confirm()
    readable.read(0, 1 << 20)
    readable.confirm()
    assert log.failed_reads <= 3


@pytest.mark.parametrize("bad", [range(0), range(8 * PIECE_BYTES, 1 << 30), range(PIECE_BYTES, 100 * PIECE_BYTES)])
def test_what_reads_again_and_what_reads_nothing_else_is_an_outage(bad):
    readable = ReadableLog(log := log_with(page(7)), UnreadablePlaces(deque()))
    readable.read(0, 1 << 20)
    log.bad = bad
    with pytest.raises(StorageError):
        readable.confirm()


def test_the_disk_reads_elsewhere_where_some_places_are_bad():
    assert reads_elsewhere(log_with(page(7)))
    assert reads_elsewhere(log_with(range(30 * PIECE_BYTES, 50 * PIECE_BYTES)))
    assert not reads_elsewhere(log_with(range(130 * PIECE_BYTES)))
    assert not reads_elsewhere(log_with(pages=0))
    assert not reads_elsewhere(log_with(page(0), pages=1), {0})
    assert reads_elsewhere(log_with(page(0), pages=2), {0})
    outage = log_with(EVERYWHERE)
    assert not reads_elsewhere(outage)
    assert outage.failed_reads <= ELSEWHERE // 4, "each may take the disk seconds"


def test_samples_that_were_read_before_vouch_for_nothing():
    """They are in memory then, and say that a disk reads which does not."""

    class Cached(CountedFile):
        __slots__ = ("cached", "is_dead")

        def read(self, position, length_bytes):
            number = position // PIECE_BYTES
            self.bad = EVERYWHERE if self.is_dead and number not in self.cached else range(0)
            self.cached.add(number)
            return super().read(position, length_bytes)

    log = Cached(1 << 24, buffered=False)
    log.append(bytes(3_000 * PIECE_BYTES))
    log.cached, log.is_dead = set(), False
    for _ in range(3):
        assert reads_elsewhere(log)
    log.is_dead = True
    for _ in range(3):
        assert not reads_elsewhere(log)


def test_what_no_system_call_refused_is_of_no_place():
    def failed(error, cause):
        error.__cause__ = cause
        return error

    refused = OSError(errno.EIO, "Input/output error")
    assert is_of_a_place(failed(StorageError("cannot read"), refused))
    assert not is_of_a_place(StorageError("it is shorter than it was"))
    assert not is_of_a_place(failed(StorageError("cannot open"), OSError(errno.EMFILE, "Too many open files")))
    assert not is_of_a_place(failed(DiskFailed("not kept"), refused))


def test_what_reads_of_a_log_that_is_mostly_bad_may_be_in_memory():
    assert not reads_elsewhere(log_with(range(110 * PIECE_BYTES)), range(110))


@pytest.mark.parametrize("number", range(0, 120, 2))
def test_each_place_that_could_not_be_read_is_asked_for_again(number):
    readable = ReadableLog(log := log_with(pages=2_000), UnreadablePlaces(deque()))
    for each in range(0, 120, 2):
        log.bad = page(each)
        readable.read(each * PIECE_BYTES, 1)
    read = log.read
    bad = {each * PIECE_BYTES for each in range(0, 120, 2)} - {number * PIECE_BYTES}

    class Log:
        start, end = log.start, log.end

        def read(self, position, length_bytes):
            log.bad = range(position, position + 1) if position in bad else range(0)
            return read(position, length_bytes)

    readable._log = Log()
    with pytest.raises(StorageError):
        readable.confirm()


@pytest.mark.parametrize("reads", range(12))
def test_an_outage_that_ends_while_it_is_asked_for_is_one(reads):
    readable = ReadableLog(log := log_with(page(7)), UnreadablePlaces(deque()))
    readable.read(0, 1 << 20)
    read = log.read

    class Log:
        start, end, left = log.start, log.end, reads

        def read(self, position, length_bytes):
            self.left -= 1
            log.bad = EVERYWHERE if self.left >= 0 else range(0)
            return read(position, length_bytes)

    readable._log = Log()
    with pytest.raises(StorageError):
        readable.confirm()


@pytest.mark.parametrize("in_doubt", [True, False])
def test_an_outage_of_the_part_of_the_log_that_is_not_in_memory_costs_nothing_for_good(in_doubt):
    """Nothing tells it from bad pages, and it lasts as long as the rebuild."""
    storage, store = filled()
    store._rebuilds.plan(store.queue("T", 0), in_doubt=in_doubt)
    storage.log.bad = range(storage.log.end // 16)
    while store.is_rebuilding:
        store.rebuild_some()
    storage.log.bad = range(0)
    assert store.rebuilt_queues == 1
    assert read(store) == list(range(COUNT))


def test_an_outage_while_the_index_is_made_anew_leaves_no_message_out():
    storage, store = filled(0)
    index = store._index
    while store.is_rebuilding:
        store.rebuild_some()
    for number in range(3_000):
        keys = encode_properties({"KEYS": f"k{number}"}).encode()
        store.put(T0 + number, StoredMessage("T", b"%01000d" % number, keys), 0)
    index._give_up()
    for name in list(index._files):
        storage.remove_plain(name)
    index.start()
    index.flush()
    storage.log.bad = range(3 << 20)
    with pytest.raises(StorageError):
        while index.is_behind:
            index.catch_up(1 << 30)
    storage.log.bad = range(0)
    index.flush()
    index.catch_up(1 << 30)
    found = [list(store.find("T", f"k{number}", 0, 1 << 60)) for number in range(0, 3_000, 100)]
    assert all(found)


@pytest.mark.parametrize("size", [20_000, 60_000])
def test_a_last_record_with_a_bad_page_in_it_is_not_cut_though_it_ends_with_zeros(size):
    """Nor is any of what is behind the page: it is whole when the page can be read again."""
    storage, store = filled(10)
    store.put(T0, StoredMessage("T", bytes(size)), 0)
    position, length_bytes, _ = store.queue("T", 0).entry(10)
    stored = storage.log.read(position, length_bytes)
    store.checkpoint_now()
    storage.log.bad = page(position // PIECE_BYTES + 2)
    storage._tables.clear()
    storage._previous.clear()
    MessageStore(storage, BOUNDS, "127.0.0.1", 10911).recover(lambda topic: topic == "T", message_tags_code)
    storage.log.bad = range(0)
    assert storage.log.end == position + length_bytes
    assert storage.log.read(position, length_bytes) == stored


class NoFolder(DiskCalls):
    """Makes none in that one."""

    within = ""

    def mkdir(self, path):
        if self.within and self.within in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().mkdir(path)


@pytest.mark.parametrize(("within", "refused"), [("consumequeue", True), ("index", False)])
def test_a_folder_that_the_disk_refuses_is_a_refused_write(tmp_path, within, refused):
    calls = NoFolder()
    store = MessageStore(DiskStorage(tmp_path, calls=calls, has_thread=False), BOUNDS, "127.0.0.1", 10911)
    store.recover(lambda _: True, message_tags_code)
    while store.is_rebuilding:
        store.rebuild_some()
    calls.within = within
    keys = encode_properties({"KEYS": "k"}).encode()
    for number in range(600):
        if refused:
            with pytest.raises(StorageError):
                store.put(T0, StoredMessage("T", b"", keys), 0)
        else:
            store.put(T0, StoredMessage("T", b"", keys), 0)
            assert store.max_offset("T", 0) == number + 1
