"""Both storages keep the same promises."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from rocketcrew.broker.disk import BUFFER_MAX_BYTES, DiskStorage
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.broker.storage import DiskFailed, MemoryStorage, Storage, StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import RocketcrewError, UsageError


@pytest.fixture(params=["memory", "disk"])
def storage(request, tmp_path):
    made = MemoryStorage() if request.param == "memory" else DiskStorage(tmp_path)
    yield made
    made.close()


def reopen(storage: Storage, tmp_path: Path, *, crash: bool) -> Storage:
    if isinstance(storage, MemoryStorage):
        if crash:
            storage.crash()
        else:
            storage.close()
        return storage
    assert isinstance(storage, DiskStorage)
    if crash:
        storage.abandon()
    else:
        storage.close()
    return DiskStorage(tmp_path)


def test_positions_run_on_over_segments_of_one_size(storage):
    file = storage.open("log", 10, buffered=False)
    assert file.room == 10
    assert [file.append(b"abcd"), file.append(b"efgh"), file.append(b"ijkl"), file.append(b"x" * 25)] == [0, 4, 8, 12]
    assert file.segment_starts() == [0, 10, 20, 30]
    assert (file.end, file.room) == (37, 3)
    assert file.read(2, 10) == b"cdefghijkl"
    assert file.read(0, 100) == b"abcdefghijkl" + b"x" * 25
    assert file.read(37, 5) == b""


def test_a_segment_can_be_ended_before_it_is_full(storage):
    file = storage.open("log", 10, buffered=False)
    file.append(b"abcd")
    file.roll(b"END")
    assert (file.end, file.read(0, 100)) == (10, b"abcdEND\0\0\0")
    assert file.append(b"next") == 10
    assert file.segment_starts() == [0, 10]


def test_segments_have_their_full_size_and_take_no_room_for_it(tmp_path):
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 64 << 20, buffered=False)
    file.append(b"abcd")
    found = (tmp_path / "log" / f"{0:020d}").stat()
    assert (found.st_size, found.st_blocks * 512 <= 8_192) == (64 << 20, True)
    storage.abandon()
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 64 << 20, buffered=False)
    assert 4 <= file.content_end <= 16_384
    file.truncate(4)
    assert (file.end, file.room, file.append(b"ef"), file.read(0, 9)) == (4, (64 << 20) - 4, 4, b"abcdef")
    storage.close()


def test_segments_of_another_size_go_on_in_that_size(tmp_path):
    """As of a genuine broker, which opens them only when they all have the size of its setting."""
    (tmp_path / "log").mkdir()
    for start in (0, 64, 128):
        (tmp_path / "log" / f"{start:020d}").write_bytes(b"x" * 64)
    storage = DiskStorage(tmp_path)
    storage.open("log", 1_000, buffered=False).append(b"more")
    assert {path.name: path.stat().st_size for path in (tmp_path / "log").iterdir()} == {
        f"{start:020d}": 64 for start in (0, 64, 128, 192)
    }
    storage.close()


def test_reads_outside_are_refused(storage):
    file = storage.open("log", 10, buffered=False)
    file.append(b"abcd")
    with pytest.raises(StorageError):
        file.read(5, 1)
    file.reset(100)
    with pytest.raises(StorageError):
        file.read(99, 1)
    assert file.append(b"zz") == 100


def test_front_goes_in_whole_segments(storage):
    file = storage.open("log", 4, buffered=False)
    for part in (b"aaaa", b"bbbb", b"cccc"):
        file.append(part)
    file.drop_before(7)
    assert file.start == 4
    assert file.read(4, 8) == b"bbbbcccc"
    file.drop_before(12)
    assert file.start == 8, "the last segment stays"


def test_truncate_then_append(storage):
    file = storage.open("log", 4, buffered=False)
    for part in (b"aaaa", b"bbbb", b"cccc"):
        file.append(part)
    file.truncate(6)
    assert (file.end, file.read(0, 9)) == (6, b"aaaabb")
    assert file.append(b"dd") == 6
    assert file.read(4, 4) == b"bbdd"


def test_buffered_file_reads_what_is_not_written(storage):
    file = storage.open("queue", 1 << 20, buffered=True)
    file.append(b"ab")
    file.flush()
    file.append(b"cd")
    assert file.read(0, 4) == b"abcd"
    assert file.read(3, 4) == b"d"
    assert file.read(1, 2) == b"bc"


def test_a_crash_loses_only_unflushed_buffers(storage, tmp_path):
    log = storage.open("log", 100, buffered=False)
    queue = storage.open("q/t/0", 100, buffered=True)
    log.append(b"kept")
    queue.append(b"flushed")
    queue.flush()
    queue.append(b"lost")
    storage.replace("config/a.json", b"table")
    again = reopen(storage, tmp_path, crash=True)
    assert again.open("log", 100, buffered=False).read(0, 100).rstrip(b"\0") == b"kept"
    assert again.open("q/t/0", 100, buffered=True).read(0, 100).rstrip(b"\0") == b"flushed"
    assert again.load("config/a.json") == b"table"
    assert again.load("config/b.json") is None
    again.close()


def test_a_clean_close_loses_nothing(storage, tmp_path):
    storage.open("q/t/0", 100, buffered=True).append(b"all")
    again = reopen(storage, tmp_path, crash=False)
    assert again.open("q/t/0", 100, buffered=True).read(0, 100).rstrip(b"\0") == b"all"
    assert again.names("q/") == ["q/t/0"]
    again.remove("q/t/0")
    assert again.names("q/") == []
    again.close()


def test_sync_tickets(storage):
    storage.open("log", 100, buffered=False).append(b"x")
    ticket = storage.sync()
    storage.close()
    assert storage.is_synced(ticket)


def test_large_buffers_write_themselves(tmp_path):
    storage = DiskStorage(tmp_path)
    file = storage.open("q", 1 << 20, buffered=True)
    file.append(b"x" * (BUFFER_MAX_BYTES + 1))
    storage.abandon()
    storage = DiskStorage(tmp_path)
    assert storage.open("q", 1 << 20, buffered=True).content_end >= BUFFER_MAX_BYTES + 1
    storage.close()


def test_second_owner_of_a_folder_is_refused(tmp_path):
    storage = DiskStorage(tmp_path)
    with pytest.raises(RocketcrewError, match="in use by another broker"):
        DiskStorage(tmp_path)
    storage.close()
    DiskStorage(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        DiskStorage(tmp_path / "file" / "below")


def test_positions_stay_where_a_segment_lost_its_end(tmp_path):
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 4, buffered=False)
    for part in (b"aaaa", b"bbbb", b"cccc"):
        file.append(part)
    storage.close()
    (tmp_path / "log" / f"{4:020d}").write_bytes(b"bb")  # a crash of the machine lost its end
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 4, buffered=False)
    assert file.read(0, 100) == b"aaaabb\0\0cccc"
    assert file.holes == [(6, 2)]
    assert file.append(b"dd") == 12
    storage.close()


def test_positions_stay_where_a_segment_is_gone(tmp_path):
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 4, buffered=False)
    for part in (b"aaaa", b"bbbb", b"cccc"):
        file.append(part)
    storage.close()
    (tmp_path / "log" / f"{4:020d}").unlink()
    storage = DiskStorage(tmp_path)
    assert storage.open("log", 4, buffered=False).read(2, 8) == b"aa\0\0\0\0cc"
    storage.close()


def test_a_segment_that_runs_into_the_next_hides_nothing(tmp_path):
    """As those of our earlier form, after half a write into a full disk: the next record began a new segment."""
    (tmp_path / "log").mkdir()
    for start, content in ((0, b"aaaahalf"), (4, b"bbbbbb"), (10, b"cc")):
        (tmp_path / "log" / f"{start:020d}").write_bytes(content)
    storage = DiskStorage(tmp_path)
    assert storage.open("log", 8, buffered=False).read(0, 100) == b"aaaabbbbbbcc"
    storage.close()


def test_what_is_set_aside_is_kept_once(storage):
    storage.set_aside("0-4", [b"ab", b"\0\0"])
    storage.set_aside("0-4", [b"something else"])
    storage.open("q/t/0", 100, buffered=False).append(b"x")
    storage.move_aside("q/t/0")
    assert storage.aside() == ["0-4", "q/t/0"] or storage.aside() == ["0-4", f"q/t/0/{0:020d}"]
    assert storage.open("q/t/0", 100, buffered=False).end == 0


def test_messages_are_readable_by_their_owner_alone(tmp_path):
    storage = DiskStorage(tmp_path / "data")
    storage.open("q/t/0", 100, buffered=False).append(b"x")
    storage.replace("config/a.json", b"{}")
    storage.close()
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*") if path.is_file()}
    folders = {path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*") if path.is_dir()}
    assert (modes, folders, (tmp_path / "data").stat().st_mode & 0o777) == ({0o600}, {0o700}, 0o700)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("consumequeue_r/CURRENT", "RocksDB"),
        ("config/tieredStoreMetadata.json", "tiered storage"),
        ("batchconsumequeue/T/0/x", "batch consume queues"),
        ("config/topics/CURRENT", "RocksDB"),
        ("compaction/compactionLog/T/0/x", "compacted topics"),
        ("compaction/compactionCq/T/0/x", "compacted topics"),
    ],
)
def test_stores_of_other_kinds_are_refused_by_name_and_untouched(tmp_path, name, said):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("x")
    (tmp_path / name).with_name("MANIFEST-000001").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=said):
        DiskStorage(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_clean_stop_of_a_genuine_broker_leaves_is_no_store_of_another_kind(tmp_path):
    """A store of 5.x that had been stopped in order was refused for topics that it had not."""
    (tmp_path / "compaction").mkdir()
    (tmp_path / "compaction" / "position-checkpoint").write_text('{\n\t"empty":true,\n\t"queueOffsetMap":{}\n}')
    (tmp_path / "compaction" / "compactionLog").mkdir()
    DiskStorage(tmp_path).close()


def test_a_failed_write_appends_nothing(tmp_path):
    storage = DiskStorage(tmp_path)
    file = storage.open("log", 4, buffered=False)
    file.append(b"aaaa")
    (tmp_path / "log" / f"{4:020d}").mkdir()  # the next segment cannot be opened
    with pytest.raises(StorageError, match="cannot open"):
        file.append(b"bbbb")
    assert file.end == 4
    (tmp_path / "log" / f"{4:020d}").rmdir()
    assert file.append(b"cccc") == 4
    assert file.read(0, 8) == b"aaaacccc"
    storage.close()


def test_a_full_disk_stops_no_append_to_a_buffer(tmp_path):
    """The commit log has the record by then: an append that raised would hide a message that is stored."""
    full = []

    class Calls(DiskCalls):
        def pwrite(self, fd, data, position):
            if full:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data, position)

    storage = DiskStorage(tmp_path, calls=Calls())
    file = storage.open("queue", 1 << 20, buffered=True)
    full.append(True)
    assert [file.append(b"x" * BUFFER_MAX_BYTES), file.append(b"yy")] == [0, BUFFER_MAX_BYTES]
    with pytest.raises(StorageError, match="No space left"):
        file.flush()
    full.clear()
    assert file.append(b"z") == BUFFER_MAX_BYTES + 2
    file.flush()
    assert (tmp_path / "queue" / f"{0:020d}").read_bytes().rstrip(b"\0") == b"x" * BUFFER_MAX_BYTES + b"yyz"
    storage.close()


AHEAD_BYTES = 64 << 10


def blocks_of(tmp_path, start=0):
    return (tmp_path / "log" / f"{start:020d}").stat().st_blocks


def test_room_is_taken_ahead_of_the_writes(tmp_path):
    """So a sync brings bytes alone to the disk: no block has to be found for them."""
    storage = DiskStorage(tmp_path, ahead_bytes=AHEAD_BYTES)
    file = storage.open("log", 1 << 20, buffered=False)
    file.append(b"a" * 100)
    taken = blocks_of(tmp_path)
    assert AHEAD_BYTES <= taken * 512 <= 2 * AHEAD_BYTES
    while file.end + 1_000 <= AHEAD_BYTES:
        file.append(b"b" * 1_000)
        assert blocks_of(tmp_path) == taken
    file.append(b"c" * 1_000)
    assert taken < blocks_of(tmp_path) <= 3 * taken
    assert file.read(0, file.end).strip(b"abc") == b""
    storage.abandon()
    storage = DiskStorage(tmp_path, ahead_bytes=AHEAD_BYTES)
    file = storage.open("log", 1 << 20, buffered=False)
    assert file.content_end < 4 * AHEAD_BYTES
    end = len(file.read(0, file.content_end).rstrip(b"\0"))
    file.truncate(end)
    assert file.append(b"d") == end
    assert file.read(end - 1, 2) == b"cd"
    storage.close()


def test_no_room_is_taken_behind_a_segment_or_for_buffers_and_small_ones(tmp_path):
    storage = DiskStorage(tmp_path, ahead_bytes=AHEAD_BYTES)
    log = storage.open("log", AHEAD_BYTES + 4_096, buffered=False)
    log.append(b"a" * 8_192)
    log.append(b"a" * AHEAD_BYTES)  # into the second
    small, queue = storage.open("small", AHEAD_BYTES, buffered=False), storage.open("queue", 1 << 20, buffered=True)
    small.append(b"a")
    queue.append(b"a")
    queue.flush()
    sizes = {path.stat().st_size for path in (tmp_path / "log").iterdir()}
    assert sizes == {AHEAD_BYTES + 4_096}
    taken = [next((tmp_path / name).iterdir()).stat().st_blocks * 512 for name in ("small", "queue")]
    assert max(taken) < AHEAD_BYTES
    storage.close()


def test_a_disk_without_room_ahead_takes_what_it_has_room_for(tmp_path):
    class Calls(DiskCalls):
        def pwrite(self, fd, data, position):
            if position + len(data) > 10_000:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data, position)

    storage = DiskStorage(tmp_path, calls=Calls(), ahead_bytes=AHEAD_BYTES)
    file = storage.open("log", 1 << 20, buffered=False)
    for _ in range(10):
        file.append(b"a" * 1_000)
    with pytest.raises(StorageError, match="No space left"):
        file.append(b"b")
    assert file.read(0, file.end) == b"a" * 10_000
    storage.close()


def test_the_last_room_of_a_disk_is_for_data_and_not_for_zeros_ahead_of_it(tmp_path):
    """Of each page that is written the disk has to find one; it has ten, and refuses zeros after it took some of them."""
    zeros = []

    class Calls(DiskCalls):
        def pwrite(self, fd, data, position):
            used = os.fstat(fd).st_blocks * 512
            room = 40_960 - used + -position % 4_096
            zeros.extend([len(data)] * (bytes(data).count(0) == len(data)))
            if room <= 0:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data[:room], position)

    storage = DiskStorage(tmp_path, calls=Calls(), ahead_bytes=AHEAD_BYTES)
    file = storage.open("log", 1 << 20, buffered=False)
    for number in range(10):
        file.append(b"%d" % number * 4_096)
        assert blocks_of(tmp_path) * 512 == (number + 1) * 4_096, "what zeros took is given back"
    with pytest.raises(StorageError, match="No space left"):
        file.append(b"x")
    assert file.read(0, file.end) == b"".join(b"%d" % number * 4_096 for number in range(10))
    assert len(zeros) <= 2, "not tried again with each write"
    storage.close()


def test_few_descriptors_serve_many_files(tmp_path):
    storage = DiskStorage(tmp_path, open_files_max=4)
    files = [storage.open(f"q/{number}", 100, buffered=False) for number in range(20)]
    for number, file in enumerate(files):
        file.append(b"%d" % number)
    assert [file.read(0, 9) for file in files] == [b"%d" % number for number in range(20)]
    storage.close()


def test_after_a_failed_fsync_nothing_more_is_promised(tmp_path, make):
    """A second fsync would succeed: the kernel has dropped what it could not write. So the first failure is the last word."""
    failing = []

    class Calls(DiskCalls):
        def fdatasync(self, fd):
            if failing:
                raise OSError(5, "Input/output error")

    storage = DiskStorage(tmp_path, calls=Calls())
    broker = make(storage, flush="async")
    assert broker.send().code == 0
    failing.append(True)
    ticket = storage.sync()
    storage.syncer.close()
    failing.clear()
    with pytest.raises(DiskFailed, match="did not keep"):
        assert storage.is_synced(ticket)
    checkpoint = storage.load("config/checkpoint.json")
    broker.later(10_000)
    broker.later(1)  # asks after the flush that began then
    assert broker.core.failed is not None
    assert broker.request(RequestCode.GET_BROKER_CONFIG) == []
    broker.core.stop()
    assert storage.load("config/checkpoint.json") == checkpoint


def test_a_table_keeps_the_generation_before(storage, tmp_path):
    assert storage.load_previous("config/a.json") is None
    storage.replace("config/a.json", b"1", sync=True)
    storage.replace("config/a.json", b"2", sync=True)
    again = reopen(storage, tmp_path, crash=True)
    assert (again.load("config/a.json"), again.load_previous("config/a.json")) == (b"2", b"1")
    again.replace("config/a.json", b"3")
    assert again.load("config/a.json") == b"3", "also before it is on the disk"
    again = reopen(again, tmp_path, crash=False)
    assert (again.load("config/a.json"), again.load_previous("config/a.json")) == (b"3", b"2")
    again.close()


def test_a_table_that_cannot_be_written_is_tried_again(tmp_path):
    storage = DiskStorage(tmp_path)
    (tmp_path / "config" / "a.json.bak").mkdir()  # its generation before cannot be kept
    (tmp_path / "config" / "a.json").write_bytes(b"0")
    storage.replace("config/a.json", b"1")
    storage.sync()
    storage.syncer.close()
    assert storage.load("config/a.json") == b"1"
    with pytest.raises(StorageError, match=r"cannot write .*a\.json"):
        storage.replace("config/a.json", b"2")
    (tmp_path / "config" / "a.json.bak").rmdir()
    storage.syncer.submit([], flush=True)
    storage.syncer.work()
    assert (tmp_path / "config" / "a.json").read_bytes() == b"2"
    storage.replace("config/a.json", b"3")
    storage.abandon()


def test_a_table_that_was_saved_at_once_is_not_replaced_by_the_one_that_the_thread_had_in_hand(tmp_path):
    storage = DiskStorage(tmp_path, has_thread=False)
    storage.replace("config/t.json", b"old")
    (in_hand,) = storage.syncer._tables.items()
    storage.replace("config/t.json", b"new", sync=True)
    storage.syncer._write_table(*in_hand)
    assert storage.load("config/t.json") == b"new"
    storage.close()


def test_a_table_is_synced_with_its_folder(tmp_path):
    synced = []

    class Calls(DiskCalls):
        def fsync(self, fd):
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

        def fdatasync(self, fd):
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name.partition(".json")[0])

    storage = DiskStorage(tmp_path, calls=Calls())
    synced.clear()
    storage.replace("config/a.json", b"1")
    storage.close()
    assert synced == ["a", "config"]


@pytest.mark.parametrize("refused", ["abort", "removedTopics.json"])
def test_a_start_on_a_full_disk_names_the_file_and_what_to_do(tmp_path, refused):
    storage = DiskStorage(tmp_path, calls=FullFor(refused), has_thread=False)

    async def start():
        async with EmbeddedBroker(storage=storage):
            pytest.fail("it runs")

    with pytest.raises(StorageError, match=rf"{refused}: No space left on device.*make room there, then start again"):
        asyncio.run(start())
    storage.abandon()


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path):
    storage = DiskStorage(tmp_path, calls=FullFor("t.json"), has_thread=False)
    with pytest.raises(StorageError):
        storage.replace("config/t.json", b"1", sync=True)
    assert not list((tmp_path / "config").iterdir())
    storage.abandon()


def test_a_start_removes_tables_that_were_not_written_to_the_end(tmp_path):
    DiskStorage(tmp_path, has_thread=False).close()
    for name in ("t.json.139.tmp", "t.json.tmp", "t.json"):
        (tmp_path / "config" / name).write_bytes(b"{}")
    DiskStorage(tmp_path, has_thread=False).close()
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == ["t.json", "t.json.tmp"]


class FullFor(DiskCalls):
    """No room for files of that name."""

    def __init__(self, name):
        self._name = name

    def pwrite(self, fd, data, position):
        if self._name in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, position)


def test_what_is_truncated_takes_no_room(tmp_path):
    """Zeros were written into the hole behind it too: on a full disk the broker did not start."""
    storage = DiskStorage(tmp_path, has_thread=False)
    file = storage.open("log", 1 << 20, buffered=False)
    file.append(b"x" * 5_000)
    taken = file.taken_bytes(0)
    file.truncate(10)
    assert file.taken_bytes(0) == taken
    storage.close()


def test_a_segment_that_was_cut_back_is_made_whole_again(tmp_path):
    """Else, with the next one begun, its end could not be read: it was shorter than it was said to be."""

    class Full(DiskCalls):
        is_full = False

        def pwrite(self, fd, data, position):
            self._refuse()
            return super().pwrite(fd, data, position)

        def ftruncate(self, fd, length_bytes):
            if length_bytes == 100:
                self._refuse()
            super().ftruncate(fd, length_bytes)

        def _refuse(self):
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = DiskStorage(tmp_path, calls=(calls := Full()), has_thread=False)
    file = storage.open("log", 100, buffered=False)
    file.append(b"kept")
    calls.is_full = True
    with pytest.raises(StorageError, match="No space left"):
        file.append(b"refused")
    calls.is_full = False
    file.roll(b"END")
    file.append(b"next")
    assert file.read(0, 200) == b"keptEND".ljust(100, b"\0") + b"next"
    assert (tmp_path / "log" / f"{0:020d}").stat().st_size == 100
    storage.close()
