"""Timer messages of 5.x: at their millisecond, once, over a kill, taken back; what a genuine broker's wheel had come to."""

from __future__ import annotations

import pytest

from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.client.recall import decode_handle
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import EndTransaction, RecallMessage, SendResponse
from rocketcrew.remoting.ids import parse_offset_message_id

DAY_MS = 86_400_000


def bodies(broker, topic="T"):
    return [message.body for message in broker.read(topic)]


def recall(broker, handle, topic="T"):
    return broker.call(RequestCode.RECALL_MESSAGE, RecallMessage(topic, handle, "pg", "broker-a"))


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
    assert decode_handle(handle) == ("T", "broker-a", str(broker.now_ms + 60_000), "U1")
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
