"""GET_CONSUMER_LIST_BY_GROUP 38 (BR/processor/ConsumerManageProcessor.java). No members is code 1, not an empty list."""

from __future__ import annotations

from ...remoting.bodies import ConsumerIds
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import ConsumerList
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.GET_CONSUMER_LIST_BY_GROUP,)


def handle(state: BrokerState, call: Call) -> Command:
    name = ConsumerList.from_fields(call.command.fields).consumer_group
    group = state.clients.consumer_group(name)
    if group is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return call.command.response(ResponseCode.SUCCESS, body=ConsumerIds(tuple(group.client_ids())).encode())
