"""Messages by key: found wherever they are, after kills and without index files too; a wrong index is made anew."""

from __future__ import annotations

import errno
import shutil
import struct
from itertools import pairwise

import pytest
from bad_places import CountedStorage

from rocketcrew.broker import key_index
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.key_index import BATCH_MAX, ENTRIES_MAX, KEY_TAIL, SLOTS, key_hash
from rocketcrew.broker.message_store import MessageStore, QueueRebuilding, StoreBounds
from rocketcrew.broker.readable_log import PIECE_BYTES, TRIED_MAX, pieces_of
from rocketcrew.broker.storage import MemoryPlainFile, MemoryStorage, StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.stored import StoredMessage, decode_message

T0 = 1_700_000_000_000
BOUNDS = StoreBounds(32, 262_144, 800, 1 << 20)


def opened(storage):
    store = MessageStore(storage, BOUNDS, "127.0.0.1", 10911)
    store.recover(lambda topic: topic in {"T", "U"}, message_tags_code)
    return store


def put(store, number, topic="T", queue_id=0, body=b""):
    raw = f"KEYS\x01k{number} many\x02UNIQ_KEY\x01U{number}\x02".encode()
    store.put(T0 + number, StoredMessage(topic, body or b"%d" % number, raw, queue_id=queue_id), 0)


def find(store, key, topic="T", begin_ms=0, end_ms=T0 * 2):
    while store.is_rebuilding:
        store.rebuild_some()
    return [int(decode_message(record).body) for record in store.find(topic, key, begin_ms, end_ms)]


@pytest.fixture(params=["memory", "disk"])
def storage(request, tmp_path):
    made = MemoryStorage() if request.param == "memory" else DiskStorage(tmp_path)
    yield made
    made.close()


def test_the_hash_is_never_negative():
    assert key_hash("T", "k") == abs(java_hash("T#k"))


@pytest.mark.parametrize("key", ["", "k", "é世界🚀", "7F0000010A2B18B4AAC2000102030405", "世界" * 20])
def test_a_long_key_has_the_hash_that_java_gives_it(key):
    assert key_hash("T-世", key) == abs(java_hash(f"T-世#{key}"))


def test_nothing_is_kept_of_keys_that_are_longer_than_a_unique_key():
    """Clients choose KEYS and topics: 1,024 of 31,000 characters took 125 MiB for the life of the process."""
    key_index._front_hash.cache_clear()
    for length in (193 + KEY_TAIL, 31_000):
        assert key_hash("T", "😀" * length, is_unique=True) == abs(java_hash("T#" + "😀" * length))
    assert key_index._front_hash.cache_info().currsize == 0


def test_the_front_of_a_producer_s_unique_keys_is_hashed_once(storage):
    key_index._front_hash.cache_clear()
    store = opened(storage)
    for number in range(3 * BATCH_MAX):
        raw = f"KEYS\x01order-of-customer-{number:09d}\x02UNIQ_KEY\x017F0000010A2B18B4AAC2{number:012d}\x02".encode()
        store.put(T0 + number, StoredMessage("T" * 127, b"x", raw), 0)
    store.checkpoint_now()
    assert key_index._front_hash.cache_info().currsize == 1


def test_a_key_is_found_however_many_others_there_are(storage):
    """The queue of the others was looked at first, up to a bound, and hid it."""
    store = opened(storage)
    put(store, 0, queue_id=3)
    for number in range(1, 3 * BATCH_MAX):
        put(store, number)
    assert find(store, "k0") == [0]
    assert find(store, "U0") == [0]
    assert find(store, f"k{3 * BATCH_MAX - 1}") == [3 * BATCH_MAX - 1], "also what was not written yet"
    assert find(store, "k0", topic="U") == []
    assert find(store, "many")[:3] == [3 * BATCH_MAX - 1, 3 * BATCH_MAX - 2, 3 * BATCH_MAX - 3], "newest first"
    assert len(find(store, "many")) == 3 * BATCH_MAX
    assert find(store, "many", begin_ms=T0 + 10, end_ms=T0 + 12) == [12, 11, 10]


@pytest.mark.parametrize("checkpoint_at", [None, 100, 700])
def test_a_kill_hides_nothing_and_doubles_nothing(tmp_path, checkpoint_at):
    for life in range(3):
        storage = DiskStorage(tmp_path)
        store = opened(storage)
        for number in range(700 * life, 700 * life + 700):
            put(store, number)
            if number % 700 == checkpoint_at:
                store.begin_checkpoint()
        storage.abandon()
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    assert find(store, "many") == list(range(2_099, -1, -1))
    assert [find(store, f"k{number}") for number in (0, 99, 699, 700, 2_099)] == [[0], [99], [699], [700], [2_099]]
    storage.close()


@pytest.mark.parametrize("damage", ["gone", "empty", "garbage", "of another log"])
def test_an_index_that_cannot_be_right_is_made_anew(tmp_path, damage):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(600):
        put(store, number)
    store.checkpoint_now()
    storage.close()
    (file,) = (tmp_path / "index").iterdir()
    if damage == "gone":
        file.unlink()
    else:
        with open(file, "r+b") as opened_file:
            header = {"empty": bytes(40), "garbage": b"\xff" * 40}.get(damage)
            opened_file.write(header or struct.pack(">qqqqii", T0, T0, 0, 1 << 40, 5, 6))
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    put(store, 600)
    assert find(store, "many") == list(range(600, -1, -1))
    assert storage.aside() == []
    storage.close()


def test_after_a_crash_of_the_machine_the_index_is_made_anew(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(600):
        put(store, number)
    storage.abandon()
    assert len((tmp_path / "abort").read_text().split()) == 2
    (tmp_path / "abort").write_text("1\nanother-boot\n")
    (file,) = (tmp_path / "index").iterdir()
    with open(file, "r+b") as opened_file:  # a page that the disk does not have
        opened_file.seek(40 + SLOTS * 4)
        opened_file.write(bytes(8_192))
    storage = DiskStorage(tmp_path)
    assert find(opened(storage), "many") == list(range(599, -1, -1))
    storage.close()
    assert not (tmp_path / "abort").exists()


def test_the_file_is_as_a_genuine_broker_makes_it(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(3):
        put(store, number)
    store.checkpoint_now()
    storage.close()
    (file,) = (tmp_path / "index").iterdir()
    assert (len(file.name), file.stat().st_size) == (17, 40 + SLOTS * 4 + ENTRIES_MAX * 20)
    assert file.stat().st_blocks * 512 < 100_000
    with open(file, "rb") as content:
        begin_ms, end_ms, begin, end, _, count = struct.unpack(">qqqqii", content.read(40))
        content.seek(40 + SLOTS * 4 + 20)
        first = struct.unpack(">iqii", content.read(20))
    assert (begin_ms, end_ms, begin, count) == (T0, T0 + 2, 0, 10)
    assert end > 0
    assert first == (key_hash("T", "U0"), 0, 0, 0)


def test_retention_overtakes_an_index_that_is_made_anew(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(8):
        put(store, number, body=bytes(600_000))
    store.checkpoint_now()
    storage.close()
    shutil.rmtree(tmp_path / "index")
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    store.rebuild_some()
    store.drop_older_than(T0 + 6)
    assert store.log_start > 0
    put(store, 8)
    while store.is_rebuilding:
        store.rebuild_some()
    assert [len(list(store.find("T", f"k{number}", 0, T0 * 2))) for number in (0, 7, 8)] == [0, 1, 1]
    storage.close()


def test_a_queue_is_built_anew_whatever_becomes_of_the_index(storage):
    store = opened(storage)
    put(store, 1)

    def broken(bytes_max):
        raise StorageError("no index")

    store._index.catch_up = broken
    with pytest.raises(QueueRebuilding):
        store.begin_rebuild(store.queue("T", 0))
    for _ in range(3):
        with pytest.raises(StorageError, match="no index"):
            store.rebuild_some()
    assert store.get("T", 0, 0, 1).count == 1


def opened_without_index(store, storage):
    store.checkpoint_now()
    for name in storage.plain_names("index"):
        storage.remove_plain(name)
    return opened(storage)


@pytest.fixture
def without_index():
    """A store of 30 messages of 600,000 bytes, opened again without its index."""
    storage = CountedStorage()
    store = opened(storage)
    for number in range(30):
        put(store, number, body=(b"%d" % number).rjust(600_000))
    store = opened_without_index(store, storage)
    storage.log.read_bytes = 0
    return store, storage.log


def test_damage_is_passed_in_steps_where_the_index_is_made_anew(without_index):
    store, log = without_index
    log.overwrite(600_000, bytes(16_800_000))
    steps = 0
    while store.is_rebuilding:
        log.read_bytes = 0
        store.rebuild_some()
        assert log.read_bytes <= 4 << 20
        steps += 1
    assert steps > 10
    assert find(store, "k29") == [29]


def test_a_place_that_cannot_be_read_costs_the_index_its_record_alone(without_index):
    store, log = without_index
    log.bad = range(6_500_000, 6_500_001)
    while store.is_rebuilding:
        store.rebuild_some()
    log.bad = range(0)
    assert [len(find(store, f"k{number}")) for number in range(30)] == [1] * 6 + [0] + [1] * 23
    assert [event for event, _ in store.events] == ["store.place_unreadable"]


def test_an_index_is_made_anew_later_when_the_disk_fails_as_a_whole(without_index):
    store, log = without_index
    log.bad, log.error_number = range(1 << 40), errno.EMFILE
    with pytest.raises(StorageError):
        store.rebuild_some()
    assert not store.is_rebuilding, "until the next flush"
    log.bad = range(0)
    put(store, 30)
    store.begin_checkpoint()
    assert [find(store, "k0"), find(store, "k30")] == [[0], [30]]


@pytest.mark.parametrize("damage", [b"\x40", b"\xc0"])
def test_a_damaged_store_time_stops_no_send_and_hides_no_other(tmp_path, damage):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(3):
        put(store, number)
    store.checkpoint_now()
    storage.close()
    shutil.rmtree(tmp_path / "index")
    with open(tmp_path / "commitlog" / f"{0:020d}", "r+b") as log:
        log.seek(56)
        log.write(damage)
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    store.rebuild_some()
    store.checkpoint_now()
    for number in range(3, 2 * BATCH_MAX):
        put(store, number)
    assert store.max_offset("T", 0) == 2 * BATCH_MAX
    assert find(store, "k1", begin_ms=T0 - 1_000, end_ms=T0 + 10_000) == [1]
    storage.close()


def test_what_goes_wrong_in_the_index_concerns_no_sender():
    store = opened(MemoryStorage())

    def broken(keys):
        raise OverflowError("date value out of range")

    store._index._file_for = broken
    for number in range(BATCH_MAX + 1):
        put(store, number)
    assert store.max_offset("T", 0) == BATCH_MAX + 1


def test_a_clean_stop_brings_the_index_to_the_disk_before_it_says_so(tmp_path):
    calls = []

    class Calls(DiskCalls):
        def sync(self, path):
            calls.append(path)
            super().sync(path)

        def unlink(self, path):
            calls.append(path)
            super().unlink(path)

    storage = DiskStorage(tmp_path, calls=Calls())
    store = opened(storage)
    put(store, 1)
    store.checkpoint_now()
    (file,) = (tmp_path / "index").iterdir()
    calls.clear()
    storage.close()
    assert calls.index(str(file)) < calls.index(str(tmp_path / "index")) < calls.index(str(tmp_path / "abort"))


def test_a_long_chain_of_one_key_is_looked_at_up_to_a_bound(storage):
    """All of them have the key, none is in the time: each query looked at all there were."""
    store = opened(storage)
    for number in range(12):
        put(store, number)
    index = store._index
    index.flush()
    (file,) = index._files.values()
    looked = []
    read = file._entry
    file._entry = lambda number: (looked.append(number), read(number))[1]
    assert list(index.positions("T", "many", T0 + 500_000, T0 + 600_000)) == []
    assert looked == [], "no record of the file is from that time"
    assert len(list(index.positions("T", "many", T0, T0 + 100))) == 12
    assert len(looked) == 12


@pytest.mark.parametrize("first_have_keys", [True, False])
def test_a_start_does_not_read_for_the_index_what_has_no_keys(first_have_keys):
    """All of a log was read at each start where no message had a key."""
    store = opened(storage := CountedStorage())
    while store.is_rebuilding:
        store.rebuild_some()
    for number in range(3 if first_have_keys else 0):
        put(store, number)
    for number in range(300):
        store.put(T0 + number, StoredMessage("T", bytes(20_000)), 0)
    store.checkpoint_now()
    storage.log.read_bytes = 0
    store = opened(storage)
    put(store, 200)
    assert find(store, "k200") == [200]
    assert storage.log.read_bytes < 2 << 20
    store = opened_without_index(store, storage)
    assert find(store, "k200") == [200], "what was saved was said of other files"
    assert find(store, "k2") == ([2] if first_have_keys else [])


# Pages that cannot be read


class PagedFile(MemoryPlainFile):
    """A plain file, some of whose pages cannot be read."""

    __slots__ = ("bad_pages",)

    def __init__(self):
        super().__init__()
        self.bad_pages = set()

    def read(self, position, length_bytes):
        if self.bad_pages.isdisjoint(pieces_of(position, length_bytes)):
            return super().read(position, length_bytes)
        error = OSError(errno.EIO, "Input/output error")
        raise StorageError("cannot read the index") from error


class PagedStorage(CountedStorage):
    def open_plain(self, name):
        return self._plain.setdefault(name, PagedFile())


SLOT_PAGES = set(range(1, key_index.MEMORY_SLOTS * 4 // PIECE_BYTES))
OLD, NEW, AGAIN = (range(at, at + 2 * BATCH_MAX) for at in range(0, 6 * BATCH_MAX, 2 * BATCH_MAX))


@pytest.fixture
def with_bad_index():
    """A store whose one index file cannot be read any more, but for its head; and that file."""
    store = opened(storage := PagedStorage())
    for number in OLD:
        put(store, number)
    (file,) = storage._plain.values()
    file.bad_pages = SLOT_PAGES
    return storage, store, file


def test_bad_pages_of_a_file_hide_no_newer_message(with_bad_index):
    storage, store, file = with_bad_index
    for number in NEW:
        put(store, number)
    store.checkpoint_now()
    assert len(storage._plain) == 2
    assert all(find(store, f"k{number}") == [number] for number in NEW)
    assert [event for event, _ in store.events] == ["store.index_unreadable"]
    store = opened(storage)
    for number in AGAIN:  # where the last file goes on
        put(store, number)
    assert all(find(store, f"k{number}") == [number] for number in (*NEW, *AGAIN))
    assert len(storage._plain) == 2
    file.bad_pages = set()
    assert all(find(store, f"k{number}") == [number] for number in OLD)


def test_an_outage_makes_no_new_file_and_hides_nothing(with_bad_index):
    storage, store, file = with_bad_index
    storage.log.bad = range(1 << 40)
    for number in NEW:
        put(store, number)
    with pytest.raises(StorageError):
        find(store, "k1")
    assert (len(storage._plain), list(store.events)) == (1, [])
    storage.log.bad, file.bad_pages = range(0), set()
    store.begin_checkpoint()
    assert all(find(store, f"k{number}") == [number] for number in (*OLD, *NEW))


def test_an_index_is_made_anew_past_a_run_of_bad_pages(without_index):
    """More than an eighth of the log: while the run is read, what is bad elsewhere speaks for an outage."""
    store, log = without_index
    log.bad = range(3_000_000, 8_000_000)
    while store.is_rebuilding:
        store.rebuild_some()
    log.bad = range(0)
    assert [len(find(store, f"k{number}")) for number in range(30)] == [1] * 3 + [0] * 5 + [1] * 22


def test_what_was_read_behind_an_outage_is_not_written_before_that_is_asked_for():
    """A checkpoint comes between the two: what is written is not read again, nor is anything before it."""
    store = opened(storage := CountedStorage())
    for number in range(3_000):
        put(store, number, body=b"%01000d" % number)
    store = opened_without_index(store, storage)
    storage.log.bad = range(400_000, 400_001)
    store.rebuild_some()
    store.begin_checkpoint()
    storage.log.bad = range(0)
    with pytest.raises(StorageError):
        store.rebuild_some()
    store.checkpoint_now()
    assert all(find(store, f"k{number}") for number in (*range(340, 390), *range(0, 3_000, 100)))


def test_however_the_bad_pages_lie_only_so_much_waits_for_them():
    store = opened(storage := CountedStorage())
    for number in range(4_500):
        put(store, number, body=bytes(9_000))
    store = opened_without_index(store, storage)
    storage.log.bad_pages = set(range(0, storage.log.end // PIECE_BYTES, 20))
    waiting = []
    while store.is_rebuilding:
        store.rebuild_some()
        waiting.append(len(store._index._waiting))
    assert 256 < max(waiting) * 9_000 < key_index.UNCONFIRMED_MAX_BYTES + (2 << 20)
    assert waiting[-1] < BATCH_MAX < waiting[-2]


def caught_up_beside(bad_share, count=6_000):
    """How many pages cannot be read, in how many runs, and how many reads failed in each step of the index."""
    store = opened(storage := CountedStorage())
    for number in range(count):
        put(store, number, body=bytes(8_000))
    store = opened_without_index(store, storage)
    pages = storage.log.end // PIECE_BYTES
    storage.log.bad_pages = set(range(7, pages, pages // bad_share))
    failed = [storage.log.failed_reads]
    while store.is_rebuilding:
        store.rebuild_some()
        failed.append(storage.log.failed_reads)
    return len(storage.log.bad_pages), [after - before for before, after in pairwise(failed)]


@pytest.mark.parametrize("bad_pages", [5, 50, 500])
def test_a_bad_page_costs_the_index_a_few_failed_reads_and_few_in_one_step(bad_pages):
    """Each may take the disk seconds. All bad pages so far were read in each step, and in one."""
    bad, failed = caught_up_beside(bad_pages)
    assert bad >= bad_pages
    assert sum(failed) <= 4 * bad
    assert max(failed) <= 4 * TRIED_MAX


def test_a_step_of_the_index_ends_after_so_many_bad_pages():
    store = opened(storage := CountedStorage())
    for number in range(1_000):
        put(store, number, body=bytes(8_000))
    index = opened_without_index(store, storage)._index
    storage.log.bad_pages = set(range(0, 2_000, 30))
    while index.is_behind:
        storage.log.failed_reads = 0
        index.catch_up(1 << 30)
        assert storage.log.failed_reads <= 4 * TRIED_MAX


def test_what_a_scan_found_last_is_confirmed_also_when_the_log_has_grown_meanwhile():
    """It was forgotten, and what was read behind it was written."""
    store = opened(storage := CountedStorage())
    for number in range(600):
        put(store, number, body=b"%09000d" % number)
    store = opened_without_index(store, storage)
    index = store._index
    while index._at < 2 << 20:
        store.rebuild_some()
    put(store, 600)
    storage.log.bad = range(5_000_000, 5_000_001)
    while store.is_rebuilding:
        index.catch_up(1 << 30)
    assert storage.log.failed_reads == 3, "with all around it, alone, and to confirm that"


def test_what_retention_takes_is_not_asked_for():
    """Its places are gone, which was taken for one that reads again."""
    store = opened(storage := CountedStorage())
    for number in range(600):
        put(store, number, body=bytes(9_000))
    store = opened_without_index(store, storage)
    index, page = store._index, (1 << 20) // PIECE_BYTES - 1
    storage.log.bad_pages = {page}
    while index._at < page * PIECE_BYTES:
        index._read_on(1 << 18)
    assert not index._is_confirmed
    storage.log.drop_before(1 << 20)
    storage.log.bad_pages = set()
    while store.is_rebuilding:
        store.rebuild_some()


@pytest.mark.parametrize("while_stored", [False, True])
def test_an_index_that_gave_up_is_caught_up_whatever_keeps_a_checkpoint_from_coming(without_index, while_stored):
    """Nothing is stored, or a queue cannot be built anew: its keys were found no more until a restart."""
    store, log = without_index
    store.begin_checkpoint()
    store.end_checkpoint()
    log.bad = range(1 << 40)
    with pytest.raises(StorageError):
        while store.is_rebuilding:
            store.rebuild_some()
    log.bad = range(0)
    if while_stored:
        put(store, 30, "U")
        store._rebuilds.plan(store.queue("U", 0))
        store._rebuilds._paused["U", 0] = 1_000
    store.begin_checkpoint()
    assert store._pending_checkpoint is None, "nothing is brought to the disk"
    assert [find(store, "k0"), find(store, "k29")] == [[0], [29]]


def hits(store, count):
    """Positions of messages with one key, each on pages of its own."""
    for number in range(count):
        put(store, number, body=bytes(9_000))
    return [store.queue("T", 0).entry(number)[0] for number in range(count)]


def test_a_hit_on_a_bad_page_keeps_nobody_from_the_others():
    store = opened(storage := CountedStorage())
    position = hits(store, 30)[10]
    storage.log.bad = range(position, position + 1)
    assert sorted(int(n) for n in found_offsets(store)) == [n for n in range(30) if n != 10]
    storage.log.bad = range(1 << 40)
    with pytest.raises(StorageError):
        list(store.find("T", "many", 0, T0 * 2))


def found_offsets(store):
    return [decode_message(record).queue_offset for record in store.find("T", "many", 0, T0 * 2)]


def test_of_many_hits_on_bad_pages_only_so_many_are_tried():
    store = opened(storage := CountedStorage())
    positions = hits(store, 200)
    storage.log.bad = range(positions[100], positions[100 + TRIED_MAX])
    assert found_offsets(store) == list(range(199, 99 + TRIED_MAX, -1))
    assert storage.log.failed_reads <= 10 * TRIED_MAX
