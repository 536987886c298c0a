"""GET_CONSUME_STATS 208: how far a group is behind, queue by queue (BR/processor/AdminBrokerProcessor.getConsumeStats).

Without topics in the request: those the group has committed offsets in, and those it subscribes now. `lastTimestamp` is the
store time of the last message that the group has finished.
"""

from __future__ import annotations

from ...remoting.admin_bodies import ConsumeStats, OffsetWrapper
from ...remoting.admin_headers import ConsumeStatsRequest
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.queues import MessageQueue
from ..state import BrokerState, Call

CODES = (RequestCode.GET_CONSUME_STATS,)


def handle(state: BrokerState, call: Call) -> Command:
    request = ConsumeStatsRequest.from_fields(call.command.fields)
    group = request.consumer_group
    topics = [name for name in (request.topic_list or request.topic or "").split(";") if name]
    if not topics:
        members = state.clients.consumer_group(group)
        subscribed = members.subscriptions if members else {}
        topics = sorted({*state.offsets.topics_of(group), *subscribed})
    table: dict[MessageQueue, OffsetWrapper] = {}
    for name in topics:
        topic = state.topics.get(name)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            table[MessageQueue(name, state.config.name, queue_id)] = progress(state, group, name, queue_id)
    return call.command.response(ResponseCode.SUCCESS, body=ConsumeStats(table).encode())


def progress(state: BrokerState, group: str, topic: str, queue_id: int) -> OffsetWrapper:
    committed = max(0, state.offsets.query(topic, group, queue_id) or 0)
    finished_ms = state.store.store_time_ms(topic, queue_id, committed - 1)
    return OffsetWrapper(state.store.max_offset(topic, queue_id), committed, committed, finished_ms or 0)
