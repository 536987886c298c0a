"""Topics of users and of groups do not take each other's room, and what a group leaves behind goes."""

from __future__ import annotations

import pytest

from rocketcrew.broker.topic_room import LOOK_INTERVAL_MS, groups_of
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.admin_headers import CreateTopic, DeleteGroup, TopicName
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData, ProducerData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import UpdateOffset

MOST = 40


def create(broker, name):
    header = CreateTopic(name, "TBW102", 1, 1, 6, "SINGLE_TAG")
    return broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def fill(broker):
    """Make users' topics until there is no room; returns the refusal."""
    while (answer := create(broker, f"t{len(broker.core.state.topics)}")).code == 0:
        pass
    return answer


def come_and_go(broker, group):
    """A member of the group comes, and its connection ends."""
    answer = broker.heartbeat(group, channel=9)
    broker.core.channel_closed(broker.now_ms, 9)
    return answer


def fill_groups(broker):
    """Make topics of groups, each with a message, until there is no room."""
    for number in range(MOST - broker.core.state.topics.of_groups_count):
        broker.core.state.groups.put(SubscriptionGroupConfig(f"full{number}"))
        assert broker.send(f"%RETRY%full{number}").code == 0


def read_all(broker, topic):
    """What members read: the queues that the topic has."""
    queues = broker.core.state.topics.get(topic).read_queue_nums
    return [message for queue_id in range(queues) for message in broker.read(topic, queue_id)]


def with_old_group(make):
    """A broker that has the group "old", and a message."""
    broker = make(topics_max=MOST)
    broker.send()
    (message,) = broker.read()
    broker.heartbeat("old")
    return broker, message


def delete(broker, group):
    return broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group, clean_offset=True))


def retry_and_dead_letter(broker, group, message):
    """A failing message of the group, and one that has failed too often."""
    return [broker.send_back(message, group, delay_level).code for delay_level in (1, -1)]


def test_a_broker_full_of_topics_retries_and_keeps_dead_letters_of_old_groups_and_new_ones(make):
    """Neither was stored: the group read on only as far as its first message that failed."""
    broker, message = with_old_group(make)
    answer = fill(broker)
    assert (answer.code, f"{MOST} topics already" in answer.remark) == (ResponseCode.INVALID_PARAMETER, True)
    assert "deleteTopic" in answer.remark
    assert [event for event, _ in broker.core.state.store.events] == ["store.topics_full"]
    assert broker.heartbeat("new").code == 0
    assert "%RETRY%new" in broker.core.state.topics
    for group in ("old", "new"):
        assert retry_and_dead_letter(broker, group, message) == [0, 0]
        broker.later(1_000)
        assert [len(broker.read(prefix + group)) for prefix in ("%RETRY%", "%DLQ%")] == [1, 1]


def test_topics_of_groups_that_come_and_are_deleted_make_room(make):
    broker, message = with_old_group(make)
    for number in range(3 * MOST):
        assert come_and_go(broker, f"g{number}").code == 0
        header = UpdateOffset(f"g{number}", "T", 0, 1)
        assert broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
        assert delete(broker, f"g{number}").code == 0
        broker.later(LOOK_INTERVAL_MS // 4)
    assert broker.heartbeat("new").code == 0
    assert broker.core.state.topics.of_groups_count <= MOST
    for group in ("old", "new"):
        assert retry_and_dead_letter(broker, group, message) == [0, 0]
    assert create(broker, "fresh").code == 0


def test_a_group_that_is_deleted_and_comes_back_reads_its_delayed_retries_and_dead_letters(broker):
    """Its topic went with it, and members that made it anew read the first of four queues alone."""
    broker.send()
    (message,) = broker.read()
    body = SubscriptionGroupConfig("g", retry_queue_nums=4).encode()
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    come_and_go(broker, "g")
    assert broker.send_back(message, "g", -1).code == 0
    assert [broker.send_back(message, "g", 1).code for _ in range(12)] == [0] * 12
    assert delete(broker, "g").code == 0
    come_and_go(broker, "g")
    broker.later(1_000)
    assert len(read_all(broker, "%RETRY%g")) == 12
    assert len(read_all(broker, "%DLQ%g")) == 1


@pytest.mark.parametrize("change", ["deleted", "deleted, and made anew", "narrowed"])
def test_delayed_retries_go_into_queues_that_their_topic_has_when_they_are_due(broker, change):
    """Nobody read them: a topic that was made anew had one queue, and they went into four."""
    broker.send()
    (message,) = broker.read()
    body = SubscriptionGroupConfig("g", retry_queue_nums=4).encode()
    assert broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    come_and_go(broker, "g")
    assert [broker.send_back(message, "g", 1).code for _ in range(12)] == [0] * 12
    if change.startswith("deleted"):
        assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("%RETRY%g")).code == 0
    if change != "deleted":
        create(broker, "%RETRY%g")
    broker.later(1_000)
    come_and_go(broker, "g")
    assert len(read_all(broker, "%RETRY%g")) == 12


def test_a_delayed_dead_letter_whose_topic_made_room_makes_it_again(broker):
    broker.heartbeat("g")
    waits = {"properties": {"TIMER_DELAY_SEC": "5"}, "reconsume_times": 17, "max_reconsume_times": 16}
    assert broker.send("%RETRY%g", **waits).code == 0
    assert broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("%DLQ%g")).code == 0
    for _ in range(8):
        broker.later(1_000)
    assert len(read_all(broker, "%DLQ%g")) == 1


def test_a_topic_that_lost_its_last_message_makes_room(make):
    broker = make(mapped_file_size_commit_log=4_096, retention_ms=10_000, topics_max=MOST)
    broker.send()
    (message,) = broker.read()
    come_and_go(broker, "g")
    assert broker.send_back(message, "g", -1).code == 0
    assert delete(broker, "g").code == 0
    fill_groups(broker)
    assert set(broker.core.state.topics.of_groups()) >= {"%DLQ%g"}
    broker.later(20_000)
    for _ in range(60):
        broker.send(body=bytes(100))
    broker.later(60_000)
    assert broker.core.state.store.queue_ids("%DLQ%g") == [0]
    assert broker.read("%DLQ%g") == []
    assert broker.heartbeat("new").code == 0
    assert "%DLQ%g" not in broker.core.state.topics
    assert broker.core.state.store.queue_ids("%DLQ%g") == []


def test_topics_that_no_group_needs_make_room_for_those_of_new_groups(make):
    """As a store has them that versions before have served."""
    broker = make(topics_max=MOST)
    state = broker.core.state
    broker.send()
    (message,) = broker.read()
    come_and_go(broker, "here")
    for number in range(MOST - 1):
        state.put_topic(broker.now_ms, TopicConfig(f"%RETRY%gone{number}", 1, 1))
    assert broker.heartbeat("new").code == 0
    assert set(state.topics.of_groups()) == {"%RETRY%here", "%RETRY%new"}
    assert retry_and_dead_letter(broker, "new", message) == [0, 0]


def test_a_group_in_the_table_has_its_two_topics_whatever_others_have_left(make):
    """A member was refused, or admitted and its failing message refused every 5 seconds without end."""
    broker, message = with_old_group(make)
    state = broker.core.state
    fill_groups(broker)
    for group in [name for name in state.groups.names() if name != "old"]:
        state.groups.remove(group)
    refused = broker.send("%RETRY%nobody")
    assert (refused.code, f"{MOST} retry and dead-letter topics already" in refused.remark) == (17, True)
    assert [event for event, _ in state.store.events] == ["store.topics_full"]
    assert broker.heartbeat("new").code == 0
    for group in ("old", "new"):
        assert retry_and_dead_letter(broker, group, message) == [0, 0]
    broker.later(LOOK_INTERVAL_MS)
    assert state.topics.of_groups_count == MOST + 3, "what holds messages stays"


def test_groups_get_their_topics_also_where_what_was_delayed_took_more_than_the_room(make):
    broker, message = with_old_group(make)
    for number in range(2 * MOST):
        broker.core.state.make_topic(broker.now_ms, TopicConfig(f"%RETRY%g{number}", 1, 1), must_fit=False)
        assert broker.send(f"%RETRY%g{number}").code == 0
    assert broker.heartbeat("new").code == 0
    assert retry_and_dead_letter(broker, "old", message) == [0, 0]


def test_a_group_that_is_refused_takes_no_place_and_no_other_group_of_its_client_with_it(make):
    """What came after it in the heartbeat was not registered: not even its producers."""
    broker = make(topics_max=MOST)
    state = broker.core.state
    needed = [f"old{number}" for number in range(MOST // 2)]
    for group in needed:
        broker.heartbeat(group, channel=1)
    before = state.groups.names()
    named = [ConsumerData(name) for name in ("old0", "new", "newer", "old1")]
    data = HeartbeatData("c5", (ProducerData("producers"),), tuple(named))
    answer = broker.call(RequestCode.HEART_BEAT, body=data.encode(), channel=5)
    assert (answer.code, "consumer groups in use" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    consumers, producers = state.clients.groups_of(5)
    assert ({group.name for group in consumers}, producers) == ({"old0", "old1"}, {"producers"})
    assert state.groups.names() == before


@pytest.mark.parametrize("chars", [248, 249, 255])
def test_a_group_joins_whose_name_is_too_long_for_a_retry_topic(broker, chars):
    broker.send()
    (message,) = broker.read()
    group = "g" * chars
    assert broker.heartbeat(group).code == 0
    assert broker.core.state.clients.consumer_group(group) is not None
    assert broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset(group, "T", 0, 1)).code == 0
    refused = broker.send_back(message, group, 1)
    assert refused.code == (0 if chars == 248 else ResponseCode.SYSTEM_ERROR)
    assert ("longer than topic max length 255" in (refused.remark or "")) is (chars > 248)


def test_whoever_sends_to_retry_topics_leaves_half_of_the_room_to_groups(make):
    broker = make(topics_max=MOST)
    codes = [broker.send(f"%RETRY%nobody{number}").code for number in range(MOST)]
    assert codes == [0] * (MOST // 2) + [ResponseCode.TOPIC_NOT_EXIST] * (MOST // 2)
    assert broker.heartbeat("new").code == 0


def test_a_send_that_is_refused_for_its_queue_leaves_no_topic(broker):
    for topic in ("%RETRY%g", "U"):
        assert broker.send(topic, queue_id=99).code == ResponseCode.INVALID_PARAMETER
        assert topic not in broker.core.state.topics


def test_a_look_that_went_through_all_topics_is_followed_by_a_pause(make):
    """A client whose refused sends left a topic each had the broker look at all of them each time."""
    broker = make(topics_max=2 * MOST)
    state = broker.core.state
    for number in range(MOST - 2):
        assert broker.send(f"%RETRY%full{number}").code == 0
    for fresh, pause_ms, empty, code in (
        ("w", 0, ["a", "b"], 0),
        ("x", 0, ["c"], ResponseCode.TOPIC_NOT_EXIST),
        ("y", LOOK_INTERVAL_MS - 1, [], ResponseCode.TOPIC_NOT_EXIST),
        ("z", 1, [], 0),
    ):
        broker.later(pause_ms)
        for name in empty:
            state.put_topic(broker.now_ms, TopicConfig(f"%RETRY%{name}", 1, 1))
        assert broker.send(f"%RETRY%{fresh}").code == code


def test_an_administrator_hears_that_there_are_too_many_groups(make):
    broker = make()
    broker.core.state.groups._groups_max = 0
    body = SubscriptionGroupConfig("g").encode()
    answer = broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "0 consumer groups in use, of 0" in answer.remark


@pytest.mark.parametrize(
    ("topic", "groups"),
    [
        ("%DLQ%g_a", ["g_a"]),
        ("%RETRY%g", ["g"]),
        ("%RETRY%g_a_b", ["g_a_b", "g", "g_a"]),
    ],
)
def test_whose_a_topic_may_be(topic, groups):
    assert groups_of(topic) == groups


def test_a_start_counts_the_topics_of_groups(make):
    broker = make(topics_max=MOST)
    broker.heartbeat("a")
    broker.later(2_000)
    broker.heartbeat("b")
    broker.crash()
    assert set(broker.core.state.topics.of_groups()) == {"%RETRY%a", "%RETRY%b"}
