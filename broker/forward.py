"""Requests of an administrator that a client must answer: running info 307, consume directly 309
(BR/processor/AdminBrokerProcessor.callConsumer).

The request is pushed to the client with an opaque of our own and waits in `state.forwarded`; the client's answer goes back
under the administrator's opaque. Whoever never answers is answered for: 207 after `forward_timeout_ms`.
"""

from __future__ import annotations

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.headers import ConsumeDirectly, RunningInfoRequest
from ..remoting.ids import parse_offset_message_id
from .effects import Reply
from .refusal import Refused
from .state import BrokerState, Call, Forwarded

CODES = (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
FORWARDED_MAX = 1_024


def handle(state: BrokerState, call: Call) -> Command | None:
    command = call.command
    if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        info = RunningInfoRequest.from_fields(command.fields)
        return pass_on(state, call, info.consumer_group, info.client_id, command.fields, bytes(command.body))
    request = ConsumeDirectly.from_fields(command.fields)
    record = state.store.record_at(parse_offset_message_id(request.msg_id or "").physical_offset)
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the id, {request.msg_id}")
    fields = {**command.fields, "brokerName": state.config.name}
    return pass_on(state, call, request.consumer_group, request.client_id or "", fields, record)


def pass_on(
    state: BrokerState, call: Call, group: str, client_id: str, fields: dict[str, str], body: bytes
) -> Command | None:
    members = state.clients.consumer_group(group)
    member = members.find(client_id) if members else None
    if member is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if len(state.forwarded) >= FORWARDED_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, "too many requests wait for clients' answers")
    opaque = state.push(member.channel, RequestCode(call.command.code), fields, body)
    deadline_ms = call.now_ms + state.config.forward_timeout_ms
    state.forwarded[opaque] = Forwarded(call.channel, call.command, deadline_ms)
    return None


def answered(state: BrokerState, response: Command) -> list[Reply]:
    """A client's answer to something that was passed on; any other response is nobody's and dropped."""
    waiting = state.forwarded.pop(response.opaque, None)
    if waiting is None:
        return []
    back = waiting.command.response(response.code, response.fields, bytes(response.body), response.remark)
    return [Reply(waiting.channel, back)]


def timed_out(state: BrokerState, now_ms: int) -> list[Reply]:
    late = [opaque for opaque, waiting in state.forwarded.items() if waiting.deadline_ms <= now_ms]
    replies: list[Reply] = []
    for opaque in late:
        waiting = state.forwarded.pop(opaque)
        remark = "consumer timed out answering the broker"
        replies.append(
            Reply(waiting.channel, waiting.command.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark))
        )
    return replies
