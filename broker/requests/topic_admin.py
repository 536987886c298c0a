"""Topics by an administrator: create or change 17, all 21, delete 215, one 351 (BR/processor/AdminBrokerProcessor.java)."""

from __future__ import annotations

from ...remoting.admin_bodies import TopicConfig
from ...remoting.admin_headers import CreateTopic, TopicName
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..pops import pop_retry_topic
from ..refusal import Refused
from ..state import BrokerState, Call
from ..topic_table import illegal_topic

CODES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.GET_TOPIC_CONFIG,
)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
        return create(state, call)
    if command.code == RequestCode.DELETE_TOPIC_IN_BROKER:
        return delete(state, call)
    if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
        return command.response(ResponseCode.SUCCESS, body=state.topics.dump())
    name = TopicName.from_fields(command.fields).topic
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    return command.response(ResponseCode.SUCCESS, body=topic.encode())


def create(state: BrokerState, call: Call) -> Command:
    request = CreateTopic.from_fields(call.command.fields)
    wrong = illegal_topic(request.topic)
    if wrong is None and state.topics.is_system(request.topic):
        wrong = f"The topic[{request.topic}] is conflict with system topic."
    queues_max = state.config.queues_per_topic_max
    if wrong is None and not (
        1 <= request.read_queue_nums <= queues_max and 1 <= request.write_queue_nums <= queues_max
    ):
        wrong = f"readQueueNums and writeQueueNums must be 1 to {queues_max}"
    if wrong is None and request.topic not in state.topics:
        wrong = state.room.refusal(call.now_ms, request.topic)
    if wrong is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, wrong)
    known = state.topics.get(request.topic)
    topic = TopicConfig(
        request.topic,
        request.read_queue_nums,
        request.write_queue_nums,
        request.perm,
        request.topic_filter_type,
        request.topic_sys_flag or 0,
        request.order,
        changed_attributes(dict(known.attributes) if known else {}, request.attributes or ""),
    )
    state.put_topic(call.now_ms, topic)
    return call.command.response(ResponseCode.SUCCESS)


def changed_attributes(attributes: dict[str, str], change: str) -> dict[str, str]:
    """`+key=value` sets, `-key` removes (CO/attribute/AttributeParser.java)."""
    for part in filter(None, (word.strip() for word in change.split(","))):
        if part.startswith("+") and "=" in part:
            key, _, value = part[1:].partition("=")
            attributes[key] = value
        elif part.startswith("-"):
            attributes.pop(part[1:], None)
        else:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"attribute {part!r} is neither +key=value nor -key")
    return attributes


def delete(state: BrokerState, call: Call) -> Command:
    name = TopicName.from_fields(call.command.fields).topic
    if state.topics.is_system(name):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
    groups = {*state.offsets.groups_of(name), *(key.group for key in state.pops.table.keys_of(name, ""))}
    shown_again = {pop_retry_topic(name, group) for group in groups} - {name}
    state.delete_topics(call.now_ms, [*sorted(shown_again), name])  # last: its groups say what is to go with it
    state.save_offsets(sync=True)  # also when an attempt before was refused that
    return call.command.response(ResponseCode.SUCCESS)
