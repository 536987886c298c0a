"""ACK_MESSAGE 200051, BATCH_ACK_MESSAGE 200151 and CHANGE_MESSAGE_INVISIBLETIME 200053
(BR/processor/{AckMessageProcessor,ChangeInvisibleTimeProcessor}.java).

What comes too late, twice, or with a check point that was replaced changes nothing, and is answered as if it did: as by the
genuine broker. The message was shown again then, or is done.
"""

from __future__ import annotations

import base64

from ...remoting.check_points import CheckPoint, real_topic
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import ProtocolError
from ...remoting.pop_headers import (
    AckRequest,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
)
from ..pop_table import Key, acknowledged, changed
from ..refusal import Refused
from ..state import BrokerState, Call
from .pop import invisible_ms
from .pull import check_queue, known_topic

CODES = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
BITS_MAX_CHARS = 1 << 16  # of a whole batch, half a million looks; those of one pop are some four characters


def handle(state: BrokerState, call: Call) -> Command:
    if call.command.code == RequestCode.BATCH_ACK_MESSAGE:
        return ack_batch(state, call)
    if call.command.code == RequestCode.ACK_MESSAGE:
        return ack(state, call)
    return change(state, call)


def check(state: BrokerState, request: AckRequest | ChangeInvisibleRequest) -> Key:
    """The queue that the message was popped from. Raises Refused."""
    topic = known_topic(state, request.topic)
    check_queue(topic, request.queue_id, request.consumer_group, ResponseCode.MESSAGE_ILLEGAL)
    low, high = (
        state.store.min_offset(request.topic, request.queue_id),
        state.store.max_offset(request.topic, request.queue_id),
    )
    if not low <= request.offset < high:
        raise Refused(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{request.topic}@{request.queue_id}, commit:{request.offset}, store:{low}~{high}",
        )
    return Key(request.topic, request.consumer_group, request.queue_id)


def ack(state: BrokerState, call: Call) -> Command:
    request = AckRequest.from_fields(call.command.fields)
    key = check(state, request)
    end(state, key, CheckPoint.decode(request.extra_info).pop_time_ms, [request.offset])
    return call.command.response(ResponseCode.SUCCESS)


def end(state: BrokerState, key: Key, pop_time_ms: int, offsets: list[int]) -> None:
    """What is in flight of these offsets since that pop is done."""
    table = state.pops.table
    done = [
        offset
        for offset in offsets
        if (entry := table.in_flight(key, offset)) is not None and entry.pop_time_ms == pop_time_ms
    ]
    if done:
        state.pops.write([acknowledged(key, pop_time_ms, done)], len(done))


def ack_batch(state: BrokerState, call: Call) -> Command:
    acks = BatchAckBody.decode(call.command.body).acks if call.command.body else ()
    if not acks:
        raise Refused(ResponseCode.NO_MESSAGE, "a batch without acknowledgements")
    bits_chars = sum(len(each.bits) for each in acks)
    if bits_chars > BITS_MAX_CHARS:
        remark = f"the bits of a batch are {bits_chars} characters; they are at most {BITS_MAX_CHARS}"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    for each in acks:
        topic = real_topic(each.topic, each.consumer_group, each.retry_mark)
        end(state, Key(topic, each.consumer_group, each.queue_id), each.pop_time, offsets_of(each))
    return call.command.response(ResponseCode.SUCCESS)


def offsets_of(batch: BatchAck) -> list[int]:
    """The queue offsets of a batch. Raises ProtocolError."""
    try:
        bits = base64.b64decode(batch.bits, validate=True)
    except ValueError as error:
        raise ProtocolError(f"bits are no base64: {error}", "BatchAck") from None
    return [batch.start_offset + 8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]


def change(state: BrokerState, call: Call) -> Command:
    request = ChangeInvisibleRequest.from_fields(call.command.fields)
    key = check(state, request)
    check_point = CheckPoint.decode(request.extra_info)
    entry = state.pops.table.in_flight(key, request.offset)
    if entry is not None and entry.pop_time_ms == check_point.pop_time_ms:
        invisible = invisible_ms(state, request.invisible_time)
        state.pops.write([changed(key, request.offset, entry.pop_time_ms, call.now_ms, invisible)])
    answer = ChangeInvisibleResponse(call.now_ms, request.invisible_time, check_point.revive_queue_id)
    return call.command.response(ResponseCode.SUCCESS, answer.to_fields())
