"""QUERY_CONSUMER_OFFSET 14 and UPDATE_CONSUMER_OFFSET 15 (BR/processor/ConsumerManageProcessor.java).

Without a committed offset the answer is 0, not "not found", when the queue still holds its first message: so a new group on
a young topic starts at 0 whatever its ConsumeFromWhere says. The genuine broker asks in addition whether that message is
in memory; ours always is.

No offset is kept for a group that no member and no administrator has made.
"""

from __future__ import annotations

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import OffsetResponse, QueryOffset, UpdateOffset
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET)
NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def handle(state: BrokerState, call: Call) -> Command:
    return query(state, call) if call.command.code == RequestCode.QUERY_CONSUMER_OFFSET else update(state, call)


def query(state: BrokerState, call: Call) -> Command:
    request = QueryOffset.from_fields(call.command.fields)
    offset = state.offsets.query(request.topic, request.consumer_group, request.queue_id)
    if offset is None:
        queue = state.store.queue(request.topic, request.queue_id)
        young = queue is not None and queue.min_offset == 0 < queue.max_offset
        if not young or request.set_zero_if_not_found is False:
            return call.command.response(ResponseCode.QUERY_NOT_FOUND, remark=NOT_FOUND)
        offset = 0
    return call.command.response(ResponseCode.SUCCESS, OffsetResponse(offset).to_fields())


def update(state: BrokerState, call: Call) -> Command:
    request = UpdateOffset.from_fields(call.command.fields)
    group = request.consumer_group
    refusal = state.offset_refusal(request.topic, group)
    if refusal is not None:
        raise refusal
    topic = state.topics.get(request.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} not exist!")
    if not 0 <= request.queue_id < topic.read_queue_nums:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId[{request.queue_id}] is illegal")
    state.offsets.commit(request.topic, group, request.queue_id, request.commit_offset)
    return call.command.response(ResponseCode.SUCCESS)
