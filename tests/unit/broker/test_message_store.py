"""The store: reading rules, search by time, recovery after kills and torn writes, retention."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.broker import tags
from rocketcrew.broker.consume_queue import ENTRY_BYTES, TRIM_BYTES
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.fetched import GetStatus
from rocketcrew.broker.message_store import MessageStore, StoreBounds
from rocketcrew.broker.storage import MemoryStorage, StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.broker.wanted import Wanted
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.stored import StoredMessage, decode_messages, encode_message

BOUNDS = StoreBounds(messages_max=32, bytes_max=262_144, scan_entries_max=800, segment_bytes=1 << 20)
T0 = 1_700_000_000_000


def new_store(storage, bounds=BOUNDS, topics=("T", "U")):
    store = MessageStore(storage, bounds, "127.0.0.1", 10911)
    read = store.recover(lambda topic: topic in topics, message_tags_code)
    return store, read


def put(store, body=b"x", topic="T", queue_id=0, now_ms=T0, tag=None):
    raw = f"TAGS\x01{tag}\x02".encode() if tag else b""
    message = StoredMessage(topic, body, raw, queue_id=queue_id)
    return store.put(now_ms, message, java_hash(tag) if tag else 0)


def bodies(fetched):
    return [message.body for message in decode_messages(fetched.body)]


@pytest.fixture
def store():
    return new_store(MemoryStorage())[0]


def test_offsets_and_positions_are_written_into_the_record(store):
    first = put(store, b"one")
    second = put(store, b"two")
    other = put(store, b"three", queue_id=3)
    assert (first.queue_offset, second.queue_offset, other.queue_offset) == (0, 1, 0)
    (read,) = decode_messages(store.record_at(second.physical_offset))
    assert (read.body, read.queue_offset, read.physical_offset) == (b"two", 1, second.physical_offset)
    assert (read.store_host, read.store_port, read.store_timestamp_ms) == ("127.0.0.1", 10911, T0)
    assert store.record_at(second.physical_offset + 1) is None
    assert store.record_at(1 << 40) is None


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_where_a_read_goes_on(store, offset, status, following):
    for number in range(3):
        put(store, b"%d" % number)
    fetched = store.get("T", 0, offset, 32)
    assert (fetched.status, fetched.next_offset, fetched.min_offset, fetched.max_offset) == (status, following, 0, 3)


def test_an_empty_queue(store):
    assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.get("T", 0, 7, 32).next_offset == 0


def test_count_bytes_and_the_first_message_that_always_fits():
    store, _ = new_store(MemoryStorage(), StoreBounds(4, 1_000, 800, 1 << 20))
    put(store, b"x" * 5_000)
    for _ in range(10):
        put(store, b"y")
    assert len(bodies(store.get("T", 0, 0, 32))) == 1
    assert len(bodies(store.get("T", 0, 1, 32))) == 4
    assert len(bodies(store.get("T", 0, 1, 2))) == 2
    assert len(bodies(store.get("T", 0, 1, 0))) == 1, "a count below 1 is taken as 1"


def test_filter_skips_and_the_scan_is_bounded():
    store, _ = new_store(MemoryStorage(), StoreBounds(4, 1 << 20, 16, 1 << 20))
    for number in range(40):
        put(store, b"%d" % number, tag="b" if number == 20 else "a")
    wanted = Wanted(frozenset({java_hash("b")}))
    first = store.get("T", 0, 0, 4, wanted)
    assert (first.status, first.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 16)
    second = store.get("T", 0, 16, 4, wanted)
    assert (second.status, second.next_offset, bodies(second)) == (GetStatus.FOUND, 32, [b"20"])


def test_neighbours_of_other_queues_do_not_leak_in(store):
    for number in range(30):
        put(store, b"%d" % number, queue_id=number % 3)
    assert bodies(store.get("T", 1, 0, 32)) == [b"%d" % number for number in range(1, 30, 3)]


def test_search_by_store_time(store):
    for number in range(10):
        put(store, now_ms=T0 + number // 2 * 10)
    lower = {at: store.search("T", 0, T0 + at) for at in (-5, 0, 5, 10, 40, 45)}
    upper = {at: store.search("T", 0, T0 + at, upper=True) for at in (-5, 0, 5, 10, 40, 45)}
    assert lower == {-5: 0, 0: 0, 5: 2, 10: 2, 40: 8, 45: 10}
    assert upper == {-5: 0, 0: 1, 5: 1, 10: 3, 40: 9, 45: 9}
    assert store.search("none", 0, T0) == 0
    assert store.store_time_ms("T", 0, 3) == T0 + 10
    assert store.store_time_ms("T", 0, 10) is None


def test_a_kill_loses_nothing_that_was_put():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    for number in range(50):
        put(store, b"%d" % number, queue_id=number % 2, tag="a")
    storage.crash()
    store, read = new_store(storage)
    assert read == 50
    assert bodies(store.get("T", 0, 0, 32)) == [b"%d" % number for number in range(0, 50, 2)]
    assert store.max_offset("T", 1) == 25
    assert bodies(store.get("T", 1, 0, 32, Wanted(frozenset({java_hash("a")}))))[0] == b"1"
    assert put(store).queue_offset == 25


def test_a_checkpoint_spares_reading_again():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    for _ in range(50):
        put(store)
    store.begin_checkpoint()
    store.end_checkpoint()
    for _ in range(7):
        put(store)
    storage.crash()
    store, read = new_store(storage)
    assert read == 7
    assert store.max_offset("T", 0) == 57


class CountedFile:
    """A file of a storage that counts what is read of it."""

    def __init__(self, file, counts):
        self._file, self._counts = file, counts

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, position, length_bytes):
        data = self._file.read(position, length_bytes)
        self._counts.append(len(data))
        return data


class CountedDisk(DiskStorage):
    def __init__(self, folder):
        super().__init__(folder, has_thread=False)
        self.counts = {}

    def open(self, name, segment_bytes, buffered):
        counts = self.counts.setdefault(name.partition("/")[0], [])
        return CountedFile(super().open(name, segment_bytes, buffered), counts)


@pytest.mark.parametrize(("before", "since"), [(400, 40), (6_400, 40), (400, 640)])
def test_a_start_after_a_kill_costs_what_was_stored_since_the_checkpoint(tmp_path, before, since):
    """Whatever the log holds before it: each byte since is read twice at most, and a few of each queue."""
    segment, record, queues = 1 << 16, 400, 4
    storage = DiskStorage(tmp_path, has_thread=False)
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, segment))
    for number in range(before + since):
        if number == before:
            store.checkpoint_now()
        put(store, b"x" * 200, queue_id=number % queues, now_ms=T0 + number)
    storage.abandon()
    counted = CountedDisk(tmp_path)
    _, records = new_store(counted)
    counted.abandon()
    assert records == since
    log, entries = counted.counts["commitlog"], counted.counts["consumequeue"]
    assert sum(log) <= 2 * (since * record + segment)
    assert len(log) <= since * record // segment + 4 * queues
    looks = 4 * (before + since).bit_length()  # binary searches
    assert len(entries) <= queues * looks
    assert sum(entries) <= queues * (TRIM_BYTES + looks * ENTRY_BYTES)


def test_queue_entries_beyond_the_checkpoint_are_not_doubled():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    put(store, b"0")
    store.begin_checkpoint()
    store.end_checkpoint()
    put(store, b"1")
    store.begin_checkpoint()  # flushed, but the position was not written
    storage.crash()
    store, read = new_store(storage)
    assert (read, store.max_offset("T", 0)) == (1, 2)
    assert bodies(store.get("T", 0, 0, 32)) == [b"0", b"1"]


@pytest.mark.parametrize("keep", [1, 3, 4, 40, -1])
def test_a_torn_record_is_cut_off(keep):
    storage = MemoryStorage()
    store, _ = new_store(storage)
    put(store, b"whole")
    end = store.log_end
    record = encode_message(StoredMessage("T", b"torn", physical_offset=end, queue_offset=1))
    storage.crash(torn_log=record[:keep])
    store, read = new_store(storage)
    assert (read, store.log_end, store.max_offset("T", 0)) == (1, end, 1)
    assert put(store, b"next").physical_offset == end
    storage.crash()
    assert new_store(storage)[1] == 2


def test_a_record_with_a_wrong_crc_ends_the_log():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    put(store, b"whole")
    record = bytearray(encode_message(StoredMessage("T", b"torn", physical_offset=store.log_end, queue_offset=1)))
    record[90] ^= 1
    storage.crash(torn_log=bytes(record))
    assert new_store(storage)[0].max_offset("T", 0) == 1


def test_without_a_checkpoint_all_queues_are_built_again(tmp_path):
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage)
    for number in range(20):
        put(store, b"%d" % number, queue_id=number % 2)
    store.checkpoint_now()
    storage.close()
    (tmp_path / "config" / "checkpoint.json").unlink()
    storage = DiskStorage(tmp_path)
    store, read = new_store(storage)
    assert read == 20
    assert bodies(store.get("T", 1, 0, 32)) == [b"%d" % number for number in range(1, 20, 2)]
    storage.close()


def test_a_kill_between_the_renames_that_replace_the_checkpoint_loses_nothing(tmp_path):
    """Then only the one before is there; without it all queues were built again, and an end could fall."""
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage)
    for number in range(20):
        if number in (10, 15):
            store.checkpoint_now()
        put(store, b"%d" % number)
    storage.close()
    (tmp_path / "config" / "checkpoint.json").replace(tmp_path / "config" / "checkpoint.json.bak")
    storage = DiskStorage(tmp_path)
    store, read = new_store(storage)
    assert (read, store.found.rebuilt, store.max_offset("T", 0)) == (5, [], 20)
    storage.close()


def test_a_log_shorter_than_the_checkpoint_is_survived(tmp_path):
    """A crash of the machine may lose the log's end although the checkpoint was kept."""
    bounds = StoreBounds(32, 262_144, 800, 2_000)
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage, bounds)
    for number in range(50):
        put(store, b"%02d" % number)
    store.checkpoint_now()
    storage.close()
    segments = sorted((tmp_path / "commitlog").iterdir())
    segments[-1].unlink()
    with open(segments[-2], "r+b") as file:
        file.truncate(150)
    (tmp_path / "abort").write_text("1\nanother-run-of-the-machine\n", encoding="ascii")
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage, bounds)
    kept = store.max_offset("T", 0)
    assert 0 < kept < 50
    assert bodies(store.get("T", 0, kept - 1, 32)) == [b"%02d" % (kept - 1)]
    assert put(store, b"more").queue_offset == kept
    storage.close()


def test_records_of_deleted_topics_are_skipped_and_a_new_topic_starts_anew():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    put(store, b"old")
    put(store, b"stays", topic="U")
    store.remove_topic("T")
    assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    storage.crash()
    store, _ = new_store(storage, topics=("U",))
    assert store.max_offset("U", 0) == 1
    assert put(store, b"new").queue_offset == 0
    storage.crash()
    store, _ = new_store(storage)
    assert bodies(store.get("T", 0, 0, 32)) == [b"new"]


def test_records_of_a_topic_that_a_crash_took_do_not_stand_in_the_way_of_its_next_life():
    """The power was cut before its journal line and these records were on the disk, so nobody was answered for them."""
    storage = MemoryStorage()
    store, _ = new_store(storage, topics=())
    put(store, b"nobody was answered")
    storage.crash()
    store, _ = new_store(storage, topics=())
    put(store, b"answered")
    storage.crash()
    for _ in range(2):
        store, _ = new_store(storage)
        assert bodies(store.get("T", 0, 0, 32)) == [b"answered"]
        assert store.found.damaged_ranges == 0
        storage.crash()
        storage.replace("config/checkpoint.json", b"lost")


def test_a_rebuild_meets_both_lives_of_a_topic():
    storage = MemoryStorage()
    store, _ = new_store(storage)
    put(store, b"old")
    put(store, b"old")
    store.remove_topic("T")
    put(store, b"new")
    storage.crash()
    storage.replace("config/checkpoint.json", b"garbage")
    store, _ = new_store(storage)
    assert bodies(store.get("T", 0, 0, 32)) == [b"new"]


def test_retention_drops_whole_segments_and_moves_the_queues():
    storage = MemoryStorage()
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1_000))
    for number in range(100):
        put(store, b"%03d" % number, queue_id=number % 2, now_ms=T0 + number)
    store.drop_older_than(T0 + 50)
    low = store.min_offset("T", 0)
    assert 10 < low <= 25
    assert store.min_offset("T", 1) in {low - 1, low}
    assert store.get("T", 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert bodies(store.get("T", 0, low, 1)) == [b"%03d" % (2 * low)]
    store.drop_older_than(T0 + 10_000)
    assert store.max_offset("T", 0) == 50, "the last segment stays"
    storage.crash()
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1_000))
    assert store.max_offset("T", 0) == 50
    assert bodies(store.get("T", 0, 49, 1)) == [b"098"]


class SmallDisk(DiskStorage):
    """Of a mebibyte."""

    disk_bytes = 1 << 20


def test_retention_by_share_of_the_disk_counts_what_the_log_takes(tmp_path):
    """A sparse segment of a mebibyte with little in it takes little; others' files on the disk do not count."""

    storage = SmallDisk(tmp_path)
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1 << 18))
    for number in range(30):
        put(store, bytes([number]) * 50_000)
    store.drop_beyond(2.0)
    assert store.log_start == 0
    store.drop_beyond(0.5)
    kept = store.log_end - store.log_start
    assert (1 << 18) < kept <= (1 << 19) + (1 << 18)
    assert [event for event, _ in store.events] == ["store.dropped_for_room"]
    assert store.get("T", 0, store.min_offset("T", 0), 1).count == 1
    store.drop_beyond(0.0)
    assert store.max_offset("T", 0) == 30
    assert store.log_end > store.log_start, "the last segment stays"
    storage.close()


def test_retention_by_share_of_the_disk_counts_queues_and_index_too(tmp_path):
    """Of short messages these take more than the log: a disk that was full of them stayed so."""

    storage = SmallDisk(tmp_path)
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1 << 17))
    for number in range(60):
        message = StoredMessage("T", bytes(6_000), b"UNIQ_KEY\x01%d\x02" % number)
        store.put(T0, message, 0)
    store.checkpoint_now()

    def taken(*folders):
        files = [file for folder in folders for file in (tmp_path / folder).rglob("*") if file.is_file()]
        return sum(file.stat().st_blocks for file in files) * 512

    index_bytes = taken("index")
    assert index_bytes, "the index has the keys"
    share = (taken("commitlog") + index_bytes // 2) / storage.disk_bytes
    store.drop_beyond(share)
    assert store.log_start > 0
    assert taken("commitlog", "index") <= share * storage.disk_bytes
    storage.close()


def test_retention_by_share_of_the_disk_drops_no_more_than_it_must(tmp_path):
    """Queues are shortened with the log: what the log keeps fits, and one segment more would not."""
    log_bytes, queue_bytes = 1 << 13, 400

    class ShortQueues(SmallDisk):
        def open(self, name, segment_bytes, buffered):
            return super().open(name, queue_bytes if name.startswith("consumequeue/") else segment_bytes, buffered)

    storage = ShortQueues(tmp_path)
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, log_bytes))
    for _ in range(3_000):
        put(store, b"")
    store.checkpoint_now()
    bytes_max = 12 * log_bytes
    store.drop_beyond(bytes_max / storage.disk_bytes)
    kept = -(-(store.log_end - store.log_start) // log_bytes)
    queue = (store.max_offset("T", 0) - store.min_offset("T", 0)) * ENTRY_BYTES
    assert kept * log_bytes + queue <= bytes_max
    assert (kept + 1) * (log_bytes + queue / kept) + queue_bytes > bytes_max - log_bytes
    storage.close()


def test_nothing_is_kept_of_tags_of_any_length():
    """Clients choose them: 4,096 of 31,000 characters took 500 MiB for the life of the process."""
    tags._short_tags_hash.cache_clear()
    for length in (10, 129, 31_000):
        assert message_tags_code(StoredMessage("T", b"", b"TAGS\x01" + b"x" * length + b"\x02")) == java_hash(
            "x" * length
        )
    assert tags._short_tags_hash.cache_info().currsize == 1


_events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.binary(max_size=300)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("crash"), st.binary(max_size=60)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(_events)
def test_whatever_happens_the_queues_hold_what_was_put(events):
    storage = MemoryStorage()
    bounds = StoreBounds(32, 262_144, 800, 700)
    store, _ = new_store(storage, bounds)
    model: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for event in events:
        if event[0] == "put":
            put(store, event[2], queue_id=event[1])
            model[event[1]].append(event[2])
        elif event[0] == "checkpoint":
            store.begin_checkpoint()
            store.end_checkpoint()
        else:
            storage.crash(event[1])
            store, _ = new_store(storage, bounds)
    for queue_id, wanted in model.items():
        found: list[bytes] = []
        while (fetched := store.get("T", queue_id, len(found), 32)).count:
            found += bodies(fetched)
        assert found == wanted


def test_a_queue_whose_records_all_expired_goes_on_counting():
    storage = MemoryStorage()
    bounds = StoreBounds(32, 262_144, 800, 300)
    store, _ = new_store(storage, bounds)
    for _ in range(6):
        put(store)
    for _ in range(20):
        put(store, topic="U", now_ms=T0 + 100)
    store.drop_older_than(T0 + 150)
    store.checkpoint_now()
    storage.crash()
    for _ in range(2):
        storage.replace("config/checkpoint.json", b"lost")
    store, _ = new_store(storage, bounds)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (6, 6)
    assert put(store).queue_offset == 6


def test_a_store_of_the_earlier_form_is_read_as_it_is_and_goes_on(tmp_path):
    """Segments as long as their content, named by their first position, without BLANKs."""
    position, number = 0, 0
    (tmp_path / "commitlog").mkdir()
    for count in (7, 3, 5):
        content = b""
        for _ in range(count):
            record = encode_message(
                StoredMessage(
                    "T", b"%d" % number, queue_offset=number, physical_offset=position + len(content),
                    store_timestamp_ms=T0, queue_id=0,
                )
            )  # fmt: skip
            content += record
            number += 1
        (tmp_path / "commitlog" / f"{position:020d}").write_bytes(content)
        position += len(content)
    bounds = StoreBounds(32, 262_144, 800, 1_000)
    for _ in range(3):
        storage = DiskStorage(tmp_path)
        store, _ = new_store(storage, bounds)
        for _ in range(10):
            put(store, b"%d" % number)
            number += 1
        storage.abandon()
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage, bounds)
    found = []
    while (fetched := store.get("T", 0, len(found), 32)).count:
        found += bodies(fetched)
    assert found == [b"%d" % at for at in range(45)]
    assert (store.found.damaged_ranges, storage.aside()) == (0, [])
    storage.close()


def test_segments_end_with_a_blank_that_fills_them(tmp_path):
    bounds = StoreBounds(32, 262_144, 800, 1_000)
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage, bounds)
    for number in range(20):
        put(store, b"%02d" % number)
    storage.abandon()
    segments = sorted((tmp_path / "commitlog").iterdir())
    assert [(path.name, path.stat().st_size) for path in segments] == [(f"{at:020d}", 1_000) for at in (0, 1_000)]
    content = segments[0].read_bytes()
    records = len(decode_messages(content.partition(b"\xcb\xd4\x31\x94")[0][:-4]))
    at = content.index(b"\xcb\xd4\x31\x94") - 4
    assert (int.from_bytes(content[at : at + 4], "big"), records) == (1_000 - at, 10)


def test_what_fits_into_no_segment_is_refused_and_nothing_is_stored():
    store, _ = new_store(MemoryStorage(), StoreBounds(32, 262_144, 800, 1_000))
    put(store, b"x")
    end = store.log_end
    with pytest.raises(UsageError, match="mapped_file_size_commit_log"):
        put(store, b"x" * 1_000)
    assert (store.log_end, store.max_offset("T", 0)) == (end, 1)


def test_no_record_spans_two_segments_after_the_setting_was_raised(tmp_path):
    """The log goes on in the size that its segments have."""
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1_000))
    for _ in range(3):
        put(store, b"x" * 500)
    store.checkpoint_now()
    storage.close()
    storage = DiskStorage(tmp_path)
    store, _ = new_store(storage)
    with pytest.raises(UsageError, match="segment of 1000"):
        put(store, b"y" * 2_000)
    put(store, b"after")
    assert bodies(store.get("T", 0, 3, 32)) == [b"after"]
    storage.close()


def test_no_record_spans_two_segments_after_an_append_that_failed_behind_a_blank(tmp_path):
    full = []

    class Calls(DiskCalls):
        def pwrite(self, fd, data, position):
            if full and position == 0:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data, position)

    storage = DiskStorage(tmp_path, calls=Calls())
    store, _ = new_store(storage, StoreBounds(32, 262_144, 800, 1_000))
    put(store, b"x" * 700)
    full.append(True)
    with pytest.raises(StorageError, match="No space left"):
        put(store, b"x" * 700)
    full.clear()
    with pytest.raises(UsageError, match="segment of 1000"):
        put(store, b"y" * 2_000)
    put(store, b"after")
    assert bodies(store.get("T", 0, 1, 32)) == [b"after"]
    storage.close()


def test_a_segment_without_room_for_a_blank_ends_with_zeros(tmp_path):
    storage = DiskStorage(tmp_path)
    bounds = StoreBounds(32, 262_144, 800, 1_000)
    store, _ = new_store(storage, bounds)
    first = put(store, b"")
    storage.open("commitlog", 1_000, buffered=False).append(
        bytes(1_000 - 5 - store.log_end)
    )  # as an older broker could
    put(store, b"after")
    assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[-5:] == bytes(5)
    assert first.queue_offset == 0
    storage.abandon()


@pytest.mark.parametrize("newest", [b"", b"\0" * 80, b'{"position": 99999, "queues": {}}'])
def test_where_the_newest_checkpoint_says_nothing_the_one_before_counts(newest):
    """A crash of the machine may leave it empty. Else the end of a damaged queue is given twice."""
    storage = MemoryStorage()
    store, _ = new_store(storage)
    for _ in range(5):
        put(store)
    store.checkpoint_now()
    put(store)
    position, _, _ = store.queue("T", 0).entry(2)
    store.checkpoint_now()
    storage._tables["config/checkpoint.json"] = newest
    storage.open("commitlog", 1, buffered=False).overwrite(position, b"\x5a" * (store.log_end - position))
    storage.kept_all = False
    store, _ = new_store(storage)
    assert put(store).queue_offset == 5
