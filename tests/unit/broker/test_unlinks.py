"""Segments go one by one: a kill between two of them, or a disk that refuses one, loses nothing and hides nothing."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.journal import Journal
from rocketcrew.broker.message_store import MessageStore, StoreBounds
from rocketcrew.broker.rebuilds import PAUSE_STEPS
from rocketcrew.broker.storage import StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.remoting.stored import StoredMessage, decode_messages

T0 = 1_700_000_000_000
QUEUE = "consumequeue/T/0"
QUEUE_SEGMENT = 20 * 10
BOUNDS = StoreBounds(32, 262_144, 800, 4_096)


class Killed(BaseException):
    """The process ends here."""


class Unlinks(DiskCalls):
    """Removes `left` more files whose path holds `where`, any number with -1; then it is killed, or refuses."""

    def __init__(self, where, *, kills=False):
        self.where, self.kills, self.left = where, kills, -1

    def unlink(self, path):
        if self.where in path and self.left == 0:
            raise Killed if self.kills else OSError(errno.EIO, "Input/output error", path)
        self.left -= self.where in path and self.left > 0
        super().unlink(path)


def storage_of(tmp_path, calls=None):
    """A queue's segments are small in it."""
    storage = DiskStorage(tmp_path, calls=calls, has_thread=False)
    storage.open(QUEUE, QUEUE_SEGMENT, buffered=True)
    return storage


def opened(storage, bounds=BOUNDS):
    store = MessageStore(storage, bounds, "127.0.0.1", 10911)
    store.recover(lambda topic: topic in ("T", "U"), message_tags_code)
    while store.is_rebuilding:
        store.rebuild_some()
    return store


def put(store, count, **more):
    for number in range(count):
        store.put(T0 + number, StoredMessage(more.get("topic", "T"), b"%d" % number), 0)


def offsets(store, topic="T"):
    found, at = [], store.min_offset(topic, 0)
    while (fetched := store.get(topic, 0, at, 32)).count:
        found += [message.queue_offset for message in decode_messages(fetched.body)]
        at = fetched.next_offset
    return found


def rebuild(store):
    store._rebuilds.plan(store.queue("T", 0))
    while store.is_rebuilding:
        store.rebuild_some()


@pytest.mark.parametrize("left", range(5))
@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_kill_while_a_queue_is_replaced_hides_nothing_of_it(tmp_path, left, kills, checkpointed):
    """Its newest entries were left: their number and the last of them were right, so nobody missed the oldest."""
    calls = Unlinks(QUEUE, kills=kills)
    store = opened(storage := storage_of(tmp_path, calls))
    put(store, 45)
    storage.sync_now()
    if checkpointed:
        store.checkpoint_now()
    calls.left = left
    with pytest.raises((StorageError, Killed)):
        rebuild(store)
    storage.abandon()
    store = opened(storage := storage_of(tmp_path))
    assert offsets(store) == list(range(45))
    storage.abandon()


@pytest.mark.parametrize("lost", [9, 10, 39, 40, 44])
@pytest.mark.parametrize("left", range(5))
def test_a_queue_that_is_replaced_in_part_is_replaced_later(tmp_path, left, lost):
    """Also when its old entry is looked at whose record is damaged."""
    calls = Unlinks(QUEUE)
    store = opened(storage := storage_of(tmp_path, calls))
    put(store, 45)
    position, _, _ = store.queue("T", 0).entry(lost)
    storage.sync_now()
    with open(tmp_path / "commitlog" / f"{position // 4_096 * 4_096:020d}", "r+b") as log:
        log.seek(position % 4_096 + 20)
        log.write(b"damaged!")
    calls.left = left
    with pytest.raises(StorageError, match="Input/output error"):
        rebuild(store)
    with contextlib.suppress(StorageError):
        store.drop_expired_entries()
    calls.left = -1
    for _ in range(PAUSE_STEPS):
        store._rebuilds.rest()
    rebuild(store)
    assert (offsets(store), store.max_offset("T", 0)) == ([n for n in range(45) if n != lost], 45)
    storage.abandon()


def contents(file):
    return file.start, file.read(file.start, file.end - file.start)


@pytest.mark.parametrize("left", range(3))
def test_a_file_that_goes_back_keeps_its_front_until_all_is_gone(tmp_path, left):
    calls = Unlinks("log")
    storage = DiskStorage(tmp_path, calls=calls, has_thread=False)
    file = storage.open("log", 4, buffered=False)
    file.append(b"aaaabbbbcc")
    calls.left = left
    with pytest.raises(StorageError):
        file.reset(0)
    kept = b"aaaabbbbcc"[: 12 - 4 * left]
    assert contents(file) == (0, kept)
    file.append(b"xyz")
    assert contents(file) == (0, kept + b"xyz")
    storage.abandon()
    storage = DiskStorage(tmp_path, has_thread=False)
    assert contents(storage.open("log", 4, buffered=False))[1].rstrip(b"\0") == kept + b"xyz"
    storage.abandon()


@pytest.mark.parametrize("left", range(3))
def test_a_journal_keeps_its_newest_lines_until_all_are_gone(tmp_path, left):
    """The table has them all: older ones alone, read after it, would bring back what newer ones changed."""
    calls = Unlinks("log", kills=True)
    storage = DiskStorage(tmp_path, calls=calls, has_thread=False)
    journal = Journal(storage, "log", "table")
    for number in range(3):
        journal.append([b"a=%d" % number], 1)
        storage.open("log", 1, buffered=False).roll(b"")
    calls.left = left
    with pytest.raises(Killed):
        journal.begin_anew(b"a=2")
    storage.abandon()
    storage = DiskStorage(tmp_path, has_thread=False)
    assert Journal(storage, "log", "table").texts()[0] == [b"a=%d" % number for number in range(left, 3)]
    storage.abandon()


@pytest.mark.parametrize("front", [True, False])
def test_a_segment_that_could_not_be_removed_is_not_forgotten(tmp_path, front):
    """Each try forgot one more."""
    calls = Unlinks("log")
    storage = DiskStorage(tmp_path, calls=calls, has_thread=False)
    file = storage.open("log", 4, buffered=False)
    file.append(b"aaaabbbbccccd")
    calls.left = 1
    for _ in range(3):
        with pytest.raises(StorageError):
            file.drop_before(12) if front else file.truncate(2)
        assert contents(file) == ((4, b"bbbbccccd") if front else (0, b"aaaabbbbcccc"))
    calls.left = -1
    file.drop_before(8) if front else file.truncate(6)
    assert contents(file) == ((8, b"ccccd") if front else (0, b"aaaabb"))
    assert len(os.listdir(tmp_path / "log")) == 2
    storage.abandon()


def test_messages_begin_where_the_log_does_when_retention_is_refused_a_segment(tmp_path):
    """They began below it, and the first read there had the queue built anew from the whole log."""
    calls = Unlinks("commitlog")
    store = opened(storage := storage_of(tmp_path, calls))
    put(store, 200)
    storage.sync_now()
    calls.left = 1
    with pytest.raises(StorageError):
        store._keep_from(store._log.segment_starts()[3])
    assert store.log_start == store._log.segment_starts()[0] == 4_096
    assert store.min_offset("T", 0) > 0
    assert offsets(store) == list(range(store.min_offset("T", 0), 200))
    assert not store.is_rebuilding
    storage.abandon()


@pytest.mark.parametrize("how", ["retention", "expired"])
def test_a_queue_whose_front_cannot_be_removed_holds_up_no_other(tmp_path, how):
    calls = Unlinks(QUEUE)
    store = opened(storage := storage_of(tmp_path, calls))
    for _ in range(50):
        put(store, 1)
        put(store, 1, topic="U")
    storage.sync_now()
    calls.left = 0
    keep = store._log.segment_starts()[2]
    with pytest.raises(StorageError, match=QUEUE):
        if how == "retention":
            store._keep_from(keep)
        else:
            store._log.drop_before(keep)
            store.drop_expired_entries()
    for topic in ("T", "U"):
        assert store.min_offset(topic, 0) > 0
        assert offsets(store, topic) == list(range(store.min_offset(topic, 0), 50))
    assert not store.is_rebuilding
    storage.abandon()


def test_an_index_file_that_cannot_be_removed_is_an_error_of_the_disk(tmp_path):
    calls = Unlinks("index")
    storage = DiskStorage(tmp_path, calls=calls, has_thread=False)
    storage.open_plain("index/1").write(0, b"x")
    calls.left = 0
    with pytest.raises(StorageError, match=r"cannot remove .*index/1: Input/output error"):
        storage.remove_plain("index/1")
    calls.left = -1
    storage.remove_plain("index/1")
    storage.remove_plain("index/1")
    assert storage.plain_names("index") == []
    storage.abandon()


def test_a_topic_of_which_a_file_cannot_be_removed_is_forgotten_whole(tmp_path):
    """Made again, it served the messages of its earlier life, and the next checkpoint counted them."""
    calls = Unlinks("consumequeue/T/1")
    store = opened(storage := DiskStorage(tmp_path, calls=calls, has_thread=False))
    for queue_id in range(3):
        for _ in range(5):
            store.put(T0, StoredMessage("T", b"old", queue_id=queue_id), 0)
    store._rebuilds.plan(store.queue("T", 2))
    store.begin_checkpoint()
    calls.left = 0
    with pytest.raises(StorageError, match="consumequeue/T/1"):
        store.remove_topic("T")
    assert (store.queue_ids("T"), store.is_rebuilding, store._pending_checkpoint) == ([], False, None)
    for again in range(2):
        if again:
            storage.abandon()
            store = opened(storage := DiskStorage(tmp_path, has_thread=False))
        else:
            for queue_id in range(3):
                store.put(T0, StoredMessage("T", b"new", queue_id=queue_id), 0)
        for queue_id in range(3):
            fetched = store.get("T", queue_id, 0, 32)
            assert [message.body for message in decode_messages(fetched.body)] == [b"new"]
    storage.abandon()
