"""Queues by the broker's word (400), and a group that an operator wants to pop (401)."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.pop_headers import QueryAssignment, QueryAssignmentResponse, SetMessageRequestMode

MEMBERS = ("c1", "c2", "c3")


@pytest.fixture
def group(broker):
    """A topic of eight queues and three members."""
    broker.send(default_topic_queue_nums=8)
    for channel, client_id in enumerate(MEMBERS, 1):
        broker.heartbeat(client_id=client_id, channel=channel)
    return broker


def queues(broker, client_id, strategy="AVG", model="CLUSTERING", group="g", topic="T"):
    body = QueryAssignment(topic, group, client_id, strategy, model).encode()
    answer = broker.call(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == 0, answer.remark
    found = QueryAssignmentResponse.decode(answer.body).message_queue_assignments
    if found is None:
        return None
    assert {(each.mode, each.message_queue.broker_name) for each in found} <= {("PULL", "embedded")}
    return [each.message_queue.queue_id for each in found]


def test_the_queues_are_shared_out_as_java_does(group):
    assert [queues(group, member) for member in MEMBERS] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [queues(group, member, "AVG_BY_CIRCLE") for member in MEMBERS] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert queues(group, "c2", model="BROADCASTING") == list(range(8))


def test_what_the_broker_does_not_know_is_no_assignment(group):
    assert queues(group, "stranger") == []
    assert queues(group, "c1", group="other") is None
    assert queues(group, "c1", strategy="MINE") is None
    assert queues(group, "c1", topic="none") == []


@pytest.mark.parametrize(
    ("topic", "mode", "code"),
    [
        ("T", "PULL", 0),
        ("T", "POP", 0),
        ("T", "PUSH", ResponseCode.INVALID_PARAMETER),
        ("none", "POP", ResponseCode.TOPIC_NOT_EXIST),
        ("%RETRY%g", "PULL", ResponseCode.NO_PERMISSION),
    ],
)
def test_an_administrator_says_who_pops(group, topic, mode, code):
    answer = group.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=SetMessageRequestMode(topic, "g", mode).encode())
    assert answer.code == code
    assert (code == 0) or answer.remark


def assigned(broker, client_id, topic="T"):
    body = QueryAssignment(topic, "g", client_id, "AVG", "CLUSTERING").encode()
    answer = broker.call(RequestCode.QUERY_ASSIGNMENT, body=body)
    found = QueryAssignmentResponse.decode(answer.body).message_queue_assignments
    return [(each.mode, each.message_queue.queue_id) for each in found]


@pytest.mark.parametrize(
    ("shared", "queues_of_c3"),
    [(0, [-1]), (1, [6, 7, 0, 1, 2]), (2, [-1])],
)
def test_who_pops_has_all_queues_or_shares_those_of_others(group, shared, queues_of_c3):
    body = SetMessageRequestMode("T", "g", "POP", shared).encode()
    assert group.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body).code == 0
    group.crash()
    for channel, client_id in enumerate(MEMBERS, 1):
        group.heartbeat(client_id=client_id, channel=channel)
    assert assigned(group, "c3") == [("POP", queue_id) for queue_id in queues_of_c3]
    assert assigned(group, "c1", "%RETRY%g") == [("PULL", 0)]


def test_of_more_members_than_queues_each_has_one(group):
    body = SetMessageRequestMode("T", "g", "POP", 1).encode()
    group.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    for number in range(4, 11):
        group.heartbeat(client_id=f"c{number}", channel=number)
    members = sorted([*MEMBERS, *(f"c{number}" for number in range(4, 11))])
    assert [assigned(group, member) for member in members] == [[("POP", at % 8)] for at in range(10)]
