"""INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223: the offsets that members hold, asked of each of them by 221
(BR/client/net/Broker2Client.getConsumeStatus).

As in Java a member that does not answer in time, or answers with an error, is left out. Java asks them one after another;
here all are asked at once.
"""

from __future__ import annotations

import contextlib
from functools import partial

from ...remoting.bodies import ConsumerStatus
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import ProtocolError
from ...remoting.headers import ConsumerStatusRequest
from ...remoting.queues import MessageQueue
from ..refusal import Refused
from ..state import BrokerState, Call
from .forward import ask

CODES = (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,)


class Gathering:
    """The answers of several members to one administrator."""

    def __init__(self, command: Command, members: int) -> None:
        self._command = command
        self._missing = members
        self._table: dict[str, dict[MessageQueue, int]] = {}

    def heard(self, client_id: str, response: Command | None) -> Command | None:
        """One member has answered (None = not in time); the administrator's answer when it was the last one."""
        self._missing -= 1
        if response is not None and response.code == ResponseCode.SUCCESS and response.body:
            with contextlib.suppress(ProtocolError):  # as one that does not answer
                self._table[client_id] = ConsumerStatus.decode(response.body).message_queue_table
        return None if self._missing else self.answer()

    def answer(self) -> Command:
        return self._command.response(ResponseCode.SUCCESS, body=ConsumerStatus({}, self._table).encode())


def handle(state: BrokerState, call: Call) -> Command | None:
    request = ConsumerStatusRequest.from_fields(call.command.fields)
    group = state.clients.consumer_group(request.group)
    members = list(group.channels.values()) if group else []
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{request.group}]")
    wanted = [member for member in members if not request.client_addr or member.client_id == request.client_addr]
    gathering = Gathering(call.command, len(wanted))
    if not wanted:
        return gathering.answer()
    fields = ConsumerStatusRequest(request.topic, request.group).to_fields()
    asked = [(member.channel, partial(gathering.heard, member.client_id)) for member in wanted]
    ask(state, call, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields, b"", asked)
    return None
