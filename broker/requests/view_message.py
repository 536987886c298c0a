"""VIEW_MESSAGE_BY_ID 33 (BR/processor/QueryMessageProcessor.viewMessageById): one message by its commit log offset."""

from __future__ import annotations

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import ViewMessage
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.VIEW_MESSAGE_BY_ID,)


def handle(state: BrokerState, call: Call) -> Command:
    offset = ViewMessage.from_fields(call.command.fields).offset
    record = state.store.record_at(offset) if offset < state.store.flushed else None  # the disk must have it
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return call.command.response(ResponseCode.SUCCESS, body=record)
