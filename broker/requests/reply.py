"""SEND_REPLY_MESSAGE 324 and _V2 325: the answer to a request of request-reply, pushed to the client that asked (326)
(BR/processor/ReplyMessageProcessor.java).

The client is named by REPLY_TO_CLIENT and is found among the producers. Who replies is answered when the client has
acknowledged the reply, or did not in time. Replies are not stored, as with storeReplyMessageEnable=false: nobody but the
client that asked, and waits, can use them.
"""

from __future__ import annotations

from functools import partial

from ...remoting.admin_headers import PushReply
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import SendRequest, SendRequestV2, SendResponse
from ...remoting.properties import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)
from ..refusal import Refused
from ..state import BrokerState, Call
from .forward import ask
from .send import REGION, check_sizes, place_to_send

CODES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)


def handle(state: BrokerState, call: Call) -> Command | None:
    command = call.command
    kind = SendRequest if command.code == RequestCode.SEND_REPLY_MESSAGE else SendRequestV2
    request = kind.from_fields(command.fields)
    _, queue_id = place_to_send(state, call, request)
    check_sizes(state, len(command.body), request.properties or "")
    properties = decode_properties(request.properties or "")
    client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
    if client_id is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null")
    member = state.clients.producer_of(client_id)
    if member is None:
        remark = f"push reply message fail, channel of <{client_id}> not found."
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    properties[PROPERTY_PUSH_REPLY_TIME] = str(call.now_ms)
    header = PushReply(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_timestamp=request.born_timestamp,
        flag=request.flag,
        born_host=call.address,
        store_host=state.config.address,
        store_timestamp=call.now_ms,
        properties=encode_properties(properties),
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
    )
    heard = partial(_answer, command, client_id, queue_id)
    asked = [(member.channel, heard)]
    ask(state, call, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header.to_fields(), bytes(command.body), asked)
    return None


def _answer(command: Command, client_id: str, queue_id: int, response: Command | None) -> Command:
    fields = SendResponse("0", queue_id, 0, region_id=REGION, trace_on=True).to_fields()
    if response is None or response.code != ResponseCode.SUCCESS:
        return command.response(ResponseCode.SYSTEM_ERROR, fields, remark=f"push reply message to {client_id}fail.")
    return command.response(ResponseCode.SUCCESS, fields)
