"""Requests that Java clients really sent, replayed: our answers have the fields and remarks that the genuine servers gave.

The recordings hold a choice of frames, so offsets and states differ; what is compared is the shape: code, names of the
fields, remark, and the kind of body.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from rocketcrew.broker.effects import Push, Reply
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.frame import decode
from rocketcrew.remoting.headers import QueryOffset

WIRE = Path(__file__).parents[1] / "remoting" / "wire"
FILES = {"4.9.7": "rocketmq-4.9.7-binary-headers.jsonl", "5.5.0": "rocketmq-5.5.0-json-headers.jsonl"}

# What a 4.9 server leaves out of its answers and 5.x sends; ours are those of 5.x.
NEWER_FIELDS = {"transactionId", "groupSysFlag", "topicSysFlag", "IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"}


def frames(version):
    with open(WIRE / FILES[version], encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record, decode(base64.b64decode(record["frame"]))


def replay(broker, version):
    """(request name, genuine answer, our answer) of each request that has a recorded answer."""
    ours, notices = {}, []
    for record, command in frames(version):
        to_server = record["kind"] == "request" and record["sender"] == "client"
        if not to_server or record["request_code"] == RequestCode.END_TRANSACTION:
            continue
        channel, address = record["connection"], f"192.0.2.2:{record['connection'] + 1000}"
        core = broker.name_server if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC else broker.core
        broker.now_ms += 1_000
        for effect in core.handle(broker.now_ms, channel, address, command):
            if isinstance(effect, Push):
                notices.append(effect.command)
            elif isinstance(effect, Reply):
                ours[effect.channel, effect.command.opaque] = effect.command
        for effect in broker.later(0):
            if isinstance(effect, Reply):
                ours[effect.channel, effect.command.opaque] = effect.command
    pairs = [
        (record["request"], command, ours.get((record["connection"], command.opaque)))
        for record, command in frames(version)
        if record["kind"] == "response" and record["sender"] != "client"
    ]
    return pairs, notices


@pytest.mark.parametrize("version", FILES)
def test_shapes(make, version):
    broker = make(message_delay_level="1s 5s 10s")
    pairs, notices = replay(broker, version)
    compared = set()
    for name, genuine, ours in pairs:
        if ours is None or ours.code != genuine.code:
            continue  # no request in the recording, or another state of the queue
        compared.add((name, int(genuine.code)))
        newer = NEWER_FIELDS if version == "4.9.7" else set()
        assert set(ours.fields) - newer == set(genuine.fields) - newer, name
        assert (ours.remark or "").partition("\n")[0] == (genuine.remark or "").partition("\n")[0], name
        assert bool(ours.body) == bool(genuine.body), name
    assert compared >= {
        ("GET_ROUTEINFO_BY_TOPIC", 0),
        ("GET_ROUTEINFO_BY_TOPIC", 17),
        ("SEND_MESSAGE_V2", 0),
        ("SEND_BATCH_MESSAGE", 0),
        ("HEART_BEAT", 0),
        ("UNREGISTER_CLIENT", 0),
        ("GET_CONSUMER_LIST_BY_GROUP", 0),
        ("QUERY_CONSUMER_OFFSET", 0),
        ("LOCK_BATCH_MQ", 0),
        ("UNLOCK_BATCH_MQ", 0),
    }
    assert notices
    assert all(set(notice.fields) == {"consumerGroup"} and notice.flag == 2 for notice in notices)


@pytest.mark.parametrize("version", FILES)
def test_pull_answers(broker, version):
    """Each recorded pull answer beside ours with the same code: the fields, and the remark that goes with the code."""
    for _ in range(2):
        broker.send(tag="a")
    broker.pull(group="g")
    ours = {answer.code: answer for answer in (broker.pull(0), broker.pull(2), broker.pull(0, tags="z"))}
    broker.core.state.offsets.reset("T", "g", 0, 0)
    moved = broker.pull(2)
    ours[moved.code] = moved
    broker.heartbeat(sub_version=1)
    refused = broker.pull(sys_flag=0, sub_version=2)
    ours[refused.code] = refused
    newer = NEWER_FIELDS if version == "4.9.7" else set()
    seen = set()
    for record, genuine in frames(version):
        if record["request_code"] == RequestCode.PULL_MESSAGE and record["kind"] == "response":
            seen.add(genuine.code)
            answer = ours[genuine.code]
            assert set(answer.fields) - newer == set(genuine.fields) - newer
            assert answer.remark == genuine.remark or genuine.remark == "NO_MESSAGE_IN_QUEUE"
    assert seen >= {0, 19, 20}


def test_a_recorded_not_found(broker):
    broker.send(topic="cap_order", queue_id=0)
    (genuine,) = {
        (command.code, command.remark)
        for record, command in frames("5.5.0")
        if record["request"] == "QUERY_CONSUMER_OFFSET" and record.get("response_code") == 22
    }
    answer = broker.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("cap_group_orderly", "cap_order", 3))
    assert (answer.code, answer.remark) == genuine


def test_recorded_send_back_answers_have_nothing_but_the_code(broker):
    broker.send()
    answer = broker.send_back(broker.read()[0])
    for version in FILES:
        for record, genuine in frames(version):
            if record["request"] == "CONSUMER_SEND_MSG_BACK" and record["kind"] == "response":
                assert (answer.code, answer.fields, answer.remark) == (genuine.code, genuine.fields, genuine.remark)
