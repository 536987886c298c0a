"""Who reads over a place that the disk cannot read: waits for it a while, and gets what is behind it."""

from __future__ import annotations

from collections import deque

import pytest
from bad_places import CountedFile, CountedStorage

from rocketcrew.broker.consume_queue import ENTRY, ENTRY_BYTES, FILLER_CODE
from rocketcrew.broker.lost_places import FORGET_STEPS, PATIENCE_STEPS, LostPlaces, first_unreadable
from rocketcrew.broker.message_store import QueueRebuilding
from rocketcrew.broker.readable_log import PIECE_BYTES, UnreadablePlaces
from rocketcrew.broker.storage import StorageError
from rocketcrew.broker.timers import recall_key
from rocketcrew.broker.transactions import HALF_TOPIC, Question
from rocketcrew.broker.wanted import EVERYTHING
from rocketcrew.remoting.admin_bodies import KvTable
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import RecallMessage, SendResponse
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.pop_headers import PopRequest
from rocketcrew.remoting.stored import decode_messages

COUNT = 300
TIMER_QUEUE = "rmq_sys_wheel_timer"


@pytest.fixture
def broker(make):
    return make(CountedStorage())


def seconds(broker, count=1):
    for _ in range(count):
        broker.later(1_000)


def pulled(broker, tags="*", tries_max=200):
    """Offsets of all messages that a reader gets, which tries again each second; and how often it was refused."""
    at, found, refused = 0, [], 0
    while at < broker.core.state.store.max_offset("T", 0) and refused < tries_max:
        answer = broker.pull(at, tags=tags)
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            found += [message.queue_offset for message in decode_messages(answer.body)]
            at = int(answer.fields["nextBeginOffset"])
        else:
            refused += 1
            seconds(broker)
    return found, refused


def filled(broker):
    for number in range(COUNT):
        broker.send(body=b"%100d" % number, tag="ab"[number % 2])
    return broker.core.state.store


def page_hit(store, bad, offset=0):
    """Offsets whose records are in `bad`."""
    queue = store.queue("T", 0)
    entries = [queue.entry(offset) for offset in range(queue.max_offset)]
    return [at for at, (position, size, _) in enumerate(entries) if position < bad.stop and position + size > bad.start]


@pytest.mark.parametrize("tags", ["*", "a"])
def test_a_bad_page_of_a_queue_s_file_costs_a_reader_nothing(broker, tags):
    """The queue is built anew: the log has all that it says."""
    store = filled(broker)
    broker.storage.open("consumequeue/T/0", 1, buffered=True).bad = range(PIECE_BYTES, PIECE_BYTES + 10)
    found, refused = pulled(broker, tags)
    assert found == list(range(0, COUNT, 1 if tags == "*" else 2))
    assert (store.rebuilt_queues, store.passed_over) == (1, 0)
    assert refused < 3


@pytest.mark.parametrize("look", ["store_time_ms", "record_in", "record_at"])
def test_each_way_to_look_at_an_entry_has_such_a_queue_built_anew(broker, look):
    store = filled(broker)
    arguments = [store.queue("T", 0).entry(5)[0]] if look == "record_at" else ["T", 0, 5]
    broker.storage.open("consumequeue/T/0", 1, buffered=True).bad = range(100, 110)
    with pytest.raises(QueueRebuilding):
        getattr(store, look)(*arguments)
    seconds(broker)
    assert store.rebuilt_queues == 1
    assert getattr(store, look)(*arguments)


def test_a_filler_before_a_bad_page_of_the_queue_has_it_built_anew(broker):
    """Whether it is one, the next entry says."""
    store = filled(broker)
    broker.storage.open("consumequeue/T/0", 1, buffered=True).overwrite(100, store.queue("T", 0)._file.read(120, 8))
    broker.storage.open("consumequeue/T/0", 1, buffered=True).overwrite(108, bytes(4) + b"\xff" * 8)
    assert store.record_in("T", 0, 5) is None
    broker.storage.open("consumequeue/T/0", 1, buffered=True).bad = range(120, 130)
    with pytest.raises(QueueRebuilding):
        store.record_in("T", 0, 5)


@pytest.mark.parametrize("tags", ["*", "a"])
def test_a_bad_page_of_the_log_costs_a_reader_what_is_in_it(broker, tags):
    store = filled(broker)
    broker.storage.log.bad = bad = range(3 * PIECE_BYTES, 4 * PIECE_BYTES)
    wanted = list(range(0, COUNT, 1 if tags == "*" else 2))
    hit = [offset for offset in page_hit(store, bad) if offset in wanted]
    assert len(hit) > 5
    found, refused = pulled(broker, tags)
    assert found == [offset for offset in wanted if offset not in hit]
    assert PATIENCE_STEPS <= refused < 3 * PATIENCE_STEPS
    told = KvTable.decode(broker.call(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert told["passedOver"] == str(len(hit))
    (said,) = [fields for event, fields in store.events if event == "store.message_passed_over"]
    assert {"topic": "T", "queue_id": 0, "reason": "cannot read: Input/output error"}.items() <= said.items()
    assert {"queue_offset": hit[0], "last_offset": hit[-1], "messages": len(hit)}.items() <= said.items()
    failed_reads = broker.storage.log.failed_reads
    assert pulled(broker, tags) == (found, 0), "the next reader need not wait"
    assert broker.storage.log.failed_reads - failed_reads < 8, "and what is given up is not read"
    assert store.passed_over == len(hit), "each is said once"
    assert store.rebuilt_queues == 0


@pytest.mark.parametrize("of", ["log", "all"])
def test_an_outage_passes_no_message_over(broker, of):
    store = filled(broker)
    files = [broker.storage.log]
    if of == "all":
        files.append(broker.storage.open("consumequeue/T/0", 1, buffered=True))
    for file in files:
        file.bad = range(1 << 40)
    assert pulled(broker, tries_max=4 * PATIENCE_STEPS)[0] == []
    for file in files:
        file.bad = range(0)
    assert pulled(broker) == (list(range(COUNT)), 0)
    assert (store.passed_over, store.rebuilt_queues) == (0, 0)


def test_a_page_that_can_be_read_again_is_not_passed_over(broker):
    store = filled(broker)
    broker.storage.log.bad = range(3 * PIECE_BYTES, 4 * PIECE_BYTES)
    pulled(broker, tries_max=PATIENCE_STEPS // 2)
    broker.storage.log.bad = range(0)
    assert pulled(broker) == (list(range(COUNT)), 0)
    assert store.passed_over == 0


def test_a_pull_that_reads_well_reads_what_it_did(broker):
    """One read of the log for neighbours."""
    filled(broker)
    before = broker.storage.log.read_bytes
    answer = broker.pull(0)
    assert broker.storage.log.read_bytes - before == len(answer.body)


def test_a_place_is_given_up_while_the_disk_reads_others():
    log = CountedStorage().log
    log.append(bytes(20 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    log.bad = range(PIECE_BYTES, 2 * PIECE_BYTES)
    for _ in range(PATIENCE_STEPS):
        assert not lost.has(PIECE_BYTES - 10, 20, error)
        lost.rest()
    assert lost.has(PIECE_BYTES - 10, 20, error)
    assert lost.has(2 * PIECE_BYTES - 1, 1, error), "what else is there"
    assert not lost.has(2 * PIECE_BYTES, 1, error), "which can be read now"
    log.bad = range(1 << 40)
    assert not lost.has(PIECE_BYTES, 1, error)


def test_of_a_record_of_many_pages_that_cannot_be_read_one_is_tried():
    log = CountedFile(1 << 24, buffered=False)
    log.append(bytes(1_000 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    log.bad = range(300 * PIECE_BYTES, 400 * PIECE_BYTES)
    assert not lost.has(298 * PIECE_BYTES, 110 * PIECE_BYTES, error)
    assert log.failed_reads == 1


def test_a_filler_at_a_place_that_was_given_up_is_no_message(broker):
    """Its position is that of the next one."""
    store = filled(broker)
    broker.storage.log.bad = bad = range(3 * PIECE_BYTES, 4 * PIECE_BYTES)
    hit = page_hit(store, bad)
    filler = hit[5]
    entry = ENTRY.pack(store.queue("T", 0).entry(filler + 1)[0], 0, FILLER_CODE)
    broker.storage.open("consumequeue/T/0", 1, buffered=True).overwrite(filler * ENTRY_BYTES, entry)
    assert pulled(broker)[0] == [offset for offset in range(COUNT) if offset not in hit]
    queue = store.queue("T", 0)
    assert [store._lost.passed(queue, offset, EVERYTHING) is None for offset in (filler, filler - 1)] == [True, False]


def test_a_place_that_did_not_fail_for_a_while_is_waited_for_again():
    log = CountedStorage().log
    log.append(bytes(20 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    log.bad = range(PIECE_BYTES, 2 * PIECE_BYTES)
    lost.has(PIECE_BYTES, 1, error)
    for _ in range(3 * FORGET_STEPS):
        lost.rest()
        lost.has(PIECE_BYTES, 1, error)
    assert lost.has(PIECE_BYTES, 1, error)
    for _ in range(2 * FORGET_STEPS):
        lost.rest()
    assert not lost.has(PIECE_BYTES, 1, error)


class EndingOutage(CountedFile):
    """All reads fail until so many more have."""

    __slots__ = ("left",)

    def read(self, position, length_bytes):
        self.left -= 1
        self.bad = range(1 << 40) if self.left >= 0 else range(0)
        return super().read(position, length_bytes)


@pytest.mark.parametrize("left", range(12))
def test_an_outage_that_ends_while_the_place_and_others_are_looked_at_costs_nothing(left):
    log = EndingOutage(1 << 24, buffered=False)
    log.append(bytes(200 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    for _ in range(PATIENCE_STEPS + 1):
        log.left = 1_000
        assert not lost.has(PIECE_BYTES, 1, error)
        lost.rest()
    log.left = left
    assert not lost.has(PIECE_BYTES, 1, error)


def test_pages_of_one_run_are_waited_for_together():
    log = CountedStorage().log
    log.append(bytes(60 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    log.bad = range(PIECE_BYTES, 5 * PIECE_BYTES)
    for number in range(PATIENCE_STEPS + 1):
        assert lost.has(PIECE_BYTES, 1, error) == (number == PATIENCE_STEPS)
        lost.rest()
    assert not lost.has(4 * PIECE_BYTES, 1, error)
    assert lost.has(2 * PIECE_BYTES, 1, error)


def test_a_place_that_was_read_meanwhile_is_waited_for_anew():
    log = CountedStorage().log
    log.append(bytes(20 * PIECE_BYTES))
    lost, error = LostPlaces(log, UnreadablePlaces(deque()), deque()), StorageError("cannot read")
    for bad in (range(PIECE_BYTES, PIECE_BYTES + 1), range(0), range(PIECE_BYTES, PIECE_BYTES + 1)):
        log.bad = bad
        assert not lost.has(PIECE_BYTES, 2 * PIECE_BYTES, error)
        for _ in range(PATIENCE_STEPS):
            lost.rest()


def test_only_so_much_is_read_to_find_what_cannot_be():
    log = CountedStorage().log
    log.append(bytes(20 * PIECE_BYTES))
    entries = [(at, (at * 1_000, 1_000, 0)) for at in range(20)]
    assert first_unreadable(log, entries, 1 << 20) is None
    assert first_unreadable(log, [(0, (0, 0, -1)), (1, (90_000, 1, 0))], 0) is None, "what is no record is not read"
    found = first_unreadable(log, entries, 5_500)
    assert found is not None
    assert found[0] == 6
    log.bad = range(3_500, 3_501)
    assert first_unreadable(log, entries, 5_500) == entries[3]


def send_timers(broker):
    for number in range(5):
        properties = {"TIMER_DELAY_MS": str(2_000 + number * 1_000)}
        broker.send(body=b"%d" % number * 9_000, properties=properties)
    broker.send(body=bytes(20_000), queue_id=1)


def spoil(broker, topic, offset=0):
    """A place in the body of a record."""
    position, size, _ = broker.core.state.store.queue(topic, 0).entry(offset)
    broker.storage.log.bad = range(position + size // 2, position + size // 2 + 10)


def firsts(broker):
    return [message.body[:1] for message in broker.read()]


@pytest.mark.parametrize("restarts", [True, False])
def test_a_timer_message_that_the_disk_cannot_read_holds_up_no_other_for_long(broker, restarts):
    send_timers(broker)
    spoil(broker, TIMER_QUEUE)
    if restarts:
        broker.core.stop()
        broker.start()
    seconds(broker, 5 + PATIENCE_STEPS)
    assert firsts(broker) == [b"1", b"2", b"3", b"4"]
    assert ("store.timer_message_gone", {"queue_offset": 0, "count": 1}) in broker.core.state.store.events


def test_a_timer_message_that_can_be_read_again_after_a_start_is_not_delivered_too_early(broker):
    """Nor is what takes one back delivered."""
    send_timers(broker)
    (half,) = [broker.core.state.timers._open[offset] for offset in (4,)]
    broker.send(body=b"r" * 9_000, properties={"TIMER_DELAY_MS": "9000", "TIMER_DEL_UNIQKEY": half[1]})
    spoil(broker, TIMER_QUEUE, 1)
    broker.core.stop()
    broker.start()
    broker.storage.log.bad = range(0)
    seconds(broker, 1)
    assert firsts(broker) == []
    spoil(broker, TIMER_QUEUE, 5)
    broker.core.stop()
    broker.start()
    broker.storage.log.bad = range(0)
    seconds(broker, 20)
    assert firsts(broker) == [b"0", b"1", b"2", b"3"]


def test_a_bad_page_of_the_timers_queue_costs_no_timer(broker):
    send_timers(broker)
    broker.storage.open(f"consumequeue/{TIMER_QUEUE}/0", 1, buffered=True).bad = range(PIECE_BYTES)
    seconds(broker, 20)
    assert firsts(broker) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("restarts", [True, False])
def test_a_half_message_that_the_disk_cannot_read_keeps_nobody_from_asking_for_the_others(broker, tools, restarts):
    broker.heartbeat()
    for number in range(4):
        half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{number}"}
        broker.send(body=b"%d" % number * 9_000, properties=half, sys_flag=4)
    broker.send(body=bytes(20_000), queue_id=1)
    spoil(broker, HALF_TOPIC)
    if restarts:
        broker.core.stop()
        broker.start()
    broker.heartbeat()
    state = broker.core.state
    due_ms = state.transactions.next_due_ms()
    assert due_ms is not None
    asked = []
    with pytest.raises(StorageError):
        asked += state.transactions.due(due_ms, state.store)
    asked = [item.half.queue_offset for item in _until_error(state, due_ms + 600_000)]
    assert asked == [1, 2, 3]
    broker.storage.log.bad = range(0)
    assert [item.half.queue_offset for item in _until_error(state, due_ms + 6_000_000)] == [0, 1, 2, 3]
    codes = [command.code for _, command in tools.pushes(broker.later(60_000_000))]
    assert codes.count(RequestCode.CHECK_TRANSACTION_STATE) == 4


def _until_error(state, now_ms):
    found = []
    try:
        for item in state.transactions.due(now_ms, state.store):
            assert isinstance(item, Question)
            found.append(item)
    except StorageError:
        pass
    return found


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 100])
def test_a_bad_page_of_a_delay_level_s_queue_costs_nothing_where_all_records_have_one_size(broker, count):
    """Whether the disk reads the log was asked by records that entries name, and those could not be read."""
    for _ in range(count):
        broker.send(properties={"DELAY": "1"})
    broker.storage.open(f"consumequeue/{SCHEDULE_TOPIC}/0", 1, buffered=True).bad = range(PIECE_BYTES)
    seconds(broker, 5)
    assert len(broker.read()) == count


RECALLED = {"TIMER_DELAY_MS": "60000", "UNIQ_KEY": "U1"}


def spoiled_at_a_start(broker, offset):
    """What of the timers' queue cannot be read then; what the timers saved is gone."""
    for _ in range(40):
        broker.send(body=bytes(9_000), queue_id=1)
    broker.core.stop()
    broker.start()
    spoil(broker, TIMER_QUEUE, offset)
    for table in [name for name in broker.storage._tables if "timers" in name]:
        del broker.storage._tables[table]
    broker.storage.open("config/timers.journal", 1, buffered=True).reset(0)
    broker.start()


@pytest.mark.parametrize("restarts", [True, False])
def test_a_timer_message_that_is_taken_back_before_it_can_be_read_is_not_delivered(broker, restarts):
    handle = SendResponse.from_fields(broker.send(body=b"a" * 9_000, properties=RECALLED).fields).recall_handle
    spoiled_at_a_start(broker, 0)
    seconds(broker)
    assert broker.call(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle, "pg", "broker-a")).code == 0
    seconds(broker)
    if restarts:
        broker.core.stop()
        broker.start()
    broker.storage.log.bad = range(0)
    seconds(broker, 100)
    assert firsts(broker) == []
    assert broker.core.state.timers.dump() == b'{"delivered":[],"floor":2}'


def test_what_takes_back_takes_none_back_that_was_stored_after_it(broker):
    broker.send(body=b"a" * 9_000, properties=RECALLED)
    taking = {"TIMER_DELAY_MS": "60000", "TIMER_DEL_UNIQKEY": recall_key("T", "U1"), "UNIQ_KEY": "U9"}
    broker.send(body=b"r" * 9_000, properties=taking)
    broker.send(body=b"b" * 9_000, properties=RECALLED)
    spoiled_at_a_start(broker, 1)
    broker.storage.log.bad = range(0)
    seconds(broker, 100)
    assert firsts(broker) == [b"b"]


def test_a_bad_page_in_one_queue_keeps_nobody_from_popping_from_the_others(broker):
    for number in range(8):
        broker.send(body=b"%d" % number * 9_000, queue_id=number % 4)
    broker.send(body=bytes(200_000), queue_id=1, topic="Other")
    spoil(broker, "T")
    broker.heartbeat()
    header = PopRequest("g", "T", -1, 32, 600_000, 0, broker.now_ms, 0, "TAG", "*", order=False)
    answer = broker.call(RequestCode.POP_MESSAGE, header)
    found = [message.body[:1] for message in decode_messages(answer.body)]
    assert sorted(found) == [b"1", b"2", b"3", b"5", b"6", b"7"]
    for _ in range(PATIENCE_STEPS):
        assert broker.call(RequestCode.POP_MESSAGE, header).code == ResponseCode.SERVICE_NOT_AVAILABLE
        seconds(broker)
    for _ in range(2):
        answer = broker.call(RequestCode.POP_MESSAGE, header)
        found += [message.body[:1] for message in decode_messages(answer.body)]
    assert b"4" in found
