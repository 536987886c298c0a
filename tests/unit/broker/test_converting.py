"""`broker convert`: stores of other shapes get ours, record by record; what is not whole is refused, nothing is deleted."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.converting import convert, records_of, to_convert, used_bytes
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.pop_table import Key
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.admin_headers import TopicName
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.headers import UpdateOffset
from rocketcrew.remoting.pop_headers import PopRequest

T0 = 1_700_000_000_000
OLD_BYTES, NEW_BYTES = 3_000, 5_000
TOPICS = ("A", "B")
NO_INDEX = shutil.ignore_patterns("index")  # 420 MB, sparse only where it was made


def config_of(segment_bytes=NEW_BYTES):
    return BrokerConfig(mapped_file_size_commit_log=segment_bytes, flush="async", message_delay_level="200ms 500ms")


def files_of(folder):
    """Every file but the large index, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "index" not in path.relative_to(folder).parts
    }


def contents(make, folder):
    """All messages of the topics but their positions, and the group's offsets."""
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=NEW_BYTES)
    read, found = broker.core.state.store.message_in, {}
    for topic in TOPICS:
        ends = (broker.core.state.store.min_offset(topic, 0), broker.core.state.store.max_offset(topic, 0))
        messages = [read(topic, 0, offset) for offset in range(*ends)]
        found[topic] = [(m.queue_offset, m.body, m.raw_properties, m.store_timestamp_ms) for m in messages]
    offsets = [broker.core.state.offsets.query(topic, "g", 0) for topic in TOPICS]
    aside = storage.aside()
    broker.core.stop()
    storage.close()
    return found, offsets, aside


@pytest.fixture
def store(make, tmp_path):
    """A store of several segments of another size, with a topic that was deleted and made again."""
    folder = tmp_path / "store"
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=OLD_BYTES)
    for number in range(60):
        key = {"KEYS": f"k{number}"}
        broker.send(TOPICS[number % 2], b"%d" % number * (number % 40 + 1), tag="t", properties=key)
        if number == 30:
            broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("B"))
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "A", 0, 7))
    broker.core.stop()
    storage.close()
    return folder


def shape_of_before(folder):
    """As versions before wrote it: a segment ends with its last record, and the next one has the position after it."""
    storage = DiskStorage(folder)
    log = storage.open("commitlog", OLD_BYTES, buffered=False)
    removed_at = json.loads(storage.load("config/removedTopics.json"))["B"]
    segments, position, moved = [(0, bytearray())], 0, None
    for at, record in records_of(log):
        if at >= removed_at and moved is None:
            moved = position
        content = segments[-1][1]
        if content and len(content) + len(record) > OLD_BYTES:
            segments.append((position, content := bytearray()))
        content += record[:28] + position.to_bytes(8, "big") + record[36:]
        position += len(record)
    storage.replace("config/removedTopics.json", json.dumps({"B": moved}).encode(), sync=True)
    storage.close()
    for name in ("consumequeue", "commitlog", "index"):
        shutil.rmtree(folder / name)
    (folder / "config" / "checkpoint.json").unlink()
    (folder / "commitlog").mkdir()
    for start, content in segments:
        (folder / "commitlog" / f"{start:020d}").write_bytes(content)
    assert len(segments) > 3


@pytest.mark.parametrize("old", ["other size", "before", "retention"])
def test_a_store_is_the_same_after_it_was_converted(make, store, old):
    if old == "before":
        shape_of_before(store)
    if old == "retention":
        storage = DiskStorage(store)
        broker = make(storage, flush="async", mapped_file_size_commit_log=OLD_BYTES)
        log = storage.open("commitlog", OLD_BYTES, buffered=False)
        broker.core.state.store._keep_from(log.segment_starts()[2])
        broker.core.stop()
        storage.close()
    copy = store.with_name("copy")
    shutil.copytree(store, copy, ignore=NO_INDEX)
    wanted = contents(make, copy)
    before = files_of(store)
    would = to_convert(store, config_of())
    assert files_of(store) == before, "a dry run changes nothing"
    done = convert(store, config_of(), T0)
    assert (would, to_convert(store, config_of())) == (done.records, None)
    segments = sorted((store / "commitlog").iterdir())
    assert {path.stat().st_size for path in segments} == {NEW_BYTES}
    assert [int(path.name) % NEW_BYTES for path in segments] == [0] * len(segments)
    assert (done.segments, done.before) == (len(segments), store.with_name("store.before-conversion"))
    assert contents(make, store) == wanted
    assert contents(make, done.before) == wanted
    assert [len(messages) for messages in wanted[0].values()][1] == 15
    again = convert(store, config_of(), T0)
    assert again.before is None, "nothing is left to do"
    [index] = (store / "index").iterdir()
    with index.open("rb") as opened:
        next_entry = struct.unpack(">qqqqii", opened.read(40))[-1]
    assert next_entry == 2 * done.records + 1, "of keys and unique keys: a genuine broker makes none anew"


def test_a_file_that_goes_while_the_room_is_counted_is_passed_over(tmp_path):
    kept, gone = tmp_path / "checkpoint", tmp_path / "checkpoint.7.tmp"
    kept.write_bytes(b"x" * 10_000)
    assert used_bytes([tmp_path, gone, kept]) == kept.stat().st_blocks * 512


def test_a_dry_run_leaves_no_lock_file_where_there_was_none(store):
    (store / "lock").unlink()
    before = files_of(store)
    assert to_convert(store, config_of())
    assert (files_of(store), (store / "lock").exists()) == (before, False)


@pytest.mark.parametrize("moment", ["before the copy was whole", "between the renames"])
def test_a_kill_during_a_conversion_costs_nothing(make, store, moment):
    copy = store.with_name("copy")
    shutil.copytree(store, copy, ignore=NO_INDEX)
    wanted = contents(make, copy)
    if moment == "between the renames":
        done = convert(store, config_of(), T0)
        store.rename(store.with_name("store.converting"))
        (store.with_name("store.converting") / "converted").write_text(f"{done.records}\n")
    else:
        half = store.with_name("store.converting")
        shutil.copytree(store, half, ignore=NO_INDEX)
        shutil.rmtree(half / "config")
    done = convert(store, config_of(), T0)
    assert contents(make, store) == wanted
    assert contents(make, store.with_name("store.before-conversion")) == wanted


def test_no_old_position_names_another_message(make, tmp_path):
    folder = tmp_path / "store"
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=4_096)
    broker.send(body=b"x" * 100)
    size = len(broker.core.state.store.record_at(0))
    for _ in range(60):  # of 256 bytes each, so that the positions of both logs could be the same
        broker.send("U", b"x" * (356 - size))
    (in_hand,) = broker.read()
    broker.core.stop()
    end = storage.open("commitlog", 4_096, buffered=False).end
    storage.close()
    convert(folder, config_of(8_192), T0)
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=8_192)
    broker.heartbeat()
    assert broker.core.state.store.message_in("T", 0, 0).physical_offset >= end
    assert all(broker.core.state.store.message_at(position) is None for position in range(in_hand.physical_offset, end))
    assert broker.send_back(in_hand).code != 0
    broker.later(1_000)
    assert broker.read("%RETRY%g") == []
    broker.core.stop()
    storage.close()


def test_of_a_genuine_store_what_was_delivered_stays_so_and_what_waits_is_kept(make, tmp_path):
    folder = tmp_path / "store"
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=OLD_BYTES)
    for number, seconds in enumerate((10, 30, 60, 90)):
        broker.send(body=b"%d" % number, properties={"TIMER_DELAY_SEC": str(seconds)})
    half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U"}
    broker.send("U", properties=half, sys_flag=4)
    wheel_ms = broker.now_ms + 40_000
    broker.core.stop()
    storage.close()
    (folder / "config" / "timercheck").write_bytes(wheel_ms.to_bytes(8, "big") + bytes(48))
    assert not (folder / "config" / "timers.json").exists()
    convert(folder, config_of(), T0)
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=NEW_BYTES)
    assert len(broker.core.state.timers) == 2
    assert len(broker.core.state.transactions) == 1
    broker.later(100_000)
    assert [message.body for message in broker.read()] == [b"2", b"3"]
    broker.core.stop()
    storage.close()


def test_what_was_popped_is_in_flight_in_the_new_store_too(make, tmp_path):
    folder = tmp_path / "store"
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=OLD_BYTES)
    for number in range(3):
        broker.send(body=b"%d" % number)
    broker.core.state.groups.put(SubscriptionGroupConfig("g"))
    header = PopRequest("g", "T", 0, 2, 60_000, 0, broker.now_ms, 0, "TAG", "*")
    assert broker.call(RequestCode.POP_MESSAGE, header).code == 0
    storage.abandon()
    convert(folder, config_of(), T0)
    storage = DiskStorage(folder)
    broker = make(storage, flush="async", mapped_file_size_commit_log=NEW_BYTES)
    table = broker.core.state.pops.table
    assert (len(table), table.next_offset(Key("T", "g", 0))) == (2, 2)
    broker.core.stop()
    storage.close()


class Killed(BaseException):
    """Ends a conversion as a kill does."""


class Watched(type(Path())):
    """A folder that calls `before_rename` with the number of each rename, 1 for the first."""

    renames = 0

    def __new__(cls, *args):
        return super().__new__(cls, *args)

    def rename(self, target):
        Watched.renames += 1
        Watched.before_rename(Watched.renames)
        return super().rename(target)

    @classmethod
    def of(cls, folder, before_rename):
        cls.renames, cls.before_rename = 0, staticmethod(before_rename)
        return cls(folder)


def refused(action, *args):
    """The message of the error that it raises."""
    with pytest.raises(RocketcrewError) as error:
        action(*args)
    return str(error.value)


def test_nobody_else_has_the_store_until_the_new_one_has_its_name(make, store):
    copy, fresh = store.with_name("copy"), store.with_name("store.converting")
    shutil.copytree(store, copy, ignore=NO_INDEX)
    wanted, answers = contents(make, copy), []

    def others(number):
        answers.append((number, refused(DiskStorage, store), refused(convert, store, config_of(), T0)))
        assert (fresh / "converted").exists(), "another conversion took the copy of this one away"

    convert(Watched.of(store, others), config_of(), T0)
    assert [number for number, *_ in answers] == [1, 2]
    assert ["in use" in answer for _, *pair in answers for answer in pair] == [True, True, False, True]
    assert "run it again" in answers[1][1]
    assert contents(make, store) == wanted
    storage = DiskStorage(store.with_name("store.before-conversion"))
    assert storage.kept_all
    assert not (store.with_name("store.before-conversion") / "abort").exists(), "it was left in order"
    storage.abandon()


def test_after_a_kill_between_the_renames_no_empty_store_takes_the_place(make, store):
    copy = store.with_name("copy")
    shutil.copytree(store, copy, ignore=NO_INDEX)
    wanted = contents(make, copy)

    def kill(number):
        if number == 2:
            raise Killed

    with pytest.raises(Killed):
        convert(Watched.of(store, kill), config_of(), T0)
    assert "run it again" in refused(DiskStorage, store)
    assert not store.exists()
    store.mkdir()
    assert "run it again" in refused(DiskStorage, store)
    assert f"Move {store} away" in refused(convert, store, config_of(), T0)
    store.rmdir()
    shutil.copytree(copy, store, ignore=NO_INDEX)  # somebody put another store there
    kept = sorted(path.name for path in store.parent.iterdir())
    said = refused(convert, store, config_of(), T0)
    assert f"Move {store} away and run `rocketcrew broker convert` again" in said
    assert sorted(path.name for path in store.parent.iterdir()) == kept
    shutil.rmtree(store)
    convert(store, config_of(), T0)
    assert contents(make, store) == wanted


@pytest.mark.parametrize("has_new_one", [False, True])
def test_who_waited_for_the_lock_of_what_was_put_away_does_not_use_the_new_one(make, store, has_new_one):
    class Late(DiskStorage):
        def _take_lock(self):
            store.rename(store.with_name("store.before-conversion"))
            if has_new_one:
                DiskStorage(store).abandon()
            super()._take_lock()

    assert "try again" in refused(Late, store)


def test_a_store_with_damage_is_refused_and_stays(make, store):
    segment = sorted((store / "commitlog").iterdir())[1]
    content = bytearray(segment.read_bytes())
    content[300:340] = b"\xff" * 40
    segment.write_bytes(content)
    (store / "config" / "checkpoint.json").unlink()
    with pytest.raises(UsageError, match="has lost something"):
        convert(store, config_of(), T0)
    assert segment.read_bytes() == bytes(content)
    assert not store.with_name("store.converting").exists()


def test_what_is_no_store_and_what_does_not_fit_is_refused(store, tmp_path):
    with pytest.raises(UsageError, match="nothing to convert"):
        convert(tmp_path / "nowhere", config_of(), T0)
    with pytest.raises(UsageError, match="does not fit into a segment"):
        convert(store, config_of(150), T0)
    (store / "consumequeue_r").mkdir()
    (store / "consumequeue_r" / "CURRENT").write_text("x")
    with pytest.raises(UsageError, match="RocksDB"):
        convert(store, config_of(), T0)
