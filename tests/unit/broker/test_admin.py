"""What administration tools ask: topics, groups, statistics, messages by id and key, clients' own answers."""

from __future__ import annotations

import sys

import pytest
from refusing_disk import RefusingDisk

from rocketcrew.broker.effects import SILENCE, Later
from rocketcrew.broker.offset_table import PAIRS_MAX
from rocketcrew.broker.removed_topics import REMOVED_JOURNAL
from rocketcrew.broker.state import GROUPS_TABLE, OFFSETS_TABLE, TOPICS_JOURNAL
from rocketcrew.remoting.admin_bodies import (
    ConsumeStats,
    GroupList,
    KvTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStats,
)
from rocketcrew.remoting.admin_headers import (
    ConsumeStatsRequest,
    CreateTopic,
    DeleteGroup,
    GroupName,
    TopicName,
)
from rocketcrew.remoting.bodies import ConsumerData, ConsumerStatus, HeartbeatData
from rocketcrew.remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import (
    ConsumeDirectly,
    ConsumerStatusRequest,
    EarliestStoreTime,
    GetRoute,
    MaxOffset,
    MinOffset,
    QueryMessage,
    QueryOffset,
    RunningInfoRequest,
    SearchOffset,
    SendRequestV2,
    UpdateOffset,
    ViewMessage,
)
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_message, decode_messages

pytestmark = pytest.mark.usefixtures("no_collection")


def create(broker, name="T", queues=4, perm=6, attributes=None):
    header = CreateTopic(name, "TBW102", queues, queues, perm, "SINGLE_TAG", attributes=attributes)
    return broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def route_code(broker, topic):
    return broker.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic)).code


def test_topics(broker):
    assert create(broker, queues=3).code == 0
    assert route_code(broker, "T") == 0
    changes = broker.core.state.topics.changes
    assert create(broker, queues=3).code == 0
    assert broker.core.state.topics.changes == changes, "the same again changes nothing"
    assert create(broker, queues=5, attributes="+a=1,+b=2").code == 0
    assert create(broker, queues=5, attributes="-a").code == 0
    answer = broker.call(RequestCode.GET_TOPIC_CONFIG, TopicName("T"))
    topic = TopicConfig.decode(answer.body)
    assert (topic.read_queue_nums, topic.attributes) == (5, {"b": "2"})
    table = TopicConfigTable.decode(broker.call(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert {"T", "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "embedded", "DefaultCluster"} <= {
        *table.topic_config_table
    }
    broker.crash()
    assert broker.core.state.topics.get("T").read_queue_nums == 5


@pytest.mark.parametrize("name", ["", "TBW102", "bad topic", "t" * 128])
def test_topics_that_cannot_be(broker, name):
    assert create(broker, name).code == ResponseCode.INVALID_PARAMETER


def test_topic_limits(broker, make):
    assert create(broker, queues=0).code == ResponseCode.INVALID_PARAMETER
    assert create(broker, queues=5_000).code == ResponseCode.INVALID_PARAMETER
    assert create(broker, attributes="nonsense").code == ResponseCode.INVALID_PARAMETER
    assert create(make(topics_max=0)).code == ResponseCode.INVALID_PARAMETER
    assert broker.call(RequestCode.GET_TOPIC_CONFIG, TopicName("no")).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_deleted_topic_is_gone_with_its_offsets_and_starts_anew(broker):
    broker.send(body=b"old")
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T")).code == 0
    assert route_code(broker, "T") == ResponseCode.TOPIC_NOT_EXIST
    assert broker.pull().code == ResponseCode.TOPIC_NOT_EXIST
    broker.send(body=b"new")
    broker.crash()
    assert [message.body for message in broker.read()] == [b"new"]
    assert broker.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("g", "T", 0)).fields["offset"] == "0"
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("TBW102")).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("header", [DeleteGroup("g", clean_offset=True), DeleteGroup("g", remove_offset=True)])
def test_a_group_is_deleted_with_its_offsets_by_tools_of_both_eras(broker, header):
    broker.send()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    assert broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == 0
    assert broker.core.state.offsets.query("T", "g", 0) is None


def test_groups(broker):
    group = SubscriptionGroupConfig("g", retry_max_times=3)
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode()).code == 0
    assert (
        SubscriptionGroupConfig.decode(broker.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName("g")).body)
        == group
    )
    table = SubscriptionGroupTable.decode(broker.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table.subscription_group_table == {"g": group}
    broker.later(1_000)
    broker.crash()
    assert broker.core.state.groups.known("g") == group
    broker.send()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    assert broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g", True)).code == 0
    assert broker.core.state.groups.known("g") is None
    assert broker.core.state.offsets.query("T", "g", 0) is None
    missing = broker.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName("g"))
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bad = SubscriptionGroupConfig("bad name").encode()
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bad).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("deleted", [False, True])
def test_what_an_administrator_was_answered_about_a_group_holds_over_a_kill(broker, deleted):
    broker.send()
    body = SubscriptionGroupConfig("g", retry_max_times=3).encode()
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    if deleted:
        broker.later(1_000)
        assert broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g", True)).code == 0
    broker.crash()
    assert (broker.core.state.groups.known("g") is None) == deleted
    assert broker.core.state.offsets.query("T", "g", 0) is None


@pytest.mark.parametrize("killed", [True, False])
def test_offsets_of_a_deleted_topic_do_not_come_to_the_next_one_of_its_name(broker, killed):
    """They were saved before, and the topic of that name that was made next had its first messages passed over."""
    for _ in range(3):
        broker.send("T", b"old")
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    broker.later(1_000)
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T")).code == 0
    if killed:
        broker.crash()
    for _ in range(5):
        broker.send("T", b"new")
    broker.crash()
    assert broker.core.state.offsets.query("T", "g", 0) is None


def test_offsets_of_a_topic_that_was_made_again_hold_over_a_kill(broker):
    """The journal has its deletion still; that took back the answered reset, and what the group had committed since."""
    broker.send("T", b"old")
    broker.send("U")
    broker.later(1_000)
    for topic in "TU":
        assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic)).code == 0
        for _ in range(3):
            broker.send(topic, b"new")
    broker.heartbeat()
    assert broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 2)).code == 0
    assert broker.reset(topic="U", queue_id=0, offset=3).code == 0
    broker.crash()
    assert [broker.core.state.offsets.query(topic, "g", 0) for topic in "TU"] == [2, 3]


@pytest.mark.parametrize("refused", [TOPICS_JOURNAL, REMOVED_JOURNAL, OFFSETS_TABLE])
def test_a_deletion_that_the_disk_refused_is_done_when_it_is_asked_for_again(make, refused):
    broker = make(RefusingDisk())
    broker.send(body=b"old")
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    broker.later(1_000)
    broker.storage.refuses[refused] = 1
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert ("T" in broker.core.state.topics) == (refused == TOPICS_JOURNAL)
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T")).code == 0
    assert "T" not in broker.core.state.topics
    broker.send(body=b"new")
    for _ in range(2):
        assert [message.body for message in broker.read()] == [b"new"]
        assert broker.core.state.offsets.query("T", "g", 0) is None
        broker.crash()


def test_group_names_of_requests_leave_nothing_behind(make):
    """10,000 of them ended all new groups for good, made even by requests that were refused."""
    broker = make(topics_max=100)
    broker.send()
    for number in range(300):
        broker.pull(group=f"p{number}")
        header = UpdateOffset(f"c{number}", "missing", 0, 7)
        answer = broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert (answer.code, answer.remark) == (
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group c{number} not exist!",
        )
        header = UpdateOffset(f"c{number}", "T", 0, 7)
        code = broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code
        assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert broker.reset(group=f"no group {number}").code == ResponseCode.INVALID_PARAMETER
    assert broker.core.state.offsets.groups_of("T") == []
    assert broker.heartbeat("a-new-one").code == 0
    assert broker.core.state.clients.consumer_group("a-new-one").client_ids() == ["c1"]
    assert set(broker.core.state.groups.names()) == {"a-new-one"}


def test_a_reset_asks_for_room_too(broker):
    broker.send()
    broker.heartbeat()
    for number in range(1, PAIRS_MAX):
        broker.core.state.offsets.commit(f"T{number}", "g", 0, 0)
    broker.core.state.offsets.commit("T", "g", 0, 0)
    assert broker.reset(group="one-more").code == ResponseCode.SYSTEM_BUSY
    assert broker.reset(group="g").code == 0


def test_a_group_that_a_member_made_commits_after_a_kill_at_once(broker):
    """Its settings are saved each second, its retry topic at once."""
    broker.send()
    broker.heartbeat()
    broker.crash()
    assert broker.core.state.groups.known("g") is None
    assert broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1)).code == 0


def test_groups_that_nobody_needs_make_room_for_new_ones(make):
    broker = make(topics_max=100)
    broker.core.state.groups._groups_max = 40
    broker.send()
    for number in range(300):
        assert broker.heartbeat(f"g{number}", channel=1_000 + number).code == 0
        broker.core.channel_closed(broker.now_ms, 1_000 + number)
    names = set(broker.core.state.groups.names())
    assert names == {f"g{number}" for number in range(260, 300)}
    topics = broker.core.state.topics
    assert ("%RETRY%g0" in topics, topics.of_groups_count <= 100) == (False, True)


def test_a_broker_full_of_groups_in_use_says_so(make):
    broker = make()
    broker.core.state.groups._groups_max = 3
    for number in range(3):
        broker.heartbeat(f"g{number}", channel=1_000 + number)
    answer = broker.heartbeat("one-more", channel=5)
    assert (answer.code, "3 consumer groups in use" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.heartbeat("g1", channel=5).code == 0


def test_new_groups_cost_a_broker_full_of_groups_with_offsets_one_look_at_each(make):
    """Each of 10,000 groups looked through all 180,000 pairs: one heartbeat held everybody up for seconds."""
    groups, pairs = 200, 4_000
    broker = make()
    state = broker.core.state
    state.groups._groups_max = groups
    for number in range(groups):
        broker.heartbeat(f"g{number}", channel=2)
    for number in range(pairs):
        state.offsets.commit(f"T{number // groups}", f"g{number % groups}", 0, 1)
    broker.core.channel_closed(broker.now_ms, 2)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    data = HeartbeatData("c3", consumer_data_set=tuple(ConsumerData(f"more{number}") for number in range(50)))
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        refused = broker.call(RequestCode.HEART_BEAT, body=data.encode(), channel=3)
    finally:
        sys.setprofile(before)
    assert "consumer groups in use" in refused.remark
    assert calls < 100 * groups


def test_a_group_has_offsets_until_the_last_is_forgotten(broker):
    offsets = broker.core.state.offsets
    for topic in "TU":
        offsets.commit(topic, "g", 0, 1)
        offsets.commit(topic, "g", 1, 1)
        offsets.reset(topic, "h", 0, 1)
    text = offsets.dump()
    offsets.forget_topic("T")
    offsets.forget_topic("T")
    assert (offsets.has_group("g"), offsets.has_group("h"), offsets.has_group("none")) == (True, True, False)
    offsets.forget_group("g")
    offsets.forget_topics(lambda topic: topic == "U")
    assert (offsets.has_group("g"), offsets.has_group("h")) == (False, False)
    for _ in range(2):  # read twice, counted once
        offsets.load(text)
    offsets.forget_topic("T")
    assert offsets.has_group("h")
    offsets.forget_topic("U")
    assert not offsets.has_group("h")


def test_queue_offsets(broker):
    for _ in range(3):
        broker.send()
        broker.now_ms += 100
    start = broker.now_ms - 300

    def ask(code, header):
        return broker.call(code, header).fields

    assert ask(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0)) == {"offset": "3"}
    assert ask(RequestCode.GET_MIN_OFFSET, MinOffset("T", 0)) == {"offset": "0"}
    assert ask(RequestCode.GET_MAX_OFFSET, MaxOffset("none", 9)) == {"offset": "0"}
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("T", 0, start + 150)) == {"offset": "2"}
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("T", 0, start + 150, "UPPER")) == {"offset": "1"}
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME, EarliestStoreTime("T", 0)) == {"timestamp": str(start)}
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME, EarliestStoreTime("T", 3)) == {"timestamp": "-1"}


def test_statistics(broker):
    for _ in range(3):
        broker.send(queue_id=1)
    broker.heartbeat(subscriptions={"T": "*", "%RETRY%g": "*"})
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 1, 2))
    stats = TopicStats.decode(broker.call(RequestCode.GET_TOPIC_STATS_INFO, TopicName("T")).body)
    assert len(stats.offset_table) == 4
    busy = stats.offset_table[MessageQueue("T", "embedded", 1)]
    assert (busy.min_offset, busy.max_offset, busy.last_update_timestamp) == (0, 3, broker.now_ms)
    assert broker.call(RequestCode.GET_TOPIC_STATS_INFO, TopicName("no")).code == ResponseCode.TOPIC_NOT_EXIST
    progress = ConsumeStats.decode(broker.call(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g")).body)
    assert len(progress.offset_table) == 5
    wrapper = progress.offset_table[MessageQueue("T", "embedded", 1)]
    assert (wrapper.broker_offset, wrapper.consumer_offset, wrapper.last_timestamp) == (3, 2, broker.now_ms)
    one = ConsumeStats.decode(broker.call(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g", "T")).body)
    assert len(one.offset_table) == 4
    groups = GroupList.decode(broker.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicName("T")).body)
    assert groups.group_list == ("g",)
    topics = TopicList.decode(broker.call(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupName("g")).body)
    assert topics.topic_list == ("T",)


def test_the_broker_about_itself(broker):
    broker.send()
    table = KvTable.decode(broker.call(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert (table["msgPutTotalTodayNow"], table["commitLogMinOffset"]) == ("1", "0")
    # mqadmin clusterList of 4.9 splits these and takes the first, and adds up the totals of both mornings.
    assert all(len(table[name].split(" ")) == 3 for name in ("putTps", "getTransferedTps", "getTransferredTps"))
    assert all(table[f"msg{way}Total{day}Morning"] == "0" for way in ("Put", "Get") for day in ("Yesterday", "Today"))
    assert b"\nmaxTransferCountOnMessageInMemory=32\n" in broker.call(RequestCode.GET_BROKER_CONFIG).body
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    assert broker.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"T@g":{0:1}}}'
    broker.send(properties={"DELAY": "2"})
    broker.later(500)
    assert broker.call(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{2:1}}'


def test_unknown_requests(broker):
    answer = broker.call(9_999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "9999" in answer.remark
    assert broker.call(RequestCode.PEEK_MESSAGE).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_messages_by_id_and_key(broker):
    broker.send(body=b"one", properties={"KEYS": "k1 k2", "UNIQ_KEY": "U1"})
    broker.send(body=b"two", queue_id=2, properties={"KEYS": "k2", "UNIQ_KEY": "U2"})
    (first,) = broker.read()
    view = broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(first.physical_offset))
    assert decode_message(view.body) == first
    missing = broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(1))
    assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 1")

    def ask(key, begin=0, end=broker.now_ms, unique=None):
        header = QueryMessage("T", key, 32, begin, end, unique)
        answer = broker.call(RequestCode.QUERY_MESSAGE, header)
        return answer.code or sorted(message.body for message in decode_messages(answer.body))

    assert ask("k2") == [b"one", b"two"]
    assert ask("k1") == [b"one"]
    assert ask("U2", unique=True) == [b"two"]
    assert ask("k1", unique=True) == ResponseCode.QUERY_NOT_FOUND
    assert ask("k1", end=broker.now_ms - 1) == ResponseCode.QUERY_NOT_FOUND
    assert ask("k1", begin=broker.now_ms + 1) == ResponseCode.QUERY_NOT_FOUND
    assert ask("k") == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("refused", [GROUPS_TABLE, OFFSETS_TABLE])
def test_a_group_that_the_disk_kept_from_being_deleted_or_changed_is_as_before(make, refused):
    broker = make(RefusingDisk())
    broker.send()
    changed, other = SubscriptionGroupConfig("g", retry_max_times=3), SubscriptionGroupConfig("g", retry_max_times=4)
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=changed.encode()).code == 0
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    broker.storage.refuses[refused] = 1
    deleted = broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g", True))
    broker.storage.refuses[GROUPS_TABLE] = 1
    answers = [broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=other.encode()), deleted]
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    for _ in range(2):
        assert broker.core.state.groups.known("g") == changed
        assert broker.core.state.offsets.query("T", "g", 0) == 1
        broker.later(1_000)
        broker.crash()
    assert broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g", True)).code == 0
    assert broker.core.state.groups.known("g") is None
    assert broker.core.state.offsets.query("T", "g", 0) is None


def test_a_clients_answer_is_passed_back(broker, tools):
    broker.heartbeat(channel=5)
    assert broker.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("g", "c1", True), channel=8)
    asked = broker.opaque
    ((channel, push),) = tools.pushes(broker.effects)
    assert (channel, push.code, push.fields["clientId"]) == (5, RequestCode.GET_CONSUMER_RUNNING_INFO, "c1")
    response = Command(0, {}, b"info", push.opaque, FLAG_RESPONSE)
    effects = broker.core.handle(broker.now_ms, 5, "127.0.0.1:1", response)
    ((channel, answer),) = tools.replies(effects)
    assert (channel, answer.opaque, answer.code, answer.body) == (8, asked, 0, b"info")
    assert broker.core.handle(broker.now_ms, 5, "127.0.0.1:1", response) == []


def test_nobody_answers_in_the_place_of_who_was_asked(broker, tools):
    """Any connection could: responses are not signed, and opaques can be guessed."""
    broker.heartbeat(channel=5)
    broker.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("g", "c1", True), channel=8)
    ((_, push),) = tools.pushes(broker.effects)
    foreign, genuine = (Command(0, {}, body, push.opaque, FLAG_RESPONSE) for body in (b"forged", b"info"))
    assert broker.core.handle(broker.now_ms, 9, "127.0.0.1:1", foreign) == []
    ((channel, answer),) = tools.replies(broker.core.handle(broker.now_ms, 5, "127.0.0.1:1", genuine))
    assert (channel, answer.body) == (8, b"info")


def test_a_client_gets_the_message_to_consume(broker, tools):
    broker.heartbeat(channel=5)
    broker.send(body=b"again")
    (message,) = broker.read()
    header = ConsumeDirectly("g", "c1", message.offset_message_id)
    broker.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, channel=8)
    ((_, push),) = tools.pushes(broker.effects)
    assert decode_message(push.body) == message
    assert push.fields["brokerName"] == "embedded"
    unknown = ConsumeDirectly("g", "c1", "0" * 31 + "1")
    assert broker.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, unknown).code == ResponseCode.SYSTEM_ERROR


def test_clients_that_are_not_there_or_do_not_answer(broker, tools):
    header = RunningInfoRequest("g", "c1")
    assert broker.call(RequestCode.GET_CONSUMER_RUNNING_INFO, header).code == ResponseCode.SYSTEM_ERROR
    broker.heartbeat(channel=5)
    broker.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header, channel=8)
    broker.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header, channel=9)
    broker.core.channel_closed(broker.now_ms, 9)
    ((channel, answer),) = tools.replies(broker.later(10_000))
    assert (channel, answer.code) == (8, ResponseCode.CONSUME_MSG_TIMEOUT)


def status_of(broker, client_id="", group="g"):
    header = ConsumerStatusRequest("T", group, client_id)
    return broker.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, channel=8)


def test_the_offsets_of_all_members_are_gathered(broker, tools):
    broker.heartbeat(channel=5)
    broker.heartbeat(channel=6, client_id="c2")
    broker.heartbeat(channel=7, client_id="c3")
    assert len(status_of(broker)) == 3
    asked = broker.opaque
    pushes = dict(tools.pushes(broker.effects))
    assert {channel: push.code for channel, push in pushes.items()} == dict.fromkeys(
        (5, 6, 7), RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    )
    assert pushes[5].fields == {"topic": "T", "group": "g"}
    queue = MessageQueue("T", "embedded", 0)
    for channel, body in ((5, ConsumerStatus({queue: 7}).encode()), (6, b"no JSON")):
        response = Command(0, {}, body, pushes[channel].opaque, FLAG_RESPONSE)
        assert broker.core.handle(broker.now_ms, channel, "127.0.0.1:1", response) == [], "the third is waited for"
    ((channel, answer),) = tools.replies(broker.later(10_000))
    assert (channel, answer.opaque, answer.code) == (8, asked, 0)
    assert ConsumerStatus.decode(answer.body) == ConsumerStatus({}, {"c1": {queue: 7}})


def test_the_offsets_of_one_member(broker, tools):
    broker.heartbeat(channel=5)
    broker.heartbeat(channel=6, client_id="c2")
    status_of(broker, "c2")
    ((channel, push),) = tools.pushes(broker.effects)
    response = Command(ResponseCode.SYSTEM_ERROR, {}, b"", push.opaque, FLAG_RESPONSE)
    ((_, answer),) = tools.replies(broker.core.handle(broker.now_ms, channel, "127.0.0.1:1", response))
    assert (channel, ConsumerStatus.decode(answer.body)) == (6, ConsumerStatus())
    ((_, nobody),) = tools.replies(status_of(broker, "c9"))
    assert ConsumerStatus.decode(nobody.body) == ConsumerStatus()
    ((_, empty),) = tools.replies(status_of(broker, group="no"))
    assert empty.code == ResponseCode.SYSTEM_ERROR
    assert "No Any Consumer online" in empty.remark


def test_intercepts_answer_instead(broker):
    asked = []

    def busy_once(command):
        asked.append(command.code)
        if len(asked) == 1:
            return command.response(ResponseCode.SYSTEM_BUSY, remark="[PCBUSY_CLEAN_QUEUE]")
        return SILENCE if len(asked) == 2 else None

    broker.core.intercepts.append(busy_once)
    assert broker.send().code == ResponseCode.SYSTEM_BUSY
    assert broker.request(RequestCode.GET_MAX_OFFSET, MaxOffset("T", 0)) == []
    assert broker.send().code == 0


def test_an_intercept_lets_a_request_arrive_later(broker):
    delayed = [Later(50)]
    broker.core.intercepts.append(lambda _: delayed.pop() if delayed else None)
    body = bytearray(b"held")
    header = SendRequestV2("pg", "T", "TBW102", 4, 0, 0, broker.now_ms, 0)
    assert broker.request(RequestCode.SEND_MESSAGE_V2, header, body, channel=5) == []
    asked = broker.opaque
    body[:] = b"gone"  # what it was read into is used again
    assert broker.core.next_deadline_ms() <= broker.now_ms + 50
    broker.send(body=b"next")
    assert broker.later(49) == []
    (effect,) = broker.later(1)
    assert (effect.channel, effect.command.opaque, effect.command.code) == (5, asked, 0)
    assert [broker.core.state.store.message_in("T", 0, at).body for at in (0, 1)] == [b"next", b"held"]
    assert broker.later(50) == [], "it came once"


def test_a_request_that_waits_goes_with_its_connection(broker):
    delayed = [Later(50)]
    broker.core.intercepts.append(lambda _: delayed.pop() if delayed else None)
    header = SendRequestV2("pg", "T", "TBW102", 4, 0, 0, broker.now_ms, 0)
    broker.request(RequestCode.SEND_MESSAGE_V2, header, b"held", channel=5)
    broker.core.channel_closed(broker.now_ms, 5)
    broker.later(50)
    assert broker.core.state.store.max_offset("T", 0) == 0
