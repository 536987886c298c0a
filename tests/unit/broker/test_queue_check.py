"""A tags code that is wrong hides a message from pulls by tag until somebody looks at the record: reads notice half of all
flipped bits, and the look at all records the others."""

from __future__ import annotations

import pytest

from rocketcrew.broker.log_scan import CHUNK_BYTES
from rocketcrew.broker.queue_check import INTERVAL_MS, REST_STEPS, STEP_BYTES
from rocketcrew.broker.storage import MemoryFile, MemoryStorage, StorageError
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.stored import decode_messages

CODE_AT, ENTRY_BYTES = 12, 20  # in an entry, whose last eight bytes are the code


def flip(storage, offset, bit, queue="consumequeue/T/0"):
    """Bit 0 is the lowest one of the code."""
    file = storage.open(queue, 1, buffered=True)
    at = offset * ENTRY_BYTES + CODE_AT + 7 - bit // 8
    file.overwrite(at, bytes([file.read(at, 1)[0] ^ 1 << bit % 8]))


def got(broker, tags="a"):
    """Bodies of the first pull."""
    answer = broker.pull(tags=tags)
    return [message.body for message in decode_messages(answer.body)] if answer.code == 0 else answer.code


def rounds(broker, count):
    for _ in range(count):
        broker.later(INTERVAL_MS)


@pytest.mark.parametrize("bit", range(64))
def test_each_bit_of_a_tags_code_is_noticed(broker, bit):
    for number in range(3):
        broker.send(body=b"%d" % number, tag="a")
    flip(broker.storage, 1, bit)
    is_noticed_by_the_read = got(broker) == ResponseCode.SYSTEM_BUSY
    assert is_noticed_by_the_read == (bit > 30)
    rounds(broker, 3)
    assert got(broker) == [b"0", b"1", b"2"]
    assert broker.core.state.store.rebuilt_queues == 1


def test_a_store_that_is_whole_is_left_alone(make):
    """Whatever it holds: each code is what is made of its record."""
    broker = make(transaction_timeout_ms=1_000, transaction_check_interval_ms=1_000, transaction_checks_max=1)
    half = {"TRAN_MSG": "true", "PGROUP": "pg"}
    for tag in (None, "a", "ä" * 200, "a || b"):
        broker.send(tag=tag)
        broker.send(tag=tag, properties={"DELAY": "2"})
        broker.send(tag=tag, properties={"TIMER_DELAY_MS": "1500"})
        broker.send(tag=tag, properties=half, sys_flag=4)
    broker.send(
        body=encode_batch((0, b"%d" % number, b"TAGS\x01b\x02") for number in range(3)),
        code=RequestCode.SEND_BATCH_MESSAGE,
    )
    broker.heartbeat()
    broker.send_back(broker.read()[1])
    rounds(broker, 20)
    store = broker.core.state.store
    assert store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 4
    assert (store.rebuilt_queues, list(store.events)) == (0, [])
    assert broker.pull(topic=SCHEDULE_TOPIC, tags="a", queue_id=1).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert store.rebuilt_queues == 0


class Counting(MemoryFile):
    """Counts the bytes that are read, and fails where it is told to."""

    __slots__ = ("bad", "read_bytes")

    def __init__(self, segment_bytes, buffered):
        super().__init__(segment_bytes, buffered)
        self.read_bytes, self.bad = 0, -1

    def read(self, position, length_bytes):
        if position <= self.bad < position + length_bytes:
            raise StorageError("cannot read commitlog: Input/output error")
        self.read_bytes += length_bytes
        return super().read(position, length_bytes)


class CountingStorage(MemoryStorage):
    def open(self, name, segment_bytes, buffered):
        if name == "commitlog" and name not in self._files:
            self._files[name] = Counting(segment_bytes, buffered)
        return super().open(name, segment_bytes, buffered)


def test_a_look_is_short_and_the_next_one_goes_on(make):
    broker = make(CountingStorage())
    log = broker.storage.open("commitlog", 1, buffered=False)
    for _ in range(40):
        broker.send(body=bytes(100_000), tag="a")
    flip(broker.storage, 39, 0)
    store, looks = broker.core.state.store, 0
    store.check_some()  # the round of the log as it was at the start
    while not store.is_rebuilding:
        log.read_bytes = 0
        store.check_some()
        looks += 1
        assert log.read_bytes <= 3 << 20
    assert looks == 40, "a record each, as one is more than a step"
    assert STEP_BYTES < 100_000


@pytest.mark.parametrize("dropped", [False, True])
def test_what_cannot_be_read_or_is_gone_does_not_end_the_looks(make, dropped):
    broker = make(CountingStorage(), mapped_file_size_commit_log=40_000, body_max_bytes=1_000)
    log = broker.storage.open("commitlog", 1, buffered=False)
    for number in range(100):
        broker.send(body=b"%1000d" % number, tag="a")
    flip(broker.storage, 99, 0)
    store = broker.core.state.store
    store.check_some()
    if dropped:
        log.drop_before(40_000)
        store.drop_expired_entries()
    else:
        log.bad = 10_000
    for _ in range(4):
        store.check_some()
    assert store.is_rebuilding


def test_a_place_that_cannot_be_read_is_said_once_and_is_no_trouble(make):
    broker = make(CountingStorage())
    log = broker.storage.open("commitlog", 1, buffered=False)
    for _ in range(100):
        broker.send(body=bytes(1_000), tag="a")
    log.bad = 50_000
    for _ in range(3):
        rounds(broker, 5)
        assert broker.core.trouble is None
        broker.send()
    ((event, fields),) = broker.core.state.store.events
    assert (event, fields["position"] <= log.bad) == ("store.place_unreadable", True)
    assert "Input/output error" in fields["reason"]


def test_damage_is_passed_in_steps(make):
    broker = make(CountingStorage())
    log = broker.storage.open("commitlog", 1, buffered=False)
    ends = []
    for _ in range(8):
        broker.send(body=bytes(1_000_000), tag="a")
        ends.append(broker.core.state.store.log_end)
    log.overwrite(ends[0], bytes(ends[6] - ends[0]))
    flip(broker.storage, 7, 0)
    store, looks = broker.core.state.store, 0
    while not store.is_rebuilding:
        log.read_bytes = 0
        store.check_some()
        assert log.read_bytes <= 3 * CHUNK_BYTES
        looks += 1
    assert 6 <= looks <= 12
    while store.is_rebuilding:
        log.read_bytes = 0
        store.rebuild_some()
        assert log.read_bytes <= 8 * CHUNK_BYTES
    assert store.rebuilt_queues == 1


def test_a_log_that_is_right_is_read_again_when_it_has_grown_or_after_hours(make):
    broker = make(CountingStorage())
    log, store = broker.storage.open("commitlog", 1, buffered=False), broker.core.state.store

    def read_bytes(steps):
        log.read_bytes = 0
        for _ in range(steps):
            store.check_some()
        return log.read_bytes

    broker.send(tag="a")
    assert read_bytes(3) > 0
    assert read_bytes(1_000) == 0
    flip(broker.storage, 0, 0)
    broker.send(tag="a")
    assert read_bytes(1) > 0
    assert store.is_rebuilding
    while store.is_rebuilding:
        store.rebuild_some()
    assert read_bytes(3) > 0, "after one that found something"
    assert read_bytes(REST_STEPS - 10) == 0
    assert read_bytes(10) > 0
