"""Timer messages of 5.x: at their millisecond, once, over a kill, recalled; what a genuine broker's wheel had come to."""

from __future__ import annotations

from copy import deepcopy

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.journal import Journal, checked_line, checked_text
from rocketcrew.broker.readable_log import PIECE_BYTES, TRIED_MAX
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.broker.timers import TIMERS_JOURNAL, TIMERS_TABLE, SavedTimers, Timers, closed_in, closed_text
from rocketcrew.broker.topic_table import TIMER_TOPIC
from rocketcrew.broker.transactions import HALF_TOPIC
from rocketcrew.client.recall import decode_handle
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import EndTransaction, RecallMessage, SendResponse
from rocketcrew.remoting.ids import parse_offset_message_id
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage

DAY_MS = 86_400_000


def bodies(broker, topic="T"):
    return [message.body for message in broker.read(topic)]


def recall(broker, handle, topic="T"):
    return broker.call(RequestCode.RECALL_MESSAGE, RecallMessage(topic, handle, "pg", "embedded"))


def handle_of(answer):
    return SendResponse.from_fields(answer.fields).recall_handle


@pytest.mark.parametrize(
    ("name", "value"), [("TIMER_DELAY_MS", "1234"), ("TIMER_DELAY_SEC", "7"), ("TIMER_DELIVER_MS", None)]
)
def test_a_message_is_delivered_at_its_millisecond(broker, name, value):
    due_ms = broker.now_ms + {"TIMER_DELAY_MS": 1_234, "TIMER_DELAY_SEC": 7_000}.get(name, 3_333)
    assert broker.send(properties={name: value or str(due_ms)}, tag="red").code == 0
    assert broker.core.next_deadline_ms() <= due_ms
    broker.later(due_ms - broker.now_ms - 1)
    assert bodies(broker) == []
    opaque = broker.hold(0)
    effects = broker.later(1)
    assert [effect.command.opaque for effect in effects] == [opaque], "a held pull is woken"
    (message,) = broker.read()
    assert (message.topic, message.queue_id, message.properties["TAGS"]) == ("T", 0, "red")
    assert message.properties["TIMER_OUT_MS"] == str(due_ms)
    broker.later(DAY_MS)
    assert len(bodies(broker)) == 1


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "DELAY", "TIMER_DELIVER_MS"])
def test_a_clock_that_is_set_back_twice_adds_nothing_to_a_delay(make, name):
    broker = make(message_delay_level="7s")
    due_ms = broker.now_ms + 7_000
    value = {"TIMER_DELAY_MS": "7000", "TIMER_DELAY_SEC": "7", "DELAY": "1", "TIMER_DELIVER_MS": str(due_ms)}[name]
    assert broker.send(properties={name: value}).code == 0
    for back_ms in (DAY_MS, DAY_MS // 24):
        broker.now_ms -= back_ms
        broker.crash()
        broker.later(0)
        assert len(bodies(broker)) == (name == "DELAY"), (
            "a level has nothing that is due later than its delay, as genuine"
        )
    broker.later(7_000)
    assert len(bodies(broker)) == (name != "TIMER_DELIVER_MS"), "a time of day is waited for"
    broker.later(due_ms - broker.now_ms)
    assert len(bodies(broker)) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_time_of_day_is_that_of_the_machines_clock_where_the_brokers_is_ahead(broker, is_killed):
    """The clock had been wrong for a moment: what was for an hour later came at once."""
    ahead_ms, wall_ms = 30 * DAY_MS, broker.now_ms
    broker.later(ahead_ms)
    broker.core.state.clock_ahead_ms = ahead_ms
    sent = broker.send(properties={"TIMER_DELIVER_MS": str(wall_ms + 3_600_000), "UNIQ_KEY": "K1"}, body=b"recalled")
    assert broker.send(properties={"TIMER_DELIVER_MS": str(wall_ms + 3_600_000), "UNIQ_KEY": "K2"}).code == 0
    assert recall(broker, handle_of(sent)).code == 0
    if is_killed:
        broker.now_ms = wall_ms
        broker.crash()
    broker.later(3_599_000)
    assert bodies(broker) == []
    broker.later(1_000)
    assert bodies(broker) == [b"x"]


@pytest.mark.parametrize("ahead_ms", [(0, 3_600_000), (3_600_000, 0)])
def test_a_time_of_day_is_waited_for_however_the_clock_is_set_meanwhile(broker, ahead_ms):
    """A clock set back by mistake and put right made it late, one that was ahead for a moment early."""
    wall_ms = broker.now_ms - ahead_ms[0]
    broker.core.state.clock_ahead_ms = ahead_ms[0]
    assert broker.send(properties={"TIMER_DELIVER_MS": str(wall_ms + 7_200_000)}).code == 0
    broker.later(1_800_000)
    broker.later(3_600_000 if ahead_ms[1] else 0)
    broker.core.state.clock_ahead_ms = ahead_ms[1]
    broker.later(wall_ms + 7_200_000 - (broker.now_ms - ahead_ms[1]) - 1)
    assert bodies(broker) == []
    broker.later(1)
    assert bodies(broker) == [b"x"]


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELIVER_MS", None), ("TIMER_DELAY_SEC", "216000")])
def test_a_message_is_taken_back_after_a_restart_with_the_right_clock(broker, name, value):
    wall_ms = broker.now_ms
    broker.later(DAY_MS)
    broker.core.state.clock_ahead_ms = DAY_MS
    sent = broker.send(properties={name: value or str(wall_ms + 216_000_000), "UNIQ_KEY": "K1"})
    assert int(decode_handle(handle_of(sent)).deliver_at_ms) == wall_ms + 216_000_000
    broker.now_ms = wall_ms + 2_000
    broker.crash()
    assert recall(broker, handle_of(sent)).code == 0
    broker.later(3 * DAY_MS)
    assert bodies(broker) == []


@pytest.mark.parametrize(("then_ms", "now_ms"), [(DAY_MS, 0), (0, 4 * DAY_MS)])
def test_what_waits_is_taken_back_whatever_the_clock_was_when_it_was_sent(broker, then_ms, now_ms):
    """Its time seems to have passed, or to be further away than messages are kept."""
    broker.core.state.clock_ahead_ms = then_ms
    sent = broker.send(properties={"TIMER_DELAY_SEC": "1800", "UNIQ_KEY": "K1"})
    broker.core.state.clock_ahead_ms = now_ms
    broker.later(60_000)
    assert recall(broker, handle_of(sent)).code == 0
    broker.crash()
    broker.later(1_800_000)
    assert bodies(broker) == []
    assert "timestamp invalid" in recall(broker, handle_of(sent)).remark, "nothing waits any more"


@pytest.mark.parametrize("properties", [{"DELAY": "2"}, {"TIMER_DELAY_SEC": "7200"}])
def test_what_waits_as_long_as_messages_are_kept_is_delivered_after_a_stop(make, properties):
    """What was due and older than retention was dropped before it was delivered."""
    broker = make(
        message_delay_level="1s 2h", retention_ms=7_200_000, mapped_file_size_commit_log=4_096, deliver_batch_max=1
    )
    for _ in range(60):
        broker.send(properties=properties, body=bytes(200))
    for _ in range(11):
        broker.later(600_000)
    broker.core.stop()
    broker.now_ms += 1_800_000
    broker.start()
    for _ in range(60):
        broker.later(60_000)
    assert len(bodies(broker)) == 60
    assert broker.core.state.store.log_start > 0, "what was delivered is dropped"


def test_what_cannot_be_delivered_is_dropped_an_hour_later_and_counted(make):
    broker = make(retention_ms=7_200_000, mapped_file_size_commit_log=4_096)
    for _ in range(60):
        broker.send(properties={"TIMER_DELAY_SEC": "7200"}, body=bytes(200))
    state = broker.core.state
    for half_hours in range(7):
        state.expire_by_age(broker.now_ms + half_hours * 1_800_000 + 1)
        assert (state.store.log_start == 0) == (half_hours < 6)
    broker.later(3 * 3_600_000 + 2)
    (event,) = [fields for name, fields in state.store.events if name == "store.timer_message_gone"]
    assert (event["queue_offset"], event["count"] + len(bodies(broker))) == (0, 60)


def test_times_are_kept_in_their_order_not_that_of_the_sends(broker):
    for delay_ms in (3_000, 1_000, 2_000):
        broker.send(body=b"%d" % delay_ms, properties={"TIMER_DELAY_MS": str(delay_ms)})
    for _ in range(3):
        broker.later(1_000)
    assert bodies(broker) == [b"1000", b"2000", b"3000"]


def test_a_level_wins_over_a_timer_and_a_time_that_has_passed_is_now(broker):
    broker.send(properties={"DELAY": "1", "TIMER_DELAY_SEC": "100"})
    broker.later(300)
    assert len(bodies(broker)) == 1
    broker.send("U", properties={"TIMER_DELIVER_MS": str(broker.now_ms - 5)})
    assert len(bodies(broker, "U")) == 1


@pytest.mark.parametrize("value", ["soon", "", "1e3", str(4 * DAY_MS)])
def test_what_is_no_time_is_refused(broker, value):
    properties = {"TIMER_DELAY_MS": value or " "}
    answer = broker.send(properties=properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "timer message illegal" in answer.remark
    assert broker.core.state.store.log_end == 0


def test_a_delay_is_at_most_what_retention_keeps(make):
    broker = make(retention_ms=3_600_000)
    answer = broker.send(properties={"TIMER_DELAY_SEC": "3601"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "3600000ms" in answer.remark
    assert broker.send(properties={"TIMER_DELAY_SEC": "3600"}).code == 0
    broker.later(3_600_000)
    assert len(bodies(broker)) == 1


def test_waiting_messages_have_a_bound_and_batches_have_none(make):
    broker = make(timers_max=1)
    assert broker.send(properties={"TIMER_DELAY_SEC": "5"}).code == 0
    assert "flow control" in broker.send(properties={"TIMER_DELAY_SEC": "5"}).remark
    batch = encode_batch([(0, b"x", "TIMER_DELAY_SEC\x015\x02")])
    answer = broker.send(body=batch, code=RequestCode.SEND_BATCH_MESSAGE)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_after_a_kill_what_was_delivered_stays_so_and_what_waits_is_delivered(broker):
    for number, delay_ms in enumerate((500, 90_000, 1_500, 60_000, 2_500)):
        broker.send(body=b"%d" % number, properties={"TIMER_DELAY_MS": str(delay_ms)})
    for _ in range(6):
        broker.later(1_000)
    assert bodies(broker) == [b"0", b"2", b"4"]
    broker.crash()
    broker.later(10_000)
    assert bodies(broker) == [b"0", b"2", b"4"]
    broker.later(100_000)
    assert bodies(broker) == [b"0", b"2", b"4", b"3", b"1"]
    broker.later(5_000)
    broker.core.stop()
    broker.crash()
    assert len(broker.core.state.timers) == 0
    broker.later(DAY_MS)
    assert len(bodies(broker)) == 5


def test_a_message_is_taken_back_for_good(broker):
    handle = handle_of(broker.send(body=b"no", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U1"}))
    broker.send(body=b"yes", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U2"})
    assert decode_handle(handle) == ("T", "embedded", str(broker.now_ms + 60_000), "U1")
    answer = recall(broker, handle)
    assert (answer.code, answer.fields["msgId"]) == (0, "U1")
    broker.crash()
    broker.later(61_000)
    assert bodies(broker) == [b"yes"]
    assert handle_of(broker.send()) is None


@pytest.mark.parametrize("killed", [False, True])
def test_all_messages_of_a_key_are_taken_back(broker, killed):
    timed = {"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U1"}
    handles = [handle_of(broker.send(body=b"no", properties=timed)) for _ in range(3)]
    assert recall(broker, handles[0]).code == 0
    if killed:
        broker.crash()
    assert len(broker.core.state.timers) == 0
    broker.later(61_000)
    assert bodies(broker) == []


def test_what_was_taken_back_takes_no_room(broker):
    stays = {"TIMER_DELAY_SEC": "600", "UNIQ_KEY": "stays"}
    broker.send(body=b"stays", properties=stays)
    for number in range(500):
        timed = {"TIMER_DELAY_SEC": "900", "UNIQ_KEY": f"U{number}"}
        assert recall(broker, handle_of(broker.send(properties=timed))).code == 0
    timers = broker.core.state.timers
    assert (len(timers), len(timers._by_key)) == (1, 1)
    assert len(timers._due) <= 2
    broker.later(600_000)
    assert bodies(broker) == [b"stays"]


def test_what_cannot_be_taken_back_is_refused(broker):
    handle = handle_of(broker.send(properties={"TIMER_DELAY_SEC": "1"}))
    assert recall(broker, handle, "U").code == ResponseCode.TOPIC_NOT_EXIST
    broker.send("U")
    assert "topic not match" in recall(broker, handle, "U").remark
    assert "handle is invalid" in recall(broker, "xx").remark
    broker.later(1_000)
    assert "timestamp invalid" in recall(broker, handle).remark


def test_a_transaction_waits_for_its_commit_then_for_its_time(broker):
    answer = broker.send(
        sys_flag=4, properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U", "TIMER_DELAY_SEC": "5"}
    )
    sent = SendResponse.from_fields(answer.fields)
    broker.later(4_000)
    physical = parse_offset_message_id(sent.msg_id).physical_offset
    end = EndTransaction("pg", sent.queue_offset, physical, 8, "U", topic="T")
    assert broker.call(RequestCode.END_TRANSACTION, end).code == 0
    broker.later(4_000)
    assert bodies(broker) == []
    broker.later(1_000)
    assert len(bodies(broker)) == 1


def test_of_a_genuine_store_what_its_wheel_has_passed_is_not_delivered_again(make):
    storage = MemoryStorage()
    broker = make(storage)
    broker.send(body=b"delivered", properties={"TIMER_DELAY_SEC": "10"})
    broker.send(body=b"open", properties={"TIMER_DELAY_SEC": "30"})
    wheel_ms = broker.now_ms + 20_000
    storage.crash()
    assert storage.load("config/timers.json") is None
    storage.replace("config/timercheck", wheel_ms.to_bytes(8, "big") + bytes(24))
    broker = make(storage)
    broker.later(60_000)
    assert bodies(broker) == [b"open"]


def spoil(broker, offsets):
    """A page in the body of each of these."""
    queue = broker.core.state.store.queue(TIMER_TOPIC, 0)
    broker.storage.log.bad_pages = {queue.entry(offset)[0] // PIECE_BYTES + 1 for offset in offsets}


def test_messages_on_scattered_bad_pages_hold_up_no_other(make):
    """Each was waited for in turn: a good one came after as many times ten seconds."""
    broker = make(CountedStorage())
    count = 3 * TRIED_MAX
    for number in range(count):
        broker.send(body=b"%02d" % number * 4_000, properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": f"U{number}"})
    broker.send(body=b"good", properties={"TIMER_DELAY_MS": "1000"})
    for _ in range(100):
        broker.send(body=bytes(9_000), queue_id=1)
    spoil(broker, range(count))
    before = broker.storage.log.failed_reads
    broker.later(1_000)
    assert broker.storage.log.failed_reads - before <= 4 * TRIED_MAX, "each may take the disk seconds"
    broker.later(100)
    broker.later(100)
    broker.later(100)
    assert bodies(broker) == [b"good"]
    assert broker.core.trouble == "cannot read: Input/output error"
    broker.storage.log.bad_pages = set()
    broker.later(1_000)
    assert len(bodies(broker)) == count + 1


def test_of_a_genuine_store_what_its_wheel_has_passed_is_not_delivered_either_where_it_is_read_late(make):
    storage = CountedStorage()
    broker = make(storage)
    broker.send(body=b"delivered" * 1_000, properties={"TIMER_DELAY_SEC": "10"})
    broker.send(body=b"open", properties={"TIMER_DELAY_SEC": "30"})
    for _ in range(40):
        broker.send(body=bytes(9_000), queue_id=1)
    wheel_ms = broker.now_ms + 20_000
    broker.core.stop()
    for name in [name for name in storage._tables if "timers" in name]:
        del storage._tables[name]
    storage.open(TIMERS_JOURNAL, 1, buffered=True).reset(0)
    storage.replace("config/timercheck", wheel_ms.to_bytes(8, "big") + bytes(24))
    spoil(broker, [0])
    broker.start()
    assert len(broker.core.state.timers) == 2
    storage.log.bad_pages = set()
    broker.later(60_000)
    assert bodies(broker) == [b"open"]
    assert broker.core.state.timers.dump() == b'{"delivered":[],"floor":2}'


# Saving what was delivered


class TableStorage(MemoryStorage):
    """Counts the bytes of the tables."""

    table_bytes = 0

    def replace(self, table, content, *, sync=False):
        self.table_bytes += len(content)
        super().replace(table, content, sync=sync)


class CountedTimers(Timers):
    """Counts the open messages that are looked at to save what was delivered."""

    looked_at = 0

    def dump(self):
        self.looked_at += len(self)
        return super().dump()


def saved_bytes(waiting, deliveries):
    """What so many deliveries cost, one saved after the other, beside so many that wait: bytes, and messages looked at."""
    storage, timers = TableStorage(), CountedTimers()
    saved = SavedTimers(storage, timers)
    due = {"REAL_TOPIC": "T", "TIMER_OUT_MS": "1"}

    def store(offset, **properties):
        raw = encode_properties({**due, **properties}).encode()
        timers.stored(StoredMessage("rmq_sys_wheel_timer", b"", raw, queue_offset=offset))

    for offset in range(waiting):
        store(2 * offset, UNIQ_KEY="waits")
    for number in range(deliveries):
        store(10**6 + 2 * number, UNIQ_KEY=f"U{number}")
        store(10**6 + 2 * number + 1, TIMER_DEL_UNIQKEY=f"T+U{number}")
        saved.note(0)
        saved.save(0)
        saved.journal.end()
    return storage.open(TIMERS_JOURNAL, 1, buffered=False).end + storage.table_bytes, timers.looked_at


def test_a_delivery_costs_the_same_however_many_messages_wait():
    few, many = saved_bytes(waiting=100, deliveries=300), saved_bytes(waiting=20_000, deliveries=300)
    assert few == many
    assert few[1] == 0


def test_the_whole_table_is_paid_by_the_deliveries_before_it():
    deliveries, waiting = 25_000, 12_000
    _, looked_at = saved_bytes(waiting, deliveries)
    assert 0 < looked_at <= 2 * deliveries


def test_a_line_says_what_was_closed_and_nothing_else_is_believed():
    offsets = [7, 3, 4, 5, 90]
    assert closed_in(closed_text(offsets)) == sorted(offsets)
    line = checked_line(closed_text(offsets))
    for at in range(len(line) - 1):
        assert checked_text(line[:at]) is None
        assert checked_text(line[:at] + b"9" + line[at + 1 : -1]) in (None, closed_text(offsets))


def test_a_kill_at_any_byte_of_the_journal_loses_nothing_and_repeats_only_the_last_lines(make):
    broker = make(MemoryStorage())
    for number in range(4):
        broker.send(body=b"%d" % number, properties={"TIMER_DELAY_MS": str(3_500 * (number + 1))})
    ends = [0]
    for _ in range(3):  # each delivery is a line
        broker.later(2_500)
        broker.later(1_000)
        ends.append(broker.storage.open(TIMERS_JOURNAL, 1, buffered=False).end)
    delivered = bodies(broker)
    assert delivered == [b"0", b"1", b"2"]
    assert ends == sorted(set(ends))
    for cut in range(ends[-1] + 1):
        storage = deepcopy(broker.storage)
        journal = storage.open(TIMERS_JOURNAL, 1, buffered=False)
        journal.truncate(cut)
        again = make(storage)
        again.now_ms = broker.now_ms
        again.later(100_000)
        lines = sum(end <= cut for end in ends[1:])
        repeated = delivered[lines:]
        assert sorted(bodies(again)) == sorted([b"0", b"1", b"2", b"3", *repeated])
        again.crash()
        again.later(100_000)
        assert len(bodies(again)) == 4 + len(repeated), "what was appended after a torn line is read"


def test_the_journal_begins_anew_when_the_table_has_all_of_it(broker):
    broker.core.state.saved_timers.journal.whole_after_min = 3
    for number in range(5):
        broker.send(body=b"%d" % number, properties={"TIMER_DELAY_MS": str(1_100 * (number + 1))})
    journal = broker.storage.open(TIMERS_JOURNAL, 1, buffered=False)
    lengths = []
    for _ in range(8):
        broker.later(1_100)
        lengths.append(journal.end - journal.start)
    assert 0 in lengths[2:]
    assert max(lengths) > 0
    assert b'"floor":' in broker.storage.load(TIMERS_TABLE)
    broker.crash()
    broker.later(100_000)
    assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]


class LateTables(MemoryStorage):
    """The disk has a table at the third look."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def is_saved(self, *tables):
        self.looks += 1
        return self.looks % 3 == 0


def test_a_journal_to_which_something_is_always_appended_stays_short_and_a_kill_at_any_byte_loses_nothing():
    storage = LateTables()
    journal = Journal(storage, "journal", "table")
    journal.whole_after_min = 5
    lines_most = 0
    for number in range(200):
        before = journal._file.end
        journal.append([b"%d" % number], 1)
        line_end = journal._file.end
        if journal.is_long(0):
            journal.write_table(b",".join([b"%d" % each for each in range(number + 1)]))
        journal.end()
        lines_most = max(lines_most, len(journal.texts()[0]))
        is_late = journal._table_has >= 0
        for cut in [*range(before, line_end + 1), journal._file.end]:
            killed = deepcopy(storage)
            file = killed.open("journal", 1, buffered=False)
            if cut < file.start:
                continue
            file.truncate(cut)
            texts, damaged = Journal(killed, "journal", "table").texts()
            assert damaged == 0
            for table in (killed.load("table"), killed.load_previous("table") if is_late else killed.load("table")):
                known = {int(text) for text in [*(table or b"").split(b","), *texts] if text}
                assert set(range(number + (cut >= line_end))) <= known <= set(range(number + 1)), (number, cut)
    assert lines_most <= 10


def test_a_damaged_line_of_the_journal_is_reported_and_repeats_what_it_had(broker):
    broker.send(properties={"TIMER_DELAY_MS": "500"})
    for _ in range(3):
        broker.later(1_000)
    broker.storage.open(TIMERS_JOURNAL, 1, buffered=False).overwrite(0, b"7")
    broker.crash()
    assert ("store.timers_journal_damaged", {"lines": 1}) in broker.core.state.events
    broker.later(1_000)
    assert len(bodies(broker)) == 2


def test_a_clean_stop_while_the_table_is_written_repeats_nothing(broker):
    saved = broker.core.state.saved_timers
    saved.journal.whole_after_min = 1
    for delay_ms in (500, 1_500):
        broker.send(properties={"TIMER_DELAY_MS": str(delay_ms)})
    broker.later(1_000)
    broker.later(600)
    broker.core.stop()
    broker.crash()
    broker.later(10_000)
    assert len(bodies(broker)) == 2


HOMELESS = {
    "no number": {"REAL_TOPIC": "T", "REAL_QID": "abc"},
    "below zero": {"REAL_TOPIC": "T", "REAL_QID": "-5"},
    "nothing": {},
    "its own topic": {"REAL_TOPIC": "SELF", "REAL_QID": "0"},
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC])
@pytest.mark.parametrize("properties", HOMELESS.values(), ids=HOMELESS)
def test_what_waits_and_does_not_say_where_it_belongs_is_passed_over_and_stops_nothing(make, topic, properties, killed):
    """Such a record of a damaged store ended every tick with an error, or was stored again and again without end."""
    broker = make()
    due_ms = broker.now_ms + 100
    given = {name: topic if value == "SELF" else value for name, value in properties.items()}
    text = encode_properties({"TIMER_OUT_MS": str(due_ms)} | given)
    record = StoredMessage(topic, b"lost", text.encode())
    broker.core.state.store.put(broker.now_ms, record, due_ms if topic == SCHEDULE_TOPIC else 0)
    broker.core.state.store.events.clear()
    if killed:
        broker.crash()
    for _ in range(4):
        broker.later(40_000)
    events = [event for event, _ in broker.core.state.store.events if event.endswith("_not_delivered")]
    assert len(events) == (topic != HALF_TOPIC), "of halves, those that are given up are copied"
    end = broker.core.state.store.log_end
    for _ in range(4):
        broker.later(40_000)
    assert broker.core.state.store.log_end == end, "nothing is stored again and again"
    broker.send(body=b"later", properties={"DELAY": "1"})
    broker.later(2_000)
    assert [message.body for message in broker.read()] == [b"later"]
