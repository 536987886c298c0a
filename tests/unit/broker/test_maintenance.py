"""What operators look at, clean and change: entries of queues, statistics, progress of all groups, the configuration."""

from __future__ import annotations

import sys

import pytest
from refusing_disk import RefusingDisk

from rocketcrew.broker.long_answers import (
    BODY_MAX_BYTES,
    OPERATIONS_MAX,
    WAITING_MAX,
    LongAnswers,
    refuse_too_large,
)
from rocketcrew.broker.put_get_stats import LONG_MS, NAMES_MAX, PutGetStats
from rocketcrew.broker.refusal import Refused
from rocketcrew.broker.retention import CLOCK_TABLE, HOLD_MS
from rocketcrew.conf.units import DAY_MS, HOUR_MS, MINUTE_MS
from rocketcrew.remoting.admin_bodies import (
    BrokerStatsData,
    ConsumeQueueEntries,
    ConsumerConnections,
    ConsumeStats,
    ConsumeStatsList,
    HaRuntimeInfo,
    ProducerConnections,
    ProducerTable,
    TopicList,
)
from rocketcrew.remoting.admin_headers import (
    BrokerStatsRequest,
    ConsumerConnectionRequest,
    ConsumeStatsInBroker,
    ConsumeStatsRequest,
    CreateTopic,
    ProducerConnectionRequest,
    QueryConsumeQueue,
    TopicName,
)
from rocketcrew.remoting.bodies import ResetOffsetBody
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.headers import ResetOffset, UpdateOffset
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages

pytestmark = pytest.mark.usefixtures("no_collection")


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


GROUPS, TOPICS = 25, 30


def with_many_offsets(make):
    """A broker with 25 groups that have offsets in 30 topics of four queues: 3,000 looks and more."""
    broker = make()
    for number in range(TOPICS):
        broker.send(f"T{number}")
        broker.send(f"T{number}", queue_id=1)
    for group in range(GROUPS):
        broker.heartbeat(f"g{group}", {}, channel=2)
        for number in range(TOPICS):
            broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset(f"g{group}", f"T{number}", 0, 1))
    return broker


def rounds_until_answered(broker, tools, opaque):
    """How many ticks it takes, and the answer."""
    for ticks in range(1, 1_000):
        assert broker.core.next_deadline_ms() == 0, "at once"
        for _, answer in tools.replies(broker.later(0)):
            if answer.opaque == opaque:
                return ticks, answer
    raise AssertionError("never answered")


def test_the_progress_of_very_many_queues_is_answered_in_rounds(make, tools):
    """One request looked at all queues of all groups in one turn, and everybody else waited."""
    broker = with_many_offsets(make)
    assert broker.request(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBroker(False)) == []
    opaque = broker.opaque
    assert broker.send("T0", queue_id=2).code == 0, "others are served meanwhile"
    again = broker.call(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBroker(False))
    assert again.code == ResponseCode.SYSTEM_BUSY
    ticks, answer = rounds_until_answered(broker, tools, opaque)
    looks = GROUPS * TOPICS * 4
    assert looks // OPERATIONS_MAX <= ticks <= 2 * looks // OPERATIONS_MAX
    found = ConsumeStatsList.decode(answer.body)
    groups = {group: parts for entry in found.consume_stats_list for group, parts in entry.items()}
    assert {name for name in groups if name[0] == "g"} == {f"g{number}" for number in range(GROUPS)}
    assert all(len(groups[f"g{number}"]) == TOPICS for number in range(GROUPS))
    behind = sum(
        queue.broker_offset - queue.consumer_offset
        for parts in groups.values()
        for part in parts
        for queue in part.offset_table.values()
    )
    assert found.total_diff == behind >= GROUPS * TOPICS
    assert not broker.core.state.long_answers.waiting


def test_a_group_in_very_many_topics_is_answered_in_rounds(make, tools):
    broker = make()
    for number in range(200):
        broker.send(f"T{number}")
        broker.heartbeat("g", {})
        broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", f"T{number}", 0, 1))
    assert broker.request(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g")) == []
    ticks, answer = rounds_until_answered(broker, tools, broker.opaque)
    table = ConsumeStats.decode(answer.body).offset_table
    assert (ticks, len(table)) == (800 // OPERATIONS_MAX, 800)
    assert table[MessageQueue("T7", "embedded", 0)].consumer_offset == 1
    assert broker.call(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g", "T7")).code == 0, "few are at once"


MEMBERS = 3 * OPERATIONS_MAX + 1


@pytest.mark.parametrize(
    ("code", "header", "members_of"),
    [
        (
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            ConsumerConnectionRequest("g"),
            lambda body: ConsumerConnections.decode(body).connection_set,
        ),
        (
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            ProducerConnectionRequest("pg"),
            lambda body: ProducerConnections.decode(body).connection_set,
        ),
        (RequestCode.GET_ALL_PRODUCER_INFO, None, lambda body: ProducerTable.decode(body).data["pg"]),
    ],
)
def test_a_group_of_very_many_members_is_listed_in_rounds(make, tools, code, header, members_of):
    """It was one turn, and everybody else waited."""
    broker = make()
    for number in range(MEMBERS):
        broker.heartbeat(channel=number + 1, client_id=f"c{number}")
    assert broker.request(code, header) == []
    ticks, answer = rounds_until_answered(broker, tools, broker.opaque)
    assert (answer.code, ticks) == (0, MEMBERS // OPERATIONS_MAX)
    assert [member.client_id for member in members_of(answer.body)] == [f"c{number}" for number in range(MEMBERS)]
    if code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
        assert ConsumerConnections.decode(answer.body).subscription_table["T"].sub_string == "*"


@pytest.mark.parametrize("oneway", [False, True])
def test_the_reset_of_very_many_queues_is_done_in_rounds_and_all_at_once(make, tools, oneway):
    broker, queues = make(), 1_000
    assert (
        broker.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", queues, queues, 6, "SINGLE_TAG")
        ).code
        == 0
    )
    for queue_id in (0, queues - 1):
        broker.send(queue_id=queue_id)
        broker.heartbeat()
        broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", queue_id, 1))
    header = ResetOffset("T", "g", 0, is_force=True)
    flag = FLAG_ONEWAY if oneway else 0
    assert broker.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, flag=flag) == []
    if not oneway:
        assert broker.core.state.offsets.query("T", "g", 0) == 1, "not half done"
        ticks, answer = rounds_until_answered(broker, tools, broker.opaque)
        assert (answer.code, ticks) == (0, queues // OPERATIONS_MAX)
        assert len(ResetOffsetBody.decode(answer.body).offset_table) == queues
    assert [broker.core.state.offsets.query("T", "g", queue_id) for queue_id in (0, queues - 1)] == [0, 0]


def test_a_reset_in_rounds_of_a_topic_that_is_deleted_meanwhile_is_refused(make, tools):
    broker = make()
    broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", 1_000, 1_000, 6, "SINGLE_TAG"))
    header = ResetOffset("T", "g", 0, is_force=True)
    assert broker.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header) == []
    opaque = broker.opaque
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T")).code == 0
    _, answer = rounds_until_answered(broker, tools, opaque)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert not broker.core.state.offsets.has_group("g")


def test_an_answer_in_rounds_goes_with_its_connection_and_an_error_in_it_is_an_answer(make, tools):
    broker = with_many_offsets(make)
    broker.request(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBroker(False), channel=7)
    assert broker.core.channel_closed(broker.now_ms, 7) == []
    assert not broker.core.state.long_answers.waiting

    def failing():
        for _ in range(OPERATIONS_MAX):
            yield
        refuse_too_large(BODY_MAX_BYTES + 1, "ask for less")

    command = Command(RequestCode.GET_CONSUME_STATS, opaque=77)
    assert broker.core.state.long_answers.begin(1, command, failing()) is None
    ((channel, answer),) = tools.replies(broker.later(0))
    assert (channel, answer.opaque, answer.code) == (1, 77, ResponseCode.SYSTEM_ERROR)
    assert answer.remark.endswith("ask for less")


def test_long_answers_are_made_by_turns_and_are_few():
    done = [0] * (WAITING_MAX + 1)

    def steps(number):
        for _ in range(2 * OPERATIONS_MAX):
            done[number] += 1
            yield
        return Command(0)

    answers = LongAnswers()
    for channel in range(WAITING_MAX):
        assert answers.begin(channel, Command(0), steps(channel)) is None
    assert set(done) == {OPERATIONS_MAX, 0}
    with pytest.raises(Refused, match="try again"):
        answers.begin(99, Command(0), steps(WAITING_MAX))
    assert answers.begin(100, Command(0, flag=FLAG_ONEWAY), steps(0)) is None
    assert len(answers.waiting) == WAITING_MAX


def test_what_expired_goes_when_asked_and_nothing_else_does(make):
    broker = make(retention_ms=60_000, mapped_file_size_commit_log=4_096)
    for number in range(100):
        broker.send(body=b"%d" % number)
        broker.now_ms += 1_000
    start = broker.core.state.store.log_start
    assert broker.call(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    kept = [
        int(message.body) for message in decode_messages(broker.pull(broker.core.state.store.min_offset("T", 0)).body)
    ]
    assert start < broker.core.state.store.log_start
    assert 20 <= kept[0] <= 40, "whole segments, of what is older than a minute"


@pytest.mark.parametrize("at_start", [False, True])
def test_a_clock_that_jumps_ahead_expires_nothing_for_an_hour(make, at_start):
    """Within seconds a wrong clock took all segments but the last."""
    broker = make(mapped_file_size_commit_log=4_096)
    for number in range(100):
        broker.send(body=b"%d" % number)
    broker.later(5_000)
    store = broker.core.state.store
    start = store.log_start
    if at_start:
        broker.now_ms += 30 * DAY_MS
        broker.crash()
        store = broker.core.state.store
    broker.later(5_000 if at_start else 30 * DAY_MS)
    events = [event for event, _ in store.events]
    assert events == ["store.nothing_expires_after_a_jump_of_the_clock"]
    for _ in range(59):
        broker.later(60_000)
        assert store.log_start == start
    for _ in range(2):
        broker.later(60_000)
    assert store.log_start > start, "it is true, it seems"
    assert len(store.events) == 1


def with_old_segments(make):
    broker = make(mapped_file_size_commit_log=4_096)
    for number in range(100):
        broker.send(body=b"%d" % number)
    broker.later(5_000)
    return broker


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_expired_does_not_go_when_asked_after_a_jump_of_the_clock(make, is_seen):
    """It went at once, though a timer would have left it."""
    broker = with_old_segments(make)
    store = broker.core.state.store
    start = store.log_start
    if is_seen:
        broker.later(30 * DAY_MS)
        broker.later(600_500)
    else:
        broker.now_ms += 30 * DAY_MS
    answer = broker.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert (answer.code, store.log_start) == (ResponseCode.SYSTEM_ERROR, start)
    assert answer.remark.startswith(f"nothing expires for {3_000 if is_seen else 3_600} s more: the clock has jumped")
    assert len(store.events) == 1
    broker.now_ms += HOLD_MS
    assert broker.call(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert store.log_start > start


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_kill_does_not_end_the_hold_of_a_clock_that_jumped(make, is_seen):
    """One message with the wrong time, and a start saw no jump: all segments but the last expired."""
    broker = with_old_segments(make)
    start = broker.core.state.store.log_start
    broker.now_ms += 30 * DAY_MS
    if is_seen:
        broker.later(0)
    broker.send()
    for _ in range(2):
        broker.crash()
        for _ in range(2):
            broker.later(600_000)
        assert broker.core.state.store.log_start == start
    broker.crash()
    for _ in range(3):
        broker.later(600_000)
    assert broker.core.state.store.log_start > start, "an hour after the jump was seen, whatever was killed meanwhile"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"seen_ms":"1","hold_until_ms":0}', b'{"seen_ms":1e999,"hold_until_ms":0}']
)
def test_a_start_that_does_not_know_the_clock_of_the_last_look_holds_too(make, text):
    broker = with_old_segments(make)
    start = broker.core.state.store.log_start
    broker.now_ms += 30 * DAY_MS
    broker.send()
    for _ in range(2):  # the generation before too
        broker.storage.replace(CLOCK_TABLE, text)
    broker.crash()
    for _ in range(59):
        broker.later(60_000)
        assert broker.core.state.store.log_start == start
    broker.later(60_000)
    assert broker.core.state.store.log_start > start


def test_a_hold_and_a_look_from_a_time_to_come_count_from_the_clock_that_was_put_right(make):
    broker = with_old_segments(make)
    start, right_ms = broker.core.state.store.log_start, broker.now_ms
    broker.later(365 * DAY_MS)
    broker.now_ms = right_ms
    broker.crash()
    assert broker.core.state.age_guard.hold_until_ms == right_ms + HOLD_MS
    broker.later(5_000)
    broker.later(30 * DAY_MS)
    assert broker.core.state.store.log_start == start, "another jump"
    assert len(broker.core.state.store.events) == 1


def test_a_clock_that_was_wrong_for_a_moment_takes_nothing_when_it_is_right_again(make):
    """The broker's time never goes back: an hour later all segments but the last were gone."""
    broker = with_old_segments(make)
    state = broker.core.state
    store, start = state.store, state.store.log_start
    for _ in range(2):
        broker.later(30 * DAY_MS)
        state.clock_ahead_ms += 30 * DAY_MS
        for _ in range(70):
            broker.later(60_000)
    assert store.log_start == start
    held = "store.nothing_expires_after_a_jump_of_the_clock"
    assert [event for event, _ in store.events] == [held, "store.clock_was_set_back", held]
    for _ in range(3):
        broker.later(35 * HOUR_MS)
    assert store.log_start > start, "by the right clock they are old"


def test_a_jump_that_the_disk_could_not_keep_is_found_again(make):
    broker = make(RefusingDisk(), mapped_file_size_commit_log=4_096)
    for number in range(100):
        broker.send(body=b"%d" % number)
    broker.later(5_000)
    start = broker.core.state.store.log_start
    broker.storage.refuses[CLOCK_TABLE] = 1
    broker.later(30 * DAY_MS)
    assert broker.core.trouble is not None
    broker.send()
    broker.crash()
    broker.later(5_000)
    assert broker.core.state.store.log_start == start
    assert len(broker.core.state.store.events) == 1


def test_a_broker_without_slaves_says_so(broker):
    broker.send()
    body = broker.call(RequestCode.GET_BROKER_HA_STATUS).body
    assert HaRuntimeInfo.decode(body) == HaRuntimeInfo(True, broker.core.state.store.log_end)
    assert body == (
        b'{"haClientRuntimeInfo":{"activated":false,"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
        b'"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true,'
        b'"masterCommitLogMaxOffset":%d}' % broker.core.state.store.log_end
    )


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
    assert (shown["brokerName"], shown["flushDiskType"], shown["fileReservedTime"]) == ("embedded", "SYNC_FLUSH", "72")
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
        ("diskMaxUsedSpaceRatio=99", ResponseCode.INVALID_PARAMETER),
        ("defaultTopicQueueNums=0", ResponseCode.INVALID_PARAMETER),
        ("defaultTopicQueueNums=1025", ResponseCode.INVALID_PARAMETER),
        ("fileReservedTime=0", ResponseCode.INVALID_PARAMETER),  # less than the longest level
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
