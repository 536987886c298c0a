"""CONSUMER_SEND_MSG_BACK 36: consume this message later (AbstractSendMessageProcessor.consumerSendMsgBack).

The message is found by its commit log offset and stored again for `%RETRY%group`, by way of the schedule topic; the
request carries no body. It goes to `%DLQ%group` when it has been retried often enough, or the level is below 0.
"""

from __future__ import annotations

from ...remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from ...remoting.codes import SYSFLAG_TRANSACTION_MASK, RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import SendBack
from ...remoting.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    encode_properties,
)
from ...remoting.stored import StoredMessage
from ..refusal import FAQ, Refused
from ..state import BrokerState, Call
from ..topic_table import writable
from .send import VERSION_3_4_9

CODES = (RequestCode.CONSUMER_SEND_MSG_BACK,)
FIRST_RETRY_LEVEL = 3  # level of the first retry when the client leaves it to the broker (delayLevel 0)


def handle(state: BrokerState, call: Call) -> Command:
    request = SendBack.from_fields(call.command.fields)
    group = state.groups.get(request.group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {request.group} {FAQ}")
    if group.retry_queue_nums <= 0:
        return call.command.response(ResponseCode.SUCCESS)
    retry_topic = usable(state.retry_topic(call.now_ms, request.group, group.retry_queue_nums))
    message = state.store.message_at(request.offset)
    if message is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
    properties = dict(message.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT] = "false"
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
    if message.reconsume_times >= reconsume_max(call, request, group) or request.delay_level < 0:
        topic = usable(state.dlq_topic(call.now_ms, request.group))
        properties[PROPERTY_DELAY] = "0"
    else:
        topic = retry_topic
        level = request.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        properties[PROPERTY_DELAY] = str(level)
    queue_id = state.random.randrange(topic.write_queue_nums) if topic.write_queue_nums > 1 else 0
    state.accept(call.now_ms, retried(message, topic.topic_name, queue_id, properties), properties)
    return call.command.response(ResponseCode.SUCCESS)


def usable(topic: TopicConfig) -> TopicConfig:
    if not writable(topic):
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
    return topic


def reconsume_max(call: Call, request: SendBack, group: SubscriptionGroupConfig) -> int:
    if call.command.version >= VERSION_3_4_9 and request.max_reconsume_times is not None:
        return request.max_reconsume_times
    return group.retry_max_times


def retried(message: StoredMessage, topic: str, queue_id: int, properties: dict[str, str]) -> StoredMessage:
    """A new record of an old message: one more attempt; body, flags and birth as they were. Its transaction is over."""
    return StoredMessage(
        topic=topic,
        body=message.body,
        raw_properties=encode_properties(properties).encode(),
        queue_id=queue_id,
        flag=message.flag,
        sysflag=message.sysflag & ~SYSFLAG_TRANSACTION_MASK,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        born_port=message.born_port,
        reconsume_times=message.reconsume_times + 1,
    )
