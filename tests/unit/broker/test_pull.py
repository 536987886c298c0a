"""PULL_MESSAGE: every code with its header, filters, the offset that comes along."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.admin_headers import CreateTopic
from rocketcrew.remoting.codes import PULL_COMMIT_OFFSET, RequestCode, ResponseCode
from rocketcrew.remoting.headers import PullResponse, QueryOffset
from rocketcrew.remoting.stored import decode_messages


def texts(answer):
    return [message.body for message in decode_messages(answer.body)]


def test_found(broker):
    for number in range(40):
        broker.send(body=b"%d" % number)
    answer = broker.pull()
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert texts(answer) == [b"%d" % number for number in range(32)]
    assert PullResponse.from_fields(answer.fields) == PullResponse(0, 32, 0, 40, None, 0, 0)
    assert texts(broker.pull(32)) == [b"%d" % number for number in range(32, 40)]


@pytest.mark.parametrize(
    ("offset", "sent", "code", "remark", "following"),
    [
        (0, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
        (5, 0, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
        (2, 2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2),
        (3, 2, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2),
        (-1, 2, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_nothing_to_give(broker, offset, sent, code, remark, following):
    broker.send(queue_id=1)
    for _ in range(sent):
        broker.send()
    answer = broker.pull(offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert PullResponse.from_fields(answer.fields).next_begin_offset == following


def test_tags_in_the_request(broker):
    for tag in ("a", "b", None, "c", "a"):
        broker.send(body=(tag or "none").encode(), tag=tag)
    assert texts(broker.pull(tags="a || c")) == [b"a", b"c", b"a"]
    answer = broker.pull(tags="z")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.fields["nextBeginOffset"] == "5"
    assert broker.pull(tags=" || ").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_tags_of_the_heartbeat(broker):
    broker.send(tag="a")
    broker.send(tag="b")
    answer = broker.pull(sys_flag=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert "group info not exist" in answer.remark
    broker.heartbeat(subscriptions={"T": "b"}, sub_version=5)
    answer = broker.pull(sys_flag=0, sub_version=5)
    assert [message.properties["TAGS"] for message in decode_messages(answer.body)] == ["b"]
    assert broker.pull(sys_flag=0, sub_version=6).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    broker.heartbeat(subscriptions={"Other": "*"}, sub_version=7)
    answer = broker.pull(sys_flag=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert "subscription not exist" in answer.remark


def test_what_may_not_be_pulled(make):
    broker = make(auto_create_group=False)
    assert broker.pull().code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    broker = make()
    answer = broker.pull()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "topic[T] not exist" in answer.remark
    broker.send()
    assert broker.pull(queue_id=4).code == ResponseCode.INVALID_PARAMETER
    assert broker.pull(queue_id=-1).code == ResponseCode.INVALID_PARAMETER
    broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", 4, 4, 2, "SINGLE_TAG"))
    answer = broker.pull()
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "3")
    group = SubscriptionGroupConfig("g", consume_enable=False)
    broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    answer = broker.pull()
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")


def test_broadcasting_can_be_forbidden(broker):
    broker.send()
    group = SubscriptionGroupConfig("g", consume_broadcast_enable=False)
    broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    broker.heartbeat(model="BROADCASTING")
    answer = broker.pull(sys_flag=0)
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")


def test_the_offset_that_comes_along(broker):
    broker.send()
    broker.heartbeat()
    header = broker.pull_header(1, sys_flag=PULL_COMMIT_OFFSET | 4, commit_offset=1)
    broker.call(RequestCode.PULL_MESSAGE, header)
    assert broker.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("g", "T", 0)).fields["offset"] == "1"


def test_a_missing_field_is_an_error_that_names_it(broker):
    answer = broker.call(RequestCode.PULL_MESSAGE)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup is missing" in answer.remark


def test_bytes_of_a_pull_are_bounded(broker):
    for _ in range(4):
        broker.send(body=b"x" * 100_000)
    assert len(texts(broker.pull())) == 2
    broker.send(queue_id=1, body=b"y" * 3_000_000)
    assert len(texts(broker.pull(queue_id=1))[0]) == 3_000_000
