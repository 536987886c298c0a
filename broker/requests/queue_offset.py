"""What a queue holds: SEARCH_OFFSET_BY_TIMESTAMP 29, GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32
(BR/processor/AdminBrokerProcessor.java). A queue that does not exist has the offsets 0 and the store time -1."""

from __future__ import annotations

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import (
    EarliestStoreTime,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    SearchOffset,
    TimestampResponse,
)
from ..state import BrokerState, Call

CODES = (
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)


def handle(state: BrokerState, call: Call) -> Command:
    command, store = call.command, state.store
    if command.code == RequestCode.GET_EARLIEST_MSG_STORETIME:
        request = EarliestStoreTime.from_fields(command.fields)
        low = store.min_offset(request.topic, request.queue_id)
        stored_ms = store.store_time_ms(request.topic, request.queue_id, low)
        fields = TimestampResponse(-1 if stored_ms is None else stored_ms).to_fields()
        return command.response(ResponseCode.SUCCESS, fields)
    if command.code == RequestCode.GET_MAX_OFFSET:
        maximum = MaxOffset.from_fields(command.fields)
        offset = store.max_offset(maximum.topic, maximum.queue_id)
    elif command.code == RequestCode.GET_MIN_OFFSET:
        minimum = MinOffset.from_fields(command.fields)
        offset = store.min_offset(minimum.topic, minimum.queue_id)
    else:
        search = SearchOffset.from_fields(command.fields)
        upper = search.boundary_type == "UPPER"
        offset = store.search(search.topic, search.queue_id, search.timestamp, upper)
    return command.response(ResponseCode.SUCCESS, OffsetResponse(offset).to_fields())
