"""Request-reply through the broker: the reply goes to the client that asked, and who replies hears how that ended."""

from __future__ import annotations

from rocketcrew.remoting.admin_headers import PushReply
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import SendRequestV2
from rocketcrew.remoting.properties import decode_properties, encode_properties

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKING, REPLYING = 5, 6


def reply(broker, tools, client_id="asker", **properties):
    """The push that a reply makes, and what comes at once."""
    texts = {"REPLY_TO_CLIENT": client_id, "CORRELATION_ID": "c", "MSG_TYPE": "reply"} | properties
    header = SendRequestV2(
        producer_group="replying", topic=REPLY_TOPIC, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=broker.now_ms, flag=0, properties=encode_properties(texts),
    )  # fmt: skip
    effects = broker.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"answer", channel=REPLYING)
    return tools.pushes(effects), tools.replies(effects)


def test_a_reply_is_pushed_and_acknowledged(broker, tools):
    broker.heartbeat(client_id="asker", channel=ASKING)
    pushed, at_once = reply(broker, tools)
    assert at_once == [], "who replies waits for the client that asked"
    ((channel, command),) = pushed
    assert (channel, command.code, bytes(command.body)) == (ASKING, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
    header = PushReply.from_fields(command.fields)
    properties = decode_properties(header.properties)
    assert (properties["CORRELATION_ID"], properties["PUSH_REPLY_TIME"]) == ("c", str(broker.now_ms))
    assert (header.producer_group, header.topic, header.store_host) == ("replying", REPLY_TOPIC, "127.0.0.1:10911")
    opaque = broker.opaque
    effects = broker.core.handle(broker.now_ms, ASKING, "127.0.0.1:1", command.response(ResponseCode.SUCCESS))
    ((channel, answer),) = tools.replies(effects)
    assert (channel, answer.opaque, answer.code, answer.fields["msgId"]) == (REPLYING, opaque, 0, "0")


def test_who_replies_hears_that_nobody_took_it(broker, tools):
    answers = [reply(broker, tools)[1]]
    broker.heartbeat(client_id="asker", channel=ASKING)
    pushed, _ = reply(broker, tools)
    refusal = pushed[0][1].response(ResponseCode.SYSTEM_ERROR, remark="unknown correlation id")
    answers.append(tools.replies(broker.core.handle(broker.now_ms, ASKING, "127.0.0.1:1", refusal)))
    reply(broker, tools)
    answers.append(tools.replies(broker.later(60_000)))
    for ((channel, answer),) in answers:
        assert (channel, answer.code) == (REPLYING, ResponseCode.SYSTEM_ERROR)
        assert "asker" in answer.remark


def test_the_client_is_found_where_it_announced_itself_last(broker, tools):
    table = broker.core.state.clients
    broker.heartbeat(client_id="asker", channel=3)
    broker.heartbeat(client_id="asker", channel=ASKING)
    broker.core.channel_closed(broker.now_ms, 3)
    assert [channel for channel, _ in reply(broker, tools)[0]] == [ASKING]
    broker.heartbeat(client_id="renamed", channel=ASKING)
    assert table.producer_of("asker") is None
    broker.core.channel_closed(broker.now_ms, ASKING)
    assert table.producer_of("renamed") is None
    assert table._producer_ids == {}


def test_a_reply_that_names_no_client_is_refused(broker):
    answer = broker.send(REPLY_TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "REPLY_TO_CLIENT" in answer.remark
    assert isinstance(answer, Command)
