from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.conf.segment_format import END_OF_STREAM, READY_DIR
from rocketcrew.durable.files import FileCalls
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.message import make_message
from rocketcrew.workers.packets import QueueRanges, Sealed
from rocketcrew.workers.prefix import complete_prefix
from rocketcrew.workers.ranges import OffsetSets
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.salvage import salvage
from rocketcrew.workers.sealing import Sealer, SegmentLostError, open_segments
from rocketcrew.workers.segment import SegmentWriter

MS = 1_000_000


class GiveUpError(Exception):
    pass


def give_up(what: str, error: OSError) -> None:
    raise GiveUpError(what) from error


ROWS: RowBuffer[int] = RowBuffer(parse_ddl("text string"), "group")


def batch_of(offsets: list[int], rows_each: int = 1, text: str = "x") -> tuple[pa.RecordBatch, bytes]:
    finished = OffsetSets()
    for offset in offsets:
        prepared = ROWS.prepare(make_message(b"", queue_offset=offset), [{"text": text}] * rows_each)
        assert prepared is not None
        ROWS.keep(offset, prepared)
        finished.add(("TopicTest", "broker-a", 0), offset, offset + 1)
    batch, _ = ROWS.take()
    assert batch is not None
    return batch, finished.to_json()


def writer(folder: Path, worker_id: str = "w1", **more: Any) -> SegmentWriter:
    limits: dict[str, Any] = {"seal_rows": 100, "seal_bytes": 100_000, "seal_idle_ms": 1_000, "pause": give_up}
    return SegmentWriter(folder, worker_id, ROWS.schema, **(limits | more))


def seal(segments: SegmentWriter) -> Sealed | None:
    """Make the open segment durable, at once."""
    detached = segments.detach()
    if detached is None:
        return None
    path, sealed = detached
    sealer = Sealer(path.parent.parent / READY_DIR, pause=give_up, waits=None)
    sealer.add(path, sealed)
    assert sealer.take() == [sealed]
    assert not sealer.busy
    return sealed


def append(segments: SegmentWriter, offsets: list[int], now_ms: int = 0, **more: Any) -> int:
    batch, outcomes = batch_of(offsets, **more)
    return segments.append(batch, outcomes, now_ms * MS)


def offsets_in(path: Path) -> list[int]:
    found: list[int] = pa.ipc.open_stream(path.read_bytes()).read_all().column("_offset").to_pylist()
    return found


def test_rows_are_on_disk_after_append_and_in_ready_after_seal(tmp_path: Path) -> None:
    segments = writer(tmp_path)
    assert not segments.is_open
    assert append(segments, [1, 2]) == 1
    assert append(segments, [3]) == 1
    opened = tmp_path / "open" / "w1-00000001.arrows"
    assert offsets_in(opened) == [1, 2, 3]
    sealed = seal(segments)
    ready = tmp_path / "ready" / "w1-00000001.arrows"
    assert sealed == Sealed(1, 3, ready.stat().st_size, "w1-00000001.arrows")
    assert not opened.exists()
    assert ready.read_bytes().endswith(END_OF_STREAM)
    assert offsets_in(ready) == [1, 2, 3]
    assert seal(segments) is None
    assert append(segments, [4]) == 2


class Losing(FileCalls):
    """A disk that cannot write what its first fsync is for, and says yes to each later one: as Linux does."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.synced: set[int] = set()

    def fsync(self, fd: int) -> None:
        file = os.fstat(fd).st_ino
        if not self.lost:
            self.lost.add(file)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.add(file)


def test_a_segment_whose_sync_failed_is_not_sealed_but_a_copy_of_it(tmp_path: Path) -> None:
    segments, disk, pauses = writer(tmp_path), Losing(), list[str]()
    append(segments, [1, 2])
    detached = segments.detach()
    assert detached is not None
    sealer = Sealer(tmp_path / READY_DIR, pause=lambda what, _: pauses.append(what), waits=None, calls=disk)
    sealer.add(*detached)
    assert (sealer.take(), pauses) == ([detached[1]], ["sealing a segment"])
    (ready,) = (tmp_path / READY_DIR).iterdir()
    assert offsets_in(ready) == [1, 2]
    assert ready.stat().st_ino in disk.synced - disk.lost
    assert not list((tmp_path / "open").iterdir())


def test_a_worker_that_was_killed_after_a_sync_that_failed_leaves_what_a_salvage_copies(tmp_path: Path) -> None:
    segments, disk = writer(tmp_path), Losing()
    append(segments, [1, 2])
    detached = segments.detach()
    assert detached is not None
    sealer = Sealer(tmp_path / READY_DIR, pause=give_up, waits=None, calls=disk)
    with pytest.raises(GiveUpError):
        sealer.add(*detached)
    found = salvage(detached[0], disk)
    assert (found.sealed_name, found.rows) == (detached[0].name, 2)
    (ready,) = (tmp_path / READY_DIR).iterdir()
    assert offsets_in(ready) == [1, 2]
    assert ready.stat().st_ino in disk.synced - disk.lost
    assert not list((tmp_path / "open").iterdir())


def test_a_segment_of_which_the_disk_has_lost_some_is_never_sealed(tmp_path: Path) -> None:
    segments, disk = writer(tmp_path), Losing()
    append(segments, [1, 2])
    append(segments, [3])
    detached = segments.detach()
    assert detached is not None
    path = detached[0]
    pauses: list[str] = []

    def pause(what: str, error: OSError) -> None:
        pauses.append(what)
        kept = path.read_bytes()[:-200]  # the pages go, and the file is read from the disk again
        path.write_bytes(kept + bytes(200))

    sealer = Sealer(tmp_path / READY_DIR, pause=pause, waits=None, calls=disk)
    with pytest.raises(SegmentLostError, match="the disk has lost some of"):
        sealer.add(*detached)
    assert len(pauses) == 1, "no other try brings it back"
    assert path.exists()
    assert not list((tmp_path / READY_DIR).iterdir())


def test_the_schema_says_whose_rows_these_are(tmp_path: Path) -> None:
    segments = writer(tmp_path)
    append(segments, [1])
    seal(segments)
    schema = pa.ipc.open_stream((tmp_path / "ready" / "w1-00000001.arrows").read_bytes()).schema
    assert schema == ROWS.schema
    assert schema.metadata == ROWS.schema.metadata


def test_a_name_that_is_taken_is_never_used_again(tmp_path: Path) -> None:
    first = writer(tmp_path)
    append(first, [1])
    seal(first)
    second = writer(tmp_path)
    assert append(second, [2]) == 2
    assert offsets_in(tmp_path / "ready" / "w1-00000001.arrows") == [1]


def test_when_a_segment_is_due(tmp_path: Path) -> None:
    segments = writer(tmp_path, seal_rows=3)
    assert not segments.due(10**18)
    append(segments, [1], now_ms=0)
    assert segments.seal_due_ns() == 1_000 * MS
    assert not segments.due(999 * MS)
    assert segments.due(1_000 * MS)
    append(segments, [2], now_ms=900)
    assert not segments.due(1_000 * MS)
    append(segments, [3], now_ms=901)
    assert segments.due(902 * MS)


def test_trickling_rows_are_sealed_at_three_times_the_idle_limit(tmp_path: Path) -> None:
    segments = writer(tmp_path)
    now_ms = 0
    while not segments.due(now_ms * MS):
        append(segments, [now_ms], now_ms=now_ms)
        now_ms += 900
    assert 3_000 <= now_ms < 4_000


def test_bytes_make_a_segment_due(tmp_path: Path) -> None:
    segments = writer(tmp_path)
    append(segments, [1], text="x" * 200_000)
    assert segments.due(0)


class SmallDisk:
    """A disk of `size` bytes for one file: takes a part of what does not fit, then refuses; cutting gives space back."""

    def __init__(self, size: int) -> None:
        self.size = size

    def write(self, fd: int, data: memoryview) -> int:
        room = self.size - os.fstat(fd).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data[:room])


@settings(max_examples=40)
@given(size=st.integers(0, 8_000), gain=st.integers(50, 3_000))
def test_a_full_disk_loses_nothing(tmp_path_factory: pytest.TempPathFactory, size: int, gain: int) -> None:
    folder = tmp_path_factory.mktemp("full")
    disk = SmallDisk(size)
    whole_sizes: set[int] = set()

    def make_room(_what: str, _error: OSError) -> None:
        whole_sizes.add(next(iter((folder / "open").iterdir())).stat().st_size)
        disk.size += gain

    segments = writer(folder, pause=make_room, write=disk.write)
    for offset in range(4):
        append(segments, [offset])
    sealed = seal(segments)
    assert sealed is not None
    ready = folder / "ready" / sealed.name
    assert ready.stat().st_size == sealed.bytes
    assert offsets_in(ready) == [0, 1, 2, 3]
    # While it waits, the file never ends inside a batch.
    assert whole_sizes <= {0, *batch_ends(ready.read_bytes())}


@pytest.mark.parametrize("refused", [1, 2, 5])
def test_what_a_failed_write_left_is_cut_off_before_the_next_try(tmp_path: Path, refused: int) -> None:
    """A full disk may refuse the cut too, as btrfs does: whatever is written then stands behind the torn bytes."""
    disk, cuts, pauses = SmallDisk(1 << 20), list[int](), list[str]()

    def cut(fd: int, size: int) -> None:
        cuts.append(size)
        if len(cuts) <= refused:
            raise OSError(errno.ENOSPC, "no room for the tree")
        os.ftruncate(fd, size)

    def make_room(_what: str, error: OSError) -> None:
        pauses.append(error.strerror)
        disk.size = 1 << 20

    segments = writer(tmp_path, pause=make_room, write=disk.write, cut=cut)
    append(segments, [1])
    (path,) = open_segments(tmp_path)
    disk.size = path.stat().st_size + 100
    append(segments, [2])
    append(segments, [3])
    sealed = seal(segments)
    assert sealed is not None
    ready = tmp_path / READY_DIR / sealed.name
    assert offsets_in(ready) == [1, 2, 3]
    assert ready.stat().st_size == sealed.bytes
    assert pauses == ["No space left on device", *["no room for the tree"] * (refused - 1)], (
        "a try without a cut is none"
    )
    assert set(cuts) == {batch_ends(ready.read_bytes())[1]}
    assert len(cuts) == refused + 1, "none is made where nothing failed"


class AtClose:
    """A file server that says with the close that something was not written."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def close(self, fd: int) -> None:
        self.seen.add(os.fstat(fd).st_ino)
        os.close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_segment_whose_close_failed_is_not_sealed_but_a_copy_of_it(tmp_path: Path) -> None:
    server, trouble, over = AtClose(), list[str](), list[int]()
    segments = writer(
        tmp_path, close=server.close, pause=lambda what, _: trouble.append(what), goes_on=lambda: over.append(1)
    )
    append(segments, [1, 2])
    sealed = seal(segments)
    assert sealed is not None
    ready = tmp_path / READY_DIR / sealed.name
    assert offsets_in(ready) == [1, 2]
    assert ready.stat().st_ino not in server.seen
    assert (trouble, over, segments.is_open) == (["closing a segment"], [1], False)
    assert not list((tmp_path / "open").iterdir())
    assert append(segments, [3]) == 2


@pytest.mark.parametrize("left", ["half a batch", "a batch", "all but the end", "nothing"])
def test_what_a_close_has_lost_is_never_sealed(tmp_path: Path, left: str) -> None:
    tries: list[str] = []

    def lose(fd: int) -> None:
        (path,) = open_segments(tmp_path)
        size, first = os.fstat(fd).st_size, batch_ends(path.read_bytes())[1]
        os.ftruncate(
            fd, {"half a batch": size - 200, "a batch": first, "all but the end": size - 8, "nothing": 0}[left]
        )
        AtClose().close(fd)

    segments = writer(tmp_path, close=lose, pause=lambda _, error: tries.append(error.strerror or ""))
    append(segments, [1])
    append(segments, [2])
    with pytest.raises(SegmentLostError):
        segments.detach()
    assert tries == ["No space left on device"], "no other try brings it back"
    found = salvage(*open_segments(tmp_path))
    whole = {"half a batch": (1, 2), "a batch": (1, 2), "all but the end": (1, 3)}.get(left)
    assert found.messages == ((QueueRanges("TopicTest", "broker-a", 0, (whole,)),) if whole else ())


def test_giving_up_leaves_a_file_that_can_be_salvaged(tmp_path: Path) -> None:
    disk = SmallDisk(10**9)
    segments = writer(tmp_path, write=disk.write)
    append(segments, [1])
    disk.size = 0
    with pytest.raises(GiveUpError):
        append(segments, [2])
    found = salvage(*open_segments(tmp_path))
    assert found.messages == (QueueRanges("TopicTest", "broker-a", 0, ((1, 2),)),)


# --- salvage ----------------------------------------------------------------------------------------------------------


def dead_worker(folder: Path, flushes: list[list[int]], worker_id: str = "dead-7") -> Path:
    """An open segment as a killed worker leaves it."""
    segments = writer(folder, worker_id)
    for offsets in flushes:
        append(segments, offsets)
    os.close(segments._fd)  # pyright: ignore[reportPrivateUsage]
    (path,) = open_segments(folder, [worker_id])
    return path


def batch_ends(data: bytes) -> list[int]:
    """Byte positions at which a whole number of batches has been written (and the schema's end first)."""
    source = pa.BufferReader(data)
    reader = pa.ipc.open_stream(source)
    ends = [source.tell()]
    while True:
        try:
            reader.read_next_batch()
        except StopIteration:
            return ends
        ends.append(source.tell())


FLUSHES = [[1, 2], [3], [4, 5, 6]]


def test_cut_at_every_byte_the_prefix_is_exactly_the_whole_batches(tmp_path: Path) -> None:
    path = dead_worker(tmp_path, FLUSHES)
    whole = path.read_bytes()
    ends = batch_ends(whole)
    assert len(ends) == 4
    for length in range(len(whole), -1, -1):
        os.truncate(path, length)
        complete = sum(end <= length for end in ends[1:])
        prefix = complete_prefix(path)
        assert prefix.batches == complete
        assert prefix.rows == sum(len(flush) for flush in FLUSHES[:complete])
        if complete:
            assert prefix.size_bytes == ends[complete]
            (queue,) = prefix.finished.queues()
            assert queue.ranges == ((1, FLUSHES[complete - 1][-1] + 1),)


def test_a_torn_tail_is_cut_off_and_the_rest_sealed(tmp_path: Path) -> None:
    path = dead_worker(tmp_path, FLUSHES)
    whole = path.read_bytes()
    ends = batch_ends(whole)
    for length in [0, 1, *[end + step for end in ends for step in (-1, 0, 1, 9) if end + step <= len(whole)]]:
        path.write_bytes(whole[:length])
        found = salvage(path)
        assert not path.exists()
        complete = sum(end <= length for end in ends[1:])
        expected = [offset for flush in FLUSHES[:complete] for offset in flush]
        assert found.rows == len(expected)
        if not complete:
            assert found.sealed_name is None
            assert not list((tmp_path / "ready").iterdir())
            continue
        assert found.messages == (QueueRanges("TopicTest", "broker-a", 0, ((1, expected[-1] + 1),)),)
        ready = tmp_path / "ready" / path.name
        assert found.bytes == ready.stat().st_size == ends[complete]
        assert ready.read_bytes() == whole[: ends[complete]]
        assert offsets_in(ready) == expected
        ready.unlink()


def test_a_torn_end_mark_is_cut_off(tmp_path: Path) -> None:
    path = dead_worker(tmp_path, [[1]])
    whole = path.read_bytes()
    for length in range(len(END_OF_STREAM) + 1):
        path.write_bytes(whole + END_OF_STREAM[:length])
        found = salvage(path)
        ready = tmp_path / "ready" / path.name
        assert found.rows == 1
        assert ready.read_bytes() == whole + (END_OF_STREAM if length == len(END_OF_STREAM) else b"")
        assert offsets_in(ready) == [1]
        ready.unlink()


@settings(max_examples=40)
@given(junk=st.binary(min_size=1, max_size=200))
def test_junk_behind_the_batches_never_ends_the_salvage(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    path = dead_worker(folder, [[1], [2]])
    path.write_bytes(path.read_bytes() + junk)
    found = salvage(path)
    assert found.rows == 2
    assert offsets_in(folder / "ready" / path.name) == [1, 2]


def test_a_file_of_zeros_or_nonsense_is_removed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    for content in (b"", bytes(5_000), b"hello" * 1_000, b"\xff" * 4_096):
        path = tmp_path / "open" / "dead-7-00000001.arrows"
        path.write_bytes(content)
        assert salvage(path).sealed_name is None
        assert not path.exists()


def test_finished_records_without_rows_are_in_it_too(tmp_path: Path) -> None:
    segments = writer(tmp_path, "dead")
    batch, _ = batch_of([5])
    segments.append(batch, b'[["T","b",1,[[3,9]]],["TopicTest","broker-a",0,[[5,6]]]]', 0)
    found = salvage(*open_segments(tmp_path))
    assert found.messages == (
        QueueRanges("T", "b", 1, ((3, 9),)),
        QueueRanges("TopicTest", "broker-a", 0, ((5, 6),)),
    )


@pytest.mark.parametrize("page", [8, 64, 512, 4096])
def test_zeroed_pages_end_the_prefix_before_the_batch_that_they_are_in(tmp_path: Path, page: int) -> None:
    """A file that was not fsynced when power was lost: its length is there, pages of it are not."""
    path = dead_worker(tmp_path, FLUSHES)
    whole = path.read_bytes()
    ends = batch_ends(whole)
    for start in range(ends[0], len(whole), page):
        damaged = bytearray(whole)
        damaged[start : start + page] = bytes(len(damaged[start : start + page]))
        path.write_bytes(damaged)
        complete = sum(damaged[:end] == whole[:end] for end in ends[1:])
        prefix = complete_prefix(path)
        assert (prefix.size_bytes, prefix.batches) == (ends[complete], complete)
        assert [queue.ranges for queue in prefix.finished.queues()] == [
            ((1, FLUSHES[complete - 1][-1] + 1),) for _ in range(min(complete, 1))
        ]


def test_any_damaged_byte_ends_the_prefix(tmp_path: Path) -> None:
    path = dead_worker(tmp_path, FLUSHES)
    whole = path.read_bytes()
    ends = batch_ends(whole)
    for at in range(ends[0], len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x01
        path.write_bytes(damaged)
        assert complete_prefix(path).batches == sum(end <= at for end in ends[1:])


def test_a_batch_that_no_worker_wrote_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "open" / "w1-00000001.arrows"
    path.parent.mkdir()
    batch, _ = batch_of([5])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, ROWS.schema) as stream:
        stream.write_batch(batch)
    assert complete_prefix(path).batches == 0


def test_a_segment_sealed_in_the_last_moment_is_read_where_it_is(tmp_path: Path) -> None:
    segments = writer(tmp_path, "dead-7")
    append(segments, [1, 2])
    seal(segments)
    path = tmp_path / "open" / "dead-7-00000001.arrows"
    found = salvage(path)
    assert found.sealed_name == path.name
    assert found.messages == (QueueRanges("TopicTest", "broker-a", 0, ((1, 3),)),)
    (tmp_path / "ready" / path.name).unlink()
    taken = salvage(path)
    assert (taken.sealed_name, taken.rows, taken.messages) == (path.name, 0, ())


def test_open_segments_of_some_workers(tmp_path: Path) -> None:
    for worker_id in ("w-1", "w-10", "w-1-2"):
        dead_worker(tmp_path, [[1]], worker_id)
    (tmp_path / "open" / "notes.txt").write_text("not a segment")
    (tmp_path / "open" / "x.arrows").write_text("nor this")
    names = [path.name for path in open_segments(tmp_path, ["w-1", "w-1-2"])]
    assert names == ["w-1-00000001.arrows", "w-1-2-00000001.arrows"]
    assert len(open_segments(tmp_path)) == 3
    assert open_segments(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["open/noseq.arrows", "ready/w-1.arrows", "open/w-1.parquet"])
def test_only_open_segments_are_salvaged(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not an open segment"):
        salvage(tmp_path / name)


# --- offset sets ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 5)), max_size=40))
def test_offset_sets_hold_exactly_what_was_added(spans: list[tuple[int, int, int]]) -> None:
    sets = OffsetSets()
    expected: set[tuple[int, int]] = set()
    for queue_id, start, length in spans:
        sets.add(('a "topic" é', "b", queue_id), start, start + length)
        expected |= {(queue_id, offset) for offset in range(start, start + length)}
    found = {(q.queue_id, offset) for q in sets.queues() for start, end in q.ranges for offset in range(start, end)}
    assert found == expected
    for queue in sets.queues():
        assert all(left[1] < right[0] for left, right in zip(queue.ranges, queue.ranges[1:], strict=False))
    again = OffsetSets()
    again.add_json(sets.to_json(), "test")
    assert again.queues() == sets.queues()
    assert sets.to_json() == json.dumps(sets.queues(), separators=(",", ":")).encode()


def test_the_pause_is_asked_by_name(tmp_path: Path) -> None:
    asked: list[str] = []
    blocker = tmp_path / "open"
    blocker.write_text("a file where the folder should be")

    def unblock(what: str, _error: OSError) -> None:
        asked.append(what)
        blocker.unlink()

    segments = writer(tmp_path, pause=unblock)
    append(segments, [1])
    assert asked == ["opening a segment"]
    assert seal(segments) is not None
