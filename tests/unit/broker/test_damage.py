"""Damage: nothing that cannot be read is removed, everything that can be read is served, positions and offsets stay."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketcrew.broker.checking import check
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.message_store import (
    GetStatus,
    MessageStore,
    QueueRebuilding,
    StoreBounds,
)
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.broker.topic_table import TopicTable
from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.remoting.stored import StoredMessage, decode_message, decode_messages, encode_message

T0 = 1_700_000_000_000
BLANK_MAGIC = b"\xcb\xd4\x31\x94"
SEGMENT_BYTES = 4_096
BOUNDS = StoreBounds(32, 262_144, 800, SEGMENT_BYTES)


def opened(storage, topics=("T", "U"), bounds=BOUNDS):
    store = MessageStore(storage, bounds, "127.0.0.1", 10911)
    store.recover(lambda topic: topic in topics, message_tags_code)
    return store


def put(store, body=b"x", topic="T", queue_id=0, now_ms=T0):
    return store.put(now_ms, StoredMessage(topic, body, queue_id=queue_id), 0)


def read(store, topic="T", queue_id=0):
    """Offset -> body of all messages of a queue that can be read."""
    found = {}
    at = store.min_offset(topic, queue_id)
    while True:
        fetched = store.get(topic, queue_id, at, 32)
        if fetched.status not in {GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE}:
            return found
        if fetched.count:
            found |= {message.queue_offset: message.body for message in decode_messages(fetched.body)}
        at = fetched.next_offset


def genuine_store(folder: Path, count: int, *, clean: bool) -> list[bytes]:
    """What a genuine 5.x broker leaves: segments of one size, each ended by a BLANK, zeros after the last record."""
    bodies = [b"%05d" % number * (1 + number % 40) for number in range(count)]
    segments: list[bytearray] = [bytearray()]
    entries: dict[int, bytes] = {0: b"", 1: b""}
    for number, body in enumerate(bodies):
        position = (len(segments) - 1) * SEGMENT_BYTES + len(segments[-1])
        message = StoredMessage("T", body, queue_id=number % 2, queue_offset=number // 2, store_timestamp_ms=T0)
        message.physical_offset = position
        record = encode_message(message)
        room = SEGMENT_BYTES - len(segments[-1])
        if len(record) + 8 > room:
            segments[-1] += struct.pack(">i", room) + BLANK_MAGIC + T0.to_bytes(8, "big") * (room >= 16)
            segments.append(bytearray())
            message.physical_offset = (len(segments) - 1) * SEGMENT_BYTES
            record = encode_message(message)
        segments[-1] += record
        entries[number % 2] += struct.pack(">qiq", message.physical_offset, len(record), 0)
    segments.append(bytearray())  # made in advance
    (folder / "commitlog").mkdir(parents=True)
    for number, segment in enumerate(segments):
        path = folder / "commitlog" / f"{number * SEGMENT_BYTES:020d}"
        path.write_bytes(bytes(segment).ljust(SEGMENT_BYTES, b"\0"))
    for queue_id, content in entries.items():
        path = folder / "consumequeue" / "T" / str(queue_id) / f"{0:020d}"
        path.parent.mkdir(parents=True)
        path.write_bytes(content.ljust(20 * 30_000, b"\0"))
    (folder / "checkpoint").write_bytes(bytes(4_096))
    (folder / "rocksdbstore").mkdir()  # 5.5 always makes it, for its indexes
    for name in ("CURRENT", "MANIFEST-000004"):
        (folder / "rocksdbstore" / name).write_text("MANIFEST-000004")
    if not clean:
        (folder / "abort").touch()
    return bodies


@pytest.mark.parametrize("clean", [True, False])
def test_a_genuine_store_of_several_segments_is_read_whole(tmp_path, clean):
    bodies = genuine_store(tmp_path, 200, clean=clean)
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for queue_id in (0, 1):
        assert list(read(store, queue_id=queue_id).values()) == bodies[queue_id::2]
    assert (store.found.damaged_ranges, storage.aside()) == (0, [])
    assert put(store, b"ours").queue_offset == 100
    storage.abandon()
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    assert list(read(store).values()) == [*bodies[::2], b"ours"]
    storage.close()


def test_a_genuine_store_goes_on_behind_a_blank_that_ends_it(tmp_path):
    """Its last segment is full, and none was made in advance; our segments may be larger than its."""
    bodies = genuine_store(tmp_path, 200, clean=True)
    segments = sorted((tmp_path / "commitlog").iterdir())
    segments[-1].unlink()
    segments[-2].unlink()
    for _ in range(2):
        storage = DiskStorage(tmp_path)
        store = opened(storage, bounds=StoreBounds(32, 262_144, 800, 1 << 20))
        put(store, b"ours")
        storage.abandon()
    storage = DiskStorage(tmp_path)
    found = list(read(opened(storage)).values())
    kept = len(found) - 2
    assert found == [*bodies[::2][:kept], b"ours", b"ours"]
    assert kept > 80
    storage.close()


@pytest.mark.parametrize("checkpoint", [b"", None, b'{"position": 0}'])
def test_a_hundred_zeroed_bytes_cost_the_records_that_they_hit(tmp_path, checkpoint):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(400):
        put(store, b"%03d" % number * 9, queue_id=number % 4)
    positions = [store.queue("T", 0).entry(offset)[0] for offset in range(100)]
    store.checkpoint_now()
    end = store.log_end
    storage.close()
    damage_at = positions[30] + 40
    segments = sorted((tmp_path / "commitlog").iterdir())
    segment = max((path for path in segments if int(path.name) <= damage_at), key=lambda path: int(path.name))
    with open(segment, "r+b") as file:
        file.seek(damage_at - int(segment.name))
        file.write(bytes(100))
    damaged = {path.name: path.read_bytes() for path in segments}
    if checkpoint is None:
        (tmp_path / "config" / "checkpoint.json").unlink()
    else:
        (tmp_path / "config" / "checkpoint.json").write_bytes(checkpoint)
    for _ in range(2):
        storage = DiskStorage(tmp_path)
        store = opened(storage)
        assert store.log_end == end
        assert {path.name: path.read_bytes() for path in segments} == damaged, "the log is as it was"
        found = [read(store, queue_id=queue_id) for queue_id in range(4)]
        assert sum(map(len, found)) == 398
        assert sorted(set(range(100)) - set(found[0])) == [30]
        assert all(
            body == b"%03d" % (4 * offset + queue) * 9 for queue in range(4) for offset, body in found[queue].items()
        )
        assert (store.found.damaged_ranges, store.found.missing_offsets) == (1, 2)
        (name,) = storage.aside()
        position, length = map(int, name.split("-"))
        assert position == positions[30]
        at = position - int(segment.name)
        assert (tmp_path / "damaged" / name).read_bytes() == damaged[segment.name][at : at + length]
        assert store.found.events()[0] == (
            "store.damaged",
            {"ranges": 1, "bytes": length, "missing_offsets": 2, "copied_to": "damaged/"},
        )
        storage.abandon()


def test_a_segment_that_is_gone_costs_its_own_records(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(300):
        put(store, b"%03d" % number)
    storage.abandon()
    segments = sorted((tmp_path / "commitlog").iterdir())
    gone = segments[2].read_bytes().partition(BLANK_MAGIC)[0][:-4]
    segments[2].unlink()
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    found = read(store)
    assert len(found) == 300 - len(decode_messages(gone))
    assert all(body == b"%03d" % offset for offset, body in found.items())
    assert put(store, b"next").queue_offset == 300
    storage.close()


def test_damage_at_the_end_is_kept_and_the_log_goes_on_behind_it():
    storage = MemoryStorage()
    store = opened(storage)
    put(store, b"whole")
    hurt = put(store, b"hurt" * 50)
    end = store.log_end
    storage.open("commitlog", SEGMENT_BYTES, buffered=False).overwrite(hurt.physical_offset + 100, b"\xff\xfe")
    storage.crash()
    store = opened(storage)
    assert (store.log_end, store.found.torn_bytes) == (end, 0)
    assert storage.aside() == [f"{hurt.physical_offset}-{end - hurt.physical_offset}"]
    assert put(store, b"next").physical_offset == end
    storage.crash()
    assert list(read(opened(storage)).values()) == [b"whole", b"next"]


@pytest.mark.parametrize("how", ["a larger size", "zeros"])
@pytest.mark.parametrize("behind", [b"", b"torn"])
def test_a_last_record_that_is_damaged_below_the_checkpoint_is_not_cut_off(how, behind):
    """The log went on in its place, below the checkpoint, and the next start did not look there: what was stored was lost."""
    storage = MemoryStorage()
    store = opened(storage)
    put(store, b"whole", "U")
    hurt = put(store, b"hurt" * 50)
    end = store.log_end
    store.checkpoint_now()
    log = storage.open("commitlog", SEGMENT_BYTES, buffered=False)
    if how == "a larger size":
        log.overwrite(hurt.physical_offset, bytes(2) + b"\x03")
    else:
        log.overwrite(hurt.physical_offset, bytes(end - hurt.physical_offset))
    if behind:
        torn = encode_message(StoredMessage("U", b"torn" * 30, physical_offset=end, queue_offset=1))
        storage.crash(torn[:120])
    for number in range(3):
        store = opened(storage)
        assert store.log_end >= end
        assert any(name.startswith(f"{hurt.physical_offset}-") for name in storage.aside())
        assert put(store, b"%d" % number, "U").queue_offset == number + 1
        assert put(store, b"%d" % number).queue_offset == number + 1
        storage.crash()
        assert list(read(opened(storage), "U").values()) == [b"whole", *(b"%d" % at for at in range(number + 1))]
        assert list(read(opened(storage)).values()) == [b"%d" % at for at in range(number + 1)]


def test_a_torn_record_is_no_damage():
    storage = MemoryStorage()
    store = opened(storage)
    put(store, b"whole")
    end = store.log_end
    record = encode_message(StoredMessage("T", b"torn" * 30, physical_offset=end, queue_offset=1))
    for keep in (1, 3, 4, 7, 8, 35, 36, 60, 95, 120, len(record) - 1):
        storage.crash(record[:keep])
        store = opened(storage)
        seen = keep if record[:keep].strip(b"\0") else 0  # zeros alone were never written, for all one knows
        assert (store.log_end, store.found.torn_bytes, storage.aside()) == (end, seen, [])


def test_a_record_that_a_genuine_broker_had_written_half_is_no_damage(tmp_path):
    bodies = genuine_store(tmp_path, 3, clean=False)
    segment = tmp_path / "commitlog" / f"{0:020d}"
    content = segment.read_bytes().rstrip(b"\0")
    content = content.ljust(-(-len(content) // 1) + 2, b"\0")  # the last record has no properties: two bytes of zeros
    torn = encode_message(StoredMessage("T", b"torn" * 30, physical_offset=len(content), queue_offset=2))[:130]
    segment.write_bytes((content + torn).ljust(SEGMENT_BYTES, b"\0"))
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    assert list(read(store).values()) == bodies[::2]
    assert (store.found.damaged_ranges, store.log_end) == (0, len(content))
    storage.close()


def test_damage_before_the_last_records_does_not_hide_them_when_another_queue_is_made_anew():
    """The log is read once more for one queue; the others have all their entries by then."""
    storage = MemoryStorage()
    store = opened(storage)
    for number in range(8):
        put(store, b"%d" % number, queue_id=number % 2)
    store.checkpoint_now()
    hurt = put(store, b"8")
    size_wrong = put(store, b"9")
    put(store, b"10", queue_id=1)
    end = store.log_end
    log = storage.open("commitlog", SEGMENT_BYTES, buffered=False)
    log.overwrite(hurt.physical_offset + 20, b"\x40")
    log.overwrite(size_wrong.physical_offset, b"\x1c")
    storage.crash()
    store = opened(storage)
    assert store.log_end == end
    assert list(read(store, queue_id=1).values()) == [b"1", b"3", b"5", b"7", b"10"]
    assert [read(store)[offset] for offset in range(4)] == [b"0", b"2", b"4", b"6"]


def test_a_forged_record_in_a_body_is_not_taken_for_one():
    """After damage only a record that knows its own position counts; a body may hold a copy of another one."""
    storage = MemoryStorage()
    store = opened(storage)
    inner = encode_message(StoredMessage("T", b"inner", physical_offset=12, queue_offset=7))
    hurt = put(store, inner * 3)
    put(store, b"next")
    storage.open("commitlog", SEGMENT_BYTES, buffered=False).overwrite(hurt.physical_offset, bytes(20))
    storage.crash()
    assert read(opened(storage)) == {1: b"next"}


def test_a_queue_offset_that_no_damage_explains_makes_no_fillers():
    """The CRC covers the body alone: a flipped bit in the head may name any offset."""
    storage = MemoryStorage()
    store = opened(storage)
    put(store, b"0")
    hurt = put(store, b"1")
    put(store, b"2")
    storage.open("commitlog", SEGMENT_BYTES, buffered=False).overwrite(hurt.physical_offset + 20, b"\x40")
    storage.crash()
    store = opened(storage)
    assert store.max_offset("T", 0) <= 3
    assert read(store) in ({0: b"0", 2: b"2"}, {0: b"0"})
    assert len(storage.aside()) == 1 + (store.max_offset("T", 0) < 3)


@pytest.mark.parametrize("kept", ["checkpoint", "nothing"])
def test_a_removed_consumequeue_hides_nothing(tmp_path, kept):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(300):
        put(store, b"%03d" % number, queue_id=number % 3)
    store.checkpoint_now()
    storage.close()
    shutil.rmtree(tmp_path / "consumequeue")
    if kept == "nothing":
        shutil.rmtree(tmp_path / "config")
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    assert sum(len(read(store, queue_id=queue_id)) for queue_id in range(3)) == 300
    assert storage.aside() == []
    storage.close()


def test_random_bytes_in_a_consumequeue_are_noticed_when_they_are_read(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(600):
        put(store, b"%03d" % number, queue_id=number % 2)
    store.checkpoint_now()
    storage.close()
    with open(tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}", "r+b") as file:
        file.seek(1_000)
        file.write(random.Random(3).randbytes(200))
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    with pytest.raises(QueueRebuilding):
        read(store)
    with pytest.raises(QueueRebuilding):
        put(store)
    assert len(read(store, queue_id=1)) == 300, "the others are served meanwhile"
    while store.is_rebuilding:
        store.rebuild_some()
    assert read(store) == {offset: b"%03d" % (2 * offset) for offset in range(300)}
    assert put(store, b"next").queue_offset == 300
    storage.close()


def test_damage_before_the_checkpoint_is_noticed_when_it_is_read(tmp_path):
    """A start does not read what the checkpoint covers; a pull that comes to it makes the queue anew and goes on."""
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(60):
        put(store, b"%03d" % number, queue_id=number % 2)
    hurt, size, _ = store.queue("T", 0).entry(10)
    store.checkpoint_now()
    storage.close()
    segment = max(
        (path for path in (tmp_path / "commitlog").iterdir() if int(path.name) <= hurt), key=lambda path: path.name
    )
    content = bytearray(segment.read_bytes())
    at = hurt - int(segment.name)
    segment.write_bytes(bytes(content[:at]) + bytes(30) + bytes(content[at + 30 :]))
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    with pytest.raises(QueueRebuilding):
        read(store)
    while store.is_rebuilding:
        store.rebuild_some()
    assert read(store) == {offset: b"%03d" % (2 * offset) for offset in range(30) if offset != 10}
    assert storage.aside() == [f"{hurt}-{size}"]
    assert [event for event, _ in store.events] == ["store.queue_rebuilt", "store.damaged"]
    assert (tmp_path / "damaged" / f"{hurt}-{size}").read_bytes()[:30] == bytes(30)
    storage.close()


def test_entries_of_another_queue_are_noticed():
    storage = MemoryStorage()
    store = opened(storage)
    for number in range(20):
        put(store, b"%02d" % number, queue_id=number % 2, topic="TU"[number // 2 % 2])
    mine = storage.open("consumequeue/T/0", 1, buffered=True)
    other = storage.open("consumequeue/U/0", 1, buffered=True)
    mine.overwrite(20, other.read(20, 20))
    with pytest.raises(QueueRebuilding):
        store.get("T", 0, 0, 32)
    store.rebuild_some()
    assert len(read(store)) == 5


def test_retention_does_not_take_damage_for_age(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(300):
        put(store, b"%03d" % number)
    storage.abandon()
    segment = sorted((tmp_path / "commitlog").iterdir())[3]
    with open(segment, "r+b") as file:
        file.write(bytes(100))
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    store.drop_older_than(T0 - 1)
    assert store.log_start == 0
    storage.close()


def test_a_log_of_another_version_is_refused_and_untouched(tmp_path):
    bodies = genuine_store(tmp_path, 20, clean=True)
    assert bodies
    segment = tmp_path / "commitlog" / f"{0:020d}"
    content = segment.read_bytes().replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xaf")
    segment.write_bytes(content)
    storage = DiskStorage(tmp_path)
    with pytest.raises(UsageError, match="Nothing was changed"):
        opened(storage)
    storage.abandon()
    assert segment.read_bytes() == content


def test_a_check_finds_what_is_wrong_and_changes_nothing(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(100):
        put(store, b"%03d" % number, queue_id=number % 2)
    hurt = store.queue("T", 0).entry(20)[0]
    store.checkpoint_now()
    assert check(storage).is_fine
    put(store, b"after the checkpoint")
    storage.abandon()
    storage = DiskStorage(tmp_path)
    report = check(storage)
    assert (report.is_fine, report.records, report.queues) == (True, 101, 2)
    storage.abandon()
    with open(max(path for path in (tmp_path / "commitlog").iterdir() if int(path.name) <= hurt), "r+b") as file:
        file.seek(hurt - int(Path(file.name).name) + 60)
        file.write(b"damage" * 9)
    with open(tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}", "r+b") as file:
        file.seek(200)
        file.write(bytes(40))
        file.seek(439)
        file.write(b"\x01")  # in a tags code
    (tmp_path / "config" / "topics.json").write_bytes(b"{")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    storage = DiskStorage(tmp_path)
    report = check(storage)
    storage.abandon()
    assert not report.is_fine
    assert [position for position, _ in report.damaged] == [hurt]
    assert (report.wrong_entries, set(report.tables)) == (3, {"config/topics.json"})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"} == before


@pytest.mark.parametrize("in_table", [False, True])
def test_a_check_takes_the_checkpoint_and_the_deletions_that_a_start_takes(tmp_path, in_table):
    """A kill may come between the two renames that replace a table, or before the table of deletions is written at all."""
    storage = DiskStorage(tmp_path, has_thread=False)
    store = opened(storage)
    for number in range(3):
        put(store, b"of an earlier life %d" % number)
    store.remove_topic("T")
    if in_table:
        store.removed.fold()
    put(store, b"before the checkpoint")
    store.checkpoint_now()
    put(store, b"deleted last", topic="V")
    store.remove_topic("V")
    if in_table:
        store.removed.fold()
    put(store, b"after the checkpoint")
    store.checkpoint_now()
    put(store, b"entry lost in the kill")
    storage.abandon()
    for name in ("checkpoint.json", "removedTopics.json") if in_table else ("checkpoint.json",):
        path = tmp_path / "config" / name
        assert path.with_suffix(".json.bak").exists()
        path.unlink()
    storage = DiskStorage(tmp_path)
    report = check(storage)
    storage.abandon()
    assert (report.first_wrong, report.records) == ([], 7)


def test_a_check_knows_deletions_that_only_the_journal_has(tmp_path):
    storage = DiskStorage(tmp_path)
    store = opened(storage)
    for number in range(3):
        put(store, b"of an earlier life %d" % number)
    end = store.log_end
    for queue_id in store.queue_ids("T"):
        storage.remove(f"consumequeue/T/{queue_id}")
    del store._queues["T", 0]
    put(store, b"of this life")
    store.checkpoint_now()
    assert not check(storage).is_fine
    line = TopicTable([]).journal_line("T", end)
    storage.open("config/topics.journal", 1 << 20, buffered=False).append(line)
    assert check(storage).is_fine
    storage.close()


# A record, a byte of it, and what is written from there on. Queue ids and queue offsets are hit often: no CRC covers them.
_byte = st.one_of(st.integers(0, 119), st.sampled_from((15, *range(20, 28), 27, 27, 27)))
_data = st.one_of(st.binary(min_size=1, max_size=120), st.integers(0, 45).map(lambda number: bytes([number])))
_damage = st.lists(st.tuples(st.integers(0, 119), _byte, _data), min_size=1, max_size=4)


def claimed(content: bytes, start: int) -> tuple[str, int, int] | None:
    """Topic, queue and queue offset that the record at `start` names; None when no record can be read there."""
    end = start + int.from_bytes(content[start : start + 4], "big")
    try:
        message = decode_message(content, start, min(end, len(content)))
    except ProtocolError:
        return None
    return (message.topic, message.queue_id, message.queue_offset) if message.physical_offset == start else None


@settings(max_examples=400, derandomize=True, deadline=None)
@given(_damage, st.booleans())
@example([(0, 92, b"\0"), (6, 0, b"\1")], False)  # both neighbours of a record are lost, one of them without a word
@example([(114, 92, b"\0")], False)  # the last record of a queue goes on from one whose topic is wrong
@example([(30, 0, bytes(120)), (60, 27, b"\x18")], False)  # a wrong offset that damage elsewhere would explain
@example([(15, 15, b"\x01")], False)  # two records claim one offset
@example([(111, 12, b"\x01"), (114, 12, b"\x01")], False)  # two records claim a queue that is none
@example([(8, 26, b"\x01"), (11, 26, b"\x01")], False)  # two wrong offsets agree, but all that follow agree on others
def test_whatever_is_damaged_the_rest_is_read(damage, checkpointed):
    """Each record whose bytes are whole is read at its offset.

    One thing excuses it: no CRC covers a head, so a record with a wrong head may claim just that place, and be believed.
    Then the whole record is in `damaged/`, and counted.
    """
    storage = MemoryStorage()
    store = opened(storage)
    spans = []
    for number in range(120):
        message = put(store, b"%03d" % number * (1 + number % 7), queue_id=number % 3)
        spans.append((message.physical_offset, store.log_end, message.body))
    if checkpointed:
        store.checkpoint_now()
    log = storage.open("commitlog", SEGMENT_BYTES, buffered=False)
    before = log.read(0, log.end)
    for number, byte, data in damage:
        log.overwrite(min(spans[number][0] + byte, log.end - len(data)), data)
    after = log.read(0, log.end)
    storage.crash()
    for _ in range(2):  # also as the generation before
        storage.replace("config/checkpoint.json", b"")
    store = opened(storage)
    assert log.read(0, log.end)[: len(after)] == after[: log.end]
    queues = [read(store, queue_id=queue_id) for queue_id in range(3)]
    aside = [(int(at), int(at) + int(length)) for at, length in (name.split("-") for name in storage.aside())]
    wrong = {
        claim
        for number, (start, _, _) in enumerate(spans)
        if (claim := claimed(after, start)) is not None and claim != ("T", number % 3, number // 3)
    }
    for number, (start, end, body) in enumerate(spans):
        queue_id, offset = number % 3, number // 3
        if before[start:end] == after[start:end] and queues[queue_id].get(offset) != body:
            assert ("T", queue_id, offset) in wrong
            assert any(begin <= start and end <= until for begin, until in aside)
            assert store.found.damaged_ranges == len(aside)
