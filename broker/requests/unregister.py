"""UNREGISTER_CLIENT 35 (BR/processor/ClientManageProcessor.unregisterClient)."""

from __future__ import annotations

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import Unregister
from ..state import BrokerState, Call

CODES = (RequestCode.UNREGISTER_CLIENT,)


def handle(state: BrokerState, call: Call) -> Command:
    request = Unregister.from_fields(call.command.fields)
    if request.producer_group:
        state.clients.unregister_producer(request.producer_group, call.channel)
    if request.consumer_group and state.clients.unregister_consumer(request.consumer_group, call.channel):
        state.notify_group(request.consumer_group)
    return call.command.response(ResponseCode.SUCCESS)
