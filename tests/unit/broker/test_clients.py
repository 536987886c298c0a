"""Heartbeats, membership, notices, offsets and locks."""

from __future__ import annotations

import pytest

from rocketcrew.broker.client_table import CLIENT_ID_MAX_CHARS
from rocketcrew.broker.lock_table import LOCKS_MAX, LockTable
from rocketcrew.broker.requests.heartbeat import GROUPS_MAX, SUBSCRIPTIONS_MAX, TEXT_MAX_CHARS
from rocketcrew.remoting.admin_bodies import (
    ConsumerConnections,
    GroupSubscription,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
    SubscriptionGroupConfig,
)
from rocketcrew.remoting.admin_headers import ConsumerConnectionRequest, GroupAndTopic, ProducerConnectionRequest
from rocketcrew.remoting.bodies import (
    CheckClientConfig,
    ConsumerData,
    ConsumerIds,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    ProducerData,
    SubscriptionData,
)
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.headers import ConsumerList, QueryOffset, Unregister, UpdateOffset
from rocketcrew.remoting.queues import MessageQueue


def members(broker, group="g"):
    answer = broker.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerList(group))
    return ConsumerIds.decode(answer.body).consumer_id_list


def notified(effects, tools):
    return [(channel, command.fields["consumerGroup"]) for channel, command in tools.pushes(effects)]


def test_a_heartbeat_makes_group_and_retry_topic(broker):
    answer = broker.heartbeat()
    assert (answer.code, answer.fields["IS_SUPPORT_HEART_BEAT_V2"], answer.fields["IS_SUB_CHANGE"]) == (
        0,
        "true",
        "true",
    )
    retry = broker.core.state.topics.get("%RETRY%g")
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert members(broker) == ("c1",)


def test_new_members_are_announced_to_all_before_the_answer(broker, tools):
    broker.heartbeat(channel=1)
    assert notified(broker.effects, tools) == [(1, "g")]
    broker.heartbeat(client_id="c2", channel=2)
    assert notified(broker.effects, tools) == [(1, "g"), (2, "g")]
    assert tools.replies(broker.effects[2:])
    push = tools.pushes(broker.effects)[0][1]
    assert (push.code, push.flag) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, FLAG_ONEWAY)
    broker.heartbeat(channel=1)
    assert notified(broker.effects, tools) == []
    assert members(broker) == ("c1", "c2")


def test_changed_topics_are_announced_newer_tags_are_not(broker, tools):
    broker.heartbeat(subscriptions={"T": "a"}, sub_version=1)
    broker.heartbeat(subscriptions={"T": "b"}, sub_version=2)
    assert notified(broker.effects, tools) == []
    group = broker.core.state.clients.consumer_group("g")
    assert group.subscriptions["T"].sub_string == "b"
    broker.heartbeat(subscriptions={"T": "old"}, sub_version=1)
    assert group.subscriptions["T"].sub_string == "b"
    broker.heartbeat(subscriptions={"T": "b", "U": "*"}, sub_version=3)
    assert notified(broker.effects, tools) == [(1, "g")]
    broker.heartbeat(subscriptions={"U": "*"}, sub_version=3)
    assert notified(broker.effects, tools) == [(1, "g")]
    assert list(group.subscriptions) == ["U"], "the last heartbeat wins for the whole group"


def test_broadcasting_groups_are_told_nothing(broker, tools):
    broker.heartbeat(model="BROADCASTING")
    assert notified(broker.effects, tools) == []


def test_a_group_may_want_no_notices(broker, tools):
    group = SubscriptionGroupConfig("g", notify_consumer_ids_changed_enable=False)
    broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    broker.heartbeat()
    assert notified(broker.effects, tools) == []


def test_a_group_that_may_not_be_made_is_skipped_silently(make):
    broker = make(auto_create_group=False)
    assert broker.heartbeat().code == 0
    assert "%RETRY%g" not in broker.core.state.topics
    assert broker.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerList("g")).code == ResponseCode.SYSTEM_ERROR


def test_no_members_is_code_1(broker):
    answer = broker.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerList("g"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, g")


def test_unregister(broker, tools):
    broker.heartbeat(channel=1)
    broker.heartbeat(client_id="c2", channel=2)
    assert broker.call(RequestCode.UNREGISTER_CLIENT, Unregister("c1", None, "g"), channel=1).code == 0
    assert notified(broker.effects, tools) == [(2, "g")]
    assert members(broker) == ("c2",)
    broker.call(RequestCode.UNREGISTER_CLIENT, Unregister("c2", "pg", "g"), channel=2)
    assert notified(broker.effects, tools) == []
    assert broker.core.state.clients.consumer_group("g") is None
    broker.call(RequestCode.UNREGISTER_CLIENT, Unregister("c1", "pg"), channel=1)
    assert broker.core.state.clients._groups_of == {}


def test_a_closed_channel_is_announced(broker, tools):
    broker.heartbeat(channel=1)
    broker.heartbeat(client_id="c2", channel=2)
    effects = broker.core.channel_closed(broker.now_ms, 1)
    assert notified(effects, tools) == [(2, "g")]
    assert broker.core.channel_closed(broker.now_ms, 1) == []
    assert members(broker) == ("c2",)


def test_one_id_on_two_channels_is_listed_twice(broker):
    broker.heartbeat(channel=1)
    broker.heartbeat(channel=2)
    assert members(broker) == ("c1", "c1")


def test_a_silent_channel_is_closed_without_a_notice(broker, tools):
    broker.heartbeat(channel=1)
    broker.later(60_000)
    broker.heartbeat(client_id="c2", channel=2)
    broker.later(60_000)
    assert members(broker) == ("c1", "c2")
    effects = broker.later(10_000)
    assert tools.closed(effects) == [1]
    assert notified(effects, tools) == []
    assert members(broker) == ("c2",)


def test_a_group_that_a_living_connection_does_not_name_loses_it(broker, tools):
    """Its UNREGISTER was lost: the queues that such a member had stood still for as long as its connection lived."""
    broker.heartbeat("left", channel=1)
    closed = []
    for _ in range(13):
        for channel in (1, 2):
            broker.heartbeat("kept", client_id=f"c{channel}", channel=channel)
        closed += tools.closed(broker.later(10_000))
    assert closed == [1]
    assert broker.core.state.clients.consumer_group("left") is None
    assert members(broker, "kept") == ("c1", "c2")
    effects = broker.core.channel_closed(broker.now_ms, 1)
    assert notified(effects, tools) == [(2, "kept")], "the close is news for groups that the connection did name"


def test_a_producer_group_that_a_living_connection_does_not_name_loses_it(broker, tools):
    closed = []
    for number in range(13):
        groups = tuple(map(ProducerData, ["kept", "left"] if number == 0 else ["kept"]))
        broker.call(RequestCode.HEART_BEAT, body=HeartbeatData("c1", groups).encode(), channel=3)
        closed += tools.closed(broker.later(10_000))
    clients = broker.core.state.clients
    assert (closed, clients.producer_groups(), clients.producer_of("c1").channel) == ([3], ["kept"], 3)


@pytest.mark.parametrize(("group", "topic", "expression"), [("g", "T", "a"), ("g", "U", None), ("nobody", "T", None)])
def test_what_a_group_subscribes_of_a_topic(broker, group, topic, expression):
    broker.heartbeat(channel=4, subscriptions={"T": "a"})
    answer = broker.call(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupAndTopic(group, topic))
    body = GroupSubscription.decode(answer.body)
    assert (answer.code, body.group, body.topic) == (0, group, topic)
    assert (body.subscription_data and body.subscription_data.sub_string) == expression


def test_connections(broker):
    broker.heartbeat(channel=4, subscriptions={"T": "a"})
    answer = broker.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionRequest("g"))
    body = ConsumerConnections.decode(answer.body)
    (member,) = body.connection_set
    assert (member.client_id, member.client_addr, member.language) == ("c1", "127.0.0.1:40004", "PYTHON")
    assert (body.message_model, body.subscription_table["T"].sub_string) == ("CLUSTERING", "a")
    answer = broker.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionRequest("pg"))
    assert len(ProducerConnections.decode(answer.body).connection_set) == 1
    header = ConsumerConnectionRequest("nobody")
    assert broker.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, header).code == ResponseCode.CONSUMER_NOT_ONLINE
    none = ProducerConnectionRequest("nobody")
    assert broker.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, none).code == ResponseCode.SYSTEM_ERROR


def test_all_producers(broker):
    assert broker.call(RequestCode.GET_ALL_PRODUCER_INFO).body == b'{"data":{}}'
    broker.heartbeat(channel=4)
    body = broker.call(RequestCode.GET_ALL_PRODUCER_INFO).body
    member = ProducerInfo("c1", "/127.0.0.1:40004", "PYTHON", 475, broker.now_ms)
    assert ProducerTable.decode(body) == ProducerTable({"pg": (member,)})
    assert body == (
        b'{"data":{"pg":[{"clientId":"c1","language":"PYTHON","lastUpdateTimestamp":%d,"remoteIP":"/127.0.0.1:40004",'
        b'"version":475}]}}' % broker.now_ms
    )


@pytest.mark.parametrize(
    ("kind", "code"), [("TAG", 0), ("SQL92", 0), ("XPATH", ResponseCode.SUBSCRIPTION_PARSE_FAILED)]
)
def test_check_client_config(broker, kind, code):
    body = CheckClientConfig("c1", "g", SubscriptionData.of("T", "a > 1", 1, kind)).encode()
    assert broker.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


# Offsets


def query(broker, topic="T", queue_id=0, **more):
    return broker.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("g", topic, queue_id, **more))


def commit(broker, offset, topic="T", queue_id=0):
    return broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", topic, queue_id, offset))


def test_no_offset_yet(broker):
    broker.send()
    answer = query(broker, queue_id=1)
    assert (answer.code, answer.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )
    assert query(broker).fields == {"offset": "0"}, "a young queue starts at 0"
    assert query(broker, set_zero_if_not_found=False).code == ResponseCode.QUERY_NOT_FOUND


def test_commits_overwrite_also_downwards(broker):
    broker.send()
    broker.heartbeat()
    assert commit(broker, 7).code == 0
    assert query(broker).fields["offset"] == "7"
    commit(broker, 3)
    assert query(broker).fields["offset"] == "3"


def test_commits_that_cannot_be(broker, make):
    broker.send("U")
    assert commit(broker, 1, topic="U").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    broker.heartbeat()
    assert commit(broker, 1).code == ResponseCode.TOPIC_NOT_EXIST
    broker.send()
    assert commit(broker, 1, queue_id=4).code == ResponseCode.INVALID_PARAMETER
    strict = make(auto_create_group=False)
    strict.send()
    assert commit(strict, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_commits_are_kept_after_the_interval(broker):
    broker.send()
    broker.heartbeat()
    commit(broker, 1)
    broker.crash()
    assert query(broker).fields["offset"] == "0", "not flushed yet: lost, the member commits again"
    commit(broker, 1)
    broker.later(1_000)
    broker.crash()
    assert query(broker).fields["offset"] == "1"
    assert b'"T@g":{0:1}' in broker.storage.load("config/consumerOffset.json")


def test_a_clean_stop_keeps_them_at_once(broker):
    broker.send()
    broker.heartbeat()
    commit(broker, 1)
    broker.core.stop()
    broker.crash()
    assert query(broker).fields["offset"] == "1"
    assert broker.core.recovered_records == 0


# Locks


def lock(broker, client, queues, code=RequestCode.LOCK_BATCH_MQ, group="g"):
    body = LockBatch(group, client, tuple(queues)).encode()
    answer = broker.call(code, body=body)
    assert answer.code == 0
    return set(LockBatchResponse.decode(answer.body).lock_ok_mq_set) if answer.body else set()


def test_locks(broker):
    broker.send()
    queues = [MessageQueue("T", "embedded", number) for number in range(3)]
    foreign = [MessageQueue("T", "broker-b", 0), MessageQueue("unknown", "embedded", 0)]
    assert lock(broker, "c1", queues[:2] + foreign) == set(queues[:2])
    assert lock(broker, "c2", queues) == {queues[2]}
    assert lock(broker, "c1", queues) == set(queues[:2])
    assert lock(broker, "c2", queues, group="other") == set(queues)
    lock(broker, "c2", queues, RequestCode.UNLOCK_BATCH_MQ)
    assert lock(broker, "c3", queues) == {queues[2]}, "nobody gives up another one's lock"


def test_only_queues_that_can_be_read_are_locked(broker):
    """Queue ids may be any number: a request of 1 MB took 14,000 locks of a topic with 4 queues."""
    broker.send()
    queues = [MessageQueue("T", "embedded", number) for number in (-1, 0, 3, 4, 9, 2**31 - 1)]
    assert lock(broker, "c1", queues) == set(queues[1:3])
    assert len(broker.core.state.locks._groups["g"]) == 2


def test_locks_expire(broker):
    broker.send()
    queue = MessageQueue("T", "embedded", 0)
    lock(broker, "c1", [queue])
    broker.now_ms += 60_000
    assert lock(broker, "c2", [queue]) == set()
    broker.now_ms += 1
    assert lock(broker, "c2", [queue]) == {queue}
    assert broker.core.state.locks.any_valid(broker.now_ms, "g")
    broker.later(70_000)
    assert broker.core.state.locks._groups == {}


def test_nothing_is_kept_of_locks_that_are_not_granted(broker):
    broker.send()
    queue = MessageQueue("T", "embedded", 0)
    assert lock(broker, "c1", [], group="other") == set()
    assert lock(broker, "c1", [MessageQueue("T", "embedded", 4)], group="other") == set()
    assert lock(broker, "c1", [queue], group="x" * 256) == set(), "no group can be called so"
    body = LockBatch("g", "c" * (CLIENT_ID_MAX_CHARS + 1), (queue,)).encode()
    answer = broker.call(RequestCode.LOCK_BATCH_MQ, body=body)
    assert (answer.code, "client id" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.core.state.locks._groups == {}


def test_locks_of_all_groups_are_bounded():
    locks = LockTable(60_000)
    queues = [MessageQueue("T", "embedded", number) for number in range(1_000)]
    for number in range(LOCKS_MAX // 1_000):
        locks.lock(0, f"g{number}", "c1", queues)
    with pytest.raises(UsageError, match="at most"):
        locks.lock(1, "more", "c1", queues[:1])
    another = MessageQueue("T", "embedded", 1_000)
    assert locks.lock(60_000, "g0", "c1", [*queues, another]) == queues, "those that are there are confirmed"
    locks.expire(60_001)
    assert locks.lock(60_001, "more", "c1", queues) == queues


def test_documents_of_megabytes_are_not_read(broker):
    """fastjson's bare keys are read slowly: 16 MiB of them would hold all others up for half a minute."""
    body = b"{" + b",".join(b"%d:0" % number for number in range(200_000)) + b"}"
    answer = broker.call(RequestCode.HEART_BEAT, body=body)
    assert (answer.code, "at most 1048576" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.send(body=b"x" * 2_000_000).code == 0


def test_heartbeats_are_bounded(broker):
    consumers = tuple(ConsumerData(f"g{number}") for number in range(1_025))
    answer = broker.call(RequestCode.HEART_BEAT, body=HeartbeatData("c1", (), consumers).encode())
    assert (answer.code, "1025 groups" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.core.state.clients.consumer_groups() == []


def consumers(number):
    return HeartbeatData("c1", (), (ConsumerData(f"g{number}"),))


def producers(number):
    return HeartbeatData("c1", (ProducerData(f"p{number}"),))


def subscriptions(number):
    topics = tuple(SubscriptionData(f"t{each}") for each in range(SUBSCRIPTIONS_MAX // 4))
    return HeartbeatData("c1", (), (ConsumerData(f"g{number}", subscription_data_set=topics),))


def text(number):
    long = SubscriptionData("T", "x" * (TEXT_MAX_CHARS // 4 - 1_000))
    return HeartbeatData("c1", (), (ConsumerData(f"g{number}", subscription_data_set=(long,)),))


def names(number):
    return HeartbeatData("c1", (ProducerData(f"{number}".ljust(TEXT_MAX_CHARS // 4, "p")),))


@pytest.mark.parametrize(
    ("named", "most"),
    [(consumers, GROUPS_MAX), (producers, GROUPS_MAX), (subscriptions, 4), (text, 4), (names, 4)],
)
def test_what_a_connection_has_is_bounded_over_all_its_heartbeats(broker, named, most):
    """One of each group: a connection of 400 heartbeats took 400 MB."""

    def beat(number, channel=1):
        return broker.call(RequestCode.HEART_BEAT, body=named(number).encode(), channel=channel)

    for number in range(most):
        assert beat(number).code == 0
    answer = beat(most)
    assert (answer.code, "on one connection" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert beat(0).code == 0, "what is there is not counted twice"
    assert beat(most, channel=2).code == 0
    broker.core.channel_closed(broker.now_ms, 1)
    assert beat(most).code == 0


def test_long_client_ids_are_refused(broker):
    answer = broker.heartbeat(client_id="c" * (CLIENT_ID_MAX_CHARS + 1))
    assert (answer.code, "client id" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.core.state.clients.consumer_groups() == []
    assert broker.heartbeat(client_id="c" * CLIENT_ID_MAX_CHARS).code == 0
