"""RECALL_MESSAGE 370: take back a message that waits for its time (BR/processor/RecallMessageProcessor.java).

The answer to a send of such a message has its handle. Taking back is a message of its own in the timers' topic, so that it
holds after a kill; one that was delivered meanwhile stays delivered.
"""

from __future__ import annotations

import base64

from ...client.recall import VERSION, decode_handle
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import RecallMessage, RecallMessageResponse
from ...remoting.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    encode_properties,
)
from ...remoting.stored import StoredMessage
from ..refusal import Refused
from ..state import BrokerState, Call
from ..timers import is_by_wall, recall_key

CODES = (RequestCode.RECALL_MESSAGE,)
TAG = "_RECALL_TAG_"
TIMER_OUT = PROPERTY_TIMER_OUT_MS.encode()


def handle_of(state: BrokerState, stored: StoredMessage, unique: str) -> str | None:
    """The handle of a message that was stored to be delivered at its time, None for any other."""
    if TIMER_OUT not in stored.raw_properties:  # nearly every one: spared to be decoded again
        return None
    due_ms = stored.properties.get(PROPERTY_TIMER_OUT_MS)
    topic = stored.properties.get(PROPERTY_REAL_TOPIC)
    if due_ms is None or topic is None:
        return None
    if not is_by_wall(stored.properties):  # a client compares it with its own clock, and so does `handle`
        due_ms = str(int(due_ms) - state.clock_ahead_ms)
    return base64.urlsafe_b64encode(f"{VERSION} {topic} {state.config.name} {due_ms} {unique}".encode()).decode()


def handle(state: BrokerState, call: Call) -> Command:
    request = RecallMessage.from_fields(call.command.fields)
    if request.topic not in state.topics:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{request.topic}] not exist")
    try:
        found = decode_handle(request.recall_handle)
        due_ms = int(found.deliver_at_ms)
    except (UsageError, ValueError):
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
    if found.topic != request.topic:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if found.broker_name != state.config.name:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
    key, wall_ms = recall_key(found.topic, found.message_id), call.now_ms - state.clock_ahead_ms
    delay_max_ms = state.config.timer_max_delay_sec * 1_000
    if state.timers.waits(key):  # the machine's clock may have been another when it was sent
        if not 0 < due_ms - wall_ms <= min(delay_max_ms, state.config.retention_ms):
            due_ms = wall_ms + 1  # it takes back at once, whatever its own time
    elif not 0 < due_ms - wall_ms < delay_max_ms:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    properties = {
        PROPERTY_TAGS: TAG,
        PROPERTY_TIMER_DEL_UNIQKEY: key,
        PROPERTY_UNIQ_KEY: found.message_id,
        PROPERTY_TIMER_DELIVER_MS: str(due_ms),
        PROPERTY_PRODUCER_GROUP: request.producer_group or "",
    }
    host, _, port = call.address.rpartition(":")
    message = StoredMessage(
        found.topic,
        b"0",
        encode_properties(properties).encode(),
        born_timestamp_ms=call.now_ms,
        born_host=host,
        born_port=int(port),
    )
    state.accept(call.now_ms, message, properties)
    return call.command.response(ResponseCode.SUCCESS, RecallMessageResponse(found.message_id).to_fields())
