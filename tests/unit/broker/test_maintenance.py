"""What operators look at, clean and change: entries of queues, statistics, progress of all groups, the configuration."""

from __future__ import annotations

import sys

import pytest

from rocketcrew.broker.put_get_stats import DAY_MS, HOUR_MS, LONG_MS, MINUTE_MS, NAMES_MAX, PutGetStats
from rocketcrew.remoting.admin_bodies import BrokerStatsData, ConsumeQueueEntries, ConsumeStatsList, TopicList
from rocketcrew.remoting.admin_headers import BrokerStatsRequest, ConsumeStatsInBroker, QueryConsumeQueue
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.headers import UpdateOffset


def stats(broker, name, key):
    answer = broker.call(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsRequest(name, key))
    if answer.code:
        return answer
    found = BrokerStatsData.decode(answer.body)
    return found.stats_minute.sum, found.stats_hour.sum, found.stats_day.sum


def change(broker, text):
    return broker.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def config(broker):
    return dict(line.split("=", 1) for line in broker.call(RequestCode.GET_BROKER_CONFIG).body.decode().splitlines())


def test_entries_of_a_queue(broker):
    for number in range(5):
        broker.send(body=b"%d" % number, tag="red")
    broker.heartbeat()
    answer = broker.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue("T", 0, 3, 10, "g"))
    found = ConsumeQueueEntries.decode(answer.body)
    assert (found.min_queue_index, found.max_queue_index, len(found.queue_data)) == (0, 5, 2)
    entry = found.queue_data[0]
    message = broker.core.state.store.message_at(entry.physic_offset)
    assert (message.body, message.queue_offset, entry.tags_code) == (b"3", 3, java_hash("red"))
    assert found.subscription_data.sub_string == "*"
    none = ConsumeQueueEntries.decode(
        broker.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue("T", 0, 9, 9)).body
    )
    assert none.queue_data == ()
    missing = broker.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue("nothing", 0, 0, 1))
    assert missing.code == ResponseCode.SYSTEM_ERROR


def test_names_that_are_not_counted_cost_no_look_at_all_others():
    found, calls = PutGetStats(), 0
    for number in range(NAMES_MAX):
        found.add(0, "N", str(number), 1)

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for number in range(100):
            found.add(LONG_MS + number, "N", "other", 1)
    finally:
        sys.setprofile(before)
    assert calls < 5 * NAMES_MAX
    assert found.sums(LONG_MS, "N", "other") is None
    found.add(DAY_MS, "N", "other", 1)
    assert found.sums(DAY_MS, "N", "other") == {MINUTE_MS: 1, HOUR_MS: 1, DAY_MS: 1}


def test_messages_of_the_last_minute_hour_and_day(broker):
    for _ in range(3):
        broker.send()
    broker.pull(group="g")
    assert stats(broker, "TOPIC_PUT_NUMS", "T") == (3, 3, 3)
    assert stats(broker, "GROUP_GET_NUMS", "T@g") == (3, 3, 3)
    broker.later(30 * 60_000)
    broker.send()
    assert stats(broker, "TOPIC_PUT_NUMS", "T") == (1, 4, 4)
    broker.later(3_600_000)
    assert stats(broker, "TOPIC_PUT_NUMS", "T") == (0, 0, 4)
    assert stats(broker, "TOPIC_PUT_NUMS", "other").code == ResponseCode.SYSTEM_ERROR


def test_statistics_are_bounded_in_time_and_names():
    counted = PutGetStats()
    for minute in range(3 * 24 * 60):
        counted.add(minute * MINUTE_MS, "n", "k", 1)
    end_ms = (3 * 24 * 60 - 1) * MINUTE_MS
    sums = counted.sums(end_ms, "n", "k")
    assert sums[MINUTE_MS] == 1
    assert 50 <= sums[HOUR_MS] <= 60
    assert DAY_MS // MINUTE_MS - 10 <= sums[DAY_MS] <= DAY_MS // MINUTE_MS
    counter = counted._counters["n", "k"]
    assert (len(counter.short) <= 7, len(counter.long) <= 145) == (True, True)
    for number in range(NAMES_MAX + 5):
        counted.add(end_ms, "n", str(number), 1)
    assert len(counted._counters) == NAMES_MAX
    counted.add(end_ms + 2 * DAY_MS, "n", "later", 1)
    assert list(counted._counters) == [("n", "later")]


def test_progress_of_all_groups(broker):
    for number in range(6):
        broker.send(queue_id=number % 2)
    broker.heartbeat("g")
    broker.heartbeat("idle", channel=2)
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 2))
    answer = broker.call(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBroker(False))
    found = ConsumeStatsList.decode(answer.body)
    groups = {group: parts for entry in found.consume_stats_list for group, parts in entry.items()}
    assert (groups["idle"], found.total_diff, found.broker_addr) == ((), 4, "127.0.0.1:10911")
    (part,) = groups["g"]
    assert sum(queue.broker_offset for queue in part.offset_table.values()) == 6
    ordered = broker.call(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBroker(True))
    assert ConsumeStatsList.decode(ordered.body).total_diff == 0


def test_cleaning_takes_nothing_that_is_used(broker):
    broker.send()
    for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
        assert broker.call(code).code == 0
    assert [message.body for message in broker.read()] == [b"x"]
    topics = TopicList.decode(broker.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topic_list
    assert "SCHEDULE_TOPIC_XXXX" in topics
    assert "T" not in topics


def test_the_configuration_has_rocketmqs_names_and_is_changed_by_them(broker):
    shown = config(broker)
    assert (shown["brokerName"], shown["flushDiskType"], shown["fileReservedTime"]) == ("broker-a", "SYNC_FLUSH", "72")
    assert change(broker, "fileReservedTime=48\nmaxMessageSize=10\n").code == 0
    assert (config(broker)["fileReservedTime"], config(broker)["maxMessageSize"]) == ("48", "10")
    assert broker.send(body=b"more than ten bytes").code == ResponseCode.MESSAGE_ILLEGAL
    ((event, fields),) = broker.core.state.store.events
    assert (event, fields["retention_ms"]) == ("broker.config_changed", 48 * 3_600_000)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("listenPort=1", ResponseCode.NO_PERMISSION),
        ("noSuchName=1", ResponseCode.NO_PERMISSION),
        ("maxMessageSize=much", ResponseCode.INVALID_PARAMETER),
        ("maxMessageSize=-1", ResponseCode.INVALID_PARAMETER),
        ("diskMaxUsedSpaceRatio=99", ResponseCode.SYSTEM_ERROR),
        ("longPollingEnable=perhaps", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_what_cannot_be_changed_is_refused_whole(broker, text, code):
    before = config(broker)
    answer = change(broker, f"fileReservedTime=48\n{text}\n")
    assert answer.code == code
    assert answer.remark
    assert config(broker) == before


def test_short_polling_looks_once_more_and_is_not_woken(broker, tools):
    broker.send()
    assert change(broker, "longPollingEnable=false\nshortPollingTimeMills=700").code == 0
    opaque = broker.hold(1)
    broker.send(body=b"new")
    assert not [answer for _, answer in tools.replies(broker.effects) if answer.opaque == opaque]
    ((_, answer),) = tools.replies(broker.later(700))
    assert (answer.opaque, answer.code) == (opaque, 0)
