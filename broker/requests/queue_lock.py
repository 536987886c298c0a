"""LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42 (BR/processor/AdminBrokerProcessor.java). The code is 0 whatever is granted: read
the list.

Only queues that can be read are locked, and for a group that may be: a lock takes memory for a while, and queue ids are any
number. An id that no client has, or more locks than the broker keeps, is refused.
"""

from __future__ import annotations

from ...remoting.bodies import LockBatch, LockBatchResponse
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..client_table import check_client_id
from ..state import BrokerState, Call

CODES = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    request = LockBatch.decode(command.body)
    if command.code == RequestCode.UNLOCK_BATCH_MQ:
        state.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
        return command.response(ResponseCode.SUCCESS)
    check_client_id(request.client_id)
    mine = [
        queue
        for queue in request.mq_set
        if state.groups.get(request.consumer_group) is not None
        and queue.broker_name == state.config.name
        and (topic := state.topics.get(queue.topic)) is not None
        and 0 <= queue.queue_id < topic.read_queue_nums
    ]
    granted = state.locks.lock(call.now_ms, request.consumer_group, request.client_id, mine)
    return command.response(ResponseCode.SUCCESS, body=LockBatchResponse(tuple(granted)).encode())
