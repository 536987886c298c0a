"""CONSUMER_SEND_MSG_BACK and delayed messages."""

from __future__ import annotations

import pytest

from rocketcrew import Retry
from rocketcrew.broker.storage import StorageError
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.admin_headers import TopicName
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import SendBack
from rocketcrew.remoting.names import DELAY_LEVEL_MAX, SCHEDULE_TOPIC
from rocketcrew.remoting.stored import StoredMessage


def test_a_retry_arrives_after_its_delay(broker):
    broker.send(body=b"again", tag="a", properties={"KEYS": "k"}, flag=3, sys_flag=0x301)
    (message,) = broker.read()
    assert broker.send_back(message, delay_level=2).code == 0
    broker.later(499)
    assert broker.read(topic="%RETRY%g") == []
    broker.later(1)
    (retry,) = broker.read(topic="%RETRY%g")
    assert (retry.body, retry.flag, retry.sysflag, retry.reconsume_times) == (b"again", 3, 0x301, 1)
    assert (retry.born_timestamp_ms, retry.born_port) == (message.born_timestamp_ms, message.born_port)
    wanted = {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
        "DELAY": "2",
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
        "TAGS": "a",
        "UNIQ_KEY": message.properties["UNIQ_KEY"],
    }
    assert wanted.items() <= retry.properties.items()
    assert broker.pull(topic="%RETRY%g", tags="a").code == 0, "its entry has the tag again, not the delivery time"


def test_the_second_retry_keeps_the_origin_and_takes_the_next_level(make):
    broker = make(message_delay_level="100ms 200ms 300ms 400ms 500ms")
    broker.send()
    (message,) = broker.read()
    broker.send_back(message, delay_level=0)
    broker.later(300)
    (retry,) = broker.read(topic="%RETRY%g")
    assert retry.properties["DELAY"] == "3"
    broker.send_back(retry, delay_level=0)
    broker.later(399)
    assert len(broker.read(topic="%RETRY%g")) == 1
    broker.later(1)
    second = broker.read(topic="%RETRY%g")[1]
    assert (second.reconsume_times, second.properties["DELAY"]) == (2, "4")
    assert second.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    assert second.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize("levels", [2, 30])
def test_a_level_that_is_above_the_highest_waits_as_long_as_that_one(make, levels):
    """Whatever a message or its retry may ask for: only the broker knows how many levels it has."""
    broker = make(message_delay_level=" ".join(f"{second}s" for second in range(1, levels + 1)))
    later = OutgoingMessage("T", b"later", delay_level=DELAY_LEVEL_MAX)
    later.check()
    broker.send()
    (message,) = broker.read()
    broker.send(body=b"later", properties={"DELAY": str(later.delay_level)})
    assert broker.send_back(message, delay_level=Retry(delay_level=DELAY_LEVEL_MAX).delay_level).code == 0
    broker.later(levels * 1_000 - 1)
    assert len(broker.read()) == 1
    assert broker.read(topic="%RETRY%g") == []
    broker.later(1)
    assert broker.read()[1].body == b"later"
    assert len(broker.read(topic="%RETRY%g")) == 1


@pytest.mark.parametrize(("limit", "level", "dead"), [(1, 1, False), (0, 1, True), (16, -1, True)])
def test_the_dead_letter_queue(broker, limit, level, dead):
    broker.send()
    (message,) = broker.read()
    assert broker.send_back(message, limit=limit, delay_level=level).code == 0
    assert len(broker.read(topic="%DLQ%g")) == dead
    broker.later(1_000)
    assert len(broker.read(topic="%RETRY%g")) == (not dead)
    if dead:
        (message,) = broker.read(topic="%DLQ%g")
        assert (message.reconsume_times, message.properties["RETRY_TOPIC"]) == (1, "T")
        assert broker.core.state.topics.get("%DLQ%g").perm == 6


def test_the_limit_of_the_group_counts_when_the_request_has_none(broker):
    broker.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig("g", retry_max_times=0).encode()
    )
    broker.send()
    header = SendBack(broker.read()[0].physical_offset, "g", 1)
    broker.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert len(broker.read(topic="%DLQ%g")) == 1


def test_properties_that_are_no_utf8_are_sent_back_as_by_a_genuine_broker(broker):
    """Java's reader has U+FFFD for each such byte (CO/message/MessageDecoder.java)."""
    store = broker.core.state.store
    broker.send()
    odd = store.put(broker.now_ms, StoredMessage("T", b"odd", b"K\x01\xff\x02TAGS\x01a\x02", queue_id=0), 0)
    assert broker.send_back(odd).code == 0
    broker.later(1_000)
    (again,) = broker.read(topic="%RETRY%g")
    assert (again.body, again.properties["K"], again.properties["TAGS"]) == (b"odd", "\ufffd", "a")


def test_refusals(broker, make):
    broker.send()
    (message,) = broker.read()
    header = SendBack(message.physical_offset + 1, "g", 1)
    answer = broker.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "look message by offset failed" in answer.remark
    other = make(auto_create_group=False)
    assert other.send_back(message).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    silent = SubscriptionGroupConfig("h", retry_queue_nums=0)
    broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=silent.encode())
    assert broker.send_back(message, "h").code == 0
    assert "%RETRY%h" not in broker.core.state.topics


def test_user_delay_and_the_held_pull_it_wakes(broker, tools):
    broker.send(body=b"now")
    held = broker.hold(1)
    answer = broker.send(body=b"late", properties={"DELAY": "3"}, tag="a")
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")
    assert len(broker.effects) == 1
    assert broker.core.next_deadline_ms() <= broker.now_ms + 1_000
    ((_, woken),) = tools.replies(broker.later(1_000))
    assert (woken.opaque, woken.code) == (held, 0)
    assert [message.body for message in broker.read()] == [b"now", b"late"]


def test_levels_above_the_highest_are_the_highest(broker):
    broker.send(properties={"DELAY": "18"})
    broker.later(999)
    assert broker.read() == []
    broker.later(1)
    assert broker.read()[0].properties["DELAY"] == "18"


def test_order_within_and_between_levels(broker):
    for number, level in enumerate((3, 1, 2, 1)):
        broker.send(body=b"%d" % number, properties={"DELAY": str(level)})
    for _ in range(10):
        broker.later(100)
    assert [message.body for message in broker.read()] == [b"1", b"3", b"2", b"0"]


def test_one_tick_delivers_a_bounded_number(make):
    broker = make(deliver_batch_max=10)
    for _ in range(25):
        broker.send(properties={"DELAY": "1"})
    broker.later(200)
    assert len(broker.read()) == 10
    assert broker.core.next_deadline_ms() <= broker.now_ms
    broker.later(0)
    broker.later(0)
    assert len(broker.read()) == 25


def test_a_level_with_more_than_a_round_takes_does_not_hold_up_the_others(make):
    broker = make(deliver_batch_max=10)
    for level in ("2", "3"):
        broker.send(topic="U", properties={"DELAY": level})
    for _ in range(10):
        for _ in range(30):
            broker.send(properties={"DELAY": "1"})
        broker.later(120)
    assert len(broker.read("U")) == 2


def test_a_delayed_message_whose_body_is_damaged_is_named(broker):
    for body in (b"A" * 50, b"B" * 50):
        broker.send(body=body, properties={"DELAY": "1"})
    log = broker.storage.open("commitlog", 1, buffered=False)
    log.overwrite(log.read(0, log.end).index(b"A" * 50), b"X")
    for _ in range(5):
        broker.later(100)
    assert [message.body for message in broker.read()] == [b"B" * 50]
    gone = ("store.delayed_message_gone", {"delay_level": 1, "queue_offset": 0, "count": 1})
    assert list(broker.core.state.store.events) == [gone]


def test_a_clock_that_was_set_back_does_not_hold_messages_for_ever(broker):
    broker.send(properties={"DELAY": "1"})
    broker.now_ms -= 3_600_000
    broker.later(0)
    assert len(broker.read()) == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_what_retention_took_of_a_level_is_said_with_its_number(make, before, is_killed):
    """Disk share or retention took them before their time, and nobody heard of it."""
    broker = make(message_delay_level="1s 1h", retention_ms=3_600_000, mapped_file_size_commit_log=4_096)
    for _ in range(before):
        broker.send(properties={"DELAY": "2"})
    broker.later(3_600_000)
    for number in range(3):
        broker.send(body=b"%d" % number, properties={"DELAY": "2"})
    for _ in range(40):
        broker.send("Filler", body=bytes(200))
    for _ in range(2):
        broker.later(5_000)
    store = broker.core.state.store
    store.drop_older_than(broker.now_ms)
    assert store.min_offset(SCHEDULE_TOPIC, 1) == before + 3
    if is_killed:
        broker.crash()
    broker.later(3_600_000)
    gone = ("store.delayed_message_gone", {"delay_level": 2, "queue_offset": before, "count": 3})
    events = list(broker.core.state.store.events)
    assert events.count(gone) == (1 if before or not is_killed else 0), "without a table nobody knows"
    assert broker.core.state.store.max_offset("T", 0) == before


def test_delays_survive_a_kill_and_are_delivered_once(broker):
    broker.send(body=b"early", properties={"DELAY": "1"})
    broker.send(body=b"late", properties={"DELAY": "3"})
    broker.later(200)
    broker.crash()
    broker.later(100)
    assert [message.body for message in broker.read()] == [b"early"]
    broker.later(700)
    assert [message.body for message in broker.read()] == [b"early", b"late"]
    broker.crash()
    broker.later(10_000)
    assert len(broker.read()) == 2


def test_a_delayed_message_of_a_deleted_topic_is_dropped_alone(broker):
    broker.send(properties={"DELAY": "1"})
    broker.send(topic="U", body=b"stays", properties={"DELAY": "1"})
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    broker.later(200)
    assert [message.body for message in broker.read(topic="U")] == [b"stays"]
    assert "T" not in broker.core.state.topics


def test_a_disk_that_refuses_pauses_the_delivery_and_loses_nothing(broker):
    broker.send(properties={"DELAY": "1"})
    log = broker.core.state.store._log
    whole = type(log).append

    class Refusing(type(log)):
        __slots__ = ()
        refuse = True

        def append(self, data):
            if Refusing.refuse:
                raise StorageError("cannot write commitlog: No space left on device")
            return whole(self, data)

    log.__class__ = Refusing
    assert broker.later(200) == []
    assert "No space left" in broker.core.trouble
    assert broker.core.next_deadline_ms() > broker.now_ms, "no busy loop"
    Refusing.refuse = False
    broker.later(1_000)
    assert len(broker.read()) == 1


@pytest.mark.parametrize("delay", ["DELAY", "TIMER_DELAY_MS", "TRAN_MSG"])
def test_properties_without_room_for_those_of_a_delay_or_a_half_are_illegal(broker, delay):
    given = {delay: "true" if delay == "TRAN_MSG" else "1"}
    room = 32_767 - len("x") - 2 - 120  # the broker's own need fewer
    own = sum(len(name) + len(value) + 2 for name, value in given.items())
    refused = [
        answer
        for filler in range(room - own, room - own + 120)
        if (answer := broker.send(properties=given | {"x": "a" * filler})).code
    ]
    assert refused, "one of them is too long"
    assert {answer.code for answer in refused} == {ResponseCode.MESSAGE_ILLEGAL}
    assert all("propert" in answer.remark for answer in refused)


def test_a_send_back_without_room_for_its_properties_is_refused_as_by_a_genuine_broker(broker):
    assert broker.send(properties={"x": "a" * 32_600}).code == 0
    (message,) = broker.read()
    answer = broker.send_back(message)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "32767" in answer.remark
    broker.later(10_000)
    assert broker.read(topic="%RETRY%g") == []
