"""A start, a check and retention go on over a place that the disk cannot read, and never over an outage."""

from __future__ import annotations

import errno

import pytest
from bad_places import CountedFile, CountedStorage

from rocketcrew.broker.checking import check
from rocketcrew.broker.disk import DiskFile, DiskStorage
from rocketcrew.broker.message_store import MessageStore, StoreBounds
from rocketcrew.broker.queue_check import QueueCheck
from rocketcrew.broker.readable_log import PIECE_BYTES, UnreadablePlaces
from rocketcrew.broker.storage import MemoryPlainFile, StorageError
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.remoting.stored import StoredMessage, decode_messages

T0 = 1_700_000_000_000
QUEUE = "consumequeue/T/0"
COUNT = 1_000


def opened(storage, segment_bytes=1 << 20):
    store = MessageStore(storage, StoreBounds(32, 262_144, 800, segment_bytes), "127.0.0.1", 10911)
    store.recover(lambda _: True, message_tags_code)
    while store.is_rebuilding:
        store.rebuild_some()
    return store


def put(store, count=COUNT, topic="T"):
    for number in range(count):
        store.put(T0 + number, StoredMessage(topic, b"%050d" % number), 0)


def filled(storage, segment_bytes=1 << 20):
    store = opened(storage, segment_bytes)
    put(store)
    return store


def read(store, topic="T"):
    found, at = [], store.min_offset(topic, 0)
    while at < store.max_offset(topic, 0):
        fetched = store.get(topic, 0, at, 32)
        found += [int(message.body) for message in decode_messages(fetched.body)]
        at = fetched.next_offset
    return found


@pytest.mark.parametrize("page", range(5))
@pytest.mark.parametrize("checkpoint_at", [300, 1_000, None])
def test_a_start_makes_a_queue_anew_whose_file_has_a_bad_page(page, checkpoint_at):
    storage = CountedStorage()
    store = opened(storage)
    put(store, checkpoint_at or 0)
    if checkpoint_at:
        store.checkpoint_now()
    for number in range(checkpoint_at or 0, COUNT):
        store.put(T0 + number, StoredMessage("T", b"%050d" % number), 0)
    file = storage.open(QUEUE, 1, buffered=True)
    file.flush()
    file.bad = range(page * PIECE_BYTES, (page + 1) * PIECE_BYTES)
    store = opened(storage)
    assert (read(store), store.max_offset("T", 0)) == (list(range(COUNT)), COUNT)
    assert read(opened(storage)) == list(range(COUNT))


class Unsearchable(DiskFile):
    """The disk does not even say where in it data is."""

    @staticmethod
    def _next_data(fd, position):
        raise OSError(errno.EIO, "Input/output error")


def test_a_start_makes_a_queue_anew_in_whose_file_the_disk_finds_no_data(tmp_path):
    storage = DiskStorage(tmp_path, has_thread=False)
    filled(storage).checkpoint_now()
    storage.close()
    storage = DiskStorage(tmp_path, has_thread=False)
    storage.open(QUEUE, 1, buffered=True).__class__ = Unsearchable
    store = opened(storage)
    assert read(store) == list(range(COUNT))
    assert storage.aside() == ["consumequeue/T/0/00000000000000000000"]
    storage.abandon()


class OneFailure(CountedFile):
    """Of all reads, one fails: the last of those that are `left`."""

    __slots__ = ("left",)
    left: int

    def read(self, position, length_bytes):
        self.left -= 1
        self.bad = range(1 << 40) if self.left == 0 else range(0)
        return super().read(position, length_bytes)


class FailingOnce(CountedStorage):
    """In the queue's file."""

    def open(self, name, segment_bytes, buffered):
        if name == QUEUE and name not in self._files:
            self._files[name] = file = OneFailure(segment_bytes, buffered)
            file.left = 0
        return super().open(name, segment_bytes, buffered)


@pytest.mark.parametrize("failure", range(1, 7))
def test_a_start_that_opens_a_queue_twice_gives_no_offset_twice(failure):
    """The first time it cut the file back to the checkpoint; and of what is behind that, the log has not all."""
    storage = FailingOnce()
    store = opened(storage)
    put(store, 10)
    store.checkpoint_now()
    put(store, 10)
    queue = store.queue("T", 0)
    queue.flush()
    storage.log.overwrite(queue.entry(19)[0] + 4, b"damaged!")
    storage.open(QUEUE, 1, buffered=True).left = failure
    assert opened(storage).max_offset("T", 0) == 20


def test_a_start_that_cannot_read_the_only_page_of_the_log_says_what_to_do():
    """Nothing tells it from an outage."""
    storage = CountedStorage()
    put(opened(storage), 5)
    without_checkpoint(storage)
    storage.log.bad = range(1)
    with pytest.raises(StorageError, match=r"Nothing was changed: look at the disk \(dmesg\)"):
        opened(storage)


def test_a_start_in_an_outage_moves_no_queue_aside():
    storage = CountedStorage()
    filled(storage).checkpoint_now()
    files = storage.log, storage.open(QUEUE, 1, buffered=True)
    for file in files:
        file.bad = range(1 << 40)
    with pytest.raises(StorageError):
        opened(storage)
    for file in files:
        file.bad = range(0)
    assert storage.aside() == []
    assert read(opened(storage)) == list(range(COUNT))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_start_fails_for_what_is_no_place(number):
    storage = CountedStorage()
    filled(storage).checkpoint_now()
    file = storage.open(QUEUE, 1, buffered=True)
    file.bad, file.error_number = range(1 << 40), number
    with pytest.raises(StorageError):
        opened(storage)
    assert storage.aside() == []


def without_checkpoint(storage):
    storage._tables.pop("config/checkpoint.json", None)
    storage._previous.clear()


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_start_takes_a_bad_page_of_the_log_for_damage_and_cuts_nothing_off(where, checkpointed):
    """What cannot be read at the end reads as zeros, as what was never written does, or the rest of a torn record."""
    storage = CountedStorage()
    store = filled(storage)
    end, last = store.log_end, (store.log_end - 1) // PIECE_BYTES
    begin = {"first": 0, "middle": last // 2, "last": last}[where] * PIECE_BYTES
    bad = range(begin, min(begin + PIECE_BYTES, end))
    entries = [store.queue("T", 0).entry(offset) for offset in range(COUNT)]
    hit = [at for at, (position, size, _) in enumerate(entries) if position < bad.stop and position + size > bad.start]
    content = storage.log.read(bad.start, len(bad))
    if checkpointed:
        store.checkpoint_now()
        storage.open(QUEUE, 1, buffered=True).truncate(20 * 900)  # so that the start reads all of the log
    else:
        without_checkpoint(storage)
    storage.log.bad = bad
    store = opened(storage)
    if checkpointed and where == "last":
        assert store.max_offset("T", 0) == COUNT
    store.put(T0 + COUNT, StoredMessage("T", b"%050d" % COUNT), 0)
    storage.log.bad = range(0)
    assert (store.log_end > end, store.found.torn_bytes) == (True, 0)
    assert storage.log.read(bad.start, len(bad)) == content
    assert [number for number in read(store) if number < COUNT] == [n for n in range(COUNT) if n not in hit]


def test_a_start_in_an_outage_of_the_log_fails_and_the_next_one_finds_all():
    storage = CountedStorage()
    end = filled(storage).log_end
    without_checkpoint(storage)
    storage.log.bad = range(1 << 40)
    with pytest.raises(StorageError):
        opened(storage)
    storage.log.bad = range(0)
    store = opened(storage)
    assert (store.log_end, read(store)) == (end, list(range(COUNT)))


def test_a_start_believes_the_end_of_a_queue_whose_last_record_cannot_be_read():
    """Nothing speaks against it, and the whole log need not be read."""
    storage = CountedStorage()
    store = opened(storage)
    put(store, 10)
    put(store, 500, topic="U")
    position, _, _ = store.queue("T", 0).entry(9)
    store.checkpoint_now()
    storage.log.bad = range(position, position + 10)
    store = opened(storage)
    assert (store.max_offset("T", 0), store.found.rebuilt) == (10, [])


class BadIndex(CountedStorage):
    """Whose index cannot be read at all, until it is removed."""

    class File(MemoryPlainFile):
        __slots__ = ()

        def read(self, position, length_bytes):
            raise StorageError("cannot read") from OSError(errno.EIO, "Input/output error")

    def spoil(self):
        self._plain["index/20240101000000000"] = self.File()


def test_a_start_makes_the_index_anew_that_it_cannot_read():
    storage = BadIndex()
    filled(storage).checkpoint_now()
    storage.spoil()
    store = opened(storage)
    assert storage.plain_names("index") == []
    assert read(store) == list(range(COUNT))


@pytest.mark.parametrize("page", [3, 33])
def test_a_check_reports_a_bad_page_of_the_log(page):
    storage = CountedStorage()
    end = filled(storage).log_end
    storage.log.bad = range(page * PIECE_BYTES, min((page + 1) * PIECE_BYTES, end))
    report = check(storage)
    ((position, length_bytes),) = report.damaged
    assert position <= storage.log.bad.start < storage.log.bad.stop <= position + length_bytes
    assert (report.torn_bytes, report.is_fine) == (0, False)
    assert report.records > 900


@pytest.mark.parametrize("page", [1, 4])
def test_a_check_reports_entries_that_cannot_be_read(page):
    storage = CountedStorage()
    filled(storage)
    storage.open(QUEUE, 1, buffered=True).bad = range(page * PIECE_BYTES, (page + 1) * PIECE_BYTES)
    report = check(storage)
    assert 150 < report.wrong_entries < 210
    assert report.first_wrong[0].endswith("cannot read: Input/output error")
    assert report.records == COUNT


def test_a_bad_page_of_a_queue_is_said_once():
    storage = CountedStorage()
    store = filled(storage)
    storage.open(QUEUE, 1, buffered=True).bad = range(PIECE_BYTES + 4, 2 * PIECE_BYTES)
    events = []
    looked = QueueCheck(store._log, store._queues, lambda _: True, message_tags_code, UnreadablePlaces(events))
    for _ in range(10):
        looked.step()
    assert [fields["position"] for _, fields in events] == [PIECE_BYTES]


class Small(CountedStorage):
    disk_bytes = 100_000


@pytest.mark.parametrize("how", ["age", "room"])
@pytest.mark.parametrize("of", ["queue", "log"])
def test_a_bad_page_keeps_no_segment_from_expiring(how, of):
    """A queue's file that cannot be searched, or the head of a segment of the log."""
    storage = Small()
    store = filled(storage, segment_bytes=20_000)
    starts = storage.log.segment_starts()
    if of == "queue":
        storage.open(QUEUE, 1, buffered=True).bad = range(2 * PIECE_BYTES, 3 * PIECE_BYTES)
    else:
        storage.log.bad = range(starts[1], starts[1] + 100)
    if how == "age":
        store.drop_older_than(T0 + COUNT)
    else:
        store.drop_beyond(0.5)
    assert store.log_start > starts[1]
    while store.is_rebuilding:
        store.rebuild_some()
    assert read(store) == list(range(store.min_offset("T", 0), COUNT))
    assert store.min_offset("T", 0) > 0
