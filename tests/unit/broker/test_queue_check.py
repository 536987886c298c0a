"""A tags code that is wrong hides a message from pulls by tag until somebody looks at the record: reads notice half of all
flipped bits, and the look at all records the others."""

from __future__ import annotations

import errno

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.log_scan import CHUNK_BYTES, LogScan
from rocketcrew.broker.queue_check import INTERVAL_MS, REST_STEPS, STEP_BYTES
from rocketcrew.broker.readable_log import PIECE_BYTES
from rocketcrew.broker.rebuilds import PAUSE_STEPS
from rocketcrew.broker.storage import StorageError
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


def test_a_look_is_short_and_the_next_one_goes_on(make):
    broker = make(CountedStorage())
    log = broker.storage.log
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
    broker = make(CountedStorage(), mapped_file_size_commit_log=40_000, body_max_bytes=1_000)
    log = broker.storage.log
    for number in range(100):
        broker.send(body=b"%1000d" % number, tag="a")
    flip(broker.storage, 99, 0)
    store = broker.core.state.store
    store.check_some()
    if dropped:
        log.drop_before(40_000)
        store.drop_expired_entries()
    else:
        log.bad = range(10_000, 10_001)
    for _ in range(4):
        store.check_some()
    assert store.is_rebuilding


def test_a_place_that_cannot_be_read_is_said_once_and_is_no_trouble(make):
    broker = make(CountedStorage())
    log = broker.storage.log
    for _ in range(3_000):
        broker.send(body=bytes(1_000), tag="a")
    log.bad = range(2_500_000, 2_500_100)
    for _ in range(3):
        rounds(broker, 60)
        assert broker.core.trouble is None
        broker.send()
    ((event, fields),) = broker.core.state.store.events
    assert (event, 0 <= log.bad[0] - fields["position"] < 4_096) == ("store.place_unreadable", True)
    assert "Input/output error" in fields["reason"]


def fillers(store, topic="T"):
    queue = store.queue(topic, 0)
    return [offset for offset in range(queue.min_offset, queue.next_offset) if queue.entry(offset)[1] == 0]


@pytest.mark.parametrize("topic", ["T", SCHEDULE_TOPIC])
def test_a_start_without_a_checkpoint_in_an_outage_of_a_part_of_the_log_costs_nothing_for_good(make, topic):
    broker = make(CountedStorage())
    properties = {"DELAY": "1"} if topic != "T" else {}
    for number in range(150):
        broker.send(body=b"%1000d" % number, properties=properties)
    broker.storage.log.bad = range(10_000, 20_000)
    start_without_a_checkpoint(broker)
    store = broker.core.state.store
    assert len(fillers(store, topic)) > 8
    rounds(broker, 10)
    assert (store.rebuilt_queues, len(fillers(store, topic)) > 8) == (0, True), "what cannot be read changes nothing"
    broker.storage.log.bad = range(0)
    broker.send(topic="U", body=b"so that there is something to look at")
    rounds(broker, 10)
    assert (store.rebuilt_queues, fillers(store, topic)) == (1, [])


def test_a_kill_while_a_queue_is_replaced_costs_nothing_for_good_that_could_not_be_read_then(make):
    broker = make(CountedStorage())
    for number in range(150):
        broker.send(body=b"%1000d" % number)
    store = broker.core.state.store
    store.checkpoint_now()
    broker.storage.log.bad = range(10_000, 20_000)
    store._rebuilds.plan(store.queue("T", 0), in_doubt=True)
    while store._rebuilds:
        store._rebuild_a_queue()
    assert fillers(store) == []
    broker.storage.open("consumequeue/T/0", 1, buffered=True).truncate(20)
    broker.crash()
    store = broker.core.state.store
    broker.storage.log.bad = range(0)
    assert len(fillers(store)) > 8
    rounds(broker, 10)
    assert (store.rebuilt_queues, fillers(store)) == (1, [])


def with_a_record_that_belongs_nowhere(make):
    """Its head is damaged, and says the offset of one that is lost; a start has made fillers for both."""
    broker = make(CountedStorage())
    for number in range(200):
        broker.send(body=b"%1000d" % number)
    queue = broker.core.state.store.queue("T", 0)
    for offset, says in ((2, 7_000_000), (7, 2)):
        broker.storage.log.overwrite(queue.entry(offset)[0] + 20, says.to_bytes(8, "big"))
    start_without_a_checkpoint(broker)
    assert fillers(broker.core.state.store) == [2, 7]
    return broker


def start_without_a_checkpoint(broker):
    broker.storage._tables.pop("config/checkpoint.json", None)
    broker.storage._previous.clear()
    broker.crash()


def test_a_queue_with_a_filler_for_a_record_that_belongs_nowhere_is_built_anew_once(make):
    broker = with_a_record_that_belongs_nowhere(make)
    rounds(broker, 20)
    assert (broker.core.state.store.rebuilt_queues, fillers(broker.core.state.store)) == (1, [2, 7])


def test_a_bad_page_elsewhere_does_not_build_such_a_queue_anew_again(make):
    """Each time would refuse its senders and readers, and read all of the log, for nothing."""
    broker = with_a_record_that_belongs_nowhere(make)
    broker.storage.log.bad_pages = {25}
    for _ in range(4):
        rounds(broker, 20)
        broker.send(topic="U", body=b"so that there is something to look at")
    assert (broker.core.state.store.rebuilt_queues, fillers(broker.core.state.store)) == (1, [2, 7])


def turns(store, count):
    """As those of the broker's loop, with what is to be built anew at once. How often the disk refused that."""
    refused = rebuild_all(store)
    for _ in range(count):
        store.check_some()
        refused += rebuild_all(store)
    return refused


def rebuild_all(store):
    refused = 0
    while store.is_rebuilding:
        try:
            store.rebuild_some()
        except StorageError:
            refused += 1
    return refused


def test_what_reads_again_at_different_times_is_healed_each_time(make):
    """The first rebuild was the only one."""
    broker = make(CountedStorage())
    for number in range(400):
        broker.send(body=b"%2000d" % number)
    queue, log = broker.core.state.store.queue("T", 0), broker.storage.log
    first, second = (queue.entry(offset)[0] // PIECE_BYTES for offset in (100, 300))
    log.bad_pages = {first, second}
    start_without_a_checkpoint(broker)
    store = broker.core.state.store
    assert {offset // 50 * 50 for offset in fillers(store)} <= {50, 100, 250, 300}
    for bad in ({second}, set()):
        log.bad_pages = bad
        turns(store, 2 * REST_STEPS)
        assert [offset for offset in fillers(store) if (offset < 200 or not bad)] == []
    assert store.rebuilt_queues == 2


def test_a_rebuild_that_an_outage_ends_is_tried_again(make):
    broker = make(CountedStorage())
    for number in range(150):
        broker.send(body=b"%1000d" % number)
    log = broker.storage.log
    log.bad_pages = {10}
    start_without_a_checkpoint(broker)
    store = broker.core.state.store
    log.bad_pages = set()
    while store.is_rebuilding:  # the index
        store.rebuild_some()
    looks = 0
    while not store._rebuilds and looks < 20:
        store.check_some()
        looks += 1
    log.bad = range(1 << 40)
    assert turns(store, 1) == 1
    log.bad = range(0)
    turns(store, PAUSE_STEPS // 2)
    assert fillers(store) != [], "it is not tried again at once"
    turns(store, 2 * PAUSE_STEPS)
    assert (store.rebuilt_queues, fillers(store)) == (1, [])


def test_a_rebuild_for_something_else_keeps_no_filler_from_being_healed(make):
    """It found entries of zeros, and met a bad page."""
    broker = make(CountedStorage())
    for number in range(150):
        broker.send(body=b"%1000d" % number)
    store, queue = broker.core.state.store, broker.core.state.store.queue("T", 0)
    broker.storage.log.bad_pages = {queue.entry(105)[0] // PIECE_BYTES}
    broker.storage.open("consumequeue/T/0", 1, buffered=True).overwrite(100 * ENTRY_BYTES, bytes(10 * ENTRY_BYTES))
    turns(store, 20)
    assert (store.rebuilt_queues, 105 in fillers(store), len(fillers(store)) < 6) == (1, True, True)
    broker.storage.log.bad_pages = set()
    turns(store, 2 * REST_STEPS)
    assert (store.rebuilt_queues, fillers(store)) == (2, [])


def test_a_rebuild_that_fails_each_time_is_tried_once_a_round(make):
    """However many fillers there are."""
    broker = make(CountedStorage())
    for number in range(1_000):
        broker.send(body=b"%1000d" % number)
    log, queue = broker.storage.log, broker.core.state.store.queue("T", 0)
    log.bad_pages = {queue.entry(offset)[0] // PIECE_BYTES for offset in range(0, 1_000, 50)}
    start_without_a_checkpoint(broker)
    log.bad_pages, store, tries = set(), broker.core.state.store, 0
    turns(store, 0)
    looks_a_round = log.end // STEP_BYTES + 1
    for _ in range(3 * looks_a_round):
        store.check_some()
        store._rebuilds._paused.clear()
        log.bad = range(1 << 40)
        tries += turns(store, 0)
        log.bad = range(0)
    assert 2 <= tries <= 4


def test_a_record_of_a_topic_s_earlier_life_is_no_reason_to_build_the_new_one_s_queue_anew(make):
    broker = make(CountedStorage())
    for number in range(50):
        broker.send(body=b"%1000d" % number)
    store = broker.core.state.store
    store.remove_topic("T")
    for number in range(50):
        broker.send(body=b"%1000d" % number)
    position = store.queue("T", 0).entry(20)[0]
    broker.storage.log.overwrite(position, bytes(1_000))
    store._rebuilds.plan(store.queue("T", 0))
    broker.storage.log.bad_pages = {20 * 1_100 // PIECE_BYTES}
    turns(store, 20)
    assert (store.rebuilt_queues, fillers(store)) == (1, [20])
    broker.storage.log.bad_pages = set()
    turns(store, 2 * REST_STEPS)
    assert store.rebuilt_queues == 1


def test_what_is_behind_a_place_that_cannot_be_read_is_looked_at_in_the_same_segment(make):
    broker = make(CountedStorage())
    for number in range(100):
        broker.send(body=b"%1000d" % number, tag="a")
    broker.storage.log.bad = range(50_000, 50_001)
    flip(broker.storage, 90, 0)
    rounds(broker, 10)
    assert broker.core.state.store.rebuilt_queues == 1
    assert len(got(broker)) == 32


def test_a_queue_s_file_that_cannot_be_read_is_said_and_keeps_nobody_from_the_others(make):
    broker = make(CountedStorage())
    broker.send(topic="U", tag="a")
    for number in range(10):
        broker.send(body=b"%d" % number, tag="a")
    broker.storage.open("consumequeue/U/0", 1, buffered=True).bad = range(20)
    flip(broker.storage, 9, 0)
    rounds(broker, 10)
    store = broker.core.state.store
    assert store.rebuilt_queues == 1
    place = {"topic": "U", "queue_id": 0, "position": 0, "reason": "cannot read: Input/output error"}
    assert store.events[0] == ("store.place_unreadable", place)


def test_a_disk_that_fails_as_a_whole_is_trouble_and_ends_the_round(make):
    broker = make(CountedStorage())
    broker.send(tag="a")
    log = broker.storage.log
    log.bad, log.error_number = range(1 << 40), errno.EMFILE
    rounds(broker, 2)
    assert broker.core.trouble is not None
    broker.core.trouble = None
    rounds(broker, 5)
    assert (broker.core.trouble, list(broker.core.state.store.events)) == (None, [])


def test_many_wrong_entries_of_a_queue_are_one(make):
    broker = make()
    for _ in range(50):
        broker.send(tag="a")
    for offset in range(50):
        flip(broker.storage, offset, 0)
    check = broker.core.state.store._check
    queues = [queue for _ in range(3) for queue in check.step()]
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("T", 0)] * len(queues)
    assert len(queues) <= 2, "one a step"


def test_a_damaged_size_does_not_read_the_rest_of_the_segment(make):
    broker = make(CountedStorage())
    log = broker.storage.log
    for _ in range(10):
        broker.send(body=bytes(1_000_000), tag="a")
    log.overwrite(0, (9_000_000).to_bytes(4, "big"))
    scan, worst, records = LogScan(log, 0, lambda _: True), 0, 0
    for part in scan.steps():
        worst, log.read_bytes = max(worst, log.read_bytes), 0
        records += part is not None and part.message is not None
    assert (records, worst <= 4 * CHUNK_BYTES) == (9, True)


def test_damage_up_to_the_log_s_end_is_passed_in_steps(make):
    """Also what looks like the front of one record whose body is there."""
    broker = make(CountedStorage(), body_max_bytes=16 << 20)
    log, store = broker.storage.log, broker.core.state.store
    broker.send(tag="a")
    for kind in ("nonsense", "front"):
        end = store.log_end
        broker.send(body=bytes(16_000_000), tag="a")
        if kind == "nonsense":
            log.overwrite(end, b"\x01" * (store.log_end - end))
        else:
            size = store.log_end - end
            log.overwrite(end, (size + 10).to_bytes(4, "big"))
            log.overwrite(end + 84, (size - 500).to_bytes(4, "big"))
        scan, worst = LogScan(log, end, lambda _: True), 0
        for _ in scan.steps():
            worst, log.read_bytes = max(worst, log.read_bytes), 0
        assert CHUNK_BYTES < worst <= 3 * CHUNK_BYTES


def test_damage_is_passed_in_steps(make):
    broker = make(CountedStorage())
    log = broker.storage.log
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
    broker = make(CountedStorage())
    log, store = broker.storage.log, broker.core.state.store

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
