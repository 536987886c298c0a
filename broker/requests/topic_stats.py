"""GET_TOPIC_STATS_INFO 202: the ends of each queue of a topic (BR/processor/AdminBrokerProcessor.getTopicStatsInfo)."""

from __future__ import annotations

from ...remoting.admin_bodies import TopicOffset, TopicStats
from ...remoting.admin_headers import TopicName
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.queues import MessageQueue
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.GET_TOPIC_STATS_INFO,)


def handle(state: BrokerState, call: Call) -> Command:
    name = TopicName.from_fields(call.command.fields).topic
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    store = state.store
    offsets: dict[MessageQueue, TopicOffset] = {}
    for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
        low, high = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
        stored_ms = store.store_time_ms(name, queue_id, high - 1)
        offsets[MessageQueue(name, state.config.name, queue_id)] = TopicOffset(low, high, stored_ms or 0)
    return call.command.response(ResponseCode.SUCCESS, body=TopicStats(offsets).encode())
