"""Requests of an administrator that a client must answer: running info 307, consume directly 309
(BR/processor/AdminBrokerProcessor.callConsumer).

The request is pushed to the client with an opaque of our own and waits in `state.forwarded`; the client's answer goes back
under the administrator's opaque. Whoever never answers is answered for: 207 after `forward_timeout_ms`. `ask` is for
whoever else asks clients something.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import ConsumeDirectly, RunningInfoRequest
from ...remoting.ids import parse_offset_message_id
from ..effects import Reply
from ..refusal import Refused
from ..state import BrokerState, Call, Forwarded, Heard

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
    ask(state, call, RequestCode(call.command.code), fields, body, [(member.channel, partial(_back, call.command))])
    return None


def ask(
    state: BrokerState, call: Call, code: RequestCode, fields: dict[str, str], body: bytes,
    clients: Sequence[tuple[int, Heard]],
) -> None:  # fmt: skip
    """Push the request to the clients (by channel), each with what hears its answer. Raises Refused."""
    if len(state.forwarded) + len(clients) > FORWARDED_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, "too many requests wait for clients' answers")
    deadline_ms = call.now_ms + state.config.forward_timeout_ms
    for channel, heard in clients:
        opaque = state.push(channel, code, fields, body)
        state.forwarded[opaque] = Forwarded(call.channel, channel, deadline_ms, heard)


def _back(command: Command, response: Command | None) -> Command:
    """The client's answer under the administrator's opaque."""
    if response is None:
        return command.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark="consumer timed out answering the broker")
    return command.response(response.code, response.fields, bytes(response.body), response.remark)


def answered(state: BrokerState, channel: int, response: Command) -> list[Reply]:
    """A client's answer to something that was passed on to it; any other response is nobody's and dropped.

    Opaques can be guessed, and responses are not signed: an answer counts from the connection that was asked only.
    """
    waiting = state.forwarded.get(response.opaque)
    if waiting is None or waiting.asked != channel:
        return []
    del state.forwarded[response.opaque]
    return _replies(waiting, response)


def _replies(waiting: Forwarded, response: Command | None) -> list[Reply]:
    answer = waiting.heard(response)
    return [] if answer is None else [Reply(waiting.channel, answer)]


def timed_out(state: BrokerState, now_ms: int) -> list[Reply]:
    late = [opaque for opaque, waiting in state.forwarded.items() if waiting.deadline_ms <= now_ms]
    replies: list[Reply] = []
    for opaque in late:
        replies += _replies(state.forwarded.pop(opaque), None)
    return replies
